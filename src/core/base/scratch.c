/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Provides device memory for test transfers, and finds blocks of a file that contain written bytes:
 * see scratch.h. Called by canary.c, and by the probes of paths while the library examines a pair
 * of storage and device. These functions must never touch the memory of a request.
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

/* Frees the memory, unless a CUDA stream waits for a request of this library. Freeing waits for all
 * streams of the device, so in that case the function keeps the memory for the next test transfer.
 * The last close of the device frees the kept memory. */
void pst_scratch_put(struct penstock_device *dev, void *mem)
{
	void *none = NULL;

	if (!pst_device_sync_begin(dev)) {
		if (atomic_compare_exchange_strong(&dev->scratch, &none, mem))
			return;
		/* Only one piece of memory can be kept, and the device already has one. So wait
		 * until no stream waits for a request, and free this memory. */
		pst_device_sync_await(dev);
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
