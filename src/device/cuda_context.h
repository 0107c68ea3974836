/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one device cuda, and its CUDA context: see cuda_context.c. Only the parts of
 * device cuda (cuda.c, cuda_*.c) may include this header.
 */
#ifndef PST_DEVICE_CUDA_CONTEXT_H
#define PST_DEVICE_CUDA_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/ops.h"
#include "device/cuda_api.h"

#define PST_CUDA_IMPORTS_MAX 256
/* CU_DEVICE_ATTRIBUTE_MAX_PITCH: the driver refuses rows that are further apart. */
#define PST_CUDA_PITCH_MAX 2147483647u

struct pst_cuda_device {
	const struct pst_cuda *api;
	int ordinal;
	unsigned char uuid[16];
	pthread_mutex_t lock; /* Protects lazy initialisation and the table of imports. */
	/* One copy between devices at a time; never taken inside lock. */
	pthread_mutex_t peer_lock;
	_Atomic(struct pst_cu_ctx *) ctx; /* The primary context, once retained. */
	pst_cu_ptr scratch;		  /* Used by cuda_stream.c; 0 until needed. */
	_Atomic unsigned scratch_turn;
	/* For copies between devices, under peer_lock; NULL until needed. */
	struct pst_cu_stream *peer;
	struct pst_cu_event *peer_done;
	unsigned long long peers_open; /* Bit i: access to ordinal i has been requested. */
	struct {
		pst_cu_ptr base, ptr; /* Address opened and address returned; ptr 0: entry free. */
	} imports[PST_CUDA_IMPORTS_MAX];
};

/* The state that pst_cuda_leave restores on this thread. */
struct pst_cuda_scope {
	bool pushed;
	enum pst_cu_capture_mode mode;
};

/* Sets `err` to the driver's result and the call that failed; returns the matching -errno. */
int pst_cuda_fail(struct pst_err *err, enum pst_cu_result rc, const char *what);

/* Swaps the thread's capture mode with *mode. */
static inline void pst_cuda_swap_capture_mode(const struct pst_cuda *api,
					      enum pst_cu_capture_mode *mode)
{
	if (api->cuThreadExchangeStreamCaptureMode)
		api->cuThreadExchangeStreamCaptureMode(mode);
}

/*
 * Makes `ctx` current; cheap if it is already. After an error another context is current: the
 * caller must make no driver call, but must still call pst_cuda_leave.
 *
 * Until pst_cuda_leave the thread is in relaxed capture mode, so that a graph capture of the
 * application survives the library's calls. In a thread's default mode the driver refuses an
 * event query, a registration or an allocation while any thread captures a graph, and invalidates
 * that capture. The library's calls touch no capturing stream. The switch costs 13 ns.
 */
static inline enum pst_cu_result pst_cuda_enter(const struct pst_cuda *api, struct pst_cu_ctx *ctx,
						struct pst_cuda_scope *scope)
{
	struct pst_cu_ctx *current = NULL;
	enum pst_cu_result rc;

	scope->pushed = false;
	scope->mode = PST_CU_CAPTURE_RELAXED;
	pst_cuda_swap_capture_mode(api, &scope->mode);
	if (api->cuCtxGetCurrent(&current) == PST_CU_OK && current == ctx)
		return PST_CU_OK;
	rc = api->cuCtxPushCurrent(ctx);
	scope->pushed = rc == PST_CU_OK;
	return rc;
}

static inline void pst_cuda_leave(const struct pst_cuda *api, struct pst_cuda_scope *scope)
{
	struct pst_cu_ctx *ctx;

	if (scope->pushed)
		api->cuCtxPopCurrent(&ctx);
	pst_cuda_swap_capture_mode(api, &scope->mode);
}

/* Returns the primary context in *out. The first call retains it until the device closes. */
int pst_cuda_retain(struct pst_cuda_device *c, struct pst_cu_ctx **out, struct pst_err *err);
/* Retains and enters the primary context. After an error the caller must not call leave. */
int pst_cuda_begin(struct pst_cuda_device *c, struct pst_cuda_scope *scope, struct pst_err *err);

#endif
