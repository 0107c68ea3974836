/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device cuda: memory of an NVIDIA GPU through the driver API. Opening makes no
 * context; the primary one is retained at the first need and the caller's current
 * context is never changed. How the driver's hardware queues behave, and why copies
 * and waits are made as they are, is measured in tests/standin/README.md.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/cuda_api.h"
#include "device/devices.h"

/* Host-to-device copies up to this length ride on the compute queue, where a waiting
 * stream may hold them up; two rows of half go by the copy engine. */
#define SMALL_COPY 24576u
#define EVENTS 512 /* tickets of one copier in flight; a lane has half as many chunks */

struct cuda {
	const struct pst_cuda *api;
	int ordinal;
	pthread_mutex_t lock; /* of retaining; never on the way of a copy */
	_Atomic(struct pst_cu_ctx *) ctx;
	pst_cu_ptr scratch; /* one byte that a waiting stream touches first */
};

struct pst_copier {
	struct cuda *cuda;
	struct pst_cu_ctx *ctx;
	struct pst_cu_stream *in, *out;
	bool used_in, used_out;
	uint64_t marked, reached;
	struct pst_cu_event *events[EVENTS];
};

static int fail(struct pst_err *err, enum pst_cu_result rc, const char *what)
{
	enum penstock_why why = rc == PST_CU_OUT_OF_MEMORY ? PENSTOCK_WHY_NO_MEMORY
							   : PENSTOCK_WHY_DEVICE_ERROR;

	return pst_fail_errno(err, pst_cuda_errno(rc), why, "%s: %s", what, pst_cuda_name(rc));
}

/* Makes `ctx` current; true if it has to be popped again. */
static bool enter(const struct pst_cuda *api, struct pst_cu_ctx *ctx)
{
	struct pst_cu_ctx *now = NULL;

	if (api->cuCtxGetCurrent(&now) == PST_CU_OK && now == ctx)
		return false;
	return api->cuCtxPushCurrent(ctx) == PST_CU_OK;
}

static void leave(const struct pst_cuda *api, bool entered)
{
	struct pst_cu_ctx *ctx;

	if (entered)
		api->cuCtxPopCurrent(&ctx);
}

static int retain(struct cuda *c, struct pst_cu_ctx **out, struct pst_err *err)
{
	struct pst_cu_ctx *ctx = atomic_load_explicit(&c->ctx, memory_order_acquire);
	enum pst_cu_result rc = PST_CU_OK;

	if (!ctx) {
		pthread_mutex_lock(&c->lock);
		ctx = atomic_load(&c->ctx);
		if (!ctx) {
			rc = c->api->cuDevicePrimaryCtxRetain(&ctx, c->ordinal);
			if (rc == PST_CU_OK)
				atomic_store_explicit(&c->ctx, ctx, memory_order_release);
		}
		pthread_mutex_unlock(&c->lock);
	}
	if (rc != PST_CU_OK)
		return fail(err, rc, "cuDevicePrimaryCtxRetain");
	*out = ctx;
	return 0;
}

/* ---- open ---- */

static bool cuda_match(const char *name)
{
	return !strncmp(name, "cuda:", 5);
}

static int cuda_count(void)
{
	const struct pst_cuda *api = pst_cuda_get(NULL);

	return api ? api->device_count : 0;
}

static int attribute(const struct cuda *c, enum pst_cu_dev_attr attr)
{
	int value = 0;

	return c->api->cuDeviceGetAttribute(&value, attr, c->ordinal) == PST_CU_OK ? value : 0;
}

static int numa_of(const struct penstock_device *dev)
{
	const char *root = dev->opts.sys_root ? dev->opts.sys_root : "";
	char path[256], text[16] = "";
	int fd;

	snprintf(path, sizeof(path), "%s/sys/bus/pci/devices/%s/numa_node", root, dev->facts.bdf);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	if (read(fd, text, sizeof(text) - 1) <= 0)
		strcpy(text, "-1");
	close(fd);
	return atoi(text);
}

