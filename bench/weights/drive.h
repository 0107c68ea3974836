/* SPDX-License-Identifier: Apache-2.0 */
/* Interface of drive.c for main.c. Not in ranks.h, because ranks.h and bench.h both define MIB. */
#ifndef BENCH_WEIGHTS_DRIVE_H
#define BENCH_WEIGHTS_DRIVE_H

/* Reads a file once and prints a line of JSON. `words`: "uring" or "threads", the number of
 * threads, requests of each, and KiB of a block. Returns 0, 1 on failure, or -EINVAL for wrong
 * words. */
int drive_bench(const char *file, char **words, int count);

#endif
