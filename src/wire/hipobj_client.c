/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client half of transport hipobj-rc-v2 (s3/hipobj.h). Each window has a memory region of
 * exactly the window's bytes, and a queue pair. The response to a PREPARE request connects this
 * queue pair to that of the server's session. GET: the server writes the region. Its last write
 * carries the session's cookie, and its completion shows the client that all bytes have arrived.
 * PUT: the client writes its bytes into the server's memory, and no server can access the region. A
 * release destroys the queue pair, after which nothing moves.
 *
 * Any thread may call the functions of a window, one at a time. The client's thread receives no
 * events from this transport. client.c calls these functions.
 */
#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>

#include "s3/hipobj.h"
#include "s3/judge.h"
#include "wire/card.h"
#include "wire/client.h"
#include "wire/common.h"

#define RC 1 /* value of a token's `transport` for a reliable connection */
/* Maximum wait in ms for the card's completion after the response has arrived. The completion
 * usually comes first. */
#define ARRIVE_MS 100
#define PATH "/.hipobj-rc/"

/* The request that a window needs next. PREPARING: PREPARE. PAIRED: READY. ENDED: none. */
enum phase { PREPARING, PAIRED, ENDED };

/* The network card's objects and the protocol state of one window. */
struct exchange {
	/* A protection domain for this window only, so that servers of other windows cannot access
	 * its memory. */
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	enum phase phase;
	uint32_t psn, cookie;
	bool open; /* whether the server has a session for the window */
	struct pst_hipobj_offer offer;
	struct pst_hipobj_ready ready; /* values for the headers of READY and CANCEL */
	struct pst_hipobj_texts texts;
	struct exchange *next; /* next entry of hipobj_state.stuck */
};

/* The state of one listener, which stands for a network card. */
struct hipobj_state {
	struct pst_card card; /* the first member */
	pthread_mutex_t lock; /* protects `stuck`; taken inside no other lock */
	/* windows that were released although the card failed to free their objects */
	struct exchange *stuck;
};

/* ---- windows ---- */

/* Frees a window's network card objects, and `x` itself. Returns 0, or the error code of the first
 * object that cannot be freed. */
static int exchange_close(const struct pst_card *card, struct exchange *x)
{
	/* Destroys the queue pair first. Afterwards the server cannot access memory through the
	 * card. */
	int code = x->qp ? card->v->destroy_plain_qp(x->qp) : 0;

	if (code)
		return code;
	x->qp = NULL;
	if (x->cq)
		card->v->destroy_cq(x->cq);
	x->cq = NULL;
	code = x->mr ? card->v->dereg_mr(x->mr) : 0;
	if (code)
		return code;
	if (x->pd)
		card->v->dealloc_pd(x->pd);
	free(x);
	return 0;
}

/* Creates the network card's objects for a window: protection domain, memory region, completion
 * queue and queue pair. */
static int exchange_open(const struct pst_card *card, const struct pst_wire_grant *g,
			 struct exchange *x, struct pst_err *err)
{
	const bool get = g->op == PENSTOCK_READ;
	uint32_t random[2];
	int ret = pst_wire_random(random, sizeof(random), err);

	if (ret)
		return ret;
	x->psn = random[0] % PST_HIPOBJ_PSN_MAX + 1;
	x->cookie = random[1];
	/* changes 0 to 1, because some servers refuse the cookie 0 */
	x->cookie += !x->cookie;
	x->pd = pst_card_domain(card, err);
	if (!x->pd)
		return err->code;
	x->mr = pst_card_register(card->v, x->pd, card->name, g,
				  get ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0, err);
	if (!x->mr)
		return err->code;
	x->cq = card->v->create_cq(card->context, 2, NULL, NULL, 0);
	if (!x->cq)
		return pst_fail_errno(err, errno, pst_why_from_errno(errno),
				      "%s has no completion queue left: %m", card->name);
	x->qp = pst_card_pair_open(card, x->pd, x->cq, get ? IBV_ACCESS_REMOTE_WRITE : 0, err);
	return x->qp ? 0 : err->code;
}

static int hipobj_bind(struct pst_wire_grant *g, struct pst_err *err)
{
	const struct pst_card *card = g->listener->state;
	struct exchange *x;
	int ret;

	if (!g->len || g->len > PST_HIPOBJ_LEN_MAX)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "hipobj-rc-v2 moves between 1 and %d bytes at a time",
				      PST_HIPOBJ_LEN_MAX);
	x = calloc(1, sizeof(*x));
	if (!x)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a window");
	ret = exchange_open(card, g, x, err);
	if (ret)
		exchange_close(card, x);
	else
		g->bound = x;
	return ret;
}

