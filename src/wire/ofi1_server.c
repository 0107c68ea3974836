/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server half of transport ofi1: writes and reads windows of clients by libfabric. server.c
 * calls these functions on the thread of a channel (a worker thread of the server). A channel has
 * one endpoint for each provider and local address, which reaches all clients. After an error the
 * channel closes the endpoint, so that a transfer in flight cannot access the server's memory
 * later. A server connects only to the address from which its HTTP request came.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "s3/crc.h"
#include "wire/common.h"
#include "wire/ofi.h"

#define SLOTS 4				 /* maximum number of transfers in flight */
#define PIECE (PST_WIRE_STAGING / SLOTS) /* maximum length of a transfer in bytes */
/* maximum number of clients that an endpoint knows */
#define NAMES_MAX 64
/* If a move has started no transfer within this time in ms, client_listens checks whether the
 * client still listens. */
#define DIAL_MS 100
#define WAIT_NS 10000000 /* maximum wait for an event, in ns */
/* maximum wait in ns if the provider has no descriptor to wait for */
#define POLL_NS 50000

/* The name of an endpoint, which is a socket address. */
union name {
	struct sockaddr any;
	struct sockaddr_in four;
	struct sockaddr_in6 six;
	unsigned char bytes[PST_TOKEN_NAME_MAX];
};

struct client_name {
	unsigned char bytes[PST_TOKEN_NAME_MAX];
	size_t len;
	uint64_t number;
};

/* One transfer in flight, a part of a move (the transfer that the server's caller requested). */
struct slot {
	struct pst_ofi_op op;
	unsigned char *mem;
	uint64_t at; /* offset in the move */
	uint32_t len;
	bool staged;
};

struct ofi1_peer {
	struct pst_wire_peer peer;
	struct pst_ofi *ofi;
	struct slot slots[SLOTS];
	/* true if the provider can transfer only from and to the channel's staging memory */
	bool staged;
	char provider[PST_TOKEN_PROVIDER_MAX + 1];
	char source[INET6_ADDRSTRLEN]; /* address of the endpoint */
	struct client_name names[NAMES_MAX];
	unsigned name_count;
};

/* ---- addresses ---- */

/* Parses the name of the client's endpoint as a socket address. Returns false if it is none. */
static bool name_read(const struct pst_token *token, union name *out)
{
	memset(out, 0, sizeof(*out));
	memcpy(out->bytes, token->ofi.name, token->ofi.name_len);
	return (out->any.sa_family == AF_INET && token->ofi.name_len == sizeof(out->four)) ||
	       (out->any.sa_family == AF_INET6 && token->ofi.name_len == sizeof(out->six));
}

static const void *name_address(const union name *name)
{
	return name->any.sa_family == AF_INET6 ? (const void *)&name->six.sin6_addr
					       : (const void *)&name->four.sin_addr;
}

static int admit(const struct pst_wire_server *server, const struct pst_token *token,
		 const struct penstock_object_peer *peer, struct pst_err *err)
{
	struct pst_token_place place = {.v6 = false};
	union name name;
	int ret;

	if (!pst_ofi_known(token->ofi.provider))
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
				"ofi1 does not use the provider %.60s", token->ofi.provider);
	if (!name_read(token, &name) || !inet_ntop(name.any.sa_family, name_address(&name),
						   place.address, sizeof(place.address)))
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
				"the name of the client's endpoint is not a socket address");
	place.v6 = name.any.sa_family == AF_INET6;
	ret = pst_wire_admit_place(server, "ofi1", &place, peer, err);
	return ret ? ret : pst_ofi_load(err);
}

/* Stores in `out` the address of this host from which packets to the client are sent. For this,
 * connects a datagram socket, which sends nothing. */
