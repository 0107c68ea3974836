/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds out which bytes are in the page cache only because this process reads the storage. A read
 * through the page cache makes the kernel read ahead. So the next chunks find their bytes cached,
 * although the drive has just written these bytes to host memory for the same read. The request's
 * report must count this writing as a DRAM pass. Called by lane/claim.c for each chunk that reads
 * or writes through the page cache.
 */
#ifndef PST_CORE_CACHE_FILL_H
#define PST_CORE_CACHE_FILL_H

#include "core/ops.h"

/* Allocates st->cache_fill, the records of reads that have filled the page cache. The pointer stays
 * NULL if the storage cannot report whether bytes are cached, or if there is no memory for the
 * records. */
void pst_cache_fill_open(struct penstock_storage *st);
void pst_cache_fill_close(struct penstock_storage *st);

/*
 * Records that a chunk reads [off, off + len), or writes it through the page cache. `found` shows
 * whether the storage has reported these bytes as cached; it is PST_WARM for a write. Returns
 * whether the read brings the bytes into the page cache. That is the case if they are not cached.
 * It is also the case if this is their first read, and most of them were not cached before this
 * process began to read near them.
 */
bool pst_cache_fill_note(struct penstock_storage *st, uint64_t off, uint64_t len,
			 enum pst_residency found);

#endif
