/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects of an S3 store whose keys begin with a common prefix. They take the place of a
 * checkpoint's folder. Such a folder has a name like s3://bucket/run/step-1, and options may follow
 * a question mark. Uses the public API only. Messages never contain the options.
 */
#ifndef PST_CKPT_OBJECTS_H
#define PST_CKPT_OBJECTS_H

#include <stdbool.h>

#include "ckpt/listing.h"

struct pst_objects {
	/* URL of the prefix, percent-encoded, without a slash at its end:
	 * "s3://bucket/run/step-1" */
	char *base;
	char *options; /* options of the URL: "" or, for example, "?endpoint=..." */
	char *bucket;  /* URL of the bucket: "s3://bucket/" and the options */
	char *start;   /* prefix of all keys, decoded: "run/step-1/", or "" */
};

/* Returns whether the name of a folder is a URL of objects. */
bool pst_objects_named(const char *dir);

/* Parses the URL of a prefix. Returns 0, -EINVAL or -ENOMEM. The caller closes *out with
 * pst_objects_close. */
int pst_objects_open(const char *dir, struct pst_objects *out);
/* Opens the objects of the subfolder `name` of `o`. */
int pst_objects_open_sub(const struct pst_objects *o, const char *name, struct pst_objects *out);
void pst_objects_close(struct pst_objects *o);

/* Calls `each` for each object and each subfolder. The member `key` that `each` gets is only the
 * name, without the prefix and without a slash. */
int pst_objects_each(const struct pst_objects *o,
		     int (*each)(void *user, const struct pst_listed *object), void *user);

/* Returns the URL of an object, or NULL if there is no memory. The caller frees it. */
char *pst_objects_url(const struct pst_objects *o, const char *name);
/* Stores the length of an object in *bytes. Returns -ENOENT if the object does not exist. */
int pst_objects_length(const struct pst_objects *o, const char *name, uint64_t *bytes);
/* Reads an object. Stores in *out a malloc'd buffer with *len bytes and one further byte. Returns
 * -EFBIG if the object has more than `max` bytes. */
int pst_objects_read(const struct pst_objects *o, const char *name, uint64_t max, char **out,
		     size_t *len);
/* Removes an object. Succeeds if the object does not exist. */
int pst_objects_remove(const struct pst_objects *o, const char *name);

#endif
