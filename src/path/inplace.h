/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving a chunk between the drive and its final place by O_DIRECT: what p2p and
 * odirect share. Only the address that the pages are pinned at, and the reading of
 * errors, differ.
 */
#ifndef PST_PATH_INPLACE_H
#define PST_PATH_INPLACE_H

#include "core/ops.h"

/* The first question of each path that goes to the drive itself, staged too: can it? */
int pst_direct_probe(const struct pst_route *route, struct pst_err *err, char *fix);

/* O_DIRECT that is real, alignment, class: the part of the probe that both share. */
int pst_inplace_probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
		      char *fix);

/* Starts the chunk at `address` (chunk->len + chunk->pad bytes). `fail` may rewrite
 * chunk->err when the system call failed. */
int pst_inplace_start(struct pst_chunk *chunk, void *address,
		      void (*fail)(struct pst_chunk *chunk));

#endif
