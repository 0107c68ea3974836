/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations shared by the files of the benchmark: the run, one measured sample, and the
 * three tools that measurements use. These are the meter (clocks, CPU time, CSV), the drive
 * (raw O_DIRECT and the page cache) and the GPU (raw driver calls). The benchmark calls the
 * library only through penstock.h.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "penstock.h"

#define KIB 1024ull
#define MIB (1024ull * KIB)
#define GIB (1024ull * MIB)

/* ---- the run ---- */

struct bench {
	const char *file;    /* File that all sections read; never written after `make`. */
	const char *scratch; /* File that section `save` writes and removes. */
	const char *device;  /* Device name, such as "cuda:0". */
	const char *fio;     /* Command that runs fio; NULL: no fio rows. */
	uint64_t len;	     /* Length of a bulk transfer in bytes. */
	uint64_t long_len;   /* Longest length of the size sweep. */
	const char *group;   /* Group of the rows of section `beside`. */
	/* Number of repetitions, and number of the first one in section `beside`. */
	unsigned reps, rep;
	double seconds;	 /* Duration of one run of random reads. */
	const char *tag; /* Suffix of each group, to compare builds; NULL: none. */
	FILE *csv;
	struct penstock_device *dev; /* The device; NULL while it is closed. */
	void *gpu;		     /* Device memory of long_len or len bytes. */
	bool wrong;		     /* Whether bytes differed or a rule was broken. */
};

/* Opens the device with these options, or with the defaults if `opts` is NULL. Returns 0 or
 * -errno. */
int bench_device_open(struct bench *b, const struct penstock_device_opts *opts);
void bench_device_close(struct bench *b);

