/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device cuda: memory of an NVIDIA GPU, used through the driver API. Opening the device makes no
 * CUDA context: the library retains the primary context when it first needs one. The functions
 * never change the current context of the calling thread. Measurements of the driver's hardware
 * queues, which are in tests/standin/README.md, explain how copies and waits are made.
 */
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/machine/sysfs.h"
#include "device/cuda.h"
#include "device/cuda_context.h"
#include "device/cuda_copy.h"
#include "device/cuda_ipc.h"
#include "device/cuda_peer.h"
#include "device/cuda_stream.h"
#include "device/cuda_sum.h"

#define ALIGN ((size_t)4096)
#define BLOCK ((size_t)2 << 20)

/* ---- open ---- */

static bool cuda_match(const char *name)
{
	return !strncmp(name, "cuda:", 5);
}

static int cuda_count(void)
{
	static atomic_flag warned = ATOMIC_FLAG_INIT;
	const char *why = NULL;
	int temporary;
	const struct pst_cuda *api = pst_cuda_load(&why, &temporary);

	/* Core selects host memory in place of a GPU. The user may expect a GPU to be used. */
	if ((temporary || pst_cuda_broken()) && !atomic_flag_test_and_set(&warned))
		pst_log(PST_LOG_WARN, "cuda", "device auto is no GPU, because the driver fails: %s",
			why);
	return api ? api->device_count : 0;
}

static int device_attribute(const struct pst_cuda_device *c, enum pst_cu_dev_attr attr)
{
	int value = 0;

	return c->api->cuDeviceGetAttribute(&value, attr, c->ordinal) == PST_CU_OK ? value : 0;
}

static int device_numa(const struct penstock_device *dev)
{
	struct pst_sysfs fs;
	int64_t node = -1;

	if (pst_sysfs_open(&fs, dev->opts.sys_root ? dev->opts.sys_root : ""))
		return -1;
	if (pst_sysfs_number(&fs, &node, "sys/bus/pci/devices/%s/numa_node", dev->facts.bdf))
		node = -1;
	pst_sysfs_close(&fs);
	return node >= 0 && node < 1024 ? (int)node : -1;
}

static void facts_read(struct penstock_device *dev, const struct pst_cuda_device *c)
{
	struct pst_device_facts *facts = &dev->facts;
	char name[128] = "GPU", bdf[32] = "";
	size_t bytes = 0;

	c->api->cuDeviceGetName(name, sizeof(name), c->ordinal);
	c->api->cuDeviceTotalMem(&bytes, c->ordinal);
	c->api->cuDeviceGetPCIBusId(bdf, sizeof(bdf), c->ordinal);
	for (unsigned i = 0; bdf[i] && i + 1 < sizeof(facts->bdf); i++)
		facts->bdf[i] = bdf[i] >= 'A' && bdf[i] <= 'F' ? (char)(bdf[i] + 32) : bdf[i];
	facts->numa = device_numa(dev);
	facts->mem_align = 4096;
	facts->copy_free_max = PST_CUDA_COMPUTE_COPY;
	facts->lanes_best = 8;
	facts->reads_page_cache = device_attribute(c, PST_CU_DEV_READ_ONLY_REGISTER);
	if (!facts->reads_page_cache)
		pst_fail(&facts->why_mapped, PENSTOCK_WHY_NO_READONLY_REG, "%s",
			 penstock_why_text(PENSTOCK_WHY_NO_READONLY_REG));
	facts->stream_memops = device_attribute(c, PST_CU_DEV_MEMOPS_64);
	pst_fail(&facts->why_peer, PENSTOCK_WHY_NO_PEER_PAGES,
		 "NVIDIA's driver publishes no P2PDMA pages for its memory (nvidia-fs or a "
		 "dma-buf-capable transport would be needed)");
	if (bytes >> 30)
		snprintf(facts->text, sizeof(facts->text), "%s, %zu GiB", name,
			 (bytes + (1u << 29)) >> 30);
	else
		snprintf(facts->text, sizeof(facts->text), "%s, %zu MiB", name, bytes >> 20);
}

/* Parses a decimal number. Accepts only one spelling of each number (not "01"), because two names
 * of one device would count as two devices. */
static bool ordinal_parse(const char *text, int *out)
{
	char *end;
	long n = strtol(text, &end, 10);

	if (*text < '0' || *text > '9' || *end || (*text == '0' && text[1]) || n > INT_MAX)
		return false;
	*out = (int)n;
	return true;
}

