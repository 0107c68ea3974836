/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares device memory between processes of one machine, and with the drivers of network cards. An
 * export contains the driver's handle of an allocation, and the position of the exported bytes in
 * this allocation. The importing process first checks that the memory is on its own GPU, or on
 * another GPU that its own GPU can access. The import never makes a context on the exporter's GPU.
 */
#include <string.h>
#include <unistd.h>

#include "device/cuda_ipc.h"

#define EXPORT_MAGIC 0x70637564u
#define EXPORT_VERSION 1u

struct ipc_export {
	uint32_t magic, version;
	uint32_t pid, spare;
	unsigned char uuid[16];
	uint64_t offset, len;
	struct pst_cu_ipc_mem handle;
};
_Static_assert(sizeof(struct ipc_export) <= sizeof(((struct penstock_export *)0)->bytes),
	       "a ticket fits");

int pst_cuda_export(struct penstock_device *dev, void *ptr, size_t len, struct penstock_export *out,
		    struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	struct ipc_export shared = {
		.magic = EXPORT_MAGIC, .version = EXPORT_VERSION, .pid = (uint32_t)getpid()};
	enum pst_cu_result rc;
	pst_cu_ptr base = 0;
	size_t whole = 0;
	struct pst_cuda_scope in;
	bool pooled = false;
	const char *what = "cuMemGetAddressRange";
	int ret;

	if (!c->api->cuIpcGetMemHandle)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED, "the driver exports no memory");
	ret = pst_cuda_begin(c, &in, err);
	if (ret)
		return ret;
	rc = c->api->cuMemGetAddressRange(&base, &whole, (uintptr_t)ptr);
	if (rc == PST_CU_OK) {
		what = "cuIpcGetMemHandle";
		rc = c->api->cuIpcGetMemHandle(&shared.handle, base);
		pooled = rc == PST_CU_INVALID_VALUE;
	}
	pst_cuda_leave(c->api, &in);
	if (pooled)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
				"only whole allocations of cuMemAlloc can be shared, not memory "
				"of a pool, of cuMemCreate, or of another process: "
				"CUDA_ERROR_INVALID_VALUE");
	if (rc != PST_CU_OK)
		return pst_cuda_fail(err, rc, what);
	shared.offset = (uintptr_t)ptr - base;
	shared.len = len;
	if (len > whole || shared.offset > whole - len)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"%zu bytes reach past the end of their allocation", len);
	memcpy(shared.uuid, c->uuid, sizeof(shared.uuid));
	memcpy(out->bytes, &shared, sizeof(shared));
	return 0;
}

static int import_find(const struct pst_cuda_device *c, pst_cu_ptr ptr)
{
	for (int i = 0; i < PST_CUDA_IMPORTS_MAX; i++)
		if (c->imports[i].ptr == ptr)
			return i;
	return -1;
}

/* Adds an import, which is opened memory of another process, to the table of imports. Returns false
 * if the table is full. */
static bool import_add(struct pst_cuda_device *c, pst_cu_ptr base, pst_cu_ptr ptr)
{
	int i;

	pthread_mutex_lock(&c->lock);
	i = import_find(c, 0);
	if (i >= 0) {
		c->imports[i].base = base;
		c->imports[i].ptr = ptr;
	}
	pthread_mutex_unlock(&c->lock);
	return i >= 0;
}

/* Removes the import at address `ptr` from the table. Returns the start address of the imported
 * allocation, or 0 if `ptr` was not imported. */
static pst_cu_ptr import_remove(struct pst_cuda_device *c, pst_cu_ptr ptr)
{
	pst_cu_ptr base = 0;
	int i;

	pthread_mutex_lock(&c->lock);
	i = ptr ? import_find(c, ptr) : -1;
	if (i >= 0) {
		base = c->imports[i].base;
		c->imports[i].base = c->imports[i].ptr = 0;
	}
	pthread_mutex_unlock(&c->lock);
	return base;
}

bool pst_cuda_imported(struct pst_cuda_device *c, pst_cu_ptr base)
{
	bool found = false;

	pthread_mutex_lock(&c->lock);
	for (int i = 0; i < PST_CUDA_IMPORTS_MAX && !found; i++)
		found = c->imports[i].ptr && c->imports[i].base == base;
	pthread_mutex_unlock(&c->lock);
	return found;
}

/* Returns true if a GPU with this uuid exists and the device `c` can access its memory. */
static bool gpu_can_access(const struct pst_cuda_device *c, const unsigned char *uuid)
{
	for (int i = 0; i < c->api->device_count && c->api->cuDeviceGetUuid; i++) {
		struct pst_cu_uuid other;
		int dev, can = 0;

		if (c->api->cuDeviceGet(&dev, i) == PST_CU_OK &&
		    c->api->cuDeviceGetUuid(&other, dev) == PST_CU_OK &&
		    !memcmp(other.bytes, uuid, sizeof(c->uuid)))
			return c->api->cuDeviceCanAccessPeer(&can, c->ordinal, dev) == PST_CU_OK &&
			       can;
	}
	return false;
}

