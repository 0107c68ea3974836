/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the speed of plain system calls, with which `penstock bench --limits` compares a run. */
#ifndef PENSTOCK_CLI_BENCH_LIMITS_H
#define PENSTOCK_CLI_BENCH_LIMITS_H

#include "bench.h"

#define BENCH_LIMIT_TEXT 160 /* capacity of the description of a limit, in bytes */

/*
 * Measures the limit of a run in GB/s: the speed of the fastest way to make the same reads or
 * writes by plain system calls. For warm reads, the calls copy the bytes from the page cache into
 * host memory. For all other runs, they use O_DIRECT. Returns NAN if the limit cannot be measured.
 * `what` becomes a description of the measurement; it has `len` bytes.
 */
double bench_limit(const struct bench_args *a, uint64_t length, char *what, size_t len);

#endif
