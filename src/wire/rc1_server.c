/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server half of transport rc1: connects to the client by rdma_cm, and makes the network card
 * write the client's window (GET) or read it (PUT). server.c calls these functions on the thread of
 * a channel, a worker thread of the server. The card accesses long segments of host memory
 * directly. Other bytes go through the channel's staging memory, which is registered with the card
 * and divided into slots. Copies between a slot and the server's memory overlap with transfers of
 * other slots.
 *
 * The client's card checks key, range and direction of each access. A server connects only to the
 * address from which its HTTP request came. A move ends when the client's card has confirmed all
 * its bytes, or when its queue pair is destroyed, after which the card accesses no slot. A
 * segment's registration ends before the move does.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "wire/card.h"
#include "wire/common.h"
#include "wire/rc1.h"
#include "wire/verbs.h"

#define SLOTS 4u
#define SLOT_LEN (PST_WIRE_STAGING / SLOTS)
/* minimum length in bytes of a segment that the card accesses directly, without the staging
 * memory */
#define DIRECT_MIN (256u << 10)
/* maximum number of bytes of one direct transfer */
#define DIRECT_LEN (1u << 20)
/* Maximum time in ms for which rdma_cm tries to resolve an address or a route. It is short, so that
 * the server soon detects a client that has ended. */
#define RESOLVE_MS 2000

/* The objects of a network card that one channel (worker thread) uses. All connections of the
 * channel over this card share them, so that the staging memory is pinned only once. */
struct rc1_card {
	struct ibv_context *context;
	struct ibv_pd *pd;
	/* registration of the channel's staging memory, without remote access */
	struct ibv_mr *mr;
	unsigned users;
};

struct rc1_peer {
	/* its fd is the descriptor of `events`, which reports the end of the connection */
	struct pst_wire_peer peer;
	const struct pst_verbs *v;
	struct pst_token_place at;
	unsigned char conn[PST_TOKEN_CAP];
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct rc1_card *card;
	struct ibv_comp_channel *completions;
	struct ibv_cq *cq;
	/* epoll that waits for `events` and `completions`; -1 if it is closed */
	int both;
	bool armed; /* the next completion will make `completions` readable */
};

static int admit(const struct pst_wire_server *server, const struct pst_token *token,
		 const struct penstock_object_peer *peer, struct pst_err *err)
{
	int ret = pst_wire_admit_place(server, "rc1", &token->rc.at, peer, err);

	if (ret)
		return ret;
	return pst_verbs_get(err) ? 0 : -EOPNOTSUPP;
}

/* ---- connection ---- */

static int wait_fail(int ret, struct pst_err *err)
{
	return pst_fail_errno(err, -ret, pst_why_from_errno(ret), "the client's connection: %s",
			      strerror(-ret));
}

/* Waits for the next event of the connection, and fails unless it is `want`. */
static int event_wait(struct pst_wire_channel *channel, struct rc1_peer *r,
		      enum rdma_cm_event_type want, struct pst_err *err)
{
	struct rdma_cm_event *event;
	enum rdma_cm_event_type type;
	bool hello;
	int ret;

	while (r->v->get_cm_event(r->events, &event)) {
		ret = errno == EAGAIN || errno == EINTR
			      ? pst_wire_wait_fd(channel, r->events->fd, POLLIN)
			      : -errno;
		if (ret)
			return wait_fail(ret, err);
	}
	type = event->event;
	hello = type == RDMA_CM_EVENT_ESTABLISHED &&
		pst_rc1_is_hello(event->param.conn.private_data, event->param.conn.private_data_len,
				 PST_RC1_HELLO_LEN);
	r->v->ack_cm_event(event);
	if (type != want)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "there is no client at %s port %u: %s", r->at.address,
				      r->at.port, r->v->event_str(type));
	if (type == RDMA_CM_EVENT_ESTABLISHED && !hello)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "another program answers at %s port %u", r->at.address,
				      r->at.port);
	return 0;
}

/* Searches the channel's other connections for one that uses the network card `context`. Returns
 * its struct rc1_card, or NULL if there is none. */
static struct rc1_card *card_find(const struct pst_wire_channel *channel,
				  const struct ibv_context *context)
{
	for (const struct pst_wire_peer *peer = channel->peers; peer; peer = peer->next) {
		const struct rc1_peer *r = (const struct rc1_peer *)peer;

		if (peer->ops == &pst_rc1_server && r->card->context == context)
			return r->card;
	}
	return NULL;
}

static void card_put(const struct pst_verbs *v, struct rc1_card *card)
{
	if (--card->users)
		return;
	if (card->mr)
		v->dereg_mr(card->mr);
	if (card->pd)
		v->dealloc_pd(card->pd);
	free(card);
}

