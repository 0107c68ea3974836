/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the kernel by cachestat(2) how much of a range of a file is in the page cache. Linux has
 * this system call since 6.5. Programs that may not write the file may not use it. */
#ifndef PST_COMMON_CACHESTAT_H
#define PST_COMMON_CACHESTAT_H

#include <errno.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451 /* the number is the same on every architecture */
#endif

/* Returns the number of the kernel's pages that the bytes from `off` to `end` touch. */
static inline uint64_t pst_pages_of(uint64_t off, uint64_t end)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	return end > off ? (end + page - 1) / page - off / page : 0;
}

/* Stores in *pages how many pages of the range are in the page cache. Returns 0 or an errno. */
static inline int pst_cachestat(int fd, uint64_t off, uint64_t len, uint64_t *pages)
{
	struct {
		uint64_t off, len;
	} range = {off, len};
	struct {
		uint64_t cached, dirty, writeback, evicted, recently_evicted;
	} stat;

	*pages = 0;
	if (syscall(SYS_cachestat, fd, &range, &stat, 0))
		return errno;
	*pages = stat.cached;
	return 0;
}

#endif
