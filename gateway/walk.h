/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks through the objects of a bucket in the order of their keys' bytes. Called by op_list.c. It
 * keeps at most a fixed number of names of each folder in memory, so that a folder with millions of
 * files needs no more.
 */
#ifndef GW_WALK_H
#define GW_WALK_H

#include <stdbool.h>
#include <stddef.h>

#include "keypath.h"
#include "store.h"

struct gw_walk {
	const struct gw_store *store;
	const char *prefix; /* bytes with which all keys must begin */
	size_t prefix_len;
	const char *after; /* key that all keys must be greater than; NULL for none */
	size_t after_len;
	/* Keys that begin with these bytes are skipped. object() may change the member. */
	char skip[GW_KEY_MAX + 8];
	size_t skip_len;
	/* Called for each object; `path` leads from the folder `dir` to the object's file. A result
	 * other than 0 ends the walk. */
	int (*object)(void *user, const char *key, size_t len, int dir, const char *path);
	void *user;
};

/* Walks through a bucket. Returns 0, object()'s result, or a negative errno. */
int gw_walk(struct gw_walk *walk, int bucket);

#endif
