/* SPDX-License-Identifier: Apache-2.0 */
/* Reads that are still in flight when a group's load fails. */
#ifndef PST_GROUP_ORPHAN_H
#define PST_GROUP_ORPHAN_H

#include "weights/model.h"

/*
 * Takes over a queue whose reads, from files of `w`, are still in flight, and the memory that
 * they write: `len` bytes at `ptr`, which are mapped host memory or device memory of `dev`. When
 * the reads have completed it closes the queue and frees the memory. Does not wait, unless no
 * thread can be started.
 */
void pst_orphan_adopt(struct penstock_queue *q, struct penstock_weights *w,
		      struct penstock_device *dev, void *ptr, size_t len, bool mapped);

#endif
