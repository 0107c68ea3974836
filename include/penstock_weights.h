/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penstock_weights.h - load a model's tensors from safetensors files into device memory, and
 * save tensors to such files.
 * It is built on penstock.h and follows the conventions of that header for errors, units,
 * ownership, threads, and structs that begin with `size`.
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
 * 		Hugging Face cache (models--owner--name); the name of a model in that cache,
 * 		which is owner/name or a name without an owner; the URL of an object, of an index
 *		that is an object, or of a prefix that ends with a slash (see penstock_open)
 * opts		the options; NULL stands for the defaults
 * out		receives the model; close it with penstock_weights_close
 *
 * In a directory the index tells which files belong to the model. If there is no index, the
 * model is the file model.safetensors. If there is none either, all files *.safetensors belong
 * to the model, but files named consolidated* only if there are no others. With an index, the
 * model has only the tensors that the index lists, each from the file that the index names. A
 * prefix stands for its object model.safetensors.index.json, because objects are not listed.
 *
 * A model of up to 64 files keeps them open: if a file is removed or replaced, the model still
 * reads the old file. A child process may use a model that its parent opened before the fork,
 * but only with devices that the child opened itself.
 *
 * Errors:
 * -ENOENT	there is no such model, one of opts->dirs does not exist, or the model lacks a
 * 		tensor that opts->names requires
 * -EBADMSG	a file or an index is malformed, or there is no index and two files have a
 * 		tensor of the same name
 * -EINVAL	a flag is unknown, a list contains NULL, the path is not a regular file, or a
 * 		directory has several indices, none named model.safetensors.index.json
 * -ENODATA	a file ends before its header does
 * -EACCES	and other errors of open(2) and read(2)
 */
PENSTOCK_API int penstock_weights_open(const char *path, const struct penstock_weights_opts *opts,
				       struct penstock_weights **out);

/*
 * Loads all tensors of a model at once. May block.
 *
 * On each device, one allocation holds all tensors of the model. opts->first and opts->count
 * restrict the load to some tensors, and opts->shard to one rank's part of each tensor. If there
 * are several devices, all get the same bytes, which are read once. On each device the load
 * needs memory for the tensors' bytes, and less than 8 KiB more for each sequence of tensors
 * that are contiguous and aligned in their file; usually that is one sequence per file. The
 * memory is allocated before the first byte moves. If the load fails, it leaves nothing.
 *
 * devs		the devices; they must stay open until penstock_loaded_free
 * dev_count	number of devices
 * opts		the options; NULL stands for the defaults
 * report	receives what the load did, even if it failed; may be NULL
 * out		receives the load; free it with penstock_loaded_free
 *
 * Errors:
 * -ENOMEM	a device has too little memory, or opts->alloc returned NULL
 * -ESTALE	a file has changed since its header was read; the change may be detected only
 * 		after bytes have moved
 * -ENODATA	a file is shorter than when its header was read
 * -ECANCELED	opts->each or opts->look cancelled the load
 * -ERANGE	opts->first and opts->count reach beyond the last tensor
 * -EINVAL	no device was given, the alignment is not valid, opts->alloc is set without
 * 		opts->free, or a rank's part cannot be computed, see penstock_weights_shard
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
 * tensor	index of the tensor, see penstock_weights_find
 *
 * Returns NULL if `dev_index` or `tensor` is out of range, or if the load does not contain the
 * tensor or a part of it.
 */
PENSTOCK_API void *penstock_loaded_ptr(const struct penstock_loaded *loaded, unsigned dev_index,
				       uint64_t tensor);

/*
 * Frees the memory of a load, with opts->free if the load was given that function. The devices must
 * still be open. The model may already be closed.
 */
PENSTOCK_API void penstock_loaded_free(struct penstock_loaded *loaded);

/*
 * Closes a model. Tensors that it has loaded remain in memory. Iterators over it can still be used:
 * the model's files stay open until the last of these iterators is closed. May block.
 */
