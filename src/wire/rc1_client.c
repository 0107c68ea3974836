/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client half of transport rc1. Each window is a separate memory region, of exactly the
 * window's bytes and with access in the window's direction only. So the network card refuses every
 * access outside the window. A release deregisters the region, and no byte of a server can arrive
 * afterwards. The client's CPU takes no part in a transfer.
 *
 * The client's thread accepts and ends connections. Any thread registers and deregisters windows.
 * client.c calls these functions.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wire/card.h"
#include "wire/client.h"
#include "wire/common.h"
#include "wire/rc1.h"
#include "wire/verbs.h"

#define BACKLOG 128

/* A connection from a channel (worker thread) of a server. */
struct rc1_conn {
	struct rc1_conn *next;
	struct rdma_cm_id *id;
};

/* The state of one listener, which belongs to one network card. */
struct rc1_state {
	const struct pst_verbs *v;
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	const char *card;  /* name of the network card */
	struct ibv_pd *pd; /* protection domain, used by this client only */
	struct ibv_cq *cq; /* completion queue; queue pairs need one, but it stays empty */
	unsigned char conn[PST_TOKEN_CAP];
	_Atomic bool gone; /* the network card was removed */

	pthread_mutex_t lock;	/* protects the members below; taken while no other lock is held */
	struct rc1_conn *conns; /* list of connections, the latest first */
	unsigned conn_count;
};

/* ---- connections ---- */

static void conn_link(struct rc1_state *s, struct rc1_conn *conn)
{
	pthread_mutex_lock(&s->lock);
	conn->next = s->conns;
	s->conns = conn;
	s->conn_count++;
	pthread_mutex_unlock(&s->lock);
}

static void conn_unlink(struct rc1_state *s, struct rc1_conn *conn)
{
	struct rc1_conn **at = &s->conns;

	pthread_mutex_lock(&s->lock);
	while (*at != conn)
		at = &(*at)->next;
	*at = conn->next;
	s->conn_count--;
	pthread_mutex_unlock(&s->lock);
}

/* Removes a connection from the list and ends it. */
static void conn_end(struct rc1_state *s, struct rc1_conn *conn)
{
	conn_unlink(s, conn);
	s->v->disconnect(conn->id);
	s->v->destroy_qp(conn->id);
	s->v->destroy_id(conn->id);
	free(conn);
}

/* Ends the oldest connection to make room, so that connections of servers that have ended cannot
 * keep other servers out. */
static void conn_evict(struct rc1_state *s)
{
	struct rc1_conn *oldest = s->conns;

	while (oldest->next)
		oldest = oldest->next;
	conn_end(s, oldest);
}

/* Accepts a connection, after adding it to the list. The server may access windows at once, and a
 * release must then find the connection in the list to stop its queue pair. */
