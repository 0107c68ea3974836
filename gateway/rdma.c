/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements rdma.h. A move is one transfer by RDMA between a client's window and a file or memory
 * of the gateway. The worker thread (pool.c) that runs a request waits for the request's move.
 * Another thread takes the completions of all moves and wakes the workers. Only some of the workers
 * may wait at a time, so that clients that do not answer cannot block all workers. Beyond this
 * number, the gateway declines tokens, and the bytes go by HTTP.
 */
#include "rdma.h"

#include <errno.h>
#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/thread.h"
#include "penstock_object.h"
#include "s3/crc.h"
#include "route.h"
#include "s3/hipobj.h"
#include "xml_write.h"

#define PIECE (4u << 20) /* maximum number of bytes of a PUT that are in memory at a time */
#define CHANNELS 8
#define TIMEOUT_MS 5000
#define BATCH 16

/* The result of a move, which is one transfer by RDMA. */
struct moved {
	int64_t result; /* number of bytes, or a negative errno */
	bool has_crc64; /* the transport has computed the CRC-64/NVME of the bytes */
	uint64_t crc64;
};

/* A move (a transfer by RDMA) in progress, for which a worker thread waits. */
struct ticket {
	struct ticket *next;
	/* whether this move adds 1 to gw_rdma.active; false in a session of hipobj-rc-v2, because
	 * the session itself has added 1 */
	bool counted;
	sem_t done;
	struct moved moved;
};

struct gw_rdma {
	pthread_t thread;
	bool running;
	/* device that accesses windows in memory of GPUs; NULL for none */
	struct penstock_device *device;
	int stop; /* eventfd that ends the thread */
	unsigned active_max;
	bool pairs; /* whether the transports include hipobj-rc-v2 */
	struct gw_sessions *sessions;
	/* The server half of penstock_object.h, whose completions `thread` polls. gw_rdma_cancel
	 * ends the thread before it closes this server. */
	struct penstock_object_server *polled;

	pthread_mutex_t lock;		       /* protects the members below */
	struct penstock_object_server *server; /* NULL after gw_rdma_cancel */
	struct ticket *tickets;		       /* moves that are not complete */
	/* number of moves with `counted` set, and of sessions in progress */
	unsigned active;
	unsigned preparing;	 /* calls of penstock_object_prepare in progress */
	pthread_cond_t prepared; /* signalled when `preparing` becomes 0 */
};

/* Stores the result of a move and wakes its worker, which may then remove the ticket. The caller
 * holds the lock. */
static void ticket_finish(struct gw_rdma *rdma, struct ticket *ticket, struct moved moved)
{
	struct ticket **at = &rdma->tickets;

	while (*at != ticket)
		at = &(*at)->next;
	*at = ticket->next;
	rdma->active -= ticket->counted;
	ticket->moved = moved;
	sem_post(&ticket->done);
}

/* ---- the thread that takes completions ---- */

static void *rdma_run(void *arg)
{
	struct gw_rdma *rdma = arg;
	struct penstock_object_done done[BATCH];
	struct penstock_object_server *server = rdma->polled;

	for (;;) {
		struct pollfd fds[3] = {{penstock_object_fd(server), POLLIN, 0},
					{rdma->stop, POLLIN, 0},
					{gw_sessions_fd(rdma->sessions), POLLIN, 0}};
		int n = poll(fds, 3, -1);

		if (n > 0 && fds[1].revents)
			return NULL;
		if (n > 0 && fds[2].revents)
			gw_sessions_expire(rdma->sessions);
		n = penstock_object_poll(server, done, BATCH);
		pthread_mutex_lock(&rdma->lock);
		for (int i = 0; i < n; i++)
			ticket_finish(
				rdma, (struct ticket *)(uintptr_t)done[i].user,
				(struct moved){done[i].result, done[i].has_crc64, done[i].crc64});
		pthread_mutex_unlock(&rdma->lock);
	}
}

