/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one GPU of device cuda, with its CUDA context: see cuda_context.c. Only the parts of
 * device cuda (cuda.c, cuda_*.c) may include this header.
 */
#ifndef PST_DEVICE_CUDA_CONTEXT_H
#define PST_DEVICE_CUDA_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/ops.h"
#include "device/alloc_set.h"
#include "device/cuda_api.h"

/* Maximum number of open imports: memory of other processes that this process has opened. It is
 * large because `penstock serve` imports the memory of each client once for each of the server's 8
 * channels. */
#define PST_CUDA_IMPORTS_MAX 4096
/* Value of CU_DEVICE_ATTRIBUTE_MAX_PITCH: the driver refuses copies with a larger pitch. */
#define PST_CUDA_PITCH_MAX 2147483647u

/* Maximum length in bytes of a copy to the device that the driver executes in a hardware queue for
 * compute work (tests/standin/README.md). The library makes its own copies in other hardware
 * queues. So if an application makes a copy of this length on a stream that waits, this copy does
 * not delay the library's copies. */
#define PST_CUDA_COMPUTE_COPY 24576u

struct pst_cuda_device {
	const struct pst_cuda *api;
	int ordinal;
	unsigned char uuid[16];
	/* Guards the table `imports`, and the members that are set when they are first needed. */
	pthread_mutex_t lock;
	/* A thread holds this lock during a copy from another device, so that only one such copy
	 * runs at a time. A thread never takes it while it holds `lock`. */
	pthread_mutex_t peer_lock;
	_Atomic(struct pst_cu_ctx *) ctx; /* primary context; NULL until it is retained */
	struct pst_alloc_set allocs;	  /* memory of cuda_alloc; its imports are in `imports` */
	/* State of cuda_stream.c; all members are 0 until they are needed. `scratch` is scratch
	 * memory, and scratch_turn selects the byte of it that the next wait of a stream writes.
	 * `queried` is an event that is only queried. The module has the kernels `counter` and
	 * `kernel` (which copies). */
	pst_cu_ptr scratch;
	_Atomic unsigned scratch_turn;
	_Atomic(struct pst_cu_event *) queried;
	struct pst_cu_module *module;
	struct pst_cu_function *counter; /* set before `kernel` */
	_Atomic(struct pst_cu_function *) kernel;
	/* Stream and event for copies between devices. A thread uses them only while it holds
	 * peer_lock. NULL until they are needed. */
	struct pst_cu_stream *peer;
	struct pst_cu_event *peer_done;
	/* Bit i is set if the library has requested access to the memory of GPU i. */
	unsigned long long peers_open;
	/* State of cuda_sum.c. A thread uses it only while it holds sum_lock, which it never takes
	 * while it holds `lock`. NULL until it is needed. */
	pthread_mutex_t sum_lock;
	struct pst_cuda_sums *sums;
	struct {
		/* Open imports of other processes' memory. `base` is the address of the imported
		 * allocation, and `ptr` the address that the importing caller got. `ptr` is 0 if
		 * the entry is free. */
		pst_cu_ptr base, ptr;
	} imports[PST_CUDA_IMPORTS_MAX];
};

/* The state with which pst_cuda_leave restores the thread's context and capture mode. */
struct pst_cuda_scope {
	bool pushed;
	enum pst_cu_capture_mode mode;
};

/* Sets `err` to the driver's result `rc` and the failed call `what`. Returns the
 * matching -errno. */
int pst_cuda_fail(struct pst_err *err, enum pst_cu_result rc, const char *what);

/* Exchanges the thread's capture mode and *mode. */
static inline void pst_cuda_swap_capture_mode(const struct pst_cuda *api,
					      enum pst_cu_capture_mode *mode)
{
	if (api->cuThreadExchangeStreamCaptureMode)
		api->cuThreadExchangeStreamCaptureMode(mode);
}

/*
 * Makes `ctx` the current context, which costs little if it is current already. After an error
 * `ctx` is not current. Then the caller must make no driver call, but must still call
 * pst_cuda_leave.
 *
 * Until pst_cuda_leave the thread is in relaxed capture mode, so that the library's calls do not
 * invalidate a graph capture of the application. In a thread's default mode the driver refuses an
 * event query, a registration or an allocation while any thread captures a graph, and invalidates
 * this capture. Relaxed mode is safe, because the library queues only operations of stream-ordered
 * requests on a stream that is being captured. Switching the mode takes 13 ns.
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

/* Sets *out to the device's primary context. The first call retains the context until the
 * device closes. */
int pst_cuda_retain(struct pst_cuda_device *c, struct pst_cu_ctx **out, struct pst_err *err);
/* Retains the primary context and makes it current with pst_cuda_enter. After an error the
 * caller must not call pst_cuda_leave. */
int pst_cuda_begin(struct pst_cuda_device *c, struct pst_cuda_scope *scope, struct pst_err *err);

/* Waits for an event that was made with PST_CU_EVENT_BLOCKING: polls for `poll_ns`, then sleeps. */
enum pst_cu_result pst_cuda_event_await(const struct pst_cuda *api, struct pst_cu_event *event,
					uint64_t poll_ns);

#endif
