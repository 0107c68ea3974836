/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penstock_weights.h - a model's tensors from safetensors files into device memory.
 * It stands on penstock.h and keeps its conventions: errors, units, ownership,
 * threads, structs that begin with `size`.
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

/* Dimensions of a tensor, upper bound. */
#define PENSTOCK_RANK_MAX 64

/*
 * The kinds of elements, as the format names them, and their bits. A tensor of
 * elements smaller than a byte holds whole bytes. The list grows at its end.
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
	PENSTOCK_DTYPE_NONE, /* in a question: whichever */
#define PENSTOCK_DTYPE_ENUM(code, name, bits) PENSTOCK_DTYPE_##code,
	PENSTOCK_DTYPE_LIST(PENSTOCK_DTYPE_ENUM)
#undef PENSTOCK_DTYPE_ENUM
		PENSTOCK_DTYPES
};

/* Name and bits of a kind of element: "BF16" and 16. Static; "none" and 0 for what is
 * none. */
PENSTOCK_API const char *penstock_dtype_name(unsigned dtype);
PENSTOCK_API unsigned penstock_dtype_bits(unsigned dtype);

/* ---- a model: files, and the tensors in them --------------------------------- */

struct penstock_weights;

struct penstock_weights_opts {
	size_t size;
	const char *const *names; /* only tensors whose name matches one of these, with
				   * * ? [] as in a shell; NULL: all. A tensor that one
				   * without these names is there, or it is -ENOENT */
	unsigned name_count;
	const char *const *dirs; /* further directories that hold parts of the model, on
				  * other drives: all are read at once */
	unsigned dir_count;
	const char *revision; /* of a Hugging Face cache: a branch, a tag or a commit;
			       * NULL: main, or the only one */
	const char *cache;    /* that cache; NULL: $HF_HUB_CACHE, $HF_HOME/hub, then
			       * huggingface/hub in $XDG_CACHE_HOME or ~/.cache */
	unsigned flags;	      /* PENSTOCK_WEIGHTS_* */
};
#define PENSTOCK_WEIGHTS_OPTS_INIT                                                    \
	{                                                                             \
		sizeof(struct penstock_weights_opts), NULL, 0, NULL, 0, NULL, NULL, 0 \
	}

/* The files do not change while the model is open: a second load is quicker. */
#define PENSTOCK_WEIGHTS_IMMUTABLE 0x1u

/*
 * Opens a model and reads its headers. `path` is a safetensors file; an index
 * (*.json); a directory, which is read by its index, else by model.safetensors, else
 * all its *.safetensors but the consolidated* ones beside others; a Hugging Face cache
 * folder (models--owner--name); or owner/name, or a name alone, in that cache. With an
 * index only the tensors that it lists are there, each from the file that it names. A
 * name that two files have without an index is an error. Up to 64 files stay open: one that
 * is removed or replaced is read as it was. A child of fork may read a model that its parent
 * has opened, onto devices of its own. -EBADMSG: not what the format says; -ENOENT: no such
 * model, or one of opts->dirs is not there. May block. Close with penstock_weights_close.
 */
PENSTOCK_API int penstock_weights_open(const char *path, const struct penstock_weights_opts *opts,
				       struct penstock_weights **out);

/* The same for several, which together are one model. May block. */
PENSTOCK_API int penstock_weights_open_list(const char *const *paths, unsigned count,
					    const struct penstock_weights_opts *opts,
					    struct penstock_weights **out);

/* Closes a model. Its iterators are closed before, what it has loaded stays. May block. */
PENSTOCK_API void penstock_weights_close(struct penstock_weights *w);

struct penstock_tensor {
	size_t size;	  /* set by the caller, as in every struct that is filled in here */
	const char *name; /* strings and shape live as long as the model */
	enum penstock_dtype dtype;
	unsigned rank;
	const uint64_t *shape;
	uint64_t bytes;
	unsigned file;
	uint64_t off; /* of its first byte in that file */
};

/* How many tensors there are; they are numbered in file order. */
PENSTOCK_API uint64_t penstock_weights_count(const struct penstock_weights *w);
/* What tensor `index` is. -ENOENT: out of range. */
PENSTOCK_API int penstock_weights_get(const struct penstock_weights *w, uint64_t index,
				      struct penstock_tensor *out);