/* Gives the connection a reference to its network card, and registers the channel's staging memory
 * with the card if needed. Returns -EOPNOTSUPP if that fails, so that the bytes move as an HTTP
 * body. */
static int card_get(struct pst_wire_channel *channel, struct rc1_peer *r, struct pst_err *err)
{
	struct rc1_card *card = card_find(channel, r->id->verbs);
	int code;

	if (card) {
		card->users++;
		r->card = card;
		return 0;
	}
	card = calloc(1, sizeof(*card));
	if (!card)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a network card");
	card->context = r->id->verbs;
	card->users = 1;
	card->pd = r->v->alloc_pd(card->context);
	if (card->pd)
		card->mr = r->v->reg_mr_iova(card->pd, channel->staging, PST_WIRE_STAGING,
					     (uintptr_t)channel->staging, IBV_ACCESS_LOCAL_WRITE);
	if (card->mr) {
		r->card = card;
		return 0;
	}
	code = errno;
	card_put(r->v, card);
	if (code == ENOMEM)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_MEMLOCK,
				      "the network card cannot pin %u bytes for each channel: "
				      "raise RLIMIT_MEMLOCK",
				      PST_WIRE_STAGING);
	return pst_fail_errno(err, EOPNOTSUPP, pst_why_from_errno(code),
			      "the network card cannot register memory: %s", strerror(code));
}

/* Creates the connection's queue pair and completion queue. */
static int queue_open(struct pst_wire_channel *channel, struct rc1_peer *r, struct pst_err *err)
{
	struct epoll_event event = {.events = EPOLLIN};
	struct ibv_qp_init_attr attr = {.cap = {SLOTS, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	int ret = card_get(channel, r, err);

	if (ret)
		return ret;
	r->completions = r->v->create_comp_channel(r->card->context);
	if (r->completions)
		r->cq = r->v->create_cq(r->card->context, SLOTS + 1, NULL, r->completions, 0);
	attr.send_cq = attr.recv_cq = r->cq;
	if (!r->cq || r->v->create_qp(r->id, r->card->pd, &attr))
		return pst_fail_errno(
			err, EOPNOTSUPP, pst_why_from_errno(errno), "%s has no queue pair left: %s",
			r->v->get_device_name(r->card->context->device), strerror(errno));
	r->both = epoll_create1(EPOLL_CLOEXEC);
	if (r->both < 0 || epoll_ctl(r->both, EPOLL_CTL_ADD, r->events->fd, &event) ||
	    epoll_ctl(r->both, EPOLL_CTL_ADD, r->completions->fd, &event))
		return pst_fail_errno(err, errno, PENSTOCK_WHY_NO_FILES, "epoll: %m");
	return 0;
}

static int rc1_connect(struct pst_wire_channel *channel, struct pst_wire_peer *peer,
		       const struct pst_wire_remote *remote, struct pst_err *err)
{
	struct rc1_peer *r = (struct rc1_peer *)peer;
	unsigned char request[PST_RC1_REQUEST_LEN];
	struct rdma_conn_param param = {.private_data = request,
					.private_data_len = sizeof(request),
					.responder_resources = RDMA_MAX_RESP_RES,
					.initiator_depth = RDMA_MAX_INIT_DEPTH,
					.retry_count = 7,
					.rnr_retry_count = 7};
	struct sockaddr_storage at;
	int ret;

	r->both = -1;
	r->at = remote->token.rc.at;
	memcpy(r->conn, remote->token.rc.conn, sizeof(r->conn));
	r->v = pst_verbs_get(err);
	if (!r->v)
		return -EOPNOTSUPP;
	ret = pst_verbs_channel(r->v, &r->events, err);
	if (ret)
		return ret;
	peer->fd = r->events->fd;
	pst_wire_sockaddr(&r->at, &at);
	if (r->v->create_id(r->events, &r->id, NULL, RDMA_PS_TCP))
		return pst_fail_errno(err, errno, pst_why_from_errno(errno), "rdma_create_id: %m");
	if (r->v->resolve_addr(r->id, NULL, (struct sockaddr *)&at, RESOLVE_MS))
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_NO_DEVICE,
				      "no RDMA network card reaches %s: %s", r->at.address,
				      strerror(errno));
	ret = event_wait(channel, r, RDMA_CM_EVENT_ADDR_RESOLVED, err);
	if (!ret && r->v->resolve_route(r->id, RESOLVE_MS))
		ret = pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_NO_DEVICE, "no route to %s: %s",
				     r->at.address, strerror(errno));
	if (!ret)
		ret = event_wait(channel, r, RDMA_CM_EVENT_ROUTE_RESOLVED, err);
	if (!ret)
		ret = queue_open(channel, r, err);
	if (ret)
		return ret;
	pst_rc1_put_request(request, r->conn);
	if (r->v->connect(r->id, &param))
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "no connection to %s: %s", r->at.address, strerror(errno));
	return event_wait(channel, r, RDMA_CM_EVENT_ESTABLISHED, err);
}

