/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations that the files of the benchmark share: the run, one measured sample, and the
 * tools that measurements use. The meter (meter.c) measures elapsed time and CPU time, and writes
 * the CSV. drive.c makes raw O_DIRECT calls and controls the page cache. gpu.c makes raw driver
 * calls. The benchmark uses only functions of the library that penstock.h declares.
 * ARCHITECTURE.md, section Words, explains the project's words.
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
	const char *file;    /* File that all sections read. Section `make` creates it; no other
			      * section writes it. */
	const char *scratch; /* File that section `save` writes and removes. */
	const char *device;  /* Device name, such as "cuda:0". */
	const char *fio;     /* Command that runs fio; NULL if fio is missing. */
	uint64_t len;	     /* Number of bytes of a bulk transfer. */
	uint64_t long_len; /* Number of bytes of the largest transfer in the sections that vary the
			    * size. */
	const char *group; /* Value that section `beside` writes into the CSV column `group`. */
	/* reps: number of repetitions of each measurement. rep: value of the CSV column `rep` for
	 * the first repetition of section `beside`. */
	unsigned reps, rep;
	unsigned lanes;	 /* Number of lanes of the device; 0 for the library's default. */
	double seconds;	 /* Duration of one run of random reads, in seconds. */
	const char *only; /* The only row of section `stream` to measure; NULL for all. */
	const char *tag; /* Suffix of the CSV column `group`, to tell builds apart; NULL for no
			  * suffix. */
	FILE *csv;
	struct penstock_device *dev; /* Device as opened by Penstock; NULL while it is closed. */
	/* Device memory of `len` bytes, or of `long_len` bytes if a requested section needs
	 * `long_len` bytes. */
	void *gpu;
	bool wrong; /* Whether a comparison of bytes failed or another check failed; main then exits
		     * with 1. */
};

/* Opens b->device with the given options, or with the defaults if `opts` is NULL. Returns 0 or
 * -errno. */
int bench_device_open(struct bench *b, const struct penstock_device_opts *opts);
void bench_device_close(struct bench *b);

