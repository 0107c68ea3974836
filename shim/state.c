/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Defines the state that state.h declares, and opens a GPU when it is first used. Every file of
 * the drop-in uses it. It must never call CUDA before the program uses a GPU, so that
 * cuFileDriverOpen takes little time.
 */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>

#define VERSION_DEFAULT 1150

struct shim shim = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int version_read(void)
{
	const char *text = getenv("PENSTOCK_CUFILE_VERSION");
	unsigned minor;
	char rest;

	if (!text || sscanf(text, "1.%2u%c", &minor, &rest) != 1)
		return VERSION_DEFAULT;
	return 1000 + 10 * (int)minor;
}

int shim_version(void)
{
	int version = atomic_load_explicit(&shim.version, memory_order_relaxed);

	if (!version) {
		version = version_read();
		atomic_store_explicit(&shim.version, version, memory_order_relaxed);
	}
	return version;
}

int shim_gpu_locked(int ordinal, struct penstock_device **dev)
{
	char name[16];

	*dev = atomic_load(&shim.gpus[ordinal]);
	if (*dev)
		return 0;
	if (!atomic_load(&shim.host))
		return CUF_DRIVER_CLOSING;
	snprintf(name, sizeof(name), "cuda:%d", ordinal);
	if (penstock_device_open(name, NULL, dev) < 0)
		return CUF_DEVICE_NOT_FOUND;
	atomic_store_explicit(&shim.gpus[ordinal], *dev, memory_order_release);
	return 0;
}

int shim_gpu(int ordinal, struct penstock_device **dev)
{
	int code;

	*dev = atomic_load_explicit(&shim.gpus[ordinal], memory_order_acquire);
	if (*dev)
		return 0;
	pthread_mutex_lock(&shim.lock);
	code = shim_gpu_locked(ordinal, dev);
	pthread_mutex_unlock(&shim.lock);
	return code;
}

void shim_harvest(void)
{
	void (*harvest)(void) = atomic_load_explicit(&shim.harvest, memory_order_acquire);

	if (harvest)
		harvest();
}
