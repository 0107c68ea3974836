/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a test transfer needs: a piece of device memory, and blocks of the storage that hold
 * written bytes. For canaries and for path probes.
 */
#ifndef PST_CORE_SCRATCH_H
#define PST_CORE_SCRATCH_H

#include "core/ops.h"

#define PST_SCRATCH_BYTES (64u << 10)

/* Returns PST_SCRATCH_BYTES of device memory, whose contents are undefined. */
int pst_scratch_get(struct penstock_device *dev, void **out, struct pst_err *err);
/* Frees it, or keeps it for the next caller if nothing may be freed at this time. */
void pst_scratch_put(struct penstock_device *dev, void *mem);

/*
 * Finds whole blocks of `align` bytes in a written extent at or after *off: *off and *len, at
 * most `max` bytes. -ENODATA: there are none.
 */
int pst_written_blocks(struct penstock_storage *st, uint64_t align, uint64_t max, uint64_t *off,
		       uint64_t *len);

#endif
