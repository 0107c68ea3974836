/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The check behind --verify: both files are read again, one after the other's block,
 * with nothing but pread, after their pages were dropped from the cache and the
 * cache was asked that they are gone. None of the library's code is used for it. And what
 * the copy has to be before it takes its place.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cli.h"

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif
#define STEP (4u << 20)

static int say(const struct verify *v, int code, const char *fmt, ...)
{
	int n = snprintf(v->text, v->text_len, "verify: ");
	va_list args;

	va_start(args, fmt);
	vsnprintf(v->text + n, v->text_len - (size_t)n, fmt, args);
	va_end(args);
	return code;
}

/* Pages of the file in the cache; -1: this kernel or file system does not say. */
static int64_t cached_pages(int fd)
{
	struct {
		uint64_t off, len;
	} range = {0, 0};
	struct {
		uint64_t cache, dirty, writeback, evicted, recently;
	} stat;

	return syscall(SYS_cachestat, fd, &range, &stat, 0) ? -1 : (int64_t)stat.cache;
}

/* On kernels that let O_DIRECT be asked for there, which then copies. */
static bool is_memory(int fd)
{
	struct statfs fs;

	return !fstatfs(fd, &fs) && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

/* Opened so that reads come from the drive: pages dropped, else O_DIRECT. Not told of where
 * neither works. */
static int open_cold(const char *name, bool *told)
{
	const char *path = file_of(name);
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1, direct;
	bool seen;
	char byte;

	if (fd < 0)
		return path ? -errno : -EINVAL;
	/* Who does not see the page of this byte is blind: overlayfs says 0 of any file. */
	seen = pread(fd, &byte, 1, 0) == 0 || cached_pages(fd) > 0;
	fdatasync(fd); /* of a file open for reading: only so that pages are clean */
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	if (seen && cached_pages(fd) == 0)
		return fd;
	direct = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
	if (direct < 0 || is_memory(direct)) {
		*told = false; /* there may be no drive to read from */
		if (direct >= 0)
			close(direct);
		return fd;
	}
	close(fd);
	return direct;
}

static int64_t read_all(int fd, char *buf, uint64_t len, uint64_t off)
{
	uint64_t got = 0;

	while (got < len) {
		ssize_t n = pread(fd, buf + got, STEP - got, (off_t)(off + got));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			break;
		got += (uint64_t)n;
		if (got % 4096)
			break; /* the end: O_DIRECT cannot go on from here */
	}
	return (int64_t)got;
}

static void show(const struct verify *v, uint64_t done, double *shown)
{
	bool last = done >= v->length;

	if (v->length && progress_due(!v->progress, last, shown))
		progress(last, "%3.0f %% read again",
			 100.0 * (double)(last ? v->length : done) / (double)v->length);
}

static int compare(const struct verify *v, int a, int b, char *buf, double *shown)
{
	for (uint64_t off = 0;; off += STEP) {
		int64_t n = read_all(a, buf, STEP, off), m = read_all(b, buf + STEP, STEP, off);
		int64_t least;

		if (v->longer && n >= 0 && m > n)
			m = n;
		least = n < m ? n : m;
		if (n < 0 || m < 0)
			return say(v, EXIT_FAILED, "reading %s again: %s", n < 0 ? v->src : v->copy,
				   strerror((int)(n < 0 ? -n : -m)));
		for (int64_t i = 0; i < least; i++)
			if (buf[i] != buf[STEP + i])
				return say(v, EXIT_FAILED, "%s and its copy differ at byte %llu",
					   v->src, (unsigned long long)off + (uint64_t)i);
		if (n != m)
			return say(v, EXIT_FAILED, "%s and its copy differ in length", v->src);
		if (*v->stopped)
			return say(v, 128 + (int)*v->stopped, "stopped by %s",
				   strsignal((int)*v->stopped));
		if (n)
			show(v, off + (uint64_t)n, shown);
		if (n < (int64_t)STEP)
			return 0;
	}
}

int verify_files(struct verify *v)
{
	int a, b, ret;
	char *buf = aligned_alloc(4096, 2 * STEP);
	double shown = 0;

	v->from_drive = true;
	a = open_cold(v->src, &v->from_drive);
	b = open_cold(v->copy, &v->from_drive);
	if (a < 0 || b < 0 || !buf)
		ret = say(v, EXIT_FAILED, "cannot open %s again: %s", a < 0 ? v->src : v->copy,
			  strerror(a < 0   ? -a
				   : b < 0 ? -b
					   : ENOMEM));
	else
		ret = compare(v, a, b, buf, &shown);
	if (ret && shown > 0)
		fputc('\n', stderr);
	if (a >= 0)
		close(a);
	if (b >= 0)
		close(b);
	free(buf);
	return ret;
}

/* The file that is replaced, if there is one, says whose it is; see the library's own. Who
 * may write in the folder may have put a link in the copy's place: what that leads to is not
 * to be had. */
void keep_permissions(const char *copy, const char *dst)
{
	struct stat old, ours;
	unsigned mode;
	int fd;

	if (lstat(dst, &old) || !S_ISREG(old.st_mode))
		return;
	fd = open(copy, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return;
	mode = old.st_mode & 0777;
	if (!fstat(fd, &ours) && S_ISREG(ours.st_mode) && ours.st_nlink == 1) {
		if (fchown(fd, old.st_uid, old.st_gid) && fchown(fd, (uid_t)-1, old.st_gid))
			mode = (mode & ~0070u) | (mode & 0007u) << 3;
		(void)fchmod(fd, mode);
	}
	close(fd);
}
