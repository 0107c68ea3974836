/* SPDX-License-Identifier: Apache-2.0 */
/* Counts how many pages of a file are in the kernel's page cache. */
#ifndef PENSTOCK_CLI_PAGE_CACHE_H
#define PENSTOCK_CLI_PAGE_CACHE_H

#include <stdint.h>

/* Returns how many pages of the first `length` bytes of the file are in the page cache. If `length`
 * is 0, counts the whole file. Returns -1 if the kernel or the file system reports no number. */
int64_t cached_pages(int fd, uint64_t length);

#endif
