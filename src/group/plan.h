/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunks that a group reads, as every rank computes them for itself from the same
 * model; group_plan.c says how.
 */
#ifndef PST_GROUP_PLAN_H
#define PST_GROUP_PLAN_H

#include "group/group.h"

#define PST_NEED_BYTES 16384u /* of what a rank needs, that it says at once */

struct pst_part {		   /* of a file: where its tensors lie */
	uint64_t base, begin, end; /* base: the page that begin lies in */
	uint64_t first;		   /* chunk */
	unsigned store;		   /* that the file is of, a number from 0 on */
};

struct pst_store { /* while a plan is made: chunks of it, and the next */
	uint64_t all, left, next;
};

struct pst_share {
	struct pst_part *parts; /* of each file */
	struct pst_store *stores;
	unsigned part_count, store_count, ranks;
	const struct pst_group_how *how;
	uint64_t chunk, count;
	uint64_t grain;	     /* bytes of a chunk that one bit of what is needed stands for */
	uint64_t grains;     /* of a chunk */
	unsigned char *need; /* by this rank, and once it was dealt out by any: bits */
	uint64_t *lens;	     /* of each chunk what is read, 0: nothing */
	unsigned runs_max;   /* most pieces that a chunk is read in */
	uint64_t *order;     /* what is read: `readers` chunks a round, one for each */
	uint64_t *wanted;    /* the same in a row */
	uint64_t round_count;
	unsigned readers; /* ranks that read */
	unsigned ahead;	  /* rounds that may be under way at once */
};
/* Cuts a model into chunks, none longer than a window, for `ranks` of this host. `how`
 * is there as long as the plan. */
int pst_share_make(struct pst_share *p, const struct penstock_weights *w,
		   const struct pst_group_how *how, unsigned ranks);
void pst_share_free(struct pst_share *p);

/* Bytes of p->need. */
size_t pst_share_need_bytes(const struct pst_share *p);
/* Adds what a rank needs to p->need: contiguous pieces, and of others whole rows. */
void pst_share_need(struct pst_share *p, const struct pst_bits *bits);

/* Deals out p->need. */
void pst_share_deal(struct pst_share *p);

struct pst_chunk {
	uint64_t index;
	unsigned shard;
	uint64_t begin, end; /* in the file: from what is read first of it to the last */
	uint64_t len;	     /* what is read of that */
	uint64_t skip;	     /* from its window's begin on, so that pages stay pages */
};
/* What `rank` reads in a round; false: nothing. */
bool pst_share_chunk(const struct pst_share *p, uint64_t round, unsigned rank,
		     struct pst_chunk *out);
/* A chunk's next piece that is read: of its file, from *end on (0: the first); false: there
 * is none. */
bool pst_share_run(const struct pst_share *p, const struct pst_chunk *c, uint64_t *begin,
		   uint64_t *end);

/* When a host begins, after `jitter_ms` at most: hosts one after the other, each at a
 * random time of its turn. */
uint32_t pst_share_delay(uint32_t jitter_ms, unsigned host, unsigned hosts, uint32_t random);

/* What two ranks that load the same have in common: tensors and chunks, and a file. */
uint64_t pst_share_mix(uint64_t h, uint64_t value);
uint64_t pst_share_table(const struct pst_share *p, const struct penstock_weights *w);
uint64_t pst_share_file(const struct stat *st);

/* Which files share a store, as this rank sees it; where ranks see it differently, all
 * take them for one. */
uint64_t pst_share_stores(const struct pst_share *p);
void pst_share_one_store(struct pst_share *p);

#endif
