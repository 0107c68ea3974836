/* SPDX-License-Identifier: Apache-2.0 */
/* Synchronous transfers, which complete before the call returns. */
#ifndef SHIM_SYNC_H
#define SHIM_SYNC_H

#include <stddef.h>
#include <sys/types.h>

#include "penstock.h"

/* Reads or writes one range. Returns the same as cuFileRead: the number of bytes, -1 with errno
 * set, or a negated cuFile code. */
ssize_t shim_move_sync(void *fh, const void *base, size_t len, off_t file_off, off_t base_off,
		       enum penstock_op op);

#endif
