/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Canaries: tests of direct paths on known bytes. A direct transfer can report success and deliver
 * nothing (observed with an IOMMU between drive and device). So the library tests such a path
 * before it relies on it. A canary read works in four steps: it reads written blocks through host
 * memory, fills the destination with their complement, reads the blocks directly, and compares
 * every word. It does so for each drive of the storage. After a direct write, the library reads the
 * bytes back instead. Equal bytes prove that the transfer worked, but not which memory it went
 * through: the path's probe must have established that.
 */
#ifndef PST_CORE_CANARY_H
#define PST_CORE_CANARY_H

#include "core/request/plan.h"

/* Tests path `index` of a read route with a transfer into memory that the library allocates, and
 * sets route->paths[index].proven. If the test fails, the path becomes unusable, with the reason in
 * route->paths[index].err. */
void pst_canary_read(struct pst_route *route, unsigned index);

/* Reads back the bytes of a completed write chunk and compares them with the caller's memory. Skips
 * this if earlier chunks of the path have been read back correctly from all drives of the chunk.
 * Returns 0 if the bytes are equal or the check is skipped. */
int pst_canary_write(struct pst_chunk *chunk);

#endif
