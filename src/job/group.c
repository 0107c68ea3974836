/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of a group meeting: every rank tells rank 0 that it has come, and rank 0 tells all
 * that they have. A meeting carries how each has fared, and may carry bytes and a
 * descriptor of each to all. A rank that has gone is seen by the end of its socket or of
 * its process and ends the meeting, never a time limit. Called by group_load.c; how they
 * find each other is group_join.c.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "job/group_link.h"

#define PART_MS 3000 /* what a copy that is under way may still take */

/* ---- one packet ---- */

int pst_link_send(const struct pst_link *link, struct pst_note *note, const void *bytes,
		  size_t len, int fd)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { .room = { 0 } };
	struct iovec iov[2] = { { note, sizeof(*note) }, { (void *)(uintptr_t)bytes, len } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = len ? 2 : 1 };
	ssize_t n;

	note->magic = PST_NOTE_MAGIC;
	note->len = (uint32_t)len;
	if (fd >= 0) {
		struct cmsghdr *c;

		msg.msg_control = control.room;
		msg.msg_controllen = sizeof(control.room);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	}
	do {
		n = sendmsg(link->sock, &msg, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

static int passed(struct msghdr *msg)
{
	int fd = -1;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
			memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

/* 1: a packet, 0: none is there, -EPIPE: the other end has gone or speaks otherwise. */
static int receive(const struct pst_link *link, struct pst_note *note, struct pst_said *said)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov[2] = { { note, sizeof(*note) }, { said->bytes, PST_GROUP_SAY_MAX } };
	struct msghdr msg;
	ssize_t n;

	for (int i = 0; i < 3; i++) {
		msg = (struct msghdr){ .msg_iov = iov, .msg_iovlen = 2,
				       .msg_control = control.room,
				       .msg_controllen = sizeof(control.room) };
		n = recvmsg(link->sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		/* A reset comes before what was sent ahead of it. */
		if (n >= 0 || (errno != EINTR && errno != ECONNRESET))
			break;
	}
	if (n < 0)
		return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -EPIPE;
	said->fd = passed(&msg);
	said->len = n > (ssize_t)sizeof(*note) ? (size_t)n - sizeof(*note) : 0;
	if ((size_t)n >= sizeof(*note) && note->magic == PST_NOTE_MAGIC &&
	    note->len == said->len && !(msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
		note->text[sizeof(note->text) - 1] = '\0';
		return 1;
	}
	if (said->fd >= 0)
		close(said->fd);
	said->fd = -1;
	return -EPIPE;
}

static int left_ms(uint64_t until_ms)
{
	uint64_t now = pst_group_now_ms();

	if (until_ms == UINT64_MAX)
		return -1;
	return until_ms <= now ? 0 : until_ms - now > 60000 ? 60000 : (int)(until_ms - now);
}

int pst_link_await(const struct pst_link *link, uint64_t until_ms, struct pst_note *note,
		   struct pst_said *said)
{
	for (;;) {
		struct pollfd fds[2] = { { link->sock, POLLIN, 0 }, { link->pidfd, POLLIN, 0 } };
		int ms = left_ms(until_ms), ret, n = poll(fds, 2, ms);
		bool ended = n > 0 && fds[1].revents;

		ret = receive(link, note, said);
		if (ret)
			return ret;
		if (ended)
			return -EPIPE; /* and nothing of what it sent is left */
		if (!n && !ms)
			return -ETIMEDOUT;
	}
}

void pst_link_close(struct pst_link *link)
{
	if (link->sock >= 0)
		close(link->sock);
	if (link->pidfd >= 0)
		close(link->pidfd);
	link->sock = link->pidfd = -1;
}

/* ---- rank 0 ---- */

static void lose(struct penstock_group *g, unsigned rank)
{
	if (rank < g->size)
		pst_link_close(&g->links[rank]);
	if (g->gone < 0)
		g->gone = (int)rank;
}

static void note_gone(const struct penstock_group *g, struct pst_note *note)
{
	note->code = -ECONNRESET;
	note->why = PENSTOCK_WHY_IO_ERROR;
	note->rank = (uint32_t)g->gone;
	note->gone = 1;
}

/* What rank `i` has sent; true: it came to this meeting. */
static bool take(struct penstock_group *g, unsigned i, struct pst_note *note,
		 struct pst_said *said)
{
	int ret = receive(&g->links[i], note, said);

	while (ret > 0 && note->seq < g->seq) { /* of a meeting that ended without it */
		if (said->fd >= 0)
			close(said->fd);
		ret = receive(&g->links[i], note, said);
	}
	if (ret < 0)
		lose(g, i);
	return ret > 0;
}

/* Until all have come, one has gone or it is late. notes[i].seq is not 0 for who came. */
static void collect(struct penstock_group *g, bool parting, uint64_t until_ms,
		    struct pst_note *notes, struct pst_said *said)
{
	struct pollfd fds[2 * PST_GROUP_MAX];

	for (;;) {
		unsigned missing = 0;
		int ms = left_ms(until_ms);

		for (unsigned i = 0; i < g->size; i++) {
			bool live = i && g->links[i].sock >= 0;

			missing += live && !notes[i].seq;
			fds[2 * i] = (struct pollfd){ live ? g->links[i].sock : -1, POLLIN, 0 };
			fds[2 * i + 1] = (struct pollfd){ live ? g->links[i].pidfd : -1, POLLIN,
							  0 };
		}
		if (!missing || !ms || (g->gone >= 0 && !parting))
			return;
		if (poll(fds, 2 * g->size, ms) < 0)
			continue;
		for (unsigned i = 1; i < g->size; i++) {
			struct pst_note note = { 0 };

			if (!fds[2 * i].revents && !fds[2 * i + 1].revents)
				continue;
			if (take(g, i, &note, &said[i]))
				notes[i] = note;
			else if (g->links[i].sock >= 0 && fds[2 * i + 1].revents)
				lose(g, i);
		}
	}
}

static void spread(struct penstock_group *g, const struct pst_said *said)
{
	for (unsigned to = 1; to < g->size; to++) {
		for (unsigned from = 0; from < g->size; from++) {
			struct pst_note note = { .seq = g->seq, .rank = from };

			/* One that has gone is learnt of at the next meeting. */
			if (from != to)
				pst_link_send(&g->links[to], &note, said[from].bytes,
					      said[from].len, said[from].fd);
		}
	}
}

/* Meets as rank 0: the answer, which all are sent. */
static void lead(struct penstock_group *g, bool parting, bool telling, uint64_t until_ms,
		 const struct pst_note *own, struct pst_said *said, struct pst_note *answer)
{
	struct pst_note *notes = g->notes;

	memset(notes, 0, g->size * sizeof(*notes));
	notes[0] = *own;
	collect(g, parting, until_ms, notes, said);
	*answer = (struct pst_note){ .seq = g->seq };
	if (g->gone >= 0) {
		note_gone(g, answer);
	} else {
		for (unsigned i = g->size; i-- > 0;) {
			if (notes[i].code < 0) {
				*answer = notes[i];
				answer->rank = i;
			}
		}
	}
	for (unsigned i = 1; i < g->size; i++)
		if (g->links[i].sock >= 0)
			pst_link_send(&g->links[i], answer, NULL, 0, -1);
	if (telling && !answer->code)
		spread(g, said);
	for (unsigned i = 1; !telling && i < g->size; i++) {
		if (said[i].fd >= 0)
			close(said[i].fd);
		said[i].fd = -1;
	}
}

/* ---- the others ---- */

/* Meets as another rank. */
static void follow(struct penstock_group *g, bool telling, uint64_t until_ms,
		   struct pst_note *own, struct pst_said *said, struct pst_note *answer)
{
	struct pst_link *link = &g->links[0];
	struct pst_said *mine = &said[g->rank], other = g->spare;
	int ret;

	own->rank = g->rank;
	/* What fails here is seen as the end of the other side below, after what it said. */
	pst_link_send(link, own, telling ? mine->bytes : NULL, telling ? mine->len : 0,
		      telling ? mine->fd : -1);
	do {
		ret = pst_link_await(link, until_ms, answer, &other);
	} while (ret > 0 && answer->seq < g->seq);
	if (ret > 0 && answer->gone)
		g->gone = (int)answer->rank;
	for (unsigned i = 1; telling && ret > 0 && !answer->code && i < g->size; i++) {
		struct pst_note note;

		ret = pst_link_await(link, until_ms, &note, &other);
		if (ret <= 0 || note.rank >= g->size || note.rank == g->rank)
			break;
		memcpy(said[note.rank].bytes, other.bytes, other.len);
		said[note.rank].len = other.len;
		said[note.rank].fd = other.fd;
	}
	if (ret <= 0) {
		lose(g, 0);
		note_gone(g, answer);
	}
}

/* ---- meetings ---- */

static int gone(const struct penstock_group *g)
{
	return pst_weights_fail(ECONNRESET, PENSTOCK_WHY_IO_ERROR, NULL, NULL, PST_NO_OFF,
				"rank %d of group '%s' has gone: its process ended, or it closed "
				"the group", g->gone, g->name);
}

static int meet(struct penstock_group *g, int status, bool telling, struct pst_said *said)
{
	struct pst_note own = { .seq = ++g->seq, .code = status }, answer = { 0 };

	if (status < 0) {
		own.why = penstock_errwhy();
		strncpy(own.text, penstock_errmsg(), sizeof(own.text) - 1);
	}
	if (g->size == 1)
		return status;
	if (g->gone >= 0)
		return gone(g);
	if (g->rank)
		follow(g, telling, UINT64_MAX, &own, said, &answer);
	else
		lead(g, false, telling, UINT64_MAX, &own, said, &answer);
	if (g->gone >= 0)
		return gone(g);
	if (!answer.code || answer.rank == g->rank)
		return answer.code ? status : 0; /* its own sentence stands already */
	return pst_weights_fail(answer.code, (enum penstock_why)answer.why, NULL, NULL, PST_NO_OFF,
				"rank %u: %s", answer.rank, answer.text);
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

void pst_group_part(struct penstock_group *g)
{
	struct pst_note own = { .seq = ++g->seq }, answer;
	bool late = g->gone >= 0; /* a group that is whole takes the time that it takes */
	uint64_t now = pst_group_now_ms();

	if (g->size == 1 || (g->rank && g->links[0].sock < 0))
		return;
	if (g->rank)
		follow(g, false, late ? now + 2 * PART_MS : UINT64_MAX, &own, g->nothing, &answer);
	else
		lead(g, true, false, late ? now + PART_MS : UINT64_MAX, &own, g->nothing, &answer);
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

uint64_t pst_group_window(const struct penstock_group *g)
{
	return g->window;
}

unsigned pst_group_windows(const struct penstock_group *g)
{
	return g->windows;
}
