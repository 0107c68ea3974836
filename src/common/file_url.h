/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes the path out of a file URL (RFC 8089). Used wherever a name may be a path or a file URL.
 */
#ifndef PST_COMMON_FILE_URL_H
#define PST_COMMON_FILE_URL_H

#include <string.h>
#include <strings.h>

/* The end of the message about a file URL for which pst_file_url_path returns NULL. */
#define PST_FILE_URL_HOST \
	"a file URL cannot name another host: write file:///PATH, or only the path"

/* Returns the path of "file:///PATH" and "file://localhost/PATH". Does not decode %XX escapes.
 * Returns NULL for a file URL with another host. Returns any other name unchanged. */
static inline const char *pst_file_url_path(const char *name)
{
	if (strncmp(name, "file://", 7))
		return name;
	name += 7;
	if (!strncasecmp(name, "localhost/", 10))
		name += 9;
	return name[0] == '/' ? name : NULL;
}

#endif
