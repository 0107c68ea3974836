/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the barriers of a group, which is several processes (ranks) that load a model
 * together. At a barrier every rank sends rank 0 a packet when it has arrived; when all have
 * arrived, rank 0 sends every rank a packet with the result. The packets carry the ranks' status.
 * In an exchange, each rank also sends a message and a descriptor, which rank 0 passes to all other
 * ranks. A rank is "lost" when its socket closes or its process exits. A rank "hangs" if stall_ms
 * have passed since the first rank arrived at the barrier, and it has not arrived yet. In both
 * cases this barrier and all later barriers fail. Called by the other files of src/group. No
 * function waits without a limit.
 */
#include "group/barrier.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/why.h"
#include "weights/err.h"

/* Time in ms that the barrier after a failed load waits for ranks that are still copying. */
#define LAST_BARRIER_MS 3000
/* Time in ms between two calls of the callback by which this rank's caller can cancel. */
#define POLL_MS 100
/* If a rank has not arrived after stall_ms, rank 0 records that it hangs, and sends this to the
 * other ranks. They must wait for this message, so they wait longer than rank 0: by GRACE_MS plus
 * (1 / GRACE_PART) of stall_ms. */
#define GRACE_MS 2000
#define GRACE_PART 8

/* ---- the caller ---- */

void pst_group_set_progress(struct penstock_group *g, struct pst_load *load)
{
	g->progress = load;
}

int pst_group_poll_caller(struct penstock_group *g)
{
	return g->progress ? pst_load_poll_caller(g->progress) : 0;
}

uint64_t pst_group_next_poll_ms(const struct penstock_group *g, uint64_t until_ms)
{
	uint64_t soon = pst_group_now_ms() + POLL_MS;

	return g->progress && pst_load_wait_ns(g->progress) >= 0 && soon < until_ms ? soon
										    : until_ms;
}

static void packet_set_failure(struct pst_packet *packet, int code)
{
	packet->code = code;
	packet->why = penstock_errwhy();
	snprintf(packet->text, sizeof(packet->text), "%s", penstock_errmsg());
}

/* ---- rank 0 ---- */

/* Records that `rank` is lost or hangs, and why. Keeps an earlier record, because only the
 * first such rank is reported. */
static void record_lost(struct penstock_group *g, unsigned rank, int code, enum penstock_why why,
			const char *text)
{
	if (g->lost.rank >= 0)
		return;
	g->lost.rank = (int)rank;
	g->lost.code = code;
	g->lost.why = why;
	snprintf(g->lost.text, sizeof(g->lost.text), "%s", text);
}

static void lose_rank(struct penstock_group *g, unsigned rank)
{
	struct pst_link *link = &g->links[rank];
	char end[80], text[100];

	if (g->lost.rank < 0) {
		pst_link_death_reason(link, end, sizeof(end));
		snprintf(text, sizeof(text), "is lost: %s", end);
		record_lost(g, rank, -ECONNRESET, PENSTOCK_WHY_IO_ERROR, text);
	}
	pst_link_close(link);
}

/* Records that a rank hangs. Keeps the connection open, so that the rank receives the packet about
 * this if it resumes. */
static void mark_hung(struct penstock_group *g, unsigned rank)
{
	char text[100];

	snprintf(text, sizeof(text), "hangs: the other ranks waited %.1f s for it",
		 g->settings.stall_ms / 1000.0);
	record_lost(g, rank, -ETIMEDOUT, PENSTOCK_WHY_DEADLINE, text);
}

/* Receives a packet of rank `i`, if the rank has sent a packet. Returns true if the packet says
 * that the rank has arrived at this barrier. */
static bool receive_arrival(struct penstock_group *g, unsigned i, struct pst_packet *packet,
			    struct pst_message *message)
{
	int ret = pst_link_receive(&g->links[i], 0, packet, message);

	/* Drops packets for an earlier barrier, which ended before this rank arrived. */
	while (ret > 0 && packet->seq < g->seq) {
		if (message->fd >= 0)
			close(message->fd);
		message->fd = -1;
		ret = pst_link_receive(&g->links[i], 0, packet, message);
	}
	if (ret < 0)
		lose_rank(g, i);
	return ret > 0;
}

