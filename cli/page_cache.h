/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the pages of a file in the page cache. */
#ifndef PENSTOCK_CLI_PAGE_CACHE_H
#define PENSTOCK_CLI_PAGE_CACHE_H

#include <stdint.h>

/* Returns the number of cached pages in the first `length` bytes of the file. If `length` is 0,
 * counts the whole file. Returns -1 if the kernel or the file system does not report the number. */
int64_t cached_pages(int fd, uint64_t length);

#endif
