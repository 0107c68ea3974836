/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves a chunk (a part of a request) between the drive and the caller's memory by O_DIRECT. The
 * paths "p2p" and "odirect" share these functions. The paths differ only in the memory that they
 * permit and in how they explain an error.
 */
#ifndef PST_PATH_INPLACE_H
#define PST_PATH_INPLACE_H

#include "core/ops.h"

/*
 * Returns 0 if the route's storage offers O_DIRECT. Otherwise returns -errno, with the reason in
 * `err` and advice on how to remove this reason in `fix`. The path "staged" calls this function,
 * too.
 */
int pst_direct_probe(const struct pst_route *route, struct pst_err *err, char *fix);

/* The common part of the probes of the paths "p2p" and "odirect". A probe finds out whether a path
 * can be used. This part checks O_DIRECT, and sets alignment and class in `facts`. */
int pst_inplace_probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
		      char *fix);

/*
 * Starts the transfer of the chunk, with the caller's memory as the buffer of the system call.
 * Returns what the function `start` of struct pst_path_ops returns. If the system call fails,
 * `explain` is called and may replace the error in chunk->err. If `explain` is NULL, the chunk
 * keeps the storage's error.
 */
int pst_inplace_start(struct pst_chunk *chunk, void (*explain)(struct pst_chunk *chunk));

#endif
