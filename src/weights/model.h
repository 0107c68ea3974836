/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The structs of an open model. open.c fills them in; all files of src/weights and src/group read
 * them. The functions that work on them are declared in open.h, file.h, find.h and config.h.
 * ARCHITECTURE.md, section Words, explains the project's words.
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
	/* Result of fstat when the header was read. For a file behind a URL, st_size is the file's
	 * length, st_ino is a checksum of its header, and most other members are 0. */
	struct stat stat;
	uint64_t data_off; /* Offset of the first tensor's bytes. */
	/* for a file behind a URL: result of pst_url_version() when the header was read */
	uint64_t version;
	/* Hash with which processes that load the model together check that they opened the same
	 * file; 0 if not yet computed. */
	uint64_t content;
};

/* One tensor of the model. */
struct pst_tensor_entry {
	const struct pst_st_tensor *t;
	unsigned file;
};

/*
 * The descriptor and the storage of one file. The storage is opened when tensors of the file are
 * read for the first time. After a fork, the child inherits the descriptor but must not use its
 * parent's storage, so it opens its own. A file behind a URL has no descriptor: the storage reads
 * its header too.
 */
struct pst_file_source {
	struct penstock_storage *st;
	int fd;	       /* -1 if the file is not open, or is behind a URL. */
	pid_t process; /* Id of the process that opened `st`. */
};

/* The values of a model's config.json that tensor parallelism needs. A number is 0 if it is not
 * known. */
struct pst_config {
	/* Whether this process has already tried to read the file. */
	bool read;
	unsigned heads, kv_heads, experts;
	bool kv_varies; /* Whether layers differ in their number of key-value heads. */
	/* How the inputs of a layer are divided into quantization groups: contiguous ranges
	 * (PLAIN), or scattered over the layer (BY_ACT, desc_act in the file). */
	enum { PST_ORDER_UNKNOWN, PST_ORDER_PLAIN, PST_ORDER_BY_ACT } order;
};

struct penstock_weights {
	struct pst_file_list list;
	struct pst_model_file *files;
	struct pst_file_source *sources; /* One element for each file. */
	/* Protects `sources` and `config`. No other lock is taken while this lock is held. */
	pthread_mutex_t lock;
	struct pst_config config;
	unsigned flags;
	/* Number of references to the model. The caller has one. src/group has one more for each
	 * call or read that still runs after its load has returned. */
	atomic_uint refs;
	unsigned file_count;
	struct pst_tensor_entry *entries; /* Sorted by file, then by offset. */
	uint64_t count;
	uint32_t *by_name; /* Indices into entries, sorted by the tensors' names. */
};

#endif
