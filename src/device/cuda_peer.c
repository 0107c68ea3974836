/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between two GPUs. Each GPU receives one copy at a time, and the calling thread waits for
 * the copy. Called by penstock_copy, and by processes that load a model together. This code must
 * never run on a worker thread (lane) of the library.
 */
#include "core/base/device_sync.h"
#include "device/cuda_peer.h"
#include "device/cuda_context.h"

/* These constants set how long the calling thread polls for the end of a copy before it sleeps. A
 * copy of 64 MiB from another GPU takes 0.2 ms (349 GB/s between two H200), but a sleeping thread
 * takes 0.1 to 0.3 ms to wake up. So the thread polls for POLL_MIN_NS, plus the time that the copy
 * takes at BYTES_PER_NS_POLLED bytes per nanosecond, less than half the measured speed. */
#define BYTES_PER_NS_POLLED 150u
#define POLL_MIN_NS 50000u

static int peer_stream_open(struct penstock_device *dev, struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	enum pst_cu_result rc = PST_CU_OK;

	if (c->peer && c->peer_done)
		return 0;
	if (!c->peer) {
		pst_device_sync_await(dev);
		rc = c->api->cuStreamCreateWithPriority(&c->peer, PST_CU_STREAM_NON_BLOCKING, 0);
		pst_device_sync_end(dev);
	}
	if (rc == PST_CU_OK && !c->peer_done)
		rc = c->api->cuEventCreate(&c->peer_done,
					   PST_CU_EVENT_NO_TIMING | PST_CU_EVENT_BLOCKING);
	return rc == PST_CU_OK ? 0 : pst_cuda_fail(err, rc, "making a stream for peer copies");
}

/* Requests access to the memory of `from`, once for each pair of GPUs. Without access the driver
 * copies through host memory. */
static void peer_access_open(struct pst_cuda_device *to, struct pst_cuda_device *from,
			     struct pst_cu_ctx *from_ctx)
{
	unsigned long long bit = 1ull << (from->ordinal & 63);

	if (to == from || to->peers_open & bit)
		return;
	to->peers_open |= bit;
	to->api->cuCtxEnablePeerAccess(from_ctx, 0);
}

static enum pst_cu_result peer_copy_queue(struct pst_cuda_device *to, struct pst_cu_ctx *to_ctx,
					  struct pst_cu_ctx *from_ctx, const struct pst_rect *r)
{
	const struct pst_cuda *api = to->api;
	pst_cu_ptr dst = (uintptr_t)r->dst, src = (uintptr_t)r->src;
	enum pst_cu_result rc = PST_CU_OK;
	struct pst_cu_memcpy2d c = {
		.src_type = PST_CU_MEMTYPE_UNIFIED,
		.src_dev = src,
		.src_pitch = r->src_pitch,
		.dst_type = PST_CU_MEMTYPE_UNIFIED,
		.dst_dev = dst,
		.dst_pitch = r->dst_pitch,
		.width_bytes = r->row_len,
		.height = r->rows,
	};

	if (r->rows == 1 || (r->src_pitch == r->row_len && r->dst_pitch == r->row_len))
		return api->cuMemcpyPeerAsync(dst, to_ctx, src, from_ctx, r->row_len * r->rows,
					      to->peer);
	if (r->dst_pitch <= PST_CUDA_PITCH_MAX && r->src_pitch <= PST_CUDA_PITCH_MAX)
		return api->cuMemcpy2DAsync(&c, to->peer);
	for (uint64_t row = 0; row < r->rows && rc == PST_CU_OK; row++)
		rc = api->cuMemcpyPeerAsync(dst + row * r->dst_pitch, to_ctx,
					    src + row * r->src_pitch, from_ctx, r->row_len,
					    to->peer);
	return rc;
}

/* Makes the copy and waits for it. The caller has made the context of `to` current and holds its
 * peer_lock. */
static int peer_copy_run(struct pst_cuda_device *to, struct pst_cu_ctx *to_ctx,
			 struct pst_cuda_device *from, struct pst_cu_ctx *from_ctx,
			 const struct pst_rect *rect, struct pst_err *err)
{
	enum pst_cu_result rc;

	peer_access_open(to, from, from_ctx);
	rc = peer_copy_queue(to, to_ctx, from_ctx, rect);
	if (rc == PST_CU_OK)
		rc = to->api->cuEventRecord(to->peer_done, to->peer);
	if (rc == PST_CU_OK)
		rc = pst_cuda_event_await(to->api, to->peer_done,
					  POLL_MIN_NS +
						  rect->row_len * rect->rows / BYTES_PER_NS_POLLED);
	if (rc == PST_CU_OK)
		return 0;
	to->api->cuStreamSynchronize(to->peer); /* some rows may still be in flight */
	return pst_cuda_fail(err, rc, "copying between devices");
}

int pst_cuda_copy_peer(struct penstock_device *dst, struct penstock_device *src,
		       const struct pst_rect *rect, struct pst_err *err)
{
	struct pst_cuda_device *to = dst->priv, *from = src->priv;
	struct pst_cu_ctx *to_ctx, *from_ctx;
	struct pst_cuda_scope entered;
	int ret;

	if (dst->ops != src->ops)
		return -EXDEV;
	ret = pst_cuda_retain(to, &to_ctx, err);
	if (!ret)
		ret = pst_cuda_retain(from, &from_ctx, err);
	if (!ret)
		ret = pst_cuda_begin(to, &entered, err);
	if (ret)
		return ret;
	pthread_mutex_lock(&to->peer_lock);
	ret = peer_stream_open(dst, err);
	if (!ret)
		ret = peer_copy_run(to, to_ctx, from, from_ctx, rect, err);
	pthread_mutex_unlock(&to->peer_lock);
	pst_cuda_leave(to->api, &entered);
	return ret;
}
