/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions for devices that the data plane of S3 over RDMA needs, and that the public API does not
 * have. The tables of type struct pst_wire_devices in object/memory.c and storage/object_device.c
 * contain them. An error is also left in penstock_errmsg().
 */
#ifndef PST_CORE_DEVICE_DMA_H
#define PST_CORE_DEVICE_DMA_H

#include "core/ops.h"

uint64_t pst_device_serial(const struct penstock_device *dev);
int pst_device_dma_buf(struct penstock_device *dev, void *ptr, size_t len, int *fd, uint64_t *off);
int pst_device_order_writes(struct penstock_device *dev);

#endif
