/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations that the files of bench_weights share: processes that act as ranks, the shared
 * memory in which they wait for each other and store their results, and the CSV. The ranks are
 * forked before the first driver call. These files use only the public API of the library.
 * limit.c and first.c also call the driver, to measure the machine without the library.
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
	atomic_uint arrived[64]; /* Number of ranks that have reached each barrier. */
	atomic_uint gave_up;
	double killed;
	struct run runs[RANKS_MAX][REPS_MAX];
	struct penstock_export windows[RANKS_MAX];
	char contexts[RANKS_MAX][64]; /* "": no error. */
};

struct job {
	const char *file, *device; /* `file` is the model; `device` is "cuda" or "host". */
	FILE *csv;
	unsigned ranks, reps;
	unsigned windows;
	uint64_t window; /* Bytes of a buffer through which ranks share bytes; 0: the default. */
	enum penstock_effort effort;
	bool kept;  /* Whether the file stays registered with the driver after the first load. */
	bool shard; /* Whether each rank loads only its shard for tensor parallelism, instead of the
		     * whole model. */
	bool into;  /* Whether the memory for the model is allocated before the load. */
	bool verify;
	int dies; /* Rank that is killed during the load; -1 if no rank is killed. */
};

double now(void);
double cpu_time(void);
const char *effort_name(const struct job *job); /* Returns "thrifty", "fast" or "balanced". */
struct shared *shared_new(void);
/* Polls until all ranks have reached the barrier with this number. Returns false if a rank has
 * failed and will not reach it. */
bool ranks_barrier(struct shared *s, unsigned barrier, unsigned ranks);
/* Runs fn in one process for each rank, and waits for all processes. Returns the number of
 * processes that failed. */
unsigned run_ranks(const struct job *job, struct shared *s,
		   int (*fn)(const struct job *job, struct shared *s, unsigned rank));
void device_name(const struct job *job, unsigned rank, char *out, size_t len);
/* Writes the results of one rank's load as a row of the CSV. */
void csv_row(const struct job *job, const char *what, unsigned rep, unsigned rank,
	     const struct run *r);

/* Measures loads by several processes, and prints a table. Defined in group.c. */
int group_bench(const struct job *job);
/* Measures the limits without Penstock. Stores in *link the GB/s of copies of pinned memory over
 * one PCIe link. Stores in *in the GB/s at which all GPUs together receive the file from the page
 * cache, while each GPU copies the bytes from the others. Defined in limit.c. */
int limit_bench(const struct job *job, double *link, double *in);
/* Measures the first and the second load of a process, without Penstock. These loads use only
 * system calls and CUDA driver calls, so that they can be compared with loads by Penstock. Prints a
 * line of JSON. Defined in first.c. */
int first_bench(const struct job *job);
/* Loads two model files with the same number of bytes: `many` has many small tensors, and `one` has
 * one tensor. Measures the additional time for each small tensor. Defined in small.c. */
int small_bench(const struct job *job, const char *many, const char *one);
/* Measures each step of a load in one process. Defined in small.c. */
int load_bench(const struct job *job);

#endif