/* Passes the names of the transports to the metrics. */
static void name_transports(struct gw_rdma *rdma, struct gw_metrics *metrics)
{
	struct penstock_object_server_info info = {.size = sizeof(info)};

	_Static_assert(GW_TRANSPORTS_MAX == PENSTOCK_OBJECT_TRANSPORTS_MAX, "see metrics.h");
	if (penstock_object_server_get_info(rdma->server, &info))
		return;
	for (unsigned i = 0; i < GW_TRANSPORTS_MAX; i++) {
		metrics->rdma_names[i] = info.traffic[i].transport;
		if (metrics->rdma_names[i] && !strcmp(metrics->rdma_names[i], PST_HIPOBJ))
			rdma->pairs = true;
	}
}

struct gw_rdma *gw_rdma_open(const struct gw_rdma_options *o, char *why, size_t why_len)
{
	struct penstock_object_server_opts opts = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
	struct gw_rdma *rdma = calloc(1, sizeof(*rdma));
	int code;

	if (!rdma) {
		snprintf(why, why_len, "out of memory");
		return NULL;
	}
	pthread_mutex_init(&rdma->lock, NULL);
	pthread_cond_init(&rdma->prepared, NULL);
	rdma->active_max = o->moves_max;
	opts.channels = CHANNELS;
	opts.timeout_ms = TIMEOUT_MS;
	opts.rate_min = o->rate_min ? o->rate_min : 1;
	opts.require_encryption = o->encrypt;
	opts.pass_files = o->pass_files;
	opts.transports = o->transports;
	opts.networks = o->networks;
	opts.staging_max = GW_SESSIONS_BYTES;
	if (o->device && penstock_device_open(o->device, NULL, &rdma->device) < 0) {
		snprintf(why, why_len, "%s: %s", o->device, penstock_errmsg());
		pthread_cond_destroy(&rdma->prepared);
		pthread_mutex_destroy(&rdma->lock);
		free(rdma);
		return NULL;
	}
	opts.device = rdma->device;
	rdma->stop = eventfd(0, EFD_CLOEXEC);
	rdma->sessions = gw_sessions_open();
	code = rdma->stop < 0 || !rdma->sessions ? errno : 0;
	if (!code && !penstock_object_server_open(&opts, &rdma->polled)) {
		rdma->server = rdma->polled;
		code = pst_thread_start(&rdma->thread, rdma_run, rdma);
		rdma->running = !code;
	}
	if (rdma->running) {
		name_transports(rdma, o->metrics);
		return rdma;
	}
	snprintf(why, why_len, "cannot start RDMA: %s", code ? strerror(code) : penstock_errmsg());
	gw_rdma_close(rdma);
	return NULL;
}

void gw_rdma_cancel(struct gw_rdma *rdma)
{
	struct penstock_object_server *server;
	const uint64_t one = 1;

	if (!rdma)
		return;
	pthread_mutex_lock(&rdma->lock);
	server = rdma->server;
	rdma->server = NULL;
	while (rdma->preparing)
		pthread_cond_wait(&rdma->prepared, &rdma->lock);
	pthread_mutex_unlock(&rdma->lock);
	if (rdma->running && write(rdma->stop, &one, sizeof(one)) == (ssize_t)sizeof(one))
		pthread_join(rdma->thread, NULL);
	rdma->running = false;
	if (rdma->sessions)
		gw_sessions_stop(rdma->sessions);
	/* After this call, no transfer accesses memory of the gateway any more. So the workers that
	 * wait for a move can be woken with an error. */
	penstock_object_server_close(server);
	pthread_mutex_lock(&rdma->lock);
	while (rdma->tickets)
		ticket_finish(rdma, rdma->tickets, (struct moved){.result = -ECANCELED});
	pthread_mutex_unlock(&rdma->lock);
}

void gw_rdma_close(struct gw_rdma *rdma)
{
	if (!rdma)
		return;
	gw_rdma_cancel(rdma);
	gw_sessions_close(rdma->sessions);
	penstock_device_close(rdma->device);
	if (rdma->stop >= 0)
		close(rdma->stop);
	pthread_cond_destroy(&rdma->prepared);
	pthread_mutex_destroy(&rdma->lock);
	free(rdma);
}