PENSTOCK_API void penstock_weights_close(struct penstock_weights *w);

/* Maximum number of dimensions of a tensor. */
#define PENSTOCK_RANK_MAX 64

/*
 * The kinds of elements (dtypes), each with its name in the safetensors format and its size in
 * bits. If an element is smaller than a byte, the tensor must still fill whole bytes. New kinds are
 * added at the end.
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
	/* Stands for any kind of element in a struct that the caller fills. */
	PENSTOCK_DTYPE_NONE,
#define PENSTOCK_DTYPE_ENUM(code, name, bits) PENSTOCK_DTYPE_##code,
	PENSTOCK_DTYPE_LIST(PENSTOCK_DTYPE_ENUM)
#undef PENSTOCK_DTYPE_ENUM
		PENSTOCK_DTYPES
};

/* Returns the name of a kind of element, for example "BF16"; "none" if the kind is unknown. The
 * string is static. */
PENSTOCK_API const char *penstock_dtype_name(unsigned dtype);

/* Returns the size in bits of a kind of element, for example 16; 0 if the kind is unknown. */
PENSTOCK_API unsigned penstock_dtype_bits(unsigned dtype);

/* ---- a model: its files and tensors --------------------------------------------- */

/* The options of penstock_weights_open. */
struct penstock_weights_opts {
	size_t size;
	/* Patterns for the names of the tensors to open, with * ? [] as in a shell; NULL opens
	 * all tensors. If an entry without these characters names no tensor, the open fails with
	 * -ENOENT. */
	const char *const *names;
	unsigned name_count;
	/* Further directories that hold files of the model. If they are on different drives, the
	 * drives are read at the same time. */
	const char *const *dirs;
	unsigned dir_count;
	/* Branch, tag or commit of a model in a Hugging Face cache. NULL stands for the branch
	 * main or, if the cache does not have it, for the only revision in the cache. */
	const char *revision;
	/* Directory of the Hugging Face cache. NULL stands for $HF_HUB_CACHE or, if that is not
	 * set, $HF_HOME/hub, else huggingface/hub in $XDG_CACHE_HOME or ~/.cache. */
	const char *cache;
	unsigned flags; /* Flags PENSTOCK_WEIGHTS_*, or 0. */
};
#define PENSTOCK_WEIGHTS_OPTS_INIT                                                    \
	{                                                                             \
		sizeof(struct penstock_weights_opts), NULL, 0, NULL, 0, NULL, NULL, 0 \
	}

/* Flag of penstock_weights_opts: promises that the files do not change while the model is open. The
 * library may then keep the files' page cache registered with a GPU, which makes a second load
 * quicker. */
#define PENSTOCK_WEIGHTS_IMMUTABLE 0x1u

/*
 * Opens several paths as one model. May block.
 *
 * paths	the paths, each as in penstock_weights_open
 * count	number of paths, at least 1
 * opts		the options; NULL stands for the defaults
 * out		receives the model; close it with penstock_weights_close
 *
 * Errors: those of penstock_weights_open.
 */
PENSTOCK_API int penstock_weights_open_list(const char *const *paths, unsigned count,
					    const struct penstock_weights_opts *opts,
					    struct penstock_weights **out);

/* A tensor as its file describes it. */
struct penstock_tensor {
	/* Size of this struct. The caller sets it, as in every struct that a function fills. */
	size_t size;
	const char *name; /* `name` and `shape` are valid as long as the model is open. */
	enum penstock_dtype dtype;
	unsigned rank; /* Number of dimensions. */
	const uint64_t *shape;
	uint64_t bytes;
	unsigned file; /* Index of the file that holds the tensor. */
	uint64_t off;  /* Offset of the tensor's first byte in that file. */
};

/* Returns the number of tensors in a model. Tensors have indices from 0 on, in file order. */
PENSTOCK_API uint64_t penstock_weights_count(const struct penstock_weights *w);

/*
 * Describes a tensor.
 *
 * index	index of the tensor
 * out		receives the description; members beyond out->size bytes are not written
 *
 * Errors:
 * -ENOENT	there is no tensor with this index
 */
