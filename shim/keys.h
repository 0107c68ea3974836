/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of cufile.json that this library knows. config.c calls these functions. */
#ifndef SHIM_KEYS_H
#define SHIM_KEYS_H

enum shim_key_kind {
	SHIM_KEY_SIZE, /* value: a whole number, stored in shim_config.size[which] */
	SHIM_KEY_FLAG, /* value: true or false, stored in shim_config.flag[which] */
	SHIM_KEY_TEXT, /* value: a string, stored in shim_config.text[which] */
	/* For this kind and the next three kinds, the value is a list of numbers, one for each slab
	 * (pool of buffers of one size). */
	SHIM_KEY_POSIX_KB,
	SHIM_KEY_POSIX_COUNT,
	SHIM_KEY_GPU_KB,
	SHIM_KEY_GPU_COUNT,
	SHIM_KEY_NOTED,	  /* value: anything; it has no effect, for the reason in shim_key.note */
	SHIM_KEY_SECTION, /* value: an object whose members are listed as keys in the table */
	SHIM_KEY_CLOSED,  /* value: anything; its members are not checked */
};
struct shim_key {
	/* Path of the key: member names joined by dots; "*" matches any one name. */
	const char *path;
	enum shim_key_kind kind;
	int which;
	const char *note; /* reason why the key has no effect in this library, else NULL */
};

/* Returns the key at this path, or NULL if it is unknown. */
const struct shim_key *shim_key_find(const char *path);
/* Returns the full path of a known key that has the same last name as `path`, or NULL if there
 * is none. A message can then suggest the right section. */
const char *shim_key_place(const char *path);

#endif
