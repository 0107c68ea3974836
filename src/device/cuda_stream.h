/* SPDX-License-Identifier: Apache-2.0 */
/* The stream functions of device cuda's table. core/ops.h has their contracts. */
#ifndef PST_DEVICE_CUDA_STREAM_H
#define PST_DEVICE_CUDA_STREAM_H

#include "core/ops.h"

int pst_cuda_semaphores_alloc(struct penstock_device *dev, size_t count, uint64_t **out,
			      struct pst_err *err);
void pst_cuda_semaphores_free(struct penstock_device *dev, uint64_t *semaphores);
int pst_cuda_stream_write(struct penstock_device *dev, void *stream, uint64_t *semaphore,
			  uint64_t value, struct pst_err *err);
int pst_cuda_stream_wait(struct penstock_device *dev, void *stream, uint64_t *semaphore,
			 uint64_t value, struct pst_err *err);

#endif
