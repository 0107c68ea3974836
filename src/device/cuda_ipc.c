/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory between processes of one machine: the driver's handle of the
 * allocation, and where in it the exported piece lies. The importer checks that it
 * is the same GPU, or one that it reaches, before it asks the driver: no context is made
 * on the exporter's.
 */
#include <string.h>
#include <unistd.h>

#include "device/cuda.h"

#define MAGIC 0x70637564u
#define VERSION 1u

struct ticket {
	uint32_t magic, version;
	uint32_t pid, spare;
	unsigned char uuid[16];
	uint64_t offset, len;
	struct pst_cu_ipc_mem handle;
};
_Static_assert(sizeof(struct ticket) <= sizeof(((struct penstock_export *)0)->bytes),
	       "a ticket fits");

int pst_cuda_export(struct penstock_device *dev, void *ptr, size_t len, struct penstock_export *out,
		    struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	struct ticket ticket = {.magic = MAGIC, .version = VERSION, .pid = (uint32_t)getpid()};
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
		rc = c->api->cuIpcGetMemHandle(&ticket.handle, base);
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
	ticket.offset = (uintptr_t)ptr - base;
	ticket.len = len;
	if (len > whole || ticket.offset > whole - len)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"%zu bytes reach past the end of their allocation", len);
	memcpy(ticket.uuid, c->uuid, sizeof(ticket.uuid));
	memcpy(out->bytes, &ticket, sizeof(ticket));
	return 0;
}

static int find(const struct pst_cuda_device *c, pst_cu_ptr ptr)
{
	for (int i = 0; i < PST_CUDA_IMPORTS_MAX; i++)
		if (c->imports[i].ptr == ptr)
			return i;
	return -1;
}

/* Remembers an import; false: the table is full. */
static bool remember(struct pst_cuda_device *c, pst_cu_ptr base, pst_cu_ptr ptr)
{
	int i;

	pthread_mutex_lock(&c->lock);
	i = find(c, 0);
	if (i >= 0) {
		c->imports[i].base = base;
		c->imports[i].ptr = ptr;
	}
	pthread_mutex_unlock(&c->lock);
	return i >= 0;
}

/* The base of what was given out as ptr, which is forgotten; 0: it was not imported. */
static pst_cu_ptr forget(struct pst_cuda_device *c, pst_cu_ptr ptr)
{
	pst_cu_ptr base = 0;
	int i;

	pthread_mutex_lock(&c->lock);
	i = ptr ? find(c, ptr) : -1;
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

/* Whether that GPU is there, and this one reaches its memory. */
static bool reaches(const struct pst_cuda_device *c, const unsigned char *uuid)
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

static int check(const struct pst_cuda_device *c, const struct penstock_device *dev,
		 const struct ticket *ticket, struct pst_err *err)
{
	if (ticket->magic != MAGIC || ticket->version != VERSION)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "not an export of this version");
	if (memcmp(ticket->uuid, c->uuid, sizeof(c->uuid)) != 0 && !reaches(c, ticket->uuid))
		return pst_fail_errno(err, EXDEV, PENSTOCK_WHY_NO_DEVICE,
				      "the memory lies on another GPU than %s, which it does not "
				      "reach",
				      dev->name);
	if (!c->api->cuIpcOpenMemHandle || !c->api->cuIpcCloseMemHandle)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED, "the driver imports no memory");
	return 0;
}

/* In the context: opens the handle and sees that the piece lies within it. */
static int open_piece(struct pst_cuda_device *c, const struct ticket *ticket, pst_cu_ptr *out,
		      struct pst_err *err)
{
	enum pst_cu_result rc;
	pst_cu_ptr base = 0, start = 0;
	size_t whole = 0;
	int ret = 0;

	rc = c->api->cuIpcOpenMemHandle(&base, ticket->handle, PST_CU_IPC_LAZY_PEER);
	if (rc == PST_CU_INVALID_CONTEXT && ticket->pid == (uint32_t)getpid())
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"this process exported the memory itself: "
				"CUDA_ERROR_INVALID_CONTEXT");
	if (rc != PST_CU_OK)
		return pst_cuda_fail(err, rc, "cuIpcOpenMemHandle");
	rc = c->api->cuMemGetAddressRange(&start, &whole, base);
	if (rc != PST_CU_OK)
		ret = pst_cuda_fail(err, rc, "cuMemGetAddressRange");
	else if (ticket->len > whole || ticket->offset > whole - ticket->len)
		ret = pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
			       "the export reaches past the end of its allocation");
	else if (!remember(c, base, base + ticket->offset))
		ret = pst_fail(err, PENSTOCK_WHY_FULL, "%d imports are open", PST_CUDA_IMPORTS_MAX);
	if (ret)
		c->api->cuIpcCloseMemHandle(base);
	else
		*out = base + ticket->offset;
	return ret;
}

int pst_cuda_import(struct penstock_device *dev, const struct penstock_export *exported, void **out,
		    struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	struct ticket ticket;
	pst_cu_ptr ptr = 0;
	struct pst_cuda_scope in;
	int ret;

	memcpy(&ticket, exported->bytes, sizeof(ticket));
	ret = check(c, dev, &ticket, err);
	if (!ret)
		ret = pst_cuda_begin(c, &in, err);
	if (ret)
		return ret;
	ret = open_piece(c, &ticket, &ptr, err);
	pst_cuda_leave(c->api, &in);
	if (!ret)
		*out = (void *)(uintptr_t)ptr;
	return ret;
}

int pst_cuda_unimport(struct pst_cuda_device *c, void *ptr, struct pst_err *err)
{
	pst_cu_ptr base = forget(c, (uintptr_t)ptr);
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
