/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resources for a test transfer: a piece of device memory, and blocks of the storage that contain
 * written bytes. The library makes test transfers to find out which paths can be used (path
 * probes), and to compare the delivered bytes with the stored ones (canaries).
 */
#ifndef PST_CORE_SCRATCH_H
#define PST_CORE_SCRATCH_H

#include "core/ops.h"

#define PST_SCRATCH_BYTES (64u << 10)

/* Gets PST_SCRATCH_BYTES of device memory, with undefined contents. */
int pst_scratch_get(struct penstock_device *dev, void **out, struct pst_err *err);
/* Frees the memory. If a CUDA stream waits for a request of this library, keeps the memory for the
 * next test transfer, because freeing would wait for the stream. */
void pst_scratch_put(struct penstock_device *dev, void *mem);

/*
 * Finds whole blocks of `align` bytes, at or after offset *off, that are inside an extent of
 * written bytes. Sets *off to the first block and *len to the length of the blocks, at most `max`.
 * Returns 0, or -ENODATA if there are no such blocks.
 */
int pst_written_blocks(struct penstock_storage *st, uint64_t align, uint64_t max, uint64_t *off,
		       uint64_t *len);

#endif
