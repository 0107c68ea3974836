/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls the CUDA driver directly for the few functions that the library's API does not offer.
 * They find the allocation at an address, find the GPU of a stream, query the state of a stream,
 * or wait for a stream. buffer.c, handle.c, async.c, prepare.c, stats.c and p2p.c call this file.
 * This file uses the CUDA driver only if the process has already loaded it, or if PENSTOCK_LIBCUDA
 * names one, as in tests. It must never initialise the CUDA driver or create a context.
 */
#include "cuda.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

/* Numbers of the CUDA driver API: result codes, pointer attributes and modes. */
enum {
	OK = 0,
	NOT_INITIALIZED = 3,
	NO_CONTEXT = 201,
	NOT_READY = 600,
	INVALID_HANDLE = 400,
	/* The driver refuses a call that would make the legacy default stream wait for a stream
	 * that is being captured. */
	CAPTURE_IMPLICIT = 906,
	ATTR_MEMORY_TYPE = 2,
	ATTR_ORDINAL = 9,
	ATTR_RANGE_START = 11,
	ATTR_RANGE_SIZE = 12,
	MEMORY_DEVICE = 2,
	CAPTURE_NONE = 0,
	MODE_RELAXED = 2,
};
struct uuid {
	char bytes[16];
};

static struct {
	int (*pointer_attributes)(unsigned count, int *attrs, void **data, unsigned long long ptr);
	int (*stream_capturing)(void *stream, int *status);
	int (*stream_synchronize)(void *stream);
	int (*stream_query)(void *stream);
	int (*device_count)(int *count);
	int (*device_get)(int *dev, int ordinal);
	int (*device_uuid)(struct uuid *uuid, int dev);
	int (*exchange_mode)(int *mode);
	int (*stream_ctx)(void *stream, void **ctx);
	int (*ctx_push)(void *ctx);
	int (*ctx_pop)(void **ctx);
	int (*ctx_device)(int *ordinal);
} api;
static _Atomic bool loaded;
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;

static bool symbol_find(void *lib, const char *name, void *into)
{
	void *sym = dlsym(lib, name);

	memcpy(into, &sym, sizeof(sym));
	return sym != NULL;
}

/* Callback of dl_iterate_phdr: stores the number of objects that the process has loaded so far. */
static int loads_count(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	*(unsigned long long *)arg = info->dlpi_adds;
	return 1;
}

/*
 * Returns whether the process has loaded libcuda; a process without libcuda has no device
 * memory. Looks up the functions of libcuda when it finds libcuda for the first time. A search
 * for libcuda that failed is repeated only after the process has loaded another object, because
 * a search through all folders takes about 30 us.
 */
static bool driver_loaded(void)
{
	/* Number of objects that the process had loaded when the last search failed. */
	static _Atomic unsigned long long failed;
	unsigned long long loads = 0;
	const char *name;
	void *lib;

	if (atomic_load_explicit(&loaded, memory_order_acquire))
		return true;
	dl_iterate_phdr(loads_count, &loads);
	if (loads == atomic_load_explicit(&failed, memory_order_relaxed))
		return false;
	name = getenv("PENSTOCK_LIBCUDA");
	if (name && *name)
		lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	else
		lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	if (!lib) {
		atomic_store_explicit(&failed, loads, memory_order_relaxed);
		return false;
	}
	pthread_mutex_lock(&load_lock);
	if (!atomic_load(&loaded) &&
	    symbol_find(lib, "cuPointerGetAttributes", &api.pointer_attributes) &&
	    symbol_find(lib, "cuStreamIsCapturing", &api.stream_capturing) &&
	    symbol_find(lib, "cuStreamSynchronize", &api.stream_synchronize) &&
	    symbol_find(lib, "cuStreamQuery", &api.stream_query) &&
	    symbol_find(lib, "cuDeviceGetCount", &api.device_count) &&
	    symbol_find(lib, "cuDeviceGet", &api.device_get)) {
		symbol_find(lib, "cuDeviceGetUuid_v2", &api.device_uuid);
		symbol_find(lib, "cuThreadExchangeStreamCaptureMode", &api.exchange_mode);
		symbol_find(lib, "cuStreamGetCtx", &api.stream_ctx);
		symbol_find(lib, "cuCtxPushCurrent_v2", &api.ctx_push);
		symbol_find(lib, "cuCtxPopCurrent_v2", &api.ctx_pop);
		symbol_find(lib, "cuCtxGetDevice", &api.ctx_device);
		atomic_store_explicit(&loaded, true, memory_order_release);
		lib = NULL; /* keeps the library open, because `api` has addresses in it */
	}
	pthread_mutex_unlock(&load_lock);
	if (lib)
		dlclose(lib);
	return atomic_load(&loaded);
}

void shim_cuda_forked(void)
{
	pthread_mutex_init(&load_lock, NULL);
}

/* Finds the device of an address through the library. CUDA drivers before version 12 need a current
 * context for the query that shim_cuda_memory makes; the library makes such a context current. */
