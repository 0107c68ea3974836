/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares two files for `cp --verify`: drops their pages from the page cache, checks that the
 * pages are gone, and reads both files with pread(2), one block of each in turn. Also gives the
 * copy its permissions before the copy replaces the destination. Called by cp.c. It must never use
 * the library, because it checks the library's work.
 */
#include "verify.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "args.h"
#include "drive.h"
#include "page_cache.h"
#include "progress.h"

#define STEP (4u << 20)

/* Sets the message of a failure, and returns `code`. */
static int verify_fail(const struct verify *v, int code, const char *fmt, ...)
{
	int n = snprintf(v->text, v->text_len, "verify: ");
	va_list args;

	va_start(args, fmt);
	vsnprintf(v->text + n, v->text_len - (size_t)n, fmt, args);
	va_end(args);
	return code;
}

/*
 * Opens a file so that reads come from the drive. For this it drops the file's pages from the page
 * cache or, if that fails, opens the file with O_DIRECT. If neither works, it opens the file
 * normally and sets *from_drive to false. Returns a descriptor, or -errno.
 */
static int open_cold(const char *name, bool *from_drive)
{
	const char *path = storage_path(name);
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1, direct;
	bool visible;
	char byte;

	if (fd < 0)
		return path ? -errno : -EINVAL;
	/* overlayfs reports 0 cached pages for every file. So this code trusts cachestat(2) only
	 * if it reports the page of the byte that was just read. */
	visible = pread(fd, &byte, 1, 0) == 0 || cached_pages(fd, 0) > 0;
	fdatasync(fd); /* writes dirty pages back, because they cannot be dropped */
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	if (drive_is_memory(fd))
		*from_drive = false; /* the drive is memory, so the bytes come from memory */
	if (visible && cached_pages(fd, 0) == 0)
		return fd;
	/* Some kernels accept O_DIRECT for a file of tmpfs, but still copy from memory. */
	direct = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
	if (direct < 0) {
		*from_drive = false; /* the bytes may come from memory, as both ways failed */
		return fd;
	}
	close(fd);
	return direct;
}

/* Reads `len` bytes, or fewer at the end of the file. Returns the number of bytes read, or
 * -errno. */
static int64_t file_read(int fd, char *buf, uint64_t len, uint64_t off)
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
			/* The file ends here. A further read with O_DIRECT would fail, because its
			 * offset is not aligned. */
			break;
	}
	return (int64_t)got;
}

static void verify_progress(const struct verify *v, uint64_t done, double *shown)
{
	bool last = done >= v->length;

	if (v->length && progress_due(!v->progress, last, shown))
		progress(last, "%3.0f %% read again",
			 100.0 * (double)(last ? v->length : done) / (double)v->length);
}

static int files_compare(const struct verify *v, int a, int b, char *buf, double *shown)
{
	for (uint64_t off = 0;; off += STEP) {
		int64_t n = file_read(a, buf, STEP, off), m = file_read(b, buf + STEP, STEP, off);
		int64_t least;

		if (v->longer && n >= 0 && m > n)
			m = n;
		least = n < m ? n : m;
		if (n < 0 || m < 0)
			return verify_fail(v, EXIT_FAILED, "reading %s again: %s",
					   n < 0 ? v->src : v->copy,
					   strerror((int)(n < 0 ? -n : -m)));
		for (int64_t i = 0; i < least; i++)
			if (buf[i] != buf[STEP + i])
				return verify_fail(v, EXIT_FAILED,
						   "%s and its copy differ at byte %llu", v->src,
						   (unsigned long long)off + (uint64_t)i);
		if (n != m)
			return verify_fail(v, EXIT_FAILED, "%s and its copy differ in length",
					   v->src);
		if (*v->stop_signal)
			return verify_fail(v, 128 + (int)*v->stop_signal, "stopped by %s",
					   strsignal((int)*v->stop_signal));
		if (n)
			verify_progress(v, off + (uint64_t)n, shown);
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
		ret = verify_fail(v, EXIT_FAILED, "cannot open %s again: %s",
				  a < 0 ? v->src : v->copy,
				  strerror(a < 0   ? -a
					   : b < 0 ? -b
						   : ENOMEM));
	else
		ret = files_compare(v, a, b, buf, &shown);
	if (ret && shown > 0)
		fputc('\n', stderr);
	if (a >= 0)
		close(a);
	if (b >= 0)
		close(b);
	free(buf);
	return ret;
}

/* Gives the copy the permissions that the library gives to a file that replaces another file.
 * If another user may write to the folder, that user could replace the copy by a link.
 * O_NOFOLLOW and the check of the link count ensure that the permissions of the link's target
 * are not changed. */
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
