/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads small files and links of /sys and /proc beneath a root folder that the caller chooses. So
 * the files can also be copies from another machine; a folder with such copies is called a capture.
 * Called when devices and files are opened, and by `penstock topo` and `penstock check`, but never
 * per request. It must never write.
 *
 * The files beneath a root may be garbled or hostile. So links cannot lead out of the root, only
 * regular files are read, every size has a limit, and text is returned as one printable line.
 */
#ifndef PST_CORE_SYSFS_H
#define PST_CORE_SYSFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PST_SYSFS_PATH_MAX 1024	    /* maximum length of a path beneath the root, with its NUL */
#define PST_SYSFS_ENTRIES_MAX 16384 /* maximum number of names that are read from a folder */

struct pst_sysfs {
	int fd;	       /* descriptor of the root folder; -1 if closed */
	bool confined; /* the root is not "/", so links are resolved inside it */
};

/* Names in a folder. */
struct pst_names {
	char **name; /* sorted as `ls -v` does: nvme2 comes before nvme10 */
	size_t count;
	bool truncated; /* the folder has more than PST_SYSFS_ENTRIES_MAX names */
};

/* Opens the root folder `root`. NULL, "" and "/" mean the files of this machine. Returns 0 or
 * -errno. On success the caller must close it. */
int pst_sysfs_open(struct pst_sysfs *fs, const char *root);
/* Closes the root folder; calling this twice is allowed. */
void pst_sysfs_close(struct pst_sysfs *fs);

/*
 * All functions below build their path as printf does, relative to the root
 * ("sys/block/%s/size"). They may block for a short time, and any thread may call them.
 */

/* Reads the first line of a file, removes blanks around it, and replaces each unprintable byte by
 * '?'. Returns the length of the line. On an error writes "" and returns -errno: -EOVERFLOW if the
 * line does not fit in `out`. */
ssize_t pst_sysfs_text(const struct pst_sysfs *fs, char *out, size_t out_len, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* Reads a decimal or hexadecimal (0x) number. The first line of the file must contain nothing else.
 * Returns 0 or -errno. */
int pst_sysfs_number(const struct pst_sysfs *fs, int64_t *out, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Reads up to `max` raw bytes of a file. Returns the number of bytes or -errno. */
ssize_t pst_sysfs_bytes(const struct pst_sysfs *fs, void *out, size_t max, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* Reads a whole file and appends a NUL; the caller frees *out. Returns the length of the file, or
 * -errno: -EFBIG if the file is longer than `max`. */
ssize_t pst_sysfs_file(const struct pst_sysfs *fs, char **out, size_t max, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* Reads the target of a symbolic link. Returns the length of the target, or -errno: -EINVAL if the
 * path is not a link. */
ssize_t pst_sysfs_link(const struct pst_sysfs *fs, char *out, size_t out_len, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* Reads the last component of a link's target: "nvme" if the link `driver` points to a folder of
 * that name. Returns the length of the component, or -errno. */
ssize_t pst_sysfs_link_name(const struct pst_sysfs *fs, char *out, size_t out_len, const char *fmt,
			    ...) __attribute__((format(printf, 4, 5)));

/* Returns whether a file, a folder or the target of a link exists. */
bool pst_sysfs_exists(const struct pst_sysfs *fs, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Lists the names in a folder, except names that begin with a dot. Returns 0 or -errno. The caller
 * frees the list with pst_names_free. */
int pst_sysfs_list(const struct pst_sysfs *fs, struct pst_names *out, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void pst_names_free(struct pst_names *names);

/* Parses a number such as "12", "-1" or "0x1f". Returns 0, or -errno: -EINVAL if the text contains
 * anything else. */
int pst_number_parse(const char *text, int64_t *out);

/* Finds the next component of a path: *part is set to its start, and *len to its length. Moves
 * *path behind the component. Returns false at the end of the path. */
bool pst_path_next(const char **path, const char **part, size_t *len);
/* Returns whether a path component starts with `prefix` and is longer than it, as "host12" is for
 * the prefix "host". If `digits` is true, only digits may follow the prefix. */
bool pst_part_is(const char *part, size_t len, const char *prefix, bool digits);
/* Finds the first component of a path for which pst_part_is returns true. Returns the path from
 * this component on, or NULL if there is no such component. */
const char *pst_path_find(const char *path, const char *prefix, bool digits);

#endif
