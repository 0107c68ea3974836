/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of device cuda: a copier is two streams, one a direction, and a ring of
 * events. On its streams nothing may happen that the driver gives to a compute
 * queue, because a stream that waits for one of our requests may stand in front of
 * it there (tests/standin/README.md).
 */
#include <stdlib.h>

#include "device/cuda.h"

/* Host-to-device copies up to this length ride on the compute queue, but not as two
 * rows. */
#define SMALL_COPY 24576u
#define EVENTS 512 /* tickets of one copier in flight; a lane has half as many chunks */

struct pst_copier {
	struct pst_cuda_device *cuda;
	struct pst_cu_ctx *ctx;
	struct pst_cu_stream *in, *out;
	bool used_in, used_out; /* since the last mark */
	uint64_t marked, reached;
	struct pst_cu_event *events[EVENTS];
};

void pst_cuda_copier_close(struct pst_copier *cp)
{
	const struct pst_cuda *api = cp->cuda->api;
	bool in = pst_cuda_enter(api, cp->ctx);

	if (cp->in)
		api->cuStreamDestroy(cp->in);
	if (cp->out)
		api->cuStreamDestroy(cp->out);
	for (unsigned i = 0; i < EVENTS && cp->events[i]; i++)
		api->cuEventDestroy(cp->events[i]);
	pst_cuda_leave(api, in);
	free(cp);
}

int pst_cuda_copier_open(struct penstock_device *dev, struct pst_copier **out, struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	struct pst_copier *cp = calloc(1, sizeof(*cp));
	enum pst_cu_result rc;
	bool in;
	int ret;

	if (!cp)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a copier");
	cp->cuda = c;
	ret = pst_cuda_retain(c, &cp->ctx, err);
	if (ret) {
		free(cp);
		return ret;
	}
	in = pst_cuda_enter(c->api, cp->ctx);
	rc = c->api->cuStreamCreateWithPriority(&cp->in, PST_CU_STREAM_NON_BLOCKING, 0);
	if (rc == PST_CU_OK)
		rc = c->api->cuStreamCreateWithPriority(&cp->out, PST_CU_STREAM_NON_BLOCKING, 0);
	for (unsigned i = 0; i < EVENTS && rc == PST_CU_OK; i++)
		rc = c->api->cuEventCreate(&cp->events[i],
					   PST_CU_EVENT_NO_TIMING | PST_CU_EVENT_BLOCKING);
	pst_cuda_leave(c->api, in);
	if (rc != PST_CU_OK) {
		pst_cuda_copier_close(cp);
		return pst_cuda_fail(err, rc, "making copy streams");
	}
	*out = cp;
	return 0;
}

static enum pst_cu_result copy_2d(struct pst_copier *cp, const struct pst_rect *r, bool in)
{
	struct pst_cu_memcpy2d c = {
		.src_type = in ? PST_CU_MEMTYPE_HOST : PST_CU_MEMTYPE_DEVICE,
		.src_host = r->src,
		.src_dev = (uintptr_t)r->src,
		.src_pitch = r->src_pitch,
		.dst_type = in ? PST_CU_MEMTYPE_DEVICE : PST_CU_MEMTYPE_HOST,
		.dst_host = r->dst,
		.dst_dev = (uintptr_t)r->dst,
		.dst_pitch = r->dst_pitch,
		.width_bytes = r->row_len,
		.height = r->rows,
	};

	return cp->cuda->api->cuMemcpy2DAsync(&c, in ? cp->in : cp->out);
}

/* By the copy engine, whatever the length: see SMALL_COPY. An odd length goes as two
 * even ones that overlap; a single byte has no choice. */
static enum pst_cu_result copy_in_1d(struct pst_copier *cp, char *dst, const char *src,
				     uint64_t len)
{
	struct pst_rect two = {.rows = 2};
	enum pst_cu_result rc = PST_CU_OK;

	if (len > SMALL_COPY || len < 2)
		return cp->cuda->api->cuMemcpyHtoDAsync((uintptr_t)dst, src, len, cp->in);
	two.row_len = two.dst_pitch = two.src_pitch = len / 2;
	for (uint64_t at = 0; at <= len % 2 && rc == PST_CU_OK; at++) {
		two.dst = dst + at;
		two.src = src + at;
		rc = copy_2d(cp, &two, true);
	}
	return rc;
}

static int copy(struct pst_copier *cp, const struct pst_rect *r, bool in)
{
	const struct pst_cuda *api = cp->cuda->api;
	bool entered = pst_cuda_enter(api, cp->ctx);
	enum pst_cu_result rc;

	if (r->rows > 1 && !(r->dst_pitch == r->row_len && r->src_pitch == r->row_len))
		rc = copy_2d(cp, r, in);
	else if (in)
		rc = copy_in_1d(cp, r->dst, r->src, r->row_len * r->rows);
	else
		rc = api->cuMemcpyDtoHAsync(r->dst, (uintptr_t)r->src, r->row_len * r->rows,
					    cp->out);
	pst_cuda_leave(api, entered);
	if (in)
		cp->used_in = true;
	else
		cp->used_out = true;
	return pst_cuda_errno(rc);
}

int pst_cuda_copy_in(struct pst_copier *cp, const struct pst_rect *r)
{
	return copy(cp, r, true);
}

int pst_cuda_copy_out(struct pst_copier *cp, const struct pst_rect *r)
{
	return copy(cp, r, false);
}

