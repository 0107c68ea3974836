/* SPDX-License-Identifier: Apache-2.0 */
/* Claiming: how a lane reserves the next bytes of a request and chooses their path. */
#ifndef PST_CORE_CLAIM_H
#define PST_CORE_CLAIM_H

#include "core/request/request.h"

/* The bytes of one claim, to be moved as one chunk. */
struct pst_claim {
	struct pst_route *route;
	unsigned span;	   /* of the request */
	uint64_t off, len; /* in the storage */
	uint32_t pad;	   /* bytes after len, in the segment's `room`, that move too */
	uint8_t path;	   /* index in pst_paths */
	uint8_t residency; /* enum pst_residency */
	bool timed;	   /* the duration of its call will show its residency */
};

/* Claims the next bytes of a request. False: no bytes are left, or the request has failed because
 * it is abandoned or no path can carry the bytes. */
bool pst_claim(struct pst_request *req, struct pst_claim *out);
/* Fails the unclaimed bytes of a request that is cancelled or past its deadline. False: it is
 * neither. */
bool pst_claim_abandon(struct pst_request *req);
/* Checks that the paths of the span's plan can carry all of it. -EOPNOTSUPP: alignment forbids. */
int pst_claim_check(const struct pst_request *req, const struct pst_span *span,
		    struct pst_err *err);
/* Chooses a path for the first bytes of a chunk. `next`: a path after the chunk's own in the
 * plan's order, because that one failed. Sets *len to the bytes that the path can carry, and
 * *pad. -1: no path can. */
int pst_claim_retry(const struct pst_chunk *chunk, bool next, uint64_t *len, uint32_t *pad);

#endif
