/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The access keys of the gateway's clients, from an INI file with a section for each access key:
 *
 *   [AKEXAMPLE]
 *   secret = ...
 *   buckets = data, models-*     names of buckets, in which * matches any text; "*" for all
 *   access = rw                  or r
 *   upstream-access-key = ...    keys for the upstream; without them, those of the environment
 *   upstream-secret = ...
 *
 * Called by auth.c and serve.c. A secret must never appear in a message.
 */
#ifndef GW_KEYS_H
#define GW_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include "s3/sigv4.h"

struct gw_keys;

/* One access key. The strings are valid while the caller has a reference to the gw_keys that
 * contains it. */
struct gw_key {
	const char *name, *secret;
	const char *buckets; /* list of buckets as it is in the file of access keys */
	bool write;
	const char *upstream_key, *upstream_secret; /* NULL if there are none */
	/* caches of the signing keys of both secrets (sigv4.h); NULL if there is no memory for
	 * them */
	struct pst_sigv4_day *day, *upstream_day;
};

/* Reads a file of access keys, which must be private (gw_secret_open). If the file is refused or
 * malformed, returns NULL and writes a message to `why`. The caller gets one reference to the
 * result. */
struct gw_keys *gw_keys_read(const char *path, char *why, size_t why_len);
/* Adds a reference to the keys, or drops one. The last drop overwrites and frees them. NULL is
 * allowed. */
struct gw_keys *gw_keys_hold(struct gw_keys *keys);
void gw_keys_release(struct gw_keys *keys);

/* Returns the access key `name`, or NULL. */
const struct gw_key *gw_keys_find(const struct gw_keys *keys, const char *name);
/* Returns the first access key in the file that has no keys for the upstream, or NULL. */
const struct gw_key *gw_keys_without_upstream(const struct gw_keys *keys);
/* Returns whether a key may use a bucket. */
bool gw_key_allows(const struct gw_key *key, const char *bucket);

#endif
