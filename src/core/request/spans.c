/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes spans, which are contiguous storage ranges, from a request's segments: see spans.h.
 * Segments that are adjacent or overlap become one span, so that each storage byte moves once,
 * however many buffers it belongs to. The unaligned ends of a write become separate spans. admit.c
 * makes spans at submit, and worker threads look up which buffers a range belongs to. These
 * functions must never allocate or make a system call.
 */
#include "core/request/spans.h"

#include <errno.h>

#include "core/request/plan.h"

/* A read leaves out a gap between two rows of a segment only if the gap has at least this length in
 * bytes and is longer than a row. Leaving out less than a page saves nothing, because drives read
 * whole pages. */
#define GAP_FREE 4096u

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Stores a + b in *out. Returns true if the sum overflows. */
static bool add_over(uint64_t a, uint64_t b, uint64_t *out)
{
	return __builtin_add_overflow(a, b, out);
}

/* Computes the number of storage bytes from the start of the segment's first row to the end of its
 * last row. */
static int seg_extent(const struct penstock_seg *seg, uint64_t *out)
{
	uint64_t len;

	if (__builtin_mul_overflow(seg->rows - 1, seg->pitch, &len) ||
	    add_over(len, seg->row_len, &len))
		return -EOVERFLOW;
	*out = len;
	return 0;
}

/* Checks a segment. Merges its rows into one row if they are adjacent both in the storage and in
 * memory. keep_rows is true for a segment whose row length becomes known only when the CUDA stream
 * reaches the request. Its rows are not merged. */
static int seg_check(struct penstock_seg *seg, unsigned index, bool keep_rows, struct pst_err *err)
{
	uint64_t len, end, mem;

	if (!seg->rows)
		seg->rows = 1;
	if (seg->rows == 1) {
		seg->pitch = seg->row_len;
		seg->buf_pitch = seg->row_len;
	}
	if (!seg->buf && seg->row_len)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "segment %u has no buffer", index);
	if (seg->rows > 1 && (seg->pitch < seg->row_len || seg->buf_pitch < seg->row_len))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"segment %u: a pitch is shorter than a row of %llu bytes", index,
				(unsigned long long)seg->row_len);
	if (seg_extent(seg, &len) || add_over(seg->off, len, &end) || end > INT64_MAX ||
	    __builtin_mul_overflow(seg->rows, seg->buf_pitch, &mem) ||
	    add_over(mem, seg->buf_off, &mem) || add_over(mem, (uintptr_t)seg->buf, &mem))
		return pst_fail_errno(err, EOVERFLOW, PENSTOCK_WHY_BAD_ARGUMENT,
				      "segment %u: offset and length overflow", index);
	if (seg->rows > 1 && !keep_rows && seg->pitch == seg->row_len &&
	    seg->buf_pitch == seg->row_len) {
		seg->row_len *= seg->rows; /* merge adjacent rows into one row */
		seg->rows = 1;
		seg->pitch = seg->buf_pitch = seg->row_len;
	}
	return 0;
}

/* Returns whether segment `seg` may become a part of the span, because its storage range is
 * adjacent to the span or overlaps it. */
static bool span_joins(const struct pst_request *req, const struct pst_span *span,
		       const struct penstock_seg *seg)
{
	uint64_t end = span->off + span->len;

	if (req->op == PENSTOCK_WRITE)
		return seg->off == end && seg->pitch == seg->row_len &&
		       req->segs[span->seg_first].pitch == req->segs[span->seg_first].row_len;
	/* If the request requires a class, a segment for another device that is only adjacent to
	 * the span gets a span of its own. Then each device's bytes can use the paths of that
	 * device that meet the class. */
	if (seg->off == end && req->require > PENSTOCK_ANY &&
	    seg->dev != req->segs[span->seg_first].dev)
		return false;
	return seg->off >= span->off && seg->off <= end;
}

