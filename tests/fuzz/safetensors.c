/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes whole safetensors files: prefix, header, and the length of the data. libFuzzer runs this
 * target, or replay.c does with its corpus. Failures are: a read beyond the header, tensors that
 * overlap or leave a hole, a wrong name, or a wrong shape. A name is wrong if it is repeated or
 * not terminated. A shape is wrong if it does not match the tensor's offsets.
 */
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "weights/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static void require(bool truth)
{
	if (!truth)
		abort();
}

static void check_header(const struct pst_st *st, uint64_t data_len)
{
	uint64_t at = 0, bytes;

	for (size_t i = 0; i < st->count; i++) {
		const struct pst_st_tensor *t = &st->tensors[i];

		require(t->begin == at && t->rank <= PENSTOCK_RANK_MAX);
		require((unsigned)t->dtype < PENSTOCK_DTYPES);
		require(pst_st_bytes(t->dtype, t->shape, t->rank, &bytes));
		require(t->end - t->begin == bytes && strlen(t->name) <= PST_ST_NAME_MAX);
		at = t->end;
	}
	require(at == data_len);
	for (size_t i = 1; i < st->count; i++)
		require(strcmp(st->tensors[st->by_name[i - 1]].name,
			       st->tensors[st->by_name[i]].name) < 0);
	for (size_t i = 1; i < st->pair_count; i++)
		require(strcmp(st->pairs[i - 1].key, st->pairs[i].key) < 0);
}

/* Lets the parser skip the input as any JSON text. The parser must succeed, or return the text
 * of an error and a position within the input. */
static void check_skip(const uint8_t *data, size_t len)
{
	char *text = malloc(len ? len : 1);
	struct pst_json in = {text, len, 0, NULL};

	if (!text)
		return;
	memcpy(text, data, len);
	if (pst_json_skip(&in))
		require(!in.what);
	else
		require(in.what && *in.what);
	require(in.at <= len);
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	struct pst_st_error err;
	struct pst_st st;
	int64_t len;
	char *text;
	int ret;

	check_skip(data, len_bytes);
	if (len_bytes < PST_ST_PREFIX)
		return 0;
	len = pst_st_header_length(data, len_bytes, &err);
	if (len < 0)
		return 0;
	text = malloc((size_t)len + 1);
	if (!text)
		return 0;
	memcpy(text, data + PST_ST_PREFIX, (size_t)len);
	ret = pst_st_parse(text, (size_t)len, len_bytes - PST_ST_PREFIX - (uint64_t)len, &st, &err);
	if (ret) {
		require(memchr(err.text, '\0', sizeof(err.text)) && *err.text);
		require(memchr(err.tensor, '\0', sizeof(err.tensor)));
		return 0;
	}
	check_header(&st, len_bytes - PST_ST_PREFIX - (uint64_t)len);
	pst_st_free(&st);
	return 0;
}
