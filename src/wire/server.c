/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server half of S3 over RDMA. It has the windows of clients (remote windows), a queue of
 * moves, and channels that carry out the moves. A move transfers bytes between the server's memory
 * and a remote window. A channel is a worker thread, which carries out one move at a time over its
 * own connections. A move transfers all its bytes or fails. src/object calls these functions.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/thread.h"
#include "core/base/fork.h"
#include "wire/server.h"
#include "wire/common.h"
#include "wire/transports.h"

#define CHANNELS 4
#define CHANNELS_MAX 64
#define MOVES 256
#define MOVES_MAX 4096
#define TIMEOUT_MS 10000
#define RATE_MIN 1024
#define STAGING_MAX (256u << 20)

/* Makes an eventfd readable. The counter is never near its limit, so the write cannot fail. */
static void signal_event(int fd)
{
	const uint64_t one = 1;
	ssize_t n = write(fd, &one, sizeof(one));

	(void)n;
}

/* ---- remote windows ---- */

static void remote_put(struct pst_wire_remote *remote)
{
	if (atomic_fetch_sub(&remote->refs, 1) != 1)
		return;
	if (remote->state)
		remote->ops->forget(remote);
	free(remote);
}

void pst_wire_forget(struct pst_wire_remote *remote)
{
	remote_put(remote);
}

static const struct pst_wire_server_ops *ops_for(const struct pst_wire_server *server,
						 enum pst_token_kind kind)
{
	for (unsigned i = 0; i < server->ops_count; i++)
		if (server->ops[i]->kind == kind)
			return server->ops[i];
	return NULL;
}

/* Decides whether the server serves a token, which was already parsed. Returns 0 or -errno. */
static int token_admit(const struct pst_wire_server *server, const struct pst_token *token,
		       const struct penstock_object_peer *peer, struct pst_err *err)
{
	const struct pst_wire_server_ops *ops = ops_for(server, token->kind);

	if (!ops)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
				"this server does not serve tokens of kind %s",
				pst_token_name(token->kind));
	return ops->admit(server, token, peer, err);
}

/* Creates the remote window for a token that was already parsed, without a check by the
 * transport. */
static int remote_open(struct pst_wire_server *server, const struct pst_token *token,
		       const struct penstock_object_peer *peer, struct pst_wire_remote **out,
		       struct pst_err *err)
{
	struct pst_wire_remote *remote = calloc(1, sizeof(*remote));

	if (!remote)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a remote window");
	remote->server = server;
	remote->ops = ops_for(server, token->kind);
	remote->token = *token;
	remote->has_user = peer->has_user;
	remote->user = peer->user;
	atomic_store(&remote->refs, 1);
	*out = remote;
	return 0;
}

/* Parses a token. The error message does not show the token, because its capability gives access to
 * the client's memory. */
static int token_parse(struct pst_wire_server *server, const char *token, size_t len,
		       struct pst_token *out, struct pst_err *err)
{
	if (!pst_token_parse(token, len, out))
		return 0;
	atomic_fetch_add(&server->malformed, 1);
	return pst_fail_errno(err, EBADMSG, PENSTOCK_WHY_MALFORMED,
			      "the token of %zu characters is malformed", len);
}

int pst_wire_resolve(struct pst_wire_server *server, const char *token, size_t len,
		     const struct penstock_object_peer *peer, struct pst_wire_remote **out,
		     struct pst_err *err)
{
	struct pst_token parsed;
	int ret = token_parse(server, token, len, &parsed, err);

	if (ret)
		return ret;
	if (token_admit(server, &parsed, peer, err)) {
		atomic_fetch_add(&server->declined, 1);
		return -EOPNOTSUPP;
	}
	ret = remote_open(server, &parsed, peer, out, err);
	if (!ret)
		atomic_fetch_add(&server->resolved, 1);
	return ret;
}

