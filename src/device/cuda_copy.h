/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of device cuda that copy between host and GPU. core/ops.h describes what each of
 * them must do. */
#ifndef PST_DEVICE_CUDA_COPY_H
#define PST_DEVICE_CUDA_COPY_H

#include "core/ops.h"

int pst_cuda_copier_open(struct penstock_device *dev, unsigned tickets, struct pst_copier **out,
			 struct pst_err *err);
void pst_cuda_copier_close(struct pst_copier *copier);
int pst_cuda_copy_in(struct pst_copier *copier, const struct pst_rect *rect);
int pst_cuda_copy_out(struct pst_copier *copier, const struct pst_rect *rect);
int pst_cuda_record(struct pst_copier *copier, uint64_t *ticket);
int pst_cuda_query(struct pst_copier *copier, uint64_t ticket);
int pst_cuda_wait(struct pst_copier *copier, uint64_t ticket);

#endif