/* Returns the time in ms at which the ranks that have arrived stop waiting for the other ranks:
 * stall_ms after the first arrival. Ignores a rank that arrived more than twice stall_ms before
 * rank 0. Such a rank may run in another time namespace, where the clock differs. Or it arrived so
 * long ago that its wait for the result (member_timeout_ms) has usually ended. */
static uint64_t stall_deadline(const struct penstock_group *g, const struct pst_packet *packets)
{
	uint64_t own = packets[0].at_ms, first = own;

	for (unsigned i = 1; i < g->size; i++)
		if (packets[i].seq && packets[i].at_ms < first &&
		    own - packets[i].at_ms <= 2ull * g->settings.stall_ms)
			first = packets[i].at_ms;
	return first + g->settings.stall_ms;
}

static bool any_rank_failed(const struct penstock_group *g, const struct pst_packet *packets)
{
	for (unsigned i = 0; i < g->size; i++)
		if (packets[i].code < 0)
			return true;
	return false;
}

/* Waits until all ranks have arrived, or one rank has failed or is lost, or the time limit has
 * passed. packets[i].seq becomes nonzero when rank i arrives. */
static void await_arrivals(struct penstock_group *g, bool last, uint64_t until_ms,
			   struct pst_packet *packets, struct pst_message *messages)
{
	struct pollfd fds[2 * PST_GROUP_MAX];
	char text[100];

	for (;;) {
		uint64_t until = last ? until_ms : stall_deadline(g, packets);
		unsigned missing = 0, absent = 0;
		int ret, ms = pst_group_ms_until(until);

		for (unsigned i = g->size; i-- > 0;) {
			bool live = i && g->links[i].sock >= 0 && (int)i != g->lost.rank;

			if (live && !packets[i].seq) {
				missing++;
				absent = i;
			}
			fds[2 * i] = (struct pollfd){live ? g->links[i].sock : -1, POLLIN, 0};
			fds[2 * i + 1] = (struct pollfd){live ? g->links[i].pidfd : -1, POLLIN, 0};
		}
		if (!missing || (!last && (g->lost.rank >= 0 || any_rank_failed(g, packets))))
			return;
		if (!last && !packets[0].code && pst_group_poll_caller(g)) {
			packet_set_failure(&packets[0], g->progress->failed);
			return;
		}
		ret = pst_group_wait_fds(fds, 2 * g->size,
					 pst_group_ms_until(pst_group_next_poll_ms(g, until)));
		if (ret < 0 && ret != -EINTR) {
			snprintf(text, sizeof(text), "cannot wait for the others: %s",
				 strerror(-ret));
			record_lost(g, 0, ret, pst_why_from_errno(ret), text);
			return;
		}
		if (ret < 0)
			continue;
		for (unsigned i = 1; i < g->size; i++) {
			struct pst_packet packet = {0};

			if (!fds[2 * i].revents && !fds[2 * i + 1].revents)
				continue;
			/* The rank has arrived before and sends another packet because its
			 * status has changed. */
			if (messages[i].fd >= 0)
				close(messages[i].fd);
			messages[i].fd = -1;
			if (receive_arrival(g, i, &packet, &messages[i])) {
				packets[i] = packet;
				ms = -1;
			} else if (g->links[i].sock >= 0 && fds[2 * i + 1].revents) {
				lose_rank(g, i);
			}
		}
		if (!ms && !last)
			mark_hung(g, absent);
		if (!ms)
			return;
	}
}

/* Discards all packets that wait in a rank's socket. */
static void discard_packets(struct penstock_group *g, struct pst_link *link)
{
	struct pst_message message = g->scratch;
	struct pst_packet packet;

	while (pst_link_receive(link, 0, &packet, &message) > 0)
		if (message.fd >= 0)
			close(message.fd);
}

/* Finds ranks that have closed their socket or exited, records the first as lost, and discards
 * the packets that they sent. Returns true if poll reported an event on any rank. */
