/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a safetensors file. Such a file has eight bytes that hold the length of the header,
 * then the header in JSON, then the tensors without gaps. safetensors.c parses headers for file.c,
 * save.c and the fuzz target. It does no I/O. The memory and the time for parsing are at most a
 * small multiple of the header's length.
 */
#ifndef PST_WEIGHTS_SAFETENSORS_H
#define PST_WEIGHTS_SAFETENSORS_H

#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

#include "penstock_weights.h"

/* Number of bytes at the file's start that hold the header's length. */
#define PST_ST_PREFIX 8u
/* Length in bytes of the longest header that other readers of the format accept. */
#define PST_ST_HEADER_MAX 100000000u
#define PST_ST_NAME_MAX 4096u /* Maximum length of a tensor's name in bytes. */
#define PST_ST_METADATA "__metadata__"

struct pst_st_tensor {
	const char *name;
	const uint64_t *shape;
	uint64_t begin, end; /* Range of the tensor's bytes in the file, counted from the end of the
				header. */
	unsigned rank;
	enum penstock_dtype dtype;
};

struct pst_st_pair {
	const char *key, *value;
};

/* A parsed header. */
struct pst_st {
	struct pst_st_tensor *tensors; /* In file order. */
	uint32_t *by_name;	       /* Indices into tensors, sorted by name. */
	struct pst_st_pair *pairs;     /* The metadata's pairs, sorted by key. */
	size_t count, pair_count;
	bool has_metadata; /* Whether the header has metadata, even without a pair. */
	uint64_t *shapes;
	char *text; /* The JSON text; names and pairs point into it. */
};

/* The first error found in a header. It is filled only on failure. */
struct pst_st_error {
	/* Offset of the error from the start of the JSON text; it may be after the end of the
	 * text. UINT64_MAX if memory ran out. */
	uint64_t at;
	char tensor[256]; /* Name of the tensor; "" if the error concerns no tensor. */
	char text[PENSTOCK_TEXT_MAX];
};

/*
 * Decodes the header's length from the file's first eight bytes, and checks that the file is long
 * enough for it. Returns the length, or -EBADMSG with `err` filled.
 */
int64_t pst_st_header_length(const unsigned char prefix[PST_ST_PREFIX], uint64_t file_len,
			     struct pst_st_error *err);

/*
 * Parses and checks a header. `text` is a malloc'd buffer of `len` + 1 bytes. The function takes
 * ownership of `text`: pst_st_free frees it after a success, and the function itself after a
 * failure. `data_len` is the number of bytes that the file has after the header. Returns 0, or
 * -EBADMSG or -ENOMEM with `err` filled.
 */
int pst_st_parse(char *text, size_t len, uint64_t data_len, struct pst_st *out,
		 struct pst_st_error *err);
/* Frees the memory that `st` owns. */
void pst_st_free(struct pst_st *st);

/* Computes the number of bytes of a tensor with this dtype and shape. Returns false if the
 * number overflows, or if the elements do not fill whole bytes. */
int pst_st_bytes(enum penstock_dtype dtype, const uint64_t *shape, unsigned rank, uint64_t *out);

/* Returns the dtype to which the safetensors format gives this name, or PENSTOCK_DTYPE_NONE if
 * no dtype has the name. */
int pst_st_dtype(const char *name);

#endif
