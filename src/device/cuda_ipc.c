/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory between processes of one machine: the driver's handle of the
 * allocation, and where in it the exported piece lies. The importer checks that it
 * is the same GPU before it asks the driver.
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
	struct pst_cu_ctx *ctx;
	enum pst_cu_result rc;
	pst_cu_ptr base = 0;
	size_t whole = 0;
	bool in;
	int ret = pst_cuda_retain(c, &ctx, err);

	if (ret)
		return ret;
	if (!c->api->cuIpcGetMemHandle)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED, "the driver exports no memory");
	in = pst_cuda_enter(c->api, ctx);
	rc = c->api->cuMemGetAddressRange(&base, &whole, (uintptr_t)ptr);
	if (rc == PST_CU_OK)
		rc = c->api->cuIpcGetMemHandle(&ticket.handle, base);
	pst_cuda_leave(c->api, in);
	if (rc != PST_CU_OK)
		return pst_cuda_fail(err, rc, "cuIpcGetMemHandle");
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

int pst_cuda_import(struct penstock_device *dev, const struct penstock_export *exported, void **out,
		    struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	enum pst_cu_result rc = PST_CU_OK;
	struct pst_cu_ctx *ctx;
	struct ticket ticket;
	pst_cu_ptr base = 0;
	int i, ret = pst_cuda_retain(c, &ctx, err);
	bool in;

	if (ret)
		return ret;
	memcpy(&ticket, exported->bytes, sizeof(ticket));
	if (ticket.magic != MAGIC || ticket.version != VERSION)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "not an export of this version");
	if (memcmp(ticket.uuid, c->uuid, sizeof(c->uuid)) != 0)
		return pst_fail_errno(err, EXDEV, PENSTOCK_WHY_NO_DEVICE,
				      "the memory lies on another GPU than %s", dev->name);
	if (!c->api->cuIpcOpenMemHandle)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED, "the driver imports no memory");
	in = pst_cuda_enter(c->api, ctx);
	pthread_mutex_lock(&c->lock);
	i = find(c, 0);
	if (i >= 0)
		rc = c->api->cuIpcOpenMemHandle(&base, ticket.handle, PST_CU_IPC_LAZY_PEER);
	if (i >= 0 && rc == PST_CU_OK) {
		c->imports[i].base = base;
		c->imports[i].ptr = base + ticket.offset;
		*out = (void *)(uintptr_t)c->imports[i].ptr;
	}
	pthread_mutex_unlock(&c->lock);
	pst_cuda_leave(c->api, in);
	if (i < 0)
		return pst_fail(err, PENSTOCK_WHY_FULL, "%d imports are open",
				PST_CUDA_IMPORTS_MAX);
	return rc == PST_CU_OK ? 0 : pst_cuda_fail(err, rc, "cuIpcOpenMemHandle");
}

int pst_cuda_unimport(struct pst_cuda_device *c, void *ptr, struct pst_err *err)
{
	struct pst_cu_ctx *ctx = atomic_load(&c->ctx);
	enum pst_cu_result rc = PST_CU_OK;
	bool in;
	int i;

	in = pst_cuda_enter(c->api, ctx);
	pthread_mutex_lock(&c->lock);
	i = find(c, (uintptr_t)ptr);
	if (i >= 0) {
		rc = c->api->cuIpcCloseMemHandle(c->imports[i].base);
		c->imports[i].base = c->imports[i].ptr = 0;
	}
	pthread_mutex_unlock(&c->lock);
	pst_cuda_leave(c->api, in);
	if (rc != PST_CU_OK)
		return pst_cuda_fail(err, rc, "cuIpcCloseMemHandle");
	return i >= 0;
}
