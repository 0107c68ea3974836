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
 *	penstock_weights_load(model, NULL, gpu, NULL, &loaded);
 *	ptr = penstock_loaded_ptr(loaded, penstock_weights_find(model, "lm_head.weight"));
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
#define PENSTOCK_DTYPE_LIST(X)                                                       \
	X(BOOL, "BOOL", 8)                                                           \
	X(U8, "U8", 8)                                                               \
	X(I8, "I8", 8)                                                               \
	X(U16, "U16", 16)                                                            \
	X(I16, "I16", 16)                                                            \
	X(F16, "F16", 16)                                                            \
	X(BF16, "BF16", 16)                                                          \
	X(U32, "U32", 32)                                                            \
	X(I32, "I32", 32)                                                            \
	X(F32, "F32", 32)                                                            \
	X(U64, "U64", 64)                                                            \
	X(I64, "I64", 64)                                                            \
	X(F64, "F64", 64)                                                            \
	X(C64, "C64", 64)                                                            \
	X(F8_E4M3, "F8_E4M3", 8)                                                     \
	X(F8_E5M2, "F8_E5M2", 8)                                                     \
	X(F8_E8M0, "F8_E8M0", 8)                                                     \
	X(F8_E4M3FNUZ, "F8_E4M3FNUZ", 8)                                             \
	X(F8_E5M2FNUZ, "F8_E5M2FNUZ", 8)                                             \
	X(F6_E2M3, "F6_E2M3", 6)                                                     \
	X(F6_E3M2, "F6_E3M2", 6)                                                     \
	X(F4, "F4", 4)

enum penstock_dtype {
	PENSTOCK_DTYPE_NONE, /* in a question: whichever */
#define PENSTOCK_DTYPE_ENUM(code, name, bits) PENSTOCK_DTYPE_##code,
	PENSTOCK_DTYPE_LIST(PENSTOCK_DTYPE_ENUM)
#undef PENSTOCK_DTYPE_ENUM
	PENSTOCK_DTYPES
};

/* "BF16" and 16. Static; "none" and 0 for what is none. */
PENSTOCK_API const char *penstock_dtype_name(unsigned dtype);
PENSTOCK_API unsigned penstock_dtype_bits(unsigned dtype);

/* ---- a model: files, and the tensors in them --------------------------------- */

struct penstock_weights;

struct penstock_weights_opts {
	size_t size;
	const char *const *names; /* only tensors whose name matches one of these, with
				   * * ? [] as in a shell; NULL: all */
	unsigned name_count;
	const char *const *dirs;  /* further directories that hold parts of the model, on
				   * other drives: all are read at once */
	unsigned dir_count;
	const char *revision;	  /* of a Hugging Face cache: a branch, a tag or a commit;
				   * NULL: main, or the only one */
	const char *cache;	  /* that cache; NULL: $HF_HUB_CACHE, $HF_HOME/hub, then
				   * ~/.cache/huggingface/hub */
};
#define PENSTOCK_WEIGHTS_OPTS_INIT \
	{ sizeof(struct penstock_weights_opts), NULL, 0, NULL, 0, NULL, NULL }

/*
 * Opens a model and reads its headers. `path` is a safetensors file; an index
 * (*.json); a directory, which is read by its index, else by model.safetensors, else
 * all its *.safetensors but the consolidated* ones beside others; a Hugging Face cache
 * folder (models--owner--name); or owner/name in that cache. With an index only the
 * tensors that it lists are there, each from the file that it names. A name that two
 * files have without an index is an error. -EBADMSG: not what the format says. May
 * block. Close with penstock_weights_close, after what was loaded by it.
 */
PENSTOCK_API int penstock_weights_open(const char *path, const struct penstock_weights_opts *opts,
				       struct penstock_weights **out);

/* The same for several, which together are one model. May block. */
PENSTOCK_API int penstock_weights_open_list(const char *const *paths, unsigned count,
					    const struct penstock_weights_opts *opts,
					    struct penstock_weights **out);
PENSTOCK_API void penstock_weights_close(struct penstock_weights *w);

struct penstock_tensor {
	size_t size; /* set by the caller, as in every struct that is filled in here */
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
/* -ENOENT: out of range. */
PENSTOCK_API int penstock_weights_get(const struct penstock_weights *w, uint64_t index,
				      struct penstock_tensor *out);
/* The index of the tensor with this name, -ENOENT: there is none. */
PENSTOCK_API int64_t penstock_weights_find(const struct penstock_weights *w, const char *name);

struct penstock_weights_file {
	size_t size;
	const char *path;   /* strings live as long as the model */
	uint64_t length;
	uint64_t data_off;  /* where its first tensor begins */
	unsigned pair_count; /* of its metadata */
};
PENSTOCK_API unsigned penstock_weights_file_count(const struct penstock_weights *w);
/* -ENOENT: out of range. */
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

#ifdef __cplusplus
}
#endif
#endif
