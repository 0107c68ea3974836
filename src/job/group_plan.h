/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunks that a group reads, as every rank computes them for itself from the same
 * model; group_plan.c says how.
 */
#ifndef PST_JOB_GROUP_PLAN_H
#define PST_JOB_GROUP_PLAN_H

#include "job/weights.h"

#define PST_NEED_BYTES 16384u /* of which chunks a rank needs, at most */

struct pst_part { /* of a file: where its tensors lie */
	uint64_t base, begin, end; /* base: the page that begin lies in */
	uint64_t first;		   /* chunk */
};

struct pst_share {
	struct pst_part *parts; /* of each file */
	unsigned part_count;
	uint64_t chunk, count;
	uint64_t unit;	/* chunks that one bit of what is needed stands for */
	uint64_t *order; /* the chunks that are read, dealt to ranks in turn */
	uint64_t order_count;
};
/* In about `shares` chunks or more, none longer than a window. */
int pst_share_make(struct pst_share *p, const struct penstock_weights *w, uint64_t window,
		  unsigned shares);
void pst_share_free(struct pst_share *p);

/* Which chunks a rank needs: bits, PST_NEED_BYTES at most. */
size_t pst_share_need_bytes(const struct pst_share *p);
void pst_share_need(const struct pst_share *p, const struct pst_bits *bits, unsigned char *need);
/* What all need together becomes p->order. */
void pst_share_deal(struct pst_share *p, const unsigned char *need);

struct pst_chunk {
	unsigned shard;
	uint64_t begin, end; /* in the file */
	uint64_t skip;	     /* from its window's begin on, so that pages stay pages */
};
void pst_share_chunk(const struct pst_share *p, uint64_t index, struct pst_chunk *out);

/* What two ranks that load the same have in common: tensors and chunks, and a file. */
uint64_t pst_share_table(const struct pst_share *p, const struct penstock_weights *w);
uint64_t pst_share_file(const struct stat *st);

#endif
