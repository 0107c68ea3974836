/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the stand-in's allocations of device memory and host memory. As in the real driver, a
 * call that frees memory waits until the whole context is idle. If a stream waits for a thread,
 * and that thread frees memory, the thread hangs, here as in the real driver.
 */
#include "standin.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The largest allocation, in bytes, that shares a block of memory with other allocations, and the
 * alignment of such an allocation. */
#define SMALL_MAX ((size_t)1 << 20)
#define SMALL_ALIGN ((size_t)512)

static size_t round_up(size_t len, size_t to)
{
	return (len + to - 1) / to * to;
}

/* --- device memory --- */

/* Creates a block of device memory and reserves addresses for it. The caller owns the block's
 * reference. */
static struct block *block_place(int dev, size_t len, pst_cu_ptr *start)
{
	struct span *span;
	struct block *b;

	if (len > SIZE_MAX - BLOCK_SIZE)
		return NULL;
	len = round_up(len, BLOCK_SIZE);
	b = block_make(dev, len);
	span = b ? span_alloc(dev, len, BLOCK_SIZE) : NULL;
	if (span)
		*start = span->start;
	else if (b)
		block_put(b);
	return span ? b : NULL;
}

static struct block *block_place_small(int dev, size_t len, pst_cu_ptr *start)
{
	struct device *d = &standin.devices[dev];
	struct block *b = d->small;

	if (!b || b->used + len > b->len) {
		b = block_place(dev, BLOCK_SIZE, &d->small_start);
		if (!b)
			return NULL;
		/* the block starts without a reference; each allocation inside it adds one */
		b->refs = 0;
		d->small = b;
	}
	*start = d->small_start + b->used;
	b->used += round_up(len, SMALL_ALIGN);
	b->refs++;
	return b;
}

static enum pst_cu_result range_alloc(enum range_kind kind, struct pst_cu_ctx *ctx, size_t len,
				      pst_cu_ptr *out)
{
	struct block *b = NULL;
	struct range *r = NULL;
	pst_cu_ptr start;

	if (!out || !len)
		return standin_refuse(PST_CU_INVALID_VALUE, "an allocation of %zu bytes", len);
	lock();
	if (kind == RANGE_DEVICE && len <= SMALL_MAX)
		b = block_place_small(ctx->dev, len, &start);
	else
		b = block_place(ctx->dev, len, &start);
	if (b && kind == RANGE_MANAGED) {
		/* Maps managed memory at its device address, because the CPU may access it at
		 * this address. */
		mmap((void *)(uintptr_t)start, b->len, PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_FIXED, b->fd, 0);
	}
	if (b)
		r = range_add(kind, start, len);
	if (r) {
		bool small = b == standin.devices[ctx->dev].small;

		r->ctx = kind == RANGE_POOL ? NULL : ctx;
		r->dev = ctx->dev;
		r->block = b;
		r->block_id = b->id;
		r->map_start = small ? standin.devices[ctx->dev].small_start : start;
		r->map_len = b->len;
		r->alias = b->alias + (start - r->map_start);
		standin.live.allocs++;
		*out = start;
	}
	unlock();
	return r ? PST_CU_OK : standin_refuse(PST_CU_OUT_OF_MEMORY, "%zu bytes", len);
}

/* Frees a range of device memory, and does not wait until the context is idle. The caller holds the
 * lock. */
