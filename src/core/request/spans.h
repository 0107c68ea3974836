/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spans: the contiguous ranges of storage that a request's segments cover together. These
 * functions make spans from segments, and map a range of storage back to the buffers that its
 * bytes belong to. struct pst_span is in request.h.
 */
#ifndef PST_CORE_SPANS_H
#define PST_CORE_SPANS_H

#include "core/request/request.h"

/* Checks req->segs and makes req->spans from them, at most `spans_max`. */
int pst_spans_make(struct pst_request *req, unsigned spans_max, struct pst_err *err);

/* Returns the index of the span that contains the request's byte number `pos`. */
unsigned pst_span_at(const struct pst_request *req, uint64_t pos);

/* A place in a request: `len` contiguous storage bytes at `off`, to the end of a span or row. */
struct pst_place {
	const struct pst_span *span;
	uint64_t off, len;
	uint64_t pos; /* number of the first byte in the request */
	bool blind;   /* the storage could not report whether the bytes are cached */
};

/* Finds the place of the request's byte number `pos`. */
void pst_spans_find(const struct pst_request *req, uint64_t pos, struct pst_place *out);
/* Returns the lowest storage offset of the request's bytes from number `pos` on; pos < total. */
uint64_t pst_spans_lowest(const struct pst_request *req, uint64_t pos);

/*
 * Returns how many bytes after a write's span may be written with its tail, to complete a
 * block: the `room` of its last segment. 0 unless the span ends an object that is private until
 * commit, which truncates it.
 */
uint64_t pst_span_slack(const struct pst_request *req, const struct pst_span *span);

/* A rectangle of device memory, and the storage bytes that belong to it. */
struct pst_part {
	struct penstock_device *dev;
	char *mem;
	uint64_t mem_pitch;
	uint64_t at, pitch; /* storage bytes, `at` from the start of the given range */
	uint64_t row_len, rows;
	uint64_t slack; /* usable bytes of memory after the part, if it ends its segment */
};
/* Called for one part. A value other than 0 stops the iteration. */
typedef int pst_part_fn(void *arg, const struct pst_part *part);

/* Calls fn for every part of the span's segments in storage range [off, off + len), until fn
 * returns a value other than 0. Returns that value, else 0. */
int pst_span_parts(const struct pst_request *req, const struct pst_span *span, uint64_t off,
		   uint64_t len, pst_part_fn *fn, void *arg);

/* Finds the part that begins at storage offset `off`, for paths that move one row in place.
 * -EINVAL: the span is shared. */
int pst_span_part_at(const struct pst_request *req, const struct pst_span *span, uint64_t off,
		     struct pst_part *out);

/* Whether a chunk of a read that ends at `off` would separate a single byte from a longer row,
 * before or after `off`. */
bool pst_span_isolates_byte(const struct pst_request *req, const struct pst_span *span,
			    uint64_t off);

#endif
