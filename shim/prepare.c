/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prepares a GPU when the program registers a stream or a buffer of it. Otherwise the first
 * transfer would start the library's threads and load its kernels. The CUDA driver loads a kernel
 * only when the GPU is idle, and calls of other threads wait meanwhile. If a stream waits for the
 * program at that time, the program hangs. So this file must never prepare a GPU if it knows that a
 * stream has unfinished work, because this work may wait for the program. It queries only one
 * stream: a query of the whole GPU would make captures of other threads fail.
 */
#include "prepare.h"

#include "cuda.h"
#include "fail.h"
#include "log.h"
#include "state.h"

/* Opens the GPU's device a second time, so that a thread that closes the driver does not close the
 * device meanwhile. If this fails, *dev is NULL. The caller waits for the GPU later, without
 * shim.lock: the GPU may wait for a thread that needs this lock. */
static int device_hold(int ordinal, struct penstock_device **dev)
{
	int code;

	pthread_mutex_lock(&shim.lock);
	code = shim_gpu_locked(ordinal, dev);
	if (!code && penstock_device_open(penstock_device_name(*dev), NULL, dev) < 0)
		code = CUF_DEVICE_NOT_FOUND;
	pthread_mutex_unlock(&shim.lock);
	return code;
}

/* Stores that the GPU is prepared, unless another thread has closed the driver meanwhile. Returns
 * false if this was stored before. */
static bool prepared_set(int ordinal, const struct penstock_device *dev)
{
	uint64_t bit = (uint64_t)1 << ordinal, before = 0;

	pthread_mutex_lock(&shim.lock);
	if (atomic_load(&shim.gpus[ordinal]) == dev)
		before = atomic_fetch_or(&shim.prepared, bit);
	pthread_mutex_unlock(&shim.lock);
	return !(before & bit);
}

void shim_prepare(int ordinal, void *stream)
{
	struct penstock_device *dev;
	bool failed;
	int code;

	if (ordinal < 0 || ordinal >= SHIM_GPUS_MAX ||
	    atomic_load_explicit(&shim.prepared, memory_order_acquire) >> ordinal & 1 ||
	    !shim_cuda_stream_idle(stream))
		return;
	code = device_hold(ordinal, &dev);
	if (code == CUF_DRIVER_CLOSING)
		return; /* another thread has closed the driver */
	failed = code || penstock_prepare(NULL, dev, PENSTOCK_READ) < 0;
	if (prepared_set(ordinal, dev) && failed)
		shim_log(SHIM_ERROR, "cannot prepare cuda:%d for transfers: %s", ordinal,
			 penstock_errmsg());
	if (!code)
		penstock_device_close(dev);
}
