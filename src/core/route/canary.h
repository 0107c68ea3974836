/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The canary: a direct transfer has been seen to report success and deliver nothing (an IOMMU
 * between drive and device). So core tests a direct path on known bytes before it uses it. For
 * reads: read written blocks through host memory, fill the destination with their complement,
 * read them directly, order the writes and compare every word; once for each drive. Writes are
 * read back. Equal bytes prove the transfer, not its route: the path's own probe must have
 * passed as well.
 */
#ifndef PST_CORE_CANARY_H
#define PST_CORE_CANARY_H

#include "core/route/route.h"

/* Tests path `index` of a read route on scratch memory. Sets route->paths[index].proven, or
 * usable = false with the reason. */
void pst_canary_read(struct pst_route *route, unsigned index);

/* Reads back what a write chunk carried, unless earlier chunks have proven the path for all of
 * the chunk's drives. 0: the bytes are the same. */
int pst_canary_write(struct pst_chunk *chunk);

#endif
