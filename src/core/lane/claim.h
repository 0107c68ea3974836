/* SPDX-License-Identifier: Apache-2.0 */
/* Claiming: how a lane takes the next bytes of a request, and chooses their path. */
#ifndef PST_CORE_CLAIM_H
#define PST_CORE_CLAIM_H

#include "core/request/request.h"

/* The bytes of one claim, to be moved as one chunk. */
struct pst_claim {
	struct pst_route *route;
	unsigned span;	   /* of the request */
	uint64_t off, len; /* in the storage */
	uint32_t pad;	   /* bytes after len, in the segment's room, that move along */
	uint8_t path;	   /* index in pst_paths */
	uint8_t residency; /* enum pst_residency */
	bool timed;	   /* the duration of its call tells its residency */
};

/* Claims the next bytes of a request. False: none are left, or no path can carry them, which
 * fails the request. */
bool pst_claim(struct pst_request *req, struct pst_claim *out);
/* Claims and gives up the unclaimed bytes of a request that is cancelled or too late. False: it
 * is neither. */
bool pst_claim_abandon(struct pst_request *req);
/* 0: the span's plan can carry all of it. -EOPNOTSUPP: alignment forbids it. */
int pst_claim_check(const struct pst_request *req, const struct pst_span *span,
		    struct pst_err *err);
/* Chooses a path for the front of a chunk. `next`: one after its own path in the plan's order,
 * because that failed. *len is how many bytes the path can carry. -1: no path. */
int pst_claim_retry(const struct pst_chunk *chunk, bool next, uint64_t *len, uint32_t *pad);

#endif
