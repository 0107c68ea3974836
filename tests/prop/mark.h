/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds out whether the kernel has marked a file whose cached bytes may be stale. It does so
 * when a direct write could not drop a dirty page from the page cache (mm/filemap.c,
 * dio_warn_stale_pagecache). Buffered reads then return old bytes, and the next fsync by any
 * process fails with EIO. The property tests include it. It must never wait for the drive.
 */
#ifndef PENSTOCK_TEST_MARK_H
#define PENSTOCK_TEST_MARK_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>

/* Reports whether the mark was set since `fd` was opened, or since the last call. The range is
 * beyond the end of every file, so the call waits for no write. */
static inline bool test_marked(int fd)
{
	return sync_file_range(fd, (off_t)1 << 42, 1, SYNC_FILE_RANGE_WAIT_BEFORE) && errno == EIO;
}

#endif
