/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control functions of the stand-in CUDA driver for tests: injected failures, call counts, live
 * objects, and the bytes at a device address. A test looks them up with dlsym in the library
 * that PENSTOCK_LIBCUDA names. The Penstock library must never call them.
 */
#ifndef PST_STANDIN_H
#define PST_STANDIN_H

#include <stddef.h>

#include "device/cuda_api.h"

/* Numbers of objects that are still live. `lost` counts the objects that were live when their
 * context was destroyed, which the real driver frees silently. */
struct pst_standin_live {
	/* Allocations of device memory of every kind; ipc_opens are counted separately. */
	size_t allocs;
	size_t alloc_bytes; /* Bytes that cuMemGetInfo counts as used. */
	size_t ipc_opens;   /* Opened IPC handles; each open counts. */
	size_t host_allocs;
	size_t registrations;
	size_t streams; /* Streams that the caller created. */
	size_t events;
	size_t ctx_retains; /* References to primary contexts. */
	size_t ctxs;	    /* Contexts created by cuCtxCreate. */
	size_t vmm_handles;
	size_t vmm_ranges; /* Address reservations. */
	size_t lost;
	size_t ops_pending; /* Stream operations that have not completed. */
};

/*
 * Replaces the list of injected failures. "NAME:N:RC" fails the N-th call from here of the
 * function NAME (its symbol, such as cuMemAlloc_v2) with CUresult RC. "N+" fails every call
 * from the N-th on. NAME "*" stands for any call. "exec.SYMBOL" fails the operation when the
 * stream executes it, and breaks its context as an invalid address does. Entries are separated
 * by commas; NULL or "" clears the list. Returns -1 if the list cannot be parsed. The initial
 * list is PENSTOCK_STANDIN_FAIL.
 */
int pst_standin_fail(const char *spec);

/* Returns the number of calls of a symbol so far, or of all symbols with "*". */
unsigned long pst_standin_calls(const char *symbol);

void pst_standin_live(struct pst_standin_live *out);

/* Returns the host address of a device address, or NULL. The caller may read there but not
 * write. */
void *pst_standin_peek(pst_cu_ptr dev);

/* Sets a random delay of 0 to max_us before each operation. */
void pst_standin_delay(unsigned int max_us, unsigned long seed);

/* Makes the stream refuse operations as if it were capturing. */
int pst_standin_capture(struct pst_cu_stream *stream, int on);

/* Breaks the device's primary context: from here on every call returns rc. */
int pst_standin_break(int dev, enum pst_cu_result rc);

/* Returns the reason why the last refused call of this thread was refused. */
const char *pst_standin_why(void);

#endif
