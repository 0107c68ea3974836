/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of a group's load: which rank reads which chunk of the model's files in which round.
 * Every rank computes the same plan from the same model; plan.c explains the rules. Does no I/O.
 */
#ifndef PST_GROUP_PLAN_H
#define PST_GROUP_PLAN_H

#include "group/settings.h"
#include "weights/extent.h"
#include "weights/model.h"

/* Number of bytes of the need bitmap (which parts of the files a rank needs) that ranks exchange at
 * one barrier. */
#define PST_NEED_BYTES 16384u

/* The range of a file that holds the model's tensors. */
struct pst_plan_file {
	/* The range is from `begin` to `end` - 1. `base` is `begin`, rounded down to a multiple of
	 * the page size. */
	uint64_t base, begin, end;
	uint64_t first; /* Index of the file's first chunk (unit of reading). */
	unsigned store; /* Index of the store (file system) that holds the file. */
};

/* A file system that holds files of the model. This struct is used only while a plan is
 * computed. */
struct pst_plan_store {
	/* Number of needed chunks in total, and number of needed chunks not yet put into the
	 * list. */
	uint64_t all, left;
	uint64_t next; /* Index of the next needed chunk to be put into the list. */
};

struct pst_group_plan {
	struct pst_plan_file *files;
	struct pst_plan_store *stores;
	unsigned file_count, store_count, ranks;
	const struct pst_group_settings *settings;
	uint64_t chunk, count; /* Length of a chunk in bytes, and the number of chunks. */
	/* Number of bytes of a granule: one bit of `need` stands for one granule. */
	uint64_t granule;
	uint64_t granules; /* Number of granules in each chunk. */
	/* Bitmap of the granules that this rank needs. After the ranks have exchanged their
	 * bitmaps: bitmap of the granules that any rank needs. */
	unsigned char *need;
	uint64_t *lens;	   /* For each chunk: number of bytes to read. */
	unsigned runs_max; /* Largest number of runs (contiguous needed ranges) in one chunk. */
	/* Indices of chunks, sorted by round, then by reader; each round has `readers` elements. */
	uint64_t *order;
	/* Indices of the needed chunks, before they are assigned to readers. */
	uint64_t *needed;
	uint64_t round_count;
	unsigned readers; /* Number of ranks that read. */
	/* Number of rounds whose reads may be in flight at the same time. In a round, each reader
	 * reads one chunk. */
	unsigned ahead;
};

/* Cuts a model into chunks, none longer than a window (the shared buffer into which a rank reads a
 * chunk), for `ranks` ranks of this host. The plan keeps the pointer `settings`, so the struct must
 * outlive the plan. */
int pst_group_plan_make(struct pst_group_plan *p, const struct penstock_weights *w,
			const struct pst_group_settings *settings, unsigned ranks);
/* Frees the lists in a plan. */
void pst_group_plan_free(struct pst_group_plan *p);

/* Returns the length of p->need in bytes. */
size_t pst_group_plan_need_bytes(const struct pst_group_plan *p);
/* Sets the bits of p->need, the bitmap of needed granules, for the bytes of a rank's extents. If an
 * extent has several rows, the bytes between the rows also count as needed. */
void pst_group_plan_add_need(struct pst_group_plan *p, const struct pst_extents *extents);
/* Assigns the needed chunks to readers and rounds. p->need must already have the bits of all
 * ranks. */
void pst_group_plan_deal(struct pst_group_plan *p);

struct pst_group_chunk {
	uint64_t index;
	unsigned file;
	/* File offset of the first byte read, and file offset of the byte after the last byte
	 * read. */
	uint64_t begin, end;
	uint64_t len; /* Number of bytes read between `begin` and `end`. */
	/* Offset of `begin` in the window, the buffer for the chunk. With this offset, file pages
	 * are aligned to memory pages. */
	uint64_t skip;
};

/* Fills *out with the chunk that `rank` reads in a round. Returns false if the rank reads no
 * chunk in this round. */
bool pst_group_plan_chunk(const struct pst_group_plan *p, uint64_t round, unsigned rank,
			  struct pst_group_chunk *out);
/* Finds the next run of a chunk, that is, a contiguous range of the file that is needed, and
 * sets *begin and *end. The search begins at *end; set *end to 0 to find the first run. Returns
 * false if there is no further run. */
bool pst_group_plan_next_run(const struct pst_group_plan *p, const struct pst_group_chunk *c,
			     uint64_t *begin, uint64_t *end);

/* Returns how many ms a host waits before it starts, at most `jitter_ms`. The hosts share
 * `jitter_ms` evenly: each starts at a random time in its own part. */
uint32_t pst_group_plan_delay(uint32_t jitter_ms, unsigned host, unsigned hosts, uint32_t random);

/* Returns a hash of the chunks and of the tensors' positions. Ranks that opened the same model
 * in the same way get the same hash. */
uint64_t pst_group_plan_hash_tensors(const struct pst_group_plan *p,
				     const struct penstock_weights *w);
/* Returns a hash of the numbers that tell which files are in the same store (file system). It may
 * differ between ranks in different mount namespaces. */
uint64_t pst_group_plan_hash_stores(const struct pst_group_plan *p);
/* Treats all files as files of one store (file system). Used if the ranks do not agree on which
 * files share a store. */
void pst_group_plan_merge_stores(struct pst_group_plan *p);

#endif
