/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server half of transport DC_V1, the protocol of NVIDIA's cuObject. A dynamically connected
 * initiator (DCI), a kind of queue pair, writes the client's window (GET) or reads it (PUT). Each
 * channel (worker thread) has an initiator for each client's address. Bytes go through the
 * channel's staging memory, which is divided into slots. The client's card checks key, range and
 * direction of each access. server.c calls these functions on the channel's thread. No test has run
 * this file on a card.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "wire/card.h"
#include "wire/common.h"
#include "wire/mlx5_card.h"

#define SLOTS 4u
#define SLOT_LEN (PST_WIRE_STAGING / SLOTS)
/* acknowledge timeout, 4.096 us << 15 = 134 ms; then the card sends a packet again, up to RETRIES
 * times */
#define TIMEOUT 15
#define RETRIES 7
#define READS_MAX 16 /* number of RDMA reads in flight that every card supports */

struct dc_peer {
	struct pst_wire_peer peer; /* its fd is -1 */
	struct pst_card card;
	const struct pst_mlx5 *mlx5;
	uint64_t key;
	struct ibv_pd *pd;
	struct ibv_mr *mr; /* registration of the channel's staging memory, without remote access */
	struct pst_card_queue queue;
	struct ibv_qp *dci;
	struct ibv_qp_ex *ex;
	struct mlx5dv_qp_ex *dc;
	struct ibv_ah *way; /* address handle, which contains the route to the client's card */
	unsigned char gid[16];
	uint16_t lid;
};

static int dc_admit(const struct pst_wire_server *server, const struct pst_token *token,
		    const struct penstock_object_peer *peer, struct pst_err *err)
{
	struct pst_token_place client;
	uint64_t key;
	int ret;

	if (!token->dc.has_gid)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
				"DC_V1 is served over RoCE v2 only, and the token has no GID");
	pst_wire_gid_place(token->dc.gid, &client);
	ret = pst_wire_admit_place(server, "DC_V1", &client, peer, err);
	if (!ret)
		ret = pst_dc_key(server->opts.dc_key, &key, err);
	if (ret)
		return ret;
	return pst_mlx5_get(err) && pst_verbs_get(err) ? 0 : -EOPNOTSUPP;
}

/* ---- connection ---- */

/* Creates the initiator (DCI), with room for one request of each slot. */
static struct ibv_qp *initiator_create(const struct dc_peer *d)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_DRIVER,
		.send_cq = d->queue.cq,
		.recv_cq = d->queue.cq,
		.pd = d->pd,
		.cap = {.max_send_wr = SLOTS, .max_send_sge = 1},
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ,
	};
	struct mlx5dv_qp_init_attr dc = {.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
					 .dc_init_attr = {.dc_type = MLX5DV_DCTYPE_DCI}};

	return d->mlx5->create_qp(d->card.context, &attr, &dc);
}

/* Moves the initiator (DCI) to the queue pair state in which it can send. */
static int initiator_connect(const struct dc_peer *d)
{
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = d->card.port};
	struct ibv_qp_attr receive = {.qp_state = IBV_QPS_RTR, .path_mtu = d->card.mtu};
	struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS,
				   .timeout = TIMEOUT,
				   .retry_cnt = RETRIES,
				   .rnr_retry = RETRIES,
				   .max_rd_atomic = READS_MAX};
	const struct pst_verbs *v = d->card.v;
	int code = v->modify_qp(d->dci, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT);

	pst_card_way(&d->card, &(union ibv_gid){.raw = {0}}, 0, &receive.ah_attr);
	if (!code)
		code = v->modify_qp(d->dci, &receive, IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_AV);
	if (!code)
		code = v->modify_qp(d->dci, &send,
				    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					    IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					    IBV_QP_MAX_QP_RD_ATOMIC);
	return code;
}

/* Opens the card and the objects that the channel needs to reach the client. If this fails with
 * -EOPNOTSUPP, the server declines the token, and the bytes move as an HTTP body. */
static int initiator_open(struct pst_wire_channel *channel, struct dc_peer *d, struct pst_err *err)
{
	struct ibv_ah_attr way;
	union ibv_gid gid;
	int code, ret;

	d->pd = pst_card_domain(&d->card, err);
	if (!d->pd)
		return -EOPNOTSUPP;
	d->mr = d->card.v->reg_mr_iova(d->pd, channel->staging, PST_WIRE_STAGING,
				       (uintptr_t)channel->staging, IBV_ACCESS_LOCAL_WRITE);
	if (!d->mr)
		return pst_fail_errno(err, EOPNOTSUPP, pst_why_from_errno(errno),
				      "%s cannot register memory: %m", d->card.name);
	ret = pst_card_queue_open(&d->queue, &d->card, SLOTS + 1, err);
	if (ret)
		return -EOPNOTSUPP;
	memcpy(&gid, d->gid, sizeof(gid));
	pst_card_way(&d->card, &gid, d->lid, &way);
	d->way = d->card.v->create_ah(d->pd, &way);
	d->dci = d->way ? initiator_create(d) : NULL;
	code = d->dci ? initiator_connect(d) : errno;
	if (code)
		return pst_fail_errno(err, EOPNOTSUPP, pst_why_from_errno(code),
				      "%s has no dynamically connected initiator left: %s",
				      d->card.name, strerror(code));
	d->ex = d->card.v->qp_to_qp_ex(d->dci);
	d->dc = d->mlx5->qp_ex_of(d->ex);
	return 0;
}

