/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves a chunk between the drive and its final place by O_DIRECT. Paths p2p and odirect share
 * it. They differ only in the memory that they permit and in how they explain an error.
 */
#ifndef PST_PATH_INPLACE_H
#define PST_PATH_INPLACE_H

#include "core/ops.h"

/*
 * Returns 0 if the route's storage offers O_DIRECT; else -errno with the reason in `err` and
 * the remedy in `fix`. Path staged calls it too.
 */
int pst_direct_probe(const struct pst_route *route, struct pst_err *err, char *fix);

/* Does what the probes of p2p and odirect share: checks O_DIRECT, sets alignment and class. */
int pst_inplace_probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
		      char *fix);

/*
 * Starts the chunk in place; same results as start() of struct pst_path_ops. If the system call
 * fails, `explain` may rewrite chunk->err; NULL keeps the storage's error.
 */
int pst_inplace_start(struct pst_chunk *chunk, void (*explain)(struct pst_chunk *chunk));

#endif
