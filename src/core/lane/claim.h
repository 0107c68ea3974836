/* SPDX-License-Identifier: Apache-2.0 */
/* Claiming: how a lane (a worker loop) reserves the next bytes of a request, so that no other lane
 * moves them, and chooses their path. */
#ifndef PST_CORE_CLAIM_H
#define PST_CORE_CLAIM_H

#include "core/request/request.h"

/* A claim: bytes of a request that a lane has reserved, to be moved as one chunk over one path. */
struct pst_claim {
	struct pst_route *route;
	unsigned span;	   /* index of the request's span (contiguous range of storage) */
	uint64_t off, len; /* offset and length in the storage */
	/* Number of bytes after the first `len` bytes that move too, so that the last block is
	 * whole. Their memory is the spare memory (`room`) after the segment's buffer. */
	uint32_t pad;
	uint8_t path;	   /* index in pst_paths */
	uint8_t residency; /* enum pst_residency */
	bool fills_cache;  /* see struct pst_chunk */
	/* Whether the lane measures the duration of the chunk's system call. The duration shows
	 * whether the bytes were in the page cache. */
	bool timed;
};

/* Claims the next bytes of a request for `lane`. `nth` is the index of this lane among the lanes
 * that share the request. Returns false if no bytes are left. Also fails the request and returns
 * false if it is cancelled or past its deadline, or if no path can carry its bytes. */
bool pst_claim(struct pst_lane *lane, struct pst_request *req, unsigned nth, struct pst_claim *out);
/* If the request is cancelled or past its deadline, fails its unclaimed bytes and returns true.
 * Else returns false. */
bool pst_claim_abandon(struct pst_request *req);
/* Checks that the paths of the plan for `span` can carry all bytes of the span. Returns -EOPNOTSUPP
 * if they cannot, for example because bytes are not aligned. */
int pst_claim_check(const struct pst_request *req, const struct pst_span *span,
		    struct pst_err *err);
/* Chooses a path for the first bytes of a chunk. If `next` is true, the chunk's path has failed,
 * and only the paths after it in the plan's list are tried. If the plan uses several paths at the
 * same time, the paths before it are tried, too. If `next` is false, the chunk's path is tried
 * first. Sets *len to the number of bytes that the chosen path can carry, and *pad to the number of
 * bytes that must be added to fill a block. Returns the path's index, or -1 if no path can carry
 * the bytes. */
int pst_claim_retry(const struct pst_chunk *chunk, bool next, uint64_t *len, uint32_t *pad);

#endif
