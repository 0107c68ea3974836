/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The counters of this process: of requests, chunks, bytes and errors. They are in a memfd named
 * "penstock-stats", which other processes of the same user find in /proc/PID/fd and may read. The
 * memfd exists as long as the process. Its layout has a version, and a reader refuses a version or
 * size that it does not know. Worker threads and queues write the counters with relaxed atomics.
 */
#ifndef PST_CORE_STATS_H
#define PST_CORE_STATS_H

#include <stdatomic.h>

#include "core/ops.h"

#define PST_STATS_NAME "penstock-stats"
#define PST_STATS_MAGIC 0x5453545350415453ull
#define PST_STATS_VERSION 2u
#define PST_STATS_BUCKETS 64 /* latency buckets: two for each power of two in ns */
#define PST_STATS_NOTES 8
#define PST_STATS_NOTE_MAX 488 /* maximum length of a note's text, including its NUL */

/* Counters of one path. */
struct pst_stats_path {
	char name[16];
	_Atomic uint64_t chunks[2]; /* chunks[0] counts reads, chunks[1] counts writes */
	_Atomic uint64_t bytes[2];
	_Atomic uint64_t cpu_copied, dram_laid;
	_Atomic uint64_t errors, retries;
	/* A histogram of the chunks' latencies: the number of chunks in each bucket. A chunk's
	 * latency is the time from when a worker thread takes the chunk from its request until the
	 * chunk completes. */
	_Atomic uint64_t latency[PST_STATS_BUCKETS];
};

/* A note: a message to the user in the counters. To let readers detect a half-written note, the
 * writer stores its number in `begun` first and in `done` last. A reader reads `done` first and
 * `begun` last. If both numbers are equal, it has read the complete text of that note. Otherwise
 * the note was being written. */
struct pst_stats_note {
	_Atomic uint64_t done;	/* number of the note, counted from 1; 0 if there is no note */
	_Atomic uint64_t times; /* how many times this text was reported */
	char text[PST_STATS_NOTE_MAX];
	_Atomic uint64_t begun;
};

struct pst_stats {
	uint64_t magic;
	uint32_t version, size;
	uint32_t pid, path_count;
	_Atomic uint64_t requests, refused, failed, canaries, canaries_failed;
	struct pst_stats_path paths[PST_PATHS_MAX];
	/* The latest notes. A text that is reported again increments `times` of its note, so no two
	 * notes have the same text. */
	struct pst_stats_note notes[PST_STATS_NOTES];
};

extern _Atomic(struct pst_stats *) pst_stats_ready; /* NULL until the counters are created */

/* Creates the counters of the process. They are in ordinary memory if no memfd can be created. */
struct pst_stats *pst_stats_create(void);

/* Returns the counters of the process. */
static inline struct pst_stats *pst_stats_get(void)
{
	struct pst_stats *ready = atomic_load_explicit(&pst_stats_ready, memory_order_acquire);

	return ready ? ready : pst_stats_create();
}

/* Returns the index of the bucket that counts a latency of `ns` nanoseconds. */
static inline unsigned pst_stats_bucket(uint64_t ns)
{
	unsigned log = ns ? 63 - (unsigned)__builtin_clzll(ns) : 0;
	unsigned half = log ? (unsigned)(ns >> (log - 1)) & 1 : 0;
	unsigned bucket = log * 2 + half;

	return bucket < PST_STATS_BUCKETS ? bucket : PST_STATS_BUCKETS - 1;
}
/* Returns the lower bound of a latency bucket in nanoseconds. */
uint64_t pst_stats_bucket_ns(unsigned bucket);

#endif