int pst_wire_prepare(struct pst_wire_server *server, const char *token, size_t len,
		     const struct penstock_object_peer *peer,
		     struct penstock_object_pairing *pairing, struct pst_wire_remote **out,
		     struct pst_err *err)
{
	const struct pst_wire_server_ops *ops = ops_for(server, PST_TOKEN_HIPOBJ_RC_V2);
	struct pst_wire_remote *remote;
	struct pst_token parsed;
	int ret;

	if (!ops || !ops->prepare)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
				"this server does not serve hipobj-rc-v2");
	ret = token_parse(server, token, len, &parsed, err);
	if (!ret && parsed.kind != PST_TOKEN_HIPOBJ_RC_V2)
		ret = pst_fail_errno(err, EBADMSG, PENSTOCK_WHY_MALFORMED, "the token is one of %s",
				     pst_token_name(parsed.kind));
	if (!ret)
		ret = remote_open(server, &parsed, peer, &remote, err);
	if (ret)
		return ret;
	remote->token.size = pairing->length;
	ret = ops->prepare(server, remote, peer, pairing, err);
	if (ret) {
		atomic_fetch_add(&server->declined, 1);
		remote_put(remote);
		return ret;
	}
	atomic_fetch_add(&server->resolved, 1);
	*out = remote;
	return 0;
}

int pst_wire_ready(struct pst_wire_remote *remote, uint32_t qpn, uint64_t address, uint32_t key,
		   struct pst_err *err)
{
	if (!remote->ops->ready)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a window of %s has no sessions: move its bytes",
				pst_token_name(remote->token.kind));
	return remote->ops->ready(remote, qpn, address, key, err);
}

void pst_wire_remote_info(const struct pst_wire_remote *remote,
			  struct penstock_object_remote_info *out)
{
	out->length = remote->token.size;
	out->transport = pst_token_name(remote->token.kind);
	out->encrypted = remote->ops->encrypted;
	out->on_host = remote->ops->on_host;
	out->takes_file = remote->token.kind == PST_TOKEN_SHM1 && remote->token.shm.file;
}

/* ---- submitting moves and taking completions ---- */

/* Checks the segments of a move, and stores the sum of their lengths in *len. */
static int move_check(const struct pst_wire_remote *remote, uint64_t off,
		      const struct penstock_object_seg *segs, unsigned seg_count, uint64_t *len,
		      struct pst_err *err)
{
	*len = 0;
	if (seg_count > PENSTOCK_OBJECT_SEGS_MAX)
		return pst_fail_errno(err, E2BIG, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%u segments; the maximum is %u", seg_count,
				      PENSTOCK_OBJECT_SEGS_MAX);
	for (unsigned i = 0; i < seg_count; i++) {
		if (segs[i].len && !segs[i].ptr && !segs[i].has_fd)
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "segment %u has no address",
					i);
		if (__builtin_add_overflow(*len, segs[i].len, len))
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
					"the segments are too long");
	}
	if (off > remote->token.size || *len > remote->token.size - off)
		return pst_fail_errno(err, ERANGE, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%llu bytes at %llu do not fit the window of %llu bytes",
				      (unsigned long long)*len, (unsigned long long)off,
				      (unsigned long long)remote->token.size);
	return 0;
}

/* Returns the time in ms by which a move (a transfer) of `len` bytes that begins now must be
 * complete. */
static uint64_t move_deadline(const struct pst_wire_server *server, uint64_t len)
{
	uint64_t s = len / server->opts.rate_min;

	/* Limits `s`, so that the sum below cannot overflow. The limit is millions of years. */
	if (s > UINT64_MAX / 4096)
		s = UINT64_MAX / 4096;
	return pst_wire_now_ms() + server->opts.timeout_ms + s * 1000;
}

int pst_wire_move(struct pst_wire_remote *remote, enum penstock_op op, uint64_t off,
		  const struct penstock_object_seg *segs, unsigned seg_count, uint64_t user,
		  struct pst_err *err)
{
	struct pst_wire_server *server = remote->server;
	struct pst_wire_move *move;
	uint64_t len;
	int ret = pst_fork_check(server->generation, err);

