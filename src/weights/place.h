/* SPDX-License-Identifier: Apache-2.0 */
/* Computes where tensors are placed in an allocation; place.c explains the rules. Does no I/O. */
#ifndef PST_WEIGHTS_PLACE_H
#define PST_WEIGHTS_PLACE_H

#include "weights/extent.h"
#include "weights/model.h"

/*
 * Computes the offset of each of the tensors [first, first + count) in an allocation that is
 * aligned to 4096 bytes. Returns the number of bytes that the tensors need in all. Tensors that are
 * contiguous in their file stay contiguous as long as each of them is aligned. `least` is the
 * minimum alignment of each tensor in bytes, 0 if there is no minimum.
 */
uint64_t pst_place_tensors(const struct penstock_weights *w, uint64_t first, uint64_t count,
			   uint64_t least, uint64_t *offs);

/*
 * Places one tensor, or a part of one, at or after offset `at` of an allocation, and returns the
 * offset chosen. `len` is its length in bytes. `off` is its offset in the file if it is contiguous
 * there, else 0. `least` is its minimum alignment. *end becomes the first offset at which the next
 * tensor may be placed.
 */
uint64_t pst_place_one(uint64_t at, uint64_t off, uint64_t len, enum penstock_dtype dtype,
		       uint64_t least, uint64_t *end);
/* Returns true if pst_place_one gives a tensor with these properties memory pages that no other
 * tensor shares. */
bool pst_place_has_own_pages(uint64_t off, uint64_t len, enum penstock_dtype dtype, uint64_t least);

/*
 * Widens each long extent (a range of a file with the memory for it) to whole pages, which direct
 * paths need. Does not widen an extent at an end where it shares a page with other data. Returns
 * the total number of bytes added in front of extents.
 */
uint64_t pst_place_widen(struct pst_extents *extents);

#endif
