/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the function table of device cuda: memory of an NVIDIA GPU. */
#ifndef PST_DEVICE_CUDA_H
#define PST_DEVICE_CUDA_H

#include "core/ops.h"

extern const struct pst_device_ops pst_device_cuda;

#endif
