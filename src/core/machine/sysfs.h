/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small facts of the machine, read beneath a root that can be set, so that a
 * captured machine is read like the real one. Called by topo.c, by the block
 * stack and by `penstock check`, when something is opened; never per request.
 *
 * What lies beneath a root may be garbled or hostile: links cannot lead out of
 * it, nothing but regular files is read, everything has a limit, and text comes
 * back as one printable line. It must never write.
 */
#ifndef PST_CORE_SYSFS_H
#define PST_CORE_SYSFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PST_SYSFS_PATH_MAX 1024	    /* of a path beneath the root */
#define PST_SYSFS_ENTRIES_MAX 16384 /* of a folder; what comes behind is left out */

struct pst_sysfs {
	int fd;	       /* the root folder */
	bool confined; /* a root other than "/": links are resolved inside it */
};

struct pst_names {
	char **name; /* sorted so that nvme2 comes before nvme10 */
	size_t count;
	bool cut; /* there were more than PST_SYSFS_ENTRIES_MAX */
};

/* "" and "/" are the real machine. 0, or -errno; close() is the caller's then. */
int pst_sysfs_open(struct pst_sysfs *fs, const char *root);
void pst_sysfs_close(struct pst_sysfs *fs);

/*
 * All paths are printf-style, relative to the root ("sys/block/%s/size"). The
 * functions may block shortly and may be called from any thread.
 */

/* First line, without blanks at its ends and with '?' for what cannot be printed:
 * its length, or -errno; -EOVERFLOW when it does not fit (out is "" then). */
ssize_t pst_sysfs_text(const struct pst_sysfs *fs, char *out, size_t out_len, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* A decimal or 0x number that is alone on the first line. */
int pst_sysfs_number(const struct pst_sysfs *fs, int64_t *out, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Up to `max` raw bytes; how many there were. */
ssize_t pst_sysfs_bytes(const struct pst_sysfs *fs, void *out, size_t max, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* A whole file with a NUL behind it, the caller frees *out; -EFBIG above `max`. */
ssize_t pst_sysfs_file(const struct pst_sysfs *fs, char **out, size_t max, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* What a symbolic link says; -EINVAL when it is none. */
ssize_t pst_sysfs_link(const struct pst_sysfs *fs, char *out, size_t out_len, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* The last component of what a link says ("driver" -> "nvme"). */
ssize_t pst_sysfs_link_name(const struct pst_sysfs *fs, char *out, size_t out_len, const char *fmt,
			    ...) __attribute__((format(printf, 4, 5)));

bool pst_sysfs_exists(const struct pst_sysfs *fs, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Names in a folder but those that begin with a dot. Always followed by _free. */
int pst_sysfs_list(const struct pst_sysfs *fs, struct pst_names *out, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void pst_names_free(struct pst_names *names);

/* "12" or "0x1f" and nothing else. */
int pst_number_parse(const char *text, int64_t *out);

/* The next component of a path: false at its end, else its start and length, and
 * *path behind it. */
bool pst_path_next(const char **path, const char **part, size_t *len);
/* "host12" for the prefix "host"; with `digits` false anything may follow. */
bool pst_part_is(const char *part, size_t len, const char *prefix, bool digits);
/* The first such component of a path; NULL when there is none. */
const char *pst_path_find(const char *path, const char *prefix, bool digits);

#endif
