/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models whose files are objects (s3://). Used by files.c, file.c and config.c. Objects are read
 * with the public API, because they have no descriptor.
 */
#ifndef PST_WEIGHTS_OBJECT_H
#define PST_WEIGHTS_OBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "penstock.h"

/* Returns true if the path is the URL of an object. */
bool pst_weights_is_object(const char *path);
/* Returns true if the object's key ends with `tail`. */
bool pst_weights_object_ends_with(const char *url, const char *tail);
/* Writes the URL of the object `name` that has the same prefix as the object `url`, with the same
 * options. Returns false if it does not fit in `capacity` bytes. */
bool pst_weights_object_beside(const char *url, const char *name, char *to, size_t capacity);
/* Reads exactly `len` bytes at `off`. `url` is for messages. May block. */
int pst_weights_object_read(struct penstock_storage *st, const char *url, void *to, size_t len,
			    uint64_t off);
/* Reads an object of at most 100 MB. *out becomes a malloc'd buffer with the content and a
 * terminating NUL, which *len does not count. May block. */
int pst_weights_object_read_whole(const char *url, char **out, size_t *len);

#endif