static int hipobj_unbind(struct pst_wire_grant *g, struct pst_err *err)
{
	struct hipobj_state *state = g->listener->state;
	const struct pst_card *card = &state->card;
	struct exchange *x = g->bound;
	int code = exchange_close(card, x);

	if (code) {
		pthread_mutex_lock(&state->lock);
		x->next = state->stuck;
		state->stuck = x;
		pthread_mutex_unlock(&state->lock);
		return pst_fail_errno(err, ETIMEDOUT, PENSTOCK_WHY_DEADLINE,
				      "%s does not end a queue pair or a memory region: %s; a "
				      "server may still access the window",
				      card->name, strerror(code));
	}
	return pst_card_order(g, err);
}

static bool hipobj_fits(const struct pst_wire_listener *listener,
			const struct pst_wire_buffer *buffer, uint64_t off)
{
	(void)listener;
	(void)buffer;
	(void)off;
	return true;
}

static void hipobj_fill(const struct pst_wire_grant *g, struct pst_token *token)
{
	const struct exchange *x = g->bound;

	token->base = pst_card_address(g);
	token->hipobj.qpn = x->qp->qp_num;
	/* For a PUT, the client writes to the server. So the token has no key for the client's
	 * memory. */
	token->hipobj.rkey = g->op == PENSTOCK_READ ? x->mr->rkey : 0;
}

/* ---- requests ---- */

static int step_fail(struct pst_err *err)
{
	return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
			"the window waits for another request: first PREPARE, then READY");
}

/* Writes the headers of a PREPARE request. Returns their number or -errno. */
static int prepare_put(const struct pst_wire_grant *g, struct exchange *x,
		       const struct pst_wire_step *step, struct penstock_object_header *headers,
		       struct pst_err *err)
{
	const struct pst_hipobj_prepare prepare = {.op = g->op,
						   .target = step->target,
						   .token = g->text,
						   .len = g->len,
						   .offset = g->op == PENSTOCK_READ ? step->offset
										    : 0,
						   .psn = x->psn,
						   .cookie = x->cookie};

	if (x->phase != PREPARING)
		return step_fail(err);
	if (!step->target || step->target[0] != '/' ||
	    strnlen(step->target, PST_HIPOBJ_TARGET + 1) > PST_HIPOBJ_TARGET)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"the target is no path, or longer than %d bytes",
				PST_HIPOBJ_TARGET);
	return (int)pst_hipobj_put_prepare(&prepare, &x->texts, headers);
}

static int hipobj_compose(struct pst_wire_grant *g, const struct pst_wire_step *step,
			  const char **path, struct penstock_object_header *headers,
			  struct pst_err *err)
{
	struct exchange *x = g->bound;

	switch (step->step) {
	case PENSTOCK_OBJECT_PREPARE:
		*path = PATH "prepare";
		return prepare_put(g, x, step, headers, err);
	case PENSTOCK_OBJECT_READY:
		*path = PATH "ready";
		if (x->phase != PAIRED)
			return step_fail(err);
		x->ready.qpn = x->qp->qp_num;
		x->ready.address = pst_card_address(g);
		x->ready.key = g->op == PENSTOCK_READ ? x->mr->rkey : 0;
		return (int)pst_hipobj_put_ready(&x->ready, &x->texts, headers);
	case PENSTOCK_OBJECT_CANCEL:
		*path = PATH "cancel";
		if (!x->open)
			return step_fail(err);
		x->ready.qpn = 0;
		return (int)pst_hipobj_put_ready(&x->ready, &x->texts, headers);
	}
	return step_fail(err);
}

/* ---- responses ---- */

static const char *reply_find(const void *user, const char *name)
{
	const struct penstock_object_reply *reply = user;

	for (unsigned i = 0; i < reply->header_count; i++)
		if (reply->headers[i].name && !strcasecmp(reply->headers[i].name, name))
			return reply->headers[i].value;
	return NULL;
}

/* Starts the client's part of the transfer. For a GET, posts the receive that the server's last
 * write consumes. For a PUT, starts the RDMA write of all bytes. */
