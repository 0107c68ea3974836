/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the function of drive.c that main.c calls. It is not in ranks.h, because drive.c
 * includes bench.h, and both ranks.h and bench.h define MIB. */
#ifndef BENCH_WEIGHTS_DRIVE_H
#define BENCH_WEIGHTS_DRIVE_H

/* Reads a file once and prints the time as a line of JSON. `words` are "uring" or "threads", the
 * number of threads, the number of requests in flight of each thread, and the KiB of a request.
 * Returns 0, 1 after a failure, or -EINVAL if `words` is wrong. */
int drive_bench(const char *file, char **words, int count);

#endif