int pst_cuda_mark(struct pst_copier *cp, uint64_t *ticket)
{
	const struct pst_cuda *api = cp->cuda->api;
	struct pst_cu_event *event = cp->events[(cp->marked + 1) % EVENTS];
	struct pst_cu_stream *stream = cp->used_in ? cp->in : cp->out;
	bool entered = pst_cuda_enter(api, cp->ctx);
	enum pst_cu_result rc = PST_CU_OK;

	if (cp->used_in && cp->used_out) { /* both directions: in waits for out */
		rc = api->cuEventRecord(event, cp->out);
		if (rc == PST_CU_OK)
			rc = api->cuStreamWaitEvent(cp->in, event, 0);
	}
	if (rc == PST_CU_OK)
		rc = api->cuEventRecord(event, stream);
	pst_cuda_leave(api, entered);
	cp->used_in = cp->used_out = false;
	if (rc != PST_CU_OK)
		return pst_cuda_errno(rc);
	*ticket = ++cp->marked;
	return 0;
}

int pst_cuda_reached(struct pst_copier *cp, uint64_t ticket)
{
	const struct pst_cuda *api = cp->cuda->api;
	enum pst_cu_result rc;
	bool entered;

	if (ticket <= cp->reached)
		return 1;
	entered = pst_cuda_enter(api, cp->ctx);
	rc = api->cuEventQuery(cp->events[ticket % EVENTS]);
	pst_cuda_leave(api, entered);
	if (rc == PST_CU_NOT_READY)
		return 0;
	if (rc != PST_CU_OK)
		return pst_cuda_errno(rc);
	cp->reached = ticket;
	return 1;
}

int pst_cuda_wait(struct pst_copier *cp, uint64_t ticket)
{
	const struct pst_cuda *api = cp->cuda->api;
	bool entered = pst_cuda_enter(api, cp->ctx);
	enum pst_cu_result rc = api->cuEventSynchronize(cp->events[ticket % EVENTS]);

	pst_cuda_leave(api, entered);
	return pst_cuda_errno(rc);
}

/* ---- device to device ---- */

static int open_peer(struct pst_cuda_device *c, struct pst_err *err)
{
	enum pst_cu_result rc = PST_CU_OK;

	if (c->peer && c->peer_done)
		return 0;
	if (!c->peer)
		rc = c->api->cuStreamCreateWithPriority(&c->peer, PST_CU_STREAM_NON_BLOCKING, 0);
	if (rc == PST_CU_OK && !c->peer_done)
		rc = c->api->cuEventCreate(&c->peer_done,
					   PST_CU_EVENT_NO_TIMING | PST_CU_EVENT_BLOCKING);
	return rc == PST_CU_OK ? 0 : pst_cuda_fail(err, rc, "making a stream for peer copies");
}

/* Asked for once a pair; copies work without it too, through host memory. */
static void open_access(struct pst_cuda_device *to, struct pst_cuda_device *from,
			struct pst_cu_ctx *from_ctx)
{
	unsigned long long bit = 1ull << (from->ordinal & 63);

	if (to == from || to->peers_open & bit)
		return;
	to->peers_open |= bit;
	to->api->cuCtxEnablePeerAccess(from_ctx, 0);
}

static enum pst_cu_result queue_rows(struct pst_cuda_device *to, struct pst_cu_ctx *to_ctx,
				     struct pst_cu_ctx *from_ctx, const struct pst_rect *r)
{
	struct pst_cu_memcpy2d c = {
		.src_type = PST_CU_MEMTYPE_UNIFIED,
		.src_dev = (uintptr_t)r->src,
		.src_pitch = r->src_pitch,
		.dst_type = PST_CU_MEMTYPE_UNIFIED,
		.dst_dev = (uintptr_t)r->dst,
		.dst_pitch = r->dst_pitch,
		.width_bytes = r->row_len,
		.height = r->rows,
	};

	if (r->rows == 1 || (r->src_pitch == r->row_len && r->dst_pitch == r->row_len))
		return to->api->cuMemcpyPeerAsync((uintptr_t)r->dst, to_ctx, (uintptr_t)r->src,
						  from_ctx, r->row_len * r->rows, to->peer);
	return to->api->cuMemcpy2DAsync(&c, to->peer);
}

int pst_cuda_copy_peer(struct penstock_device *dst, struct penstock_device *src,
		       const struct pst_rect *rect, struct pst_err *err)
{
	struct pst_cuda_device *to = dst->priv, *from = src->priv;
	struct pst_cu_ctx *to_ctx, *from_ctx;
	enum pst_cu_result rc = PST_CU_OK;
	bool entered;
	int ret;

	if (dst->ops != src->ops)
		return -EXDEV;
	ret = pst_cuda_retain(to, &to_ctx, err);
	if (!ret)
		ret = pst_cuda_retain(from, &from_ctx, err);
	if (ret)
		return ret;
	entered = pst_cuda_enter(to->api, to_ctx);
	pthread_mutex_lock(&to->lock);
	ret = open_peer(to, err);
	if (!ret) {
		open_access(to, from, from_ctx);
		rc = queue_rows(to, to_ctx, from_ctx, rect);
		if (rc == PST_CU_OK)
			rc = to->api->cuEventRecord(to->peer_done, to->peer);
		if (rc == PST_CU_OK)
			rc = to->api->cuEventSynchronize(to->peer_done);
	}
	pthread_mutex_unlock(&to->lock);
	pst_cuda_leave(to->api, entered);
	if (ret)
		return ret;
	return rc == PST_CU_OK ? 0 : pst_cuda_fail(err, rc, "copying between devices");
}