static int transfer_post(const struct pst_wire_grant *g, struct exchange *x, struct pst_err *err)
{
	struct ibv_sge sge = {pst_card_address(g), (uint32_t)g->len, x->mr->lkey};
	struct ibv_send_wr write = {.sg_list = &sge,
				    .num_sge = 1,
				    .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				    .send_flags = IBV_SEND_SIGNALED,
				    .imm_data = htobe32(x->cookie)},
			   *bad_write;
	struct ibv_recv_wr receive = {.num_sge = 0}, *bad_receive;
	int code;

	write.wr.rdma.remote_addr = x->offer.address;
	write.wr.rdma.rkey = x->offer.key;
	code = g->op == PENSTOCK_READ ? ibv_post_recv(x->qp, &receive, &bad_receive)
				      : ibv_post_send(x->qp, &write, &bad_write);
	return code ? pst_fail_errno(err, EIO, PENSTOCK_WHY_IO_ERROR,
				     "the network card takes no request: %s", strerror(code))
		    : 0;
}

/* Connects the window's queue pair to the session that the server has opened. */
static int pair_connect(const struct pst_wire_grant *g, struct exchange *x, struct pst_err *err)
{
	const struct pst_card *card = g->listener->state;
	const struct pst_hipobj_offer *offer = &x->offer;
	struct pst_card_far far = {
		.lid = offer->token.hipobj.lid, .qpn = offer->token.hipobj.qpn, .psn = offer->psn};
	int ret;

	memcpy(&far.gid, offer->token.hipobj.gid, sizeof(far.gid));
	if (g->op == PENSTOCK_WRITE && (!offer->address || !offer->key))
		return pst_fail_errno(err, EPROTO, PENSTOCK_WHY_MALFORMED,
				      "the server has no memory for a PUT");
	ret = pst_card_pair_connect(card, x->qp, &far, x->psn, err);
	/* Some servers connect their queue pair only at READY. The card repeats the write of a PUT
	 * until then, so it can be posted before READY. */
	return ret ? ret : transfer_post(g, x, err);
}

static void decide(struct penstock_object_verdict *v, enum penstock_object_next next, bool remember,
		   const char *text)
{
	v->next = next;
	v->remember = remember;
	snprintf(v->text, sizeof(v->text), "%s", text);
}

/* Decides what the client does after a response to PREPARE that opens no session. `speaks` is true
 * if the response shows that the server knows the protocol. */
static void refused(const struct penstock_object_reply *reply, bool speaks,
		    struct penstock_object_verdict *v)
{
	char text[PENSTOCK_TEXT_MAX];

	snprintf(text, sizeof(text), "the server answered %d %.64s to hipobj-rc-v2", reply->status,
		 reply->error ? reply->error : "");
	/* A server that does not support the protocol treats the path as a bucket and a key. It
	 * gets no further PREPARE (`remember`). A server that is busy or has too little memory gets
	 * one later. */
	decide(v, PENSTOCK_OBJECT_RESEND,
	       !speaks && reply->status / 100 != 5 && reply->status != 413 && reply->status, text);
	if (reply->status == 501)
		v->remember = 1;
}

static int hipobj_paired(struct pst_wire_grant *g, const struct penstock_object_reply *reply,
			 struct penstock_object_verdict *verdict, struct pst_err *err)
{
	const struct pst_hipobj_source source = {reply_find, reply};
	struct exchange *x = g->bound;
	const size_t size = verdict->size;
	int ret;

	if (x->phase != PREPARING)
		return step_fail(err);
	x->phase = ENDED;
	memset(verdict, 0, sizeof(*verdict));
	verdict->size = size;
	ret = pst_hipobj_offer_parse(&source, &x->offer);
	if (reply->status != 200) {
		refused(reply, ret != -EPROTO, verdict);
		return 0;
	}
	if (ret) {
		decide(verdict, PENSTOCK_OBJECT_RESEND, true,
		       ret == -EPROTO ? "the server does not know hipobj-rc-v2"
				      : "the server's answer to PREPARE is malformed");
		return 0;
	}
	x->open = true;
	memcpy(x->ready.session, x->offer.session, sizeof(x->ready.session));
	x->ready.cookie = x->cookie;
	if (pair_connect(g, x, err)) {
		decide(verdict, PENSTOCK_OBJECT_RESEND, false, err->text);
		*err = (struct pst_err){0};
		return 0;
	}
	x->phase = PAIRED;
	decide(verdict, PENSTOCK_OBJECT_DONE, false, "the session is open");
	return 0;
}