static int dc_connect(struct pst_wire_channel *channel, struct pst_wire_peer *peer,
		      const struct pst_wire_remote *remote, struct pst_err *err)
{
	struct dc_peer *d = (struct dc_peer *)peer;
	struct pst_token_place client, own;
	int ret;

	memcpy(d->gid, remote->token.dc.gid, sizeof(d->gid));
	d->lid = remote->token.dc.lid;
	pst_wire_gid_place(d->gid, &client);
	ret = pst_dc_key(channel->server->opts.dc_key, &d->key, err);
	if (!ret)
		ret = pst_wire_route(&client, &own, err);
	if (ret)
		return ret;
	if (pst_dc_card_open(&d->card, &d->mlx5, own.address, err))
		return -EOPNOTSUPP;
	return initiator_open(channel, d, err);
}

static void dc_close(struct pst_wire_channel *channel, struct pst_wire_peer *peer)
{
	struct dc_peer *d = (struct dc_peer *)peer;

	(void)channel;
	/* Destroys the initiator first, so that the card cannot access the staging memory while the
	 * other objects are closed. */
	if (d->dci)
		d->card.v->destroy_plain_qp(d->dci);
	if (d->way)
		d->card.v->destroy_ah(d->way);
	pst_card_queue_close(&d->queue);
	if (d->mr)
		d->card.v->dereg_mr(d->mr);
	if (d->pd)
		d->card.v->dealloc_pd(d->pd);
	pst_card_close(&d->card);
}

static bool dc_leads_to(const struct pst_wire_peer *peer, const struct pst_wire_remote *remote)
{
	const struct dc_peer *d = (const struct dc_peer *)peer;

	return d->lid == remote->token.dc.lid && !memcmp(d->gid, remote->token.dc.gid, 16);
}

/* ---- moves ---- */

/* A move in progress: a transfer of bytes between the server's memory and the client's window. It
 * is divided into pieces of at most SLOT_LEN bytes, which complete in the order of their
 * offsets. */
struct progress {
	struct pst_wire_channel *channel;
	struct dc_peer *d;
	const struct pst_wire_move *move;
	uint64_t posted, done; /* bytes */
};

/* Returns the length in bytes of the piece (one RDMA transfer) at offset `at` of the move. */
static uint32_t piece_len(const struct progress *p, uint64_t at)
{
	return (uint32_t)(p->move->len - at < SLOT_LEN ? p->move->len - at : SLOT_LEN);
}

static unsigned char *slot_of(const struct progress *p, uint64_t at)
{
	return p->channel->staging + at / SLOT_LEN % SLOTS * SLOT_LEN;
}

/* Starts the RDMA write or read of the next piece. */
static int piece_post(struct progress *p, struct pst_err *err)
{
	const struct pst_token *token = &p->move->remote->token;
	const uint64_t far = token->base + p->move->off + p->posted;
	const uint32_t len = piece_len(p, p->posted);
	unsigned char *mem = slot_of(p, p->posted);
	struct dc_peer *d = p->d;
	int ret = pst_wire_check(p->channel);

	if (ret)
		return pst_fail_errno(err, -ret, pst_why_from_errno(ret), "the move: %s",
				      strerror(-ret));
	if (p->move->op == PENSTOCK_READ)
		ret = pst_wire_stage(p->channel, p->move, p->posted, mem, len, true, err);
	if (ret)
		return ret;
	ibv_wr_start(d->ex);
	d->ex->wr_flags = IBV_SEND_SIGNALED;
	if (p->move->op == PENSTOCK_READ)
		ibv_wr_rdma_write(d->ex, token->dc.rkey, far);
	else
		ibv_wr_rdma_read(d->ex, token->dc.rkey, far);
	mlx5dv_wr_set_dc_addr(d->dc, d->way, token->dc.dct, d->key);
	ibv_wr_set_sge(d->ex, d->mr->lkey, (uintptr_t)mem, len);
	ret = ibv_wr_complete(d->ex);
	if (ret)
		return pst_fail_errno(err, EPIPE, PENSTOCK_WHY_IO_ERROR, "ibv_wr_complete: %s",
				      strerror(ret));
	p->posted += len;
	return 0;
}

/* Waits until the oldest piece in flight is complete. For a PUT, copies its bytes out of the
 * staging memory. */
static int piece_end(struct progress *p, struct pst_err *err)
{
	const uint32_t len = piece_len(p, p->done);
	struct ibv_wc wc;
	int ret = pst_card_queue_wait(&p->d->queue, p->channel, &wc, err);

	if (!ret && wc.status != IBV_WC_SUCCESS)
		ret = pst_card_status_fail(p->d->card.v, wc.status, err);
	if (!ret && p->move->op == PENSTOCK_WRITE)
		ret = pst_wire_stage(p->channel, p->move, p->done, slot_of(p, p->done), len, false,
				     err);
	p->done += len;
	return ret;
}

static int dc_move(struct pst_wire_channel *channel, struct pst_wire_peer *peer,
		   struct pst_wire_move *move, struct pst_err *err)
{
	struct progress p = {.channel = channel, .d = (struct dc_peer *)peer, .move = move};
	int ret = 0;

	while (!ret && p.done < move->len)
		ret = p.posted < move->len && p.posted - p.done < PST_WIRE_STAGING
			      ? piece_post(&p, err)
			      : piece_end(&p, err);
	return ret;
}

const struct pst_wire_server_ops pst_dc_server = {
	.kind = PST_TOKEN_DC_V1,
	.peer_size = sizeof(struct dc_peer),
	.admit = dc_admit,
	.leads_to = dc_leads_to,
	.connect = dc_connect,
	.move = dc_move,
	.close = dc_close,
};