static bool lose_ended_ranks(struct penstock_group *g)
{
	struct pollfd fds[2 * PST_GROUP_MAX];

	for (unsigned i = 0; i < g->size; i++) {
		fds[2 * i] = (struct pollfd){i ? g->links[i].sock : -1, 0, 0};
		fds[2 * i + 1] = (struct pollfd){i ? g->links[i].pidfd : -1, POLLIN, 0};
	}
	if (pst_group_wait_fds(fds, 2 * g->size, 0) <= 0)
		return false;
	for (unsigned i = 1; i < g->size; i++) {
		if (!fds[2 * i].revents && !fds[2 * i + 1].revents)
			continue;
		/* Reads the rank's last packet, which may say that the rank closed the group. */
		discard_packets(g, &g->links[i]);
		lose_rank(g, i);
	}
	return true;
}

static uint64_t min_ms(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Sends a packet to a rank. If that rank does not read from its socket for stall_ms, records it as
 * hung, because the rank cannot continue without the packet. Waits only LAST_BARRIER_MS if another
 * rank is lost or this rank's caller cancels. */
static void send_to_rank(struct penstock_group *g, unsigned to, struct pst_packet *packet,
			 const struct pst_message *messages)
{
	uint64_t now = pst_group_now_ms(), soon;
	uint64_t until = (int)to == g->lost.rank ? 0 : now + g->settings.stall_ms;
	bool hurry = false;

	if (g->links[to].sock < 0)
		return;
	do {
		soon = min_ms(now + POLL_MS, until);
		/* Ignores errors other than -ETIMEDOUT: the next barrier detects that the rank is
		 * lost. */
		if (pst_link_send(&g->links[to], soon, packet, messages) != -ETIMEDOUT)
			return;
		now = pst_group_now_ms();
		lose_ended_ranks(g);
		if (!hurry && (g->lost.rank >= 0 || pst_group_poll_caller(g) == -ECANCELED)) {
			hurry = true;
			until = min_ms(until, now + LAST_BARRIER_MS);
		}
	} while (soon < until);
	if (pst_group_poll_caller(g) == -ECANCELED)
		record_lost(g, to, -ECANCELED, PENSTOCK_WHY_CANCELLED,
			    "did not read its messages in time, and rank 0 was cancelled");
	else
		mark_hung(g, to);
	pst_link_close(&g->links[to]);
}

static void send_messages(struct penstock_group *g, const struct pst_message *messages)
{
	for (unsigned to = 1; to < g->size; to++) {
		for (unsigned from = 0; from < g->size; from++) {
			struct pst_packet packet = {.seq = g->seq, .rank = from};

			if (from != to)
				send_to_rank(g, to, &packet, &messages[from]);
		}
	}
}

static void packet_set_lost(const struct penstock_group *g, struct pst_packet *packet)
{
	packet->code = g->lost.code;
	packet->why = g->lost.why;
	packet->rank = (uint32_t)g->lost.rank;
	packet->lost = 1;
	snprintf(packet->text, sizeof(packet->text), "%s", g->lost.text);
}

/* Sends all ranks the result of the next barrier: it fails because a rank is lost. */
static void announce_lost(struct penstock_group *g)
{
	struct pst_packet answer = {.seq = g->seq + 1};

	packet_set_lost(g, &answer);
	for (unsigned i = 1; i < g->size; i++)
		send_to_rank(g, i, &answer, NULL);
}

/* Runs a barrier as rank 0: collects the packets of all ranks, and sends the result to all of
 * them. */
static void barrier_as_root(struct penstock_group *g, bool last, bool exchange, uint64_t until_ms,
			    const struct pst_packet *own, struct pst_message *messages,
			    struct pst_packet *answer)
{
	struct pst_packet *packets = g->packets;

	memset(packets, 0, g->size * sizeof(*packets));
	packets[0] = *own;
	await_arrivals(g, last, until_ms, packets, messages);
	*answer = (struct pst_packet){.seq = g->seq};
	if (g->lost.rank >= 0) {
		packet_set_lost(g, answer);
	} else {
		for (unsigned i = g->size; i-- > 0;) {
			if (packets[i].code < 0) {
				*answer = packets[i];
				answer->rank = i;
			}
		}
	}
	for (unsigned i = 1; i < g->size; i++)
		send_to_rank(g, i, answer, NULL);
	if (exchange && !answer->code)
		send_messages(g, messages);
	if (g->lost.rank >= 0 && !answer->code)
		/* A rank was lost after the result had been sent. The other ranks have passed
		 * this barrier, so the next one must fail. */
		announce_lost(g);
	for (unsigned i = 1; !exchange && i < g->size; i++) {
		if (messages[i].fd >= 0)
			close(messages[i].fd);
		messages[i].fd = -1;
	}
}

/* Returns true if a rank has already arrived at the next barrier and its status is an error.
 * Leaves the rank's packet in the socket. */
static bool has_early_failure(struct penstock_group *g, unsigned rank, struct pst_packet *packet)
{
	struct pst_link *link = &g->links[rank];
	struct pst_message message = g->scratch;

	while (pst_link_peek(link, packet)) {
		if (packet->seq > g->seq)
			return packet->seq == g->seq + 1 && packet->code < 0;
		/* Removes a packet for a barrier that ended before this rank arrived. */
		if (pst_link_receive(link, 0, packet, &message) <= 0)
			return false;
		if (message.fd >= 0)
			close(message.fd);
	}
	return false;
}

static void announce_early_failure(struct penstock_group *g, unsigned rank,
				   const struct pst_packet *packet)
{
	g->early = *packet;
	g->early.rank = rank;
	for (unsigned i = 1; i < g->size; i++)
		send_to_rank(g, i, &g->early, NULL);
}

/* Checks all ranks between two barriers. If a rank is lost, or has arrived at the next barrier
 * with an error, tells all ranks that the next barrier fails. Packets for the next barrier stay
 * in the sockets. */
static void root_poll(struct penstock_group *g)
{
	struct pst_packet packet;

	for (unsigned i = 1; i < g->size; i++) {
		if (!has_early_failure(g, i, &packet))
			continue;
		announce_early_failure(g, i, &packet);
		return;
	}
	if (lose_ended_ranks(g))
		announce_lost(g);
}

/* ---- the other ranks ---- */

/* Checks rank 0 between two barriers. Between barriers rank 0 sends only packets that say that
 * the next barrier fails. The function stops at the first such packet, since the packets after
 * it belong to later barriers. Also detects that rank 0 has closed its socket or exited. */
static void member_poll(struct penstock_group *g)
{
	struct pst_link *link = &g->links[0];
	struct pollfd end = {link->pidfd, POLLIN, 0};
	/* Checks for the exit of rank 0 first, so that packets that rank 0 sent before its exit
	 * are still read. */
	bool ended = poll(&end, 1, 0) > 0;
	struct pst_message message = g->scratch;
	struct pst_packet packet;
	int ret;

	while ((ret = pst_link_receive(link, 0, &packet, &message)) > 0) {
		if (message.fd >= 0)
			close(message.fd);
		if (packet.lost)
			record_lost(g, packet.rank, packet.code, (enum penstock_why)packet.why,
				    packet.text);
		if (packet.lost || packet.code >= 0 || packet.seq <= g->seq)
			continue;
		g->early = packet;
		return;
	}
	if (ret < 0 || ended)
		lose_rank(g, 0);
}

static uint64_t member_timeout_ms(uint64_t ms)
{
	return ms + ms / GRACE_PART + GRACE_MS;
}

/* Returns the time until which a rank waits for the result of a barrier. After this rank has
 * reported to rank 0 that its caller cancelled, it waits at most LAST_BARRIER_MS for the
 * answer. */
static uint64_t cancel_deadline(const struct pst_packet *own, uint64_t until_ms)
{
	if (own->code >= 0 || own->why != PENSTOCK_WHY_CANCELLED)
		return until_ms;
	return min_ms(pst_group_now_ms() + LAST_BARRIER_MS, until_ms);
}

/* Receives a packet from rank 0. If this rank's caller cancels before or during the wait,
 * reports the cancellation to rank 0. If rank 0 then does not answer within LAST_BARRIER_MS,
 * leaves the group. */
static int receive_from_root(struct penstock_group *g, uint64_t *until_ms, struct pst_packet *own,
			     struct pst_packet *packet, struct pst_message *other)
{
	struct pst_link *link = &g->links[0];
	int ret;

	for (;;) {
		uint64_t soon = own->code >= 0 ? pst_group_next_poll_ms(g, *until_ms) : *until_ms;

		ret = pst_link_receive(link, soon, packet, other);
		if (ret != -ETIMEDOUT || soon == *until_ms)
			break;
		if (!pst_group_poll_caller(g))
			continue;
		packet_set_failure(own, g->progress->failed);
		pst_link_send(link, 0, own, NULL);
		*until_ms = cancel_deadline(own, *until_ms);
	}
	if (ret == -ETIMEDOUT && own->code < 0 && own->why == PENSTOCK_WHY_CANCELLED) {
		struct pst_packet left = {.seq = PST_SEQ_LEFT};

		record_lost(g, 0, own->code, PENSTOCK_WHY_CANCELLED,
			    "did not answer in time when this rank was cancelled");
		pst_link_send(link, 0, &left, NULL);
		pst_link_close(link);
	}
	return ret;
}

/* Runs a barrier as a rank other than 0. */
static void barrier_as_member(struct penstock_group *g, bool last, bool exchange, uint64_t until_ms,
			      struct pst_packet *own, struct pst_message *messages,
			      struct pst_packet *answer)
{
	struct pst_link *link = &g->links[0];
	struct pst_message other = g->scratch;
	int ret;

	own->rank = g->rank;
	until_ms = cancel_deadline(own, until_ms);
	/* Ignores a failure to send: the receive below first returns the packets that rank 0 has
	 * sent, and then fails because the socket is closed. */
	pst_link_send(link, until_ms, own, exchange ? &messages[g->rank] : NULL);
	do {
		ret = last ? pst_link_receive(link, until_ms, answer, &other)
			   : receive_from_root(g, &until_ms, own, answer, &other);
	} while (ret > 0 && answer->seq < g->seq);
	if (ret > 0 && answer->lost)
		record_lost(g, answer->rank, answer->code, (enum penstock_why)answer->why,
			    answer->text);
	for (unsigned i = 1; exchange && ret > 0 && !answer->code && i < g->size; i++) {
		struct pst_packet packet;

		ret = receive_from_root(g, &until_ms, own, &packet, &other);
		if (ret > 0 && (packet.rank >= g->size || packet.rank == g->rank)) {
			if (other.fd >= 0)
				close(other.fd);
			ret = -EPIPE;
		}
		if (ret <= 0)
			break;
		memcpy(messages[packet.rank].bytes, other.bytes, other.len);
		messages[packet.rank].len = other.len;
		messages[packet.rank].fd = other.fd;
	}
	if (ret == -ETIMEDOUT)
		mark_hung(g, 0);
	else if (ret <= 0)
		lose_rank(g, 0);
}

/* ---- barriers ---- */

static int fail_lost(const struct penstock_group *g)
{
	return pst_weights_fail(g->lost.code, g->lost.why, NULL, NULL, PST_NO_OFF,
				"rank %d of group '%s' %s", g->lost.rank, g->name, g->lost.text);
}

static int fail_packet(const struct pst_packet *answer)
{
	return pst_weights_fail(answer->code, (enum penstock_why)answer->why, NULL, NULL,
				PST_NO_OFF, "rank %u: %s", answer->rank, answer->text);
}

static int barrier_run(struct penstock_group *g, int status, bool exchange,
		       struct pst_message *messages)
{
	struct pst_packet answer = {0}, own = {.seq = ++g->seq, .at_ms = pst_group_now_ms()};

	status = status ? status : pst_group_poll_caller(g);
	if (status < 0)
		packet_set_failure(&own, status);
	if (g->size == 1)
		return status;
	if (g->early.seq == g->seq)
		return fail_packet(&g->early);
	if (g->lost.rank >= 0)
		return fail_lost(g);
	if (g->rank)
		barrier_as_member(g, false, exchange,
				  own.at_ms + member_timeout_ms(g->settings.stall_ms), &own,
				  messages, &answer);
	else
		barrier_as_root(g, false, exchange, 0, &own, messages, &answer);
	if (g->lost.rank >= 0)
		return fail_lost(g);
	if (!answer.code || answer.rank == g->rank)
		/* This rank itself caused the error, so this thread already has the message of
		 * the error. */
		return answer.code;
	return fail_packet(&answer);
}

/* Allocates one block of memory for the messages of all ranks, and copies this rank's own
 * message into this block. */
static int alloc_messages(struct penstock_group *g, const void *bytes, size_t len, int fd,
			  struct pst_message *messages)
{
	unsigned char *room = malloc(g->size * (size_t)PST_MESSAGE_MAX);

	for (unsigned i = 0; i < g->size; i++) {
		messages[i].bytes = room ? room + i * (size_t)PST_MESSAGE_MAX : NULL;
		messages[i].len = 0;
		messages[i].fd = -1;
	}
	if (!room)
		return -ENOMEM;
	memcpy(messages[g->rank].bytes, bytes, len);
	messages[g->rank].len = len;
	messages[g->rank].fd = fd;
	return 0;
}

int pst_group_exchange(struct penstock_group *g, int status, const void *bytes, size_t len, int fd,
		       struct pst_message *messages)
{
	int ret = alloc_messages(g, bytes, len, fd, messages);

	if (ret) {
		/* This rank still takes part in the barrier, but without a message, so that the
		 * other ranks get its error. */
		ret = status ? status : pst_weights_no_memory("the ranks' messages");
		return pst_group_barrier(g, ret);
	}
	return barrier_run(g, status, true, messages);
}

int pst_message_invalid(unsigned rank)
{
	return pst_weights_fail(EPROTO, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
				"rank %u sent a message that no rank sends", rank);
}

void pst_messages_free(struct penstock_group *g, struct pst_message *messages)
{
	for (unsigned i = 0; i < g->size; i++)
		if (i != g->rank && messages[i].fd >= 0)
			close(messages[i].fd);
	free(messages[0].bytes);
	messages[0].bytes = NULL;
}

int pst_group_barrier(struct penstock_group *g, int status)
{
	return barrier_run(g, status, false, g->empty);
}

int pst_group_poll(struct penstock_group *g)
{
	if (g->size > 1 && g->lost.rank < 0 && g->early.seq <= g->seq) {
		if (g->rank)
			member_poll(g);
		else
			root_poll(g);
	}
	if (g->early.seq > g->seq)
		return fail_packet(&g->early);
	return g->lost.rank >= 0 ? fail_lost(g) : pst_group_poll_caller(g);
}

void pst_group_last_barrier(struct penstock_group *g, bool done)
{
	struct pst_packet own = {.seq = ++g->seq}, answer;
	uint64_t limit = done && g->lost.rank < 0 ? g->settings.stall_ms : LAST_BARRIER_MS;
	uint64_t now = pst_group_now_ms();

	if (g->size == 1 || (g->rank && (g->links[0].sock < 0 || !g->lost.rank)))
		return;
	if (g->rank)
		barrier_as_member(g, true, false, now + member_timeout_ms(limit), &own, g->empty,
				  &answer);
	else
		barrier_as_root(g, true, false, now + limit, &own, g->empty, &answer);
}

/* ---- properties of a group ---- */

unsigned pst_group_rank(const struct penstock_group *g)
{
	return g->rank;
}

unsigned pst_group_size(const struct penstock_group *g)
{
	return g->size;
}

const struct pst_group_settings *pst_group_get_settings(const struct penstock_group *g)
{
	return &g->settings;
}

int pst_group_check_owner(const struct penstock_group *g)
{
	if (g->pid == getpid())
		return 0;
	return pst_weights_fail(EOWNERDEAD, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
				"opened before a fork: the child must open its own");
}
