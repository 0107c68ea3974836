/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computes where each tensor lies in one allocation. Tensors that are contiguous in their file stay
 * contiguous in memory; such a group is called a stretch. A stretch is read as one segment and
 * keeps its file offset modulo the page size, which direct paths need. A tensor that would not be
 * aligned for its dtype begins a new stretch. No other stretch uses the first and the last memory
 * page of a long stretch, so whole pages can be read there. Called by load.c and iter.c. Does no
 * I/O.
 */
#include "weights/place.h"

#define PAGE 4096u
/* Minimum length in bytes of a stretch (tensors that are contiguous in their file) that keeps its
 * offset within a page. For a shorter stretch, direct paths would gain nothing. */
#define SHORT_STRETCH 65536u
#define SHORT_ALIGN 64u

struct stretch {
	uint64_t first, end; /* Indices of the stretch's tensors: from `first` to end - 1. */
	uint64_t off, len;   /* Offset and length in the file, in bytes. */
	/* Remainder of the tensors' file offsets modulo the alignment; all tensors of a stretch
	 * have the same remainder. */
	uint64_t shift;
	uint64_t align; /* Largest alignment that any of its tensors needs. */
};

/* Returns the alignment of a tensor in bytes: the size of an element, or `least` if `least` is
 * larger. Elements smaller than a byte need no alignment. */
static uint64_t align_of(enum penstock_dtype dtype, uint64_t least)
{
	uint64_t bytes = penstock_dtype_bits(dtype) / 8;

	return bytes > least ? bytes : least ? least : 1;
}

static void find_stretch(const struct penstock_weights *w, uint64_t first, uint64_t end,
			 uint64_t least, struct stretch *s)
{
	const struct pst_tensor_entry *e = &w->entries[first];
	uint64_t data = w->files[e->file].data_off;

	s->first = first;
	s->off = data + e->t->begin;
	s->len = 0;
	s->align = align_of(e->t->dtype, least);
	s->shift = s->off % s->align;
	for (s->end = first; s->end < end; s->end++) {
		const struct pst_tensor_entry *next = &w->entries[s->end];
		uint64_t align = align_of(next->t->dtype, least);

		if (next->file != e->file || data + next->t->begin != s->off + s->len ||
		    (s->off + s->len - s->shift) % align)
			return;
		s->len += next->t->end - next->t->begin;
		if (align > s->align)
			s->align = align;
	}
}

uint64_t pst_place_tensors(const struct penstock_weights *w, uint64_t first, uint64_t count,
			   uint64_t least, uint64_t *offs)
{
	uint64_t at = 0, end = first + count;
	struct stretch s;

	for (uint64_t i = first; i < end; i = s.end) {
		uint64_t phase;
		bool pages;

		find_stretch(w, i, end, least, &s);
		pages = s.len >= SHORT_STRETCH && !s.shift;
		phase = pages ? PAGE : s.align > SHORT_ALIGN ? s.align : SHORT_ALIGN;
		if (pages)
			at = (at + PAGE - 1) / PAGE * PAGE;
		at += (s.off - s.shift - at) & (phase - 1);
		for (uint64_t t = s.first; t < s.end; t++)
			offs[t - first] = at + w->files[w->entries[t].file].data_off +
					  w->entries[t].t->begin - s.off;
		at += s.len;
		if (pages)
			at = (at + PAGE - 1) / PAGE * PAGE;
	}
	return at;
}

bool pst_place_has_own_pages(uint64_t off, uint64_t len, enum penstock_dtype dtype, uint64_t least)
{
	return off && len >= SHORT_STRETCH && !(off % align_of(dtype, least));
}

uint64_t pst_place_one(uint64_t at, uint64_t off, uint64_t len, enum penstock_dtype dtype,
		       uint64_t least, uint64_t *end)
{
	uint64_t align = align_of(dtype, least);

	if (pst_place_has_own_pages(off, len, dtype, least)) {
		at = (at + PAGE - 1) / PAGE * PAGE + off % PAGE;
		*end = (at + len + PAGE - 1) / PAGE * PAGE;
		return at;
	}
	align = align > SHORT_ALIGN ? align : SHORT_ALIGN;
	at = (at + align - 1) / align * align;
	*end = at + len;
	return at;
}

static bool is_next(const struct pst_extent *a, const struct pst_extent *b)
{
	return a->file == b->file && a->seg.off + a->seg.row_len == b->seg.off &&
	       a->seg.dev == b->seg.dev;
}

uint64_t pst_place_widen(struct pst_extents *extents)
{
	uint64_t lead = 0;

	for (size_t i = 0; i < extents->count; i++) {
		struct penstock_seg *seg = &extents->list[i].seg;
		uint64_t before = seg->off % PAGE;

		if (seg->rows > 1 || seg->row_len < SHORT_STRETCH ||
		    (uintptr_t)seg->buf % PAGE != before)
			continue;
		/* A stretch (tensors that are contiguous in their file) may have been cut into
		 * extents of `request_bytes` bytes. The last page of such an extent also holds the
		 * beginning of the next extent. So only the last extent of a stretch may be widened
		 * at its end. */
		if (extents->list[i].own_last &&
		    (i + 1 == extents->count || !is_next(&extents->list[i], &extents->list[i + 1])))
			seg->room = -(seg->off + seg->row_len) % PAGE;
		if (!extents->list[i].own_first ||
		    (i && is_next(&extents->list[i - 1], &extents->list[i])))
			continue;
		seg->buf = (char *)seg->buf - before;
		seg->off -= before;
		seg->row_len += before;
		extents->list[i].lead = (uint16_t)before;
		lead += before;
	}
	return lead;
}
