/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes from the page cache to a slot without leaving them in a processor's cache, for the
 * lone, not long read that is to be fast: see past.c. Called by path bounce.
 */
#ifndef PST_PATH_PAST_H
#define PST_PATH_PAST_H

#include "core/ops.h"

/* Would the chunk be on the device sooner this way? */
bool pst_past_suits(const struct pst_chunk *chunk);
/* As a path's start(). */
int pst_past_start(struct pst_chunk *chunk);

#endif
