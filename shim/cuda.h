/* SPDX-License-Identifier: Apache-2.0 */
/* The few functions that call the CUDA driver directly instead of through the library. */
#ifndef SHIM_CUDA_H
#define SHIM_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shim_memory {
	int ordinal;	 /* index of the GPU, -1 if the address is host memory */
	uintptr_t start; /* first address of the allocation */
	size_t len;	 /* length of the allocation */
};
/* Queries the CUDA driver for the allocation that contains an address. Returns 0 or a cuFile
 * code. */
int shim_cuda_memory(const void *ptr, struct shim_memory *out);
/* Queries whether a stream is being captured. Returns 0, or a cuFile code if the stream does not
 * exist or no context is current. */
int shim_cuda_stream(void *stream, bool *capturing);
/* Returns the index of the GPU that a stream belongs to, or -1 if the driver cannot tell it. */
int shim_cuda_stream_ordinal(void *stream);
/* Returns whether all work that was queued on a stream has completed. Returns false if the stream
 * is being captured, because a query would make the capture fail. */
bool shim_cuda_stream_idle(void *stream);
/* Returns whether the stream has failed. The work that is queued on a failed stream never runs. */
bool shim_cuda_stream_broken(void *stream);
/* Waits for all work on a stream. NULL means the legacy default stream. Returns a CUresult. */
int shim_cuda_wait(void *stream);
/* Returns the number of GPUs. */
int shim_cuda_count(void);
/* Writes the 16 bytes of a GPU's UUID to `uuid`. Returns false if the driver cannot tell the
 * UUID. */
bool shim_cuda_uuid(int ordinal, char *uuid);
/* Resets this file's lock in the child of a fork. */
void shim_cuda_forked(void);

#endif
