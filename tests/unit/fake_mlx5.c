/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA's dynamically connected transport for the fake network card of fake_card.h. This file
 * replaces the functions of libmlx5: the linker replaces pst_mlx5_get by the function below. A
 * request names a target by its number, and succeeds only if it has the target's key.
 */
#include "fake_inside.h"

#include "wire/mlx5.h"

/* A target (DCT) or an initiator (DCI). */
struct dc_qp {
	/* contains the queue pair; must be the first member, because the functions below cast its
	 * address */
	struct ibv_qp_ex ex;
	struct mlx5dv_qp_ex dc;
	struct dc_qp *next;
	bool target;
	uint64_t key; /* access key of a target; not used by an initiator */
	/* the members below are the request that an initiator is composing */
	bool write, composing;
	uint32_t far_rkey, far_dct, lkey, len;
	uint64_t far_address, far_key, address;
};

static struct dc_qp *dcs;

static struct dc_qp *dc_find(const struct ibv_qp *qp)
{
	for (struct dc_qp *d = dcs; d; d = d->next)
		if (&d->ex.qp_base == qp)
			return d;
	return NULL;
}

/* ---- states ---- */

static bool dc_change(struct ibv_qp *qp, const struct ibv_qp_attr *attr, int mask, int *ret)
{
	const int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	const int receive = IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_AV;
	struct dc_qp *d = dc_find(qp);

	if (!d)
		return false;
	*ret = fails(EINVAL) ? EINVAL : 0;
	if (*ret)
		return true;
	if (attr->qp_state == IBV_QPS_INIT) {
		assert(qp->state == IBV_QPS_RESET && attr->port_num == FAKE_PORT);
		assert(mask == (d->target ? init | IBV_QP_ACCESS_FLAGS : init));
	} else if (attr->qp_state == IBV_QPS_RTR) {
		assert(qp->state == IBV_QPS_INIT && attr->path_mtu == IBV_MTU_4096);
		assert(mask == (d->target ? receive | IBV_QP_MIN_RNR_TIMER : receive));
		/* A target gets its number only in this state. */
		if (d->target)
			qp->qp_num = qpn_next();
	} else {
		assert(!d->target && attr->qp_state == IBV_QPS_RTS && qp->state == IBV_QPS_RTR);
	}
	qp->state = attr->qp_state;
	return true;
}

static bool dc_destroy(struct ibv_qp *qp, int *ret)
{
	struct dc_qp *d = dc_find(qp), **at = &dcs;

	if (!d)
		return false;
	*ret = 0;
	while (*at != d)
		at = &(*at)->next;
	*at = d->next;
	object_free(d);
	return true;
}

/* ---- requests ---- */

static void wr_start(struct ibv_qp_ex *ex)
{
	struct dc_qp *d = (struct dc_qp *)ex;

	assert(!d->composing && !d->target);
	d->composing = true;
}

static void wr_set(struct ibv_qp_ex *ex, bool write, uint32_t rkey, uint64_t address)
{
	struct dc_qp *d = (struct dc_qp *)ex;

	assert(d->composing);
	d->write = write;
	d->far_rkey = rkey;
	d->far_address = address;
}

static void wr_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address)
{
	wr_set(ex, true, rkey, address);
}

static void wr_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address)
{
	wr_set(ex, false, rkey, address);
}

static void wr_far(struct mlx5dv_qp_ex *dc, struct ibv_ah *ah, uint32_t dct, uint64_t key)
{
	struct dc_qp *d = (struct dc_qp *)((char *)dc - offsetof(struct dc_qp, dc));

	assert(d->composing && ah);
	d->far_dct = dct;
	d->far_key = key;
}

static void wr_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t address, uint32_t len)
{
	struct dc_qp *d = (struct dc_qp *)ex;

	assert(d->composing);
	d->lkey = lkey;
	d->address = address;
	d->len = len;
}

/* Carries out the request that initiator `d` has composed. */
static enum ibv_wc_status dc_transfer(const struct dc_qp *d)
{
	char *mine = memory_find(d->ex.qp_base.pd, d->lkey, d->address, d->len,
				 d->write ? 0 : IBV_ACCESS_LOCAL_WRITE);
	struct dc_qp *far = dcs;
	char *theirs;

