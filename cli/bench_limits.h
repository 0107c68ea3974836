/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the speed of plain system calls, with which `penstock bench --limits` compares a run. */
#ifndef PENSTOCK_CLI_BENCH_LIMITS_H
#define PENSTOCK_CLI_BENCH_LIMITS_H

#include "bench.h"

/*
 * Measures the limit of a run in GB/s. For warm reads, threads copy the same bytes from the page
 * cache into host memory. For all other runs, threads read or write the file with O_DIRECT. Returns
 * NAN if the limit cannot be measured. *what becomes a description of the measurement.
 */
double bench_limit(const struct bench_args *a, uint64_t length, const char **what);

#endif
