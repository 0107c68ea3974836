/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of cufile.json that this library knows. Called by config.c. */
#ifndef SHIM_KEYS_H
#define SHIM_KEYS_H

enum shim_key_kind {
	SHIM_KEY_SIZE,	   /* a whole number for size[which] of struct shim_config */
	SHIM_KEY_FLAG,	   /* true or false for flag[which] */
	SHIM_KEY_TEXT,	   /* a string for text[which] */
	SHIM_KEY_POSIX_KB, /* a list of numbers for the slabs; the same for the next three */
	SHIM_KEY_POSIX_COUNT,
	SHIM_KEY_GPU_KB,
	SHIM_KEY_GPU_COUNT,
	SHIM_KEY_NOTED,	  /* any value, accepted without effect; the note has the reason */
	SHIM_KEY_SECTION, /* an object whose members are keys of their own */
	SHIM_KEY_CLOSED,  /* any value, accepted without checking its members */
};
struct shim_key {
	const char *path; /* names joined by dots; "*" matches any one name */
	enum shim_key_kind kind;
	int which;
	const char *note; /* the reason why the key has no effect in this library, or NULL */
};

/* Returns the key at this path, or NULL if it is unknown. */
const struct shim_key *shim_key_find(const char *path);
/* Returns the path where a key with the last name of `path` belongs, or NULL. */
const char *shim_key_place(const char *path);

#endif
