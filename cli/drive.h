/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out whether the block devices below a file keep its bytes in memory. */
#ifndef PENSTOCK_CLI_DRIVE_H
#define PENSTOCK_CLI_DRIVE_H

#include <stdbool.h>

/* Returns whether a read of the open file that bypasses the file's own page cache can still get the
 * bytes from memory. That is so for a RAM disk, and for a loop device that reads its backing file
 * through the page cache. Returns false if the devices are unknown. */
bool drive_is_memory(int fd);

#endif
