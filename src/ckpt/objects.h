/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects of an S3 store whose keys have a common beginning, which takes the place of a
 * checkpoint's folder: s3://bucket/run/step-1, with options after a question mark. Uses the public
 * API only. Messages never contain the options.
 */
#ifndef PST_CKPT_OBJECTS_H
#define PST_CKPT_OBJECTS_H

#include <stdbool.h>

#include "ckpt/listing.h"

struct pst_objects {
	char *base;    /* "s3://bucket/run/step-1", percent-encoded, without a slash at its end */
	char *options; /* "" or "?endpoint=..." */
	char *bucket;  /* "s3://bucket/" and the options */
	char *start;   /* what all keys begin with: "run/step-1/", or "" */
};

/* Returns whether the name of a folder stands for objects. */
bool pst_objects_named(const char *dir);

/* Parses the URL of a folder; close it with pst_objects_close. Fails with -EINVAL or -ENOMEM. */
int pst_objects_open(const char *dir, struct pst_objects *out);
/* Makes `out` the objects in the subfolder `name`. */
int pst_objects_open_sub(const struct pst_objects *o, const char *name, struct pst_objects *out);
void pst_objects_close(struct pst_objects *o);

/* Calls a function for each object and for each subfolder. Its key is the name of the object or of
 * the subfolder, without what all keys begin with and without a slash. */
int pst_objects_each(const struct pst_objects *o,
		     int (*each)(void *user, const struct pst_listed *object), void *user);

/* Returns the URL of an object, which the caller frees, or NULL if there is no memory. */
char *pst_objects_url(const struct pst_objects *o, const char *name);
/* Finds out the length of an object. Fails with -ENOENT if it does not exist. */
int pst_objects_length(const struct pst_objects *o, const char *name, uint64_t *bytes);
/* Reads an object. *out becomes a malloc'd buffer of *len bytes, and one more byte. Fails with
 * -EFBIG if it has more than `max` bytes. */
int pst_objects_read(const struct pst_objects *o, const char *name, uint64_t max, char **out,
		     size_t *len);
/* Removes an object, which need not exist. */
int pst_objects_remove(const struct pst_objects *o, const char *name);

#endif
