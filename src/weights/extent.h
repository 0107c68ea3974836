/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list of extents. An extent is a range of one of the model's files, with the memory that the
 * range is copied to. A load first makes its whole list, then submits requests for it. Does no I/O.
 */
#ifndef PST_WEIGHTS_EXTENT_H
#define PST_WEIGHTS_EXTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "penstock.h"

/* One range of a file, and one segment of memory for it. */
struct pst_extent {
	struct penstock_seg seg;
	unsigned file;
	/* own_first: whether the memory page of the extent's first byte holds no other data;
	 * own_last: the same for the page of its last byte. */
	bool own_first, own_last;
	/* Number of bytes before the range that are read too, so that the read starts at a page
	 * boundary. */
	uint16_t lead;
};

struct pst_extents {
	struct pst_extent *list;
	size_t count, capacity;
	/* Maximum length in bytes of an extent that is made by joining others; 0 if there is no
	 * maximum. */
	uint64_t most;
	/* Whether the extents that are added next have memory pages that hold no other data.
	 * pst_extents_add copies it to own_first and own_last. */
	bool own_pages;
	/* Whether the caller allocated the memory; adjacent extents may then be in two
	 * different allocations. */
	bool apart;
};

/* Adds an extent, or extends the list's last extent if the new one is adjacent to it both in the
 * file and in memory. */
int pst_extents_add(struct pst_extents *extents, unsigned file, const struct penstock_seg *seg);
/* Sorts the list by file and offset, and joins extents that the sorting has made neighbours. */
void pst_extents_sort(struct pst_extents *extents);

#endif