	if (!ret)
		ret = move_check(remote, off, segs, seg_count, &len, err);
	if (ret)
		return ret;
	if (op != PENSTOCK_READ && op != PENSTOCK_WRITE)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "operation %d is unknown", op);
	pthread_mutex_lock(&server->lock);
	move = server->unused;
	if (move) {
		server->unused = move->next;
		move->next = NULL;
		move->remote = remote;
		move->op = op;
		move->off = off;
		move->len = len;
		move->deadline_ms = move_deadline(server, len);
		move->user = user;
		move->seg_count = seg_count;
		memcpy(move->segs, segs, seg_count * sizeof(*segs));
		atomic_fetch_add(&remote->refs, 1);
		*server->queue_end = move;
		server->queue_end = &move->next;
	}
	pthread_mutex_unlock(&server->lock);
	if (!move)
		return pst_fail(err, PENSTOCK_WHY_FULL, "%u moves are in flight",
				server->opts.moves);
	signal_event(server->jobs);
	return 0;
}

static void move_finish(struct pst_wire_server *server, struct pst_wire_move *move)
{
	atomic_fetch_add(move->result < 0 ? &server->failed : &server->moves, 1);
	if (move->result > 0)
		atomic_fetch_add(
			&server->bytes[move->remote->token.kind][move->op == PENSTOCK_WRITE],
			(uint64_t)move->result);
	move->has_crc64 = move->result >= 0 && move->remote->ops->checked;
	remote_put(move->remote);
	pthread_mutex_lock(&server->lock);
	move->next = NULL;
	/* The event is signalled while the lock is held. So `done` is readable exactly while the
	 * list has completions. */
	if (!server->finished)
		signal_event(server->done);
	*server->finished_end = move;
	server->finished_end = &move->next;
	pthread_mutex_unlock(&server->lock);
}

static unsigned take_finished(struct pst_wire_server *server, struct penstock_object_done *done,
			      unsigned max)
{
	unsigned count = 0;
	uint64_t events;

	pthread_mutex_lock(&server->lock);
	while (server->finished && count < max) {
		struct pst_wire_move *move = server->finished;

		server->finished = move->next;
		done[count].user = move->user;
		done[count].result = move->result;
		done[count].has_crc64 = move->has_crc64;
		done[count].crc64 = move->has_crc64 ? ~move->crc64 : 0;
		memcpy(done[count].text, move->result < 0 ? move->err.text : "",
		       move->result < 0 ? sizeof(done[count].text) : 1);
		count++;
		move->next = server->unused;
		server->unused = move;
	}
	if (!server->finished) {
		server->finished_end = &server->finished;
		/* Resets the event, because the list is empty. EAGAIN means that it was not set. */
		if (read(server->done, &events, sizeof(events)) < 0)
			events = 0;
	}
	pthread_mutex_unlock(&server->lock);
	return count;
}

int pst_wire_wait(struct pst_wire_server *server, struct penstock_object_done *done, unsigned max,
		  int timeout_ms)
{
	uint64_t until = pst_wire_now_ms() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0);

	for (;;) {
		struct pollfd fd = {server->done, POLLIN, 0};
		uint64_t now = pst_wire_now_ms();
		unsigned count = take_finished(server, done, max);

		if (count || !max || !timeout_ms || (timeout_ms > 0 && now >= until))
			return (int)count;
		poll(&fd, 1, timeout_ms < 0 ? -1 : (int)(until - now));
	}
}

int pst_wire_fd(struct pst_wire_server *server)
{
	return server->done;
}

/* ---- channels ---- */