static int export_check(const struct pst_cuda_device *c, const struct penstock_device *dev,
			const struct ipc_export *shared, struct pst_err *err)
{
	if (shared->magic != EXPORT_MAGIC || shared->version != EXPORT_VERSION)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "not an export of this version");
	if (memcmp(shared->uuid, c->uuid, sizeof(c->uuid)) != 0 && !gpu_can_access(c, shared->uuid))
		return pst_fail_errno(err, EXDEV, PENSTOCK_WHY_NO_DEVICE,
				      "the memory is on another GPU, which %s does not reach",
				      dev->name);
	if (!c->api->cuIpcOpenMemHandle || !c->api->cuIpcCloseMemHandle)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED, "the driver imports no memory");
	return 0;
}

/* Opens the exported handle and checks that the exported bytes are within the allocation. The
 * caller has made the context current. */
static int import_open(struct pst_cuda_device *c, const struct ipc_export *shared, pst_cu_ptr *out,
		       struct pst_err *err)
{
	enum pst_cu_result rc;
	pst_cu_ptr base = 0, start = 0;
	size_t whole = 0;
	int ret = 0;

	rc = c->api->cuIpcOpenMemHandle(&base, shared->handle, PST_CU_IPC_LAZY_PEER);
	if (rc == PST_CU_INVALID_CONTEXT && shared->pid == (uint32_t)getpid())
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"this process exported the memory itself: "
				"CUDA_ERROR_INVALID_CONTEXT");
	if (rc != PST_CU_OK)
		return pst_cuda_fail(err, rc, "cuIpcOpenMemHandle");
	rc = c->api->cuMemGetAddressRange(&start, &whole, base);
	if (rc != PST_CU_OK)
		ret = pst_cuda_fail(err, rc, "cuMemGetAddressRange");
	else if (shared->len > whole || shared->offset > whole - shared->len)
		ret = pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
			       "the export reaches past the end of its allocation");
	else if (!import_add(c, base, base + shared->offset))
		ret = pst_fail(err, PENSTOCK_WHY_FULL, "%d imports are open", PST_CUDA_IMPORTS_MAX);
	if (ret)
		c->api->cuIpcCloseMemHandle(base);
	else
		*out = base + shared->offset;
	return ret;
}

int pst_cuda_import(struct penstock_device *dev, const struct penstock_export *exported, void **out,
		    struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	struct ipc_export shared;
	pst_cu_ptr ptr = 0;
	struct pst_cuda_scope in;
	int ret;

	memcpy(&shared, exported->bytes, sizeof(shared));
	ret = export_check(c, dev, &shared, err);
	if (!ret)
		ret = pst_cuda_begin(c, &in, err);
	if (ret)
		return ret;
	ret = import_open(c, &shared, &ptr, err);
	pst_cuda_leave(c->api, &in);
	if (!ret)
		*out = (void *)(uintptr_t)ptr;
	return ret;
}

uint64_t pst_cuda_export_len(const struct penstock_export *exported)
{
	struct ipc_export shared;

	memcpy(&shared, exported->bytes, sizeof(shared));
	return shared.len;
}

int pst_cuda_unimport(struct pst_cuda_device *c, void *ptr, struct pst_err *err)
{
	pst_cu_ptr base = import_remove(c, (uintptr_t)ptr);
	enum pst_cu_result rc;

	if (!base)
		return 0;
	rc = c->api->cuIpcCloseMemHandle(base);
	return rc == PST_CU_OK ? 1 : pst_cuda_fail(err, rc, "cuIpcCloseMemHandle");
}

void pst_cuda_unimport_all(struct pst_cuda_device *c)
{
	for (int i = 0; i < PST_CUDA_IMPORTS_MAX; i++)
		if (c->imports[i].ptr)
			c->api->cuIpcCloseMemHandle(c->imports[i].base);
}

int pst_cuda_dma_buf(struct penstock_device *dev, void *ptr, size_t len, int *fd, uint64_t *off,
		     struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	/* The driver makes a dma-buf only for whole pages of the host's page size, so round the
	 * range. */
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	const pst_cu_ptr from = (uintptr_t)ptr & ~(page - 1);
	const pst_cu_ptr to = ((uintptr_t)ptr + len + page - 1) & ~(page - 1);
	enum pst_cu_result rc;
	struct pst_cuda_scope in;
	int ret, found = -1;

	if (!c->api->cuMemGetHandleForAddressRange)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
				"the driver has no dma-buf: use 515 or later");
	ret = pst_cuda_begin(c, &in, err);
	if (ret)
		return ret;
	rc = c->api->cuMemGetHandleForAddressRange(&found, from, to - from, PST_CU_RANGE_DMA_BUF_FD,
						   0);
	pst_cuda_leave(c->api, &in);
	if (rc != PST_CU_OK)
		return pst_cuda_fail(err, rc, "cuMemGetHandleForAddressRange");
	*fd = found;
	*off = (uintptr_t)ptr - from;
	return 0;
}
