/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes slices from segments. A direct path can move the aligned middle of a long segment, but not
 * its unaligned ends or a short segment. If one request contained all of them, a chunk (a unit of
 * transfer) could begin in a short segment and end in a long one, and no direct path could carry
 * this chunk. So the aligned middles come first, in requests of their own. All other bytes, the
 * edges, come after them. Called by part.c. Does no I/O.
 */
#include "ckpt/slices.h"

#include <errno.h>
#include <stdlib.h>

#include "weights/err.h"

#define PAGE 4096u
/* Minimum length in bytes of a segment whose aligned middle becomes a slice of its own. For shorter
 * segments, direct paths gain nothing. */
#define PAYLOAD_MIN 65536u

static int slice_add(struct pst_slices *s, const struct pst_slice *slice)
{
	if (s->count == s->capacity) {
		uint64_t capacity = s->capacity ? s->capacity * 2 : 256;
		struct pst_slice *more = reallocarray(s->list, capacity, sizeof(*more));

		if (!more)
			return pst_weights_no_memory("the list of slices");
		s->list = more;
		s->capacity = capacity;
	}
	s->list[s->count++] = *slice;
	return 0;
}

/* Cuts `len` bytes of the slice `whole`, from byte `at` on, into slices of at most PST_SLICE_MAX
 * bytes, and adds them. They end at multiples of PST_SLICE_MAX in the file. Only a slice that ends
 * where `whole` ends has the spare memory (`room`) after it. */
static int range_add(struct pst_slices *s, const struct pst_slice *whole, uint64_t at, uint64_t len,
		     bool edge)
{
	struct pst_slice slice = *whole;
	uint64_t end = at + len;
	int ret = 0;

	slice.edge = edge;
	for (; at < end && !ret; at += slice.seg.row_len) {
		slice.seg.off = whole->seg.off + at;
		slice.seg.buf = (char *)whole->seg.buf + at;
		slice.seg.row_len = PST_SLICE_MAX - slice.seg.off % PST_SLICE_MAX;
		if (slice.seg.row_len > end - at)
			slice.seg.row_len = end - at;
		else if (slice.seg.row_len > PAGE && slice.seg.row_len + 1 == end - at)
			/* Makes this slice shorter, so that the last slice has more than one byte:
			 * a copy of one byte to a GPU can wait for other streams. */
			slice.seg.row_len -= PAGE;
		slice.seg.room = at + slice.seg.row_len == whole->seg.row_len ? whole->seg.room : 0;
		ret = slice_add(s, &slice);
	}
	return ret;
}

/* Returns whether the memory has enough room after the segment to transfer its last block as a
 * whole. */
static bool tail_has_room(const struct pst_slices *s, const struct penstock_seg *seg)
{
	uint64_t end = seg->off + seg->row_len;

	return seg->room >= -end % s->align && (s->op == PENSTOCK_READ || end == s->length);
}

/* Adds slices for a segment that is contiguous in the file and in memory. */
static int dense_add(struct pst_slices *s, const struct pst_slice *whole)
{
	const struct penstock_seg *seg = &whole->seg;
	uint64_t head = -seg->off % s->align, tail = (seg->off + seg->row_len) % s->align;
	int ret;

	/* Avoids slices of one byte: a copy of one byte to a GPU can wait for other streams. */
	head += head == 1 ? s->align : 0;
	tail = tail_has_room(s, seg) ? 0 : tail == 1 ? 1 + s->align : tail;
	if (seg->row_len < PAYLOAD_MIN || head + tail >= seg->row_len ||
	    ((uintptr_t)seg->buf + head) % PAGE)
		return range_add(s, whole, 0, seg->row_len, true);
	ret = range_add(s, whole, 0, head, true);
	if (!ret)
		ret = range_add(s, whole, head, seg->row_len - head - tail, false);
	return ret ? ret : range_add(s, whole, seg->row_len - tail, tail, true);
}

/* Adds slices for a segment that is not contiguous in the file or in memory. A long row becomes
 * slices of its own. Several short rows become one slice. */
static int rows_add(struct pst_slices *s, const struct pst_slice *whole)
{
	const struct penstock_seg *seg = &whole->seg;
	uint64_t step = seg->row_len < PAYLOAD_MIN ? PST_SLICE_MAX / seg->row_len : 1;
	int ret = 0;

	for (uint64_t row = 0; row < seg->rows && !ret; row += step) {
		struct pst_slice slice = *whole;
		uint64_t left = seg->rows - row;

		slice.edge = true;
		slice.seg.rows = left < step ? left : step;
		slice.seg.off += row * seg->pitch;
		slice.seg.buf = (char *)seg->buf + row * seg->buf_pitch;
		slice.seg.room = left <= step ? seg->room : 0;
		ret = step == 1 ? dense_add(s, &slice) : slice_add(s, &slice);
	}
	return ret;
}

int pst_slices_add(struct pst_slices *s, const char *path, const char *name, uint64_t item,
		   const struct penstock_seg *seg, bool sum)
{
	struct pst_slice slice = {.seg = *seg, .item = item, .sum = sum};
	struct penstock_seg *own = &slice.seg;

	if (!own->row_len)
		return 0;
	if (!own->buf)
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, path, name, own->off,
					"a segment's address is NULL");
	own->buf = (char *)own->buf + own->buf_off;
	own->buf_off = 0;
	if (!own->dev) {
		int ret = penstock_device_of(own->buf, &own->dev);

		if (ret)
			return pst_weights_fail_lib(ret, path, name, own->off);
	}
	if (own->rows > 1 && own->pitch == own->row_len && own->buf_pitch == own->row_len) {
		own->row_len *= own->rows;
		own->rows = 1;
	}
	return own->rows > 1 ? rows_add(s, &slice) : dense_add(s, &slice);
}

static int in_request_order(const void *a, const void *b)
{
	const struct pst_slice *x = a, *y = b;

	if (x->edge != y->edge)
		return x->edge ? 1 : -1;
	return x->seg.off < y->seg.off ? -1 : x->seg.off > y->seg.off;
}

void pst_slices_sort(struct pst_slices *s)
{
	if (s->count)
		qsort(s->list, s->count, sizeof(*s->list), in_request_order);
}

static int in_item_order(const void *a, const void *b)
{
	const struct pst_slice *x = a, *y = b;

	if (x->item != y->item)
		return x->item < y->item ? -1 : 1;
	return x->seg.off < y->seg.off ? -1 : x->seg.off > y->seg.off;
}

void pst_slices_sort_by_item(struct pst_slices *s)
{
	if (s->count)
		qsort(s->list, s->count, sizeof(*s->list), in_item_order);
}

/* Returns whether slice `i` may be in the same request as the slice before it. The library would
 * move a contiguous range with memory of two devices as one unit, and no direct path can do
 * that. */
static bool slice_follows(const struct pst_slices *s, uint64_t i)
{
	const struct pst_slice *a = &s->list[i - 1], *b = &s->list[i];

	return a->edge == b->edge &&
	       (a->edge || a->seg.dev == b->seg.dev || a->seg.off + a->seg.row_len != b->seg.off);
}

uint64_t pst_slices_batch_end(const struct pst_slices *s, uint64_t first, uint64_t count_max)
{
	uint64_t bytes = 0, i = first;

	for (; i < s->count && i - first < count_max; i++) {
		const struct penstock_seg *seg = &s->list[i].seg;

		bytes += seg->row_len * (seg->rows ? seg->rows : 1);
		if (i > first && (bytes > PST_SLICE_MAX || !slice_follows(s, i)))
			break;
	}
	return i;
}
