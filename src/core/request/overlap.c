/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a write say of one storage byte twice what it shall be? Called by cut.c where
 * segments do not simply follow each other. Merges the rows of all segments in the
 * order of the storage, so that columns of one matrix may lie between each other's, and
 * takes rows that nobody else comes between as one. Arithmetic in memory that is given;
 * must never allocate.
 */
#include "core/request/request.h"

/* The rows of a segment that are still to come. */
struct rows {
	uint64_t off;  /* of the first */
	uint64_t left; /* 0: none */
	unsigned seg;
};

static void sift_down(struct rows *heap, unsigned count, unsigned at)
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

/* Where the first of all other segments' rows begins. */
static uint64_t next_off(const struct rows *heap, unsigned count)
{
	uint64_t off = count > 1 ? heap[1].off : UINT64_MAX;

	return count > 2 && heap[2].off < off ? heap[2].off : off;
}

static unsigned fill(const struct pst_request *req, struct rows *heap)
{
	unsigned count = 0;

	for (unsigned i = 0; i < req->seg_count; i++)
		if (req->segs[i].row_len)
			heap[count++] = (struct rows){req->segs[i].off, req->segs[i].rows, i};
	for (unsigned at = count / 2; at-- > 0;)
		sift_down(heap, count, at);
	return count;
}

int pst_spans_overlap(const struct pst_request *req, void *room, size_t room_len,
		      struct pst_err *err)
{
	struct rows *heap = room;
	uint64_t end = 0; /* of what has been passed */
	unsigned count, last = 0;

	if (room_len / sizeof(*heap) < req->seg_count)
		return pst_fail_errno(err, E2BIG, PENSTOCK_WHY_FULL,
				      "%u segments in no order of theirs, room for %zu",
				      req->seg_count, room_len / sizeof(*heap));
	count = fill(req, heap);
	while (count) {
		struct rows *first = &heap[0];
		const struct penstock_seg *seg = &req->segs[first->seg];
		uint64_t next = next_off(heap, count), n = 1;

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
		sift_down(heap, count, 0);
	}
	return 0;
}
