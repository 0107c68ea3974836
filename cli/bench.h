/* SPDX-License-Identifier: Apache-2.0 */
/* One measurement of `penstock bench`, and the state of the file in the page cache. */
#ifndef PENSTOCK_CLI_BENCH_H
#define PENSTOCK_CLI_BENCH_H

#include "args.h"
#include "tally.h"

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
	uint64_t latency[BENCH_BUCKETS]; /* number of requests in each bucket */
	double seconds, cpu_seconds;
	bool refused; /* no open path meets the required class */
	int stopped;  /* exit code for the signal that ended the run early; 0: none */
	char error[LINE_MAX_BYTES];
};

/* Measures one run. Returns 0, or an exit code with the message in out->error. */
int bench_run(const struct bench_args *a, struct bench_result *out);
/* Returns the latency in microseconds that this share of the requests did not exceed; share
 * 0.5 is the median. */
double bench_percentile(const struct bench_result *r, double share);

/* Drop the file's pages from the page cache, or read them into it. Return 0, -errno, or -EBUSY
 * if that failed or cannot be verified. */
int bench_make_cold(const char *path);
int bench_make_warm(const char *path, uint64_t length);

#endif
