/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers the slices of a part, which is a file of a checkpoint: submits requests for them,
 * waits, and computes checksums on the calling thread while the requests are in flight.
 */
#ifndef PST_CKPT_PART_MOVE_H
#define PST_CKPT_PART_MOVE_H

#include "ckpt/slices.h"
#include "weights/report.h"

struct pst_part_move {
	const char *path;		/* name of the file, for messages */
	struct penstock_part_opts opts; /* the caller's options */
	struct penstock_storage *st;	/* the file */
	struct penstock_item *items;	/* copies of the caller's items */
	uint64_t item_count;		/* number of items */
	struct pst_slices slices;	/* the slices of all items */
	bool store_sums;	   /* true: stores checksums in the items; false: compares them */
	bool *unsummed;		   /* for each item: whether its checksum is not known */
	struct pst_report_sum sum; /* the sum of the requests' reports */
};

/*
 * Transfers all slices. Also computes the checksums that are wanted: of a written slice after its
 * request was submitted, of a read slice after its request has completed. If a device cannot
 * compute checksums, the items with memory on this device are marked in `unsummed`. No request is
 * in flight when the function returns.
 */
int pst_part_move(struct pst_part_move *m);

#endif
