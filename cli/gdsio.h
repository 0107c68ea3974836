/* SPDX-License-Identifier: Apache-2.0 */
/* penstock gdsio in four parts: options and the line that is printed (gdsio.c), job
 * files (gdsio_job.c), what the bytes are (gdsio_data.c), and the run (gdsio_run.c). */
#ifndef PENSTOCK_CLI_GDSIO_H
#define PENSTOCK_CLI_GDSIO_H

#include "cli.h"

#define GDSIO_JOBS_MAX 64
#define GDSIO_THREADS_MAX 1024 /* of all jobs together */
#define GDSIO_NAME_MAX 1024
#define GDSIO_TEXT_MAX (GDSIO_NAME_MAX + 512) /* of an error */
#define GDSIO_FILE_MAX (64u << 10)	      /* bytes of a job file */

/* As -x numbers them; those between are not offered. */
enum gdsio_xfer {
	GDSIO_DIRECT = 0,
	GDSIO_CPU = 1,
	GDSIO_CPU_GPU = 2,
	GDSIO_ASYNC = 5,
	GDSIO_BATCH = 6
};
enum gdsio_memory { GDSIO_DEVICE = 0, GDSIO_PINNED = 2, GDSIO_MALLOC = 3, GDSIO_MMAP = 4 };

/* Threads on one file or in one folder. */
struct gdsio_job {
	char file[GDSIO_NAME_MAX], dir[GDSIO_NAME_MAX]; /* one of them, the other "" */
	char device[32];
	unsigned threads;
	enum gdsio_memory memory;
	int node; /* -1: any */
};

struct gdsio_args {
	struct gdsio_job jobs[GDSIO_JOBS_MAX];
	unsigned job_count;
	enum gdsio_xfer xfer;
	bool write, random, unaligned, fill, refill, verify, skip_register, cached;
	uint64_t size; /* 0: what is there from start on */
	uint64_t start, io_min, io_max, io_step, seed;
	unsigned runtime_s; /* 0: once through */
	unsigned batch;	    /* transfers in a batch of each thread; 0: -w of one thread */
	bool json, quiet;
};

struct gdsio_result {
	struct tally tally;	    /* of -x 0, 5 and 6 */
	uint64_t bytes, ops, size;  /* size: of all files together */
	double latency_us, seconds; /* latency_us: the sum */
	char error[GDSIO_TEXT_MAX];
};

struct gdsio_run;

/* How many transfers of a thread are there at once, and of a job. */
static inline unsigned gdsio_depth(const struct gdsio_args *a)
{
	return a->batch ? a->batch : 1;
}
static inline unsigned gdsio_flows(const struct gdsio_args *a, const struct gdsio_job *job)
{
	return job->threads * gdsio_depth(a);
}

/* Opens files, devices and buffers; NULL with *error, which has room for that. */
struct gdsio_run *gdsio_open(const struct gdsio_args *a, char *error);
/* One pass, or a replay of what the last one wrote, compared with what it was.
 * 0, or an exit code and the text in out->error. */
int gdsio_pass(struct gdsio_run *r, bool write, bool replay, struct gdsio_result *out);
/* Keeps what was written, or with `failed` undoes what can be. 0, or an exit code. */
int gdsio_close(struct gdsio_run *r, bool failed, char *error);

/* ---- values, for options and job files alike; false: `what` is set ---- */

bool gdsio_size(const char *text, uint64_t *out);
/* "1M", or "4K:1M:4K" for least, most and step. */
bool gdsio_io_size(const char *text, struct gdsio_args *a);
bool gdsio_xfer(uint64_t number, enum gdsio_xfer *out);

/* cudaMalloc (0) and cuMem (1) are one here: the memory is the driver's cuMemAlloc. */
static inline enum gdsio_memory gdsio_memory(uint64_t number)
{
	return number == 1 ? GDSIO_DEVICE : (enum gdsio_memory)number;
}
bool gdsio_device(const char *text, struct gdsio_job *job);

/* Reads a job file of `len` bytes. 0, or an exit code with the error printed. */
int gdsio_job_text(const char *name, const char *text, size_t len, struct gdsio_args *a);

/* ---- bytes ---- */

/* What -V writes at offset `off` of any file, given the seed. */
void gdsio_pattern(void *to, size_t len, uint64_t off, uint64_t seed);
/* The first byte that is another one, or `len`. */
size_t gdsio_differs(const void *bytes, size_t len, uint64_t off, uint64_t seed);
/* xorshift64*; the state is never 0. */
uint64_t gdsio_random(uint64_t *state);
uint64_t gdsio_mix(uint64_t n);

#endif
