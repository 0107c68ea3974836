/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Canaries: tests of direct paths on known bytes. A direct transfer can report success and
 * deliver nothing (seen with an IOMMU between drive and device), so core tests a path before it
 * relies on it. A canary read reads written blocks through host memory, fills the destination
 * with their complement, reads them directly and compares every word, once for each drive.
 * Writes are read back instead. Equal bytes prove the transfer but not its route, so the path's
 * probe must have passed as well.
 */
#ifndef PST_CORE_CANARY_H
#define PST_CORE_CANARY_H

#include "core/request/plan.h"

/* Tests path `index` of a read route on scratch memory, and sets route->paths[index].proven. A path
 * that fails becomes unusable, with the reason in its err. */
void pst_canary_read(struct pst_route *route, unsigned index);

/* Reads back the bytes of a completed write chunk, unless earlier chunks have proven the path for
 * all drives of the chunk. 0: the bytes arrived. */
int pst_canary_write(struct pst_chunk *chunk);

#endif
