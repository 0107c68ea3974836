/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps bytes of a file in the page cache while a test expects them there. The kernel drops page
 * cache when it is short of memory, and some kernels (DAMON with the action pageout) at any time.
 */
#ifndef PENSTOCK_TEST_PAGE_CACHE_H
#define PENSTOCK_TEST_PAGE_CACHE_H

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

/* Maximum number of bytes in a pipe for users without privileges (fs.pipe-max-size), and the number
 * of pipes that hold the longest file of a test. */
#define TEST_PIPE_LEN (1u << 20)
#define TEST_PIPES_MAX 80

struct test_held {
	int pipes[TEST_PIPES_MAX]; /* the pipes' read ends */
	unsigned count;
	size_t len; /* number of bytes that are held, from the start of the file on */
};

/* Reads the first `len` bytes of a file into the page cache, and holds them there until
 * test_release: splice(2) puts references to the pages into pipes, and the kernel drops no page
 * that has more references than its own. mlock(2) would hold them, too, but users without
 * privileges may lock only a few pages. All processes of a user without privileges together may
 * have pipes of 64 MiB (fs.pipe-user-pages-soft). If this is not enough, the function holds fewer
 * bytes, and prints their number. The caller must release the bytes before it drops them from the
 * page cache. */
static inline struct test_held test_hold(const char *name, size_t len)
{
	struct test_held held = {.count = 0};
	int fd = open(name, O_RDONLY | O_CLOEXEC);
	loff_t at = 0;
	int ends[2];

	while (fd >= 0 && (size_t)at < len && held.count < TEST_PIPES_MAX &&
	       !pipe2(ends, O_CLOEXEC)) {
		loff_t end = at + TEST_PIPE_LEN;
		ssize_t n = fcntl(ends[1], F_SETPIPE_SZ, TEST_PIPE_LEN) < 0 ? -1 : 1;

		held.pipes[held.count++] = ends[0];
		while (n > 0 && at < end)
			n = splice(fd, &at, ends[1], NULL, (size_t)(end - at), SPLICE_F_NONBLOCK);
		close(ends[1]);
		if (n < 0)
			break;
	}
	if (fd >= 0)
		close(fd);
	held.len = (size_t)at;
	if (held.len < len)
		printf("# only %zu of %zu bytes of %s are held in the page cache\n", held.len, len,
		       name);
	return held;
}

static inline void test_release(struct test_held held)
{
	while (held.count)
		close(held.pipes[--held.count]);
}

#endif