/* Waits at most ARRIVE_MS until the card has reported that all bytes of a GET have arrived. The
 * report normally comes before the server's response. Returns NULL, or a text that describes the
 * error. */
static const char *arrival_check(const struct pst_wire_grant *g, struct exchange *x)
{
	const uint64_t until = pst_wire_now_ms() + ARRIVE_MS;
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(x->cq, 1, &wc)) == 0)
		if (pst_wire_now_ms() > until)
			return "the network card has received nothing";
	if (n < 0 || wc.status != IBV_WC_SUCCESS)
		return "the network card reports an error";
	if (wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM || !(wc.wc_flags & IBV_WC_WITH_IMM) ||
	    be32toh(wc.imm_data) != x->cookie)
		return "the network card has received something else";
	/* byte_len counts only the bytes of the server's last write, and the server may have used
	 * several writes. So byte_len may be less than the window's length. */
	return wc.byte_len > g->len ? "the network card has received more bytes" : NULL;
}

static void hipobj_judge(struct pst_wire_grant *g, const struct penstock_object_reply *reply,
			 struct penstock_object_verdict *verdict)
{
	const struct pst_hipobj_source source = {reply_find, reply};
	struct exchange *x = g->bound;
	const bool sent = x->phase == PAIRED;
	const char *wrong = NULL;

	x->phase = ENDED;
	x->open = false;
	pst_judge_final(g->len, reply, verdict);
	if (verdict->next != PENSTOCK_OBJECT_DONE)
		return;
	if (!sent)
		wrong = "the window has no session";
	else if (pst_hipobj_final_parse(&source, x->cookie))
		wrong = "the response belongs to another session";
	else if (g->op == PENSTOCK_READ)
		wrong = arrival_check(g, x);
	if (!wrong)
		return;
	verdict->bytes = 0;
	decide(verdict, PENSTOCK_OBJECT_RESEND, false, wrong);
}

/* ---- listening ---- */

static void hipobj_unlisten(struct pst_wire_client *client, struct pst_wire_listener *listener)
{
	struct hipobj_state *state = listener->state;

	(void)client;
	while (state->stuck) {
		struct exchange *x = state->stuck;

		state->stuck = x->next;
		if (exchange_close(&state->card, x))
			free(x);
	}
	pst_card_close(&state->card);
	pthread_mutex_destroy(&state->lock);
	free(state);
	listener->state = NULL;
}

/* Does nothing. pst_wire_client_ops needs such a function, but it is never called, because the
 * listener's descriptor never becomes readable. */
static void hipobj_event(struct pst_wire_client *client, struct pst_wire_listener *listener)
{
	(void)client;
	(void)listener;
}

static int hipobj_listen(struct pst_wire_client *client, struct pst_wire_listener *listener,
			 struct pst_err *err)
{
	struct pst_token *token = &listener->token;
	struct hipobj_state *state;
	struct pst_card *card;
	int ret;

	if (!client->opts.address)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"hipobj-rc-v2 needs the address of an RDMA network card: set "
				"`address`");
	state = calloc(1, sizeof(*state));
	if (!state)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a network card");
	pthread_mutex_init(&state->lock, NULL);
	listener->state = state;
	card = &state->card;
	ret = pst_card_open(card, PST_HIPOBJ, client->opts.address, err);
	listener->fd = ret ? -1 : eventfd(0, EFD_CLOEXEC);
	if (!ret && listener->fd < 0)
		ret = pst_fail_errno(err, errno, PENSTOCK_WHY_NO_FILES, "eventfd: %m");
	if (ret) {
		hipobj_unlisten(client, listener);
		return ret;
	}
	token->kind = PST_TOKEN_HIPOBJ_RC_V2;
	token->hipobj.transport = RC;
	token->hipobj.port = card->port;
	token->hipobj.lid = card->lid;
	memcpy(token->hipobj.gid, &card->gid, sizeof(token->hipobj.gid));
	return 0;
}

const struct pst_wire_client_ops pst_hipobj_client = {
	.name = PST_HIPOBJ,
	.named = true,
	.listen = hipobj_listen,
	.event = hipobj_event,
	.unlisten = hipobj_unlisten,
	.bind = hipobj_bind,
	.unbind = hipobj_unbind,
	.fits = hipobj_fits,
	.fill = hipobj_fill,
	.compose = hipobj_compose,
	.paired = hipobj_paired,
	.judge = hipobj_judge,
};
