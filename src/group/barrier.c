/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of a group meeting: every rank tells rank 0 that it has come, and rank 0 tells all
 * that they have. A meeting carries how each has fared, and may carry bytes and a
 * descriptor of each to all. A rank that has gone is seen by the end of its socket or of
 * its process, one that hangs by the time that has passed since the first came; either
 * ends the meeting and every later one. Called by group_load.c; how ranks find each other
 * is group_join.c, one packet group_link.c.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "group/link.h"

#define PART_MS 3000  /* what a copy that is under way may still take */
#define LOOK_MS 100   /* between looks at what the caller wants */
#define GRACE_MS 2000 /* rank 0 has this longer than all others, */
#define GRACE_PART 8  /* and this part of what they wait: it tells who hangs */

/* ---- the caller ---- */

void pst_group_heed(struct penstock_group *g, struct pst_load *load)
{
	g->load = load;
}

int pst_group_off(struct penstock_group *g)
{
	return g->load ? pst_load_look(g->load) : 0;
}

uint64_t pst_group_soon(const struct penstock_group *g, uint64_t until_ms)
{
	uint64_t soon = pst_group_now_ms() + LOOK_MS;

	return g->load && pst_load_patience(g->load) >= 0 && soon < until_ms ? soon : until_ms;
}

static void write_off(struct pst_note *note, int code)
{
	note->code = code;
	note->why = penstock_errwhy();
	snprintf(note->text, sizeof(note->text), "%s", penstock_errmsg());
}

/* ---- rank 0 ---- */

/* The first that goes is the one that is told of. */
static void note_gone(struct penstock_group *g, unsigned rank, int code, enum penstock_why why,
		      const char *text)
{
	if (g->gone.rank >= 0)
		return;
	g->gone.rank = (int)rank;
	g->gone.code = code;
	g->gone.why = why;
	snprintf(g->gone.text, sizeof(g->gone.text), "%s", text);
}

static void lose(struct penstock_group *g, unsigned rank)
{
	struct pst_link *link = &g->links[rank];
	char end[80], text[100];

	if (g->gone.rank < 0) {
		pst_link_obituary(link, end, sizeof(end));
		snprintf(text, sizeof(text), "has gone: %s", end);
		note_gone(g, rank, -ECONNRESET, PENSTOCK_WHY_IO_ERROR, text);
	}
	pst_link_close(link);
}

/* It stays connected: should it go on, it learns that nobody waits for it. */
static void give_up(struct penstock_group *g, unsigned rank)
{
	char text[100];

	snprintf(text, sizeof(text), "hangs: the others have waited for it for %.1f s",
		 g->how.stall_ms / 1000.0);
	note_gone(g, rank, -ETIMEDOUT, PENSTOCK_WHY_DEADLINE, text);
}

/* What rank `i` has sent; true: it came to this meeting. */
static bool take(struct penstock_group *g, unsigned i, struct pst_note *note, struct pst_said *said)
{
	int ret = pst_link_await(&g->links[i], 0, note, said);

	while (ret > 0 && note->seq < g->seq) { /* of a meeting that ended without it */
		if (said->fd >= 0)
			close(said->fd);
		said->fd = -1;
		ret = pst_link_await(&g->links[i], 0, note, said);
	}
	if (ret < 0)
		lose(g, i);
	return ret > 0;
}

/* When those who have come have waited long enough. It does not move while they wait: a
 * clock of another namespace, or one of who came long ago, tells nothing. */
static uint64_t patience(const struct penstock_group *g, const struct pst_note *notes)
{
	uint64_t own = notes[0].at_ms, first = own;

	for (unsigned i = 1; i < g->size; i++)
		if (notes[i].seq && notes[i].at_ms < first &&
		    own - notes[i].at_ms <= 2ull * g->how.stall_ms)
			first = notes[i].at_ms;
	return first + g->how.stall_ms;
}

static bool any_failed(const struct penstock_group *g, const struct pst_note *notes)
{
	for (unsigned i = 0; i < g->size; i++)
		if (notes[i].code < 0)
			return true;
	return false;
}

