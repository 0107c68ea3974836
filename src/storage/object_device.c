/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements object_device.h with the function tables of devices. The functions run on worker
 * threads ("lanes"), with these exceptions: order_writes runs on the thread that releases a window,
 * nic_distance and nic_is_up on the thread that opens a window, and nic_find on the thread that
 * first needs a client.
 */
#include "storage/object_device.h"

#include "core/base/device_dma.h"
#include "core/machine/nic.h"
#include "core/ops.h"

static int device_alloc(struct penstock_device *dev, size_t len, void **out)
{
	struct pst_err err;

	return dev->ops->alloc(dev, len, out, &err) ? pst_err_publish(&err) : 0;
}

static int device_free(struct penstock_device *dev, void *ptr)
{
	struct pst_err err;

	return dev->ops->free(dev, ptr, &err) ? pst_err_publish(&err) : 0;
}

static int device_export(struct penstock_device *dev, void *ptr, size_t len,
			 struct penstock_export *out)
{
	struct pst_err err;

	return dev->ops->export_memory(dev, ptr, len, out, &err) ? pst_err_publish(&err) : 0;
}

const struct pst_wire_devices pst_object_device_table = {
	.alloc = device_alloc,
	.free = device_free,
	.serial = pst_device_serial,
	.export_memory = device_export,
	.dma_buf = pst_device_dma_buf,
	.order_writes = pst_device_order_writes,
	.nic_find = pst_nic_find,
	.nic_distance = pst_nic_distance,
	.nic_is_up = pst_nic_is_up,
};
