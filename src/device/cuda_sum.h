/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the function `sum` of device cuda, which computes checksums. core/ops.h describes what
 * it must do. */
#ifndef PST_DEVICE_CUDA_SUM_H
#define PST_DEVICE_CUDA_SUM_H

#include "device/cuda_context.h"

int pst_cuda_sum(struct penstock_device *dev, enum pst_sum_kind kind, struct pst_sum *sums,
		 unsigned count, bool unless_waiting, struct pst_err *err);
/* Frees the driver's objects that pst_cuda_sum has made. The caller has made the device's context
 * current, and frees c->sums afterwards. */
void pst_cuda_sum_close(struct pst_cuda_device *c);

#endif