static void peer_close(struct pst_wire_channel *channel, struct pst_wire_peer *peer)
{
	struct pst_wire_peer **at = &channel->peers;

	while (*at && *at != peer)
		at = &(*at)->next;
	if (*at) {
		*at = peer->next;
		channel->peer_count--;
		/* The descriptor is removed from epoll explicitly. close(2) does not do that if a
		 * forked child has the descriptor open, too. */
		epoll_ctl(channel->epoll, EPOLL_CTL_DEL, peer->fd, NULL);
	}
	peer->ops->close(channel, peer);
	if (peer->fd >= 0)
		close(peer->fd);
	free(peer);
}

/* Returns the channel's connection to the client of the remote window, or NULL. Moves it to the
 * front of the list, which is in the order of the last use. */
static struct pst_wire_peer *peer_find(struct pst_wire_channel *channel,
				       const struct pst_wire_remote *remote)
{
	for (struct pst_wire_peer **at = &channel->peers; *at; at = &(*at)->next) {
		struct pst_wire_peer *peer = *at;

		if (peer->ops == remote->ops && peer->ops->leads_to(peer, remote)) {
			*at = peer->next;
			peer->next = channel->peers;
			channel->peers = peer;
			return peer;
		}
	}
	return NULL;
}

static int peer_open(struct pst_wire_channel *channel, const struct pst_wire_remote *remote,
		     struct pst_wire_peer **out, struct pst_err *err)
{
	struct pst_wire_peer *peer, *last = channel->peers;
	struct epoll_event event = {.events = EPOLLIN};
	int ret;

	if (channel->peer_count >= PST_WIRE_PEERS_MAX) {
		while (last->next)
			last = last->next;
		peer_close(channel, last);
	}
	peer = calloc(1, remote->ops->peer_size);
	if (!peer)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a connection");
	peer->ops = remote->ops;
	peer->fd = -1;
	ret = remote->ops->connect(channel, peer, remote, err);
	event.data.ptr = peer;
	if (!ret && peer->fd >= 0 && epoll_ctl(channel->epoll, EPOLL_CTL_ADD, peer->fd, &event))
		ret = pst_fail_errno(err, errno, PENSTOCK_WHY_NO_FILES, "epoll: %m");
	if (ret) {
		peer_close(channel, peer);
		return ret;
	}
	peer->next = channel->peers;
	channel->peers = peer;
	channel->peer_count++;
	*out = peer;
	return 0;
}

/* Carries out a move (a transfer of bytes). If an existing connection has ended, for example
 * because the client has restarted, closes it and tries again over a new connection. That does no
 * harm, because both attempts transfer the same bytes. */
static void move_run(struct pst_wire_channel *channel, struct pst_wire_move *move)
{
	const struct pst_wire_remote *remote = move->remote;
	struct pst_wire_peer *peer;
	int ret;

	move->err = (struct pst_err){0};
	channel->deadline_ms = move->deadline_ms;
	channel->silence_ms = channel->server->opts.timeout_ms;
	ret = pst_wire_check(channel);
	if (ret) {
		move->result = pst_fail_errno(&move->err, -ret, pst_why_from_errno(ret),
					      "the move was in the queue for too long: %s",
					      strerror(-ret));
		return;
	}
	if (!remote->ops->connect) {
		ret = remote->ops->move(channel, NULL, move, &move->err);
		move->result = ret < 0 ? ret : (int64_t)move->len;
		return;
	}
	peer = peer_find(channel, remote);
	if (peer) {
		ret = remote->ops->move(channel, peer, move, &move->err);
		move->result = ret < 0 ? ret : (int64_t)move->len;
		if (!ret)
			return;
		peer_close(channel, peer);
		if (ret != -EPIPE && ret != -ECONNRESET)
			return;
	}
	ret = peer_open(channel, remote, &peer, &move->err);
	if (!ret) {
		ret = remote->ops->move(channel, peer, move, &move->err);
		if (ret)
			peer_close(channel, peer);
	}
	move->result = ret < 0 ? ret : (int64_t)move->len;
}

static struct pst_wire_move *queue_take(struct pst_wire_server *server)
{
	struct pst_wire_move *move;

