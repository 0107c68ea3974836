/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts a file's pages in the page cache with cachestat(2), which exists from Linux 6.5 on.
 * `penstock bench` and the verification of `penstock cp` use the count to check whether the file's
 * bytes come from memory or from the drive. So counting must never change the page cache.
 */
#include "page_cache.h"

#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

int64_t cached_pages(int fd, uint64_t length)
{
	struct {
		uint64_t off, len;
	} range = {0, length};
	struct {
		uint64_t cache, dirty, writeback, evicted, recently;
	} stat;

	return syscall(SYS_cachestat, fd, &range, &stat, 0) ? -1 : (int64_t)stat.cache;
}