/* The index of the tensor with this name. -ENOENT: there is none. */
PENSTOCK_API int64_t penstock_weights_find(const struct penstock_weights *w, const char *name);

struct penstock_weights_file {
	size_t size;
	const char *path; /* strings live as long as the model */
	uint64_t length;
	uint64_t data_off;   /* where its first tensor begins */
	unsigned pair_count; /* of its metadata */
	int has_metadata;    /* also of no pairs */
};
/* How many files the model has. */
PENSTOCK_API unsigned penstock_weights_file_count(const struct penstock_weights *w);
/* What file `file` is. -ENOENT: out of range. */
PENSTOCK_API int penstock_weights_get_file(const struct penstock_weights *w, unsigned file,
					   struct penstock_weights_file *out);
/* Pair `index` of a file's metadata, in the order of the keys. -ENOENT: out of range. */
PENSTOCK_API int penstock_weights_get_metadata(const struct penstock_weights *w, unsigned file,
					       unsigned index, const char **key,
					       const char **value);

/* Where the last penstock_weights function that failed on this thread did so. */
struct penstock_weights_place {
	size_t size;
	char file[1024];  /* "": none in particular; a longer path is cut in front */
	char tensor[256]; /* "": none in particular */
	uint64_t off;	  /* in the file, UINT64_MAX: none in particular */
};
PENSTOCK_API void penstock_weights_get_place(struct penstock_weights_place *out);

struct penstock_shard_opts;

/* ---- three ways to receive them ------------------------------------------------ */

/*
 * What the three ways share. One request a file, or more where `request_bytes` asks,
 * all in flight at once. Nothing is moved on the device after it has arrived. A file
 * that changed since its header was read is -ESTALE, before or after its bytes moved.
 */
struct penstock_load_opts {
	size_t size;
	enum penstock_class require;
	enum penstock_effort effort;
	const char *path;	/* as in penstock_req */
	uint64_t align;		/* at least this for each tensor, a power of two up to
				 * 4096; 0: what its dtype needs */
	uint64_t window;	/* iterator: device memory, 0: 1 GiB */
	uint64_t request_bytes; /* cut at tensors, so that `each` comes more often; 0: no */
	/* Device memory of the caller's; NULL: penstock_alloc and penstock_free. NULL
	 * from alloc is -ENOMEM. */
	void *(*alloc)(void *user, struct penstock_device *dev, size_t len, size_t align);
	void (*free)(void *user, struct penstock_device *dev, void *ptr, size_t len);
	/* After each request, on the caller's thread: its report, valid inside. Non-zero
	 * cancels the load: -ECANCELED. */
	int (*each)(void *user, unsigned file, const struct penstock_report *report);
	void *user;
	uint64_t first, count; /* all at once: only these tensors (-ERANGE: not all are
				* there); count 0: to the last */
	const struct penstock_shard_opts *shard; /* all at once: only this rank's part of
						  * each, as penstock_weights_shard has it */
	/* Some ten times a second while it waits, on the caller's thread. Non-zero cancels the
	 * load: -ECANCELED, once what has begun has ended; it is not asked again. */
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
	uint64_t bytes;	       /* delivered, each destination counted */
	uint64_t read;	       /* of the files, or written, each byte once; whole pages
				* where tensors begin or end in one */
	uint64_t device_bytes; /* most device memory that it held, all devices together */
	uint64_t cpu_copied;
	uint64_t dram_laid;
	uint64_t retries;
	uint64_t requests;
	uint64_t start_ns, end_ns;
	const char *path; /* the one that carried most; static */
	const char *engine;
};

/*
 * 1. All at once. For each device one allocation that holds every tensor of the
 * model; several devices get the same bytes, which are read once. Device memory: the
 * tensors' bytes and less than 8 KiB for each stretch of them that lies contiguous and
 * aligned in its file, most often one a file; had before the first byte moves. Whole or
 * nothing. `report` may be NULL. May block.
 */
struct penstock_loaded;
PENSTOCK_API int penstock_weights_load(struct penstock_weights *w,
				       struct penstock_device *const *devs, unsigned dev_count,
				       const struct penstock_load_opts *opts,
				       struct penstock_load_report *report,
				       struct penstock_loaded **out);
/* Where a tensor lies on device `dev_index` of the list; NULL: out of range, or no part of
 * it is this rank's. It lives until penstock_loaded_free. */
