/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of a group's load: which rank reads which chunk of the model's files in which round.
 * Every rank computes the same plan from the same model; plan.c has the rules. Arithmetic only.
 */
#ifndef PST_GROUP_PLAN_H
#define PST_GROUP_PLAN_H

#include "group/settings.h"
#include "weights/extent.h"
#include "weights/model.h"

/* Bytes of the need bitmap that ranks exchange at one barrier. */
#define PST_NEED_BYTES 16384u

/* The range of a file that holds the model's tensors. */
struct pst_plan_file {
	uint64_t base, begin, end; /* base: `begin` rounded down to a page. */
	uint64_t first;		   /* Index of the file's first chunk. */
	unsigned store;		   /* Number of the store that holds the file. */
};

/* A file system that serves files of the model. Used while a plan is made. */
struct pst_plan_store {
	uint64_t all, left; /* Needed chunks in total, and those not dealt out yet. */
	uint64_t next;	    /* The next needed chunk. */
};

struct pst_group_plan {
	struct pst_plan_file *files;
	struct pst_plan_store *stores;
	unsigned file_count, store_count, ranks;
	const struct pst_group_settings *settings;
	uint64_t chunk, count; /* Bytes of a chunk, and the number of chunks. */
	uint64_t granule;      /* Bytes that one bit of `need` stands for. */
	uint64_t granules;     /* Granules of a chunk. */
	unsigned char *need;   /* Bitmap of what this rank needs; after the exchange, any rank. */
	uint64_t *lens;	       /* Bytes to read of each chunk. */
	unsigned runs_max;     /* Most runs that any chunk is read in. */
	uint64_t *order;       /* Chunks by round, then by reader: `readers` in each round. */
	uint64_t *needed;      /* The needed chunks as one list, before they are dealt out. */
	uint64_t round_count;
	unsigned readers; /* Ranks that read. */
	unsigned ahead;	  /* Rounds whose reads may be in flight at once. */
};

/* Cuts a model into chunks, none longer than a window, for `ranks` ranks of this host. The plan
 * keeps the pointer `settings`. */
int pst_group_plan_make(struct pst_group_plan *p, const struct penstock_weights *w,
			const struct pst_group_settings *settings, unsigned ranks);
/* Frees a plan's lists. */
void pst_group_plan_free(struct pst_group_plan *p);

/* Returns the bytes of p->need. */
size_t pst_group_plan_need_bytes(const struct pst_group_plan *p);
/* Sets the bits of p->need that a rank's extents touch. Of an extent of several rows the bytes
 * between the rows count as needed. */
void pst_group_plan_add_need(struct pst_group_plan *p, const struct pst_extents *extents);
/* Deals out the needed chunks to readers and rounds, once p->need has the bits of all ranks. */
void pst_group_plan_deal(struct pst_group_plan *p);

struct pst_group_chunk {
	uint64_t index;
	unsigned file;
	uint64_t begin, end; /* Offsets in the file of the first and behind the last byte read. */
	uint64_t len;	     /* Bytes read between the two. */
	uint64_t skip;	     /* Offset of `begin` in the window, which keeps pages aligned. */
};

/* Fills *out with the chunk that `rank` reads in a round. Returns false if there is none. */
bool pst_group_plan_chunk(const struct pst_group_plan *p, uint64_t round, unsigned rank,
			  struct pst_group_chunk *out);
/* Finds the chunk's next run, a range of the file that is needed, at or after *end (0: the
 * first). Returns false if there is none. */
bool pst_group_plan_next_run(const struct pst_group_plan *p, const struct pst_group_chunk *c,
			     uint64_t *begin, uint64_t *end);

/* Returns how long a host waits before it starts, `jitter_ms` at most: hosts start one after the
 * other, each at a random time of its share of `jitter_ms`. */
uint32_t pst_group_plan_delay(uint32_t jitter_ms, unsigned host, unsigned hosts, uint32_t random);

/* Returns a hash of the chunks and the tensors' places, which is equal on ranks that opened the
 * same model in the same way. */
uint64_t pst_group_plan_hash_tensors(const struct pst_group_plan *p,
				     const struct penstock_weights *w);
/* Returns a hash of which files share a store. Ranks of different mount namespaces may differ. */
uint64_t pst_group_plan_hash_stores(const struct pst_group_plan *p);
/* Makes all files belong to one store, for ranks that see the stores differently. */
void pst_group_plan_merge_stores(struct pst_group_plan *p);

#endif
