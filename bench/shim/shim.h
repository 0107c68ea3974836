/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of bench_shim share: a side, which is one way of reading a file into
 * a GPU (the core by penstock.h, or a libcufile by its functions), and the work that
 * both are given. Clocks, CSV and page cache are bench/bench.h's. Nothing here is a
 * part of either library.
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
	const char *name; /* of the rows */
	const char *lib;  /* of a libcufile; NULL: the core */
	bool direct;	  /* the descriptor has O_DIRECT */
	void *gpu;	  /* all of it registered */
	size_t gpu_len;
	int fd;
	/* the core's */
	struct penstock_storage *st;
	struct penstock_device *dev;
	struct penstock_queue *queue;
	/* a libcufile's */
	void *handle, *fh, *batch;
};

/* All return 0, or bytes, or < 0: failed, and said on stderr. */
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
	struct side other; /* of `overhead`: the core beside it */
	bool cold;
};

struct shim_section {
	const char *name, *what;
	int (*run)(struct shim_run *r);
};
extern const struct shim_section shim_sections[];
int shim_overhead(struct shim_run *r);

/* Brings the whole file into the state that the run wants, and checks it. */
int shim_cache(struct shim_run *r);
/* Makes the context current on this thread. */
void shim_gpu_thread(void);
bool shim_gpu_same(struct shim_run *r, uint64_t buf_off, uint64_t off, size_t len);

#endif