/* Returns whether the span is rowwise: a single segment of which only the rows move, because the
 * gaps between them are long. The gaps of a write never move. */
static bool span_is_rowwise(const struct pst_request *req, const struct pst_span *span)
{
	const struct penstock_seg *seg = &req->segs[span->seg_first];
	uint64_t gap = seg->pitch - seg->row_len;

	if (span->seg_count > 1 || seg->rows == 1 || !gap)
		return false;
	return req->op == PENSTOCK_WRITE || (gap >= GAP_FREE && gap > seg->row_len);
}

/* Sets the span's route, its plan, and whether it is rowwise or shared. */
static void span_finish(const struct pst_request *req, struct pst_span *span)
{
	const struct penstock_seg *first = &req->segs[span->seg_first];

	span->route = first->dev->index < PST_DEVICES_MAX
			      ? atomic_load_explicit(&req->st->routes[req->op][first->dev->index],
						     memory_order_acquire)
			      : NULL;
	span->plan = span->route ? &span->route->plans[req->require][req->effort] : NULL;
	span->rowwise = span_is_rowwise(req, span);
	if (!span->rowwise && span->seg_count == 1 && first->pitch != first->row_len)
		span->shared = true;
}

/* Returns the error that the segments up to and including segment `seg` have too many bytes for one
 * request. */
static int seg_too_long(unsigned seg, struct pst_err *err)
{
	return pst_fail_errno(err, EOVERFLOW, PENSTOCK_WHY_BAD_ARGUMENT,
			      "segment %u: up to its end the request has more than 2^63 bytes",
			      seg);
}

/* ---- overlapping writes ---- */

/*
 * A write must not store two values in one storage byte, so check_overlap looks for overlapping
 * rows. It visits the rows of all segments in storage order, with a heap in memory that the caller
 * provides. It visits several rows of one segment in one step if no row of another segment is
 * between them. So two interleaved matrices cost one step for each row, and a single matrix costs
 * one step.
 */

/* An element of the heap: the rows of one segment that check_overlap has not visited yet. */
struct rows {
	uint64_t off;  /* storage offset of the first row that was not visited yet */
	uint64_t left; /* number of rows that were not visited yet */
	unsigned seg;
};

/* Moves heap[at] down until no element below it begins at a lower storage offset. */
static void rows_sift_down(struct rows *heap, unsigned count, unsigned at)
{
	struct rows moving = heap[at];

	for (unsigned child; (child = 2 * at + 1) < count; at = child) {
		if (child + 1 < count && heap[child + 1].off < heap[child].off)
			child++;
		if (heap[child].off >= moving.off)
			break;
		heap[at] = heap[child];
	}
	heap[at] = moving;
}

/* Returns the lowest offset at which a row that was not visited begins, not counting the segment at
 * the heap's top. Returns UINT64_MAX if there is no other segment. */
static uint64_t rows_next_off(const struct rows *heap, unsigned count)
{
	uint64_t off = count > 1 ? heap[1].off : UINT64_MAX;

	return count > 2 && heap[2].off < off ? heap[2].off : off;
}

/* Builds the heap for check_overlap: one element for each segment that has bytes. Returns their
 * count. */
static unsigned rows_collect(const struct pst_request *req, struct rows *heap)
{
	unsigned count = 0;

	for (unsigned i = 0; i < req->seg_count; i++)
		if (req->segs[i].row_len)
			heap[count++] = (struct rows){req->segs[i].off, req->segs[i].rows, i};
	for (unsigned at = count / 2; at-- > 0;)
		rows_sift_down(heap, count, at);
	return count;
}

/* Checks that no two segments of the write share a byte. Returns -EINVAL if two do. The heap is
 * built in `memory`, which must be aligned for any struct and have 24 bytes for each segment. */
static int check_overlap(const struct pst_request *req, void *memory, size_t memory_len,
			 struct pst_err *err)
{
	struct rows *heap = memory;
	uint64_t end = 0; /* storage offset of the end of the rows that have been checked */
	unsigned count, last = 0;