/* Until all have come, one has failed or gone, or it is late. notes[i].seq is not 0 for who
 * came. */
static void collect(struct penstock_group *g, bool parting, uint64_t until_ms,
		    struct pst_note *notes, struct pst_said *said)
{
	struct pollfd fds[2 * PST_GROUP_MAX];

	for (;;) {
		uint64_t until = parting ? until_ms : patience(g, notes);
		unsigned missing = 0, absent = 0;
		int ms = pst_group_left_ms(until);

		for (unsigned i = g->size; i-- > 0;) {
			bool live = i && g->links[i].sock >= 0 && (int)i != g->gone.rank;

			if (live && !notes[i].seq) {
				missing++;
				absent = i;
			}
			fds[2 * i] = (struct pollfd){live ? g->links[i].sock : -1, POLLIN, 0};
			fds[2 * i + 1] = (struct pollfd){live ? g->links[i].pidfd : -1, POLLIN, 0};
		}
		if (!missing || (!parting && (g->gone.rank >= 0 || any_failed(g, notes))))
			return;
		if (!parting && !notes[0].code && pst_group_off(g)) {
			write_off(&notes[0], g->load->failed);
			return;
		}
		if (poll(fds, 2 * g->size, pst_group_left_ms(pst_group_soon(g, until))) < 0)
			continue;
		for (unsigned i = 1; i < g->size; i++) {
			struct pst_note note = {0};

			if (!fds[2 * i].revents && !fds[2 * i + 1].revents)
				continue;
			if (said[i].fd >= 0) /* it has come, and says once more how */
				close(said[i].fd);
			said[i].fd = -1;
			if (take(g, i, &note, &said[i])) {
				notes[i] = note;
				ms = -1;
			} else if (g->links[i].sock >= 0 && fds[2 * i + 1].revents) {
				lose(g, i);
			}
		}
		if (!ms && !parting)
			give_up(g, absent);
		if (!ms)
			return;
	}
}

/* Drops all that a rank has said. */
static void drain(struct penstock_group *g, struct pst_link *link)
{
	struct pst_said said = g->spare;
	struct pst_note note;

	while (pst_link_await(link, 0, &note, &said) > 0)
		if (said.fd >= 0)
			close(said.fd);
}

