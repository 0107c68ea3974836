/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declares the arguments and the result of `penstock gdsio`. gdsio.c parses the flags and
 * prints the result. gdsio_job.c parses job files, gdsio_data.c generates the bytes to write,
 * gdsio_open.c opens files and buffers, and gdsio_run.c moves the bytes.
 */
#ifndef PENSTOCK_CLI_GDSIO_H
#define PENSTOCK_CLI_GDSIO_H

#include "args.h"
#include "tally.h"

#define GDSIO_JOBS_MAX 64
#define GDSIO_THREADS_MAX 1024 /* maximum number of threads of all jobs together */
#define GDSIO_NAME_MAX 1024
#define GDSIO_TEXT_MAX (GDSIO_NAME_MAX + 512) /* capacity of an error message in bytes */
#define GDSIO_FILE_MAX (64u << 10)	      /* maximum length of a job file in bytes */

/* The transfer types of -x, with the numbers that NVIDIA's gdsio gives them. */
enum gdsio_xfer {
	GDSIO_DIRECT = 0,
	GDSIO_CPU = 1,
	GDSIO_CPU_GPU = 2,
	GDSIO_STAGED = 3,
	GDSIO_CACHED_GPU = 4,
	GDSIO_ASYNC = 5,
	GDSIO_BATCH = 6,
	GDSIO_BATCH_ASYNC = 7,
	GDSIO_XFERS
};
enum gdsio_memory { GDSIO_DEVICE = 0, GDSIO_PINNED = 2, GDSIO_MALLOC = 3, GDSIO_MMAP = 4 };

/* A job: threads that work on one file or in one folder. */
struct gdsio_job {
	/* `file` is "" if `dir` is set, and `dir` is "" if `file` is set */
	char file[GDSIO_NAME_MAX], dir[GDSIO_NAME_MAX];
	char device[32];
	unsigned threads;
	enum gdsio_memory memory;
	int node; /* NUMA node to run the threads on; -1 for any node */
};

struct gdsio_args {
	struct gdsio_job jobs[GDSIO_JOBS_MAX];
	unsigned job_count;
	enum gdsio_xfer xfer;
	bool write, random, unaligned, fill, refill, verify, skip_register, cached, nvlinks;
	bool overwrite; /* whether the run may write into existing files and through links */
	/* number of bytes to transfer in each file; 0 to transfer all bytes from `start` to the
	 * file's end */
	uint64_t size;
	uint64_t start, io_min, io_max, io_step, seed;
	unsigned runtime_s; /* duration of a pass; 0 to transfer every byte once */
	/* number of transfers in each thread's batch (-B). If it is 0, one thread submits the
	 * batches of a job, and a batch has as many transfers as -w says. */
	unsigned batch;
	bool json, quiet;
};

struct gdsio_result {
	struct tally tally;  /* sum of the library's reports; empty without the library */
	uint64_t bytes, ops; /* number of bytes moved, and number of transfers */
	uint64_t size;	     /* number of bytes of all files together */
	double latency_us;   /* sum of the latencies of all transfers */
	double seconds;
	char error[GDSIO_TEXT_MAX];
};

/* Returns whether plain system calls transfer the bytes instead of the library. */
static inline bool gdsio_is_plain(const struct gdsio_args *a)
{
	return a->xfer == GDSIO_CPU || a->xfer == GDSIO_CPU_GPU || a->xfer == GDSIO_CACHED_GPU;
}
/* Returns whether the transfers are made in batches. */
static inline bool gdsio_is_batch(const struct gdsio_args *a)
{
	return a->xfer == GDSIO_BATCH || a->xfer == GDSIO_BATCH_ASYNC;
}
/* Returns whether each transfer is submitted to a CUDA stream and runs in stream order. */
static inline bool gdsio_is_ordered(const struct gdsio_args *a)
{
	return a->xfer == GDSIO_ASYNC || a->xfer == GDSIO_BATCH_ASYNC;
}
/* Returns whether the files are read and written only through the page cache. */
static inline bool gdsio_is_cached(const struct gdsio_args *a)
{
	return a->cached || a->xfer == GDSIO_CACHED_GPU;
}
/* gdsio_depth returns the number of concurrent transfers of one thread. gdsio_flows returns the
 * number of concurrent transfers of all threads of a job. */
static inline unsigned gdsio_depth(const struct gdsio_args *a)
{
	return a->batch ? a->batch : 1;
}
static inline unsigned gdsio_flows(const struct gdsio_args *a, const struct gdsio_job *job)
{
	return job->threads * gdsio_depth(a);
}

#endif
