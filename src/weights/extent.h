/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list of extents: ranges of a model's files, each with the memory that it is copied to or
 * from. The loads and the save make one list, then submit it. Does no I/O.
 */
#ifndef PST_WEIGHTS_EXTENT_H
#define PST_WEIGHTS_EXTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "penstock.h"

/* One range of a file and one destination for it. */
struct pst_extent {
	struct penstock_seg seg;
	unsigned file;
	bool own_first, own_last; /* Nothing else shares the first, the last page in memory. */
	uint16_t lead;		  /* Bytes read in front of the range, to begin with a page. */
};

struct pst_extents {
	struct pst_extent *list;
	size_t count, capacity;
	uint64_t most;	/* Largest length that neighbours are joined to; 0: no limit. */
	bool own_pages; /* The extents added next share no page with others. */
	bool apart;	/* The memory is the caller's: adjacent extents may be two allocations. */
};

/* Adds an extent. It is joined to the last one if they are adjacent in the file and in memory. */
int pst_extents_add(struct pst_extents *extents, unsigned file, const struct penstock_seg *seg);
/* Sorts the list by file and offset, and joins extents that become neighbours. */
void pst_extents_sort(struct pst_extents *extents);

#endif
