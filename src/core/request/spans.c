/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cutting: the segments of a request become spans, contiguous stretches of storage
 * that are moved once whatever number of buffers they feed; and back: which parts
 * of which buffers a stretch of a span belongs to. Arithmetic only, but that a segment
 * which names no device is asked for it as it is taken.
 */
#include <string.h>

#include "core/base/objects.h"
#include "core/request/request.h"
#include "core/route/route.h"

/* Rows are read together with the gaps between them when the gaps are smaller than
 * a page (they share its read anyway) or less than half of the whole. */
#define GAP_FREE 4096u

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static bool add_over(uint64_t a, uint64_t b, uint64_t *out)
{
	return __builtin_add_overflow(a, b, out);
}

int pst_seg_copy_in(struct penstock_seg *out, const struct penstock_req *from, unsigned i,
		    struct pst_err *err)
{
	size_t stride = from->seg_size ? from->seg_size : sizeof(*out);

	if (stride < sizeof(*out))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"seg_size is %zu: a segment alone has %zu bytes", stride,
				sizeof(*out));
	memcpy(out, (const char *)from->segs + i * stride, sizeof(*out));
	if (out->dev)
		return 0;
	out->dev = pst_device_find((char *)out->buf + out->buf_off);
	if (!out->dev)
		return pst_fail(err, PENSTOCK_WHY_NO_DEVICE,
				"segment %u: its buffer is on no open device", i);
	return 1;
}

/* Bytes from the first byte of the first row to the end of the last. */
static int extent(const struct penstock_seg *seg, uint64_t *out)
{
	uint64_t len;

	if (__builtin_mul_overflow(seg->rows - 1, seg->pitch, &len) ||
	    add_over(len, seg->row_len, &len))
		return -EOVERFLOW;
	*out = len;
	return 0;
}

/* keep_rows: a length that comes late is each row's. */
static int check_seg(struct penstock_seg *seg, unsigned index, bool keep_rows, struct pst_err *err)
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
	if (extent(seg, &len) || add_over(seg->off, len, &end) || end > INT64_MAX ||
	    __builtin_mul_overflow(seg->rows, seg->buf_pitch, &mem) ||
	    add_over(mem, seg->buf_off, &mem) || add_over(mem, (uintptr_t)seg->buf, &mem))
		return pst_fail_errno(err, EOVERFLOW, PENSTOCK_WHY_BAD_ARGUMENT,
				      "segment %u: offset and length overflow", index);
	if (seg->rows > 1 && !keep_rows && seg->pitch == seg->row_len &&
	    seg->buf_pitch == seg->row_len) {
		seg->row_len *= seg->rows; /* one piece after all */
		seg->rows = 1;
		seg->pitch = seg->buf_pitch = seg->row_len;
	}
	return 0;
}

/* May segment `seg` join the span that ends at `end`? */
static bool joins(const struct pst_request *req, const struct pst_span *span,
		  const struct penstock_seg *seg)
{
	uint64_t end = span->off + span->len;

	if (req->op == PENSTOCK_WRITE)
		return seg->off == end && seg->pitch == seg->row_len &&
		       req->segs[span->seg_first].pitch == req->segs[span->seg_first].row_len;
	/* What only touches must not keep another device's bytes from its class. */
	if (seg->off == end && req->require > PENSTOCK_ANY &&
	    seg->dev != req->segs[span->seg_first].dev)
		return false;
	return seg->off >= span->off && seg->off <= end;
}

/* A single segment with gaps not worth moving is done row by row. */
static bool is_rowwise(const struct pst_request *req, const struct pst_span *span)
{
	const struct penstock_seg *seg = &req->segs[span->seg_first];
	uint64_t gap = seg->pitch - seg->row_len;

	if (span->seg_count > 1 || seg->rows == 1 || !gap)
		return false;
	return req->op == PENSTOCK_WRITE || (gap >= GAP_FREE && gap > seg->row_len);
}

