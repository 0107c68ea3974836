/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metadata of an object or a part: ETag, headers, user metadata and checksums, as names with
 * values. All of them together are one record. The record is in the extended attribute
 * user.penstock.object of the object's file. If the file system has no extended attributes, or too
 * little room for them, the record is a separate file in the store's folder `meta`. The name of
 * this file contains the inode and the modification time of the object's file. A record also
 * contains the length and the modification time of the object's file. So a record becomes invalid
 * if a POSIX program changes that file. Called by store.c and by the operations.
 */
#ifndef GW_META_H
#define GW_META_H

#include <stdbool.h>
#include <sys/stat.h>

#include "common/text.h"

#define GW_META_MAX 16384 /* maximum length of a metadata record in bytes */
#define GW_ETAG_MAX 80

/* Metadata of an object or part. All members must be 0 before the first use. */
struct gw_meta {
	struct pst_text items; /* names and values, each with a NUL */
};

/* Appends a name with its value. A name is an HTTP header or one of the internal names "etag",
 * "parts", "sums" and "upload". */
void gw_meta_add(struct gw_meta *meta, const char *name, const char *value);
/* Returns the first value with this name, or NULL. */
const char *gw_meta_get(const struct gw_meta *meta, const char *name);
/* Finds the next item. *at must be 0 before the first call. Returns false after the last item. */
bool gw_meta_next(const struct gw_meta *meta, size_t *at, const char **name, const char **value);
void gw_meta_close(struct gw_meta *meta);

/* Stores the metadata record of the open file `fd`, to which no more bytes will be written.
 * `meta_dir` is the folder for records that are not in extended attributes. Returns 0 or a negative
 * errno. */
int gw_meta_store(const struct gw_meta *meta, int fd, int meta_dir);
/* Reads the metadata record of a file; `st` is its result of fstat(2). Without a valid record, the
 * only item is an ETag made of the file's inode, length and time. Returns 0 or a negative errno. */
int gw_meta_load(struct gw_meta *meta, int fd, int meta_dir, const struct stat *st);
/* Removes the metadata record of a file from the folder `meta`, if it is there. `st` describes the
 * file, which has been removed or replaced. */
void gw_meta_remove(int meta_dir, const struct stat *st);

#endif