/* Of whom the end is seen; what they said is dropped. */
static bool lose_ended(struct penstock_group *g)
{
	struct pollfd fds[2 * PST_GROUP_MAX];

	for (unsigned i = 0; i < g->size; i++) {
		fds[2 * i] = (struct pollfd){i ? g->links[i].sock : -1, 0, 0};
		fds[2 * i + 1] = (struct pollfd){i ? g->links[i].pidfd : -1, POLLIN, 0};
	}
	if (poll(fds, 2 * g->size, 0) <= 0)
		return false;
	for (unsigned i = 1; i < g->size; i++) {
		if (!fds[2 * i].revents && !fds[2 * i + 1].revents)
			continue;
		drain(g, &g->links[i]); /* its last word may be that it leaves */
		lose(g, i);
	}
	return true;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* A rank that takes no packet hangs; what it missed it could not make up for. It has a moment
 * where another has gone meanwhile, or this rank's caller wants no more. */
static void send_to(struct penstock_group *g, unsigned to, struct pst_note *note,
		    const struct pst_said *said)
{
	uint64_t now = pst_group_now_ms(), soon;
	uint64_t until = (int)to == g->gone.rank ? 0 : now + g->how.stall_ms;
	bool hurry = false;

	if (g->links[to].sock < 0)
		return;
	do {
		soon = least(now + LOOK_MS, until);
		/* One that has gone is learnt of at the next meeting. */
		if (pst_link_send(&g->links[to], soon, note, said) != -ETIMEDOUT)
			return;
		now = pst_group_now_ms();
		lose_ended(g);
		if (!hurry && (g->gone.rank >= 0 || pst_group_off(g) == -ECANCELED)) {
			hurry = true;
			until = least(until, now + PART_MS);
		}
	} while (soon < until);
	if (pst_group_off(g) == -ECANCELED)
		note_gone(g, to, -ECANCELED, PENSTOCK_WHY_CANCELLED,
			  "did not take in time what it was told, and rank 0 was cancelled");
	else
		give_up(g, to);
	pst_link_close(&g->links[to]);
}

static void spread(struct penstock_group *g, const struct pst_said *said)
{
	for (unsigned to = 1; to < g->size; to++) {
		for (unsigned from = 0; from < g->size; from++) {
			struct pst_note note = {.seq = g->seq, .rank = from};

			if (from != to)
				send_to(g, to, &note, &said[from]);
		}
	}
}

static void write_gone(const struct penstock_group *g, struct pst_note *note)
{
	note->code = g->gone.code;
	note->why = g->gone.why;
	note->rank = (uint32_t)g->gone.rank;
	note->gone = 1;
	snprintf(note->text, sizeof(note->text), "%s", g->gone.text);
}

/* Of the next meeting, that it cannot be. */
static void tell_gone(struct penstock_group *g)
{
	struct pst_note answer = {.seq = g->seq + 1};

	write_gone(g, &answer);
	for (unsigned i = 1; i < g->size; i++)
		send_to(g, i, &answer, NULL);
}

/* Meets as rank 0: the answer, which all are sent. */
static void lead(struct penstock_group *g, bool parting, bool telling, uint64_t until_ms,
		 const struct pst_note *own, struct pst_said *said, struct pst_note *answer)
{
	struct pst_note *notes = g->notes;

	memset(notes, 0, g->size * sizeof(*notes));
	notes[0] = *own;
	collect(g, parting, until_ms, notes, said);
	*answer = (struct pst_note){.seq = g->seq};
	if (g->gone.rank >= 0) {
		write_gone(g, answer);
	} else {
		for (unsigned i = g->size; i-- > 0;) {
			if (notes[i].code < 0) {
				*answer = notes[i];
				answer->rank = i;
			}
		}
	}
	for (unsigned i = 1; i < g->size; i++)
		send_to(g, i, answer, NULL);
	if (telling && !answer->code)
		spread(g, said);
	if (g->gone.rank >= 0 && !answer->code)
		tell_gone(g); /* since: who was told that all have come goes on */
	for (unsigned i = 1; !telling && i < g->size; i++) {
		if (said[i].fd >= 0)
			close(said[i].fd);
		said[i].fd = -1;
	}
}

/* Whether a rank has come to the next meeting already, and failed. Its packet stays. */
static bool failed_already(struct penstock_group *g, unsigned rank, struct pst_note *note)
{
	struct pst_link *link = &g->links[rank];
	struct pst_said said = g->spare;

	while (pst_link_peek(link, note)) {
		if (note->seq > g->seq)
			return note->seq == g->seq + 1 && note->code < 0;
		/* Of a meeting that ended without it. */
		if (pst_link_await(link, 0, note, &said) <= 0)
			return false;
		if (said.fd >= 0)
			close(said.fd);
	}
	return false;
}

static void tell_early(struct penstock_group *g, unsigned rank, const struct pst_note *note)
{
	g->early = *note;
	g->early.rank = rank;
	for (unsigned i = 1; i < g->size; i++)
		send_to(g, i, &g->early, NULL);
}

/* Between meetings. Ranks may have come to the next one: their packets stay. One of them
 * that has failed or gone ends that meeting before it begins. */
static void look_around(struct penstock_group *g)
{
	struct pst_note note;

	for (unsigned i = 1; i < g->size; i++) {
		if (!failed_already(g, i, &note))
			continue;
		tell_early(g, i, &note);
		return;
	}
	if (lose_ended(g))
		tell_gone(g);
}

/* ---- the others ---- */

/* Between meetings. Of one that this rank has not come to, rank 0 can only say that it
 * cannot be; what it says after that, or that it ends, is for the meeting behind. */
static void listen_in(struct penstock_group *g)
{
	struct pst_link *link = &g->links[0];
	struct pollfd end = {link->pidfd, POLLIN, 0};
	bool ended = poll(&end, 1, 0) > 0; /* before what it said is read: no word is lost */
	struct pst_said said = g->spare;
	struct pst_note note;
	int ret;

	while ((ret = pst_link_await(link, 0, &note, &said)) > 0) {
		if (said.fd >= 0)
			close(said.fd);
		if (note.gone)
			note_gone(g, note.rank, note.code, (enum penstock_why)note.why, note.text);
		if (note.gone || note.code >= 0 || note.seq <= g->seq)
			continue;
		g->early = note;
		return;
	}
	if (ret < 0 || ended)
		lose(g, 0);
}

static uint64_t longest(uint64_t ms)
{
	return ms + ms / GRACE_PART + GRACE_MS;
}

/* Who was cancelled has told rank 0, which has a moment to answer. */
static uint64_t moment(const struct pst_note *own, uint64_t until_ms)
{
	if (own->code >= 0 || own->why != PENSTOCK_WHY_CANCELLED)
		return until_ms;
	return least(pst_group_now_ms() + PART_MS, until_ms);
}

/* What rank 0 says. Should this rank's caller want no more of the load, before or meanwhile,
 * this rank leaves if it has said nothing after that moment. */
static int await_word(struct penstock_group *g, uint64_t *until_ms, struct pst_note *own,
		      struct pst_note *word, struct pst_said *other)
{
	struct pst_link *link = &g->links[0];
	int ret;

	for (;;) {
		uint64_t soon = own->code >= 0 ? pst_group_soon(g, *until_ms) : *until_ms;

		ret = pst_link_await(link, soon, word, other);
		if (ret != -ETIMEDOUT || soon == *until_ms)
			break;
		if (!pst_group_off(g))
			continue;
		write_off(own, g->load->failed);
		pst_link_send(link, 0, own, NULL);
		*until_ms = moment(own, *until_ms);
	}
	if (ret == -ETIMEDOUT && own->code < 0 && own->why == PENSTOCK_WHY_CANCELLED) {
		struct pst_note left = {.seq = PST_SEQ_LEFT};

		note_gone(g, 0, own->code, PENSTOCK_WHY_CANCELLED,
			  "did not hear in time that this rank was cancelled");
		pst_link_send(link, 0, &left, NULL);
		pst_link_close(link);
	}
	return ret;
}

/* Meets as another rank. */
static void follow(struct penstock_group *g, bool parting, bool telling, uint64_t until_ms,
		   struct pst_note *own, struct pst_said *said, struct pst_note *answer)
{
	struct pst_link *link = &g->links[0];
	struct pst_said other = g->spare;
	int ret;

	own->rank = g->rank;
	until_ms = moment(own, until_ms);
	/* What fails here is seen as the end of the other side below, after what it said. */
	pst_link_send(link, until_ms, own, telling ? &said[g->rank] : NULL);
	do {
		ret = parting ? pst_link_await(link, until_ms, answer, &other)
			      : await_word(g, &until_ms, own, answer, &other);
	} while (ret > 0 && answer->seq < g->seq);
	if (ret > 0 && answer->gone)
		note_gone(g, answer->rank, answer->code, (enum penstock_why)answer->why,
			  answer->text);
	for (unsigned i = 1; telling && ret > 0 && !answer->code && i < g->size; i++) {
		struct pst_note note;

		ret = await_word(g, &until_ms, own, &note, &other);
		if (ret > 0 && (note.rank >= g->size || note.rank == g->rank)) {
			if (other.fd >= 0)
				close(other.fd);
			ret = -EPIPE;
		}
		if (ret <= 0)
			break;
		memcpy(said[note.rank].bytes, other.bytes, other.len);
		said[note.rank].len = other.len;
		said[note.rank].fd = other.fd;
	}
	if (ret == -ETIMEDOUT)
		give_up(g, 0);
	else if (ret <= 0)
		lose(g, 0);
}

/* ---- meetings ---- */

static int gone(const struct penstock_group *g)
{
	return pst_weights_fail(g->gone.code, g->gone.why, NULL, NULL, PST_NO_OFF,
				"rank %d of group '%s' %s", g->gone.rank, g->name, g->gone.text);
}

static int failed(const struct pst_note *answer)
{
	return pst_weights_fail(answer->code, (enum penstock_why)answer->why, NULL, NULL,
				PST_NO_OFF, "rank %u: %s", answer->rank, answer->text);
}

static int meet(struct penstock_group *g, int status, bool telling, struct pst_said *said)
{
	struct pst_note answer = {0}, own = {.seq = ++g->seq, .at_ms = pst_group_now_ms()};

	status = status ? status : pst_group_off(g);
	if (status < 0)
		write_off(&own, status);
	if (g->size == 1)
		return status;
	if (g->early.seq == g->seq)
		return failed(&g->early);
	if (g->gone.rank >= 0)
		return gone(g);
	if (g->rank)
		follow(g, false, telling, own.at_ms + longest(g->how.stall_ms), &own, said,
		       &answer);
	else
		lead(g, false, telling, 0, &own, said, &answer);
	if (g->gone.rank >= 0)
		return gone(g);
	if (!answer.code || answer.rank == g->rank)
		return answer.code; /* its own sentence stands already */
	return failed(&answer);
}

/* Room for what each says; one block, what this rank says at its place. */
static int make_room(struct penstock_group *g, const void *bytes, size_t len, int fd,
		     struct pst_said *said)
{
	unsigned char *room = malloc(g->size * (size_t)PST_GROUP_SAY_MAX);

	for (unsigned i = 0; i < g->size; i++) {
		said[i].bytes = room ? room + i * (size_t)PST_GROUP_SAY_MAX : NULL;
		said[i].len = 0;
		said[i].fd = -1;
	}
	if (!room)
		return -ENOMEM;
	memcpy(said[g->rank].bytes, bytes, len);
	said[g->rank].len = len;
	said[g->rank].fd = fd;
	return 0;
}

int pst_group_tell(struct penstock_group *g, int status, const void *bytes, size_t len, int fd,
		   struct pst_said *said)
{
	int ret = make_room(g, bytes, len, fd, said);

	if (ret) {
		/* The others are to learn of it, without a word of this one's. */
		ret = status ? status : pst_weights_no_memory("what ranks say");
		return pst_group_meet(g, ret);
	}
	return meet(g, status, true, said);
}

void pst_said_free(struct penstock_group *g, struct pst_said *said)
{
	for (unsigned i = 0; i < g->size; i++)
		if (i != g->rank && said[i].fd >= 0)
			close(said[i].fd);
	free(said[0].bytes);
	said[0].bytes = NULL;
}

int pst_group_meet(struct penstock_group *g, int status)
{
	return meet(g, status, false, g->nothing);
}

int pst_group_look(struct penstock_group *g)
{
	if (g->size > 1 && g->gone.rank < 0 && g->early.seq <= g->seq) {
		if (g->rank)
			listen_in(g);
		else
			look_around(g);
	}
	if (g->early.seq > g->seq)
		return failed(&g->early);
	return g->gone.rank >= 0 ? gone(g) : pst_group_off(g);
}

void pst_group_part(struct penstock_group *g, bool done)
{
	struct pst_note own = {.seq = ++g->seq}, answer;
	uint64_t limit = done && g->gone.rank < 0 ? g->how.stall_ms : PART_MS;
	uint64_t now = pst_group_now_ms();

	if (g->size == 1 || (g->rank && (g->links[0].sock < 0 || !g->gone.rank)))
		return;
	if (g->rank)
		follow(g, true, false, now + longest(limit), &own, g->nothing, &answer);
	else
		lead(g, true, false, now + limit, &own, g->nothing, &answer);
}

/* ---- facts ---- */

unsigned pst_group_rank(const struct penstock_group *g)
{
	return g->rank;
}

unsigned pst_group_size(const struct penstock_group *g)
{
	return g->size;
}

const struct pst_group_how *pst_group_how(const struct penstock_group *g)
{
	return &g->how;
}

int pst_group_check_owner(const struct penstock_group *g)
{
	if (g->pid == getpid())
		return 0;
	return pst_weights_fail(EOWNERDEAD, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
				"opened before a fork: the child must open its own");
}