/* Prints an error to stderr and marks the run as failed. */
void bench_bad(struct bench *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

struct bench_section {
	const char *name, *what;
	bool needs_gpu;
	int (*run)(struct bench *b);
};
extern const struct bench_section bench_bulk[], bench_small[], bench_tune[], bench_prep[],
	bench_copies[];

/* ---- meter.c ---- */

struct sample {
	uint64_t bytes;
	double seconds;
	double cpu; /* CPU seconds of this process, user and system. */
	/* Busy seconds of all CPUs, including interrupts and kernel threads. */
	double machine;
	uint64_t ops;	       /* Number of operations; 0: not counted. */
	double p50_us, p99_us; /* Latency percentiles; 0: not measured. */
	char path[24], engine[24];
	char note[200];
};

struct meter {
	double cpu, machine;
	uint64_t began_ns;
};

uint64_t meter_ns(void);
/* Waits until the process is idle, then starts the measurement. */
void meter_start(struct meter *m);
/* Takes the elapsed time, at the moment when all bytes have arrived. */
void meter_stop(const struct meter *m, struct sample *s);
/* Waits until the process is idle again, because cleanup after a request costs CPU too. Then
 * takes the CPU times. Returns the seconds that it waited. */
double meter_settle(const struct meter *m, struct sample *s);
void meter_row(struct bench *b, const char *group, const char *name, unsigned rep,
	       const struct sample *s);
int meter_compare_u32(const void *a, const void *b);

/* ---- drive.c: the drive's limit, and the page cache ---- */

struct drive_way {
	const char *engine; /* "uring" or "threads" (plain calls). */
	unsigned threads;   /* Number of threads, each with its own ring. */
	unsigned depth;	    /* Calls in flight for each thread; plain calls: 1. */
	size_t block;
};

/* Writes a way as text, such as "uring 4 x 4 x 1024 KiB". */
const char *drive_way_text(const struct drive_way *way, char *text, size_t len);
/* Moves `count` blocks of `block` bytes by O_DIRECT between the file and host memory. The
 * blocks start `stride` bytes apart. Returns 0 or -errno. */
int drive_move(int fd, bool write, uint64_t off, uint64_t count, uint64_t stride,
	       const struct drive_way *way);
/* Finds the fastest of several ways for `len` bytes at `off`. Measures each way once and writes
 * it to the CSV. */
int drive_best(struct bench *b, int fd, bool write, uint64_t off, uint64_t len, const char *group,
	       struct drive_way *best);
int drive_open(const char *path, bool write);

/* Returns the number of cached bytes in the range, or -errno. */
int64_t cache_bytes(int fd, uint64_t off, uint64_t len);
/* Drops the range from the page cache and checks it. Returns 0, or -EBUSY if bytes stay cached. */
int cache_drop(int fd, uint64_t off, uint64_t len);
/* Reads the range through the page cache with threads, and checks that it is cached. */
int cache_warm(int fd, uint64_t off, uint64_t len);

/* ---- rawring.c: io_uring without a library, reads or writes at one depth ---- */

#define RAW_DEPTH_MAX 64u

/* Consumer of the blocks that were read. It reports when a slot may be used again. */
struct raw_sink {
	/* Accepts the block in `slot`. Returns 0 or -errno. */
	int (*deliver)(void *arg, unsigned slot, char *mem, uint64_t at, size_t len);
	int (*poll_freed)(void *arg); /* Returns a slot that is free again; -1: none yet. */
	void *arg;
	/* Whether the ring sleeps while reads are in flight, and polls freed slots only after a
	 * read completes. */
	bool sleeps;
};
struct raw_move {
	int fd;
	bool write;
	char *buf; /* Memory of depth x block bytes. */
	uint64_t off, count, stride;
	const struct drive_way *way;
	const struct raw_sink *sink; /* Consumer of the data; NULL: the data is ignored. */
};
int rawring_move(const struct raw_move *m); /* Moves the blocks. Returns 0 or -errno. */

/* ---- gpu.c ---- */

int gpu_open(struct bench *b); /* Opens the GPU. Returns 0, or -errno if there is none. */
void gpu_close(struct bench *b);
int gpu_alloc(struct bench *b, uint64_t len); /* Allocates b->gpu, which stays until gpu_close. */
/* Returns the seconds that `len` bytes take between pinned huge pages and the GPU; < 0: failed. */
double gpu_pinned(struct bench *b, uint64_t len, bool in);
void gpu_poison(struct bench *b, uint64_t len);
/* Compares samples of GPU memory with the file's bytes on the drive. */
bool gpu_same(struct bench *b, const char *path, uint64_t off, uint64_t len);
/* Measures reads of the page cache by the copy engine, in windows of `first` up to `window`
 * bytes, by raw driver calls. Writes one row of the CSV. See gpu_window.c. */
int gpu_window_row(struct bench *b, const char *group, const char *name, unsigned rep, int fd,
		   uint64_t len, uint64_t first, uint64_t window);

int gpu_written(struct bench *b); /* Runs section `written`: see gpu_written.c. */
/* Measures reads of an uncached range by one loop of raw calls: O_DIRECT into a pinned ring,
 * and copies from there to the GPU. Writes one row of the CSV. See gpu_cold.c. */
int gpu_cold_row(struct bench *b, const char *group, const char *name, unsigned rep, int fd,
		 uint64_t off, uint64_t len, const struct drive_way *way, bool sleeps);

/* ---- bulk.c ---- */

/* Runs drive_move for `len` bytes and writes one row of the CSV. A write is timed from
 * preallocation to fdatasync. */
int drive_row(struct bench *b, const char *group, const char *name, unsigned rep, int fd,
	      bool write, uint64_t off, uint64_t len, uint64_t stride, const struct drive_way *way);
/* ---- transfer.c: one request through the library ---- */

struct transfer {
	uint64_t off, len;
	enum penstock_effort effort;
	const char *path; /* Path that is forced; NULL: the plan's. */
	unsigned flags;	  /* PENSTOCK_O_* flags of the open. */
	bool opened;	  /* Whether the time starts at the request instead of at penstock_open. */
	/* Whether the same bytes were read once before, so that kept registrations count. */
	bool again;
};

/* Reads the file into the GPU, whose memory is poisoned before and compared after. Returns 0 or
 * -errno. */
int transfer_read(struct bench *b, const struct transfer *t, struct sample *s);
/* Saves GPU memory to a new file that survives a power cut, then compares and removes it.
 * Returns 0 or -errno. */
int transfer_save(struct bench *b, const char *path, uint64_t len, struct sample *s);

/* ---- allocations.c: counts of malloc and related functions ---- */

struct allocations {
	uint64_t ours, others; /* Allocations by this program, and by other libraries. */
};
struct allocations allocations(void);

#endif
