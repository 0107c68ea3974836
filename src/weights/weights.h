/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the weights job share: a model's files and tensors, and saying
 * what failed with file, tensor and offset. The rest of the library is used through
 * its public API only.
 */
#ifndef PST_WEIGHTS_WEIGHTS_H
#define PST_WEIGHTS_WEIGHTS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "weights/safetensors.h"
#include "penstock_weights.h"

#define PST_NO_OFF UINT64_MAX

/* Fills this thread's message and place; returns -|code|. */
int pst_weights_fail(int code, enum penstock_why why, const char *file, const char *tensor,
		     uint64_t off, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
int pst_weights_no_memory(const char *what);
/* The last sentence of the library below, with where it happened. */
int pst_weights_retell(int code, const char *file, const char *tensor, uint64_t off);
/* The same with the reason that an errno stands for. */
int pst_weights_fail_errno(int code, const char *file, const char *tensor, uint64_t off,
			   const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* What failed on one thread, for another's message: taken there and told here. */
struct pst_told {
	enum penstock_why why;
	char text[PENSTOCK_TEXT_MAX];
	struct penstock_weights_place place;
};
void pst_weights_note(struct pst_told *told);
int pst_weights_repeat(int code, const struct pst_told *told);

/*
 * Copies a caller's struct that begins with its size over `to`, which has `len` bytes
 * (NULL: zeros), and the other way. Larger ones: what is not known must be zero.
 */
int pst_weights_take(void *to, size_t len, const void *from, const char *name);
void pst_weights_give(void *to, const void *from, size_t len);

/* Something and then this tail. */
bool pst_ends_with(const char *text, const char *tail);

/* ---- which files: weights_find.c ---- */

struct pst_index_row {
	const char *tensor, *file; /* the file as an index into files, once resolved */
	unsigned at;
};

struct pst_files {
	char *home; /* where the first model's index or directory is; NULL: beside its file */
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
/* The whole of a small file with a NUL behind it, malloc'd. */
int pst_weights_read_all(const char *path, char **out, size_t *len);

/* ---- the model: weights_open.c ---- */

struct pst_shard {
	const char *path;
	struct pst_st st;
	struct stat stat; /* as it was when the header was read */
	uint64_t data_off;
	uint64_t content; /* what ranks know it by that see it elsewhere; 0: nobody asked */
};

struct pst_entry {
	const struct pst_st_tensor *t;
	unsigned shard;
};

/* A shard that is open for reading; made when it is first read, from fd if that is one, and
 * again in a child of fork, which has the descriptor but may not use its parent's storage. */
struct pst_source {
	struct penstock_storage *st;
	int fd; /* -1: none yet */
	pid_t process;
};

struct pst_config { /* what a model's config.json says; 0: not known */
	bool read;
	unsigned heads, kv_heads, experts;
	bool kv_varies; /* key-value heads are not the same number everywhere */
	enum { PST_ORDER_UNKNOWN, PST_ORDER_PLAIN, PST_ORDER_BY_ACT } order; /* of groups */
};

struct penstock_weights {
	struct pst_files files;
	struct pst_shard *shards;
	struct pst_source *sources; /* of each shard */
	pthread_mutex_t lock;	    /* of sources and config; the only one taken */
	struct pst_config config;
	unsigned flags;
	atomic_uint refs; /* the caller, and reads that are left behind */
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

/* The shard as a storage, opened at the first call; the model's. May block. */
int pst_shard_storage(struct penstock_weights *w, unsigned shard, struct penstock_storage **out);
bool pst_shard_is_open(struct penstock_weights *w, unsigned shard);

/* One more penstock_weights_close until it goes. */
void pst_weights_keep(struct penstock_weights *w);

/* Fills w->config, once: weights_config.c. May block. */
void pst_weights_read_config(struct penstock_weights *w);

/* As penstock_weights_find, without a message. */
int64_t pst_weights_index(const struct penstock_weights *w, const char *name);

/* The tensor of a shard that `off` of its file lies in, the first in front, or "". */
const char *pst_shard_tensor_at(const struct pst_shard *shard, uint64_t off);

/* ---- moving: weights_move.c ---- */

struct pst_bit { /* a piece of a file and one place for it */
	struct penstock_seg seg;
	unsigned shard;
	bool own_first, own_last; /* nothing else lies in these pages of its place */
	uint16_t lead;		  /* bytes that nobody wants, before the first one */
};

struct pst_bits {
	struct pst_bit *list;
	size_t count, room;
	uint64_t most;	/* neighbours are joined up to this length; 0: any */
	bool own_pages; /* what is added next begins and ends in pages of its own */
	bool apart;	/* places are the caller's: two that touch may be two allocations */
};
/* Joined with the one before where the two touch in file and memory. */
int pst_bits_add(struct pst_bits *bits, unsigned shard, const struct penstock_seg *seg);
/* In the order of the files, joined where two touch. */
void pst_bits_order(struct pst_bits *bits);

/* Checked options, and where the reports of all requests go. */
struct pst_load {
	struct penstock_weights *w;
	struct penstock_load_opts opts;
	struct penstock_load_report report;
	uint64_t path_bytes; /* of the path that carried most in one request */
	uint64_t held;	     /* device memory that it has */
	uint64_t lead;	     /* bytes in front of tensors that came along */
	uint64_t looked_ns;  /* when the caller was last asked whether to go on */
	int failed;	     /* the first error; its sentence is the thread's */
};
int pst_load_take(struct pst_load *load, struct penstock_weights *w,
		  const struct penstock_load_opts *opts);
void pst_load_request(const struct pst_load *load, struct penstock_req *req);
/* One request for bits of one file; `user` and `id` as penstock_submit has them. */
int pst_load_submit(const struct pst_load *load, struct penstock_queue *q,
		    const struct pst_bit *bits, size_t count, void *user, uint64_t *id);
void pst_load_count(struct pst_load *load, int64_t result, const struct penstock_report *r);
/* Counts a completion of these pieces; the first error becomes load->failed and the
 * thread's. */
void pst_load_done(struct pst_load *load, const struct pst_bit *bits, size_t count,
		   const struct penstock_done *done);
/* Asks the caller, if it is time, whether to go on: load->failed. Who waits for completions
 * does so for pst_load_patience() at once, and asks in between. */
int pst_load_look(struct pst_load *load);
int64_t pst_load_patience(const struct pst_load *load);
/* That no file changed while its bits were read. */
int pst_load_unchanged(struct pst_load *load, const struct pst_bits *bits);
/* Moves all of it: submits, waits. What is in flight ends before it returns. */
int pst_load_move(struct pst_load *load, struct pst_bits *bits);

int pst_load_alloc(struct pst_load *load, struct penstock_device *dev, size_t len, void **out);
/* What a piece is of its file: rows, their length and where they begin; weights_load.c. */
int pst_piece_cut(const struct penstock_weights *w, const struct penstock_piece *p,
		  struct penstock_seg *seg);
void pst_load_report(const struct pst_load *load, struct penstock_load_report *out);
void pst_load_free(const struct penstock_load_opts *opts, struct penstock_device *dev, void *ptr,
		   size_t len);

/* penstock_weights_load and _load_into, alone (NULL) or as a rank of a group. */
int pst_weights_load(struct penstock_group *g, struct penstock_weights *w,
		     struct penstock_device *const *devs, unsigned dev_count,
		     const struct penstock_load_opts *opts, struct penstock_load_report *report,
		     struct penstock_loaded **out);
int pst_weights_load_into(struct penstock_group *g, struct penstock_weights *w,
			  const struct penstock_piece *pieces, uint64_t count,
			  const struct penstock_load_opts *opts,
			  struct penstock_load_report *report);

/* ---- where tensors lie in an allocation: weights_place.c ---- */

/*
 * Offsets for tensors [first, first + count) in memory that is aligned to 4096, and
 * how much they take in all. Contiguous tensors stay so, as long as each is aligned.
 */
uint64_t pst_place(const struct penstock_weights *w, uint64_t first, uint64_t count, uint64_t align,
		   uint64_t *offs);

/* The same for one of `len` bytes behind `at`, contiguous from `off` of its file on (0: it
 * is not); *end is where the next may begin. */
uint64_t pst_place_one(uint64_t at, uint64_t off, uint64_t len, enum penstock_dtype dtype,
		       uint64_t least, uint64_t *end);
/* Whether it has pages of its own then. */
bool pst_place_own_pages(uint64_t off, uint64_t len, enum penstock_dtype dtype, uint64_t least);

/*
 * Lets long pieces that have pages of their own begin and end with whole ones, as direct
 * paths want. How many bytes more that makes them.
 */
uint64_t pst_place_widen(struct pst_bits *bits);

#endif
