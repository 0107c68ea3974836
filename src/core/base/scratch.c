/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scratch memory and written blocks for test transfers: see scratch.h. canary.c and probes of
 * paths call it when a route is made. It must never touch the caller's memory.
 */
#include "core/base/scratch.h"

#include <errno.h>
#include <stdatomic.h>

#include "core/base/device_sync.h"

int pst_scratch_get(struct penstock_device *dev, void **out, struct pst_err *err)
{
	*out = atomic_exchange(&dev->scratch, NULL);
	return *out ? 0 : dev->ops->alloc(dev, PST_SCRATCH_BYTES, out, err);
}

/* Frees the memory, unless a stream waits, because freeing would wait for all streams. It then
 * keeps the memory for the next test, and the device's last close frees it. */
void pst_scratch_put(struct penstock_device *dev, void *mem)
{
	void *none = NULL;

	if (!pst_device_sync_begin(dev)) {
		if (atomic_compare_exchange_strong(&dev->scratch, &none, mem))
			return;
		pst_device_sync_await(dev); /* another test's memory is kept already */
	}
	dev->ops->free(dev, mem, NULL);
	pst_device_sync_end(dev);
}

int pst_written_blocks(struct penstock_storage *st, uint64_t align, uint64_t max, uint64_t *off,
		       uint64_t *len)
{
	uint64_t at = *off, run = 0;

	while (st->ops->written && !st->ops->written(st, &at, &run)) {
		uint64_t from = (at + align - 1) / align * align, to = (at + run) / align * align;

		if (from < to) {
			*off = from;
			*len = to - from < max ? to - from : max;
			return 0;
		}
		at += run;
	}
	return -ENODATA;
}
