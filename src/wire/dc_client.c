/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client half of transport DC_V1, the protocol of NVIDIA's cuObject. One target (DCT) serves
 * all windows of the client. A server needs the target's number and its key to reach it. Each
 * window is a memory region of exactly the window's bytes, at a random address, and with access in
 * the window's direction only. All clients and servers of an installation share the target's key.
 * So every server reaches the target, and can try to guess the memory keys of windows that it has
 * no token for. No test has run this file on a card.
 *
 * Any thread binds and unbinds windows. The client's thread receives no events from this transport.
 * client.c calls these functions.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "wire/card.h"
#include "wire/client.h"
#include "wire/common.h"
#include "wire/mlx5_card.h"

#define RNR_TIMER 12

struct dc_state {
	struct pst_card card;
	const struct pst_mlx5 *mlx5;
	struct ibv_pd *pd;
	struct ibv_cq *cq; /* completion queue that the target requires; it stays empty */
	struct ibv_srq *srq;
	struct ibv_qp *dct;
	/* true if the target (`dct`) was destroyed, so that no new window can use it */
	_Atomic bool gone;

	pthread_mutex_t lock; /* protects `dct`; taken while no other lock is held */
};

/* ---- windows ---- */

static int dc_bind(struct pst_wire_grant *g, struct pst_err *err)
{
	struct dc_state *s = g->listener->state;
	const int access = g->op == PENSTOCK_READ ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
						  : IBV_ACCESS_REMOTE_READ;

	/* The token's field for the length has 32 bits. */
	if (g->len > UINT32_MAX)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "a window of DC_V1 has less than 4 GiB");
	if (!g->len)
		return 0;
	g->bound = pst_card_register(s->card.v, s->pd, s->card.name, g, access, err);
	return g->bound ? 0 : err->code;
}

/* Destroys the target (DCT), so that the card does not receive anything for it any more. */
static void target_end(struct dc_state *s)
{
	pthread_mutex_lock(&s->lock);
	if (s->dct && !s->card.v->destroy_plain_qp(s->dct)) {
		s->dct = NULL;
		atomic_store(&s->gone, true);
	}
	pthread_mutex_unlock(&s->lock);
}

static int dc_unbind(struct pst_wire_grant *g, struct pst_err *err)
{
	struct dc_state *s = g->listener->state;
	int code = s->card.v->dereg_mr(g->bound);

	/* The card may keep a region in use while it has received only some packets of a message.
	 * The destruction of the target ends that. */
	if (code) {
		atomic_fetch_add(&g->buffer->client->counts.cut_off, 1);
		target_end(s);
		code = s->card.v->dereg_mr(g->bound);
	}
	if (code)
		return pst_fail_errno(err, ETIMEDOUT, PENSTOCK_WHY_DEADLINE,
				      "%s does not end a memory region: %s; a server may still "
				      "access the window",
				      s->card.name, strerror(code));
	return pst_card_order(g, err);
}

static bool dc_fits(const struct pst_wire_listener *listener, const struct pst_wire_buffer *buffer,
		    uint64_t off)
{
	const struct dc_state *s = listener->state;

	(void)buffer;
	(void)off;
	return !atomic_load(&s->gone);
}

static void dc_fill(const struct pst_wire_grant *grant, struct pst_token *token)
{
	const struct ibv_mr *mr = grant->bound;

	token->base = pst_card_address(grant);
	token->dc.rkey = mr ? mr->rkey : 0;
}

/* ---- listening ---- */

static void dc_unlisten(struct pst_wire_client *client, struct pst_wire_listener *listener)
{
	struct dc_state *s = listener->state;

	(void)client;
	if (s->dct)
		s->card.v->destroy_plain_qp(s->dct);
	if (s->srq)
		s->card.v->destroy_srq(s->srq);
	if (s->cq)
		s->card.v->destroy_cq(s->cq);
	if (s->pd)
		s->card.v->dealloc_pd(s->pd);
	pst_card_close(&s->card);
	pthread_mutex_destroy(&s->lock);
	free(s);
	listener->state = NULL;
}

