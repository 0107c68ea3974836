/* SPDX-License-Identifier: Apache-2.0 */
/* The speed of plain system calls, which `penstock bench --limits` compares a run with. */
#ifndef PENSTOCK_CLI_BENCH_LIMITS_H
#define PENSTOCK_CLI_BENCH_LIMITS_H

#include "bench.h"

/*
 * Measures the limit of a run. For warm reads, threads copy the same page cache into host
 * memory. For other runs, threads read or write the file with O_DIRECT. Returns GB/s, or NAN
 * if the limit cannot be measured; *what describes the measurement.
 */
double bench_limit(const struct bench_args *a, uint64_t length, const char **what);

#endif
