/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The L2 bounce: copies bytes from the page cache to a ring slot through a small buffer that
 * stays in the CPU's L2 cache. Path bounce calls it for a lone, short read that shall be fast;
 * bounce_l2.c explains why.
 */
#ifndef PST_PATH_BOUNCE_L2_H
#define PST_PATH_BOUNCE_L2_H

#include "core/ops.h"

/* Returns true if the chunk reaches the device sooner by an L2 bounce than by a plain one. */
bool pst_bounce_l2_suits(const struct pst_chunk *chunk);
/* Starts the chunk; same contract as start() of struct pst_path_ops. */
int pst_bounce_l2_start(struct pst_chunk *chunk);

#endif