static bool source_find(const struct pst_token *token, char out[INET6_ADDRSTRLEN], bool *v6)
{
	union name name;
	socklen_t len = sizeof(name);
	bool found = name_read(token, &name);
	int fd = socket(name.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	*v6 = name.any.sa_family == AF_INET6;
	/* connect(2) fails with port 0, so the client's port is used, although a datagram socket
	 * needs none. */
	found = found && fd >= 0 && !connect(fd, &name.any, (socklen_t)token->ofi.name_len) &&
		!getsockname(fd, &name.any, &len) &&
		inet_ntop(name.any.sa_family, name_address(&name), out, INET6_ADDRSTRLEN);
	if (fd >= 0)
		close(fd);
	return found;
}

/* Returns the entry of t->names for the client's endpoint, or NULL if the endpoint was not passed
 * to libfabric. */
static const struct client_name *name_find(const struct ofi1_peer *t, const struct pst_token *token)
{
	for (unsigned i = 0; i < t->name_count; i++)
		if (t->names[i].len == token->ofi.name_len &&
		    !memcmp(t->names[i].bytes, token->ofi.name, t->names[i].len))
			return &t->names[i];
	return NULL;
}

/* Returns in *out the number that libfabric has given to the client's endpoint. Passes the
 * endpoint's name to libfabric if needed. */
static int number_find(struct ofi1_peer *t, const struct pst_token *token, uint64_t *out,
		       struct pst_err *err)
{
	const struct client_name *known = name_find(t, token);
	struct client_name *name = &t->names[t->name_count];
	int ret;

	if (known) {
		*out = known->number;
		return 0;
	}
	/* After this error, the channel closes the endpoint and opens another, with an empty list
	 * of clients. */
	if (t->name_count == NAMES_MAX)
		return pst_fail_errno(err, EPIPE, PENSTOCK_WHY_FULL,
				      "the endpoint knows %u clients", NAMES_MAX);
	ret = pst_ofi_insert(t->ofi, token->ofi.name, &name->number, err);
	if (ret)
		return ret;
	memcpy(name->bytes, token->ofi.name, token->ofi.name_len);
	name->len = token->ofi.name_len;
	t->name_count++;
	*out = name->number;
	return 0;
}

/* ---- transfers ---- */

struct run {
	struct pst_wire_channel *channel;
	struct ofi1_peer *t;
	struct pst_wire_move *move;
	uint64_t to;
	/* time in ms at which the move began or its last transfer was completed */
	uint64_t active_ms;
	bool started;	/* whether a transfer has been started */
	bool dialled;	/* whether client_listens was called for this move */
	uint64_t ended; /* number of bytes that have moved */
};

/* Returns whether the client accepts TCP connections. The providers repeat a failed connect without
 * end, and do not report that no process listens. Returns true if this cannot be determined. */
static bool client_listens(const struct run *r)
{
	const struct pst_token *token = &r->move->remote->token;
	struct pollfd ready = {.events = POLLOUT};
	int code = 0;
	socklen_t len = sizeof(code);
	union name name;

	if (!name_read(token, &name) || !pst_ofi_known(token->ofi.provider)->tcp)
		return true;
	ready.fd = socket(name.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (ready.fd < 0)
		return true;
	if (connect(ready.fd, &name.any, (socklen_t)token->ofi.name_len))
		code = errno;
	if (code == EINPROGRESS && (poll(&ready, 1, DIAL_MS) != 1 ||
				    getsockopt(ready.fd, SOL_SOCKET, SO_ERROR, &code, &len)))
		code = 0;
	close(ready.fd);
	return code != ECONNREFUSED && code != EHOSTUNREACH && code != ENETUNREACH;
}

/* Calls pst_ofi_progress, and then waits briefly for libfabric's next event. Returns an error if
 * the move's time limits are exceeded or the client does not listen any more. */
static int run_wait(struct run *r, struct pst_err *err)
{
	const struct pst_wire_server *server = r->channel->server;
	struct timespec time = {0, 0};
	struct pollfd fds[2] = {{server->stop, POLLIN, 0}, {pst_ofi_fd(r->t->ofi), POLLIN, 0}};
	int ret = pst_ofi_progress(r->t->ofi, err);

	if (ret == -ECONNREFUSED || ret == -EHOSTUNREACH || ret == -ENETUNREACH)
		return r->ended ? -EPIPE : -EOPNOTSUPP;
	if (ret)
		return ret;
	if (fds[1].fd < 0)
		time.tv_nsec = POLL_NS;
	else if (pst_ofi_may_wait(r->t->ofi))
		time.tv_nsec = WAIT_NS;
	ppoll(fds, 2, &time, NULL);
	ret = pst_wire_check(r->channel);
	if (!ret && pst_wire_now_ms() - r->active_ms > server->opts.timeout_ms)
		ret = -ETIMEDOUT;
	if (!ret && !r->started && !r->dialled && pst_wire_now_ms() - r->active_ms >= DIAL_MS) {
		r->dialled = true;
		if (!client_listens(r))
			return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
					      "there is no client at the address in the token");
	}
	return ret ? pst_fail_errno(err, -ret, pst_why_from_errno(ret), "the client: %s",
				    strerror(-ret))
		   : 0;
}

/* Copies a slot's bytes from the server's memory to the staging memory (`gather` is true), or
 * back. */
static int slot_copy(struct run *r, const struct slot *s, bool gather, struct pst_err *err)
{
	return pst_wire_stage(r->channel, r->move, s->at, s->mem, s->len, gather, err);
}

/* Starts one transfer in slot `s`: it carries the bytes at offset `at` of the move. */
static int slot_begin(struct run *r, struct slot *s, unsigned char *staging, uint64_t at,
		      struct pst_err *err)
{
	const uint64_t left = r->move->len - at;
	const struct pst_token *token = &r->move->remote->token;
	struct penstock_object_seg seg;
	struct pst_ofi_move one = {.op = r->move->op, .to = r->to, .key = token->ofi.key};
	int ret = 0;

	s->at = at;
	s->len = (uint32_t)(left < PIECE ? left : PIECE);
	seg = pst_wire_seg_at(r->move, at, s->len);
	s->staged = r->t->staged || seg.dev || seg.has_fd || seg.len < s->len;
	s->mem = s->staged ? staging : seg.ptr;
	if (one.op == PENSTOCK_READ && s->staged)
		ret = slot_copy(r, s, true, err);
	if (one.op == PENSTOCK_READ && !ret)
		r->move->crc64 = pst_crc_raw(PST_CRC64NVME, r->move->crc64, s->mem, s->len);
	one.mem = s->mem;
	one.len = s->len;
	one.base = token->base + r->move->off + at;
	while (!ret) {
		ret = pst_ofi_start(r->t->ofi, &one, &s->op, err);
		if (ret != -EAGAIN)
			break;
		ret = run_wait(r, err);
	}
	r->started |= !ret;
	return ret;
}

/* Waits until the transfer of slot `s` is complete. For a PUT, copies its bytes to the server's
 * memory. */
static int slot_end(struct run *r, struct slot *s, struct pst_err *err)
{
	int ret = 0;

	while (!s->op.done && !ret)
		ret = run_wait(r, err);
	if (ret)
		return ret;
	r->active_ms = pst_wire_now_ms();
	r->ended += s->len;
	if (r->move->op == PENSTOCK_READ)
		return 0;
	r->move->crc64 = pst_crc_raw(PST_CRC64NVME, r->move->crc64, s->mem, s->len);
	return s->staged ? slot_copy(r, s, false, err) : 0;
}

static int ofi1_move(struct pst_wire_channel *channel, struct pst_wire_peer *peer,
		     struct pst_wire_move *move, struct pst_err *err)
{
	struct run r = {.channel = channel,
			.t = (struct ofi1_peer *)peer,
			.move = move,
			.active_ms = pst_wire_now_ms()};
	/* begun: number of bytes whose transfers have started; first and next: numbers of the
	 * oldest transfer in flight and of the next one */
	uint64_t begun = 0, first = 0, next = 0;
	int ret = number_find(r.t, &move->remote->token, &r.to, err);

	move->crc64 = UINT64_MAX;
	while (!ret && r.ended < move->len) {
		struct slot *s = &r.t->slots[next % SLOTS];

		if (begun < move->len && next - first < SLOTS) {
			ret = slot_begin(&r, s, channel->staging + next % SLOTS * PIECE, begun,
					 err);
			begun += s->len;
			next++;
		} else {
			ret = slot_end(&r, &r.t->slots[first++ % SLOTS], err);
		}
		if (!ret)
			ret = pst_wire_check(channel);
	}
	return ret;
}

/* ---- the endpoint ---- */

static bool leads_to(const struct pst_wire_peer *peer, const struct pst_wire_remote *remote)
{
	const struct ofi1_peer *t = (const struct ofi1_peer *)peer;
	const struct pst_token *token = &remote->token;
	char source[INET6_ADDRSTRLEN];
	bool v6;

	if (strcmp(t->provider, token->ofi.provider) != 0)
		return false;
	return name_find(t, token) ||
	       (source_find(token, source, &v6) && !strcmp(t->source, source));
}

static int ofi1_connect(struct pst_wire_channel *channel, struct pst_wire_peer *peer,
			const struct pst_wire_remote *remote, struct pst_err *err)
{
	struct ofi1_peer *t = (struct ofi1_peer *)peer;
	struct pst_ofi_place place = {.provider = t->provider, .address = t->source};
	int ret;

	snprintf(t->provider, sizeof(t->provider), "%s", remote->token.ofi.provider);
	if (!source_find(&remote->token, t->source, &place.v6))
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "the client's address cannot be reached");
	ret = pst_ofi_open(&place, &t->ofi, err);
	if (!ret)
		ret = pst_ofi_local(t->ofi, channel->staging, PST_WIRE_STAGING, err);
	t->staged = ret == 1;
	if (ret >= 0)
		ret = pst_ofi_endpoint_open(t->ofi, err);
	/* No byte has moved, so the caller may decline the token, and the bytes go by HTTP. */
	return ret ? -EOPNOTSUPP : 0;
}

static int ofi1_idle(struct pst_wire_channel *channel, struct pst_wire_peer *peer)
{
	(void)channel;
	(void)peer;
	/* Never called, because the peer has no descriptor (it is -1) that could become
	 * readable. */
	return 0;
}

static void ofi1_close(struct pst_wire_channel *channel, struct pst_wire_peer *peer)
{
	(void)channel;
	pst_ofi_close(((struct ofi1_peer *)peer)->ofi);
}

const struct pst_wire_server_ops pst_ofi1_server = {
	.kind = PST_TOKEN_OFI1,
	.checked = true,
	.peer_size = sizeof(struct ofi1_peer),
	.admit = admit,
	.leads_to = leads_to,
	.connect = ofi1_connect,
	.move = ofi1_move,
	.idle = ofi1_idle,
	.close = ofi1_close,
};
