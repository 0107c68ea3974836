/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters that another process of the same user may read: a memfd named
 * "penstock-stats", found through /proc/PID/fd, gone with the process. The layout
 * is versioned; readers refuse a version or size that they do not know. All words
 * are written with relaxed atomics by lanes.
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
#define PST_STATS_NOTE_MAX 488 /* with its NUL */

struct pst_stats_path {
	char name[16];
	_Atomic uint64_t chunks[2]; /* read, write */
	_Atomic uint64_t bytes[2];
	_Atomic uint64_t cpu_copied, dram_laid;
	_Atomic uint64_t errors, retries;
	_Atomic uint64_t latency[PST_STATS_BUCKETS]; /* claim to end, by bucket */
};

/* Read from first to last while it may be written from last to first: where both
 * numbers agree, so does what lies between them. */
struct pst_stats_note {
	_Atomic uint64_t done; /* number of the note, from 1 */
	_Atomic uint64_t times;
	char text[PST_STATS_NOTE_MAX];
	_Atomic uint64_t begun;
};

struct pst_stats {
	uint64_t magic;
	uint32_t version, size;
	uint32_t pid, path_count;
	_Atomic uint64_t requests, refused, failed, canaries, canaries_failed;
	struct pst_stats_path paths[PST_PATHS_MAX];
	struct pst_stats_note notes[PST_STATS_NOTES]; /* the latest, each text once */
};

/* The process's counters; ordinary memory where a memfd cannot be had. */
struct pst_stats *pst_stats_get(void);

/* Bucket of a latency and its lower bound. */
unsigned pst_stats_bucket(uint64_t ns);
uint64_t pst_stats_bucket_ns(unsigned bucket);

#endif