static void take_facts(struct penstock_device *dev, const struct cuda *c)
{
	struct pst_device_facts *facts = &dev->facts;
	char name[128] = "GPU", bdf[32] = "";
	size_t bytes = 0;

	c->api->cuDeviceGetName(name, sizeof(name), c->ordinal);
	c->api->cuDeviceTotalMem(&bytes, c->ordinal);
	c->api->cuDeviceGetPCIBusId(bdf, sizeof(bdf), c->ordinal);
	for (unsigned i = 0; bdf[i] && i + 1 < sizeof(facts->bdf); i++)
		facts->bdf[i] = bdf[i] >= 'A' && bdf[i] <= 'F' ? (char)(bdf[i] + 32) : bdf[i];
	facts->numa = numa_of(dev);
	facts->mem_align = 4096;
	facts->lanes_best = 10;
	facts->reads_page_cache = attribute(c, PST_CU_DEV_READ_ONLY_REGISTER);
	if (!facts->reads_page_cache)
		pst_fail(&facts->why_mapped, PENSTOCK_WHY_NO_READONLY_REG, "%s",
			 penstock_why_text(PENSTOCK_WHY_NO_READONLY_REG));
	facts->stream_memops = attribute(c, PST_CU_DEV_MEMOPS_64);
	pst_fail(&facts->why_peer, PENSTOCK_WHY_NO_PEER_PAGES,
		 "NVIDIA's driver gives its memory no pages that O_DIRECT can reach");
	snprintf(facts->text, sizeof(facts->text), "%s, %llu GiB", name,
		 (unsigned long long)(bytes >> 30));
}

static int cuda_open(struct penstock_device *dev, struct pst_err *err)
{
	const char *why = "no CUDA driver", *text = dev->name + 5;
	const struct pst_cuda *api = pst_cuda_get(&why);
	char *end;
	long ordinal = strtol(text, &end, 10);
	struct cuda *c;

	if (*text < '0' || *text > '9' || *end)
		return pst_fail_errno(err, EINVAL, PENSTOCK_WHY_BAD_ARGUMENT,
				      "'%s': want cuda:N", dev->name);
	if (!api)
		return pst_fail(err, PENSTOCK_WHY_NO_DRIVER, "%s", why);
	if (ordinal >= api->device_count)
		return pst_fail(err, PENSTOCK_WHY_NO_DEVICE, "%s: there are %d GPUs", dev->name,
				api->device_count);
	c = calloc(1, sizeof(*c));
	if (!c)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a device");
	c->api = api;
	pthread_mutex_init(&c->lock, NULL);
	api->cuDeviceGet(&c->ordinal, (int)ordinal);
	dev->priv = c;
	take_facts(dev, c);
	return 0;
}