/* Prints an error to stderr, and records in b->wrong that the run failed. */
void bench_bad(struct bench *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

struct bench_section {
	const char *name, *what;
	bool needs_gpu;
	int (*run)(struct bench *b);
};
extern const struct bench_section bench_bulk[], bench_small[], bench_tune[], bench_prep[],
	bench_copies[], bench_stream[], bench_graph[], bench_sum[], bench_calls[];

/* ---- meter.c ---- */

struct sample {
	uint64_t bytes;
	double seconds;
	double cpu; /* CPU seconds of this process, user and system time. */
	/* CPU seconds of the whole machine, including interrupts and kernel threads. */
	double machine;
	uint64_t ops;	       /* Number of operations; 0 if they are not counted. */
	double p50_us, p99_us; /* Median and 99th percentile of the latency; 0 if not measured. */
	char path[24], engine[24];
	char note[200];
};

struct meter {
	double cpu, machine;
	uint64_t began_ns;
};

uint64_t meter_ns(void);
/* Waits until this process uses no CPU time, then starts the measurement. */
void meter_start(struct meter *m);
/* Stores the elapsed time in the sample. Call it at the moment when all bytes have arrived. */
void meter_stop(const struct meter *m, struct sample *s);
/* Waits until this process uses no CPU time, because the library's cleanup after a request
 * counts too. Then stores the CPU times in the sample. Returns the seconds that it waited. */
double meter_settle(const struct meter *m, struct sample *s);
void meter_row(struct bench *b, const char *group, const char *name, unsigned rep,
	       const struct sample *s);
int meter_compare_u32(const void *a, const void *b);

/* ---- drive.c: the drive's limit, and the page cache ---- */

/* A way to read or write the drive: which calls, how many at once, and of which length. */
struct drive_way {
	const char *engine; /* "uring", or "threads" for plain pread and pwrite calls. */
	unsigned threads;   /* Number of threads; with "uring", each thread has its own io_uring. */
	unsigned depth; /* Number of calls in flight for each thread; always 1 with "threads". */
	size_t block;
};

/* Formats a way as text, such as "uring 4 x 4 x 1024 KiB" (threads x depth x block). Returns
 * `text`. */
const char *drive_way_text(const struct drive_way *way, char *text, size_t len);
/* Moves `count` blocks of way->block bytes by O_DIRECT between the file and host memory. The
 * blocks start `stride` bytes apart in the file. Returns 0 or -errno. */
int drive_move(int fd, bool write, uint64_t off, uint64_t count, uint64_t stride,
	       const struct drive_way *way);
/* Measures several ways to move `len` bytes at offset `off`, each once. Writes one row of the CSV
 * for each way, and stores the fastest way in *best. */
int drive_best(struct bench *b, int fd, bool write, uint64_t off, uint64_t len, const char *group,
	       struct drive_way *best);
int drive_open(const char *path, bool write);

/* Returns how many bytes of the range are in the page cache, or -errno. */
int64_t cache_bytes(int fd, uint64_t off, uint64_t len);
/* Drops the range from the page cache. Returns 0, or -EBUSY if bytes of the range are still
 * cached. */
int cache_drop(int fd, uint64_t off, uint64_t len);
/* Brings the range into the page cache by reads of several threads. Returns an error if the
 * page cache still lacks a page of the range afterwards. */
int cache_warm(int fd, uint64_t off, uint64_t len);

/* ---- rawring.c: io_uring without a library, reads or writes at one depth ---- */

#define RAW_DEPTH_MAX 64u

/* A consumer of the blocks that rawring_move has read. rawring_move reuses the memory of a block
 * only after the consumer has freed its slot. */
struct raw_sink {
	/* Consumes the block at file offset `at`, which was read into `mem`. This memory is slot
	 * number `slot` of the buffer. Returns 0 or -errno. */
	int (*deliver)(void *arg, unsigned slot, char *mem, uint64_t at, size_t len);
	/* Returns a slot that the consumer no longer uses, or -1 if it still uses all slots. */
	int (*poll_freed)(void *arg);
	void *arg;
	/* If true, rawring_move sleeps while reads are in flight, and calls poll_freed only
	 * after a read completes. If false, it polls all the time. */
	bool sleeps;
};
struct raw_move {
	int fd;
	bool write;
	char *buf; /* Memory of way->depth x way->block bytes. */
	uint64_t off, count, stride;
	const struct drive_way *way;
	const struct raw_sink *sink; /* Consumer of the blocks; NULL if nobody uses them. */
};
int rawring_move(const struct raw_move *m); /* Moves the blocks. Returns 0 or -errno. */

/* ---- gpu.c ---- */

int gpu_open(struct bench *b); /* Opens the GPU. Returns 0, or -errno if there is no GPU. */
void gpu_close(struct bench *b);
int gpu_alloc(struct bench *b, uint64_t len); /* Allocates b->gpu; gpu_close frees it. */
/* Measures copies of `len` bytes between pinned huge pages and the GPU: to the GPU if `in` is true,
 * else from it. Returns the seconds of the copies, or a value < 0 after a failure. */
double gpu_pinned(struct bench *b, uint64_t len, bool in);
void gpu_poison(struct bench *b, uint64_t len);
/* Compares pieces of b->gpu with the file's bytes, which it reads from the drive. Returns false
 * if a piece differs. */
bool gpu_same(struct bench *b, const char *path, uint64_t off, uint64_t len);
/* Measures, with driver calls alone, how fast the GPU's copy engine reads the page cache. The
 * windows (pieces that are registered with the driver) grow from `first` to `window` bytes.
 * Writes one row of the CSV. See gpu_window.c. */
int gpu_window_row(struct bench *b, const char *group, const char *name, unsigned rep, int fd,
		   uint64_t len, uint64_t first, uint64_t window);

/* How a program without Penstock reads a cached file into the GPU. It makes the system calls and
 * driver calls itself (raw calls). */
struct mixed_way {
	unsigned threads; /* Number of threads that read pieces into pinned memory. */
	uint64_t piece;	  /* Number of bytes that such a thread reads at once. */
	/* Most bytes of the page cache that an additional thread registers with the driver in one
	 * call; 0 if there is no additional thread. */
	uint64_t window;
	/* Whether the additional thread also queues the copies of the pieces that the other threads
	 * have read. */
	bool passes;
};
/* Measures reads in the given way. Writes one row of the CSV. See gpu_mixed.c. */
int gpu_mixed_row(struct bench *b, const char *group, const char *name, unsigned rep, int fd,
		  uint64_t len, const struct mixed_way *way);

int gpu_blocked(struct bench *b); /* Runs section `blocked`, see gpu_blocked.c. */
int gpu_written(struct bench *b); /* Runs section `written`, see gpu_written.c. */
/* Measures reads of an uncached range without Penstock: one loop reads by O_DIRECT into a pinned
 * ring, and copies from the ring to the GPU. Writes one row of the CSV. See gpu_cold.c. */
int gpu_cold_row(struct bench *b, const char *group, const char *name, unsigned rep, int fd,
		 uint64_t off, uint64_t len, const struct drive_way *way, bool sleeps);

/* ---- bulk.c ---- */

/* Measures drive_move for `len` bytes, and writes one row of the CSV. The time of a write
 * includes preallocation and fdatasync. */
int drive_row(struct bench *b, const char *group, const char *name, unsigned rep, int fd,
	      bool write, uint64_t off, uint64_t len, uint64_t stride, const struct drive_way *way);
/* ---- transfer.c: one request through the library ---- */

struct transfer {
	uint64_t off, len;
	enum penstock_effort effort;
	const char *path; /* Only path to use, such as "mapped"; NULL if the library chooses. */
	unsigned flags;	  /* PENSTOCK_O_* flags for penstock_open. */
	bool opened;	  /* Whether the file is opened before the measurement starts. */
	/* Whether the same bytes are read once before the measurement, so that the measured read
	 * can use the registrations that the first read made. */
	bool again;
};

/* Fills b->gpu with a pattern, then reads the file into it and compares the result with the
 * file. Returns 0 or -errno. */
int transfer_read(struct bench *b, const struct transfer *t, struct sample *s);
/* Writes b->gpu to a new file, and makes that file durable. Then compares the file with b->gpu
 * and removes it. Returns 0 or -errno. */
int transfer_save(struct bench *b, const char *path, uint64_t len, struct sample *s);

/* ---- allocations.c: counts of malloc and related functions ---- */

struct allocations {
	uint64_t ours, others; /* Number of allocations by this program (including Penstock), and by
				* other libraries. */
};
struct allocations allocations(void);

#endif
