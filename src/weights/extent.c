/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements lists of extents, which are ranges of files with the memory for them: joins extents
 * that are adjacent both in the file and in memory, and sorts lists. Called by the code that loads
 * tensors. Does no I/O.
 */
#include "weights/extent.h"

#include <stdlib.h>
#include <string.h>

#include "weights/err.h"

/* Returns true if `extent` and its neighbour in memory may be joined. Extents in two different
 * allocations of a device must not be joined, even if the allocations are adjacent: no GPU
 * driver copies across the boundary. */
static bool same_allocation(const struct pst_extents *extents, const struct pst_extent *extent)
{
	return !extents->apart || !strcmp(penstock_device_name(extent->seg.dev), "host");
}

static bool extent_join(const struct pst_extents *extents, struct pst_extent *a,
			const struct pst_extent *b)
{
	if (a->file != b->file || a->seg.dev != b->seg.dev || a->seg.rows > 1 || b->seg.rows > 1 ||
	    a->seg.off + a->seg.row_len != b->seg.off ||
	    (char *)a->seg.buf + a->seg.row_len != (char *)b->seg.buf ||
	    !same_allocation(extents, a) ||
	    (extents->most && a->seg.row_len + b->seg.row_len > extents->most))
		return false;
	a->seg.row_len += b->seg.row_len;
	a->own_last = b->own_last;
	return true;
}

int pst_extents_add(struct pst_extents *extents, unsigned file, const struct penstock_seg *seg)
{
	struct pst_extent extent = {*seg, file, extents->own_pages, extents->own_pages, 0};

	if (!seg->row_len ||
	    (extents->count && extent_join(extents, &extents->list[extents->count - 1], &extent)))
		return 0;
	if (extents->count == extents->capacity) {
		size_t capacity = extents->capacity ? extents->capacity * 2 : 256;
		struct pst_extent *more = reallocarray(extents->list, capacity, sizeof(*more));

		if (!more)
			return pst_weights_no_memory("the list of pieces");
		extents->list = more;
		extents->capacity = capacity;
	}
	extents->list[extents->count++] = extent;
	return 0;
}

static int in_file_order(const void *a, const void *b)
{
	const struct pst_extent *x = a, *y = b;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return x->seg.off < y->seg.off ? -1 : x->seg.off > y->seg.off;
}

void pst_extents_sort(struct pst_extents *extents)
{
	size_t kept = 0;
	bool sorted = true;

	for (size_t i = 1; i < extents->count && sorted; i++)
		sorted = in_file_order(&extents->list[i - 1], &extents->list[i]) <= 0;
	if (sorted)
		return;
	qsort(extents->list, extents->count, sizeof(*extents->list), in_file_order);
	for (size_t i = 0; i < extents->count; i++)
		if (!kept || !extent_join(extents, &extents->list[kept - 1], &extents->list[i]))
			extents->list[kept++] = extents->list[i];
	extents->count = kept;
}