static int conn_accept(struct rc1_state *s, struct rc1_conn *conn)
{
	/* The client sends nothing, but a queue pair must have space for at least one request. */
	struct ibv_qp_init_attr attr = {
		.send_cq = s->cq, .recv_cq = s->cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct rdma_conn_param param = {.private_data = PST_RC1_HELLO,
					.private_data_len = PST_RC1_HELLO_LEN,
					.responder_resources = RDMA_MAX_RESP_RES,
					.initiator_depth = RDMA_MAX_INIT_DEPTH,
					.rnr_retry_count = 7};

	if (s->v->create_qp(conn->id, s->pd, &attr))
		return -errno;
	conn_link(s, conn);
	if (!s->v->accept(conn->id, &param))
		return 0;
	conn_unlink(s, conn);
	s->v->destroy_qp(conn->id);
	return -EIO;
}

/* Accepts or rejects a connection request. `right` is true if the request contains the client's
 * random number, which only a token reveals. */
static void conn_request(struct pst_wire_client *client, struct rc1_state *s, struct rdma_cm_id *id,
			 bool right)
{
	struct rc1_conn *conn = right ? calloc(1, sizeof(*conn)) : NULL;

	if (!right)
		atomic_fetch_add(&client->counts.wrong_cap, 1);
	if (conn) {
		if (s->conn_count >= PST_WIRE_CONNS_MAX)
			conn_evict(s);
		conn->id = id;
		id->context = conn;
		if (!conn_accept(s, conn))
			return;
	}
	free(conn);
	s->v->reject(id, NULL, 0);
	s->v->destroy_id(id);
}

/* Handles the removal of the network card. Destroys all connections and the listener, because the
 * kernel waits for that. */
static void card_gone(struct rc1_state *s)
{
	atomic_store(&s->gone, true);
	while (s->conns)
		conn_end(s, s->conns);
	s->v->destroy_id(s->id);
	s->id = NULL;
}

static void rc1_event(struct pst_wire_client *client, struct pst_wire_listener *listener)
{
	struct rc1_state *s = listener->state;
	struct rdma_cm_event *event;
	unsigned char expected[PST_RC1_REQUEST_LEN];
	const unsigned char *data;
	enum rdma_cm_event_type type;
	struct rdma_cm_id *id;
	bool right = false;

	if (s->v->get_cm_event(s->events, &event))
		return;
	type = event->event;
	id = event->id;
	data = event->param.conn.private_data;
	if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
		pst_rc1_put_request(expected, s->conn);
		right = pst_rc1_is_hello(data, event->param.conn.private_data_len,
					 PST_RC1_REQUEST_LEN) &&
			pst_wire_same_cap(data + PST_RC1_HELLO_LEN, s->conn);
	}
	/* The event is acknowledged first, because the functions below may destroy its id, which is
	 * possible only after that. */
	s->v->ack_cm_event(event);
	if (type == RDMA_CM_EVENT_CONNECT_REQUEST)
		conn_request(client, s, id, right);
	else if (id == s->id && type == RDMA_CM_EVENT_DEVICE_REMOVAL)
		card_gone(s);
	else if (id != s->id && type != RDMA_CM_EVENT_ESTABLISHED)
		conn_end(s, id->context);
}

/* ---- windows ---- */

static int rc1_bind(struct pst_wire_grant *g, struct pst_err *err)
{
	struct rc1_state *s = g->listener->state;
	const int access = g->op == PENSTOCK_READ ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
						  : IBV_ACCESS_REMOTE_READ;

	/* A window without bytes needs no registration: its server moves nothing. */
	if (!g->len)
		return 0;
	g->bound = pst_card_register(s->v, s->pd, s->card, g, access, err);
	return g->bound ? 0 : err->code;
}

/* Stops the queue pairs of all connections, so that the card drops the messages of which it has
 * received only some packets. */
static void stop_all(struct rc1_state *s)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	pthread_mutex_lock(&s->lock);
	for (struct rc1_conn *conn = s->conns; conn; conn = conn->next)
		s->v->modify_qp(conn->id->qp, &attr, IBV_QP_STATE);
	pthread_mutex_unlock(&s->lock);
}

static int rc1_unbind(struct pst_wire_grant *g, struct pst_err *err)
{
	struct rc1_state *s = g->listener->state;
	int code = s->v->dereg_mr(g->bound);

	/* The card may refuse to deregister the region while it has received only some packets of a
	 * message, because the others are lost or the sender has stopped. Stopping the queue pairs
	 * ends that. */
	if (code) {
		atomic_fetch_add(&g->buffer->client->counts.cut_off, 1);
		stop_all(s);
		code = s->v->dereg_mr(g->bound);
	}
	/* If the card was removed, an error is ignored: the card accesses no memory, and its driver
	 * rejects every call. */
	if (code && !atomic_load(&s->gone))
		return pst_fail_errno(err, ETIMEDOUT, PENSTOCK_WHY_DEADLINE,
				      "%s does not end a memory region: %s; a server may still "
				      "access the window",
				      s->card, strerror(code));
	return pst_card_order(g, err);
}

