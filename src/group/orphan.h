/* SPDX-License-Identifier: Apache-2.0 */
/* Cleans up reads that are still in flight when a group's load fails. */
#ifndef PST_GROUP_ORPHAN_H
#define PST_GROUP_ORPHAN_H

#include "weights/model.h"

/*
 * Takes over a queue that has reads from files of `w` in flight, and the memory that they write to:
 * `len` bytes at `ptr`. The memory is mapped host memory if `mapped`, else memory of the device
 * `dev`. When the reads have completed, the queue is closed and the memory is freed. Does not wait,
 * unless no thread can be started.
 */
void pst_orphan_adopt(struct penstock_queue *q, struct penstock_weights *w,
		      struct penstock_device *dev, void *ptr, size_t len, bool mapped);

#endif
