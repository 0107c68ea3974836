/* SPDX-License-Identifier: Apache-2.0 */
/* Declares one measurement of `penstock bench`, and the functions that cache or drop a file's
 * pages. */
#ifndef PENSTOCK_CLI_BENCH_H
#define PENSTOCK_CLI_BENCH_H

#include "args.h"
#include "parts.h"
#include "tally.h"

#define BENCH_BUCKETS 1024

struct bench_args {
	const char *storage, *device, *path, *engine;
	uint64_t block, size;
	unsigned depth, lanes;
	unsigned round, rounds; /* number of the current round (the first is 1); count of rounds */
	double runtime;
	bool write, random, cold, warm, cpu_load, limits, json, overwrite, own_lane, quiet;
	enum penstock_class require;
	enum penstock_effort effort;
};

struct bench_result {
	struct tally tally;
	struct parts parts; /* of the uploaded object */
	uint64_t ops, length;
	uint64_t latency[BENCH_BUCKETS]; /* for each bucket: number of requests */
	double seconds, cpu_seconds;
	bool refused; /* whether no path met the class of --require */
	bool on_host; /* whether the device is host memory */
	/* exit code for the signal that ended the run early; 0 if none did */
	int stopped;
	char error[LINE_MAX_BYTES];
};

/* Measures one run. Returns 0, or an exit code with the message in out->error. */
int bench_run(const struct bench_args *a, struct bench_result *out);
/* Returns the latency in microseconds that the fraction `share` of all requests did not exceed.
 * For a share of 0.5 that is the median. */
double bench_percentile(const struct bench_result *r, double share);

/* bench_make_cold drops the file's pages from the page cache, bench_make_warm reads the file
 * into it. Return 0, -errno, or -EBUSY if the state of the cache is wrong or cannot be verified. */
int bench_make_cold(const char *path);
int bench_make_warm(const char *path, uint64_t length);

#endif
