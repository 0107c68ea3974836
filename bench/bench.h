/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the benchmark share: the run, one measured sample, and the three
 * things that samples are made with: the meter (clocks, CPU time, CSV), the drive
 * (raw O_DIRECT, the page cache) and the GPU (raw driver calls). The library itself
 * is only ever called through penstock.h.
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
	const char *file;    /* read by everything, never written after `make` */
	const char *scratch; /* written by `save`, removed again */
	const char *device;  /* "cuda:0" */
	const char *fio;     /* how to call fio, NULL: it is left out */
	uint64_t len;	     /* of a bulk transfer */
	uint64_t long_len;   /* the end of the size sweep */
	const char *group;   /* of the rows of `beside` */
	unsigned reps, rep;  /* rep: the first, of `beside` */
	double seconds;	     /* of one run of random reads */
	const char *tag;     /* goes behind each group: rows of a build to compare */
	FILE *csv;
	struct penstock_device *dev; /* NULL between bench_device_close and _open */
	void *gpu;		     /* long_len or len bytes of it */
	bool wrong;		     /* bytes differed, or a rule was broken */
};

/* Opens (again) the device with these options, NULL: its defaults; 0 or -errno. */
int bench_device_open(struct bench *b, const struct penstock_device_opts *opts);
void bench_device_close(struct bench *b);

/* Says on stderr what went wrong, and marks the run as failed. */
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
	double cpu;	       /* seconds of this process, user and system */
	double machine;	       /* busy seconds of all CPUs, interrupts and kernel threads too */
	uint64_t ops;	       /* 0: not counted */
	double p50_us, p99_us; /* 0: not measured */
	char path[24], engine[24];
	char note[200];
};

struct meter {
	double cpu, machine;
	uint64_t began_ns;
};

uint64_t meter_ns(void);
/* Waits until the process is quiet, then starts. */
void meter_start(struct meter *m);
/* The bytes are there: seconds are final. */
void meter_stop(const struct meter *m, struct sample *s);
/* Waits until the process is quiet again (what is tidied up afterwards costs CPU too),
 * then CPU times are final. Returns the seconds that it took. */
double meter_settle(const struct meter *m, struct sample *s);
void meter_row(struct bench *b, const char *group, const char *name, unsigned rep,
	       const struct sample *s);
int meter_compare_u32(const void *a, const void *b);

/* ---- drive.c: the limit, and the page cache ---- */

struct drive_way {
	const char *engine; /* "uring" or "threads" (plain calls) */
	unsigned threads;   /* each with a ring of its own */
	unsigned depth;	    /* of each thread; plain calls: 1 */
	size_t block;
};

/* A way as text, "uring 4 x 4 x 1024 KiB". */
const char *drive_way_text(const struct drive_way *way, char *text, size_t len);
/* O_DIRECT between the file and host memory: `count` blocks of `block` bytes, each
 * `stride` behind the last. 0 or -errno. */
int drive_move(int fd, bool write, uint64_t off, uint64_t count, uint64_t stride,
	       const struct drive_way *way);
/* Of several ways the quickest for `len` bytes at `off`, each measured once and
 * written to the CSV. */
int drive_best(struct bench *b, int fd, bool write, uint64_t off, uint64_t len, const char *group,
	       struct drive_way *best);
int drive_open(const char *path, bool write);

int64_t cache_bytes(int fd, uint64_t off, uint64_t len); /* cached, or -errno */
/* Drops the range and checks that it is gone. 0, -EBUSY: something is still cached. */
int cache_drop(int fd, uint64_t off, uint64_t len);
/* Reads the range through the page cache with threads and checks that it is there. */
int cache_warm(int fd, uint64_t off, uint64_t len);

/* ---- rawring.c: io_uring without a library, reads or writes at one depth ---- */

#define RAW_DEPTH_MAX 64u

/* Who takes each block on from its slot, and says when the slot may be used again. */
struct raw_sink {
	int (*take)(void *arg, unsigned slot, char *mem, uint64_t at, size_t len); /* 0, -errno */
	int (*freed)(void *arg); /* a slot, -1: none yet */
	void *arg;
	bool sleeps; /* while blocks are under way, freed is asked when one has come */
};
struct raw_move {
	int fd;
	bool write;
	char *buf; /* depth x block bytes */
	uint64_t off, count, stride;
	const struct drive_way *way;
	const struct raw_sink *sink; /* NULL: nothing is done with the data */
};
int rawring_move(const struct raw_move *m); /* 0 or -errno */

/* ---- gpu.c ---- */

int gpu_open(struct bench *b); /* 0, or -errno: no GPU */
void gpu_close(struct bench *b);
int gpu_alloc(struct bench *b, uint64_t len); /* b->gpu, until gpu_close */
/* Seconds for `len` bytes between pinned huge pages and the GPU, < 0: failed. */
double gpu_pinned(struct bench *b, uint64_t len, bool in);
void gpu_poison(struct bench *b, uint64_t len);
/* Compares places of GPU memory with the file as it is on the drive. */
bool gpu_same(struct bench *b, const char *path, uint64_t off, uint64_t len);
/* The copy engine reads the page cache in windows of `first` up to `window` bytes, by raw
 * driver calls: a row of the CSV. See gpu_window.c. */
int gpu_window_row(struct bench *b, const char *group, const char *name, unsigned rep, int fd,
		   uint64_t len, uint64_t first, uint64_t window);

int gpu_written(struct bench *b); /* the section: see gpu_written.c */
/* A cold range by one loop of raw calls: O_DIRECT into a pinned ring, copies from there;
 * a row of the CSV. See gpu_cold.c. */
int gpu_cold_row(struct bench *b, const char *group, const char *name, unsigned rep, int fd,
		 uint64_t off, uint64_t len, const struct drive_way *way, bool sleeps);

/* ---- bulk.c ---- */

/* drive_move for `len` bytes, a write from preallocation to fdatasync, as a row of the CSV. */
int drive_row(struct bench *b, const char *group, const char *name, unsigned rep, int fd,
	      bool write, uint64_t off, uint64_t len, uint64_t stride, const struct drive_way *way);
/* ---- transfer.c: one request through the library ---- */

struct transfer {
	uint64_t off, len;
	enum penstock_effort effort;
	const char *path; /* forced, NULL: the plan's */
	unsigned flags;	  /* PENSTOCK_O_* */
	bool opened;	  /* the time begins at the request, not at penstock_open */
	bool again;	  /* the same bytes were read once before: what is kept counts */
};

/* File to GPU, poisoned before and compared after. 0 or -errno. */
int transfer_read(struct bench *b, const struct transfer *t, struct sample *s);
/* GPU to a new file that survives a power cut, compared and removed. 0 or -errno. */
int transfer_save(struct bench *b, const char *path, uint64_t len, struct sample *s);

/* ---- allocations.c: malloc and its kin, counted ---- */

struct allocations {
	uint64_t ours, others; /* asked for by this program, by other libraries */
};
struct allocations allocations(void);

#endif