PENSTOCK_API void *penstock_loaded_ptr(const struct penstock_loaded *loaded, unsigned dev_index,
				       uint64_t tensor);
/* Frees all of a load, by the caller's allocator where it had one. The devices are open
 * still; the model may be closed before. */
PENSTOCK_API void penstock_loaded_free(struct penstock_loaded *loaded);

/*
 * The effort that suits a load by so many processes of a host at the same time, a group
 * or not: `fast` for two and more, `thrifty` for one and wherever registrations are kept
 * (PENSTOCK_WEIGHTS_IMMUTABLE). A driver registers the page cache for one process after
 * the other, so that several are quicker by copies of their CPUs. What `penstock load`
 * and the Python package use unless told; an effort in options is used as it is.
 */
PENSTOCK_API enum penstock_effort penstock_weights_effort(const struct penstock_weights *w,
							  unsigned ranks);

/*
 * 2. Into memory of the caller's: any number of pieces of any tensors, each to its
 * place. A piece is a range of one dimension of a tensor: rows of consecutive bytes
 * that lie `pitch` apart at their destination. Pieces of the same bytes are several
 * destinations of one read. No device memory is taken. All is checked before the first
 * byte moves: range, room, dtype, device; after a failure in flight the contents of
 * the destinations are undefined.
 */
struct penstock_piece {
	size_t size;
	uint64_t tensor;
	unsigned dim;		     /* cut along this one; 0 with count 0: all of it */
	uint64_t first, count;	     /* elements of dim; count 0: as many as there are */
	uint64_t outer_first;	     /* of what the dimensions before dim together count */
	uint64_t outer_count;	     /* 0: as many as there are */
	struct penstock_device *dev; /* NULL: found from the pointer */
	void *ptr;
	uint64_t room;		   /* bytes at ptr */
	uint64_t pitch;		   /* from row to row; 0: no gap */
	enum penstock_dtype dtype; /* of the destination; PENSTOCK_DTYPE_NONE: not checked */
};
/* Loads pieces to where they are wanted. `report` may be NULL. May block. -ERANGE:
 * outside of the tensor; -ENOSPC: no room; -EINVAL: another dtype, or elements that do
 * not begin at a byte. */
PENSTOCK_API int penstock_weights_load_into(struct penstock_weights *w,
					    const struct penstock_piece *pieces, uint64_t count,
					    const struct penstock_load_opts *opts,
					    struct penstock_load_report *report);

/*
 * 3. One after the other, in file order, through a window of device memory that is
 * filled ahead. Device memory: the window (at least 256 KiB), and two at once of the
 * tensors that are longer than a quarter of it, which have memory of their own. So a
 * loop that holds one tensor always gets the next. Whether the device has all that is
 * tried when it is opened. One thread at a time.
 */
struct penstock_weights_iter;
PENSTOCK_API int penstock_weights_iter_open(struct penstock_weights *w, struct penstock_device *dev,
					    const struct penstock_load_opts *opts,
					    struct penstock_weights_iter **out);
/*
 * The next tensor: 1, or 0 behind the last. It stays where it is until it is released;
 * -ENOBUFS: the window is full of tensors that were not. After another error there is
 * no next. May block.
 */
PENSTOCK_API int penstock_weights_iter_next(struct penstock_weights_iter *it, uint64_t *tensor,
					    void **ptr);
/* Gives a tensor's room back, in any order. -ENOENT: it is not out. */
PENSTOCK_API int penstock_weights_iter_release(struct penstock_weights_iter *it, uint64_t tensor);
/* What an iterator has done so far. */
PENSTOCK_API void penstock_weights_iter_report(const struct penstock_weights_iter *it,
					       struct penstock_load_report *out);
/* Ends it wherever it is, and frees the window with all that is in it. May block. */
PENSTOCK_API void penstock_weights_iter_close(struct penstock_weights_iter *it);

/* ---- tensor parallelism: what of each tensor a rank needs ------------------------ */