static bool rc1_fits(const struct pst_wire_listener *listener, const struct pst_wire_buffer *buffer,
		     uint64_t off)
{
	const struct rc1_state *s = listener->state;

	(void)buffer;
	(void)off;
	return !atomic_load(&s->gone);
}

static void rc1_fill(const struct pst_wire_grant *grant, struct pst_token *token)
{
	const struct ibv_mr *mr = grant->bound;

	token->base = pst_card_address(grant);
	token->rc.rkey = mr ? mr->rkey : 0;
}

/* ---- listening ---- */

static void rc1_unlisten(struct pst_wire_client *client, struct pst_wire_listener *listener)
{
	struct rc1_state *s = listener->state;

	(void)client;
	while (s->conns)
		conn_end(s, s->conns);
	if (s->cq)
		s->v->destroy_cq(s->cq);
	if (s->pd)
		s->v->dealloc_pd(s->pd);
	if (s->id)
		s->v->destroy_id(s->id);
	if (s->events)
		s->v->destroy_event_channel(s->events);
	pthread_mutex_destroy(&s->lock);
	free(s);
	listener->state = NULL;
	listener->fd = -1;
}

/* Binds the listener's id to the address, which selects the network card. Creates the objects that
 * windows and connections need. */
static int state_open(struct rc1_state *s, struct pst_token_place *place, struct pst_err *err)
{
	struct sockaddr_storage at;
	int ret = pst_verbs_channel(s->v, &s->events, err);

	if (ret)
		return ret;
	pst_wire_sockaddr(place, &at);
	if (s->v->create_id(s->events, &s->id, NULL, RDMA_PS_TCP))
		return pst_fail_errno(err, errno, pst_why_from_errno(errno), "rdma_create_id: %m");
	if (s->v->bind_addr(s->id, (struct sockaddr *)&at))
		return pst_fail_errno(err, errno, pst_why_from_errno(errno),
				      "no RDMA network card has the address %s, or port %u is in "
				      "use: %m",
				      place->address, place->port);
	if (!s->id->verbs)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"rc1 needs the address of one network card, not %s",
				place->address);
	s->card = s->v->get_device_name(s->id->verbs->device);
	s->pd = s->v->alloc_pd(s->id->verbs);
	s->cq = s->pd ? s->v->create_cq(s->id->verbs, 1, NULL, NULL, 0) : NULL;
	if (!s->cq || s->v->listen(s->id, BACKLOG))
		return pst_fail_errno(err, errno, pst_why_from_errno(errno), "%s cannot listen: %m",
				      s->card);
	place->port = ntohs(s->v->get_src_port(s->id));
	return 0;
}

static int rc1_listen(struct pst_wire_client *client, struct pst_wire_listener *listener,
		      struct pst_err *err)
{
	struct pst_token *token = &listener->token;
	struct rc1_state *s;
	int ret;

	if (!client->opts.address)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"rc1 needs the address of an RDMA network card: set `address`");
	ret = pst_wire_own_place(client, &token->rc.at, err);
	if (ret)
		return ret;
	s = calloc(1, sizeof(*s));
	if (!s)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a listener");
	pthread_mutex_init(&s->lock, NULL);
	listener->state = s;
	s->v = pst_verbs_get(err);
	ret = s->v ? state_open(s, &token->rc.at, err) : err->code;
	if (!ret)
		ret = pst_wire_random(s->conn, sizeof(s->conn), err);
	if (ret) {
		rc1_unlisten(client, listener);
		return ret;
	}
	token->kind = PST_TOKEN_RC1;
	memcpy(token->rc.conn, s->conn, sizeof(s->conn));
	listener->fd = s->events->fd;
	return 0;
}

const struct pst_wire_client_ops pst_rc1_client = {
	.name = "rc1",
	.direct = true,
	.listen = rc1_listen,
	.event = rc1_event,
	.unlisten = rc1_unlisten,
	.bind = rc1_bind,
	.unbind = rc1_unbind,
	.fits = rc1_fits,
	.fill = rc1_fill,
};