PENSTOCK_API int penstock_weights_get(const struct penstock_weights *w, uint64_t index,
				      struct penstock_tensor *out);

/*
 * Returns the index of the tensor with this name.
 *
 * Errors:
 * -ENOENT	the model has no such tensor
 */
PENSTOCK_API int64_t penstock_weights_find(const struct penstock_weights *w, const char *name);

/* A file of a model. */
struct penstock_weights_file {
	size_t size;
	const char *path; /* Path of the file, valid as long as the model is open. */
	uint64_t length;
	uint64_t data_off;   /* Offset of the first tensor in the file. */
	unsigned pair_count; /* Number of key-value pairs in the file's metadata. */
	int has_metadata;    /* 1 if the file has metadata, even without pairs; else 0. */
};

/* Returns the number of files of a model. */
PENSTOCK_API unsigned penstock_weights_file_count(const struct penstock_weights *w);

/*
 * Describes a file of a model.
 *
 * file		index of the file, from 0 on
 * out		receives the description; members beyond out->size bytes are not written
 *
 * Errors:
 * -ENOENT	there is no file with this index
 */
PENSTOCK_API int penstock_weights_get_file(const struct penstock_weights *w, unsigned file,
					   struct penstock_weights_file *out);

/*
 * Returns one key and its value from a file's metadata.
 *
 * file		index of the file
 * index	index of the pair, from 0 on; pairs are sorted by key
 * key		receives the key, which is valid as long as the model is open
 * value	receives the value, which is valid as long as the model is open
 *
 * Errors:
 * -ENOENT	there is no file or no pair with this index
 */
PENSTOCK_API int penstock_weights_get_metadata(const struct penstock_weights *w, unsigned file,
					       unsigned index, const char **key,
					       const char **value);

/* The file, the tensor and the offset at which an error occurred. */
struct penstock_weights_place {
	size_t size;
	/* Path of the file; "" if none. If the path is too long, its beginning is left out. */
	char file[1024];
	char tensor[256]; /* Name of the tensor; "" if none. */
	uint64_t off;	  /* Offset in the file; UINT64_MAX if none. */
	/* Message of the failure, with the whole `file` and the whole `tensor`. The message of
	 * penstock_errmsg has less room, so it contains only parts of long names. */
	char text[1600];
};

/* Stores in *out where the last failure of a penstock_weights function on this thread occurred.
 * penstock_errmsg returns a message of that failure that fits into PENSTOCK_TEXT_MAX bytes. */
PENSTOCK_API void penstock_weights_get_place(struct penstock_weights_place *out);

/* ---- loads ---------------------------------------------------------------------- */

struct penstock_shard_opts;

/*
 * The options of all kinds of loads. A load submits one request for each file, or more if
 * `request_bytes` is set, and has all requests in flight at once. The bytes are read to their final
 * place in device memory, so they are not moved afterwards.
 */