/* ---- sessions of hipobj-rc-v2 ---- */

bool gw_rdma_pairs(const struct gw_rdma *rdma)
{
	return rdma && rdma->pairs;
}

int gw_rdma_prepare(struct gw_request *req, const char *token,
		    struct penstock_object_pairing *pairing, struct gw_session *session,
		    char id[GW_SESSION_ID])
{
	struct penstock_object_peer peer = PENSTOCK_OBJECT_PEER_INIT;
	struct penstock_object_server *server;
	struct gw_rdma *rdma = req->server->rdma;
	int ret;

	ret = gw_sessions_reserve(rdma->sessions, session);
	if (ret) {
		atomic_fetch_add(&req->server->metrics.session_refused, ret == -EAGAIN);
		return ret;
	}
	peer.address = req->http->remote;
	/* `lock` is not held during penstock_object_prepare, because the network card may be slow.
	 * Instead, `preparing` makes gw_rdma_cancel wait for the call's end. */
	pthread_mutex_lock(&rdma->lock);
	server = rdma->server;
	rdma->preparing += server != NULL;
	pthread_mutex_unlock(&rdma->lock);
	if (!server)
		return -EAGAIN;
	ret = penstock_object_prepare(server, token, strlen(token), &peer, pairing,
				      &session->remote);
	pthread_mutex_lock(&rdma->lock);
	if (!--rdma->preparing)
		pthread_cond_broadcast(&rdma->prepared);
	pthread_mutex_unlock(&rdma->lock);
	if (ret)
		return ret;
	ret = gw_sessions_add(rdma->sessions, session, id);
	atomic_fetch_add(&req->server->metrics.session_refused, ret == -EAGAIN);
	return ret;
}

struct gw_session *gw_rdma_session(struct gw_rdma *rdma, const char *id, const char *owner)
{
	return gw_sessions_take(rdma->sessions, id, owner);
}

bool gw_rdma_enter(struct gw_request *req)
{
	struct gw_rdma *rdma = req->server->rdma;

	pthread_mutex_lock(&rdma->lock);
	req->moves = rdma->active < rdma->active_max;
	rdma->active += req->moves;
	pthread_mutex_unlock(&rdma->lock);
	return req->moves;
}

void gw_rdma_leave(struct gw_request *req)
{
	struct gw_rdma *rdma = req->server->rdma;

	if (!req->moves)
		return;
	pthread_mutex_lock(&rdma->lock);
	rdma->active--;
	pthread_mutex_unlock(&rdma->lock);
	req->moves = false;
}

/* ---- one move ---- */

/* Adds the bytes of a move to those of the request, and to the metric of the transport that moved
 * them. */
static void count_bytes(struct gw_request *req, bool out, uint64_t bytes)
{
	struct penstock_object_remote_info info = {.size = sizeof(info)};
	struct gw_metrics *metrics = &req->server->metrics;

	penstock_object_remote_get_info(req->remote, &info);
	for (unsigned i = 0; i < GW_TRANSPORTS_MAX && metrics->rdma_names[i]; i++)
		if (!strcmp(metrics->rdma_names[i], info.transport)) {
			atomic_fetch_add(&metrics->rdma_bytes[i][out], bytes);
			atomic_store(&req->transport, metrics->rdma_names[i]);
		}
	atomic_fetch_add(&req->rdma_bytes, bytes);
}

/* Combines the CRC of a piece with the CRC of the request's bytes before it. This is possible
 * because the pieces move in the order of their offsets. */
static void count_crc(struct gw_request *req, uint64_t off, const struct moved *moved)
{
	uint64_t before = off ? req->crc64 : 0;

	req->has_crc64 = moved->has_crc64 && (!off || req->has_crc64);
	req->crc64 = pst_crc_shift(PST_CRC64NVME, before, (uint64_t)moved->result) ^ moved->crc64;
}