static void finish_span(const struct pst_request *req, struct pst_span *span)
{
	const struct penstock_seg *first = &req->segs[span->seg_first];

	span->route = first->dev->index < PST_DEVICES_MAX
			      ? atomic_load_explicit(&req->st->routes[req->op][first->dev->index],
						     memory_order_acquire)
			      : NULL;
	span->plan = span->route ? &span->route->plans[req->require][req->effort] : NULL;
	span->rowwise = is_rowwise(req, span);
	if (!span->rowwise && span->seg_count == 1 && first->pitch != first->row_len)
		span->shared = true;
}

static int too_long(unsigned seg, struct pst_err *err)
{
	return pst_fail_errno(err, EOVERFLOW, PENSTOCK_WHY_BAD_ARGUMENT,
			      "segment %u: with those before it more than 2^63 bytes", seg);
}

static int collect(struct pst_request *req, unsigned spans_max, struct pst_err *err)
{
	struct pst_span *span = NULL;
	bool ascending = true;
	uint64_t highest = 0, sum = 0;

	req->span_count = 0;
	for (unsigned i = 0; i < req->seg_count; i++) {
		struct penstock_seg *seg = &req->segs[i];
		uint64_t len = 0, end;
		int ret = check_seg(seg, i, !i && req->late.row_len, err);

		if (ret)
			return ret;
		if (!seg->row_len) { /* inside a span it stands where the next may join */
			if (span)
				seg->off = span->off + span->len;
			continue;
		}
		extent(seg, &len);
		end = seg->off + len;
		/* The result counts each destination, and is not to turn negative. */
		if (add_over(sum, seg->rows * seg->row_len, &sum) || sum > INT64_MAX)
			return too_long(i, err);
		ascending &= seg->off >= highest;
		highest = max_u64(highest, end);
		if (span && joins(req, span, seg)) {
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
					      "more than %u separate ranges", spans_max);
		span = &req->spans[req->span_count++];
		*span = (struct pst_span){
			.off = seg->off, .len = len, .seg_first = i, .seg_count = 1};
	}
	if (req->op == PENSTOCK_READ || ascending)
		return 0;
	/* The spans that are not needed yet are room enough. */
	return pst_spans_overlap(req, &req->spans[req->span_count],
				 (spans_max - req->span_count) * sizeof(*span), err);
}

static uint64_t numbered(const struct pst_request *req, const struct pst_span *span)
{
	const struct penstock_seg *seg = &req->segs[span->seg_first];

	return span->rowwise ? seg->rows * seg->row_len : span->len;
}

/* The coarsest offset alignment that any path of the write's plan asks for. */
static uint64_t write_align(const struct pst_span *span)
{
	const struct pst_storage_facts *facts = &span->route->st->facts;

	for (unsigned i = 0; i < span->plan->count[PST_COLD]; i++)
		if (span->route->paths[span->plan->list[PST_COLD][i]].facts.off_align > 1)
			return facts->edge_align;
	return 1;
}

static bool rows_aligned(const struct penstock_seg *seg, uint64_t align)
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

/* Does the tail of this span go along with its body, padded from the room behind? */
static bool tail_padded(const struct pst_request *req, const struct pst_span *span, uint64_t align)
{
	uint64_t pad = -(span->off + span->len) % align;

	return pad && pst_span_slack(req, span) >= pad && !span->rowwise;
}

/*
 * Splits the spans of a write into bodies, which direct paths can take, and edges,
 * which are written through the page cache after every body is done: so no block
 * is read, changed and written back, and two requests that share one lose nothing.
 */
