/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The counters of this process, which other processes of the same user may read: a memfd named
 * "penstock-stats", found through /proc/PID/fd. It exists as long as the process. The layout has
 * a version, and a reader refuses a version or size that it does not know. Lanes and queues
 * write the counters with relaxed atomics.
 */
#ifndef PST_CORE_STATS_H
#define PST_CORE_STATS_H

#include <stdatomic.h>

#include "core/ops.h"

#define PST_STATS_NAME "penstock-stats"
#define PST_STATS_MAGIC 0x5453545350415453ull
#define PST_STATS_VERSION 2u
#define PST_STATS_BUCKETS 64 /* two for each power of two of nanoseconds */
#define PST_STATS_NOTES 8
#define PST_STATS_NOTE_MAX 488 /* bytes of a note with its NUL */

/* Counters of one path. */
struct pst_stats_path {
	char name[16];
	_Atomic uint64_t chunks[2]; /* read, write */
	_Atomic uint64_t bytes[2];
	_Atomic uint64_t cpu_copied, dram_laid;
	_Atomic uint64_t errors, retries;
	_Atomic uint64_t latency[PST_STATS_BUCKETS]; /* chunks by the bucket of their time from
							claim to completion */
};

/* A note: a message for the reader of the counters. The writer writes `begun` first and `done`
 * last; a reader reads the members in order. If both numbers are equal, the reader has the text
 * of that note; otherwise the note was being written. */
struct pst_stats_note {
	_Atomic uint64_t done;	/* number of the note, from 1; 0: no note */
	_Atomic uint64_t times; /* how often the text was noted */
	char text[PST_STATS_NOTE_MAX];
	_Atomic uint64_t begun;
};

struct pst_stats {
	uint64_t magic;
	uint32_t version, size;
	uint32_t pid, path_count;
	_Atomic uint64_t requests, refused, failed, canaries, canaries_failed;
	struct pst_stats_path paths[PST_PATHS_MAX];
	struct pst_stats_note notes[PST_STATS_NOTES]; /* the latest notes, each text once */
};

extern _Atomic(struct pst_stats *) pst_stats_ready; /* NULL: not created yet */

/* Creates the counters of the process, in ordinary memory if there can be no memfd. */
struct pst_stats *pst_stats_create(void);

/* Returns the counters of the process. */
static inline struct pst_stats *pst_stats_get(void)
{
	struct pst_stats *ready = atomic_load_explicit(&pst_stats_ready, memory_order_acquire);

	return ready ? ready : pst_stats_create();
}

/* Returns the bucket of a latency. */
static inline unsigned pst_stats_bucket(uint64_t ns)
{
	unsigned log = ns ? 63 - (unsigned)__builtin_clzll(ns) : 0;
	unsigned half = log ? (unsigned)(ns >> (log - 1)) & 1 : 0;
	unsigned bucket = log * 2 + half;

	return bucket < PST_STATS_BUCKETS ? bucket : PST_STATS_BUCKETS - 1;
}
/* Returns the lower bound of a bucket in nanoseconds. */
uint64_t pst_stats_bucket_ns(unsigned bucket);

#endif