	if (memory_len / sizeof(*heap) < req->seg_count)
		return pst_fail_errno(
			err, E2BIG, PENSTOCK_WHY_FULL,
			"%u unordered segments: at most %zu can be checked for overlap",
			req->seg_count, memory_len / sizeof(*heap));
	count = rows_collect(req, heap);
	while (count) {
		struct rows *first = &heap[0];
		const struct penstock_seg *seg = &req->segs[first->seg];
		uint64_t next = rows_next_off(heap, count), n = 1;

		if (first->off < end)
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
					"segments %u and %u both write the byte at %llu", last,
					first->seg, (unsigned long long)first->off);
		if (next > first->off)
			n += (next - first->off - 1) / seg->pitch;
		n = n < first->left ? n : first->left;
		end = first->off + (n - 1) * seg->pitch + seg->row_len;
		last = first->seg;
		first->left -= n;
		first->off += n * seg->pitch;
		if (!first->left)
			heap[0] = heap[--count];
		rows_sift_down(heap, count, 0);
	}
	return 0;
}

/* ---- segments to spans ---- */

/* Checks all segments and joins them into spans. */
static int spans_collect(struct pst_request *req, unsigned spans_max, struct pst_err *err)
{
	struct pst_span *span = NULL;
	bool ascending = true;
	uint64_t highest = 0, sum = 0;

	req->span_count = 0;
	for (unsigned i = 0; i < req->seg_count; i++) {
		struct penstock_seg *seg = &req->segs[i];
		uint64_t len = 0, end;
		int ret = seg_check(seg, i, !i && req->late.row_len, err);

		if (ret)
			return ret;
		/* Give an empty segment the offset of the span's end, so that the segments before
		 * and after it can still join. */
		if (!seg->row_len) {
			if (span)
				seg->off = span->off + span->len;
			continue;
		}
		seg_extent(seg, &len);
		end = seg->off + len;
		/* The request's result counts the bytes of every segment and must not overflow. */
		if (add_over(sum, seg->rows * seg->row_len, &sum) || sum > INT64_MAX)
			return seg_too_long(i, err);
		ascending &= seg->off >= highest;
		highest = max_u64(highest, end);
		if (span && span_joins(req, span, seg)) {
			if (seg->off != span->off + span->len || seg->pitch != seg->row_len ||
			    seg->dev != req->segs[span->seg_first].dev)
				span->shared = true;
			if (req->segs[span->seg_first].pitch != req->segs[span->seg_first].row_len)
				span->shared = true;
			if (end > span->off + span->len)
				span->len = end - span->off;
			span->seg_count = i + 1 - span->seg_first;
			continue;
		}
		if (req->span_count == spans_max)
			return pst_fail_errno(err, E2BIG, PENSTOCK_WHY_FULL,
					      "more than %u separate ranges: split the request",
					      spans_max);
		span = &req->spans[req->span_count++];
		*span = (struct pst_span){
			.off = seg->off, .len = len, .seg_first = i, .seg_count = 1};
	}
	if (req->op == PENSTOCK_READ || ascending)
		return 0;
	/* Use the free elements of req->spans as the heap's memory, because nothing may be
	 * allocated here. */
	return check_overlap(req, &req->spans[req->span_count],
			     (spans_max - req->span_count) * sizeof(*span), err);
}

/* Returns how many bytes of the span move and are numbered: all bytes, or, in a rowwise span, only
 * those of the rows. */
static uint64_t span_numbered(const struct pst_request *req, const struct pst_span *span)
{
	const struct penstock_seg *seg = &req->segs[span->seg_first];

	return span->rowwise ? seg->rows * seg->row_len : span->len;
}

/* Returns the alignment at which the write is split into its whole blocks (body) and its unaligned
 * ends (edges). Returns 1 if no path of its plan needs alignment. */
