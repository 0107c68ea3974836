/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds out whether the kernel has marked a file because its cached bytes may be stale. The
 * kernel does that when a direct write could not drop a dirty page from the page cache
 * (mm/filemap.c, dio_warn_stale_pagecache). After that, buffered reads return old bytes, and
 * the next fsync by any process fails with EIO. The property tests include this file. It must
 * never wait for the drive.
 */
#ifndef PENSTOCK_TEST_MARK_H
#define PENSTOCK_TEST_MARK_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>

/* Reports whether the file was marked since `fd` was opened, or since the last call. The function
 * syncs a range beyond the end of every file, so it waits for no write. */
static inline bool test_marked(int fd)
{
	return sync_file_range(fd, (off_t)1 << 42, 1, SYNC_FILE_RANGE_WAIT_BEFORE) && errno == EIO;
}

#endif
