/* SPDX-License-Identifier: Apache-2.0 */
/* The paths "staged" and "bounce", which pass the bytes through a slot (pinned staging memory): see
 * slotted.c. */
#ifndef PST_PATH_SLOTTED_H
#define PST_PATH_SLOTTED_H

#include "core/ops.h"

extern const struct pst_path_ops pst_path_staged;
extern const struct pst_path_ops pst_path_bounce;

/* Starts a chunk of the path "bounce" without the extra copy of bounce_l2.c: host memory without a
 * slot, other memory through a slot. The function adds `flags` to the flags of the transfer. The
 * path "rdma" calls it for writes. */
int pst_bounce_start_plain(struct pst_chunk *chunk, unsigned flags);

#endif
