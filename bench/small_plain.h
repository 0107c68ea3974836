/* SPDX-License-Identifier: Apache-2.0 */
/* Random reads of one block without Penstock, and what they share with the reads by Penstock. */
#ifndef BENCH_SMALL_PLAIN_H
#define BENCH_SMALL_PLAIN_H

#include "bench.h"

#define SMALL_BLOCK 4096u
#define SMALL_SAMPLES (4u << 20)

/* The latencies of the latest SMALL_SAMPLES reads, and the number of all reads. */
struct small_latencies {
	uint32_t *ns;
	uint64_t count;
};

/* The state of the random offsets, the number of blocks of the file, and memory for latencies. */
struct small_plain {
	uint64_t state, blocks;
	struct small_latencies *lat;
};

/* Returns the next random number. */
uint64_t small_random(uint64_t *state);
/* Sorts the latencies, and sets the median and the 99th percentile of the sample. */
void small_percentiles(struct small_latencies *l, struct sample *s);

/* Measures the least time and CPU time that a read into GPU memory can take. One thread repeats the
 * same steps: it makes one plain read and one copy, and polls until the copy is done. */
int small_plain_row(struct bench *b, struct small_plain *r, unsigned rep);
/* Measures the IOPS and the CPU time that one thread with an io_uring can reach with 32 reads in
 * flight, into host memory or into GPU memory. */
int small_plain_ring_row(struct bench *b, struct small_plain *r, bool gpu, unsigned rep);

#endif
