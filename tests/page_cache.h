/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps bytes of a file in the page cache while a test expects them there. The kernel drops page
 * cache when it is short of memory, and some kernels (DAMON with the action pageout) at any time.
 */
#ifndef PENSTOCK_TEST_PAGE_CACHE_H
#define PENSTOCK_TEST_PAGE_CACHE_H

#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

struct test_held {
	void *at;
	size_t len;
};

/* Reads the first `len` bytes of a file into the page cache, and locks them there until
 * test_release. If RLIMIT_MEMLOCK does not allow that, the function does nothing. The caller must
 * release the bytes before it drops them from the page cache. */
static inline struct test_held test_hold(const char *name, size_t len)
{
	struct test_held held = {MAP_FAILED, len};
	int fd = open(name, O_RDONLY | O_CLOEXEC);

	if (fd >= 0 && len)
		held.at = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	if (held.at != MAP_FAILED)
		(void)!mlock(held.at, len);
	return held;
}

static inline void test_release(struct test_held held)
{
	if (held.at != MAP_FAILED)
		munmap(held.at, held.len);
}

#endif