static uint64_t span_write_align(const struct pst_span *span)
{
	const struct pst_storage_facts *facts = &span->route->st->facts;

	for (unsigned i = 0; i < span->plan->count[PST_COLD]; i++)
		if (span->route->paths[span->plan->list[PST_COLD][i]].facts.off_align > 1)
			return facts->edge_align;
	return 1;
}

static bool seg_rows_aligned(const struct penstock_seg *seg, uint64_t align)
{
	return !(seg->off % align) && !(seg->pitch % align) && !(seg->row_len % align);
}

uint64_t pst_span_slack(const struct pst_request *req, const struct pst_span *span)
{
	const struct pst_storage_facts *facts = &req->st->facts;

	if (!facts->growing || span->off + span->len < facts->length)
		return 0;
	return req->segs[span->seg_first + span->seg_count - 1].room;
}

/* Returns whether the unaligned bytes after the span's last whole block move together with the
 * blocks. They do if the spare memory after the segment can pad them to a whole block. */
static bool span_tail_padded(const struct pst_request *req, const struct pst_span *span,
			     uint64_t align)
{
	uint64_t pad = -(span->off + span->len) % align;

	return pad && pst_span_slack(req, span) >= pad && !span->rowwise;
}

/*
 * Splits the spans of a write into aligned whole blocks (bodies) and their unaligned ends (edges).
 * Direct paths can carry the bodies. The edges are written through the page cache after all bodies.
 * So the library never reads, modifies and writes back a block, and two requests that share a block
 * lose no bytes.
 */
static int spans_split_edges(struct pst_request *req, unsigned spans_max, struct pst_err *err)
{
	unsigned bodies = req->span_count;

	for (unsigned i = 0; i < bodies; i++) {
		struct pst_span *span = &req->spans[i], edge = *span;
		uint64_t align = span_write_align(span), head, tail;

		if (align <= 1)
			continue;
		if (span->rowwise) {
			span->edge = !seg_rows_aligned(&req->segs[span->seg_first], align);
			continue;
		}
		head = -span->off % align;
		if (head > span->len)
			head = span->len;
		tail = (span->off + span->len) % align;
		if (tail > span->len - head || span_tail_padded(req, span, align))
			tail = 0;
		if (head + tail == span->len) {
			span->edge = true;
			continue;
		}
		if (req->span_count + 2 > spans_max)
			return pst_fail_errno(err, E2BIG, PENSTOCK_WHY_FULL,
					      "more than %u separate ranges: split the request",
					      spans_max);
		edge.edge = true;
		if (head) {
			edge.len = head;
			req->spans[req->span_count++] = edge;
		}
		if (tail) {
			edge.off = span->off + span->len - tail;
			edge.len = tail;
			req->spans[req->span_count++] = edge;
		}
		span->off += head;
		span->len -= head + tail;
	}
	return 0;
}

/* Numbers the bytes of all bodies (whole blocks), then those of all edges (unaligned ends). Lanes
 * claim chunks in this order. */
static int spans_number(struct pst_request *req, struct pst_err *err)
{
	uint64_t at = 0;
	unsigned bodies = 0;

	/* Move the spans that are bodies to the front of the array, in the same order. */
	for (unsigned i = 0; i < req->span_count; i++) {
		struct pst_span span = req->spans[i];

		if (span.edge)
			continue;
		req->spans[i] = req->spans[bodies];
		req->spans[bodies++] = span;
	}
	for (unsigned i = 0; i < req->span_count; i++) {
		if (i == bodies)
			req->body = at;
		req->spans[i].start = at;
		if (add_over(at, span_numbered(req, &req->spans[i]), &at) || at > INT64_MAX)
			/* This can happen although spans_collect has checked the segments: a read
			 * that moves the gaps between rows also numbers the bytes of these gaps. */
			return seg_too_long(req->spans[i].seg_first, err);
	}
	req->total = at;
	if (bodies == req->span_count)
		req->body = at;
	return 0;
}

