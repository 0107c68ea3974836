/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spans: the contiguous ranges of storage that a request's segments make together, and the
 * way back from a range of storage to the buffers that its bytes belong to.
 */
#ifndef PST_CORE_SPANS_H
#define PST_CORE_SPANS_H

#include "core/request/request.h"

/* Makes req->spans of req->segs, at most `spans_max`, and checks the segments. */
int pst_spans_make(struct pst_request *req, unsigned spans_max, struct pst_err *err);

/* The index of the span that contains the request's byte number `pos`. */
unsigned pst_span_at(const struct pst_request *req, uint64_t pos);

/* A place in a request: the storage bytes at `off`, at most `len` in one run. */
struct pst_place {
	const struct pst_span *span;
	uint64_t off, len;
	uint64_t pos; /* the request's number of the first byte */
	bool blind;   /* the storage could not tell whether the bytes are cached */
};

/* Finds the place of the request's byte number `pos`. */
void pst_spans_find(const struct pst_request *req, uint64_t pos, struct pst_place *out);
/* The lowest storage offset of the request's bytes from number `pos` on; pos < total. */
uint64_t pst_spans_lowest(const struct pst_request *req, uint64_t pos);

/*
 * Bytes after a write's span that may be written along with its tail: the room of its last
 * segment, if the span ends an object that is private until commit and is truncated then. 0
 * for every other write.
 */
uint64_t pst_span_slack(const struct pst_request *req, const struct pst_span *span);

/* A rectangle of device memory, and the storage bytes that belong to it. */
struct pst_part {
	struct penstock_device *dev;
	char *mem;
	uint64_t mem_pitch;
	uint64_t at, pitch; /* storage bytes from the start of the range asked for */
	uint64_t row_len, rows;
	uint64_t slack; /* usable memory after it, if it ends its segment */
};
typedef int pst_part_fn(void *arg, const struct pst_part *part);

/* Calls fn for every part of the span's segments in storage range [off, off + len), until fn
 * returns something else than 0, and returns that. */
int pst_span_parts(const struct pst_request *req, const struct pst_span *span, uint64_t off,
		   uint64_t len, pst_part_fn *fn, void *arg);

/* Finds the single part that begins at storage offset `off`, for paths that move in place.
 * -EINVAL: the span is shared. */
int pst_span_part_at(const struct pst_request *req, const struct pst_span *span, uint64_t off,
		     struct pst_part *out);

/* Whether a chunk of a read that ends at `off` leaves a single byte of a longer piece, before
 * or after the cut. */
bool pst_span_isolates_byte(const struct pst_request *req, const struct pst_span *span,
			    uint64_t off);

#endif
