/* SPDX-License-Identifier: Apache-2.0 */
/* Implements device_dma.h by the function tables of devices. */
#include "core/base/device_dma.h"

uint64_t pst_device_serial(const struct penstock_device *dev)
{
	return dev->serial;
}

int pst_device_dma_buf(struct penstock_device *dev, void *ptr, size_t len, int *fd, uint64_t *off)
{
	struct pst_err err;

	if (!dev->ops->dma_buf)
		return pst_fail(NULL, PENSTOCK_WHY_UNSUPPORTED, "%s has no dma-buf", dev->name);
	return dev->ops->dma_buf(dev, ptr, len, fd, off, &err) ? pst_err_publish(&err) : 0;
}

int pst_device_order_writes(struct penstock_device *dev)
{
	struct pst_err err;

	return dev->ops->order_writes && dev->ops->order_writes(dev, &err) ? pst_err_publish(&err)
									   : 0;
}