/* Returns why a move has completed with -EOPNOTSUPP. */
static enum gw_decline move_decline(const struct gw_request *req)
{
	struct penstock_object_remote_info info = {.size = sizeof(info)};

	penstock_object_remote_get_info(req->remote, &info);
	return info.takes_file ? GW_DECLINE_FILE : GW_DECLINE_UNREACHABLE;
}

/* Moves a piece by RDMA between the client's window and `seg`, and waits for its end. Returns the
 * piece's length or a negative errno. */
static int64_t move(struct gw_request *req, enum penstock_op op, uint64_t off,
		    const struct penstock_object_seg *seg)
{
	struct gw_rdma *rdma = req->server->rdma;
	struct ticket ticket = {.counted = !req->session, .moved = {.result = 0}};
	int ret = -EOPNOTSUPP;

	/* The wait below always ends: the server half of penstock_object.h fails a move at its
	 * deadline, and gw_rdma_cancel fails all moves. */
	sem_init(&ticket.done, 0, 0);
	pthread_mutex_lock(&rdma->lock);
	if (ticket.counted && rdma->active >= rdma->active_max)
		req->decline = GW_DECLINE_BUSY;
	else if (rdma->server)
		ret = penstock_object_move(req->remote, op, off, seg, 1, (uintptr_t)&ticket);
	if (!ret) {
		ticket.next = rdma->tickets;
		rdma->tickets = &ticket;
		rdma->active += ticket.counted;
	}
	pthread_mutex_unlock(&rdma->lock);
	while (!ret && sem_wait(&ticket.done))
		;
	/* The thread that called sem_post holds the lock, and may still be inside sem_post. So take
	 * the lock before the semaphore is destroyed. */
	pthread_mutex_lock(&rdma->lock);
	sem_destroy(&ticket.done);
	pthread_mutex_unlock(&rdma->lock);
	if (ret == -EAGAIN)
		req->decline = GW_DECLINE_BUSY;
	if (ret == -ERANGE)
		req->decline = GW_DECLINE_SHORT_WINDOW;
	if (ret)
		return ret == -EAGAIN ? -EOPNOTSUPP : ret;
	if (ticket.moved.result == -EOPNOTSUPP)
		req->decline = move_decline(req);
	if (ticket.moved.result > 0) {
		count_bytes(req, op == PENSTOCK_READ, (uint64_t)ticket.moved.result);
		count_crc(req, off, &ticket.moved);
	}
	return ticket.moved.result;
}

int64_t gw_rdma_move(struct gw_request *req, enum penstock_op op, uint64_t at, void *bytes,
		     size_t len)
{
	const struct penstock_object_seg seg = {.ptr = bytes, .len = len};

	return move(req, op, at, &seg);
}

/* Adds headers to the reply that report the outcome of a move (a transfer by RDMA). */
static void put_headers(struct gw_request *req, enum penstock_op op,
			enum penstock_object_outcome outcome, uint64_t bytes, bool ranged)
{
	struct penstock_object_answer answer = PENSTOCK_OBJECT_ANSWER_INIT;

	answer.op = op;
	answer.outcome = outcome;
	answer.bytes = bytes;
	answer.has_crc64 = outcome == PENSTOCK_OBJECT_MOVED && req->has_crc64;
	answer.crc64 = req->crc64;
	answer.ranged = ranged;
	if (penstock_object_answer_fill(&answer))
		return;
	for (unsigned i = 0; i < answer.header_count; i++)
		gw_header_add(req, answer.headers[i].name, answer.headers[i].value);
}

/* Returns the request's token, or NULL. A READY of hipobj-rc-v2 already has the window of its
 * session, so a token in it is ignored. */
static const char *token_of(const struct gw_request *req)
{
	return req->session ? NULL : gw_header(req, "x-amz-rdma-token");
}