static void rc1_close(struct pst_wire_channel *channel, struct pst_wire_peer *peer)
{
	struct rc1_peer *r = (struct rc1_peer *)peer;

	(void)channel;
	if (r->id && r->id->qp) {
		r->v->disconnect(r->id);
		r->v->destroy_qp(r->id);
	}
	if (r->cq)
		r->v->destroy_cq(r->cq);
	if (r->completions)
		r->v->destroy_comp_channel(r->completions);
	if (r->card)
		card_put(r->v, r->card);
	if (r->id)
		r->v->destroy_id(r->id);
	if (r->events)
		r->v->destroy_event_channel(r->events);
	if (r->both >= 0)
		close(r->both);
	/* destroy_event_channel has closed the descriptor. */
	peer->fd = -1;
}

static bool leads_to(const struct pst_wire_peer *peer, const struct pst_wire_remote *remote)
{
	const struct rc1_peer *r = (const struct rc1_peer *)peer;

	return pst_wire_same_cap(r->conn, remote->token.rc.conn) &&
	       pst_wire_same_place(&r->at, &remote->token.rc.at);
}

static int rc1_idle(struct pst_wire_channel *channel, struct pst_wire_peer *peer)
{
	(void)channel;
	(void)peer;
	/* On an established connection, every event means that the connection has ended. */
	return -EPIPE;
}

/* ---- completions ---- */

/* Waits until the network card has a completion event, or the connection ends. */
static int completion_sleep(struct pst_wire_channel *channel, struct rc1_peer *r,
			    struct pst_err *err)
{
	struct pollfd end = {r->events->fd, POLLIN, 0};
	struct ibv_cq *cq;
	void *context;
	int ret = pst_wire_wait_fd(channel, r->both, POLLIN);

	if (!ret && poll(&end, 1, 0) > 0)
		ret = -EPIPE;
	if (ret)
		return wait_fail(ret, err);
	if (r->v->get_cq_event(r->completions, &cq, &context))
		return pst_fail_errno(err, errno, PENSTOCK_WHY_IO_ERROR, "ibv_get_cq_event: %m");
	r->v->ack_cq_events(cq, 1);
	r->armed = false;
	return 0;
}

/* Waits until the oldest transfer in flight is complete. Returns 0 or its error. */
static int completion_wait(struct pst_wire_channel *channel, struct rc1_peer *r,
			   struct pst_err *err)
{
	struct ibv_wc wc;
	int n, ret;

	while ((n = ibv_poll_cq(r->cq, 1, &wc)) == 0) {
		/* Polls once more after requesting an event, because a completion before the
		 * request causes no event. */
		if (!r->armed) {
			ret = ibv_req_notify_cq(r->cq, 0);
			r->armed = !ret;
			if (ret)
				return pst_fail_errno(err, ret, PENSTOCK_WHY_IO_ERROR,
						      "ibv_req_notify_cq: %m");
			continue;
		}
		ret = completion_sleep(channel, r, err);
		if (ret)
			return ret;
	}
	if (n < 0)
		return pst_fail_errno(err, EIO, PENSTOCK_WHY_IO_ERROR, "ibv_poll_cq failed");
	return wc.status == IBV_WC_SUCCESS ? 0 : pst_card_status_fail(r->v, wc.status, err);
}

/* ---- moves ---- */

/* A part of a move, which the network card makes as one RDMA transfer. A move is the transfer that
 * the server's caller requested. */
struct piece {
	uint64_t at; /* offset in the move */
	uint32_t len, key;
	unsigned char *mem;
	/* true: `mem` is a slot of the staging memory; false: it is the server's own memory */
	bool staged;
};

/* A move in progress. Its pieces complete in the order in which they were started. */
struct progress {
	struct pst_wire_channel *channel;
	struct rc1_peer *r;
	const struct pst_wire_move *move;
	/* registrations of the segments; NULL if a segment's bytes go through the staging memory */
	struct ibv_mr *mrs[PENSTOCK_OBJECT_SEGS_MAX];
	struct piece pieces[SLOTS];
	/* numbers of pieces that were started (posted), and that are complete (done) */
	unsigned posted, done;
	uint64_t at; /* offset of the next piece in the move */
};

/* Registers the long segments of host memory with the card, because pinning them takes less time
 * than copying them. If the card cannot pin a segment, its bytes go through the staging memory. */
