/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations that the files of bench_shim share. A side is one way of reading a file into a
 * GPU: the core through penstock.h, or a libcufile through its functions. All sides do the same
 * work. The clocks, the CSV and the control of the page cache are in bench/bench.h. Nothing in
 * this folder is part of Penstock or of a libcufile.
 */
#ifndef BENCH_SHIM_H
#define BENCH_SHIM_H

#include "bench.h"

#define BATCH 128u

struct piece {
	uint64_t off, buf_off;
	size_t len;
};

struct side_ops;
struct side {
	const struct side_ops *ops;
	const char *name; /* Name of this side in the rows of the CSV. */
	const char *lib;  /* Path of the libcufile; NULL for the core. */
	bool direct;	  /* Whether `fd` is opened with O_DIRECT. */
	/* Device memory of gpu_len bytes, which this program has registered with the side's library
	 * (the core or the libcufile). */
	void *gpu;
	size_t gpu_len;
	int fd;
	/* These members are used if the side is the core, which is Penstock's own API. */
	struct penstock_storage *st;
	struct penstock_device *dev;
	struct penstock_queue *queue;
	/* These members are used if the side is a libcufile. */
	void *handle, *fh, *batch;
};

/* Functions of a side. They return 0 or a number of bytes. After a failure they print the error
 * to stderr and return a value < 0. */
struct side_ops {
	int (*open)(struct side *s, const char *path);
	int64_t (*read)(struct side *s, void *buf, size_t len, uint64_t off, uint64_t buf_off);
	int (*batch)(struct side *s, const struct piece *pieces, unsigned count);
	void (*close)(struct side *s);
};
extern const struct side_ops side_core, side_cufile;

struct shim_run {
	struct bench b;
	struct side side;
	struct side other; /* The core, with which section `overhead` compares `side`. */
	bool cold;
};

struct shim_section {
	const char *name, *what;
	int (*run)(struct shim_run *r);
};
extern const struct shim_section shim_sections[];
int shim_overhead(struct shim_run *r);

/* Drops the whole file from the page cache if r->cold is set, else reads it into the page
 * cache. Checks the result. Returns 0 or -errno. */
int shim_cache(struct shim_run *r);
/* Makes the GPU's context current on the calling thread. */
void shim_gpu_thread(void);
bool shim_gpu_same(struct shim_run *r, uint64_t buf_off, uint64_t off, size_t len);

#endif