static int cuda_open(struct penstock_device *dev, struct pst_err *err)
{
	const char *why = "no CUDA driver";
	int temporary, ordinal;
	const struct pst_cuda *api = pst_cuda_load(&why, &temporary);
	struct pst_cuda_device *c;
	enum pst_cu_result rc;

	if (!ordinal_parse(dev->name + 5, &ordinal))
		return pst_fail_errno(err, EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, "'%s': want cuda:N",
				      dev->name);
	if (!api)
		return pst_fail(err,
				temporary ? pst_why_from_errno(temporary) : PENSTOCK_WHY_NO_DRIVER,
				"%s", why);
	if (ordinal >= api->device_count)
		return pst_fail(err, PENSTOCK_WHY_NO_DEVICE, "%s: there are %d GPUs", dev->name,
				api->device_count);
	c = calloc(1, sizeof(*c));
	if (!c)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a device");
	rc = api->cuDeviceGet(&c->ordinal, ordinal);
	if (rc != PST_CU_OK) {
		free(c);
		return pst_cuda_fail(err, rc, "cuDeviceGet");
	}
	c->api = api;
	pthread_mutex_init(&c->lock, NULL);
	pthread_mutex_init(&c->peer_lock, NULL);
	pthread_mutex_init(&c->sum_lock, NULL);
	pst_alloc_set_init(&c->allocs);
	if (api->cuDeviceGetUuid) {
		struct pst_cu_uuid uuid;

		if (api->cuDeviceGetUuid(&uuid, c->ordinal) == PST_CU_OK)
			memcpy(c->uuid, uuid.bytes, sizeof(c->uuid));
	}
	dev->priv = c;
	facts_read(dev, c);
	return 0;
}

static void resources_free(struct pst_cuda_device *c)
{
	pst_cuda_unimport_all(c);
	pst_cuda_stream_close(c);
	pst_cuda_sum_close(c);
	if (c->peer)
		c->api->cuStreamDestroy(c->peer);
	if (c->peer_done)
		c->api->cuEventDestroy(c->peer_done);
}

/* Allocations that the caller has not freed stay allocated while the primary context exists. */
static void cuda_close(struct penstock_device *dev)
{
	struct pst_cuda_device *c = dev->priv;
	struct pst_cu_ctx *ctx = atomic_load(&c->ctx);
	struct pst_cuda_scope in;

	if (ctx) {
		/* If this call fails, the context is destroyed, and with it everything that
		 * resources_free would free. */
		if (pst_cuda_enter(c->api, ctx, &in) == PST_CU_OK)
			resources_free(c);
		pst_cuda_leave(c->api, &in);
		c->api->cuDevicePrimaryCtxRelease(c->ordinal);
	}
	free(c->sums);
	pst_alloc_set_destroy(&c->allocs);
	pthread_mutex_destroy(&c->sum_lock);
	pthread_mutex_destroy(&c->peer_lock);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

/* ---- memory ---- */

/* Allocates memory aligned to 4 KiB. The driver places short allocations in a shared block of 2
 * MiB, aligned to 512 bytes only. If the allocation is not aligned to 4 KiB, the function allocates
 * a whole block in its place, which starts at a multiple of 2 MiB. */
static enum pst_cu_result memory_alloc_aligned(const struct pst_cuda *api, size_t len,
					       pst_cu_ptr *out)
{
	enum pst_cu_result rc = api->cuMemAlloc(out, len);

	if (rc != PST_CU_OK || *out % ALIGN == 0)
		return rc;
	rc = api->cuMemFree(*out);
	if (rc != PST_CU_OK)
		return rc;
	return api->cuMemAlloc(out, (len + BLOCK - 1) & ~(size_t)(BLOCK - 1));
}

static int cuda_alloc(struct penstock_device *dev, size_t len, void **out, struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	struct pst_alloc alloc = {0};
	pst_cu_ptr ptr = 0;
	enum pst_cu_result rc;
	size_t padded;
	struct pst_cuda_scope in;
	int ret;

	if (__builtin_add_overflow(len, ALIGN - 1, &padded))
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "%zu bytes of device memory", len);
	ret = pst_cuda_begin(c, &in, err);
	if (ret)
		return ret;
	rc = memory_alloc_aligned(c->api, padded & ~(size_t)(ALIGN - 1), &ptr);
	alloc.mem = (void *)(uintptr_t)ptr;
	if (rc != PST_CU_OK) {
		ret = pst_cuda_fail(err, rc, "cuMemAlloc");
	} else if (!pst_alloc_set_add(&c->allocs, &alloc)) {
		c->api->cuMemFree(ptr);
		ret = pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for an allocation");
	} else {
		*out = alloc.mem;
	}
	pst_cuda_leave(c->api, &in);
	return ret;
}