	pthread_mutex_lock(&server->lock);
	move = server->queue;
	if (move) {
		server->queue = move->next;
		if (!server->queue)
			server->queue_end = &server->queue;
	}
	pthread_mutex_unlock(&server->lock);
	return move;
}

static void *channel_run(void *arg)
{
	struct pst_wire_channel *channel = arg;
	struct pst_wire_server *server = channel->server;

	for (;;) {
		const bool tidies = server->opts.device && server->devices->tidy;
		struct epoll_event events[PST_WIRE_PEERS_MAX + 2];
		int n = epoll_wait(channel->epoll, events, PST_WIRE_PEERS_MAX + 2,
				   tidies ? server->devices->tidy() : -1);
		struct pst_wire_move *move;
		bool has_job = false;
		uint64_t job;

		for (int i = 0; i < n; i++) {
			struct pst_wire_peer *peer = events[i].data.ptr;

			if (events[i].data.ptr == &server->stop)
				return NULL;
			if (events[i].data.ptr == &server->jobs)
				has_job = true;
			else if (peer->ops->idle(channel, peer) < 0)
				peer_close(channel, peer);
		}
		/* The move runs after the loop, because it may close connections for which `events`
		 * still has entries. If another channel has taken the move, the read fails. */
		if (!has_job || read(server->jobs, &job, sizeof(job)) != sizeof(job))
			continue;
		move = queue_take(server);
		if (move) {
			move_run(channel, move);
			move_finish(server, move);
		}
	}
}

static int channel_open(struct pst_wire_server *server, struct pst_wire_channel *channel,
			struct pst_err *err)
{
	/* With EPOLLEXCLUSIVE, a new move wakes one idle channel (worker thread) instead of all. */
	struct epoll_event job = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.ptr = &server->jobs};
	struct epoll_event stop = {.events = EPOLLIN, .data.ptr = &server->stop};
	int code;

	channel->server = server;
	channel->staging = malloc(PST_WIRE_STAGING);
	if (!channel->staging)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a channel");
	channel->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (channel->epoll < 0 || epoll_ctl(channel->epoll, EPOLL_CTL_ADD, server->jobs, &job) ||
	    epoll_ctl(channel->epoll, EPOLL_CTL_ADD, server->stop, &stop))
		return pst_fail_errno(err, errno, PENSTOCK_WHY_NO_FILES, "epoll: %m");
	code = pst_thread_start(&channel->thread, channel_run, channel);
	channel->running = !code;
	return code ? pst_fail_errno(err, code, PENSTOCK_WHY_NO_MEMORY, "thread: %s",
				     strerror(code))
		    : 0;
}

static void channel_close(struct pst_wire_channel *channel)
{
	if (channel->running)
		pthread_join(channel->thread, NULL);
	while (channel->peers)
		peer_close(channel, channel->peers);
	if (channel->epoll >= 0)
		close(channel->epoll);
	free(channel->staging);
}

/* ---- open and close ---- */

static int transport_add(void *user, unsigned index)
{
	struct pst_wire_server *server = user;
	const struct pst_wire_server_ops *ops = pst_wire_transports[index].server;

	if (!ops_for(server, ops->kind))
		server->ops[server->ops_count++] = ops;
	return 0;
}

static int server_options(struct pst_wire_server *s, const struct penstock_object_server_opts *opts,
			  struct pst_err *err)
{
	struct pst_err ignored;

