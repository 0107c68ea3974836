/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls that open and close the cuFile driver, and the reset of the drop-in (Penstock's
 * libcufile) in the child of a fork. This file is the top layer of the drop-in: it calls every
 * other file to close or to reset, and no other file may call it.
 */
#include "async.h"
#include "batch.h"
#include "buffer.h"
#include "cuda.h"
#include "abi/cufile_calls.h"
#include "fail.h"
#include "handle.h"
#include "open.h"
#include "p2p.h"
#include "state.h"
#include "stats.h"

const char penstock_cufile_marker[] = "penstock";

/* Resets the drop-in in the child of a fork. The child may then open its own cuFile driver.
 * Does not close the parent's objects, because their threads do not exist in the child. If the
 * parent never opened the cuFile driver, the child keeps the parameters and flags that the
 * parent has set. */
static void driver_forked(void)
{
	if (!shim.was_open)
		return;
	pthread_mutex_init(&shim.lock, NULL);
	atomic_store(&shim.open, false);
	shim.uses = 0;
	atomic_store(&shim.host, NULL);
	for (unsigned i = 0; i < SHIM_GPUS_MAX; i++)
		atomic_store(&shim.gpus[i], NULL);
	atomic_store(&shim.prepared, 0);
	atomic_store(&shim.version, 0);
	shim_p2p_closed();
	shim_cuda_forked();
	shim_stats_forked();
	shim_files_forked();
	shim_buffers_forked();
	shim_async_forked();
	shim_batch_forked();
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, driver_forked);
}

struct cuf_error cuFileDriverOpen(void)
{
	int code = 0;

	pthread_mutex_lock(&shim.lock);
	if (!atomic_load(&shim.open))
		code = shim_open_locked();
	if (!code)
		shim.uses++;
	pthread_mutex_unlock(&shim.lock);
	return shim_err(code);
}

/* Closes all devices. A thread uses a device only in three cases: while it uses a file, while it
 * holds a lock and has found the device in `shim`, or after it has opened the device itself
 * (prepare.c). So no thread uses a device of this function any more after all files are closed and
 * the pointers in `shim` are cleared. */
static void devices_close(void)
{
	struct penstock_device *devs[SHIM_GPUS_MAX + 1];

	for (unsigned i = 0; i < SHIM_GPUS_MAX; i++)
		devs[i] = atomic_exchange(&shim.gpus[i], NULL);
	atomic_store(&shim.prepared, 0);
	devs[SHIM_GPUS_MAX] = atomic_exchange(&shim.host, NULL);
	shim_buffers_drop();
	for (unsigned i = 0; i <= SHIM_GPUS_MAX; i++)
		penstock_device_close(devs[i]);
}

static int driver_close(void)
{
	int code = shim_async_close();

	if (code)
		return code;
	/* After this store, a call in another thread finds the cuFile driver closed, waits for
	 * shim.lock and then opens it again. */
	atomic_store(&shim.open, false);
	code = shim_files_close();
	if (code) {
		atomic_store(&shim.open, true);
		return code;
	}
	devices_close();
	shim_streams_drop();
	shim_stats_closed();
	shim_p2p_closed();
	return 0;
}

struct cuf_error cuFileDriverClose_v2(void)
{
	int code = 0;

	pthread_mutex_lock(&shim.lock);
	if (!atomic_load(&shim.open))
		code = CUF_DRIVER_NOT_INITIALIZED;
	else if (shim.uses == 1)
		code = driver_close();
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
