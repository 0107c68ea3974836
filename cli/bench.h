/* SPDX-License-Identifier: Apache-2.0 */
/* penstock bench in three parts: the run (bench.c), what bounds it (bench_limits.c),
 * options and output (bench_main.c). */
#ifndef PENSTOCK_CLI_BENCH_H
#define PENSTOCK_CLI_BENCH_H

#include "cli.h"

#define BENCH_BUCKETS 1024

struct bench_args {
	const char *storage, *device, *path, *engine;
	uint64_t block, size;
	unsigned depth, lanes;
	double runtime;
	bool write, random, cold, warm, cpu_load, limits, json, overwrite, own_lane;
	enum penstock_class require;
	enum penstock_effort effort;
};

struct bench_result {
	struct tally tally;
	uint64_t ops, length;
	uint64_t latency[BENCH_BUCKETS];
	double seconds, cpu_seconds;
	bool refused;
	int stopped; /* the exit code for the signal that ended it early */
	char error[LINE_MAX_BYTES];
};

/* One run. 0, or an exit code with out->error set. */
int bench_run(const struct bench_args *a, struct bench_result *out);
/* In microseconds; share 0.5 is the median. */
double bench_percentile(const struct bench_result *r, double share);

/* Drops the file's pages, or reads them in; -EBUSY: they are not gone, not there, or
 * nobody can tell. */
int bench_make_cold(const char *path);
int bench_make_warm(const char *path, uint64_t length);

/*
 * What bounds a run: for warm reads, threads copying the same page cache into host
 * memory; otherwise threads reading (or writing) another half of the file with
 * O_DIRECT. GB/s, NAN when it cannot be measured; *what says what it is.
 */
double bench_limit(const struct bench_args *a, uint64_t length, const char **what);

#endif
