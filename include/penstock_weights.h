/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penstock_weights.h - load a model's tensors from safetensors files into device memory, and
 * save tensors to such files.
 * It is built on penstock.h and keeps its conventions: errors, units, ownership, threads,
 * structs that begin with `size`.
 *
 *	struct penstock_weights *model;
 *	struct penstock_loaded *loaded;
 *
 *	penstock_weights_open("/models/llama", NULL, &model);
 *	penstock_weights_load(model, &gpu, 1, NULL, NULL, &loaded);
 *	ptr = penstock_loaded_ptr(loaded, 0, penstock_weights_find(model, "lm_head.weight"));
 */
#ifndef PENSTOCK_WEIGHTS_H
#define PENSTOCK_WEIGHTS_H

#include "penstock.h"

#ifdef __cplusplus
extern "C" {
#endif

struct penstock_weights;
struct penstock_weights_opts;
struct penstock_load_opts;
struct penstock_load_report;
struct penstock_loaded;

/*
 * Opens a model and reads the headers of its files. May block.
 *
 * path		one of: a safetensors file; an index (*.json); a directory; a folder of a
 * 		Hugging Face cache (models--owner--name); owner/name, or a name alone, in that
 * 		cache
 * opts		NULL: the defaults
 * out		the model; close it with penstock_weights_close
 *
 * A directory is read by its index; without one by model.safetensors; else all its
 * *.safetensors are read, except those named consolidated* if there are others. With an index
 * the model has only the tensors that the index lists, each from the file that the index names.
 *
 * Up to 64 files stay open: if one is removed or replaced, the model still reads the old file.
 * A child of fork may read a model that its parent opened, onto devices that the child opened.
 *
 * Errors:
 * -ENOENT	there is no such model, one of opts->dirs does not exist, or the model has no
 * 		tensor of opts->names
 * -EBADMSG	a file or an index is malformed, or two files without an index have a tensor of
 * 		the same name
 * -EINVAL	an unknown flag, a list that contains NULL, several indices in a directory of
 * 		which none is called model.safetensors.index.json, or no regular file
 * -ENODATA	a file ends inside its header
 * -EACCES	and other errors of open(2) and read(2)
 */
PENSTOCK_API int penstock_weights_open(const char *path, const struct penstock_weights_opts *opts,
				       struct penstock_weights **out);

/*
 * Loads all tensors of a model at once. May block.
 *
 * For each device one allocation holds every tensor of the model, or of opts->first and
 * opts->count, or this rank's part of each (opts->shard). Several devices get the same bytes,
 * which are read once. It needs device memory for the tensors' bytes, and less than 8 KiB more
 * for each stretch of tensors that is contiguous and aligned in its file, usually one per file.
 * The memory is allocated before the first byte moves. The load is complete or fails.
 *
 * devs		the devices; they must stay open as long as the load
 * dev_count	their number
 * opts		NULL: the defaults
 * report	what the load did, also if it failed; NULL: not wanted
 * out		the load; free it with penstock_loaded_free
 *
 * Errors:
 * -ENOMEM	a device has too little memory, or opts->alloc returned NULL
 * -ESTALE	a file changed since its header was read; noticed before or after its bytes
 * 		moved
 * -ENODATA	a file is shorter than when its header was read
 * -ECANCELED	opts->each or opts->look cancelled the load
 * -ERANGE	opts->first and opts->count reach beyond the last tensor
 * -EINVAL	no device, a wrong alignment, alloc without free, or a part that cannot be
 * 		computed, see penstock_weights_shard
 * -EIO		and other errors of penstock_transfer
 */
PENSTOCK_API int penstock_weights_load(struct penstock_weights *w,
				       struct penstock_device *const *devs, unsigned dev_count,
				       const struct penstock_load_opts *opts,
				       struct penstock_load_report *report,
				       struct penstock_loaded **out);

/*
 * Returns the address of a tensor on a device.
 *
 * loaded	a load; the address is valid until penstock_loaded_free
 * dev_index	position of the device in the list given to penstock_weights_load
 * tensor	number of the tensor, see penstock_weights_find
 *
 * Returns NULL if a number is out of range, or if the load has no part of the tensor.
 */
PENSTOCK_API void *penstock_loaded_ptr(const struct penstock_loaded *loaded, unsigned dev_index,
				       uint64_t tensor);

/*
 * Frees the memory of a load, by opts->free if the load was given one. The devices must still
 * be open. The model may have been closed.
 */
PENSTOCK_API void penstock_loaded_free(struct penstock_loaded *loaded);

/*
 * Closes a model. Its iterators must be closed before. What it has loaded stays. May block.
 */
PENSTOCK_API void penstock_weights_close(struct penstock_weights *w);

/* The most dimensions that a tensor may have. */
#define PENSTOCK_RANK_MAX 64

/*
 * The kinds of elements, with their names in the format and their bits. A tensor of elements
 * smaller than a byte must fill whole bytes. New kinds are added at the end.
 *
 *   X(code, "name", bits)
 */
#define PENSTOCK_DTYPE_LIST(X)           \
	X(BOOL, "BOOL", 8)               \
	X(U8, "U8", 8)                   \
	X(I8, "I8", 8)                   \
	X(U16, "U16", 16)                \
	X(I16, "I16", 16)                \
	X(F16, "F16", 16)                \
	X(BF16, "BF16", 16)              \
	X(U32, "U32", 32)                \
	X(I32, "I32", 32)                \
	X(F32, "F32", 32)                \
	X(U64, "U64", 64)                \
	X(I64, "I64", 64)                \
	X(F64, "F64", 64)                \
	X(C64, "C64", 64)                \
	X(F8_E4M3, "F8_E4M3", 8)         \
	X(F8_E5M2, "F8_E5M2", 8)         \
	X(F8_E8M0, "F8_E8M0", 8)         \
	X(F8_E4M3FNUZ, "F8_E4M3FNUZ", 8) \
	X(F8_E5M2FNUZ, "F8_E5M2FNUZ", 8) \
	X(F6_E2M3, "F6_E2M3", 6)         \
	X(F6_E3M2, "F6_E3M2", 6)         \
	X(F4, "F4", 4)

enum penstock_dtype {
	PENSTOCK_DTYPE_NONE, /* In options: any kind. */
#define PENSTOCK_DTYPE_ENUM(code, name, bits) PENSTOCK_DTYPE_##code,
	PENSTOCK_DTYPE_LIST(PENSTOCK_DTYPE_ENUM)
#undef PENSTOCK_DTYPE_ENUM
		PENSTOCK_DTYPES
};

/* Returns the name of a kind of element, such as "BF16"; "none" for an unknown one. Static. */
PENSTOCK_API const char *penstock_dtype_name(unsigned dtype);

/* Returns the bits of a kind of element, such as 16; 0 for an unknown one. */
PENSTOCK_API unsigned penstock_dtype_bits(unsigned dtype);

/* ---- a model: its files and tensors --------------------------------------------- */

/* The options of penstock_weights_open. */
struct penstock_weights_opts {
	size_t size;
	const char *const *names; /* Open only tensors whose name matches one of these patterns,
				   * with * ? [] as in a shell; NULL: all. Each entry without a
				   * pattern must name an existing tensor, else -ENOENT. */
	unsigned name_count;
	const char *const *dirs; /* Further directories that hold files of the model, for example
				  * on other drives, which are then read at the same time. */
	unsigned dir_count;
	const char *revision; /* Branch, tag or commit of a model in a Hugging Face cache; NULL:
			       * main, else the only revision in the cache. */
	const char *cache;    /* The Hugging Face cache; NULL: $HF_HUB_CACHE, else $HF_HOME/hub,
			       * else huggingface/hub in $XDG_CACHE_HOME or ~/.cache. */
	unsigned flags;	      /* PENSTOCK_WEIGHTS_*. */
};
#define PENSTOCK_WEIGHTS_OPTS_INIT                                                    \
	{                                                                             \
		sizeof(struct penstock_weights_opts), NULL, 0, NULL, 0, NULL, NULL, 0 \
	}

/* The files do not change while the model is open: a second load is then quicker, because
 * registrations are kept. */
#define PENSTOCK_WEIGHTS_IMMUTABLE 0x1u

/*
 * Opens several paths as one model. May block.
 *
 * paths	each as in penstock_weights_open
 * count	their number, at least 1
 * opts		NULL: the defaults
 * out		the model; close it with penstock_weights_close
 *
 * Errors: those of penstock_weights_open.
 */
PENSTOCK_API int penstock_weights_open_list(const char *const *paths, unsigned count,
					    const struct penstock_weights_opts *opts,
					    struct penstock_weights **out);

/* A tensor as its file describes it. */
struct penstock_tensor {
	size_t size;	  /* Set by the caller, as in every struct that a function fills. */
	const char *name; /* Name and shape are valid as long as the model. */
	enum penstock_dtype dtype;
	unsigned rank; /* Number of dimensions. */
	const uint64_t *shape;
	uint64_t bytes;
	unsigned file; /* Number of its file. */
	uint64_t off;  /* Offset of its first byte in the file. */
};

/* Returns the number of tensors. They are numbered from 0 in file order. */
PENSTOCK_API uint64_t penstock_weights_count(const struct penstock_weights *w);

/*
 * Describes a tensor.
 *
 * index	number of the tensor
 * out		filled up to out->size
 *
 * Errors:
 * -ENOENT	there is no tensor of this number
 */
PENSTOCK_API int penstock_weights_get(const struct penstock_weights *w, uint64_t index,
				      struct penstock_tensor *out);

/*
 * Returns the number of the tensor with this name.
 *
 * Errors:
 * -ENOENT	the model has no such tensor
 */
PENSTOCK_API int64_t penstock_weights_find(const struct penstock_weights *w, const char *name);

/* A file of a model. */
struct penstock_weights_file {
	size_t size;
	const char *path; /* Valid as long as the model. */
	uint64_t length;
	uint64_t data_off;   /* Offset of its first tensor. */
	unsigned pair_count; /* Number of pairs in its metadata. */
	int has_metadata;    /* 1: it has metadata, perhaps without pairs. */
};

/* Returns the number of files of a model. */
PENSTOCK_API unsigned penstock_weights_file_count(const struct penstock_weights *w);

/*
 * Describes a file of a model.
 *
 * file		number of the file, from 0 on
 * out		filled up to out->size
 *
 * Errors:
 * -ENOENT	there is no file of this number
 */
PENSTOCK_API int penstock_weights_get_file(const struct penstock_weights *w, unsigned file,
					   struct penstock_weights_file *out);

/*
 * Returns a pair of a file's metadata.
 *
 * file		number of the file
 * index	number of the pair, from 0 on, in the order of the keys
 * key		the key, valid as long as the model
 * value	the value, valid as long as the model
 *
 * Errors:
 * -ENOENT	a number is out of range
 */
PENSTOCK_API int penstock_weights_get_metadata(const struct penstock_weights *w, unsigned file,
					       unsigned index, const char **key,
					       const char **value);

/* The place of an error. */
struct penstock_weights_place {
	size_t size;
	char file[1024];  /* "": no file. A longer path loses its beginning. */
	char tensor[256]; /* "": no tensor. */
	uint64_t off;	  /* Offset in the file; UINT64_MAX: none. */
};

/* Returns where the last penstock_weights function that failed on this thread did so.
 * penstock_errmsg has its message. */
PENSTOCK_API void penstock_weights_get_place(struct penstock_weights_place *out);

/* ---- loads ---------------------------------------------------------------------- */

struct penstock_shard_opts;

/*
 * The options of every kind of load. A load submits one request per file, or more with
 * `request_bytes`, and has all of them in flight at once. The bytes arrive at their final
 * place: nothing is moved on the device afterwards.
 */
struct penstock_load_opts {
	size_t size;
	enum penstock_class require;
	enum penstock_effort effort;
	const char *path;	/* As in penstock_req. */
	uint64_t align;		/* Least alignment of each tensor, a power of two up to 4096;
				 * 0: what its dtype needs. */
	uint64_t window;	/* Iterator: bytes of the window, 0: 1 GiB. */
	uint64_t request_bytes; /* Splits requests of this length at tensors, so that `each` is
				 * called more often; 0: no. */
	/* Allocates device memory in place of penstock_alloc; NULL: penstock_alloc and
	 * penstock_free. Returning NULL fails the load with -ENOMEM. */
	void *(*alloc)(void *user, struct penstock_device *dev, size_t len, size_t align);
	/* Frees memory of `alloc`; set if and only if `alloc` is. */
	void (*free)(void *user, struct penstock_device *dev, void *ptr, size_t len);
	/* Called after each request, on the caller's thread. The report is valid inside the
	 * call. Returning non-zero cancels the load: -ECANCELED. */
	int (*each)(void *user, unsigned file, const struct penstock_report *report);
	void *user;	       /* Passed to all callbacks. */
	uint64_t first, count; /* penstock_weights_load: only these tensors; count 0: to the
				* last one. */
	const struct penstock_shard_opts *shard; /* penstock_weights_load: only this rank's part of
						  * each tensor, see penstock_weights_shard. */
	/* Called some ten times a second while the load waits, on the caller's thread. Returning
	 * non-zero cancels the load: -ECANCELED, after the requests in flight have completed. It
	 * is not called again. */
	int (*look)(void *user);
};
#define PENSTOCK_LOAD_OPTS_INIT                                                                   \
	{                                                                                         \
		sizeof(struct penstock_load_opts), PENSTOCK_ANY, PENSTOCK_THRIFTY, NULL, 0, 0, 0, \
			NULL, NULL, NULL, NULL, 0, 0, NULL, NULL                                  \
	}

/* What a load did, all its requests together. */
struct penstock_load_report {
	size_t size;
	uint64_t bytes;	       /* Bytes delivered; each destination counts. */
	uint64_t read;	       /* Bytes read from files, or written to one, each byte once. Whole
				* pages where a tensor begins or ends inside of one. */
	uint64_t device_bytes; /* The most device memory held at a time, on all devices. */
	uint64_t cpu_copied;   /* As in penstock_report. */
	uint64_t dram_laid;    /* As in penstock_report. */
	uint64_t retries;
	uint64_t requests;
	uint64_t start_ns, end_ns;
	const char *path; /* The path that carried most bytes; static. */
	const char *engine;
};

/*
 * Returns the effort that suits a load by several processes of a host at the same time.
 *
 * ranks	number of the processes, in a group or not
 *
 * It is `fast` for two or more, and `thrifty` for one, and for any number if registrations are
 * kept (PENSTOCK_WEIGHTS_IMMUTABLE). The reason: a driver registers the page cache for one
 * process after the other, so that several are quicker with copies by their CPUs. `penstock
 * load` and the Python package use this effort by default. An effort set in options is used as
 * it is.
 */
PENSTOCK_API enum penstock_effort penstock_weights_effort(const struct penstock_weights *w,
							  unsigned ranks);

/*
 * A range of one dimension of a tensor, and memory for it: rows of consecutive bytes that are
 * `pitch` bytes apart at the destination.
 */
struct penstock_piece {
	size_t size;
	uint64_t tensor;	     /* Number of the tensor. */
	unsigned dim;		     /* Dimension of the range; 0 with count 0: the whole tensor. */
	uint64_t first, count;	     /* Elements of dim; count 0: up to the last. */
	uint64_t outer_first;	     /* First index in the dimensions before dim, taken as one. */
	uint64_t outer_count;	     /* Indices of these dimensions; 0: up to the last. */
	struct penstock_device *dev; /* NULL: found from the pointer. */
	void *ptr;		     /* The destination. */
	uint64_t room;		     /* Bytes at ptr. */
	uint64_t pitch;		     /* Bytes from row to row; 0: no gap. */
	enum penstock_dtype dtype;   /* Of the destination; PENSTOCK_DTYPE_NONE: not checked. */
};

/*
 * Loads any number of pieces of tensors into the caller's memory. May block.
 *
 * Several pieces of the same bytes are several destinations of one read. The load allocates no
 * device memory. All pieces are checked before the first byte moves: range, size of the
 * destination, dtype, device. After a failure in flight the contents of the destinations are
 * undefined.
 *
 * pieces	the pieces; the memory at their pointers must stay valid during the call
 * count	their number
 * opts		NULL: the defaults
 * report	what the load did; NULL: not wanted
 *
 * Errors:
 * -ENOENT	there is no tensor of this number
 * -ERANGE	a piece is outside of its tensor
 * -ENOSPC	a piece does not fit in its memory
 * -EINVAL	another dtype or device, or elements that do not begin at a byte
 * -ENODEV	the memory is on no open device
 * -ESTALE	and the other errors of penstock_weights_load
 */
PENSTOCK_API int penstock_weights_load_into(struct penstock_weights *w,
					    const struct penstock_piece *pieces, uint64_t count,
					    const struct penstock_load_opts *opts,
					    struct penstock_load_report *report);

/* ---- an iterator: one tensor after the other ------------------------------------ */

struct penstock_weights_iter;

/*
 * Opens an iterator, which returns the tensors one after the other in file order. May block.
 *
 * It reads ahead into a window of device memory. It needs memory for the window, at least 256
 * KiB, and for two at a time of the tensors that are longer than a quarter of the window, which
 * get allocations of their own. So a loop that holds one tensor always gets the next. Whether
 * the device has that memory is tried here. One thread at a time may use an iterator.
 *
 * dev		the device; it must stay open until the iterator is closed
 * opts		NULL: the defaults
 * out		the iterator; close it with penstock_weights_iter_close
 *
 * Errors:
 * -ENOMEM	the device has too little memory
 * -EINVAL	no device, a wrong alignment, or alloc without free
 */
PENSTOCK_API int penstock_weights_iter_open(struct penstock_weights *w, struct penstock_device *dev,
					    const struct penstock_load_opts *opts,
					    struct penstock_weights_iter **out);

/*
 * Returns the next tensor: 1, or 0 after the last one. May block.
 *
 * tensor	number of the tensor
 * ptr		its address, valid until penstock_weights_iter_release
 *
 * Errors, after which the iterator returns no more tensors, except after -ENOBUFS:
 * -ENOBUFS	the window is full of tensors that have not been released
 * -ESTALE	and the other errors of penstock_weights_load
 */
PENSTOCK_API int penstock_weights_iter_next(struct penstock_weights_iter *it, uint64_t *tensor,
					    void **ptr);

/*
 * Releases a tensor's memory. Tensors may be released in any order.
 *
 * Errors:
 * -ENOENT	the caller does not hold this tensor
 */
PENSTOCK_API int penstock_weights_iter_release(struct penstock_weights_iter *it, uint64_t tensor);

/* Reports what an iterator has done so far. */
PENSTOCK_API void penstock_weights_iter_report(const struct penstock_weights_iter *it,
					       struct penstock_load_report *out);

/* Closes an iterator, at any time, and frees its window with all tensors in it. May block. */
PENSTOCK_API void penstock_weights_iter_close(struct penstock_weights_iter *it);

/* ---- tensor parallelism: the part of each tensor that a rank needs -------------- */

/* How a rule splits a tensor between the ranks. */
enum penstock_cut {
	PENSTOCK_CUT_WHOLE = 0,	  /* Not split: every rank has all of it. */
	PENSTOCK_CUT_FIRST,	  /* Dimension 0; a bias is split, too. */
	PENSTOCK_CUT_LAST,	  /* The last dimension; a bias stays whole. */
	PENSTOCK_CUT_HEADS,	  /* Dimension 0 by key-value heads; ranks share a head if there
				   * are more ranks than heads. */
	PENSTOCK_CUT_QKV,	  /* Dimension 0: queries, keys and values, each by its heads. */
	PENSTOCK_CUT_HALVES,	  /* Dimension 0: two halves, each split. */
	PENSTOCK_CUT_LAST_HALVES, /* The last dimension: two halves, each split. */
	PENSTOCK_CUT_WORDS,	  /* Dimension 0, rounded up to a multiple of 64 if ranks can share
				   * that evenly; the last ranks get less, or nothing. */
	PENSTOCK_CUT_INNER,	  /* The last dimension but one; a bias stays whole. */
	PENSTOCK_CUT_QUERIES,	  /* As FIRST, by whole query heads if their number is known. */
};

/*
 * A rule: which tensors are split in which way. The first rule whose pattern matches a name
 * applies. Dimensions are those of a weight of [out, in]. Tensors that GPTQ and AWQ store the
 * other way round (*.qweight, *.qzeros, *.scales) are split the other way round, and *.g_idx
 * is split with the inputs. A scale (*_scale, *_scale_inv) is split like its weight, in its
 * blocks: a rank's part of the weight may not begin inside of a block and leave it. A scale for
 * the whole tensor stays whole, as do the scales of mixed groups (desc_act) if inputs are split.
 */
struct penstock_cut_rule {
	const char *glob; /* A pattern as in a shell. */
	enum penstock_cut cut;
};

/*
 * Returns the built-in rules, most special first.
 *
 * count	their number
 *
 * They are for Llama, Qwen, Mixtral, DeepSeek and models with the same names. A name without a
 * rule is not split. The list is static.
 */
PENSTOCK_API const struct penstock_cut_rule *penstock_cut_rules(unsigned *count);

/* The options of penstock_weights_shard: the rank, and how to split. */
struct penstock_shard_opts {
	size_t size;
	unsigned rank, ranks;		       /* Of the tensor parallelism. */
	unsigned expert_rank, expert_ranks;    /* Above 1: experts are distributed, not split. */
	unsigned heads, kv_heads, experts;     /* 0: from the model's config.json. */
	const struct penstock_cut_rule *rules; /* Tried before the built-in ones. */
	unsigned rule_count;
};
#define PENSTOCK_SHARD_OPTS_INIT                                                 \
	{                                                                        \
		sizeof(struct penstock_shard_opts), 0, 1, 0, 1, 0, 0, 0, NULL, 0 \
	}

#define PENSTOCK_SHARD_PIECES 3

/* A rank's part of a tensor. */
struct penstock_shard {
	size_t size;
	unsigned piece_count; /* 0: the rank has nothing of the tensor. */
	unsigned rank;	      /* Number of dimensions. */
	uint64_t shape[PENSTOCK_RANK_MAX];
	uint64_t bytes;
	/* Ready for penstock_weights_load_into except for dev and ptr: ptr is the offset in the
	 * part's memory, to which the caller adds the memory's address. */
	struct penstock_piece pieces[PENSTOCK_SHARD_PIECES];
};

/*
 * Computes the pieces of a tensor that a rank needs. The first call for a model may block,
 * since it reads config.json.
 *
 * tensor	number of the tensor
 * opts		the rank; NULL: rank 0 of 1
 * out		filled up to out->size
 *
 * Errors:
 * -EINVAL	the tensor cannot be split into that many parts, the number of heads or experts
 * 		is needed and not known, or a number is out of range
 */
PENSTOCK_API int penstock_weights_shard(struct penstock_weights *w, uint64_t tensor,
					const struct penstock_shard_opts *opts,
					struct penstock_shard *out);

/* ---- groups: several processes of a host ---------------------------------------- */

struct penstock_group;

/* The most ranks of a group. */
#define PENSTOCK_GROUP_MAX 64

/* The options of penstock_group_open. But for dir, timeout_ms, look and user, rank 0's hold for
 * all ranks. */
struct penstock_group_opts {
	size_t size;
	const char *dir;     /* Directory of the group's socket, which only this user may enter,
			      * and which all ranks see, also from several containers; NULL:
			      * $XDG_RUNTIME_DIR, else /tmp/penstock-UID. */
	unsigned timeout_ms; /* Time for all ranks to join; 0: 120 s. */
	unsigned windows;    /* Windows of each rank, for reading ahead; 0: 4. */
	uint64_t window;     /* Bytes of device memory of a window, whole pages; 0: 64 MiB. */
	unsigned stall_ms;   /* Time that the others wait for a rank in a load before they give
			      * it up: -ETIMEDOUT; 0: 10 minutes. */
	/* Several hosts may load the same model from one store, each with a group. Each host then
	 * reads once what its ranks need, and starts at another place of the model. */
	unsigned host, hosts;	 /* This host's number, from 0 on, and how many; 0: one host. */
	unsigned jitter_ms;	 /* Most time that penstock_group_open waits at the end, hosts one
				  * after the other, so that not all read at the same moment. */
	unsigned reads_max;	 /* Requests of all ranks in flight at one store, which is a file
				  * system; 0: no limit. */
	int (*look)(void *user); /* As in penstock_load_opts, while this rank waits for others. */
	void *user;
};
#define PENSTOCK_GROUP_OPTS_INIT                                                             \
	{                                                                                    \
		sizeof(struct penstock_group_opts), NULL, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL \
	}

/*
 * Joins a group as one of its ranks, and returns when all ranks have joined. May block.
 *
 * The ranks are processes of one user on one host that open a group of the same name.
 *
 * name		the group's name, 63 bytes at most, without a slash; a group of one rank may
 * 		have any
 * rank		this process's number, from 0 on
 * ranks	how many there are, PENSTOCK_GROUP_MAX at most
 * opts		NULL: the defaults
 * out		the group; leave it with penstock_group_close
 *
 * Errors:
 * -ETIMEDOUT		a rank has not joined in time
 * -EINVAL		an option is out of range, or the ranks were given different numbers of
 * 			ranks
 * -EEXIST		two processes were given the same rank
 * -EBUSY		another group of this name is waiting for its ranks
 * -ECONNRESET		a rank exited before all had joined
 * -EPROTO		a rank uses another version of the library
 * -ENAMETOOLONG	the name, or the socket's address with it, is too long
 * -EPERM		other users may enter the directory
 * -ECANCELED		opts->look cancelled the call
 */
PENSTOCK_API int penstock_group_open(const char *name, unsigned rank, unsigned ranks,
				     const struct penstock_group_opts *opts,
				     struct penstock_group **out);

/* Leaves a group. Ranks that still load fail and report that this one has left. */
PENSTOCK_API void penstock_group_close(struct penstock_group *g);

/*
 * Loads a model by all ranks together: penstock_weights_load for a group. May block.
 *
 * Every rank calls it, with the same files, and with its own destinations, devices and shard.
 * What any rank needs is read once, a share by each rank, and copied from device to device; if
 * the devices cannot share memory, through host memory. The windows need device memory in
 * addition, which never comes from opts->alloc. report->read is what this rank has read. One
 * thread of a rank at a time may use the group.
 *
 * The ranks must see the same files. A file that a rank sees under another device or inode
 * number, as through another mount, counts as the same if its size, its time of change, its
 * header and a sample of each tensor are equal.
 *
 * A failure on one rank fails all, with the message "rank 2: ...". Ranks learn of it within 10
 * s, also while a store keeps a read or an open for longer: the library then keeps what the
 * read needs until it ends, and closing `w` does not wait for it.
 *
 * devs		and the other parameters: as in penstock_weights_load
 *
 * Errors:
 * -ESTALE	a rank has another file than rank 0, or other tensors of it
 * -ECONNRESET	a rank is lost: it closed the group, or its process exited, with its status if
 * 		that is known; the group can only be closed
 * -ETIMEDOUT	a rank hangs; the group can only be closed
 * -EOWNERDEAD	the group was opened before a fork, by the parent
 * -ENOMEM	and the other errors of penstock_weights_load
 */
PENSTOCK_API int penstock_group_load(struct penstock_group *g, struct penstock_weights *w,
				     struct penstock_device *const *devs, unsigned dev_count,
				     const struct penstock_load_opts *opts,
				     struct penstock_load_report *report,
				     struct penstock_loaded **out);

/*
 * Loads pieces by all ranks together: penstock_weights_load_into for a group. May block.
 *
 * Every rank calls it, with pieces of its own. Everything else is as in penstock_group_load.
 *
 * Errors: those of penstock_group_load and of penstock_weights_load_into.
 */
PENSTOCK_API int penstock_group_load_into(struct penstock_group *g, struct penstock_weights *w,
					  const struct penstock_piece *pieces, uint64_t count,
					  const struct penstock_load_opts *opts,
					  struct penstock_load_report *report);

/* ---- saving --------------------------------------------------------------------- */

/* A tensor to save: whole, without gaps, on any open device. */
struct penstock_out {
	size_t size;
	const char *name;
	enum penstock_dtype dtype;
	unsigned rank; /* Number of dimensions. */
	const uint64_t *shape;
	struct penstock_device *dev; /* NULL: found from the pointer. */
	const void *ptr;
};

/* The options of penstock_weights_save. */
struct penstock_save_opts {
	size_t size;
	const char *const *keys, *const *values; /* Metadata; NULL: none, not even empty. */
	unsigned pair_count;
	int durable; /* 1: the file survives a power failure after the call. */
	enum penstock_class require;
	enum penstock_effort effort;
	const char *path;	 /* As in penstock_req. */
	int (*look)(void *user); /* As in penstock_load_opts; cancelling leaves nothing of the
				  * file. */
	void *user;
};
#define PENSTOCK_SAVE_OPTS_INIT                                                    \
	{                                                                          \
		sizeof(struct penstock_save_opts), NULL, NULL, 0, 0, PENSTOCK_ANY, \
			PENSTOCK_THRIFTY, NULL, NULL, NULL                         \
	}

/*
 * Writes tensors to one safetensors file. May block.
 *
 * The file appears under its name, in place of any old one, only when it is complete. Tensors
 * are ordered by falling size of their elements, then by name. In a file of a megabyte or more
 * the first tensor begins at a page boundary, so that direct paths can write it.
 *
 * path		a path, even if it has colons in it, or file:///...
 * tensors	the tensors; their memory must stay valid during the call
 * count	their number
 * opts		NULL: the defaults
 * report	what the save did; NULL: not wanted
 *
 * Errors:
 * -EINVAL	a name that occurs twice, text that is not UTF-8, a dtype or shape that no file
 * 		can hold, or memory on no open device
 * -ECANCELED	opts->look cancelled the save
 * -ENOSPC	and other errors of penstock_open, penstock_transfer and penstock_commit
 */
PENSTOCK_API int penstock_weights_save(const char *path, const struct penstock_out *tensors,
				       uint64_t count, const struct penstock_save_opts *opts,
				       struct penstock_load_report *report);

#ifdef __cplusplus
}
#endif
#endif
