/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small reader of JSON with comments, as cufile.json is written: no dependency
 * that could meet another copy of itself in the program that we are put under. It
 * calls back for each value in turn and keeps nothing.
 */
#ifndef SHIM_JSON_H
#define SHIM_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHIM_JSON_DEPTH 16
#define SHIM_JSON_PATH 256 /* "properties.allow_compat_mode"; longer is cut */
#define SHIM_JSON_TEXT 1024

enum shim_json_type {
	SHIM_JSON_NULL,
	SHIM_JSON_BOOL,
	SHIM_JSON_NUMBER,
	SHIM_JSON_TEXT_VALUE,
	SHIM_JSON_OBJECT, /* begins: return false to pass over what is in it */
	SHIM_JSON_ARRAY,  /* the same; its elements come with its own path and an index */
};
struct shim_json_value {
	enum shim_json_type type;
	const char *path;
	int index; /* in an array, else -1 */
	int line;
	bool flag;
	bool whole;	 /* of a number: number holds it exactly */
	uint64_t number; /* what is negative or broken is not whole */
	const char *text;
};
typedef bool shim_json_fn(void *arg, const struct shim_json_value *value);

/* 0, or the line where it stopped being JSON, and in *what what was wanted. */
int shim_json_read(const char *text, size_t len, shim_json_fn *fn, void *arg, const char **what);

#endif