enum penstock_cut {
	PENSTOCK_CUT_WHOLE = 0,	  /* every rank has all of it */
	PENSTOCK_CUT_FIRST,	  /* dimension 0, and a bias with it */
	PENSTOCK_CUT_LAST,	  /* the last dimension; a bias whole */
	PENSTOCK_CUT_HEADS,	  /* dimension 0 by key-value heads, which ranks share when there
				   * are more of them than heads */
	PENSTOCK_CUT_QKV,	  /* dimension 0: queries, keys and values, each by its heads */
	PENSTOCK_CUT_HALVES,	  /* dimension 0: two halves, each cut */
	PENSTOCK_CUT_LAST_HALVES, /* the last dimension: two halves, each cut */
	PENSTOCK_CUT_WORDS,   /* dimension 0, as if it were a multiple of 64 where ranks can share
			       * that; the last ranks have less, or nothing */
	PENSTOCK_CUT_INNER,   /* the last dimension but one; a bias whole */
	PENSTOCK_CUT_QUERIES, /* as FIRST, by whole query heads where their number is known */
};

/*
 * The first rule whose glob matches a name holds for it. Dimensions are those of a weight
 * of [out, in]; of what GPTQ and AWQ store the other way round (*.qweight, *.qzeros,
 * *.scales) they are taken the other way round, *.g_idx goes with the inputs. A scale
 * (*_scale, *_scale_inv) is cut as its weight is, in its blocks (which no rank's part of the
 * weight may begin inside of and leave), and one for all is whole, as are the scales of mixed
 * groups (desc_act) where inputs are cut.
 */
struct penstock_cut_rule {
	const char *glob;
	enum penstock_cut cut;
};

/*
 * The built-in rules, most special first, for Llama, Qwen, Mixtral, DeepSeek and what
 * is named as they are; a name without a rule is not cut. Static.
 */
PENSTOCK_API const struct penstock_cut_rule *penstock_cut_rules(unsigned *count);

struct penstock_shard_opts {
	size_t size;
	unsigned rank, ranks;		       /* of the tensor parallelism */
	unsigned expert_rank, expert_ranks;    /* above 1: experts are not cut but spread */
	unsigned heads, kv_heads, experts;     /* 0: from config.json beside the model */
	const struct penstock_cut_rule *rules; /* before the built-in ones */
	unsigned rule_count;
};
#define PENSTOCK_SHARD_OPTS_INIT                                                 \
	{                                                                        \
		sizeof(struct penstock_shard_opts), 0, 1, 0, 1, 0, 0, 0, NULL, 0 \
	}

#define PENSTOCK_SHARD_PIECES 3

struct penstock_shard {
	size_t size;
	unsigned piece_count; /* 0: this rank has none of it */
	unsigned rank;	      /* dimensions */
	uint64_t shape[PENSTOCK_RANK_MAX];
	uint64_t bytes;
	/* Ready for penstock_weights_load_into but for dev and ptr, which holds the
	 * offset in the shard's memory, to which its address is added. */
	struct penstock_piece pieces[PENSTOCK_SHARD_PIECES];
};
/* The pieces of a tensor that a rank needs. -EINVAL: it cannot be cut into that many, or
 * heads or experts are not known. May block at its first call for a model (config.json). */
PENSTOCK_API int penstock_weights_shard(struct penstock_weights *w, uint64_t tensor,
					const struct penstock_shard_opts *opts,
					struct penstock_shard *out);

/* ---- several processes of a host: a group ---------------------------------------- */

struct penstock_group;

#define PENSTOCK_GROUP_MAX 64 /* ranks */

struct penstock_group_opts {
	size_t size;
	const char *dir;     /* where they meet, a directory that this user alone may enter, and
			      * that all see, also out of several containers; NULL:
			      * $XDG_RUNTIME_DIR, else /tmp/penstock-UID */
	unsigned timeout_ms; /* until all have come; 0: 120 s */
	unsigned windows;    /* of each rank, so that it reads ahead; 0: 4 */
	uint64_t window;     /* device memory of one, whole pages; 0: 64 MiB */
	unsigned stall_ms;   /* after it a rank that the others wait for in a load is given up:
			      * -ETIMEDOUT; 0: 10 minutes */
	/* Where several hosts load the same model from one store, a group on each: */
	unsigned host, hosts; /* this one's number, from 0 on, and how many; 0: one. Each reads
			       * what its ranks need once, and begins at its own place */
	unsigned jitter_ms;   /* penstock_group_open waits for up to this, hosts one after the
			       * other, so that not all ask the store at once */
	unsigned reads_max;   /* requests of all ranks together under way at one store, that is
			       * a file system; 0: no limit */
	/* But for dir and timeout_ms, rank 0's hold for all. These are each rank's own: */
	int (*look)(void *user); /* as in penstock_load_opts, while the others are waited for */
	void *user;
};
#define PENSTOCK_GROUP_OPTS_INIT                                                             \
	{                                                                                    \
		sizeof(struct penstock_group_opts), NULL, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL \
	}