void mem_free_locked(struct range *r)
{
	struct block *b = r->block;
	struct device *d = &standin.devices[r->dev];

	if (r->kind == RANGE_MANAGED)
		mmap((void *)(uintptr_t)r->map_start, r->map_len, PROT_NONE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	if (b->refs == 1) {
		span_free(r->dev, r->map_start);
		if (d->small == b)
			d->small = NULL;
	}
	block_put(b);
	range_drop(r);
	standin.live.allocs--;
}

EXPORT enum pst_cu_result cuMemAlloc_v2(pst_cu_ptr *dev, size_t len)
{
	ENTER(cuMemAlloc_v2, NEED_CTX | NEED_TURN | NEED_UNCAPTURED);
	return range_alloc(RANGE_DEVICE, ctx, len, dev);
}

EXPORT enum pst_cu_result cuMemAllocManaged(pst_cu_ptr *dev, size_t len, unsigned int flags)
{
	ENTER(cuMemAllocManaged, NEED_CTX);
	if (flags != 1 && flags != 2)
		return standin_refuse(PST_CU_INVALID_VALUE, "managed flags %u", flags);
	return range_alloc(RANGE_MANAGED, ctx, len, dev);
}

EXPORT enum pst_cu_result cuMemAllocAsync(pst_cu_ptr *dev, size_t len, struct pst_cu_stream *stream)
{
	enum pst_cu_result rc;
	struct pst_cu_stream *s;

	ENTER(cuMemAllocAsync, NEED_OBJECT);
	lock();
	s = stream_of(stream, ctx, &rc);
	unlock();
	return s ? range_alloc(RANGE_POOL, s->ctx, len, dev) : rc;
}

EXPORT enum pst_cu_result cuMemFree_v2(pst_cu_ptr dev)
{
	const unsigned int kinds = RANGE_DEVICE | RANGE_MANAGED | RANGE_POOL;
	struct range *r;

	ENTER(cuMemFree_v2, NEED_INIT | NEED_EVEN_BROKEN | NEED_TURN | NEED_UNCAPTURED);
	if (!dev)
		return PST_CU_OK;
	lock();
	r = range_find(dev);
	if (!r || r->start != dev || !(r->kind & kinds)) {
		unlock();
		return standin_refuse(PST_CU_INVALID_VALUE, "free of %llx, which is no allocation",
				      dev);
	}
	if (r->ctx)
		ctx_idle_exclusive(r->ctx);
	r = range_find(dev);
	if (r && r->start == dev)
		mem_free_locked(r);
	unlock();
	return standin_leave(ctx);
}

EXPORT enum pst_cu_result cuMemFreeAsync(pst_cu_ptr dev, struct pst_cu_stream *stream)
{
	enum pst_cu_result rc;
	struct pst_cu_stream *s;
	struct range *r;
	struct op *op;

	ENTER(cuMemFreeAsync, NEED_OBJECT);
	lock();
	s = stream_of(stream, ctx, &rc);
	r = range_find(dev);
	if (s && (!r || r->start != dev || !(r->kind & (RANGE_DEVICE | RANGE_POOL))))
		rc = standin_refuse(PST_CU_INVALID_VALUE, "free of %llx, which is no allocation",
				    dev);
	op = rc ? NULL : op_new(OP_FREE, FN_cuMemFreeAsync);
	if (op) {
		op->free = dev;
		op_put(op_submit(op, s, QUEUE_NONE));
	}
	unlock();
	return rc;
}

EXPORT enum pst_cu_result cuMemGetInfo_v2(size_t *left, size_t *total)
{
	ENTER(cuMemGetInfo_v2, NEED_CTX);
	if (!left || !total)
		return PST_CU_INVALID_VALUE;
	lock();
	*total = standin.devices[ctx->dev].mem_total;
	*left = *total - standin.devices[ctx->dev].mem_used;
	unlock();
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuMemGetAddressRange_v2(pst_cu_ptr *start, size_t *len, pst_cu_ptr dev)
{
	struct range *r;

	ENTER(cuMemGetAddressRange_v2, NEED_CTX);
	lock();
	r = range_find(dev);
	if (r && start)
		*start = r->start;
	if (r && len)
		*len = r->len;
	unlock();
	return r ? PST_CU_OK : standin_refuse(PST_CU_NOT_FOUND, "%llx is unknown", dev);
}

/* --- host memory --- */

EXPORT enum pst_cu_result cuMemHostAlloc(void **out, size_t len, unsigned int flags)
{
	size_t map_len = round_up(len, PAGE);
	struct range *r;
	void *at;

	ENTER(cuMemHostAlloc, NEED_CTX | NEED_TURN | NEED_UNCAPTURED);
	if (!out || flags > 7)
		return standin_refuse(PST_CU_INVALID_VALUE, "host allocation, flags %u", flags);
	*out = NULL;
	if (!len)
		return PST_CU_OK;
	at = mmap(NULL, map_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return standin_refuse(PST_CU_OUT_OF_MEMORY, "host allocation of %zu bytes", len);
	lock();
	r = range_add(RANGE_HOST, (uintptr_t)at, len);
	if (r) {
		r->alias = at;
		r->ctx = ctx;
		r->dev = ctx->dev;
		r->map_len = map_len;
		r->block_id = ++standin.block_id;
		standin.live.host_allocs++;
		*out = at;
	}
	unlock();
	return r ? PST_CU_OK : PST_CU_OUT_OF_MEMORY;
}

EXPORT enum pst_cu_result cuMemFreeHost(void *host)
{
	struct range *r;

	ENTER(cuMemFreeHost, NEED_INIT | NEED_EVEN_BROKEN | NEED_TURN | NEED_UNCAPTURED);
	if (!host)
		return PST_CU_OK;
	lock();
	r = range_find((uintptr_t)host);
	if (!r || r->kind != RANGE_HOST || r->start != (uintptr_t)host) {
		unlock();
		return standin_refuse(PST_CU_INVALID_VALUE, "not from cuMemHostAlloc: %p", host);
	}
	ctx_idle_exclusive(r->ctx);
	munmap(r->alias, r->map_len);
	range_drop(r);
	standin.live.host_allocs--;
	unlock();
	return standin_leave(ctx);
}

EXPORT enum pst_cu_result cuMemHostGetDevicePointer_v2(pst_cu_ptr *dev, void *host,
						       unsigned int flags)
{
	struct range *r;

	ENTER(cuMemHostGetDevicePointer_v2, NEED_CTX);
	if (!dev || flags)
		return PST_CU_INVALID_VALUE;
	lock();
	r = range_find((uintptr_t)host);
	unlock();
	if (!r || !(r->kind & RANGE_ON_HOST))
		return standin_refuse(PST_CU_INVALID_VALUE, "%p is not pinned", host);
	*dev = (uintptr_t)host;
	return PST_CU_OK;
}

/* Frees all memory that belongs to a context that is being destroyed. */
void mem_free_ctx(struct pst_cu_ctx *ctx)
{
	for (size_t i = standin.range_count; i-- > 0;) {
		struct range *r = standin.ranges[i];

		if (r->ctx != ctx)
			continue;
		standin.live.lost++;
		if (r->kind == RANGE_REGISTERED) {
			standin.live.registrations--;
			range_drop(r);
		} else if (r->kind == RANGE_HOST) {
			standin.live.host_allocs--;
			munmap(r->alias, r->map_len);
			range_drop(r);
		} else {
			if (r->kind == RANGE_IPC) {
				standin.live.ipc_opens -= r->opens;
				standin.live.allocs++;
			}
			mem_free_locked(r);
		}
	}
}
