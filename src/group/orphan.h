/* SPDX-License-Identifier: Apache-2.0 */
/* Cleans up reads that are still in flight when a group's load fails. */
#ifndef PST_GROUP_ORPHAN_H
#define PST_GROUP_ORPHAN_H

#include "weights/model.h"

/*
 * Takes over a queue with reads from files of `w` in flight, and the memory that these reads
 * write to: `len` bytes at `ptr`. The memory is mapped host memory if `mapped` is true, else
 * memory of the device `dev`. A thread waits for the reads to complete, closes the queue and
 * frees the memory. If this thread cannot be started, the function itself waits.
 */
void pst_orphan_adopt(struct penstock_queue *q, struct penstock_weights *w,
		      struct penstock_device *dev, void *ptr, size_t len, bool mapped);

#endif
