/* SPDX-License-Identifier: Apache-2.0 */
/* Where tensors are placed in an allocation; place.c has the rules. Arithmetic only. */
#ifndef PST_WEIGHTS_PLACE_H
#define PST_WEIGHTS_PLACE_H

#include "weights/extent.h"
#include "weights/model.h"

/*
 * Computes the offsets of tensors [first, first + count) in memory that is aligned to 4096, and
 * returns how many bytes they need. Tensors that are contiguous in their file stay contiguous as
 * long as each of them is aligned. `align`: the least alignment of a tensor, 0: none.
 */
uint64_t pst_place_tensors(const struct penstock_weights *w, uint64_t first, uint64_t count,
			   uint64_t align, uint64_t *offs);

/*
 * Places one tensor, or a part of one, of `len` bytes at or after offset `at`, and returns its
 * offset. `off` is its offset in the file if it is contiguous there, else 0. *end is the first
 * offset at which the next may be placed.
 */
uint64_t pst_place_one(uint64_t at, uint64_t off, uint64_t len, enum penstock_dtype dtype,
		       uint64_t least, uint64_t *end);
/* Returns true if pst_place_one gives such a tensor pages of its own. */
bool pst_place_has_own_pages(uint64_t off, uint64_t len, enum penstock_dtype dtype, uint64_t least);

/*
 * Widens long extents that have pages of their own to whole pages, which direct paths need.
 * Returns how many bytes were added in front of extents.
 */
uint64_t pst_place_widen(struct pst_extents *extents);

#endif