struct penstock_load_opts {
	size_t size;
	enum penstock_class require;
	enum penstock_effort effort;
	const char *path; /* Name of the only path to use; NULL: the library chooses. */
	/* Minimum alignment of each tensor in bytes, a power of two up to 4096; 0 stands for the
	 * size of the tensor's elements. */
	uint64_t align;
	/* Length in bytes of an iterator's window, which is memory for tensors that are read ahead;
	 * 0 stands for 1 GiB. Other loads ignore this member. */
	uint64_t window;
	/* If not 0, the load splits each file's request at boundaries of tensors into requests of
	 * about this many bytes, so that it calls `each` more often. */
	uint64_t request_bytes;
	/* Function that allocates device memory instead of penstock_alloc. If it returns NULL,
	 * the load fails with -ENOMEM. NULL stands for penstock_alloc and penstock_free. */
	void *(*alloc)(void *user, struct penstock_device *dev, size_t len, size_t align);
	/* Function that frees memory that `alloc` allocated. Set both functions or neither. */
	void (*free)(void *user, struct penstock_device *dev, void *ptr, size_t len);
	/* Function that the load calls after each request, on the caller's thread; NULL if none.
	 * `report` is valid until the function returns. If it returns non-zero, the load is
	 * cancelled and fails with -ECANCELED. */
	int (*each)(void *user, unsigned file, const struct penstock_report *report);
	void *user; /* Pointer that is passed to all functions in this struct. */
	/* Index of the first tensor to load, and number of tensors; a count of 0 loads all
	 * tensors from `first` on. Used only by penstock_weights_load and penstock_group_load. */
	uint64_t first, count;
	/* If not NULL, the load reads only the part of each tensor that this rank needs, see
	 * penstock_weights_shard. Used only by penstock_weights_load and penstock_group_load. */
	const struct penstock_shard_opts *shard;
	/* Function that the library calls about ten times a second, on the caller's thread, while
	 * the load waits; NULL if none. If the function returns non-zero, the library does not call
	 * it again, and cancels the load. The load then fails with -ECANCELED when the requests in
	 * flight have completed. */
	int (*look)(void *user);
};
#define PENSTOCK_LOAD_OPTS_INIT                                                                   \
	{                                                                                         \
		sizeof(struct penstock_load_opts), PENSTOCK_ANY, PENSTOCK_THRIFTY, NULL, 0, 0, 0, \
			NULL, NULL, NULL, NULL, 0, 0, NULL, NULL                                  \
	}

/* The report of one load or save. Its numbers are sums over all requests of the load or save. */
struct penstock_load_report {
	size_t size;
	/* Number of delivered bytes. Bytes that go to several destinations count once for each
	 * destination. */
	uint64_t bytes;
	/* Number of bytes read from files, or written to a file. Each byte counts once. If a
	 * read is widened to whole pages, all bytes of the pages count. */
	uint64_t read;
	/* Largest amount of device memory that was allocated at the same time, on all devices
	 * together, in bytes. */
	uint64_t device_bytes;
	uint64_t cpu_copied; /* Sum of penstock_report.cpu_copied over all requests. */
	uint64_t dram_laid;  /* Sum of penstock_report.dram_laid over all requests. */
	uint64_t retries;
	uint64_t requests;
	uint64_t start_ns, end_ns;
	const char *path; /* Name of the path that carried most bytes; a static string. */
	const char *engine;
};

/*
 * Returns the effort with which `ranks` processes of a host should load at the same time.
 *
 * ranks	number of processes that load, whether they are in a group or not
 *
 * The effort is PENSTOCK_FAST for two or more processes. It is PENSTOCK_THRIFTY for one process,
 * and for any number of processes if `w` was opened with PENSTOCK_WEIGHTS_IMMUTABLE, which keeps
 * the page cache registered with the GPU. A driver registers the page cache for one process after
 * the other, so several processes are quicker if their CPUs copy the bytes. `penstock load` and
 * the Python package use this effort by default. The library's functions use only the effort in
 * their options.
 */
PENSTOCK_API enum penstock_effort penstock_weights_effort(const struct penstock_weights *w,
							  unsigned ranks);

/*
 * A piece of a tensor, and the memory to load it to. The piece is a range of indices in one
 * dimension. At the destination it is stored in rows of consecutive bytes; one row begins `pitch`
 * bytes after the previous one.
 */
struct penstock_piece {
	size_t size;
	uint64_t tensor; /* Index of the tensor in the model. */
	/* Dimension in which `first` and `count` choose a range. If `dim` and `count` are 0, the
	 * piece is the whole tensor. */
	unsigned dim;
	/* First index in dimension `dim`, and number of indices; a count of 0 stands for all
	 * indices from `first` on. */
	uint64_t first, count;
	/* First index in the dimensions before `dim`, which are treated as one flattened
	 * dimension. */
	uint64_t outer_first;
	/* Number of indices in the flattened dimensions before `dim`; 0 stands for all indices from
	 * `outer_first` on. */
	uint64_t outer_count;
	struct penstock_device *dev; /* Device of the memory; NULL finds it from `ptr`. */
	void *ptr;		     /* Address of the destination. */
	uint64_t room;		     /* Number of bytes available at `ptr`. */
	/* Distance in bytes from the start of a row to the start of the next; 0 stands for the
	 * length of a row. */
	uint64_t pitch;
	/* Type of the destination's elements. It must be the same as the tensor's type;
	 * PENSTOCK_DTYPE_NONE accepts any type. */
	enum penstock_dtype dtype;
};

