/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Has the kernel marked a file as one whose bytes may be wrong? It does when a page in
 * the cache was dirty that a direct write should have dropped (mm/filemap.c,
 * dio_warn_stale_pagecache): what reads through the cache then gets old bytes, and the
 * next fsync of anybody says EIO. Included by the property tests. It must never wait for
 * the drive.
 */
#ifndef PENSTOCK_TEST_MARK_H
#define PENSTOCK_TEST_MARK_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>

/* Since fd was opened, or was asked last. Where no file has bytes nothing is waited for. */
static inline bool test_marked(int fd)
{
	return sync_file_range(fd, (off_t)1 << 42, 1, SYNC_FILE_RANGE_WAIT_BEFORE) && errno == EIO;
}

#endif
