/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening and closing the driver, which here means: the configuration is read, the
 * log set up, and host memory opened as a device. GPUs are opened at their first
 * use, contexts and threads are the core's and come with the first transfer; so
 * opening takes well under a millisecond and asks CUDA nothing.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"
#include "stats.h"

#define VERSION_DEFAULT 1150

struct shim shim = {.lock = PTHREAD_MUTEX_INITIALIZER};

const char penstock_cufile_marker[] = "penstock";

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* What the parent opened is no use here; the child may open its own. What the
 * parent's objects hold is left to the child's end: their threads are not here. */
static void forked(void)
{
	pthread_mutex_init(&shim.lock, NULL);
	atomic_store(&shim.open, false);
	shim.uses = 0;
	atomic_store(&shim.host, NULL);
	for (unsigned i = 0; i < SHIM_GPUS_MAX; i++)
		atomic_store(&shim.gpus[i], NULL);
	atomic_store(&shim.version, 0);
	shim_params_closed(); /* what may be set before open may be set again */
	shim_cuda_forked();
	shim_stats_forked();
	shim_files_forked();
	shim_buffers_forked();
	shim_async_forked();
	shim_batch_forked();
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, forked);
}

static int read_version(void)
{
	const char *text = getenv("PENSTOCK_CUFILE_VERSION");
	unsigned minor;
	char rest;

	if (!text || sscanf(text, "1.%2u%c", &minor, &rest) != 1)
		return VERSION_DEFAULT;
	return 1000 + 10 * (int)minor;
}

/* Only true compat-off callers are refused: forcing compat overrides, as it does in
 * the original. */
static int class_of(const struct shim_config *config)
{
	return config->flag[CUF_PARAM_ALLOW_COMPAT_MODE] ||
			       config->flag[CUF_PARAM_FORCE_COMPAT_MODE]
		       ? PENSTOCK_ANY
		       : PENSTOCK_DIRECT;
}

static int open_driver(void)
{
	struct penstock_device *host;

	pthread_once(&fork_once, watch_forks);
	shim_config_load(&shim.config);
	shim_params_apply(&shim.config);
	shim_log_setup(&shim.config);
	shim_config_say();
	if (penstock_device_open("host", NULL, &host) < 0) {
		shim_log(SHIM_ERROR, "cannot open the driver: %s", penstock_errmsg());
		return CUF_DRIVER_NOT_INITIALIZED;
	}
	atomic_store(&shim.host, host);
	atomic_store(&shim.require, class_of(&shim.config));
	shim_params_opened();
	shim_stats_opened(&shim.config);
	atomic_store(&shim.open, true);
	return 0;
}

int shim_need_locked(void)
{
	int code;

	if (atomic_load(&shim.open))
		return 0;
	code = open_driver();
	if (!code)
		shim.uses = 1;
	return code;
}

int shim_need(void)
{
	int code;

	if (atomic_load_explicit(&shim.open, memory_order_acquire))
		return 0;
	pthread_mutex_lock(&shim.lock);
	code = shim_need_locked();
	pthread_mutex_unlock(&shim.lock);
	return code;
}

struct cuf_error cuFileDriverOpen(void)
{
	int code = 0;

	pthread_mutex_lock(&shim.lock);
	if (!atomic_load(&shim.open))
		code = open_driver();
	if (!code)
		shim.uses++;
	pthread_mutex_unlock(&shim.lock);
	return shim_err(code);
}

/* Whoever uses a device holds a file or looks for the device here under a lock; so when
 * the files are closed and the places empty, nobody does. */
static void close_devices(void)
{
	struct penstock_device *devs[SHIM_GPUS_MAX + 1];

	for (unsigned i = 0; i < SHIM_GPUS_MAX; i++)
		devs[i] = atomic_exchange(&shim.gpus[i], NULL);
	devs[SHIM_GPUS_MAX] = atomic_exchange(&shim.host, NULL);
	shim_buffers_drop();
	for (unsigned i = 0; i <= SHIM_GPUS_MAX; i++)
		penstock_device_close(devs[i]);
}

static int close_driver(void)
{
	int code = shim_async_close();

	if (code)
		return code;
	/* Calls that find it closed wait for shim.lock, and open it anew. */
	atomic_store(&shim.open, false);
	code = shim_files_close();
	if (code) {
		atomic_store(&shim.open, true);
		return code;
	}
	close_devices();
	shim_streams_drop();
	shim_stats_closed();
	shim_params_closed();
	return 0;
}

struct cuf_error cuFileDriverClose_v2(void)
{
	int code = 0;

	pthread_mutex_lock(&shim.lock);
	if (!atomic_load(&shim.open))
		code = CUF_DRIVER_NOT_INITIALIZED;
	else if (shim.uses == 1)
		code = close_driver();
	if (!code)
		shim.uses--;
	pthread_mutex_unlock(&shim.lock);
	return shim_err(code);
}

struct cuf_error cuFileDriverClose(void)
{
	return cuFileDriverClose_v2();
}

long cuFileUseCount(void)
{
	long uses;

	pthread_mutex_lock(&shim.lock);
	uses = shim.uses;
	pthread_mutex_unlock(&shim.lock);
	return uses;
}

struct cuf_error cuFileGetVersion(int *version)
{
	if (!version)
		return shim_err(CUF_INVALID_VALUE);
	*version = shim_version();
	return shim_ok();
}

int shim_version(void)
{
	int version = atomic_load_explicit(&shim.version, memory_order_relaxed);

	if (!version) {
		version = read_version();
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