/*
 * Loads any number of pieces of tensors into the caller's memory. May block.
 *
 * If several pieces contain the same bytes, these bytes are read once and delivered to each
 * destination. The load allocates no device memory. Before the first byte moves, it checks the
 * range, the size of the destination, the dtype and the device of every piece. If the load fails
 * after that, the contents of the destinations are undefined.
 *
 * pieces	the pieces; the memory at their pointers must stay valid during the call
 * count	number of pieces
 * opts		the options; NULL stands for the defaults
 * report	receives what the load did; may be NULL
 *
 * Errors:
 * -ENOENT	a piece has the index of a tensor that does not exist
 * -ERANGE	a piece is not inside its tensor
 * -ENOSPC	a piece does not fit in the memory at its `ptr`
 * -EINVAL	the dtype or device of a piece does not match, or a piece does not begin and end
 * 		at a whole byte
 * -ENODEV	the memory of a piece is on no open device
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
 * The iterator reads tensors ahead into a window of device memory of at least 256 KiB. A tensor
 * that is longer than a quarter of the window gets an allocation of its own; at most two such
 * allocations exist at a time. So a loop that holds one tensor can always get the next one. This
 * function tests that the device has memory for the window and for these two allocations. Only
 * one thread at a time may use an iterator.
 *
 * dev		the device; it must stay open until the iterator is closed
 * opts		the options; NULL stands for the defaults
 * out		receives the iterator; close it with penstock_weights_iter_close
 *
 * Errors:
 * -ENOMEM	the device has too little memory
 * -EINVAL	no device was given, the alignment is not valid, or opts->alloc is set without
 * 		opts->free
 */
PENSTOCK_API int penstock_weights_iter_open(struct penstock_weights *w, struct penstock_device *dev,
					    const struct penstock_load_opts *opts,
					    struct penstock_weights_iter **out);

/*
 * Waits for the next tensor. Returns 1, or 0 after the last tensor. May block.
 *
 * tensor	receives the index of the tensor
 * ptr		receives its address, valid until penstock_weights_iter_release
 *
 * Errors (the iterator returns more tensors only after -ENOBUFS):
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

/* Reports in *out what an iterator has done so far. */
PENSTOCK_API void penstock_weights_iter_report(const struct penstock_weights_iter *it,
					       struct penstock_load_report *out);

/* Closes an iterator, which is allowed at any time. Frees its window (the memory for tensors read
 * ahead) and the tensors in it. May block. */
PENSTOCK_API void penstock_weights_iter_close(struct penstock_weights_iter *it);

/* ---- tensor parallelism: the part of each tensor that a rank needs -------------- */

