/* SPDX-License-Identifier: Apache-2.0 */
/* Queries the cached pages of a file. */
#ifndef PENSTOCK_CLI_PAGE_CACHE_H
#define PENSTOCK_CLI_PAGE_CACHE_H

#include <stdint.h>

/* Returns the number of cached pages in the first `length` bytes (0: the whole file), or -1 if
 * the kernel or the file system does not report it. */
int64_t cached_pages(int fd, uint64_t length);

#endif