static int memory_by_library(const void *ptr, struct shim_memory *out)
{
	struct penstock_device *dev;
	int count = shim_cuda_count();

	for (int i = 0; i < count && i < SHIM_GPUS_MAX; i++)
		shim_gpu(i, &dev);
	if (penstock_device_of(ptr, &dev) < 0)
		return 0;
	for (int i = 0; i < count && i < SHIM_GPUS_MAX; i++)
		if (atomic_load(&shim.gpus[i]) == dev)
			*out = (struct shim_memory){i, 0, SIZE_MAX};
	return 0;
}

int shim_cuda_memory(const void *ptr, struct shim_memory *out)
{
	unsigned type = 0;
	int ordinal = -1, rc;
	unsigned long long start = 0;
	size_t len = 0;
	int attrs[] = {ATTR_MEMORY_TYPE, ATTR_ORDINAL, ATTR_RANGE_START, ATTR_RANGE_SIZE};
	void *data[] = {&type, &ordinal, &start, &len};

	*out = (struct shim_memory){-1, 0, 0};
	if (!driver_loaded())
		return 0;
	rc = api.pointer_attributes(4, attrs, data, (uintptr_t)ptr);
	if (rc == NO_CONTEXT)
		return memory_by_library(ptr, out);
	if (rc == NOT_INITIALIZED)
		return 0;
	if (rc != OK)
		/* The CUDA context that the memory belongs to has failed or was destroyed. */
		return CUF_INVALID_CONTEXT_ERROR;
	if (!type && len)
		/* The program has reserved the address range, but mapped no memory there. */
		return CUF_CUDA_POINTER_INVALID;
	if (type != MEMORY_DEVICE)
		return 0;
	if (ordinal < 0 || ordinal >= SHIM_GPUS_MAX)
		return CUF_CUDA_POINTER_INVALID;
	out->ordinal = ordinal;
	out->start = (uintptr_t)start;
	out->len = len;
	return 0;
}

int shim_cuda_stream(void *stream, bool *capturing)
{
	int status = CAPTURE_NONE;

	if (!driver_loaded())
		return CUF_DEVICE_NOT_FOUND;
	switch (api.stream_capturing(stream, &status)) {
	case OK:
		*capturing = status != CAPTURE_NONE;
		return 0;
	case CAPTURE_IMPLICIT:
		*capturing = true;
		return 0;
	case NO_CONTEXT:
		return CUF_INVALID_CONTEXT_ERROR;
	default:
		return CUF_INVALID_VALUE;
	}
}

/*
 * Makes a call on a stream in the relaxed capture mode of this thread, and then restores the
 * thread's mode. In the default mode, while any thread captures a stream, the driver refuses a
 * query of a stream or a wait for a stream, and the capture fails.
 */
static int call_relaxed(int (*call)(void *stream), void *stream)
{
	int mode = MODE_RELAXED, rc;
	bool exchanged = api.exchange_mode && api.exchange_mode(&mode) == OK;

	rc = call(stream);
	if (exchanged)
		api.exchange_mode(&mode);
	return rc;
}

int shim_cuda_stream_ordinal(void *stream)
{
	void *ctx = NULL;
	int ordinal = -1;

	if (!driver_loaded() || !api.stream_ctx || !api.ctx_push || !api.ctx_pop ||
	    !api.ctx_device || api.stream_ctx(stream, &ctx) != OK || api.ctx_push(ctx) != OK)
		return -1;
	if (api.ctx_device(&ordinal) != OK)
		ordinal = -1;
	api.ctx_pop(&ctx);
	return ordinal;
}

bool shim_cuda_stream_idle(void *stream)
{
	bool capturing;

	return !shim_cuda_stream(stream, &capturing) && !capturing &&
	       call_relaxed(api.stream_query, stream) == OK;
}

bool shim_cuda_stream_broken(void *stream)
{
	int status = CAPTURE_NONE, rc = OK;

	/* A query of a stream that is being captured makes the capture fail, in every mode. */
	if (driver_loaded() &&
	    (api.stream_capturing(stream, &status) != OK || status == CAPTURE_NONE))
		rc = call_relaxed(api.stream_query, stream);
	return rc != OK && rc != NOT_READY && rc != NO_CONTEXT;
}

int shim_cuda_wait(void *stream)
{
	return driver_loaded() ? call_relaxed(api.stream_synchronize, stream) : OK;
}

int shim_cuda_count(void)
{
	int count = 0;

	return driver_loaded() && api.device_count(&count) == OK ? count : 0;
}

bool shim_cuda_uuid(int ordinal, char *uuid)
{
	struct uuid u;
	int dev;

	if (!driver_loaded() || !api.device_uuid || api.device_get(&dev, ordinal) != OK ||
	    api.device_uuid(&u, dev) != OK)
		return false;
	memcpy(uuid, u.bytes, sizeof(u.bytes));
	return true;
}
