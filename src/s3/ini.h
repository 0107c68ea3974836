/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the files of AWS's tools, ~/.aws/config and ~/.aws/credentials: sections with settings, and
 * settings inside a setting, on indented lines. The library does not use a general INI parser,
 * because such a parser takes indented lines for a continuation of the line before. Called by
 * credentials.c and gateway/keys.c. No message contains a value.
 */
#ifndef PST_S3_INI_H
#define PST_S3_INI_H

#include <stddef.h>

#define PST_INI_MAX (1u << 20) /* maximum length of a file, in bytes */

/* One setting. The strings are valid only during the call of put(). */
struct pst_ini_setting {
	/* for an indented line: the setting that it belongs to; "" for all other lines */
	const char *parent;
	const char *name; /* name of the setting, in lower case */
	const char *value;
};

/*
 * Calls section() for each section and put() for each setting. A result other than 0 ends the
 * reading. `bytes` is changed. `file` is the file's name for messages. Returns 0, the result of
 * section() or put(), or -EINVAL after it has written a message to `why`.
 */
int pst_ini_read(char *bytes, const char *file, int (*section)(void *user, const char *name),
		 int (*put)(void *user, const struct pst_ini_setting *setting), void *user,
		 char *why, size_t why_len);

#endif
