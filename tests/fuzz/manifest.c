/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes manifests and indices of safetensors files. The parser first compares a checksum, which
 * random inputs never have. So the target also parses the input with a last line whose checksum
 * is right. libFuzzer runs this target, or replay.c does with its corpus. A failure is a read
 * beyond the text, a name that no part may have, or items that overlap or end beyond their part.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/index.h"
#include "ckpt/manifest.h"
#include "common/crc32c.h"
#include "common/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static void require(bool truth)
{
	if (!truth)
		abort();
}

static void check_part(const struct penstock_manifest *m, const struct penstock_part *part)
{
	struct penstock_item found = {.size = sizeof(found)};
	uint64_t end = 0;

	require(pst_manifest_names_part(part->name));
	for (uint64_t i = 0; i < part->item_count; i++) {
		const struct penstock_item *item = &part->items[i];

		require(item->off >= end && item->len <= part->bytes);
		end = item->off + item->len;
		require(end <= part->bytes);
		require(!item->name || pst_utf8_valid(item->name));
		require(!penstock_manifest_find(m, part->name, item->off, &found));
		require(found.off == item->off && (!item->len || found.len == item->len));
	}
}

/* Parses `len` bytes as a manifest. Takes ownership of `text`. */
static void parse(char *text, size_t len)
{
	struct penstock_manifest *m = calloc(1, sizeof(*m));
	struct penstock_part part = {.size = sizeof(part)};

	require(m != NULL);
	if (!pst_manifest_add(m, "fuzz", text, len) && !pst_manifest_sort(m, "fuzz"))
		for (uint64_t i = 0; i < penstock_manifest_parts(m); i++) {
			require(!penstock_manifest_get(m, i, &part));
			check_part(m, &part);
		}
	penstock_manifest_close(m);
}

static bool check_name(void *user, const char *file)
{
	++*(unsigned *)user;
	require(pst_utf8_valid(file));
	return true;
}

/* Reads the input as an index of safetensors files. */
static void parse_index(const uint8_t *data, size_t len)
{
	char *text = malloc(len ? len : 1);
	unsigned count = 0;

	require(text != NULL);
	memcpy(text, data, len);
	pst_index_files(text, len, check_name, &count);
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	char *text = malloc(len_bytes ? len_bytes : 1);
	unsigned parts = 0;
	size_t len = len_bytes;

	parse_index(data, len);
	require(text != NULL);
	memcpy(text, data, len);
	parse(text, len);
	text = malloc(len + 100);
	require(text != NULL);
	memcpy(text, data, len);
	for (size_t i = 0; i < len; i++)
		parts += text[i] == '\n';
	len += (size_t)snprintf(text + len, 100, "{\"parts\":%u,\"crc32c\":%u}\n",
				parts ? parts - 1 : 0,
				pst_crc32c_finish(pst_crc32c_raw(0, text, len), len));
	/* The copy ends where the text ends, so that a sanitizer notices a read beyond it. */
	text = realloc(text, len);
	require(text != NULL);
	parse(text, len);
	return 0;
}
