/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The structs of an open model, which open.c fills and every file of src/weights and src/group
 * reads. Has no functions: see open.h, file.h, find.h and config.h.
 */
#ifndef PST_WEIGHTS_MODEL_H
#define PST_WEIGHTS_MODEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "weights/files.h"
#include "weights/safetensors.h"

/* One file of a model and its parsed header. */
struct pst_model_file {
	const char *path;
	struct pst_st st;
	struct stat stat;  /* The file's state when its header was read. */
	uint64_t data_off; /* Offset of the first tensor's bytes. */
	uint64_t content;  /* Hash by which ranks compare the file; 0: not computed yet. */
};

/* One tensor of the model. */
struct pst_tensor_entry {
	const struct pst_st_tensor *t;
	unsigned file;
};

/*
 * A file's descriptor and storage. The storage is opened at the first read. A child of fork
 * inherits the descriptor but must not use its parent's storage, so it opens its own.
 */
struct pst_file_source {
	struct penstock_storage *st;
	int fd;	       /* -1: not open. */
	pid_t process; /* The process that opened `st`. */
};

/* The values of a model's config.json that matter to tensor parallelism; 0: not known. */
struct pst_config {
	bool read; /* The file was looked for already. */
	unsigned heads, kv_heads, experts;
	bool kv_varies; /* The number of key-value heads differs between layers. */
	enum { PST_ORDER_UNKNOWN, PST_ORDER_PLAIN, PST_ORDER_BY_ACT } order; /* Of groups. */
};

struct penstock_weights {
	struct pst_file_list list;
	struct pst_model_file *files;
	struct pst_file_source *sources; /* One for each file. */
	pthread_mutex_t lock; /* Protects sources and config; no other lock is taken under it. */
	struct pst_config config;
	unsigned flags;
	atomic_uint refs; /* The caller's reference, and one for each call or read of a group that
			     outlives its load. */
	unsigned file_count;
	struct pst_tensor_entry *entries; /* Sorted by file, then by offset. */
	uint64_t count;
	uint32_t *by_name; /* Indices into entries, in the order of the names. */
};

#endif
