/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices: ranges of a part (a data file of a checkpoint) with the memory for their bytes. Requests
 * transfer them. A slice belongs to one item, which is a named range of the part. Does no I/O.
 */
#ifndef PST_CKPT_SLICES_H
#define PST_CKPT_SLICES_H

#include <stdbool.h>

#include "penstock_ckpt.h"

/* Maximum number of bytes of a slice, and of all slices of one request. */
#define PST_SLICE_MAX (16ull << 20)

struct pst_slice {
	struct penstock_seg seg;
	uint64_t item;	 /* index of the item */
	uint32_t crc32c; /* checksum of the slice's bytes, if it has been computed */
	bool sum;	 /* whether the checksum is wanted */
	bool edge;	 /* whether direct paths cannot carry it: too short, or not aligned */
};

struct pst_slices {
	struct pst_slice *list;
	uint64_t count, capacity;
	enum penstock_op op;
	uint64_t align;	 /* alignment that direct paths need in the file, in bytes */
	uint64_t length; /* length of the file, if it is written */
};

/* Adds the slices of one segment of item `item`. `sum` tells whether their checksums are wanted. If
 * the segment names no device, the function finds it. The error message names the file, `path`, and
 * the item, `name`. */
int pst_slices_add(struct pst_slices *s, const char *path, const char *name, uint64_t item,
		   const struct penstock_seg *seg, bool sum);
/* Sorts the slices for requests: first those for direct paths, then the edges (short or unaligned
 * slices), each by offset. */
void pst_slices_sort(struct pst_slices *s);
/* Sorts the slices by item and offset. */
void pst_slices_sort_by_item(struct pst_slices *s);
/* Returns the index after the last slice of the request that begins with slice `first`. A request
 * has at most `count_max` slices. */
uint64_t pst_slices_batch_end(const struct pst_slices *s, uint64_t first, uint64_t count_max);

#endif
