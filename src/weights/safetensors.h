/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a safetensors file: eight bytes of length, then JSON of that length, then the
 * tensors without gaps. safetensors.c parses it for file.c, save.c and the fuzz target. Nothing
 * here does I/O, and parsing a header never costs more memory or time than a small multiple of
 * its length.
 */
#ifndef PST_WEIGHTS_SAFETENSORS_H
#define PST_WEIGHTS_SAFETENSORS_H

#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

#include "penstock_weights.h"

#define PST_ST_PREFIX 8u	     /* Bytes of the length at the file's start. */
#define PST_ST_HEADER_MAX 100000000u /* Longest header that readers of the format accept. */
#define PST_ST_NAME_MAX 4096u	     /* Bytes of a tensor's name. */
#define PST_ST_METADATA "__metadata__"

struct pst_st_tensor {
	const char *name;
	const uint64_t *shape;
	uint64_t begin, end; /* Offsets of its bytes, counted from the end of the header. */
	unsigned rank;
	enum penstock_dtype dtype;
};

struct pst_st_pair {
	const char *key, *value;
};

/* A parsed header. */
struct pst_st {
	struct pst_st_tensor *tensors; /* In file order. */
	uint32_t *by_name;	       /* Indices into tensors, in the order of the names. */
	struct pst_st_pair *pairs;     /* The metadata, sorted by key. */
	size_t count, pair_count;
	bool has_metadata; /* The header has metadata, perhaps without pairs. */
	uint64_t *shapes;
	char *text; /* The JSON, into which names and pairs point. */
};

/* The first fault of a header. Filled on failure only. */
struct pst_st_error {
	uint64_t at;	  /* Offset in the header or behind it; UINT64_MAX: out of memory. */
	char tensor[256]; /* "": the fault belongs to no tensor. */
	char text[PENSTOCK_TEXT_MAX];
};

/*
 * Decodes the header's length from the file's first eight bytes and checks it against the
 * file's length. Returns it, or -EBADMSG with `err` filled.
 */
int64_t pst_st_header_length(const unsigned char prefix[PST_ST_PREFIX], uint64_t file_len,
			     struct pst_st_error *err);

/*
 * Parses and checks a header. `text` has `len` + 1 bytes, is malloc'd, and belongs to the
 * function: pst_st_free frees it, or the function itself on failure. `data_len` is how many
 * bytes the file has after the header. Returns 0, -EBADMSG or -ENOMEM, with `err` filled.
 */
int pst_st_parse(char *text, size_t len, uint64_t data_len, struct pst_st *out,
		 struct pst_st_error *err);
/* Frees what pst_st_parse allocated. */
void pst_st_free(struct pst_st *st);

/* Computes how many bytes a tensor of this shape has. Returns false if the number overflows, or
 * if the elements do not fill whole bytes. */
int pst_st_bytes(enum penstock_dtype dtype, const uint64_t *shape, unsigned rank, uint64_t *out);

/* Returns the dtype with this name in the format, PENSTOCK_DTYPE_NONE if there is none. */
int pst_st_dtype(const char *name);

#endif
