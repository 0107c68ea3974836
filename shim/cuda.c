/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few questions that the drop-in asks the CUDA driver itself: what an address
 * is, whether a stream captures, and to wait for one. Everything else goes through
 * the core. The driver is used only if the process has it loaded already (or the
 * tests name one): it is never initialised and no context is made here. It must
 * never be called where the core would do.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

/* facts of the driver's interface */
enum {
	OK = 0,
	NOT_INITIALIZED = 3,
	NO_CONTEXT = 201,
	NOT_READY = 600,
	INVALID_HANDLE = 400,
	CAPTURE_IMPLICIT = 906, /* of the legacy stream, while one that waits for it captures */
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
} api;
static _Atomic bool loaded;
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;

static bool find(void *lib, const char *name, void *into)
{
	void *sym = dlsym(lib, name);

	memcpy(into, &sym, sizeof(sym));
	return sym != NULL;
}

static int count_loads(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	*(unsigned long long *)arg = info->dlpi_adds;
	return 1;
}

/* A process that has no libcuda has no device memory. It may load one later, so the
 * answer no holds until another object was loaded: asking for one that is not there
 * searches every folder, some 30 us. */
static bool have(void)
{
	static _Atomic unsigned long long asked; /* objects loaded when the answer was no */
	unsigned long long loads = 0;
	const char *name;
	void *lib;

	if (atomic_load_explicit(&loaded, memory_order_acquire))
		return true;
	dl_iterate_phdr(count_loads, &loads);
	if (loads == atomic_load_explicit(&asked, memory_order_relaxed))
		return false;
	name = getenv("PENSTOCK_LIBCUDA");
	if (name && *name)
		lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	else
		lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	if (!lib) {
		atomic_store_explicit(&asked, loads, memory_order_relaxed);
		return false;
	}
	pthread_mutex_lock(&load_lock);
	if (!atomic_load(&loaded) && find(lib, "cuPointerGetAttributes", &api.pointer_attributes) &&
	    find(lib, "cuStreamIsCapturing", &api.stream_capturing) &&
	    find(lib, "cuStreamSynchronize", &api.stream_synchronize) &&
	    find(lib, "cuStreamQuery", &api.stream_query) &&
	    find(lib, "cuDeviceGetCount", &api.device_count) &&
	    find(lib, "cuDeviceGet", &api.device_get)) {
		find(lib, "cuDeviceGetUuid_v2", &api.device_uuid);
		find(lib, "cuThreadExchangeStreamCaptureMode", &api.exchange_mode);
		atomic_store_explicit(&loaded, true, memory_order_release);
		lib = NULL; /* kept for good */
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

/* Drivers before 12 answer only in a context; the core knows how to ask those. */
static int ask_core(const void *ptr, struct shim_memory *out)
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
	if (!have())
		return 0;
	rc = api.pointer_attributes(4, attrs, data, (uintptr_t)ptr);
	if (rc == NO_CONTEXT)
		return ask_core(ptr, out);
	if (rc == NOT_INITIALIZED)
		return 0;
	if (rc != OK)
		/* Its context broke or is gone, and with it whatever this was. */
		return CUF_INVALID_CONTEXT_ERROR;
	if (!type && len)
		return CUF_CUDA_POINTER_INVALID; /* reserved, and nothing is there */
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

	if (!have())
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

/* While any thread captures in the mode that is the default, a question about another
 * stream and waiting for one are refused to all threads, and end that capture, unless
 * the thread says that it knows what it does. */
static int ask_relaxed(int (*ask)(void *stream), void *stream)
{
	int mode = MODE_RELAXED, rc;
	bool exchanged = api.exchange_mode && api.exchange_mode(&mode) == OK;

	rc = ask(stream);
	if (exchanged)
		api.exchange_mode(&mode);
	return rc;
}

bool shim_cuda_stream_broken(void *stream)
{
	int rc = have() ? ask_relaxed(api.stream_query, stream) : OK;

	return rc != OK && rc != NOT_READY && rc != NO_CONTEXT;
}

int shim_cuda_wait(void *stream)
{
	return have() ? ask_relaxed(api.stream_synchronize, stream) : OK;
}

int shim_cuda_count(void)
{
	int count = 0;

	return have() && api.device_count(&count) == OK ? count : 0;
}

bool shim_cuda_uuid(int ordinal, char *uuid)
{
	struct uuid u;
	int dev;

	if (!have() || !api.device_uuid || api.device_get(&dev, ordinal) != OK ||
	    api.device_uuid(&u, dev) != OK)
		return false;
	memcpy(uuid, u.bytes, sizeof(u.bytes));
	return true;
}
