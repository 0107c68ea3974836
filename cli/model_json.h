/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks through JSON texts that other programs wrote, for `penstock model`. The walk passes each
 * value to a function, with the path of its keys, such as "jobs.read.bw_bytes". An array adds
 * nothing to the path. A text may contain several objects, one after the other.
 */
#ifndef PENSTOCK_CLI_MODEL_JSON_H
#define PENSTOCK_CLI_MODEL_JSON_H

#include <stddef.h>

enum model_json_kind {
	MODEL_JSON_NUMBER, /* also true (1) and false (0) */
	MODEL_JSON_TEXT,
	MODEL_JSON_END /* an object ends; `path` is "" for an outermost object */
};

struct model_json_value {
	enum model_json_kind kind;
	const char *path;
	double number;
	const char *text;
};

/*
 * Passes each value in `text` to the function `value`. `text` must have a NUL after its `len`
 * bytes, and model_json_walk() overwrites it. Returns NULL, or an error message with the number of
 * the wrong line in *line.
 */
const char *model_json_walk(char *text, size_t len,
			    void (*value)(void *arg, const struct model_json_value *v), void *arg,
			    unsigned *line);
/* Reads a file of at most 16 MiB ("-": standard input) and appends a NUL. The caller frees the
 * result. Returns NULL after an error message. */
char *model_file_read(const char *path, size_t *len);

#endif
