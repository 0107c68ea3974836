/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions by which tests control the stand-in CUDA driver: injected failures, counts of calls,
 * counts of live objects, and the bytes at a device address. A test looks them up with dlsym in
 * the library that PENSTOCK_LIBCUDA names. The Penstock library must never call them.
 */
#ifndef PST_STANDIN_H
#define PST_STANDIN_H

#include <stddef.h>

#include "device/cuda_api.h"

/* Numbers of objects that still exist. `lost` counts the objects that still existed when their
 * context was destroyed. The real driver frees such objects silently. */
struct pst_standin_live {
	/* All allocations of device memory, except the opened IPC handles, which ipc_opens
	 * counts. */
	size_t allocs;
	size_t alloc_bytes; /* Bytes of device memory that cuMemGetInfo reports as used. */
	size_t ipc_opens;   /* Number of opens of IPC handles that are not closed yet. */
	size_t host_allocs;
	size_t registrations;
	size_t streams; /* Number of streams that the program has created. */
	size_t events;
	size_t modules;
	size_t graphs;
	size_t graph_execs;
	size_t user_objects;
	size_t ctx_retains; /* Number of references to primary contexts. */
	size_t ctxs;	    /* Number of contexts that cuCtxCreate has created. */
	size_t vmm_handles;
	size_t vmm_ranges; /* Number of address reservations. */
	size_t lost;
	size_t ops_pending; /* Number of stream operations that have not completed. */
};

/*
 * Replaces the list of injected failures. "NAME:N:RC" makes the N-th call of the function NAME,
 * counted from this moment, fail with the CUresult RC. NAME is a symbol, such as cuMemAlloc_v2, or
 * "*" for any function. "N+" instead of N makes every call from the N-th on fail. If NAME is
 * "exec.SYMBOL", the call succeeds; its operation then fails when the stream executes it, and
 * breaks its context as an invalid address does. Commas separate the entries; NULL or "" clears the
 * list. Returns -1 if the list cannot be parsed. The initial list is the environment variable
 * PENSTOCK_STANDIN_FAIL.
 */
int pst_standin_fail(const char *spec);

/* Returns the number of calls of a symbol so far. "*" means the calls of all symbols. */
unsigned long pst_standin_calls(const char *symbol);

void pst_standin_live(struct pst_standin_live *out);

/* Returns the address at which the CPU can read the bytes of a device address, or NULL if the
 * device address is unknown. The caller must not write there. */
void *pst_standin_peek(pst_cu_ptr dev);

/* Makes each operation start after a random delay of 0 to `max_us` microseconds. */
void pst_standin_delay(unsigned int max_us, unsigned long seed);

/* If `on` is not 0, makes the stream refuse operations as if it were being captured. If `on` is
 * 0, makes it accept operations again. */
int pst_standin_capture(struct pst_cu_stream *stream, int on);

/* Breaks the device's primary context. From then on, every call in this context returns `rc`. */
int pst_standin_break(int dev, enum pst_cu_result rc);

/* Returns the reason why the stand-in refused the last refused call of this thread. */
const char *pst_standin_why(void);

#endif
