/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA context: retains the device's primary context when it is first needed, and makes it
 * current around every group of driver calls. All parts of device cuda call these functions.
 * Afterwards the calling thread must always have the context and the capture mode that it had
 * before.
 */
#include "device/cuda_context.h"

#include <sched.h>

#include "core/base/clock.h"

int pst_cuda_fail(struct pst_err *err, enum pst_cu_result rc, const char *what)
{
	enum penstock_why why =
		rc == PST_CU_OUT_OF_MEMORY ? PENSTOCK_WHY_NO_MEMORY : PENSTOCK_WHY_DEVICE_ERROR;

	return pst_fail_errno(err, pst_cuda_errno(rc), why, "%s: %s", what, pst_cuda_name(rc));
}

int pst_cuda_retain(struct pst_cuda_device *c, struct pst_cu_ctx **out, struct pst_err *err)
{
	struct pst_cu_ctx *ctx = atomic_load_explicit(&c->ctx, memory_order_acquire);
	enum pst_cu_result rc = PST_CU_OK;

	if (!ctx) {
		pthread_mutex_lock(&c->lock);
		ctx = atomic_load(&c->ctx);
		if (!ctx) {
			enum pst_cu_capture_mode mode = PST_CU_CAPTURE_RELAXED;

			pst_cuda_swap_capture_mode(c->api, &mode);
			rc = c->api->cuDevicePrimaryCtxRetain(&ctx, c->ordinal);
			pst_cuda_swap_capture_mode(c->api, &mode);
			if (rc == PST_CU_OK)
				atomic_store_explicit(&c->ctx, ctx, memory_order_release);
		}
		pthread_mutex_unlock(&c->lock);
	}
	*out = ctx;
	return rc == PST_CU_OK ? 0 : pst_cuda_fail(err, rc, "cuDevicePrimaryCtxRetain");
}

int pst_cuda_begin(struct pst_cuda_device *c, struct pst_cuda_scope *scope, struct pst_err *err)
{
	struct pst_cu_ctx *ctx;
	enum pst_cu_result rc;
	int ret = pst_cuda_retain(c, &ctx, err);

	if (ret)
		return ret;
	rc = pst_cuda_enter(c->api, ctx, scope);
	if (rc == PST_CU_OK)
		return 0;
	pst_cuda_leave(c->api, scope);
	return pst_cuda_fail(err, rc, "cuCtxPushCurrent");
}

enum pst_cu_result pst_cuda_event_await(const struct pst_cuda *api, struct pst_cu_event *event,
					uint64_t poll_ns)
{
	uint64_t until = pst_now_ns() + poll_ns;
	enum pst_cu_result rc;

	while ((rc = api->cuEventQuery(event)) == PST_CU_NOT_READY && pst_now_ns() < until)
		sched_yield(); /* let other threads run while polling */
	return rc == PST_CU_NOT_READY ? api->cuEventSynchronize(event) : rc;
}
