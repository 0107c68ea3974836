/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multipart uploads, stored as folders: multipart/BUCKET/ID/ has a file "upload" with the metadata
 * of the future object, and a file for each part, named by its number in five digits. Called by the
 * operations, assemble.c and repair.c.
 */
#ifndef GW_UPLOAD_H
#define GW_UPLOAD_H

#include "store.h"

#define GW_UPLOAD_ID 33 /* length of an ID with its NUL */
#define GW_PARTS_MAX 10000

/* An upload. `dir` is its folder. The metadata has the item "key" and the object's headers. `lock`
 * is -1 if the upload is not locked. `bucket` and `id` are the strings that were given to
 * gw_upload_open. */
struct gw_upload {
	int dir, lock;
	const char *bucket, *id;
	struct gw_meta meta;
	struct timespec begun;
};

/* Begins an upload. `meta` has the object's headers. Returns 0 or a negative errno. */
int gw_upload_make(const struct gw_store *store, const char *bucket, const char *key,
		   struct gw_meta *meta, char id[GW_UPLOAD_ID]);
/* Opens an upload. If `key` is not NULL, the upload must be for this key. Returns 0, -ENOENT or
 * another negative errno; after an error, gw_upload_close may be called, too. */
int gw_upload_open(const struct gw_store *store, const char *bucket, const char *id,
		   const char *key, struct gw_upload *out);
void gw_upload_close(struct gw_upload *upload);
/* Locks an upload until it is closed, and waits for the lock. So only one request at a time
 * completes the upload, even if several gateways work on the store, provided that the file system
 * has locks (flock). Returns 0, -ENOENT if the upload has been removed meanwhile, or another
 * negative errno. */
int gw_upload_lock(struct gw_upload *upload);
/* Returns whether an upload still exists: whether it has not been completed or aborted. */
bool gw_upload_exists(const struct gw_upload *upload);
/* Removes an upload with its parts. Returns 0 or a negative errno. */
int gw_upload_remove(const struct gw_store *store, const char *bucket, const char *id);
/* Removes all uploads of a bucket. */
void gw_uploads_remove(const struct gw_store *store, const char *bucket);
/* Opens the folder of a bucket's uploads. Returns the descriptor or a negative errno. */
int gw_uploads_open(const struct gw_store *store, const char *bucket);

/* Stores a finished draft as a part. Returns 0, -ENOENT if the upload has been removed meanwhile,
 * or another negative errno. */
int gw_part_place(const struct gw_store *store, const struct gw_upload *upload, unsigned number,
		  struct gw_draft *draft);
/* Opens a part. Returns 0, -ENOENT or another negative errno. The caller closes the object. */
int gw_part_open(const struct gw_store *store, const struct gw_upload *upload, unsigned number,
		 struct gw_object *out);

#endif
