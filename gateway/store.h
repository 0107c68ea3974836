/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects as files under a folder, the root. Called by the operations. Several gateways, on several
 * hosts, may work on one root: the state is only in the files, and link(2) and rename(2) decide
 * which of two writers comes first. No call may leave a file visible that is not complete and
 * synced, or follow a symbolic link.
 *
 *   ROOT/BUCKET/...               objects; keypath.h has the names
 *   ROOT/.penstock/tmp/           drafts: files that are being written
 *   ROOT/.penstock/meta/          metadata of files that cannot have extended attributes
 *   ROOT/.penstock/multipart/BUCKET/ID/   parts of uploads
 *
 * If the name of an object is already a folder's name ("a", after "a/b"), the object is the file
 * a/%self. If a folder needs the name of an object ("a/b", after "a"), the folder replaces the
 * object's file in one step, by renameat2(RENAME_EXCHANGE). The folder has a link %moving to the
 * file's new place, and every gateway that finds the link first moves the file to a/%self.
 */
#ifndef GW_STORE_H
#define GW_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "meta.h"

#define GW_BUCKET_MAX 63

struct gw_store {
	int root, tmp, meta, multipart; /* descriptors of folders */
	const char *path;		/* path of the root, from the caller of gw_store_open */
	bool unnamed;			/* whether files without a name (O_TMPFILE) can be used */
	/* whether to sync files and folders; tests of speed may set it to false */
	bool sync;
};

/* Opens the root, and makes the store's own folder .penstock in it. Returns 0; on an error, returns
 * a negative errno and writes a message to `why`. The text `root` must stay valid as long as the
 * store. */
int gw_store_open(struct gw_store *store, const char *root, char *why, size_t why_len);
/* Returns a sentence about why the store must not be used, or NULL if its root still has the same
 * path. If another file system is mounted there, clients of other gateways and of this one would
 * see different objects. */
const char *gw_store_fault(const struct gw_store *store);
void gw_store_close(struct gw_store *store);

/* ---- buckets ---- */

/* Returns whether a name may be a bucket's name: 3 to 63 characters of a-z, 0-9, '.' and '-'. */
bool gw_bucket_name_ok(const char *name);
/* Opens a bucket's folder. Returns the descriptor, or -ENOENT or another negative errno. */
int gw_bucket_open(const struct gw_store *store, const char *name);
/* Makes a bucket's folder. Returns 0, -EEXIST or another negative errno. */
int gw_bucket_make(const struct gw_store *store, const char *name);
/* Removes a bucket and its empty folders. Returns 0, -ENOTEMPTY or another negative errno. */
int gw_bucket_remove(const struct gw_store *store, const char *name);

/* ---- objects ---- */

struct gw_object {
	int fd;
	struct stat st;
	struct gw_meta meta;
};

/* Opens an object for reading. Returns 0, or a negative errno: -ENOENT if there is no such object.
 * `bucket` is the bucket's descriptor. */
int gw_object_open(const struct gw_store *store, int bucket, const char *key, size_t len,
		   struct gw_object *out);
void gw_object_close(struct gw_object *object);
/* Opens %self in the folder `dir`: the file of the object whose key is the folder's name. Returns
 * the descriptor or a negative errno. */
int gw_self_open(const struct gw_store *store, int dir);
/* Removes an object and folders that become empty. Returns 0, -ENOENT or another negative errno. */
int gw_object_remove(const struct gw_store *store, int bucket, const char *key, size_t len);

/* ---- drafts ---- */

/* A file that is being written and has no name in a bucket yet. `fd` is -1 at first. */
struct gw_draft {
	int fd;
	/* name of the file in the folder `tmp`; "" if the file has no name */
	char name[64];
};

int gw_draft_open(const struct gw_store *store, struct gw_draft *draft);
/* Writes all bytes at an offset. Returns 0 or a negative errno. */
int gw_draft_write(const struct gw_draft *draft, const char *bytes, size_t len, uint64_t at);
/* Stores the metadata and syncs the draft. Returns 0 or a negative errno. */
int gw_draft_finish(const struct gw_store *store, const struct gw_draft *draft,
		    const struct gw_meta *meta);
/* Publishes a finished draft as the object `key`, syncs the folders and closes the draft. With
 * `exclusive`, returns -EEXIST if there is such an object. Returns 0 or another negative errno. */
int gw_draft_publish(const struct gw_store *store, struct gw_draft *draft, int bucket,
		     const char *key, size_t len, bool exclusive);
/* Gives a finished draft a name in a folder, replaces a file that has the name, and closes the
 * draft. */
int gw_draft_place(const struct gw_store *store, struct gw_draft *draft, int dir, const char *name);
/* Closes a draft and removes its file if it has not been published. */
void gw_draft_close(const struct gw_store *store, struct gw_draft *draft);

#endif
