/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a test may ask of the stand-in CUDA driver beyond CUDA: failures on
 * demand, call counts, what is still live, the bytes behind a device address.
 * Tests look these up with dlsym in the library that PENSTOCK_LIBCUDA names.
 * The library itself must never call them.
 */
#ifndef PST_STANDIN_H
#define PST_STANDIN_H

#include <stddef.h>

#include "device/cuda_api.h"

/* Everything that somebody still has to give back. `lost` counts what was live
 * when its context went, which the real driver frees in silence.
 */
struct pst_standin_live {
	size_t allocs;	    /* device memory, of every kind but the next */
	size_t alloc_bytes; /* what cuMemGetInfo counts as used */
	size_t ipc_opens;   /* opened handles, each open counted */
	size_t host_allocs;
	size_t registrations;
	size_t streams; /* made by the caller */
	size_t events;
	size_t ctx_retains; /* of primary contexts */
	size_t ctxs;	    /* made by cuCtxCreate */
	size_t vmm_handles;
	size_t vmm_ranges; /* reservations */
	size_t lost;
	size_t ops_pending; /* stream operations not yet done */
};

/*
 * Replaces the failures: "NAME:N:RC" fails the N-th call from here of that
 * function (its symbol, cuMemAlloc_v2) with that CUresult, "N+" every one from
 * the N-th; NAME may be "*", any call, or "exec.SYMBOL": the operation fails
 * when the stream comes to it and breaks its context, as a bad address does.
 * Several are separated by commas; NULL or "" is none. -1: not understood.
 * PENSTOCK_STANDIN_FAIL is the list to start with.
 */
int pst_standin_fail(const char *spec);

/* Calls so far of a symbol, or of all with "*". */
unsigned long pst_standin_calls(const char *symbol);

void pst_standin_live(struct pst_standin_live *out);

/* The host's view of a device address, or NULL: for looking, not for storing. */
void *pst_standin_peek(pst_cu_ptr dev);

/* A random delay of 0 to max_us before each operation. */
void pst_standin_delay(unsigned int max_us, unsigned long seed);

/* The operations put on this stream are refused as if it were capturing. */
int pst_standin_capture(struct pst_cu_stream *stream, int on);

/* Breaks the device's primary context: from here every call returns rc. */
int pst_standin_break(int dev, enum pst_cu_result rc);

/* Why the last refused call of this thread was refused. */
const char *pst_standin_why(void);

#endif
