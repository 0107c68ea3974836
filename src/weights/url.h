/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of a model that are not in a file system but behind a URL, such as s3://BUCKET/KEY or a
 * presigned URL. The library's storages read them. Used by the code that finds and opens files.
 */
#ifndef PST_WEIGHTS_URL_H
#define PST_WEIGHTS_URL_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "penstock.h"

/* Returns whether a name is a URL and not a path. "file:///path" is a path. */
bool pst_url_match(const char *name);
/* Returns whether the URL can name a folder of files: true for s3://BUCKET/KEY, false for a
 * presigned URL. */
bool pst_url_is_s3(const char *url);
/* Returns the length of the URL without its query. Messages contain only this part of the URL,
 * because the query of a presigned URL is a secret. */
size_t pst_url_name_len(const char *url);
/* Returns whether the URL without its query ends with `tail`. */
bool pst_url_ends_with(const char *url, const char *tail);

/* Writes the URL of the file `name` in the folder `dir`, with the query of `dir`. The slashes of
 * `name` stay, and all other special characters become %XX. Fails with -ENAMETOOLONG. */
int pst_url_join(char to[PATH_MAX], const char *dir, const char *name);
/* Writes the URL of the folder that contains the file `url`, followed by the query of `url`. */
int pst_url_dir(char to[PATH_MAX], const char *url);

/* Opens the storage of a URL, and stores the length of its object in *length. May block. */
int pst_url_open(const char *url, unsigned flags, struct penstock_storage **out, uint64_t *length);
/* Returns a number that identifies the version of the object. If the object is replaced, the next
 * open of its URL gets another number. Returns 0 if the version is unknown. */
uint64_t pst_url_version(const struct penstock_storage *st);
/* Reads bytes of an open storage into host memory. Fails with -ENODATA if the storage has fewer
 * bytes. May block. */
int pst_url_read(const char *url, struct penstock_storage *st, void *to, size_t len, uint64_t off);
/* Reads a whole file of at most `max` bytes. *out becomes a malloc'd buffer with a NUL after *len
 * bytes. May block. */
int pst_url_read_file(const char *url, uint64_t max, char **out, size_t *len);

#endif
