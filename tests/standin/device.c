/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the stand-in's version, error names, devices and device attributes. The attributes
 * are those of an H200 with driver 580, unless a setting changes them. The stand-in must never
 * report a feature that its other files do not implement.
 */
#include "standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERSION 13000

EXPORT enum pst_cu_result cuDriverGetVersion(int *version)
{
	ENTER(cuDriverGetVersion, NEED_NOTHING);
	if (!version)
		return PST_CU_INVALID_VALUE;
	*version = VERSION;
	return PST_CU_OK;
}

static const struct {
	enum pst_cu_result rc;
	const char *name, *text;
} errors[] = {
	{PST_CU_OK, "CUDA_SUCCESS", "no error"},
	{PST_CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{PST_CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{PST_CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{PST_CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{PST_CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{PST_CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access"},
	{PST_CU_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
	{PST_CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{PST_CU_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

EXPORT enum pst_cu_result cuGetErrorName(enum pst_cu_result error, const char **name)
{
	ENTER(cuGetErrorName, NEED_NOTHING);
	for (size_t i = 0; name && i < sizeof(errors) / sizeof(errors[0]); i++) {
		*name = errors[i].name;
		if (errors[i].rc == error)
			return PST_CU_OK;
	}
	if (name)
		*name = NULL;
	return PST_CU_INVALID_VALUE;
}

EXPORT enum pst_cu_result cuGetErrorString(enum pst_cu_result error, const char **text)
{
	ENTER(cuGetErrorString, NEED_NOTHING);
	for (size_t i = 0; text && i < sizeof(errors) / sizeof(errors[0]); i++) {
		*text = errors[i].text;
		if (errors[i].rc == error)
			return PST_CU_OK;
	}
	if (text)
		*text = NULL;
	return PST_CU_INVALID_VALUE;
}

static enum pst_cu_result device_check(int dev)
{
	if (dev < 0 || dev >= standin.device_count)
		return standin_refuse(PST_CU_INVALID_DEVICE, "no device %d", dev);
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuDeviceGetCount(int *count)
{
	ENTER(cuDeviceGetCount, NEED_INIT);
	if (!count)
		return PST_CU_INVALID_VALUE;
	*count = standin.device_count;
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuDeviceGet(int *dev, int ordinal)
{
	ENTER(cuDeviceGet, NEED_INIT);
	if (!dev)
		return PST_CU_INVALID_VALUE;
	if (device_check(ordinal))
		return PST_CU_INVALID_DEVICE;
	*dev = ordinal;
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuDeviceGetName(char *name, int len, int dev)
{
	ENTER(cuDeviceGetName, NEED_INIT);
	if (!name || len < 1)
		return PST_CU_INVALID_VALUE;
	if (device_check(dev))
		return PST_CU_INVALID_DEVICE;
	snprintf(name, (size_t)len, "Penstock stand-in, not a GPU");
	return PST_CU_OK;
}

/* Returns the PCI bus number of a device. The first device has PENSTOCK_STANDIN_PCI_BUS, and
 * each further device has the next number. So a test can match the devices with a recorded /sys
 * tree. */
static unsigned int bus_of(int dev)
{
	return (unsigned int)env_size("PENSTOCK_STANDIN_PCI_BUS", 0x40) + (unsigned int)dev;
}

EXPORT enum pst_cu_result cuDeviceGetPCIBusId(char *bdf, int len, int dev)
{
	ENTER(cuDeviceGetPCIBusId, NEED_INIT);
	if (!bdf || len < 13)
		return PST_CU_INVALID_VALUE;
	if (device_check(dev))
		return PST_CU_INVALID_DEVICE;
	snprintf(bdf, (size_t)len, "0000:%02x:00.0", bus_of(dev) & 0xff);
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuDeviceGetByPCIBusId(int *dev, const char *bdf)
{
	unsigned int domain, bus, slot;

	ENTER(cuDeviceGetByPCIBusId, NEED_INIT);
	if (!dev || !bdf || sscanf(bdf, "%x:%x:%x", &domain, &bus, &slot) != 3)
		return PST_CU_INVALID_VALUE;
	for (int i = 0; i < standin.device_count; i++) {
		if (domain == 0 && bus == bus_of(i) && slot == 0) {
			*dev = i;
			return PST_CU_OK;
		}
	}
	return standin_refuse(PST_CU_INVALID_DEVICE, "no device %s", bdf);
}

EXPORT enum pst_cu_result cuDeviceGetUuid_v2(struct pst_cu_uuid *uuid, int dev)
{
	ENTER(cuDeviceGetUuid_v2, NEED_INIT);
	if (!uuid)
		return PST_CU_INVALID_VALUE;
	if (device_check(dev))
		return PST_CU_INVALID_DEVICE;
	memset(uuid, 0, sizeof(*uuid));
	snprintf(uuid->bytes, sizeof(uuid->bytes), "stand-in %d", dev);
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuDeviceTotalMem_v2(size_t *len, int dev)
{
	ENTER(cuDeviceTotalMem_v2, NEED_INIT);
	if (!len)
		return PST_CU_INVALID_VALUE;
	if (device_check(dev))
		return PST_CU_INVALID_DEVICE;
	*len = standin.devices[dev].mem_total;
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuDeviceCanAccessPeer(int *can, int dev, int peer)
{
	ENTER(cuDeviceCanAccessPeer, NEED_INIT);
	if (!can)
		return PST_CU_INVALID_VALUE;
	if (device_check(dev) || device_check(peer))
		return PST_CU_INVALID_DEVICE;
	*can = dev != peer && standin.peer;
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuDeviceGetP2PAttribute(int *value, enum pst_cu_p2p_attr attr, int src,
						  int dst)
{
	ENTER(cuDeviceGetP2PAttribute, NEED_INIT);
	if (!value)
		return PST_CU_INVALID_VALUE;
	if (device_check(src) || device_check(dst) || src == dst)
		return standin_refuse(PST_CU_INVALID_DEVICE, "devices %d and %d", src, dst);
	if (attr != PST_CU_P2P_ACCESS && attr != PST_CU_P2P_PERFORMANCE_RANK)
		return standin_refuse(PST_CU_INVALID_VALUE, "attribute %d", (int)attr);
	*value = attr == PST_CU_P2P_ACCESS && standin.peer;
	return PST_CU_OK;
}

static int attribute_value(enum pst_cu_dev_attr attr, int dev, int *value)
{
	switch ((int)attr) {
	case PST_CU_DEV_PCI_BUS_ID:
		*value = (int)bus_of(dev);
		return 0;
	case PST_CU_DEV_INTEGRATED:
	case PST_CU_DEV_PCI_DEVICE_ID:
	case PST_CU_DEV_PCI_DOMAIN_ID:
	case PST_CU_DEV_PAGEABLE_ACCESS:
	case PST_CU_DEV_CAN_FLUSH_REMOTE:
	case PST_CU_DEV_CC_MINOR:
	case PST_CU_DEV_HOST_NUMA_ID:
		*value = 0;
		return 0;
	case PST_CU_DEV_CAN_MAP_HOST:
	case PST_CU_DEV_UNIFIED_ADDRESSING:
	case PST_CU_DEV_HOST_PTR_IS_DEV_PTR:
	case PST_CU_DEV_HOST_REGISTER:
	case PST_CU_DEV_VMM:
	case PST_CU_DEV_HANDLE_FD:
	case PST_CU_DEV_RDMA_FLUSH_OPTIONS:
		*value = 1;
		return 0;
	/* These attributes are 0, because the stand-in's memory has no address on a PCI bus. */
	case PST_CU_DEV_RDMA:
	case PST_CU_DEV_RDMA_WITH_VMM:
		*value = 0;
		return 0;
	case PST_CU_DEV_COPY_ENGINES:
		*value = 3;
		return 0;
	case PST_CU_DEV_CC_MAJOR:
		*value = 9;
		return 0;
	case PST_CU_DEV_READ_ONLY_REGISTER:
		*value = standin.read_only;
		return 0;
	case PST_CU_DEV_RDMA_ORDERING:
		*value = 100;
		return 0;
	case PST_CU_DEV_MEMOPS_64:
	case PST_CU_DEV_WAIT_VALUE_NOR:
		*value = standin.memops;
		return 0;
	case PST_CU_DEV_DMA_BUF:
		*value = standin.dmabuf;
		return 0;
	case PST_CU_DEV_NUMA_ID:
		*value = -1;
		return 0;
	}
	return -1;
}

EXPORT enum pst_cu_result cuDeviceGetAttribute(int *value, enum pst_cu_dev_attr attr, int dev)
{
	ENTER(cuDeviceGetAttribute, NEED_INIT);
	if (!value)
		return PST_CU_INVALID_VALUE;
	if (device_check(dev))
		return PST_CU_INVALID_DEVICE;
	if (attribute_value(attr, dev, value) < 0)
		return standin_refuse(PST_CU_INVALID_VALUE, "device attribute %d", (int)attr);
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuFlushGPUDirectRDMAWrites(enum pst_cu_flush_target target,
						     enum pst_cu_flush_scope scope)
{
	ENTER(cuFlushGPUDirectRDMAWrites, NEED_CTX);
	if (target != PST_CU_FLUSH_CURRENT_CTX ||
	    (scope != PST_CU_FLUSH_TO_OWNER && scope != PST_CU_FLUSH_TO_ALL))
		return PST_CU_INVALID_VALUE;
	return PST_CU_OK;
}