/* How a rule splits a tensor between the ranks. */
enum penstock_cut {
	PENSTOCK_CUT_WHOLE = 0, /* Not split: every rank gets the whole tensor. */
	PENSTOCK_CUT_FIRST,	/* Splits dimension 0 of weights and of biases between the
				 * ranks. */
	PENSTOCK_CUT_LAST,	/* Splits the last dimension of a weight between the ranks, but not
				 * a bias. */
	/* Splits dimension 0 by key-value heads. If there are more ranks than heads, several
	 * ranks get the same head. */
	PENSTOCK_CUT_HEADS,
	/* Dimension 0 holds queries, then keys, then values. Splits each of the three by its
	 * heads. */
	PENSTOCK_CUT_QKV,
	PENSTOCK_CUT_HALVES,	  /* Splits each of the two halves of dimension 0 between the
				   * ranks. */
	PENSTOCK_CUT_LAST_HALVES, /* Splits each of the two halves of the last dimension between the
				   * ranks. */
	/* Splits dimension 0, which is a vocabulary. Its size is first rounded up to a multiple
	 * of 64, provided that this multiple can be split evenly between the ranks. So the last
	 * ranks can get less than the others, or nothing. */
	PENSTOCK_CUT_WORDS,
	PENSTOCK_CUT_INNER, /* Splits the second-to-last dimension of a weight between the ranks,
			     * but not a bias. */
	/* Splits dimension 0 as PENSTOCK_CUT_FIRST does, but fails if the number of query heads
	 * is known and the ranks cannot share the heads evenly. */
	PENSTOCK_CUT_QUERIES,
};

/*
 * A rule that tells how the tensors that match a pattern are split. The first rule whose pattern
 * matches a tensor's name applies to the tensor. Dimensions are counted as for a weight of shape
 * [out, in]. If GPTQ or AWQ store a tensor as [in, out] (*.qweight, *.qzeros, *.scales), the other
 * dimension is split. *.g_idx is split if its layer is split by inputs. A scale (*_scale,
 * *_scale_inv) is split like its weight, block by block: a rank's part of the weight must begin at
 * the start of a block or lie inside one block. A scale that applies to the whole tensor is not
 * split. Nor are GPTQ scales if their layer is split by inputs and the inputs of a quantisation
 * group are not adjacent (desc_act), because each rank then needs all scales.
 */
struct penstock_cut_rule {
	const char *glob; /* Pattern for tensors' names, as in a shell. */
	enum penstock_cut cut;
};

/*
 * Returns the list of built-in rules, with the most specific rules first.
 *
 * count	receives the number of rules
 *
 * The rules fit Llama, Qwen, Mixtral, DeepSeek and other models that use the same names for
 * tensors. A tensor whose name matches no rule is not split. The list is static.
 */
PENSTOCK_API const struct penstock_cut_rule *penstock_cut_rules(unsigned *count);

/* The options of penstock_weights_shard: which rank needs its part, and how tensors are split. */
struct penstock_shard_opts {
	size_t size;
	/* Index of this rank (a process), from 0 on, and the number of ranks between which tensors
	 * are split. */
	unsigned rank, ranks;
	/* Index of this rank in expert parallelism, from 0 on, and the number of expert ranks. If
	 * there are several expert ranks, each gets some of the experts whole, instead of a part of
	 * every expert. */
	unsigned expert_rank, expert_ranks;
	/* Numbers of query heads, key-value heads and experts; 0 stands for the number in the
	 * model's config.json. */
	unsigned heads, kv_heads, experts;
	const struct penstock_cut_rule *rules; /* Rules to try before the built-in ones. */
	unsigned rule_count;
};
#define PENSTOCK_SHARD_OPTS_INIT                                                 \
	{                                                                        \
		sizeof(struct penstock_shard_opts), 0, 1, 0, 1, 0, 0, 0, NULL, 0 \
	}

#define PENSTOCK_SHARD_PIECES 3

/* The part of a tensor that a rank needs. */
struct penstock_shard {
	size_t size;
	unsigned piece_count; /* Number of pieces; 0 if the rank needs nothing of the tensor. */
	unsigned rank;	      /* Number of dimensions. */
	uint64_t shape[PENSTOCK_RANK_MAX];
	uint64_t bytes;
	/* The pieces to pass to penstock_weights_load_into, after the caller has set `dev` and
	 * `ptr` in each. `ptr` holds the piece's offset in the part: add the address of the
	 * part's memory to it. */
	struct penstock_piece pieces[PENSTOCK_SHARD_PIECES];
};

