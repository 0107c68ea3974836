/* SPDX-License-Identifier: Apache-2.0 */
/* The few calls that the drop-in makes to the CUDA driver itself. */
#ifndef SHIM_CUDA_H
#define SHIM_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shim_memory {
	int ordinal;	 /* number of the GPU, -1: host memory */
	uintptr_t start; /* first address of the allocation */
	size_t len;	 /* length of the allocation */
};
/* Queries the driver for the allocation at an address. Returns 0 or a code. */
int shim_cuda_memory(const void *ptr, struct shim_memory *out);
/* Queries whether a stream is being captured. Returns 0, or a code if the stream does not exist
 * or no context is current. */
int shim_cuda_stream(void *stream, bool *capturing);
/* Whether the stream has failed, so that work queued on it will never run. */
bool shim_cuda_stream_broken(void *stream);
/* Waits for all work on a stream, NULL for the legacy default stream. Returns a CUresult. */
int shim_cuda_wait(void *stream);
/* Returns the number of GPUs. */
int shim_cuda_count(void);
/* Writes the 16 bytes of a GPU's UUID, or returns false. */
bool shim_cuda_uuid(int ordinal, char *uuid);
/* Resets the lock in the child of a fork. */
void shim_cuda_forked(void);

#endif