/* Returns the reason why penstock_object_resolve has just declined a token. */
static enum gw_decline resolve_decline(void)
{
	switch (penstock_errwhy()) {
	case PENSTOCK_WHY_REQUIRE:
		return GW_DECLINE_ENCRYPTION;
	case PENSTOCK_WHY_NO_PERMISSION:
		return GW_DECLINE_ADDRESS;
	case PENSTOCK_WHY_NO_DEVICE:
		return GW_DECLINE_NO_GPU;
	case PENSTOCK_WHY_NO_FD:
		return GW_DECLINE_FILE;
	default:
		return GW_DECLINE_TRANSPORT;
	}
}

/* Checks the request's token. Returns 0 if the gateway can serve it, -EOPNOTSUPP if it declines the
 * token, or -EBADMSG if the token is malformed. */
static int token_resolve(struct gw_request *req)
{
	const char *token = token_of(req);
	struct penstock_object_peer peer = PENSTOCK_OBJECT_PEER_INIT;
	struct gw_rdma *rdma = req->server->rdma;
	int ret = -EOPNOTSUPP;

	peer.address = req->http->remote;
	req->decline = GW_DECLINE_TRANSPORT;
	if (rdma) {
		pthread_mutex_lock(&rdma->lock);
		if (rdma->server) {
			ret = penstock_object_resolve(rdma->server, token, strlen(token), &peer,
						      &req->remote);
			req->decline = ret ? resolve_decline() : GW_DECLINE_OTHER;
		}
		pthread_mutex_unlock(&rdma->lock);
	}
	return !ret || ret == -EBADMSG ? ret : -EOPNOTSUPP;
}

/* ---- GET ---- */

bool gw_rdma_check_read(struct gw_request *req)
{
	if (token_of(req) && token_resolve(req) == -EBADMSG)
		return gw_fail(req, GW_InvalidRDMAToken, NULL) == 0;
	return true;
}

void gw_rdma_sent(struct gw_request *req, uint64_t bytes, bool ranged)
{
	put_headers(req, PENSTOCK_READ, PENSTOCK_OBJECT_MOVED, bytes, ranged);
}

void gw_rdma_decline(struct gw_request *req, int code)
{
	struct gw_metrics *metrics = &req->server->metrics;
	bool failed = code && code != -EOPNOTSUPP && code != -ERANGE;

	if (code == -ERANGE)
		req->decline = GW_DECLINE_SHORT_WINDOW;
	atomic_fetch_add(failed ? &metrics->rdma_failed : &metrics->rdma_declined[req->decline], 1);
	put_headers(req, PENSTOCK_READ, PENSTOCK_OBJECT_DECLINED, 0, false);
}

/* Writes into the client's window the range of the object that the session has prepared. If that
 * fails, the request fails, because the reply to a READY of hipobj-rc-v2 has no body that could
 * carry the bytes. */
static enum gw_rdma_sent session_send(struct gw_request *req, const struct penstock_object_seg *seg,
				      bool ranged)
{
	int64_t moved;

	/* If the object has become shorter since the PREPARE, the range no longer fills the
	 * window. */
	if (seg->len != gw_rdma_window_length(req)) {
		gw_fail(req, GW_InvalidRange, NULL);
		return GW_RDMA_FAILED;
	}
	moved = move(req, PENSTOCK_READ, 0, seg);
	if (moved < 0) {
		gw_rdma_store_fail(req, (int)moved);
		return GW_RDMA_FAILED;
	}
	gw_rdma_sent(req, (uint64_t)moved, ranged);
	return GW_RDMA_MOVED;
}

enum gw_rdma_sent gw_rdma_send(struct gw_request *req, int fd, uint64_t at, uint64_t len,
			       bool ranged)
{
	struct penstock_object_seg seg = {.len = len, .has_fd = 1, .fd = fd, .fd_off = at};
	int64_t moved = -EOPNOTSUPP;

	if (req->session)
		return session_send(req, &seg, ranged);
	if (!token_of(req))
		return GW_RDMA_BODY;
	if (!gw_rdma_check_read(req))
		return GW_RDMA_FAILED;
	/* If the window is too short, no byte moves, and the token is declined (-ERANGE). */
	if (req->remote && !strcmp(req->http->method, "GET"))
		moved = move(req, PENSTOCK_READ, 0, &seg);
	if (moved >= 0)
		gw_rdma_sent(req, (uint64_t)moved, ranged);
	else
		gw_rdma_decline(req, (int)moved);
	return moved >= 0 ? GW_RDMA_MOVED : GW_RDMA_BODY;
}

