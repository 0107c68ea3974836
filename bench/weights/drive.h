/* SPDX-License-Identifier: Apache-2.0 */
/* drive.c, for main.c: apart from ranks.h, because both it and bench.h name a MIB. */
#ifndef BENCH_WEIGHTS_DRIVE_H
#define BENCH_WEIGHTS_DRIVE_H

/* `words`: "uring" or "threads", how many threads, requests of each, KiB of a block. Prints
 * a line of JSON; 0, 1: it failed, -EINVAL: usage. */
int drive_bench(const char *file, char **words, int count);

#endif