/* Does nothing. pst_wire_client_ops needs such a function, but it is never called, because the
 * listener's descriptor never becomes readable. */
static void dc_event(struct pst_wire_client *client, struct pst_wire_listener *listener)
{
	(void)client;
	(void)listener;
}

/* Moves the target (DCT) to the queue pair state in which it accepts requests. */
static int target_connect(const struct dc_state *s)
{
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
				   .port_num = s->card.port,
				   .qp_access_flags =
					   IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
	struct ibv_qp_attr receive = {
		.qp_state = IBV_QPS_RTR, .path_mtu = s->card.mtu, .min_rnr_timer = RNR_TIMER};
	int code = s->card.v->modify_qp(s->dct, &init,
					IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						IBV_QP_ACCESS_FLAGS);

	pst_card_way(&s->card, &(union ibv_gid){.raw = {0}}, 0, &receive.ah_attr);
	return code ? code
		    : s->card.v->modify_qp(s->dct, &receive,
					   IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_AV |
						   IBV_QP_MIN_RNR_TIMER);
}

/* Creates the target (DCT), which accepts only servers that have `key`. */
static int target_open(struct dc_state *s, uint64_t key, struct pst_err *err)
{
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = 1, .max_sge = 1}};
	struct ibv_qp_init_attr_ex attr = {.qp_type = IBV_QPT_DRIVER,
					   .comp_mask = IBV_QP_INIT_ATTR_PD};
	struct mlx5dv_qp_init_attr dc = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr = {.dc_type = MLX5DV_DCTYPE_DCT, .dct_access_key = key}};
	int code;

	s->pd = pst_card_domain(&s->card, err);
	if (!s->pd)
		return err->code;
	s->cq = s->card.v->create_cq(s->card.context, 1, NULL, NULL, 0);
	s->srq = s->cq ? s->card.v->create_srq(s->pd, &srq) : NULL;
	attr.pd = s->pd;
	attr.send_cq = attr.recv_cq = s->cq;
	attr.srq = s->srq;
	s->dct = s->srq ? s->mlx5->create_qp(s->card.context, &attr, &dc) : NULL;
	code = s->dct ? target_connect(s) : errno;
	return code ? pst_fail_errno(err, code, pst_why_from_errno(code),
				     "%s has no dynamically connected target left: %s",
				     s->card.name, strerror(code))
		    : 0;
}

static int dc_listen(struct pst_wire_client *client, struct pst_wire_listener *listener,
		     struct pst_err *err)
{
	struct pst_token *token = &listener->token;
	struct dc_state *s;
	uint64_t key;
	int ret = pst_dc_key(client->opts.dc_key, &key, err);

	if (ret)
		return ret;
	if (!client->opts.address)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"DC_V1 needs the address of an RDMA network card: set `address`");
	s = calloc(1, sizeof(*s));
	if (!s)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a network card");
	pthread_mutex_init(&s->lock, NULL);
	listener->state = s;
	ret = pst_dc_card_open(&s->card, &s->mlx5, client->opts.address, err);
	if (!ret)
		ret = target_open(s, key, err);
	listener->fd = ret ? -1 : eventfd(0, EFD_CLOEXEC);
	if (!ret && listener->fd < 0)
		ret = pst_fail_errno(err, errno, PENSTOCK_WHY_NO_FILES, "eventfd: %m");
	if (ret) {
		dc_unlisten(client, listener);
		return ret;
	}
	token->kind = PST_TOKEN_DC_V1;
	token->dc.lid = s->card.lid;
	token->dc.dct = s->dct->qp_num;
	token->dc.has_gid = true;
	memcpy(token->dc.gid, &s->card.gid, sizeof(token->dc.gid));
	return 0;
}

const struct pst_wire_client_ops pst_dc_client = {
	.name = "DC_V1",
	.named = true,
	.listen = dc_listen,
	.event = dc_event,
	.unlisten = dc_unlisten,
	.bind = dc_bind,
	.unbind = dc_unbind,
	.fits = dc_fits,
	.fill = dc_fill,
};
