/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Canaries: tests of direct paths on known bytes. A direct transfer can report success and deliver
 * nothing (seen with an IOMMU between drive and device), so core tests a path before it relies on
 * it. A canary read reads written blocks through host memory, fills the destination with their
 * complement, reads the blocks directly and compares every word. It does so once for each drive.
 * Writes are read back instead. Equal bytes prove that the transfer worked, but not which memory it
 * went through: the path's probe must have established that.
 */
#ifndef PST_CORE_CANARY_H
#define PST_CORE_CANARY_H

#include "core/request/plan.h"

/* Tests path `index` of a read route on scratch memory, and sets route->paths[index].proven. If
 * the test fails, the path becomes unusable, with the reason in route->paths[index].err. */
void pst_canary_read(struct pst_route *route, unsigned index);

/* Reads back the bytes of a completed write chunk and compares them with the caller's memory,
 * unless earlier chunks have proven the path for all drives of the chunk. Returns 0 if the bytes
 * are equal or the path was proven. */
int pst_canary_write(struct pst_chunk *chunk);

#endif
