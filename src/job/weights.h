/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the weights job share: a model's files and tensors, and saying
 * what failed with file, tensor and offset. The rest of the library is used through
 * its public API only.
 */
#ifndef PST_JOB_WEIGHTS_H
#define PST_JOB_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "job/safetensors.h"
#include "penstock_weights.h"

#define PST_NO_OFF UINT64_MAX

/* Fills this thread's message and place; returns -|code|. */
int pst_weights_fail(int code, enum penstock_why why, const char *file, const char *tensor,
		     uint64_t off, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
int pst_weights_no_memory(const char *what);
enum penstock_why pst_weights_why(int code);

/*
 * Copies a caller's struct that begins with its size over `to`, which has `len` bytes
 * (NULL: zeros), and the other way. Larger ones: what is not known must be zero.
 */
int pst_weights_take(void *to, size_t len, const void *from, const char *name);
void pst_weights_give(void *to, const void *from, size_t len);

/* ---- which files: weights_find.c ---- */

struct pst_index_row {
	const char *tensor, *file; /* the file as an index into files, once resolved */
	unsigned at;
};

struct pst_files {
	char **paths;
	unsigned count, room;
	char **texts; /* of the indices; rows point into them */
	unsigned text_count;
	struct pst_index_row *rows; /* by tensor's name; NULL: no index */
	size_t row_count, row_room;
};
int pst_files_find(struct pst_files *files, const char *path,
		   const struct penstock_weights_opts *opts);
void pst_files_free(struct pst_files *files);

/* ---- the model: weights_open.c ---- */

struct pst_shard {
	const char *path;
	struct pst_st st;
	struct stat stat; /* as it was when the header was read */
	uint64_t data_off;
};

struct pst_entry {
	const struct pst_st_tensor *t;
	unsigned shard;
};

struct penstock_weights {
	struct pst_files files;
	struct pst_shard *shards;
	unsigned shard_count;
	struct pst_entry *entries; /* by shard, then by place */
	uint64_t count;
	uint32_t *by_name;
};

/*
 * Opens a shard again for reading, and that it is the same file that the header was
 * read from; the descriptor, or -errno. pst_shard_same: it still is (0).
 */
int pst_shard_open(const struct pst_shard *shard);
int pst_shard_same(const struct pst_shard *shard, int fd);

/* The tensor of a shard that `off` of its file lies in, or "". */
const char *pst_shard_tensor_at(const struct pst_shard *shard, uint64_t off);

#endif
