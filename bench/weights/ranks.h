/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of bench_weights: processes that play the ranks, forked before any driver
 * call; the shared memory in which they wait for each other and leave their results; and the
 * CSV. The library is called by its public API only. limit.c and first.c also call the driver,
 * to measure what the machine can do without the library.
 */
#ifndef RANKS_H
#define RANKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "penstock_weights.h"

#define RANKS_MAX 8u
#define REPS_MAX 16u
#define MIB (1024ull * 1024)

struct run {
	double begin, end, cpu; /* Seconds. */
	uint64_t read, bytes, cpu_copied;
	int ret;
	char path[24], text[256];
};

struct shared {
	atomic_uint arrived[64]; /* For each barrier. */
	atomic_uint gave_up;
	double killed;
	struct run runs[RANKS_MAX][REPS_MAX];
	struct penstock_export windows[RANKS_MAX];
	char contexts[RANKS_MAX][64]; /* "": no error. */
};

struct job {
	const char *file, *device; /* device: "cuda" or "host". */
	FILE *csv;
	unsigned ranks, reps;
	unsigned windows;
	uint64_t window; /* Bytes; 0: the library's default. */
	enum penstock_effort effort;
	bool kept;  /* Registrations are kept from the first load on. */
	bool shard; /* Each rank loads its part of a tensor parallelism; else all of the model. */
	bool into;  /* The memory for the model is allocated before the load. */
	bool verify;
	int dies; /* The rank that is killed during the load; -1: none. */
};

double now(void);
double cpu_time(void);
struct shared *shared_new(void);
/* Waits, by polling, until all ranks have reached this barrier. Returns false if one has given
 * up. */
bool ranks_barrier(struct shared *s, unsigned barrier, unsigned ranks);
/* Runs fn in a process for each rank and waits for all. Returns how many failed. */
unsigned run_ranks(const struct job *job, struct shared *s,
		   int (*fn)(const struct job *job, struct shared *s, unsigned rank));
void device_name(const struct job *job, unsigned rank, char *out, size_t len);
/* Writes the CSV row of one rank's run. */
void csv_row(const struct job *job, const char *what, unsigned rep, unsigned rank,
	     const struct run *r);

/* In group.c. */
int group_bench(const struct job *job);
/* In limit.c. *link: GB/s over one link; *in: the most GB/s that all GPUs receive while all
 * copies run. */
int limit_bench(const struct job *job, double *link, double *in);
/* In first.c: prints a line of JSON. */
int first_bench(const struct job *job);
/* In small.c. */
int small_bench(const struct job *job, const char *many, const char *one);
int load_bench(const struct job *job);

#endif
