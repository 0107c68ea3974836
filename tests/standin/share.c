/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the sharing of device memory between processes. An IPC handle is opened through the
 * exporter's descriptor in /proc, so that nothing remains if either process is killed. The
 * descriptor of a range of device memory is a memfd, whereas the real driver returns a dma-buf. The
 * stand-in returns this descriptor only if PENSTOCK_STANDIN_DMABUF is set.
 */
#include "standin.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAGIC 0x7065327374616e64ULL

struct handle {
	uint64_t magic;
	int pid, fd, dev, zero;
	uint64_t block_len, offset, len, id, block_id;
};

_Static_assert(sizeof(struct handle) <= sizeof(struct pst_cu_ipc_mem), "the handle is 64 bytes");

EXPORT enum pst_cu_result cuIpcGetMemHandle(struct pst_cu_ipc_mem *out, pst_cu_ptr dev)
{
	struct handle h = {.magic = MAGIC};
	const struct range *r;

	ENTER(cuIpcGetMemHandle, NEED_CTX);
	if (!standin.ipc)
		return standin_refuse(PST_CU_NOT_SUPPORTED,
				      "sharing between processes is not supported");
	lock();
	r = range_find(dev);
	if (r && r->kind == RANGE_DEVICE) {
		h.pid = getpid();
		h.fd = r->block->fd;
		h.dev = r->dev;
		h.block_len = r->block->len;
		h.offset = r->start - r->map_start;
		h.len = r->len;
		h.id = r->id;
		h.block_id = r->block_id;
	}
	unlock();
	if (!out || !h.pid)
		return standin_refuse(PST_CU_INVALID_VALUE, "%llx cannot be shared", dev);
	memset(out, 0, sizeof(*out));
	memcpy(out, &h, sizeof(h));
	return PST_CU_OK;
}

static struct range *ipc_range_find(const struct handle *h)
{
	for (size_t i = 0; i < standin.range_count; i++)
		if (standin.ranges[i]->kind == RANGE_IPC && standin.ranges[i]->id == h->id &&
		    standin.ranges[i]->exporter == h->pid)
			return standin.ranges[i];
	return NULL;
}

/* Maps the memory block of the process that exported the handle. Takes ownership of `fd`. */
static struct range *ipc_range_map(const struct handle *h, int fd, struct pst_cu_ctx *ctx)
{
	struct block *b = block_adopt(h->dev, fd, h->block_len);
	struct span *span;
	struct range *r = NULL;

	if (!b) {
		close(fd);
		return NULL;
	}
	span = span_alloc(h->dev, b->len, BLOCK_SIZE);
	if (span)
		r = range_add(RANGE_IPC, span->start + h->offset, h->len);
	if (!r) {
		block_put(b);
		return NULL;
	}
	r->ctx = ctx;
	r->dev = h->dev;
	r->block = b;
	r->id = h->id;
	r->exporter = h->pid;
	r->block_id = h->block_id;
	r->map_start = span->start;
	r->map_len = b->len;
	r->alias = b->alias + h->offset;
	return r;
}

static bool handle_fits(const struct handle *h)
{
	return h->magic == MAGIC && h->dev >= 0 && h->dev < standin.device_count && h->len &&
	       h->offset < h->block_len && h->len <= h->block_len - h->offset;
}

EXPORT enum pst_cu_result cuIpcOpenMemHandle_v2(pst_cu_ptr *dev, struct pst_cu_ipc_mem raw,
						unsigned int flags)
{
	struct handle h;
	char path[64];
	struct range *r;
	int fd;

	ENTER(cuIpcOpenMemHandle_v2, NEED_CTX);
	memcpy(&h, &raw, sizeof(h));
	if (!dev || flags != PST_CU_IPC_LAZY_PEER || !handle_fits(&h))
		return standin_refuse(PST_CU_INVALID_VALUE, "not a handle, or flags %u", flags);
	if (h.pid == getpid())
		return standin_refuse(PST_CU_INVALID_CONTEXT,
				      "opened in the process that exported it");
	lock();
	r = ipc_range_find(&h);
	if (!r) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", h.pid, h.fd);
		fd = open(path, O_RDWR | O_CLOEXEC);
		r = fd < 0 ? NULL : ipc_range_map(&h, fd, ctx);
	}
	if (r) {
		r->opens++;
		standin.live.ipc_opens++;
		*dev = r->start;
	}
	unlock();
	return r ? PST_CU_OK : standin_refuse(PST_CU_INVALID_VALUE, "the exporter is gone");
}

EXPORT enum pst_cu_result cuIpcCloseMemHandle(pst_cu_ptr dev)
{
	struct range *r;

	ENTER(cuIpcCloseMemHandle, NEED_INIT | NEED_EVEN_BROKEN);
	lock();
	r = range_find(dev);
	if (!r || r->kind != RANGE_IPC || r->start != dev) {
		unlock();
		return standin_refuse(PST_CU_INVALID_VALUE, "%llx was not opened", dev);
	}
	ctx_idle(r->ctx);
	r->opens--;
	standin.live.ipc_opens--;
	if (!r->opens) {
		/* mem_free_locked subtracts 1 from live.allocs, in which an opened IPC handle is
		 * not counted. So this line adds 1 before. */
		standin.live.allocs++;
		mem_free_locked(r);
	}
	unlock();
	return standin_leave(ctx);
}

EXPORT enum pst_cu_result cuMemGetHandleForAddressRange(void *handle, pst_cu_ptr dev, size_t len,
							enum pst_cu_range_handle type,
							unsigned long long flags)
{
	const struct range *r;
	int fd = -1;

	ENTER(cuMemGetHandleForAddressRange, NEED_CTX);
	if (!standin.dmabuf)
		return standin_refuse(PST_CU_NOT_SUPPORTED, "dma-buf is not supported");
	lock();
	r = range_find(dev);
	if (handle && type == PST_CU_RANGE_DMA_BUF_FD && flags <= PST_CU_RANGE_FLAG_PCIE && len &&
	    dev % PAGE == 0 && len % PAGE == 0 && r && r->block && dev + len <= r->start + r->len)
		fd = fcntl(r->block->fd, F_DUPFD_CLOEXEC, 3);
	unlock();
	if (fd < 0)
		return standin_refuse(PST_CU_INVALID_VALUE, "a descriptor for %zu bytes at %llx",
				      len, dev);
	memcpy(handle, &fd, sizeof(fd));
	return PST_CU_OK;
}
