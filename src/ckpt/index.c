/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements index.h. folder.c calls it to find the files that a checkpoint without a manifest must
 * have. Unlike src/weights/files.c, it does not check whether the files exist.
 */
#include "ckpt/index.h"

#include <string.h>

#include "common/json.h"

/* Reads the object "weight_map" of the index. Returns false if `fn` ends the reading, or after an
 * error. */
static bool read_map(struct pst_json *in, pst_index_fn *fn, void *user)
{
	bool first = true;
	char *tensor, *file;
	size_t len;

	if (!pst_json_take(in, '{'))
		return false;
	while (pst_json_more(in, '}', &first))
		if (!pst_json_string(in, &tensor, &len) || !pst_json_take(in, ':') ||
		    !pst_json_string(in, &file, &len) || !fn(user, file))
			return false;
	return !in->what;
}

const char *pst_index_files(char *text, size_t len, pst_index_fn *fn, void *user)
{
	struct pst_json in = {.text = text, .len = len, .python_numbers = true};
	bool first = true, found = false;
	size_t key_len;
	char *key;

	if (!pst_json_take(&in, '{'))
		return in.what;
	while (pst_json_more(&in, '}', &first)) {
		if (!pst_json_string(&in, &key, &key_len) || !pst_json_take(&in, ':'))
			return in.what;
		if (strcmp(key, "weight_map") != 0) {
			if (!pst_json_skip(&in))
				return in.what;
			continue;
		}
		found = true;
		if (!read_map(&in, fn, user))
			return in.what;
	}
	return in.what || found ? in.what : "it has no weight_map";
}
