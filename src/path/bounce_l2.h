/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The L2 bounce: copies bytes from the page cache to a slot (pinned memory from which the GPU
 * copies) through a small buffer that stays in the CPU's L2 cache. The path "bounce" uses it for a
 * short read with the effort "fast" if no other request is in flight. bounce_l2.c explains why.
 */
#ifndef PST_PATH_BOUNCE_L2_H
#define PST_PATH_BOUNCE_L2_H

#include "core/ops.h"

/* Returns true if the chunk's bytes reach the device sooner by an L2 bounce (see bounce_l2.c) than
 * by the usual bounce through a slot alone. */
bool pst_bounce_l2_suits(const struct pst_chunk *chunk);
/* Starts the chunk. The member `start` of struct pst_path_ops describes the argument and the
 * result. */
int pst_bounce_l2_start(struct pst_chunk *chunk);

#endif
