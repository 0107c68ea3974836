/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations shared by the files of bench_shim. A side is one way of reading a file into a
 * GPU: the core through penstock.h, or a libcufile through its functions. Both sides do the
 * same work. Clocks, CSV and page cache come from bench/bench.h. Nothing here is part of either
 * library.
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
	const char *name; /* Name of the side's rows. */
	const char *lib;  /* Path of a libcufile; NULL: the core. */
	bool direct;	  /* Whether the descriptor has O_DIRECT. */
	void *gpu;	  /* Device memory, all of it registered. */
	size_t gpu_len;
	int fd;
	/* Members of the core's side. */
	struct penstock_storage *st;
	struct penstock_device *dev;
	struct penstock_queue *queue;
	/* Members of a libcufile's side. */
	void *handle, *fh, *batch;
};

/* Functions of a side. All return 0 or bytes; a value < 0 means failure, reported on stderr. */
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
	struct side other; /* The core, which section `overhead` measures next to the side. */
	bool cold;
};

struct shim_section {
	const char *name, *what;
	int (*run)(struct shim_run *r);
};
extern const struct shim_section shim_sections[];
int shim_overhead(struct shim_run *r);

/* Makes the whole file cached or uncached, as the run wants it, and checks it. */
int shim_cache(struct shim_run *r);
/* Makes the context current on this thread. */
void shim_gpu_thread(void);
bool shim_gpu_same(struct shim_run *r, uint64_t buf_off, uint64_t off, size_t len);

#endif
