/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads small files and links of /sys and /proc: see sysfs.h. It must never write, and never open
 * a file if opening it could block or have an effect. In a capture (a copy of another machine's
 * /sys and /proc) it must never follow a link that leads out of the capture.
 */
#include "core/machine/sysfs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OPEN_TRIES_MAX 10000

int pst_sysfs_open(struct pst_sysfs *fs, const char *root)
{
	bool real = !root || !root[0] || !strcmp(root, "/");

	fs->confined = !real;
	fs->fd = open(real ? "/" : root, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return fs->fd < 0 ? -errno : 0;
}

void pst_sysfs_close(struct pst_sysfs *fs)
{
	if (fs && fs->fd >= 0) {
		close(fs->fd);
		fs->fd = -1;
	}
}

/* Formats a path. Returns 0, or -ENAMETOOLONG if the path is empty or too long. */
static int path_format(char *path, const char *fmt, va_list args)
{
	int len = vsnprintf(path, PST_SYSFS_PATH_MAX, fmt, args);

	if (len <= 0 || len >= PST_SYSFS_PATH_MAX)
		return -ENAMETOOLONG;
	return 0;
}

/*
 * Opens a path beneath the root folder. If the root is not "/", links are resolved inside it. This
 * needs openat2, which kernels before 5.6 and some containers lack. Without openat2 a link may lead
 * out of the root. Then a hostile capture (a copy of another machine's files) can point to any file
 * that this process may read.
 *
 * openat2 may fail with EAGAIN for a path that contains "..", if another process renames or mounts
 * something at that time. So the function calls it again, at most OPEN_TRIES_MAX times.
 */
static int sysfs_path_open(const struct pst_sysfs *fs, const char *path, int flags)
{
	struct open_how how = {.flags = (uint64_t)(unsigned)flags | O_CLOEXEC,
			       .resolve = RESOLVE_IN_ROOT};
	unsigned tries = 0;
	long fd = -1;

	if (fs->confined) {
		do
			fd = syscall(SYS_openat2, fs->fd, path, &how, sizeof(how));
		while (fd < 0 && errno == EAGAIN && tries++ < OPEN_TRIES_MAX);
		if (fd >= 0)
			return (int)fd;
		if (errno != ENOSYS && errno != EPERM)
			return -errno;
	}
	fd = openat(fs->fd, path, flags | O_CLOEXEC);
	return fd < 0 ? -errno : (int)fd;
}

/* Opens a regular file for reading. Refuses a fifo or a device file, which a capture (a copy of
 * another machine's files) could contain, because opening it could block. */
static int regular_file_open(const struct pst_sysfs *fs, const char *fmt, va_list args)
{
	char path[PST_SYSFS_PATH_MAX];
	struct stat st;
	int fd, ret = path_format(path, fmt, args);

	if (ret < 0)
		return ret;
	fd = sysfs_path_open(fs, path, O_PATH);
	if (fd < 0)
		return fd;
	ret = fstat(fd, &st) < 0 ? -errno : S_ISREG(st.st_mode) ? 0 : -EINVAL;
	close(fd);
	if (ret < 0)
		return ret;
	return sysfs_path_open(fs, path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
}

/* Reads at most `max` bytes of a file, up to its end. Returns their number or -errno. */
static ssize_t fd_read(int fd, char *out, size_t max)
{
	size_t got = 0;

	while (got < max) {
		ssize_t n = read(fd, out + got, max - got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			break;
		got += (size_t)n;
	}
	return (ssize_t)got;
}

/* Reduces a text to its first line, removes blanks around it, and replaces each unprintable byte by
 * '?'. Returns the length of the line, or -EOVERFLOW if the line fills all of `capacity`. */
static ssize_t line_trim(char *text, size_t len, size_t capacity)
{
	size_t start = 0, end = 0;

	while (end < len && text[end] != '\n' && text[end])
		end++;
	if (end == capacity)
		return -EOVERFLOW;
	while (start < end && (text[start] == ' ' || text[start] == '\t'))
		start++;
	while (end > start && (text[end - 1] == ' ' || text[end - 1] == '\t'))
		end--;
	memmove(text, text + start, end - start);
	end -= start;
	text[end] = '\0';
	for (start = 0; start < end; start++)
		if ((unsigned char)text[start] < 0x20 || (unsigned char)text[start] > 0x7e)
			text[start] = text[start] == '\t' ? ' ' : '?';
	return (ssize_t)end;
}

/* Does what pst_sysfs_text does, with a va_list. */
static ssize_t text_read(const struct pst_sysfs *fs, char *out, size_t out_len, const char *fmt,
			 va_list args)
{
	ssize_t got;
	int fd;

	if (!out_len)
		return -EINVAL;
	out[0] = '\0';
	fd = regular_file_open(fs, fmt, args);
	if (fd < 0)
		return fd;
	got = fd_read(fd, out, out_len);
	close(fd);
	if (got >= 0)
		got = line_trim(out, (size_t)got, out_len);
	if (got < 0)
		out[0] = '\0';
	return got;
}

ssize_t pst_sysfs_text(const struct pst_sysfs *fs, char *out, size_t out_len, const char *fmt, ...)
{
	va_list args;
	ssize_t ret;

	va_start(args, fmt);
	ret = text_read(fs, out, out_len, fmt, args);
	va_end(args);
	return ret;
}

int pst_number_parse(const char *text, int64_t *out)
{
	bool hex = !strncmp(text, "0x", 2);
	const char *digits = hex ? text + 2 : text;
	char *end;
	long long value;

	/* Check the first character, because strtoll would accept leading blanks and, after 0x, a
	 * sign. */
	if (!strchr(hex ? "0123456789abcdefABCDEF" : "-0123456789", digits[0]) || !digits[0])
		return -EINVAL;
	errno = 0;
	value = strtoll(digits, &end, hex ? 16 : 10);
	if (errno || *end || end == digits)
		return errno ? -errno : -EINVAL;
	*out = value;
	return 0;
}

int pst_sysfs_number(const struct pst_sysfs *fs, int64_t *out, const char *fmt, ...)
{
	char text[32];
	va_list args;
	ssize_t ret;

	va_start(args, fmt);
	ret = text_read(fs, text, sizeof(text), fmt, args);
	va_end(args);
	return ret < 0 ? (int)ret : pst_number_parse(text, out);
}

ssize_t pst_sysfs_bytes(const struct pst_sysfs *fs, void *out, size_t max, const char *fmt, ...)
{
	va_list args;
	ssize_t got;
	int fd;

	va_start(args, fmt);
	fd = regular_file_open(fs, fmt, args);
	va_end(args);
	if (fd < 0)
		return fd;
	got = fd_read(fd, out, max);
	close(fd);
	return got;
}

ssize_t pst_sysfs_file(const struct pst_sysfs *fs, char **out, size_t max, const char *fmt, ...)
{
	size_t capacity = 4096, len = 0;
	char *text = NULL, *more;
	ssize_t got = 0;
	va_list args;
	int fd;

	va_start(args, fmt);
	fd = regular_file_open(fs, fmt, args);
	va_end(args);
	if (fd < 0)
		return fd;
	/* stat does not report the size of a file in /proc, so read until the file's end. */
	do {
		more = realloc(text, capacity + 1);
		if (!more) {
			got = -ENOMEM;
			break;
		}
		text = more;
		got = fd_read(fd, text + len, capacity - len);
		if (got < 0)
			break;
		len += (size_t)got;
		if (len < capacity)
			break;
		capacity *= 2;
		if (len > max)
			got = -EFBIG;
	} while (got >= 0);
	close(fd);
	if (got >= 0 && len > max)
		got = -EFBIG;
	if (got < 0) {
		free(text);
		return got;
	}
	text[len] = '\0';
	*out = text;
	return (ssize_t)len;
}

/* Does what pst_sysfs_link does, with a va_list. */
static ssize_t link_read(const struct pst_sysfs *fs, char *out, size_t out_len, const char *fmt,
			 va_list args)
{
	char path[PST_SYSFS_PATH_MAX];
	int fd, ret = path_format(path, fmt, args);
	ssize_t len;

	if (!out_len)
		return -EINVAL;
	out[0] = '\0';
	if (ret < 0)
		return ret;
	fd = sysfs_path_open(fs, path, O_PATH | O_NOFOLLOW);
	if (fd < 0)
		return fd;
	len = readlinkat(fd, "", out, out_len);
	ret = len < 0 ? -errno : 0;
	close(fd);
	/* If the path is not a link, readlinkat on the O_PATH descriptor fails with ENOENT. */
	if (ret == -ENOENT)
		ret = -EINVAL;
	if (!ret && (size_t)len == out_len)
		ret = -EOVERFLOW;
	out[ret < 0 ? 0 : len] = '\0';
	return ret < 0 ? ret : line_trim(out, (size_t)len, out_len);
}

ssize_t pst_sysfs_link(const struct pst_sysfs *fs, char *out, size_t out_len, const char *fmt, ...)
{
	va_list args;
	ssize_t ret;

	va_start(args, fmt);
	ret = link_read(fs, out, out_len, fmt, args);
	va_end(args);
	return ret;
}

ssize_t pst_sysfs_link_name(const struct pst_sysfs *fs, char *out, size_t out_len, const char *fmt,
			    ...)
{
	char target[PST_SYSFS_PATH_MAX];
	const char *name;
	va_list args;
	ssize_t ret;

	if (!out_len)
		return -EINVAL;
	out[0] = '\0';
	va_start(args, fmt);
	ret = link_read(fs, target, sizeof(target), fmt, args);
	va_end(args);
	if (ret < 0)
		return ret;
	name = strrchr(target, '/');
	name = name ? name + 1 : target;
	if (strlen(name) >= out_len)
		return -EOVERFLOW;
	memcpy(out, name, strlen(name) + 1);
	return (ssize_t)strlen(name);
}

bool pst_sysfs_exists(const struct pst_sysfs *fs, const char *fmt, ...)
{
	char path[PST_SYSFS_PATH_MAX];
	va_list args;
	int fd;

	va_start(args, fmt);
	fd = path_format(path, fmt, args);
	va_end(args);
	if (fd < 0)
		return false;
	fd = sysfs_path_open(fs, path, O_PATH);
	if (fd < 0)
		return false;
	close(fd);
	return true;
}

static int name_by_version(const void *a, const void *b)
{
	return strverscmp(*(char *const *)a, *(char *const *)b);
}

/* Reads the names in an open folder, except those that begin with a dot, and sorts them. */
static int names_read(DIR *dir, struct pst_names *out)
{
	size_t capacity = 0;
	struct dirent *e;

	while ((e = readdir(dir))) {
		if (e->d_name[0] == '.')
			continue;
		if (out->count == PST_SYSFS_ENTRIES_MAX) {
			out->truncated = true;
			break;
		}
		if (out->count == capacity) {
			char **more = realloc(out->name, (capacity * 2 + 32) * sizeof(*more));

			if (!more)
				return -ENOMEM;
			out->name = more;
			capacity = capacity * 2 + 32;
		}
		out->name[out->count] = strdup(e->d_name);
		if (!out->name[out->count])
			return -ENOMEM;
		out->count++;
	}
	if (out->count)
		qsort(out->name, out->count, sizeof(*out->name), name_by_version);
	return 0;
}

int pst_sysfs_list(const struct pst_sysfs *fs, struct pst_names *out, const char *fmt, ...)
{
	char path[PST_SYSFS_PATH_MAX];
	va_list args;
	DIR *dir;
	int fd;

	*out = (struct pst_names){0};
	va_start(args, fmt);
	fd = path_format(path, fmt, args);
	va_end(args);
	if (fd < 0)
		return fd;
	fd = sysfs_path_open(fs, path, O_RDONLY | O_DIRECTORY | O_NONBLOCK);
	if (fd < 0)
		return fd;
	dir = fdopendir(fd);
	if (!dir) {
		close(fd);
		return -ENOMEM;
	}
	fd = names_read(dir, out);
	closedir(dir);
	if (fd < 0)
		pst_names_free(out);
	return fd;
}

void pst_names_free(struct pst_names *names)
{
	size_t i;

	for (i = 0; i < names->count; i++)
		free(names->name[i]);
	free(names->name);
	*names = (struct pst_names){0};
}

/* ---- components of a path --------------------------------------------------- */

bool pst_path_next(const char **path, const char **part, size_t *len)
{
	while (**path == '/')
		(*path)++;
	*part = *path;
	while (**path && **path != '/')
		(*path)++;
	*len = (size_t)(*path - *part);
	return *len > 0;
}

bool pst_part_is(const char *part, size_t len, const char *prefix, bool digits)
{
	size_t i = strlen(prefix);

	if (len <= i || strncmp(part, prefix, i))
		return false;
	for (; digits && i < len; i++)
		if (part[i] < '0' || part[i] > '9')
			return false;
	return true;
}

const char *pst_path_find(const char *path, const char *prefix, bool digits)
{
	const char *part;
	size_t len;

	while (pst_path_next(&path, &part, &len))
		if (pst_part_is(part, len, prefix, digits))
			return part;
	return NULL;
}
