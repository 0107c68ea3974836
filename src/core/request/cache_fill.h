/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cache fills: which cached bytes of a storage are in the page cache only because this process
 * reads the storage. A read through the page cache makes the kernel read ahead. So the next chunks
 * find their bytes cached, although the drive has just written these bytes to host memory for the
 * same read. The report must count them as DRAM passes. Called by claim.c for each chunk that reads
 * or writes through the page cache.
 */
#ifndef PST_CORE_CACHE_FILL_H
#define PST_CORE_CACHE_FILL_H

#include "core/ops.h"

/* Opens the storage's records of the reads that have filled the page cache. The storage's pointer
 * to them stays NULL if the storage cannot report residency, or if there is no memory for them. */
void pst_cache_fill_open(struct penstock_storage *st);
void pst_cache_fill_close(struct penstock_storage *st);

/*
 * Records that a chunk reads [off, off + len), or writes it through the page cache. `found` is the
 * residency that the storage has reported for these bytes; PST_WARM for a write. Returns whether
 * the read fills the page cache: the bytes are not cached, or most of them were not cached before
 * this process began to read near them, and this is their first read.
 */
bool pst_cache_fill_note(struct penstock_storage *st, uint64_t off, uint64_t len,
			 enum pst_residency found);

#endif
