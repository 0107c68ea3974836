/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the function copy_peer of device cuda, which copies between two GPUs. core/ops.h
 * describes what it must do. */
#ifndef PST_DEVICE_CUDA_PEER_H
#define PST_DEVICE_CUDA_PEER_H

#include "core/ops.h"

int pst_cuda_copy_peer(struct penstock_device *dst, struct penstock_device *src,
		       const struct pst_rect *rect, struct pst_err *err);

#endif