/*
 * Joins rank `rank` of the `ranks` processes of this user and host that open a group of
 * this name, which has no slash, and returns when all are there, at most
 * PENSTOCK_GROUP_MAX. -ETIMEDOUT: one has not come; -EINVAL, -EEXIST: they are not of one
 * mind about how many and which they are; -ENAMETOOLONG; -EPERM: others may enter the
 * directory. A group of one needs no name that anybody
 * knows. May block.
 */
PENSTOCK_API int penstock_group_open(const char *name, unsigned rank, unsigned ranks,
				     const struct penstock_group_opts *opts,
				     struct penstock_group **out);
/* Leaves a group. Ranks that still load are told that this one has gone. */
PENSTOCK_API void penstock_group_close(struct penstock_group *g);

/*
 * penstock_weights_load and penstock_weights_load_into by all ranks together: each calls
 * it with the same files, and with destinations, devices and shard of its own. What any
 * of them needs is read once, a share by each, and copied from device to device, where
 * the devices cannot share memory through the host's. Device memory: the windows besides,
 * never of the caller's allocator.
 * A failure on one rank is one on all, "rank 2: ..."; another file than rank 0's is -ESTALE
 * (one that a rank sees under another device or inode number, as by another mount, is the same
 * if its size, time of change, header and a piece of each tensor are). A rank that has gone is
 * -ECONNRESET, with what became of its process where that is known, one that hangs -ETIMEDOUT;
 * after either the group can only be closed. That one has failed or gone is told within 10 s,
 * also while a store keeps a read or an open for longer: the library keeps what it needs until
 * it ends, and closing `w` does not wait for it.
 * report->read is what this rank has read. One thread at a time. May block.
 */
PENSTOCK_API int penstock_group_load(struct penstock_group *g, struct penstock_weights *w,
				     struct penstock_device *const *devs, unsigned dev_count,
				     const struct penstock_load_opts *opts,
				     struct penstock_load_report *report,
				     struct penstock_loaded **out);
PENSTOCK_API int penstock_group_load_into(struct penstock_group *g, struct penstock_weights *w,
					  const struct penstock_piece *pieces, uint64_t count,
					  const struct penstock_load_opts *opts,
					  struct penstock_load_report *report);

/* ---- and out again -------------------------------------------------------------- */

/* A tensor to be written: whole, without gaps, on any open device. */
struct penstock_out {
	size_t size;
	const char *name;
	enum penstock_dtype dtype;
	unsigned rank;
	const uint64_t *shape;
	struct penstock_device *dev; /* NULL: found from the pointer */
	const void *ptr;
};
struct penstock_save_opts {
	size_t size;
	const char *const *keys, *const *values; /* metadata; NULL: none, not even empty */
	unsigned pair_count;
	int durable; /* it survives a power cut before this returns */
	enum penstock_class require;
	enum penstock_effort effort;
	const char *path;	 /* as in penstock_req */
	int (*look)(void *user); /* as in penstock_load_opts: nothing of the file stays then */
	void *user;
};
#define PENSTOCK_SAVE_OPTS_INIT                                                    \
	{                                                                          \
		sizeof(struct penstock_save_opts), NULL, NULL, 0, 0, PENSTOCK_ANY, \
			PENSTOCK_THRIFTY, NULL, NULL, NULL                         \
	}

/*
 * Writes one safetensors file, which takes the name's place only when all of it is
 * there; `path` is a path, whatever colons it has, or file:///... Tensors go by falling
 * size of their elements, then by name; in a file of a megabyte or more the first begins
 * with a page, so that direct paths can write it.
 * `report` may be NULL. May block. -EINVAL: a name twice, or text that is not UTF-8.
 */
PENSTOCK_API int penstock_weights_save(const char *path, const struct penstock_out *tensors,
				       uint64_t count, const struct penstock_save_opts *opts,
				       struct penstock_load_report *report);

#ifdef __cplusplus
}
#endif
#endif
