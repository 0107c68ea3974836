/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses the XML of a list of objects of an S3 store. The text comes from the network, so its
 * length is bounded, it may declare no entities, and nothing else is loaded. Does no I/O. Called by
 * objects.c.
 */
#ifndef PST_CKPT_LISTING_H
#define PST_CKPT_LISTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An object in a list, or a common prefix of several keys. */
struct pst_listed {
	/* whole key of the object, or the common prefix, which ends with a slash */
	const char *key;
	uint64_t bytes;
	int64_t time_ns; /* time of the object's last change, in ns since 1970 */
	uint64_t tag;	 /* hash of the object's ETag */
	bool folder;	 /* whether this is a common prefix */
};

/*
 * Calls a function for each object of a page.
 *
 * text		the XML, which the call changes, with a NUL after its `len` bytes
 * each		a result other than 0 ends the call
 * next		becomes the token of the next page, or NULL if this page is the last one
 *
 * Returns 0, the result of `each`, -EBADMSG if the text is malformed or a key has a
 * NUL, or -ENOMEM.
 */
int pst_listing_parse(char *text, size_t len,
		      int (*each)(void *user, const struct pst_listed *object), void *user,
		      const char **next);

#endif
