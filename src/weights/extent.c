/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of extents: joins those that are adjacent in the file and in memory, and sorts them.
 * Called by the loads and by the save. Arithmetic only.
 */
#include "weights/extent.h"

#include <stdlib.h>
#include <string.h>

#include "weights/err.h"

/* No driver copies across two allocations, also where one ends at the other. */
static bool same_allocation(const struct pst_extents *bits, const struct pst_extent *bit)
{
	return !bits->apart || !strcmp(penstock_device_name(bit->seg.dev), "host");
}

static bool extent_join(const struct pst_extents *bits, struct pst_extent *a,
			const struct pst_extent *b)
{
	if (a->file != b->file || a->seg.dev != b->seg.dev || a->seg.rows > 1 || b->seg.rows > 1 ||
	    a->seg.off + a->seg.row_len != b->seg.off ||
	    (char *)a->seg.buf + a->seg.row_len != (char *)b->seg.buf ||
	    !same_allocation(bits, a) ||
	    (bits->most && a->seg.row_len + b->seg.row_len > bits->most))
		return false;
	a->seg.row_len += b->seg.row_len;
	a->own_last = b->own_last;
	return true;
}

int pst_extents_add(struct pst_extents *bits, unsigned file, const struct penstock_seg *seg)
{
	struct pst_extent bit = {*seg, file, bits->own_pages, bits->own_pages, 0};

	if (!seg->row_len || (bits->count && extent_join(bits, &bits->list[bits->count - 1], &bit)))
		return 0;
	if (bits->count == bits->capacity) {
		size_t capacity = bits->capacity ? bits->capacity * 2 : 256;
		struct pst_extent *more = reallocarray(bits->list, capacity, sizeof(*more));

		if (!more)
			return pst_weights_no_memory("the list of pieces");
		bits->list = more;
		bits->capacity = capacity;
	}
	bits->list[bits->count++] = bit;
	return 0;
}

static int in_file_order(const void *a, const void *b)
{
	const struct pst_extent *x = a, *y = b;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return x->seg.off < y->seg.off ? -1 : x->seg.off > y->seg.off;
}

void pst_extents_sort(struct pst_extents *bits)
{
	size_t kept = 0;
	bool sorted = true;

	for (size_t i = 1; i < bits->count && sorted; i++)
		sorted = in_file_order(&bits->list[i - 1], &bits->list[i]) <= 0;
	if (sorted)
		return;
	qsort(bits->list, bits->count, sizeof(*bits->list), in_file_order);
	for (size_t i = 0; i < bits->count; i++)
		if (!kept || !extent_join(bits, &bits->list[kept - 1], &bits->list[i]))
			bits->list[kept++] = bits->list[i];
	bits->count = kept;
}
