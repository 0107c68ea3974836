/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The check behind --verify: both files are read again, one after the other's block,
 * with nothing but pread, after their pages were dropped from the cache and the
 * cache was asked that they are gone. None of the library's code is used for it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cli.h"

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif
#define STEP (4u << 20)

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

/* Opened so that reads come from the drive: pages dropped, else O_DIRECT. */
static int open_cold(const char *name)
{
	const char *path = strncmp(name, "file://", 7) ? name : name + 7;
	int fd = open(path, O_RDONLY | O_CLOEXEC), direct;

	if (fd < 0)
		return -errno;
	fdatasync(fd); /* of a file open for reading: only so that pages are clean */
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	if (cached_pages(fd) == 0)
		return fd;
	direct = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
	if (direct < 0)
		return fd; /* tmpfs and the like: there is no drive to read from */
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

static int compare(int a, int b, const char *name_a, const char *name_b, char *buf)
{
	for (uint64_t off = 0;;) {
		int64_t n = read_all(a, buf, STEP, off), m = read_all(b, buf + STEP, STEP, off);
		int64_t least = n < m ? n : m;

		if (n < 0 || m < 0)
			return fail(EXIT_FAILED, "verify: reading %s: %s", n < 0 ? name_a : name_b,
				    strerror((int)(n < 0 ? -n : -m)));
		for (int64_t i = 0; i < least; i++)
			if (buf[i] != buf[STEP + i])
				return fail(EXIT_FAILED, "verify: %s and %s differ at byte %llu",
					    name_a, name_b, (unsigned long long)off + (uint64_t)i);
		if (n != m)
			return fail(EXIT_FAILED, "verify: %s and %s differ in length", name_a,
				    name_b);
		if (n < (int64_t)STEP)
			return 0;
		off += STEP;
	}
}

int verify_files(const char *name_a, const char *name_b)
{
	int a = open_cold(name_a), b = open_cold(name_b), ret;
	char *buf = aligned_alloc(4096, 2 * STEP);

	if (a < 0 || b < 0 || !buf)
		ret = fail(EXIT_FAILED, "verify: cannot open %s again: %s", a < 0 ? name_a : name_b,
			   strerror(a < 0   ? -a
				    : b < 0 ? -b
					    : ENOMEM));
	else
		ret = compare(a, b, name_a, name_b, buf);
	if (a >= 0)
		close(a);
	if (b >= 0)
		close(b);
	free(buf);
	return ret;
}