/* ---- PUT ---- */

/* Fills the reply to a PUT whose token is declined: nothing is stored, and the client shall send
 * the bytes in a body. */
static void put_decline(struct gw_request *req)
{
	struct pst_text *out;

	atomic_fetch_add(&req->server->metrics.rdma_declined[req->decline], 1);
	out = gw_reply_xml(req, 200);
	put_headers(req, PENSTOCK_WRITE, PENSTOCK_OBJECT_DECLINED, 0, false);
	pst_text_put_str(out, "<Error>");
	gw_xml_element(out, "Code", "RDMANotSupported");
	gw_xml_element(out, "Message", "Send the object as the body of the request.");
	gw_xml_element(out, "RequestId", req->id);
	pst_text_put_str(out, "</Error>");
}

void gw_rdma_store_fail(struct gw_request *req, int code)
{
	if (code == -EOPNOTSUPP && !req->session) {
		put_decline(req);
		return;
	}
	atomic_fetch_add(&req->server->metrics.rdma_failed, 1);
	gw_fail(req, GW_RDMATransferFailed,
		req->session ? "The transfer by RDMA failed: repeat the request without it."
			     : NULL);
}

bool gw_rdma_check(struct gw_request *req)
{
	const char *length = gw_header(req, "content-length");
	int ret;

	if (!token_of(req))
		return true;
	ret = token_resolve(req);
	if (ret == -EBADMSG)
		return gw_fail(req, GW_InvalidRDMAToken, NULL) == 0;
	if (ret) {
		put_decline(req);
		return false;
	}
	if (!length || strcmp(length, "0") != 0)
		return gw_fail(req, GW_InvalidRequest,
			       "A request with x-amz-rdma-token must have Content-Length: 0.") == 0;
	return true;
}

uint64_t gw_rdma_window_length(const struct gw_request *req)
{
	struct penstock_object_remote_info info = {.size = sizeof(info)};

	penstock_object_remote_get_info(req->remote, &info);
	return info.length;
}

bool gw_rdma_length(struct gw_request *req)
{
	struct gw_body *body = &req->body;
	uint64_t length = gw_rdma_window_length(req);

	if (body->chunked || length > req->server->body_max)
		return gw_fail(req, body->chunked ? GW_InvalidRequest : GW_EntityTooLarge, NULL) ==
		       0;
	body->want = length;
	return true;
}

bool gw_rdma_receive(struct gw_request *req)
{
	struct penstock_object_seg seg = {.len = 0};
	struct gw_body *body = &req->body;

	/* For a GET, nothing is read here: the operation writes the object into the window
	 * later. */
	if (!req->remote || req->op->body != GW_BODY_FILE)
		return true;
	if (!gw_rdma_length(req))
		return false;
	seg.ptr = malloc(PIECE);
	if (!seg.ptr)
		return gw_fail(req, GW_SlowDown, NULL) == 0;
	for (uint64_t at = 0; at < body->want; at += seg.len) {
		int64_t moved;

		seg.len = body->want - at < PIECE ? body->want - at : PIECE;
		moved = move(req, PENSTOCK_WRITE, at, &seg);
		if (moved < 0 || !gw_body_put(req, seg.ptr, seg.len)) {
			free(seg.ptr);
			if (moved < 0)
				gw_rdma_store_fail(req, (int)moved);
			return false;
		}
	}
	free(seg.ptr);
	return true;
}

void gw_rdma_stored(struct gw_request *req)
{
	if (req->remote && !strcmp(req->http->method, "PUT") && !req->failed &&
	    req->http->reply.status == 200)
		put_headers(req, PENSTOCK_WRITE, PENSTOCK_OBJECT_MOVED, req->body.got, false);
}