	assert(mine);
	if (d->ex.qp_base.state != IBV_QPS_RTS)
		return IBV_WC_WR_FLUSH_ERR;
	while (far && !(far->target && far->ex.qp_base.qp_num == d->far_dct &&
			far->ex.qp_base.state == IBV_QPS_RTR))
		far = far->next;
	if (!far)
		return IBV_WC_RETRY_EXC_ERR;
	if (far->key != d->far_key)
		return IBV_WC_REM_INV_REQ_ERR;
	theirs = memory_find(far->ex.qp_base.pd, d->far_rkey, d->far_address, d->len,
			     d->write ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ);
	if (!theirs)
		return IBV_WC_REM_ACCESS_ERR;
	memcpy(d->write ? theirs : mine, d->write ? mine : theirs, d->len);
	fake_card.transfers++;
	return IBV_WC_SUCCESS;
}

static int dc_post(struct dc_qp *d)
{
	enum ibv_wc_status status;

	assert(d->composing && d->ex.wr_flags == IBV_SEND_SIGNALED);
	d->composing = false;
	if (fails(ENOMEM))
		return ENOMEM;
	if (fake_card.hold)
		return 0;
	status = dc_transfer(d);
	complete(d->ex.qp_base.send_cq, (struct ibv_wc){.status = status});
	if (status != IBV_WC_SUCCESS)
		d->ex.qp_base.state = IBV_QPS_ERR;
	return 0;
}

static int wr_complete(struct ibv_qp_ex *ex)
{
	LOCKED(int, dc_post((struct dc_qp *)ex));
}

/* ---- the functions of the libraries ---- */

static struct ibv_qp_ex *dc_extended(struct ibv_qp *qp)
{
	return (struct ibv_qp_ex *)qp;
}

static const struct fake_dc functions = {dc_change, dc_destroy, dc_extended};

static bool is_supported(struct ibv_device *device)
{
	(void)device;
	return !fake_card.plain;
}

static struct ibv_qp *dc_new(const struct ibv_qp_init_attr_ex *attr,
			     const struct mlx5dv_qp_init_attr *dc)
{
	struct dc_qp *d;

	assert(attr->qp_type == IBV_QPT_DRIVER && attr->pd && attr->send_cq);
	assert(dc->comp_mask == MLX5DV_QP_INIT_ATTR_MASK_DC);
	d = object_new(sizeof(*d));
	if (!d)
		return NULL;
	fake_dc = &functions;
	d->target = dc->dc_init_attr.dc_type == MLX5DV_DCTYPE_DCT;
	d->key = dc->dc_init_attr.dct_access_key;
	assert(d->target ? attr->srq != NULL : attr->cap.max_send_wr > 0);
	d->ex.qp_base.context = &fake_context;
	d->ex.qp_base.pd = attr->pd;
	d->ex.qp_base.send_cq = attr->send_cq;
	d->ex.wr_start = wr_start;
	d->ex.wr_rdma_write = wr_write;
	d->ex.wr_rdma_read = wr_read;
	d->ex.wr_set_sge = wr_sge;
	d->ex.wr_complete = wr_complete;
	d->dc.wr_set_dc_addr = wr_far;
	d->next = dcs;
	dcs = d;
	return &d->ex.qp_base;
}

static struct ibv_qp *create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
				struct mlx5dv_qp_init_attr *dc)
{
	assert(context == &fake_context);
	LOCKED(struct ibv_qp *, dc_new(attr, dc));
}

static struct mlx5dv_qp_ex *qp_ex_of(struct ibv_qp_ex *ex)
{
	return &((struct dc_qp *)ex)->dc;
}

const struct pst_mlx5 *__wrap_pst_mlx5_get(struct pst_err *err);
const struct pst_mlx5 *__wrap_pst_mlx5_get(struct pst_err *err)
{
	static const struct pst_mlx5 table = {is_supported, create_qp, qp_ex_of};

	(void)err;
	return &table;
}