	s->opts = *opts;
	if (!s->opts.channels)
		s->opts.channels = CHANNELS;
	if (!s->opts.moves)
		s->opts.moves = MOVES;
	if (!s->opts.timeout_ms)
		s->opts.timeout_ms = TIMEOUT_MS;
	if (!s->opts.rate_min)
		s->opts.rate_min = RATE_MIN;
	if (!s->opts.staging_max)
		s->opts.staging_max = STAGING_MAX;
	if (s->opts.channels > CHANNELS_MAX || s->opts.moves > MOVES_MAX ||
	    s->opts.timeout_ms > INT32_MAX)
		return pst_fail_errno(err, E2BIG, PENSTOCK_WHY_BAD_ARGUMENT,
				      "more than %u channels or %u moves", CHANNELS_MAX, MOVES_MAX);
	/* Without the hash of the host, the server cannot recognise clients on this host, so it
	 * declines all tokens of transport shm1. */
	s->has_host = !pst_wire_host(s->host, &ignored);
	if (pst_wire_networks_parse(s, opts->networks, err))
		return err->code;
	s->opts.networks = NULL; /* the string belongs to the caller and is already parsed */
	return pst_wire_each(opts->transports, transport_add, s, err);
}

static int server_pools(struct pst_wire_server *s, struct pst_err *err)
{
	s->queue_end = &s->queue;
	s->finished_end = &s->finished;
	s->jobs = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
	s->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->done = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s->jobs < 0 || s->stop < 0 || s->done < 0)
		return pst_fail_errno(err, errno, PENSTOCK_WHY_NO_FILES, "eventfd: %m");
	s->pool = calloc(s->opts.moves, sizeof(*s->pool));
	s->channels = calloc(s->opts.channels, sizeof(*s->channels));
	if (!s->pool || !s->channels)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a server");
	for (unsigned i = 0; i < s->opts.channels; i++)
		s->channels[i].epoll = -1;
	for (unsigned i = 0; i < s->opts.moves; i++) {
		s->pool[i].next = s->unused;
		s->unused = &s->pool[i];
	}
	return 0;
}

int pst_wire_server_open(const struct penstock_object_server_opts *opts,
			 const struct pst_wire_devices *devices, struct pst_wire_server **out,
			 struct pst_err *err)
{
	struct pst_wire_server *s = calloc(1, sizeof(*s));
	int ret;

	if (!s)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a server");
	pthread_mutex_init(&s->lock, NULL);
	s->devices = devices;
	s->generation = pst_fork_generation();
	s->jobs = s->stop = s->done = -1;
	ret = server_options(s, opts, err);
	if (!ret)
		ret = server_pools(s, err);
	for (unsigned i = 0; i < s->opts.channels && !ret; i++)
		ret = channel_open(s, &s->channels[i], err);
	if (ret)
		pst_wire_server_close(s);
	else
		*out = s;
	return ret;
}

void pst_wire_server_close(struct pst_wire_server *s)
{
	if (s->stop >= 0)
		signal_event(s->stop);
	for (unsigned i = 0; s->channels && i < s->opts.channels; i++)
		channel_close(&s->channels[i]);
	for (struct pst_wire_move *move = s->queue; move; move = move->next)
		remote_put(move->remote);
	for (unsigned i = 0; i < s->ops_count; i++)
		if (s->ops[i]->end)
			s->ops[i]->end(s);
	if (s->jobs >= 0)
		close(s->jobs);
	if (s->stop >= 0)
		close(s->stop);
	if (s->done >= 0)
		close(s->done);
	pthread_mutex_destroy(&s->lock);
	free(s->channels);
	free(s->pool);
	free(s);
}

void pst_wire_server_info(struct pst_wire_server *s, struct penstock_object_server_info *out)
{
	out->resolved = atomic_load(&s->resolved);
	out->malformed = atomic_load(&s->malformed);
	out->declined = atomic_load(&s->declined);
	out->moves = atomic_load(&s->moves);
	out->failed = atomic_load(&s->failed);
	for (unsigned i = 0; i < s->ops_count; i++) {
		const enum pst_token_kind kind = s->ops[i]->kind;

		out->traffic[i].transport = pst_token_name(kind);
		out->traffic[i].bytes_out = atomic_load(&s->bytes[kind][0]);
		out->traffic[i].bytes_in = atomic_load(&s->bytes[kind][1]);
	}
}