static int split_edges(struct pst_request *req, unsigned spans_max, struct pst_err *err)
{
	unsigned bodies = req->span_count;

	for (unsigned i = 0; i < bodies; i++) {
		struct pst_span *span = &req->spans[i], edge = *span;
		uint64_t align = write_align(span), head, tail;

		if (align <= 1)
			continue;
		if (span->rowwise) {
			span->edge = !rows_aligned(&req->segs[span->seg_first], align);
			continue;
		}
		head = -span->off % align;
		if (head > span->len)
			head = span->len;
		tail = (span->off + span->len) % align;
		if (tail > span->len - head || tail_padded(req, span, align))
			tail = 0;
		if (head + tail == span->len) {
			span->edge = true;
			continue;
		}
		if (req->span_count + 2 > spans_max)
			return pst_fail_errno(err, E2BIG, PENSTOCK_WHY_FULL,
					      "more than %u separate ranges", spans_max);
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

/* Bodies first, then edges, in the numbering by which chunks are claimed. */
static int number(struct pst_request *req, struct pst_err *err)
{
	uint64_t at = 0;
	unsigned bodies = 0;

	for (unsigned i = 0; i < req->span_count; i++) { /* bodies keep their order */
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
		if (add_over(at, numbered(req, &req->spans[i]), &at) || at > INT64_MAX)
			return too_long(req->spans[i].seg_first, err); /* with its gaps */
	}
	req->total = at;
	if (bodies == req->span_count)
		req->body = at;
	return 0;
}

int pst_spans_make(struct pst_request *req, unsigned spans_max, struct pst_err *err)
{
	int ret = collect(req, spans_max, err);

	if (ret)
		return ret;
	for (unsigned i = 0; i < req->span_count; i++) {
		finish_span(req, &req->spans[i]);
		if (!req->spans[i].route)
			return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED, "no route");
	}
	if (req->op == PENSTOCK_WRITE && req->forced < 0) {
		ret = split_edges(req, spans_max, err);
		if (ret)
			return ret;
	}
	return number(req, err);
}

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

static char *seg_mem(const struct penstock_seg *seg)
{
	return (char *)seg->buf + seg->buf_off;
}

/* Part of one row: storage [from, to), both inside row `row`. */
static int emit_row(const struct penstock_seg *seg, uint64_t row, uint64_t off, uint64_t from,
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

/* The intersection of one segment with [off, end): at most a piece of a row, full
 * rows, and a piece of a row. */
static int seg_parts(const struct penstock_seg *seg, uint64_t off, uint64_t end, pst_part_fn *fn,
		     void *arg)
{
	uint64_t first, last, row_off, full;
	int ret;

	if (!seg->row_len || end <= seg->off)
		return 0;
	first = off > seg->off ? (off - seg->off) / seg->pitch : 0;
	if (first >= seg->rows)
		return 0; /* behind the last row, or in the room of its pitch */
	last = min_u64((end - 1 - seg->off) / seg->pitch, seg->rows - 1);

	row_off = seg->off + first * seg->pitch;
	if (off > row_off || first == last || end < row_off + seg->row_len) {
		ret = emit_row(seg, first, off, max_u64(off, row_off),
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
		return emit_row(seg, last, off, row_off, end, fn, arg);
	return 0;
}

/* The segment that has the byte at `off`, where they are in order and touch; else the
 * span's first. */
static unsigned seg_at(const struct pst_request *req, const struct pst_span *span, uint64_t off)
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

	for (unsigned i = seg_at(req, span, off); i < end; i++) {
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
		return true; /* or what there is of a piece */
	for (unsigned i = seg_at(req, span, off - 1); i < end; i++) {
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

static int keep_first(void *arg, const struct pst_part *part)
{
	struct pst_part *out = arg;

	if (part->at)
		return 0; /* begins later */
	*out = *part;
	return 1;
}

int pst_span_part_at(const struct pst_request *req, const struct pst_span *span, uint64_t off,
		     struct pst_part *out)
{
	const struct penstock_seg *seg = &req->segs[seg_at(req, span, off)];

	if (span->shared || seg_parts(seg, off, span->off + span->len, keep_first, out) != 1)
		return -EINVAL;
	if (out->rows > 1) { /* in place goes a row at a time */
		out->rows = 1;
		out->slack = 0;
	}
	return 0;
}
