/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of this benchmark share: processes that stand for ranks, forked before
 * anybody has called the driver, the memory in which they meet and leave their figures,
 * and the CSV. The library is called by its public API only; limit.c calls the driver
 * besides, to measure what the machine can do without the library.
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
	double begin, end, cpu; /* seconds */
	uint64_t read, bytes, cpu_copied;
	int ret;
	char path[24], text[256];
};

struct shared {
	atomic_uint arrived[64]; /* of each meeting */
	atomic_uint gave_up;
	double killed;
	struct run runs[RANKS_MAX][REPS_MAX];
	struct penstock_export windows[RANKS_MAX];
	char contexts[RANKS_MAX][64]; /* "": as it should be */
};

struct job {
	const char *file, *device; /* "cuda", "host" */
	FILE *csv;
	unsigned ranks, reps;
	unsigned windows;
	uint64_t window; /* bytes; 0: the library's */
	enum penstock_effort effort;
	bool kept;  /* registrations, from the second load on */
	bool shard; /* as a tensor parallelism has it, else each rank gets all */
	bool into;  /* memory that is there before */
	bool verify;
	int dies; /* this rank, in mid-load; -1: none */
};

double now(void);
double cpu_time(void);
struct shared *shared_new(void);
/* Waits, by looking, until all ranks are at this meeting; false: one has given up. */
bool meet(struct shared *s, unsigned meeting, unsigned ranks);
/* Runs fn in a process for each rank, to their end; the number that did not return 0. */
unsigned run_ranks(const struct job *job, struct shared *s,
		   int (*fn)(const struct job *job, struct shared *s, unsigned rank));
void device_name(const struct job *job, unsigned rank, char *out, size_t len);
/* The row of one run of one rank. */
void csv_row(const struct job *job, const char *what, unsigned rep, unsigned rank,
	     const struct run *r);

/* group.c */
int group_bench(const struct job *job);
/* limit.c: what the machine does without the library; one link's GB/s into *link, the
 * most that goes in with all copies running into *in. */
int limit_bench(const struct job *job, double *link, double *in);
/* first.c: prints a line of JSON */
int first_bench(const struct job *job);
/* small.c */
int small_bench(const struct job *job, const char *many, const char *one);
int load_bench(const struct job *job);

#endif