/*
 * Computes the pieces of a tensor that a rank needs. The first call for a model may block,
 * since it reads config.json.
 *
 * tensor	index of the tensor
 * opts		the options; NULL stands for rank 0 of 1 rank
 * out		receives the pieces; members beyond out->size bytes are not written
 *
 * Errors:
 * -EINVAL	the tensor cannot be split between this number of ranks, or the number of heads or
 * 		experts is needed but not known, or a number in `opts` is out of range
 */
PENSTOCK_API int penstock_weights_shard(struct penstock_weights *w, uint64_t tensor,
					const struct penstock_shard_opts *opts,
					struct penstock_shard *out);

/* ---- groups: several processes of a host ---------------------------------------- */

struct penstock_group;

/* Maximum number of ranks in a group. */
#define PENSTOCK_GROUP_MAX 64

/* The options of penstock_group_open. All ranks use rank 0's values, except that each rank uses
 * its own dir, timeout_ms, look and user. */
struct penstock_group_opts {
	size_t size;
	/* Directory of the group's socket. Only this user may be able to enter it. All ranks
	 * must see the same directory, even from different containers. NULL stands for
	 * $XDG_RUNTIME_DIR or, if that is not set, /tmp/penstock-UID. */
	const char *dir;
	unsigned timeout_ms; /* Time limit in ms for all ranks to join; 0: 120 s. */
	/* Number of windows of each rank; 0 stands for 4. A window is a buffer that one rank fills
	 * from files and all ranks copy from. If a rank has several windows, it reads ahead. */
	unsigned windows;
	/* Length in bytes of one of the `windows`, a multiple of the page size; 0 stands for 64
	 * MiB. The windows are in device memory. */
	uint64_t window;
	/* Time in ms that the other ranks wait during a load for a rank that does not respond.
	 * Then the load fails with -ETIMEDOUT. 0 stands for 10 minutes. */
	unsigned stall_ms;
	/* Several hosts can load the same model from one store, each with a group of its own.
	 * Each host then reads the bytes that its ranks need, each byte once, and each host starts
	 * at a different place in the model. `host` is the index of this host, from 0 on, and
	 * `hosts` the number of hosts; 0 stands for one host. */
	unsigned host, hosts;
	/* Maximum time in ms that penstock_group_open waits after all ranks have joined. Each host
	 * waits for a different time, so that the hosts do not all begin to read at the same
	 * moment. */
	unsigned jitter_ms;
	/* Maximum number of requests that all ranks together have in flight at one store, which
	 * is a file system; 0 if there is no limit. */
	unsigned reads_max;
	/* Function that the library calls while this rank waits for others to join. It can cancel
	 * the call, as `look` of penstock_load_opts does. */
	int (*look)(void *user);
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
 * name		the group's name, at most 63 bytes without a slash; a group of one rank may have
 * 		any name
 * rank		index of this process, from 0 on
 * ranks	number of ranks, at most PENSTOCK_GROUP_MAX
 * opts		the options; NULL stands for the defaults
 * out		receives the group; leave it with penstock_group_close
 *
 * Errors:
 * -ETIMEDOUT		a rank has not joined in time
 * -EINVAL		an option is out of range, or processes called with different values of
 * 			`ranks`
 * -EEXIST		two processes were given the same rank
 * -EBUSY		another group of this name is waiting for its ranks
 * -ECONNRESET		a rank exited before all ranks had joined
 * -EPROTO		a rank uses another version of the library
 * -ENAMETOOLONG	the name, or the address of the socket, is too long
 * -EPERM		users other than this one may enter the directory
 * -ECANCELED		opts->look cancelled the call
 */
PENSTOCK_API int penstock_group_open(const char *name, unsigned rank, unsigned ranks,
				     const struct penstock_group_opts *opts,
				     struct penstock_group **out);

/* Leaves a group. If other ranks still load, their loads fail with the message that this rank
 * has left. */
PENSTOCK_API void penstock_group_close(struct penstock_group *g);

/*
 * Loads a model with all ranks of a group together, as penstock_weights_load does with one
 * process. May block.
 *
 * Every rank must call this function for the same files, each with its own devices and shard.
 * Each byte that at least one rank needs is read only once. Every rank reads a share of these
 * bytes into windows, and all ranks copy what they need from the windows. The windows are device
 * memory in addition to the tensors' memory, and never come from opts->alloc. If the devices cannot
 * share memory, the windows are host memory. report->read counts only the bytes that this rank
 * has read. Only one thread of a rank at a time may use the group.
 *
 * The ranks must open the same files. Ranks may see different device or inode numbers for one
 * file, for example through different mounts. Such files count as the same if their sizes, times
 * of modification, headers and a sample of each tensor are equal.
 *
 * If one rank fails, the load fails on all ranks with a message such as "rank 2: ...". All ranks
 * learn of the failure within 10 s, even if a store blocks a read or an open for longer. The
 * library then keeps the memory and the files that this read needs until the read ends, and
 * closing `w` does not wait for the read.
 *
 * devs		and the other parameters: as in penstock_weights_load
 *
 * Errors:
 * -ESTALE	a rank opened a different file than rank 0, or different tensors of the file
 * -ECONNRESET	a rank is lost: it closed the group, or its process exited; the message has the
 * 		exit status if it is known; the group can only be closed
 * -ETIMEDOUT	a rank does not respond; the group can only be closed
 * -EOWNERDEAD	this process was forked from the process that opened the group
 * -ENOMEM	and the other errors of penstock_weights_load
 */
PENSTOCK_API int penstock_group_load(struct penstock_group *g, struct penstock_weights *w,
				     struct penstock_device *const *devs, unsigned dev_count,
				     const struct penstock_load_opts *opts,
				     struct penstock_load_report *report,
				     struct penstock_loaded **out);

/*
 * Loads pieces of tensors with all ranks of a group together, as penstock_weights_load_into does
 * with one process. May block.
 *
 * Every rank must call this function, each with its own pieces. In all other respects it works
 * as penstock_group_load does.
 *
 * Errors: those of penstock_group_load and of penstock_weights_load_into.
 */
PENSTOCK_API int penstock_group_load_into(struct penstock_group *g, struct penstock_weights *w,
					  const struct penstock_piece *pieces, uint64_t count,
					  const struct penstock_load_opts *opts,
					  struct penstock_load_report *report);

/* ---- saving --------------------------------------------------------------------- */

/* A tensor to save. Its bytes must lie in one piece in the memory of an open device. */
struct penstock_out {
	size_t size;
	const char *name;
	enum penstock_dtype dtype;
	unsigned rank; /* Number of dimensions. */
	const uint64_t *shape;
	struct penstock_device *dev; /* Device of the memory; NULL finds it from `ptr`. */
	const void *ptr;
};

/* The options of penstock_weights_save. */
struct penstock_save_opts {
	size_t size;
	/* Keys and values of the metadata; NULL writes a file without metadata, not with empty
	 * metadata. */
	const char *const *keys, *const *values;
	unsigned pair_count;
	int durable; /* 1 if the file must survive a power failure after the call. */
	enum penstock_class require;
	enum penstock_effort effort;
	const char *path; /* Name of the only path to use; NULL: the library chooses. */
	/* Function that the library calls while the save waits, and that can cancel the save, as
	 * `look` of penstock_load_opts does. A cancelled save leaves no file. */
	int (*look)(void *user);
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
 * The file appears under its name only when it is complete, and then replaces any old file of
 * that name. Tensors with larger elements come first in the file; those with elements of equal
 * size are sorted by name. In a file of at least 1 MiB the first tensor begins at a page
 * boundary, so that direct paths can write it.
 *
 * path		the path of the file, which may contain colons, or file:///...
 * tensors	the tensors; their memory must stay valid during the call
 * count	number of tensors
 * opts		the options; NULL stands for the defaults
 * report	receives what the save did; may be NULL
 *
 * Errors:
 * -EINVAL	a name occurs twice, a text is not UTF-8, the format cannot represent a dtype or
 * 		shape, or the memory of a tensor is on no open device
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