static void segments_register(struct progress *p)
{
	const int access = p->move->op == PENSTOCK_READ ? 0 : IBV_ACCESS_LOCAL_WRITE;

	for (unsigned i = 0; i < p->move->seg_count; i++) {
		const struct penstock_object_seg *seg = &p->move->segs[i];

		if (!seg->dev && !seg->has_fd && seg->len >= DIRECT_MIN)
			p->mrs[i] = p->r->v->reg_mr_iova(p->r->card->pd, seg->ptr, seg->len,
							 (uintptr_t)seg->ptr, access);
	}
}

/* Ends the registrations of the segments. After an error, this keeps the pieces that are in flight
 * from accessing the server's memory. */
static void segments_end(struct progress *p)
{
	for (unsigned i = 0; i < p->move->seg_count; i++)
		if (p->mrs[i])
			p->r->v->dereg_mr(p->mrs[i]);
}

/* Returns the piece that begins at offset p->at. A piece that goes through the staging memory ends
 * at the latest where a registered segment begins. */
static struct piece piece_next(const struct progress *p)
{
	const struct penstock_object_seg *segs = p->move->segs;
	struct piece piece = {.at = p->at};
	uint64_t end = segs[0].len, max = SLOT_LEN;
	unsigned i = 0;

	while (end <= p->at)
		end += segs[++i].len;
	if (p->mrs[i]) {
		max = DIRECT_LEN;
		piece.mem = (unsigned char *)segs[i].ptr + (segs[i].len - (end - p->at));
		piece.key = p->mrs[i]->lkey;
	} else {
		while (++i < p->move->seg_count && !p->mrs[i] && end - p->at < max)
			end += segs[i].len;
		piece.staged = true;
		piece.mem = p->channel->staging + p->posted % SLOTS * SLOT_LEN;
		piece.key = p->r->card->mr->lkey;
	}
	piece.len = (uint32_t)(end - p->at < max ? end - p->at : max);
	return piece;
}

/* Copies a staged piece from the server's memory to its slot (`gather` is true), or back. Does
 * nothing for a direct piece. */
static int piece_copy(const struct progress *p, const struct piece *piece, bool gather,
		      struct pst_err *err)
{
	return piece->staged ? pst_wire_stage(p->channel, p->move, piece->at, piece->mem,
					      piece->len, gather, err)
			     : 0;
}

/* Starts the transfer of the next piece. */
static int piece_post(struct progress *p, struct pst_err *err)
{
	const struct pst_token *token = &p->move->remote->token;
	struct piece *piece = &p->pieces[p->posted % SLOTS];
	struct ibv_sge sge;
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = p->move->op == PENSTOCK_READ ? IBV_WR_RDMA_WRITE
									: IBV_WR_RDMA_READ,
				 .send_flags = IBV_SEND_SIGNALED},
			   *bad;
	int ret = pst_wire_check(p->channel);

	if (ret)
		return wait_fail(ret, err);
	*piece = piece_next(p);
	if (p->move->op == PENSTOCK_READ)
		ret = piece_copy(p, piece, true, err);
	if (ret)
		return ret;
	sge = (struct ibv_sge){(uintptr_t)piece->mem, piece->len, piece->key};
	wr.wr.rdma.remote_addr = token->base + p->move->off + p->at;
	wr.wr.rdma.rkey = token->rc.rkey;
	ret = ibv_post_send(p->r->id->qp, &wr, &bad);
	if (ret)
		return pst_fail_errno(err, EPIPE, PENSTOCK_WHY_IO_ERROR, "ibv_post_send: %s",
				      strerror(ret));
	p->at += piece->len;
	p->posted++;
	return 0;
}

/* Waits until the oldest piece in flight is complete. For a PUT, copies its bytes to the server's
 * memory. */
static int piece_end(struct progress *p, struct pst_err *err)
{
	int ret = completion_wait(p->channel, p->r, err);

	if (!ret && p->move->op == PENSTOCK_WRITE)
		ret = piece_copy(p, &p->pieces[p->done % SLOTS], false, err);
	p->done++;
	return ret;
}

static int rc1_move(struct pst_wire_channel *channel, struct pst_wire_peer *peer,
		    struct pst_wire_move *move, struct pst_err *err)
{
	struct progress p = {.channel = channel, .r = (struct rc1_peer *)peer, .move = move};
	int ret = 0;

	segments_register(&p);
	while (!ret && (p.at < move->len || p.done < p.posted))
		ret = p.at < move->len && p.posted - p.done < SLOTS ? piece_post(&p, err)
								    : piece_end(&p, err);
	segments_end(&p);
	return ret;
}

const struct pst_wire_server_ops pst_rc1_server = {
	.kind = PST_TOKEN_RC1,
	.peer_size = sizeof(struct rc1_peer),
	.admit = admit,
	.leads_to = leads_to,
	.connect = rc1_connect,
	.move = rc1_move,
	.idle = rc1_idle,
	.close = rc1_close,
};