/* Frees memory of cuda_alloc. The caller has made the context current. */
static int allocation_free(struct pst_cuda_device *c, void *ptr, struct pst_err *err)
{
	struct pst_alloc alloc;
	enum pst_cu_result rc;

	if (!pst_alloc_set_take(&c->allocs, ptr, &alloc))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"%p is not memory that penstock_alloc or penstock_import_memory "
				"returned for cuda:%d",
				ptr, c->ordinal);
	rc = c->api->cuMemFree((uintptr_t)ptr);
	if (rc == PST_CU_OK)
		return 0;
	/* Without memory for the entry the allocation leaks, and the caller gets this error. */
	pst_alloc_set_add(&c->allocs, &alloc);
	return pst_cuda_fail(err, rc, "cuMemFree");
}

static int cuda_free(struct penstock_device *dev, void *ptr, struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	struct pst_cuda_scope in;
	int ret = pst_cuda_begin(c, &in, err);

	if (ret)
		return ret;
	ret = pst_cuda_unimport(c, ptr, err);
	if (!ret)
		ret = allocation_free(c, ptr, err);
	pst_cuda_leave(c->api, &in);
	return ret < 0 ? ret : 0;
}

/* Queries the pointer's attributes while a context is current, as drivers before version 12
 * require. It creates no context: if the device has no context yet, the memory cannot be on this
 * device. */
static enum pst_cu_result classify_in_context(struct pst_cuda_device *c, unsigned count,
					      enum pst_cu_ptr_attr *attrs, void **data,
					      pst_cu_ptr ptr)
{
	enum pst_cu_result rc = PST_CU_INVALID_CONTEXT;
	struct pst_cu_ctx *ctx;
	/* not reported: after an error the caller assumes that the memory is on another device */
	struct pst_err ignored;
	unsigned flags;
	int active = 0;
	struct pst_cuda_scope in;

	if (!atomic_load_explicit(&c->ctx, memory_order_acquire) &&
	    (c->api->cuDevicePrimaryCtxGetState(c->ordinal, &flags, &active) != PST_CU_OK ||
	     !active))
		return rc;
	if (pst_cuda_retain(c, &ctx, &ignored))
		return rc;
	rc = pst_cuda_enter(c->api, ctx, &in);
	if (rc == PST_CU_OK)
		rc = c->api->cuPointerGetAttributes(count, attrs, data, ptr);
	pst_cuda_leave(c->api, &in);
	return rc;
}

static int cuda_classify(struct penstock_device *dev, const void *ptr, struct pst_memory *out)
{
	struct pst_cuda_device *c = dev->priv;
	unsigned type = 0;
	int ordinal = -1, managed = 0;
	unsigned long long id = 0;
	pst_cu_ptr start = 0;
	size_t len = 0;
	enum pst_cu_ptr_attr attrs[] = {PST_CU_PTR_MEMORY_TYPE, PST_CU_PTR_DEVICE_ORDINAL,
					PST_CU_PTR_BUFFER_ID,	PST_CU_PTR_IS_MANAGED,
					PST_CU_PTR_RANGE_START, PST_CU_PTR_RANGE_SIZE};
	void *data[] = {&type, &ordinal, &id, &managed, &start, &len};
	enum pst_cu_result rc;

	memset(out, 0, sizeof(*out));
	rc = c->api->cuPointerGetAttributes(6, attrs, data, (uintptr_t)ptr);
	if (rc == PST_CU_INVALID_CONTEXT)
		rc = classify_in_context(c, 6, attrs, data, (uintptr_t)ptr);
	if (rc != PST_CU_OK || type != PST_CU_MEMTYPE_DEVICE ||
	    (ordinal != c->ordinal && !pst_cuda_imported(c, start)))
		return 0;
	out->base = start;
	out->len = len;
	out->id = id;
	out->managed = managed;
	return 1;
}