int pst_spans_make(struct pst_request *req, unsigned spans_max, struct pst_err *err)
{
	int ret = spans_collect(req, spans_max, err);

	if (ret)
		return ret;
	for (unsigned i = 0; i < req->span_count; i++) {
		span_finish(req, &req->spans[i]);
		if (!req->spans[i].route)
			return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
					"no route to the device of segment %u",
					req->spans[i].seg_first);
	}
	if (req->op == PENSTOCK_WRITE && req->forced < 0) {
		ret = spans_split_edges(req, spans_max, err);
		if (ret)
			return ret;
	}
	return spans_number(req, err);
}

/* ---- spans to buffers ---- */

unsigned pst_span_at(const struct pst_request *req, uint64_t pos)
{
	unsigned low = 0, high = req->span_count;

	while (high - low > 1) {
		unsigned mid = low + (high - low) / 2;

		if (req->spans[mid].start <= pos)
			low = mid;
		else
			high = mid;
	}
	return low;
}

void pst_spans_find(const struct pst_request *req, uint64_t pos, struct pst_place *out)
{
	const struct pst_span *span = &req->spans[pst_span_at(req, pos)];
	uint64_t at = pos - span->start;

	out->span = span;
	out->pos = pos;
	out->blind = false;
	out->warm_first = 0;
	out->lane = NULL;
	if (span->rowwise) {
		const struct penstock_seg *seg = &req->segs[span->seg_first];
		uint64_t row = at / seg->row_len, in_row = at % seg->row_len;

		out->off = seg->off + row * seg->pitch + in_row;
		out->len = seg->row_len - in_row;
	} else {
		out->off = span->off + at;
		out->len = span->len - at;
	}
}

uint64_t pst_spans_lowest(const struct pst_request *req, uint64_t pos)
{
	struct pst_place place;
	uint64_t lowest;

	pst_spans_find(req, pos, &place);
	lowest = place.off;
	for (unsigned i = (unsigned)(place.span - req->spans) + 1; i < req->span_count; i++)
		if (req->spans[i].off < lowest)
			lowest = req->spans[i].off;
	return lowest;
}

/* Returns the address of the segment's first byte. */
static char *seg_mem(const struct penstock_seg *seg)
{
	return (char *)seg->buf + seg->buf_off;
}

/* Calls fn for a part of row `row`: the bytes at the storage offsets from `from` up to, but not
 * including, `to`. They must be inside this row. `off` is the start of the range that the caller
 * asked for. */
static int seg_row_part(const struct penstock_seg *seg, uint64_t row, uint64_t off, uint64_t from,
			uint64_t to, pst_part_fn *fn, void *arg)
{
	uint64_t row_off = seg->off + row * seg->pitch;
	struct pst_part part = {
		.dev = seg->dev,
		.mem = seg_mem(seg) + row * seg->buf_pitch + (from - row_off),
		.at = from - off,
		.row_len = to - from,
		.rows = 1,
		.mem_pitch = to - from,
		.pitch = to - from,
	};

	if (to <= from)
		return 0;
	if (row == seg->rows - 1 && to == row_off + seg->row_len)
		part.slack = seg->room;
	return fn(arg, &part);
}

/* Calls fn for the parts of one segment that lie in the storage range [off, end): first the end
 * of a row, then full rows, then the start of a row. Each of the three may be missing. */
