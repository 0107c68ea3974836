/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks through the objects of a bucket in the order of their keys' bytes. Called by op_list.c and
 * op_bucket.c. It keeps at most a fixed number of names of each folder in memory, so that a folder
 * with millions of files needs no more.
 */
#ifndef GW_WALK_H
#define GW_WALK_H

#include <stdbool.h>
#include <stddef.h>

#include "keypath.h"
#include "store.h"

struct gw_walk {
	const struct gw_store *store;
	const char *prefix; /* begin of all keys */
	size_t prefix_len;
	const char *after; /* key that all keys must be greater than; NULL for none */
	size_t after_len;
	/* Keys with this begin are skipped; object() may set it. */
	char skip[GW_KEY_MAX + 8];
	size_t skip_len;
	/* Takes an object: `path` leads from `dir` to its file. A result other than 0 ends the
	 * walk. */
	int (*object)(void *user, const char *key, size_t len, int dir, const char *path);
	void *user;
};

/* Walks. Returns 0, object()'s result, or a negative errno. */
int gw_walk(struct gw_walk *walk, int bucket);

#endif
