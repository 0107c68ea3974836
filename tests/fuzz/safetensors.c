/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes whole safetensors files: length, header, data (their length only). Run by
 * libFuzzer, or by replay.c over its corpus. What it must never find: a read past
 * the header, tensors that overlap or leave a hole, a name twice or not ended, or a
 * shape that does not take what its offsets say.
 */
#include <stdlib.h>
#include <string.h>

#include "job/json_pull.h"
#include "weights/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static void hold(bool truth)
{
	if (!truth)
		abort();
}

static void check(const struct pst_st *st, uint64_t data_len)
{
	uint64_t at = 0, bytes;

	for (size_t i = 0; i < st->count; i++) {
		const struct pst_st_tensor *t = &st->tensors[i];

		hold(t->begin == at && t->rank <= PENSTOCK_RANK_MAX);
		hold((unsigned)t->dtype < PENSTOCK_DTYPES);
		hold(pst_st_bytes(t->dtype, t->shape, t->rank, &bytes));
		hold(t->end - t->begin == bytes && strlen(t->name) <= PST_ST_NAME_MAX);
		at = t->end;
	}
	hold(at == data_len);
	for (size_t i = 1; i < st->count; i++)
		hold(strcmp(st->tensors[st->by_name[i - 1]].name,
			    st->tensors[st->by_name[i]].name) < 0);
	for (size_t i = 1; i < st->pair_count; i++)
		hold(strcmp(st->pairs[i - 1].key, st->pairs[i].key) < 0);
}

/* Any text at all: skipped, or refused with a word and a place in it. */
static void skip_any(const uint8_t *data, size_t len)
{
	char *text = malloc(len ? len : 1);
	struct pst_json in = {text, len, 0, NULL};

	if (!text)
		return;
	memcpy(text, data, len);
	if (pst_json_skip(&in))
		hold(!in.what);
	else
		hold(in.what && *in.what);
	hold(in.at <= len);
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	struct pst_st_error err;
	struct pst_st st;
	int64_t len;
	char *text;
	int ret;

	skip_any(data, len_bytes);
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
		hold(memchr(err.text, '\0', sizeof(err.text)) && *err.text);
		hold(memchr(err.tensor, '\0', sizeof(err.tensor)));
		return 0;
	}
	check(&st, len_bytes - PST_ST_PREFIX - (uint64_t)len);
	pst_st_free(&st);
	return 0;
}