static bool cuda_host_pinned(struct penstock_device *dev, const void *host, size_t len)
{
	struct pst_cuda_device *c = dev->priv;
	unsigned type = 0;
	pst_cu_ptr start = 0;
	size_t size = 0;
	enum pst_cu_ptr_attr attrs[] = {PST_CU_PTR_MEMORY_TYPE, PST_CU_PTR_RANGE_START,
					PST_CU_PTR_RANGE_SIZE};
	void *data[] = {&type, &start, &size};
	enum pst_cu_result rc = c->api->cuPointerGetAttributes(3, attrs, data, (uintptr_t)host);

	if (rc == PST_CU_INVALID_CONTEXT)
		rc = classify_in_context(c, 3, attrs, data, (uintptr_t)host);
	return rc == PST_CU_OK && type == PST_CU_MEMTYPE_HOST && size &&
	       (uintptr_t)host - start + len <= size;
}

static int cuda_host_register(struct penstock_device *dev, void *host, size_t len, bool read_only,
			      struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	enum pst_cu_result rc;
	struct pst_cuda_scope in;
	int ret = pst_cuda_begin(c, &in, err);

	if (ret)
		return ret;
	rc = c->api->cuMemHostRegister(
		host, len,
		PST_CU_HOST_PORTABLE | (read_only ? PST_CU_HOST_READ_ONLY : PST_CU_HOST_MAPPED));
	pst_cuda_leave(c->api, &in);
	return rc == PST_CU_OK ? 0 : pst_cuda_fail(err, rc, "cuMemHostRegister");
}

static int cuda_host_unregister(struct penstock_device *dev, void *host, struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	enum pst_cu_result rc;
	struct pst_cuda_scope in;
	int ret = pst_cuda_begin(c, &in, err);

	if (ret)
		return ret;
	rc = c->api->cuMemHostUnregister(host);
	pst_cuda_leave(c->api, &in);
	return rc == PST_CU_OK ? 0 : pst_cuda_fail(err, rc, "cuMemHostUnregister");
}

/* ---- peers ---- */

static int cuda_order_writes(struct penstock_device *dev, struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	enum pst_cu_result rc;
	struct pst_cuda_scope in;
	int ret;

	if (!c->api->cuFlushGPUDirectRDMAWrites)
		return 0;
	ret = pst_cuda_begin(c, &in, err);
	if (ret)
		return ret;
	rc = c->api->cuFlushGPUDirectRDMAWrites(PST_CU_FLUSH_CURRENT_CTX, PST_CU_FLUSH_TO_OWNER);
	pst_cuda_leave(c->api, &in);
	return rc == PST_CU_OK ? 0 : pst_cuda_fail(err, rc, "cuFlushGPUDirectRDMAWrites");
}

static int cuda_inside(struct penstock_device *dev, int (*fn)(void *arg), void *arg)
{
	struct pst_cuda_device *c = dev->priv;
	struct pst_err err;
	struct pst_cuda_scope entered;
	int ret = pst_cuda_begin(c, &entered, &err);

	if (ret)
		return ret;
	ret = fn(arg);
	pst_cuda_leave(c->api, &entered);
	return ret;
}

const struct pst_device_ops pst_device_cuda = {
	.name = "cuda",
	.match = cuda_match,
	.open = cuda_open,
	.close = cuda_close,
	.count = cuda_count,
	.numbered = true,
	.alloc = cuda_alloc,
	.free = cuda_free,
	.classify = cuda_classify,
	.host_register = cuda_host_register,
	.host_unregister = cuda_host_unregister,
	.host_pinned = cuda_host_pinned,
	.copier_open = pst_cuda_copier_open,
	.copier_close = pst_cuda_copier_close,
	.copy_in = pst_cuda_copy_in,
	.copy_out = pst_cuda_copy_out,
	.record = pst_cuda_record,
	.query = pst_cuda_query,
	.wait = pst_cuda_wait,
	.copy_peer = pst_cuda_copy_peer,
	.export_memory = pst_cuda_export,
	.import_memory = pst_cuda_import,
	.export_len = pst_cuda_export_len,
	.dma_buf = pst_cuda_dma_buf,
	.order_writes = cuda_order_writes,
	.stream_begin = pst_cuda_stream_begin,
	.stream_end = pst_cuda_stream_end,
	.stream_idle = pst_cuda_stream_idle,
	.stream_write = pst_cuda_stream_write,
	.stream_wait = pst_cuda_stream_wait,
	.stream_write_wait = pst_cuda_stream_write_wait,
	.stream_copy = pst_cuda_stream_copy,
	.stream_run = pst_cuda_stream_run,
	.stream_count = pst_cuda_stream_count,
	.stream_tie = pst_cuda_stream_tie,
	.stream_prepare = pst_cuda_stream_prepare,
	.alive = pst_cuda_alive,
	.inside = cuda_inside,
	.sum = pst_cuda_sum,
};
