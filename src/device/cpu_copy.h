/* SPDX-License-Identifier: Apache-2.0 */
/* Copy functions for devices whose memory the CPU can access: the CPU copies. core/ops.h describes
 * what each function must do. */
#ifndef PST_DEVICE_CPU_COPY_H
#define PST_DEVICE_CPU_COPY_H

#include "core/ops.h"

int pst_cpu_copier_open(struct penstock_device *dev, unsigned tickets, struct pst_copier **out,
			struct pst_err *err);
void pst_cpu_copier_close(struct pst_copier *copier);
int pst_cpu_copy(struct pst_copier *copier, const struct pst_rect *rect);
int pst_cpu_record(struct pst_copier *copier, uint64_t *ticket);
int pst_cpu_query(struct pst_copier *copier, uint64_t ticket);
int pst_cpu_wait(struct pst_copier *copier, uint64_t ticket);

#endif
