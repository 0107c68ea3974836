/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spans: the contiguous ranges of storage that a request's segments cover together. These
 * functions make spans from segments, and map a range of storage back to the buffers that its
 * bytes belong to. struct pst_span is in request.h.
 */
#ifndef PST_CORE_SPANS_H
#define PST_CORE_SPANS_H

#include "core/request/request.h"

/* Checks req->segs and makes at most `spans_max` elements of req->spans from them. */
int pst_spans_make(struct pst_request *req, unsigned spans_max, struct pst_err *err);

/* Returns the index of the span that contains the byte `pos`; a request's bytes are counted from 0.
 */
unsigned pst_span_at(const struct pst_request *req, uint64_t pos);

/* A place: the next bytes of a request from some position on. They are `len` contiguous storage
 * bytes at offset `off`, up to the end of their span or row. */
struct pst_place {
	const struct pst_span *span;
	uint64_t off, len;
	uint64_t pos; /* index of the place's first byte among the bytes of the request */
	bool blind;   /* the storage could not report whether the bytes are cached */
	/* Position in the plan's list for warm (cached) bytes at which the claiming lane begins. It
	 * is not 0 if the plan uses several paths at the same time and other lanes use the first
	 * ones. */
	unsigned warm_first;
	struct pst_lane *lane; /* the claiming lane; NULL while a request is checked at submit */
};

/* Fills *out for the bytes of the request from position `pos` on. */
void pst_spans_find(const struct pst_request *req, uint64_t pos, struct pst_place *out);
/* Returns the lowest storage offset among the bytes of the request at position `pos` and after it.
 * `pos` must be less than req->total. */
uint64_t pst_spans_lowest(const struct pst_request *req, uint64_t pos);

/*
 * Returns how many bytes after the end of a write's span may be written together with the span's
 * last bytes, to complete a block. This is the `room` (spare memory) of the last segment if the
 * span ends an object that is private until commit, because commit truncates the object. Otherwise
 * it is 0.
 */
uint64_t pst_span_slack(const struct pst_request *req, const struct pst_span *span);

/* A part of a segment: a rectangle of device memory, and the storage bytes that belong to it. */
struct pst_part {
	struct penstock_device *dev;
	char *mem;
	uint64_t mem_pitch;
	/* Where the bytes of the part are in the storage. `at` is the start of the first row,
	 * counted from the start of the range that the caller passed. `pitch` is the distance
	 * between the starts of two rows. */
	uint64_t at, pitch;
	uint64_t row_len, rows;
	/* Number of bytes of spare memory (`room`) after the part, if the part ends its segment. */
	uint64_t slack;
};
/* Called for one part. If it returns a value other than 0, the iteration stops. */
typedef int pst_part_fn(void *arg, const struct pst_part *part);

/* Calls fn for every part of the span's segments in the storage range [off, off + len). If fn
 * returns a value other than 0, stops and returns that value; else returns 0. */
int pst_span_parts(const struct pst_request *req, const struct pst_span *span, uint64_t off,
		   uint64_t len, pst_part_fn *fn, void *arg);

/* Finds the part of a segment that begins at storage offset `off`, at most one row. Used for paths
 * that move bytes directly between storage and buffer. Returns -EINVAL if the span is shared,
 * because then no path may do so. */
int pst_span_part_at(const struct pst_request *req, const struct pst_span *span, uint64_t off,
		     struct pst_part *out);

/* Returns whether a read chunk that ends at `off` would cut a row so that a single byte of it
 * remains directly before or after `off`. A copy of one byte can deadlock (device/cuda_copy.c). */
bool pst_span_isolates_byte(const struct pst_request *req, const struct pst_span *span,
			    uint64_t off);

#endif