static void cuda_close(struct penstock_device *dev)
{
	struct cuda *c = dev->priv;
	struct pst_cu_ctx *ctx = atomic_load(&c->ctx);

	if (ctx && c->scratch) {
		bool in = enter(c->api, ctx);

		c->api->cuMemFree(c->scratch);
		leave(c->api, in);
	}
	if (ctx)
		c->api->cuDevicePrimaryCtxRelease(c->ordinal);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

/* ---- memory ---- */

static int cuda_alloc(struct penstock_device *dev, size_t len, void **out, struct pst_err *err)
{
	struct cuda *c = dev->priv;
	struct pst_cu_ctx *ctx;
	pst_cu_ptr ptr = 0;
	enum pst_cu_result rc;
	bool in;
	int ret = retain(c, &ctx, err);

	if (ret)
		return ret;
	in = enter(c->api, ctx);
	rc = c->api->cuMemAlloc(&ptr, (len + 4095) & ~(size_t)4095);
	leave(c->api, in);
	if (rc != PST_CU_OK)
		return fail(err, rc, "cuMemAlloc");
	*out = (void *)(uintptr_t)ptr;
	return 0;
}

static int cuda_free(struct penstock_device *dev, void *ptr, struct pst_err *err)
{
	struct cuda *c = dev->priv;
	struct pst_cu_ctx *ctx;
	enum pst_cu_result rc;
	bool in;
	int ret = retain(c, &ctx, err);

	if (ret)
		return ret;
	in = enter(c->api, ctx);
	rc = c->api->cuMemFree((uintptr_t)ptr);
	leave(c->api, in);
	return rc == PST_CU_OK ? 0 : fail(err, rc, "cuMemFree");
}

static int cuda_classify(struct penstock_device *dev, const void *ptr, struct pst_memory *out)
{
	struct cuda *c = dev->priv;
	unsigned type = 0;
	int ordinal = -1, managed = 0;
	unsigned long long id = 0;
	pst_cu_ptr start = 0;
	size_t len = 0;
	enum pst_cu_ptr_attr attrs[] = { PST_CU_PTR_MEMORY_TYPE, PST_CU_PTR_DEVICE_ORDINAL,
					 PST_CU_PTR_BUFFER_ID,	 PST_CU_PTR_IS_MANAGED,
					 PST_CU_PTR_RANGE_START, PST_CU_PTR_RANGE_SIZE };
	void *data[] = { &type, &ordinal, &id, &managed, &start, &len };

	memset(out, 0, sizeof(*out));
	if (c->api->cuPointerGetAttributes(6, attrs, data, (uintptr_t)ptr) != PST_CU_OK ||
	    type != PST_CU_MEMTYPE_DEVICE || ordinal != c->ordinal)
		return 0;
	out->base = start;
	out->len = len;
	out->id = id;
	out->managed = managed;
	return 1;
}

static int cuda_host_register(struct penstock_device *dev, void *host, size_t len, bool read_only,
			      struct pst_err *err)
{
	struct cuda *c = dev->priv;
	struct pst_cu_ctx *ctx;
	enum pst_cu_result rc;
	bool in;
	int ret = retain(c, &ctx, err);

	if (ret)
		return ret;
	in = enter(c->api, ctx);
	rc = c->api->cuMemHostRegister(host, len,
				       PST_CU_HOST_PORTABLE | (read_only ? PST_CU_HOST_READ_ONLY : 0));
	leave(c->api, in);
	return rc == PST_CU_OK ? 0 : fail(err, rc, "cuMemHostRegister");
}

static int cuda_host_unregister(struct penstock_device *dev, void *host, struct pst_err *err)
{
	struct cuda *c = dev->priv;
	struct pst_cu_ctx *ctx = atomic_load(&c->ctx);
	bool in = enter(c->api, ctx);
	enum pst_cu_result rc = c->api->cuMemHostUnregister(host);

	leave(c->api, in);
	return rc == PST_CU_OK ? 0 : fail(err, rc, "cuMemHostUnregister");
}

/* ---- copies ---- */

static void cuda_copier_close(struct pst_copier *cp)
{
	const struct pst_cuda *api = cp->cuda->api;
	bool in = enter(api, cp->ctx);

	if (cp->in)
		api->cuStreamDestroy(cp->in);
	if (cp->out)
		api->cuStreamDestroy(cp->out);
	for (unsigned i = 0; i < EVENTS && cp->events[i]; i++)
		api->cuEventDestroy(cp->events[i]);
	leave(api, in);
	free(cp);
}

static int cuda_copier_open(struct penstock_device *dev, struct pst_copier **out,
			    struct pst_err *err)
{
	struct cuda *c = dev->priv;
	struct pst_copier *cp = calloc(1, sizeof(*cp));
	enum pst_cu_result rc;
	bool in;
	int ret;

	if (!cp)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a copier");
	cp->cuda = c;
	ret = retain(c, &cp->ctx, err);
	if (ret) {
		free(cp);
		return ret;
	}
	in = enter(c->api, cp->ctx);
	rc = c->api->cuStreamCreateWithPriority(&cp->in, PST_CU_STREAM_NON_BLOCKING, 0);
	if (rc == PST_CU_OK)
		rc = c->api->cuStreamCreateWithPriority(&cp->out, PST_CU_STREAM_NON_BLOCKING, 0);
	for (unsigned i = 0; i < EVENTS && rc == PST_CU_OK; i++)
		rc = c->api->cuEventCreate(&cp->events[i],
					   PST_CU_EVENT_NO_TIMING | PST_CU_EVENT_BLOCKING);
	leave(c->api, in);
	if (rc != PST_CU_OK) {
		cuda_copier_close(cp);
		return fail(err, rc, "making copy streams");
	}
	*out = cp;
	return 0;
}

static enum pst_cu_result copy_2d(struct pst_copier *cp, const struct pst_rect *r, bool in)
{
	struct pst_cu_memcpy2d c = {
		.src_type = in ? PST_CU_MEMTYPE_HOST : PST_CU_MEMTYPE_DEVICE,
		.src_host = r->src,
		.src_dev = (uintptr_t)r->src,
		.src_pitch = r->src_pitch,
		.dst_type = in ? PST_CU_MEMTYPE_DEVICE : PST_CU_MEMTYPE_HOST,
		.dst_host = r->dst,
		.dst_dev = (uintptr_t)r->dst,
		.dst_pitch = r->dst_pitch,
		.width_bytes = r->row_len,
		.height = r->rows,
	};

	return cp->cuda->api->cuMemcpy2DAsync(&c, in ? cp->in : cp->out);
}

static enum pst_cu_result copy_in_1d(struct pst_copier *cp, void *dst, const void *src, uint64_t len)
{
	struct pst_rect two = { dst, src, len / 2, len / 2, len / 2, 2 };

	if (len > SMALL_COPY || len < 2)
		return cp->cuda->api->cuMemcpyHtoDAsync((uintptr_t)dst, src, len, cp->in);
	if (len % 2) { /* twice the same but one byte, overlapping */
		two.row_len = len - 1;
		two.dst_pitch = two.src_pitch = 1;
		return cp->cuda->api->cuMemcpyHtoDAsync((uintptr_t)dst, src, len, cp->in);
	}
	return copy_2d(cp, &two, true);
}

static int cuda_copy(struct pst_copier *cp, const struct pst_rect *r, bool in)
{
	const struct pst_cuda *api = cp->cuda->api;
	bool entered = enter(api, cp->ctx);
	enum pst_cu_result rc;

	if (r->rows > 1 && !(r->dst_pitch == r->row_len && r->src_pitch == r->row_len))
		rc = copy_2d(cp, r, in);
	else if (in)
		rc = copy_in_1d(cp, r->dst, r->src, r->row_len * r->rows);
	else
		rc = api->cuMemcpyDtoHAsync(r->dst, (uintptr_t)r->src, r->row_len * r->rows, cp->out);
	leave(api, entered);
	if (in)
		cp->used_in = true;
	else
		cp->used_out = true;
	return pst_cuda_errno(rc);
}

static int cuda_copy_in(struct pst_copier *cp, const struct pst_rect *r)
{
	return cuda_copy(cp, r, true);
}

static int cuda_copy_out(struct pst_copier *cp, const struct pst_rect *r)
{
	return cuda_copy(cp, r, false);
}

static int cuda_mark(struct pst_copier *cp, uint64_t *ticket)
{
	const struct pst_cuda *api = cp->cuda->api;
	struct pst_cu_event *event = cp->events[(cp->marked + 1) % EVENTS];
	struct pst_cu_stream *stream = cp->used_in ? cp->in : cp->out;
	bool entered = enter(api, cp->ctx);
	enum pst_cu_result rc = PST_CU_OK;

	if (cp->used_in && cp->used_out) { /* both directions: in waits for out */
		rc = api->cuEventRecord(event, cp->out);
		if (rc == PST_CU_OK)
			rc = api->cuStreamWaitEvent(cp->in, event, 0);
	}
	if (rc == PST_CU_OK)
		rc = api->cuEventRecord(event, stream);
	leave(api, entered);
	cp->used_in = cp->used_out = false;
	if (rc != PST_CU_OK)
		return pst_cuda_errno(rc);
	*ticket = ++cp->marked;
	return 0;
}

static int cuda_reached(struct pst_copier *cp, uint64_t ticket)
{
	const struct pst_cuda *api = cp->cuda->api;
	enum pst_cu_result rc;
	bool entered;

	if (ticket <= cp->reached)
		return 1;
	entered = enter(api, cp->ctx);
	rc = api->cuEventQuery(cp->events[ticket % EVENTS]);
	leave(api, entered);
	if (rc == PST_CU_NOT_READY)
		return 0;
	if (rc != PST_CU_OK)
		return pst_cuda_errno(rc);
	cp->reached = ticket;
	return 1;
}

static int cuda_wait(struct pst_copier *cp, uint64_t ticket)
{
	const struct pst_cuda *api = cp->cuda->api;
	bool entered = enter(api, cp->ctx);
	enum pst_cu_result rc = api->cuEventSynchronize(cp->events[ticket % EVENTS]);

	leave(api, entered);
	return pst_cuda_errno(rc);
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
	.copier_open = cuda_copier_open,
	.copier_close = cuda_copier_close,
	.copy_in = cuda_copy_in,
	.copy_out = cuda_copy_out,
	.mark = cuda_mark,
	.reached = cuda_reached,
	.wait = cuda_wait,
};