static int seg_parts(const struct penstock_seg *seg, uint64_t off, uint64_t end, pst_part_fn *fn,
		     void *arg)
{
	uint64_t first, last, row_off, full;
	int ret;

	if (!seg->row_len || end <= seg->off)
		return 0;
	first = off > seg->off ? (off - seg->off) / seg->pitch : 0;
	if (first >= seg->rows)
		return 0; /* the range begins after the last row of the segment */
	last = min_u64((end - 1 - seg->off) / seg->pitch, seg->rows - 1);

	row_off = seg->off + first * seg->pitch;
	if (off > row_off || first == last || end < row_off + seg->row_len) {
		ret = seg_row_part(seg, first, off, max_u64(off, row_off),
				   min_u64(end, row_off + seg->row_len), fn, arg);
		if (ret || first == last)
			return ret;
		first++;
	}
	row_off = seg->off + last * seg->pitch;
	full = end < row_off + seg->row_len ? last : last + 1;
	if (full > first) {
		struct pst_part part = {
			.dev = seg->dev,
			.mem = seg_mem(seg) + first * seg->buf_pitch,
			.mem_pitch = seg->buf_pitch,
			.at = seg->off + first * seg->pitch - off,
			.pitch = seg->pitch,
			.row_len = seg->row_len,
			.rows = full - first,
		};

		if (full == seg->rows)
			part.slack = seg->room;
		ret = fn(arg, &part);
		if (ret)
			return ret;
	}
	if (full == last)
		return seg_row_part(seg, last, off, row_off, end, fn, arg);
	return 0;
}

/* Returns the index of the first segment of the span that may contain the byte at storage offset
 * `off`. In a shared span, whose segments may overlap, that is the first segment. In other spans
 * the function finds it by bisection. */
static unsigned span_seg_at(const struct pst_request *req, const struct pst_span *span,
			    uint64_t off)
{
	unsigned low = span->seg_first, high = low + (span->shared ? 1 : span->seg_count);

	while (high - low > 1) {
		unsigned mid = low + (high - low) / 2;

		if (req->segs[mid].off <= off)
			low = mid;
		else
			high = mid;
	}
	return low;
}

int pst_span_parts(const struct pst_request *req, const struct pst_span *span, uint64_t off,
		   uint64_t len, pst_part_fn *fn, void *arg)
{
	unsigned end = span->seg_first + span->seg_count;

	for (unsigned i = span_seg_at(req, span, off); i < end; i++) {
		const struct penstock_seg *seg = &req->segs[i];
		int ret;

		if (!span->shared && seg->off >= off + len)
			break;
		ret = seg_parts(seg, off, off + len, fn, arg);
		if (ret)
			return ret;
	}
	return 0;
}

bool pst_span_isolates_byte(const struct pst_request *req, const struct pst_span *span,
			    uint64_t off)
{
	unsigned end = span->seg_first + span->seg_count;

	if (off + 1 == req->st->facts.length)
		/* The storage has only one byte after the chunk. If that byte belongs to a row of a
		 * segment, it would be moved alone. */
		return true;
	for (unsigned i = span_seg_at(req, span, off - 1); i < end; i++) {
		const struct penstock_seg *seg = &req->segs[i];
		uint64_t in = off - seg->off;

		if (!span->shared && seg->off >= off)
			break;
		if (seg->off >= off || seg->row_len < 2 || in / seg->pitch >= seg->rows)
			continue;
		in %= seg->pitch;
		if (in == 1 || in + 1 == seg->row_len)
			return true;
	}
	return false;
}

static int part_keep_first(void *arg, const struct pst_part *part)
{
	struct pst_part *out = arg;

	if (part->at)
		return 0; /* the part begins after the offset that the caller asked for */
	*out = *part;
	return 1;
}

int pst_span_part_at(const struct pst_request *req, const struct pst_span *span, uint64_t off,
		     struct pst_part *out)
{
	const struct penstock_seg *seg = &req->segs[span_seg_at(req, span, off)];

	if (span->shared || seg_parts(seg, off, span->off + span->len, part_keep_first, out) != 1)
		return -EINVAL;
	/* return only the first row, because a path that moves bytes directly moves one row at a
	 * time */
	if (out->rows > 1) {
		out->rows = 1;
		out->slack = 0;
	}
	return 0;
}
