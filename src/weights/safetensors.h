/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a safetensors file: eight bytes of length, that much JSON, then
 * the tensors without gaps. safetensors.c reads it, weights_open.c and the fuzz
 * target call it. Nothing here does I/O, and nothing in a header may cost more
 * than a small multiple of its own length in memory or time.
 */
#ifndef PST_WEIGHTS_SAFETENSORS_H
#define PST_WEIGHTS_SAFETENSORS_H

#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

#include "penstock_weights.h"

#define PST_ST_PREFIX 8u	     /* bytes of the length in front */
#define PST_ST_HEADER_MAX 100000000u /* what every reader of the format takes */
#define PST_ST_NAME_MAX 4096u	     /* bytes of a tensor's name */
#define PST_ST_METADATA "__metadata__"

struct pst_st_tensor {
	const char *name;
	const uint64_t *shape;
	uint64_t begin, end; /* behind the header */
	unsigned rank;
	enum penstock_dtype dtype;
};

struct pst_st_pair {
	const char *key, *value;
};

struct pst_st {
	struct pst_st_tensor *tensors; /* in file order */
	uint32_t *by_name;	       /* their indices in the order of the names */
	struct pst_st_pair *pairs;     /* of the metadata, by key */
	size_t count, pair_count;
	bool has_metadata; /* also of no pairs */
	uint64_t *shapes;
	char *text; /* names and pairs point into it */
};

/* What is wrong, where: filled on failure only. */
struct pst_st_error {
	uint64_t at;	  /* byte of the header, or behind it; UINT64_MAX: no memory */
	char tensor[256]; /* "": none in particular */
	char text[PENSTOCK_TEXT_MAX];
};

/*
 * Length of the header from the file's first eight bytes, checked against the
 * file's length; < 0: -EBADMSG with `err` filled.
 */
int64_t pst_st_header_length(const unsigned char prefix[PST_ST_PREFIX], uint64_t file_len,
			     struct pst_st_error *err);

/*
 * Takes `text` over (malloc'd, len + 1 bytes, freed by pst_st_free or at once on
 * failure), with the `data_len` bytes of tensors that the file has behind it.
 * 0, -EBADMSG or -ENOMEM.
 */
int pst_st_parse(char *text, size_t len, uint64_t data_len, struct pst_st *out,
		 struct pst_st_error *err);
void pst_st_free(struct pst_st *st);

/* What the elements of a shape take; false: too many, or no whole bytes. */
int pst_st_bytes(enum penstock_dtype dtype, const uint64_t *shape, unsigned rank, uint64_t *out);

/* By its name in the file, PENSTOCK_DTYPE_NONE: unknown. */
int pst_st_dtype(const char *name);

#endif
