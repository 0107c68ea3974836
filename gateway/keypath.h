/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps keys of objects to relative paths, and names of files back to parts of keys. A key is
 * arbitrary bytes; each part between two slashes is a component. The mapping is one to one, so that
 * two keys never share a file. Called by store.c and walk.c. No path may leave its bucket: a
 * component "." or ".." is always escaped.
 *
 * A component that can be a file name is its own name, so that a POSIX user finds the object
 * "a/b.txt" as the file a/b.txt. The other components have names that begin with '%':
 *
 *   %25REST        a component that begins with '%': REST follows the '%'
 *   %. and %..     the components "." and ".."
 *   %e             an empty component, as in "a//b" and "a/"
 *   %+BYTES        a folder: the next 253 bytes of a component of more than 255 bytes
 *   %-BYTES        the last bytes of such a component, in a folder %+BYTES
 *   %self          in a folder: the object whose key is the folder's name, without a slash
 *   %moving        in a folder: a link to a file that is about to become %self, see folder.c
 */
#ifndef GW_KEYPATH_H
#define GW_KEYPATH_H

#include <stdbool.h>
#include <stddef.h>

#define GW_KEY_MAX 1024	  /* longest key in bytes, as in S3 */
#define GW_PATH_MAX 4096  /* maximum length of a relative path in bytes, with its NUL */
#define GW_NAME_MAX 255	  /* maximum length of a file name in bytes */
#define GW_LONG_PIECE 253 /* number of a component's bytes that one name %+BYTES contains */
#define GW_SELF "%self"
#define GW_MOVING "%moving"

/* Writes the path of a key, with a NUL. Returns the length of the path, or -EINVAL if the key is
 * empty or has a NUL byte, or -ENAMETOOLONG. */
int gw_keypath(const char *key, size_t len, char out[GW_PATH_MAX]);

enum gw_name_kind {
	GW_NAME_NONE,	/* no part of a key, such as a POSIX user's file "%x" */
	GW_NAME_WHOLE,	/* a component, or the last bytes of a long one */
	GW_NAME_PIECE,	/* bytes of a long component, more of which follow in the folder */
	GW_NAME_INTERN, /* %self or %moving */
};

/* Finds the part of a key that the file name `name` stands for. If the file is in folders %+BYTES,
 * `before` contains the BYTES of these folders, which are the first `inside` bytes of a long
 * component. Otherwise `inside` is 0. `part` needs 256 bytes; the part's length is stored in
 * `part_len`. */
enum gw_name_kind gw_name_parse(const char *name, const char *before, size_t inside, char *part,
				size_t *part_len);

#endif
