/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of open devices: see devices.h. The public device functions, routes and inline lanes
 * call this file. A request calls it only at submit: pst_device_find finds the device of a segment
 * that names none. A device's pump is the set of its worker threads. This file must never call a
 * pump itself; it calls the device's hooks, which are function pointers.
 *
 * Lock order: first route_lock of route.c, if a thread needs it, then device_lock, then table_lock.
 */
#include "core/base/devices.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/backends.h"
#include "core/base/fork.h"
#include "core/base/spin.h"

static pthread_mutex_t device_lock = PTHREAD_MUTEX_INITIALIZER;
static struct penstock_device *devices[PST_DEVICES_MAX];
/* Guards `devices`. A thread that changes the table holds device_lock and this lock. A thread that
 * only searches the table may hold this lock alone. No thread waits for anything else while it
 * holds this lock. */
static pthread_rwlock_t table_lock = PTHREAD_RWLOCK_INITIALIZER;
static uint64_t last_serial; /* guarded by device_lock */

static void devices_in_child(void)
{
	memset(devices, 0, sizeof(devices));
	pthread_mutex_init(&device_lock, NULL);
	pthread_rwlock_init(&table_lock, NULL);
}

__attribute__((constructor)) static void devices_hook_fork(void)
{
	pst_fork_hook(devices_in_child);
}

static struct penstock_device *find_name(const char *name)
{
	for (unsigned i = 0; i < PST_DEVICES_MAX; i++)
		if (devices[i] && !strcmp(devices[i]->name, name))
			return devices[i];
	return NULL;
}

static void device_free(struct penstock_device *dev)
{
	free((char *)dev->opts.engine);
	free((char *)dev->opts.sys_root);
	free(dev);
}

static char *copy_text(const char *text)
{
	return text ? strdup(text) : NULL;
}

static int device_new(const char *name, const struct penstock_device_opts *opts,
		      struct penstock_device **out, struct pst_err *err)
{
	struct penstock_device *dev;

	if (strlen(name) >= sizeof(dev->name))
		return pst_fail_errno(err, ENODEV, PENSTOCK_WHY_NO_DEVICE,
				      "'%.40s...': no device has so long a name", name);
	dev = calloc(1, sizeof(*dev));
	if (!dev)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a device");
	dev->opts = *opts;
	dev->opts.engine = copy_text(opts->engine);
	dev->opts.sys_root = copy_text(opts->sys_root);
	if ((opts->engine && !dev->opts.engine) || (opts->sys_root && !dev->opts.sys_root)) {
		device_free(dev);
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a device");
	}
	dev->facts.numa = -1;
	dev->generation = pst_fork_generation();
	memcpy(dev->name, name, strlen(name) + 1);
	*out = dev;
	return 0;
}

/* Finds the first backend that accepts the device's name, and lets it open the device. */
static int device_open_backend(struct penstock_device *dev, struct pst_err *err)
{
	for (unsigned i = 0; pst_devices[i]; i++) {
		if (!pst_devices[i]->match(dev->name))
			continue;
		dev->ops = pst_devices[i];
		return dev->ops->open(dev, err);
	}
	return pst_fail(err, PENSTOCK_WHY_NO_DEVICE,
			"'%s': no such device, use host, cuda:N, peermem:BDF or auto", dev->name);
}

static void table_set(unsigned index, struct penstock_device *dev)
{
	pthread_rwlock_wrlock(&table_lock);
	devices[index] = dev;
	pthread_rwlock_unlock(&table_lock);
}

/* Opens a device that is not open yet, and adds it to the table. Called with device_lock held. */
static int device_add(const char *name, const struct penstock_device_opts *opts,
		      const struct pst_device_hooks *hooks, struct penstock_device **out,
		      struct pst_err *err)
{
	struct penstock_device *dev = NULL;
	unsigned index = 0;
	int ret;

	while (index < PST_DEVICES_MAX && devices[index])
		index++;
	if (index == PST_DEVICES_MAX)
		return pst_fail(err, PENSTOCK_WHY_FULL, "%u devices are open", index);
	ret = device_new(name, opts, &dev, err);
	if (ret)
		return ret;
	dev->index = index;
	dev->serial = ++last_serial;
	dev->hooks = hooks;
	ret = device_open_backend(dev, err);
	if (ret) {
		device_free(dev);
		return ret;
	}
	table_set(index, dev);
	*out = dev;
	return 0;
}

static bool pump_runs(const struct penstock_device *dev)
{
	return dev && atomic_load_explicit(&dev->pump, memory_order_acquire);
}

/* Makes the worker threads (lanes) of all other devices drop what they have cached about the
 * closing device. Called with device_lock held. */
static void invalidate_others(struct penstock_device *closing)
{
	for (unsigned i = 0; i < PST_DEVICES_MAX; i++)
		if (devices[i] != closing && pump_runs(devices[i]))
			devices[i]->hooks->invalidate(devices[i], NULL, closing);
}

/* Closes a device that no opener uses any more. Called with device_lock held. */
static void device_end(struct penstock_device *dev)
{
	unsigned times = 0;

	while (atomic_load_explicit(&dev->guests, memory_order_acquire))
		pst_backoff(&times);
	/* Stop the device's worker threads. This call waits for the device's requests, so no stream
	 * waits for one of these requests afterwards. */
	if (pump_runs(dev))
		dev->hooks->stop(dev);
	invalidate_others(dev);
	table_set(dev->index, NULL);
	if (atomic_load(&dev->scratch))
		dev->ops->free(dev, atomic_load(&dev->scratch), NULL);
	dev->ops->close(dev);
	device_free(dev);
}

/* Closes the devices that no opener uses any more, and whose CUDA graphs with captured requests
 * have all been destroyed. Called with device_lock held. */
static void devices_sweep(void)
{
	for (unsigned i = 0; i < PST_DEVICES_MAX; i++)
		if (devices[i] && !devices[i]->refs &&
		    !atomic_load_explicit(&devices[i]->graphs, memory_order_acquire))
			device_end(devices[i]);
}

int pst_device_open(const char *name, const struct penstock_device_opts *opts,
		    const struct pst_device_hooks *hooks, struct penstock_device **out,
		    struct pst_err *err)
{
	struct penstock_device *dev;
	int ret = 0;

	pthread_mutex_lock(&device_lock);
	dev = find_name(name);
	if (!dev)
		ret = device_add(name, opts, hooks, &dev, err);
	if (!ret) {
		ret = dev->refs++ > 0;
		*out = dev;
	}
	devices_sweep();
	pthread_mutex_unlock(&device_lock);
	return ret;
}

int pst_device_open_unlisted(const char *name, const struct penstock_device_opts *opts,
			     struct penstock_device **out, struct pst_err *err)
{
	struct penstock_device *dev;
	int ret = device_new(name, opts, &dev, err);

	if (ret)
		return ret;
	ret = device_open_backend(dev, err);
	if (ret) {
		device_free(dev);
		return ret;
	}
	*out = dev;
	return 0;
}

void pst_device_close_unlisted(struct penstock_device *dev)
{
	dev->ops->close(dev);
	device_free(dev);
}

int pst_device_ref(struct penstock_device *dev, struct pst_err *err)
{
	int ret = 0;

	pthread_mutex_lock(&device_lock);
	if (dev->refs)
		dev->refs++;
	else
		ret = pst_fail(err, PENSTOCK_WHY_NO_DEVICE, "the device is being closed");
	pthread_mutex_unlock(&device_lock);
	return ret;
}

void pst_device_close(struct penstock_device *dev)
{
	pthread_mutex_lock(&device_lock);
	dev->refs--;
	devices_sweep();
	pthread_mutex_unlock(&device_lock);
}

int pst_device_start(struct penstock_device *dev, struct pst_err *err)
{
	int ret = 0;

	/* Check without the lock whether the device's worker threads run already. A thread that
	 * closes another device may hold the lock until that device's requests have completed. */
	if (pump_runs(dev))
		return 0;
	pthread_mutex_lock(&device_lock);
	if (!pump_runs(dev))
		ret = dev->hooks->start(dev, err);
	pthread_mutex_unlock(&device_lock);
	return ret;
}

void pst_devices_invalidate(struct penstock_storage *st)
{
	pthread_mutex_lock(&device_lock);
	for (unsigned i = 0; i < PST_DEVICES_MAX; i++)
		if (pump_runs(devices[i]))
			devices[i]->hooks->invalidate(devices[i], st, NULL);
	pthread_mutex_unlock(&device_lock);
}

void pst_devices_help(void)
{
	pthread_mutex_lock(&device_lock);
	for (unsigned i = 0; i < PST_DEVICES_MAX; i++)
		if (pump_runs(devices[i]))
			devices[i]->hooks->help(devices[i]);
	pthread_mutex_unlock(&device_lock);
}

void pst_devices_hold_all(uint64_t mask)
{
	for (; mask; mask &= mask - 1)
		atomic_fetch_add_explicit(&devices[__builtin_ctzll(mask)]->guests, 1,
					  memory_order_relaxed);
}

void pst_devices_release_all(uint64_t mask)
{
	for (; mask; mask &= mask - 1)
		atomic_fetch_sub_explicit(&devices[__builtin_ctzll(mask)]->guests, 1,
					  memory_order_release);
}

struct penstock_device *pst_device_find(const void *ptr)
{
	struct penstock_device *host = NULL, *found = NULL;
	struct pst_memory mem;

	/* The device that owns the pointer cannot be closed during the search, because the caller
	 * keeps it open. Other devices can be, so hold the lock. */
	pthread_rwlock_rdlock(&table_lock);
	for (unsigned i = 0; i < PST_DEVICES_MAX && !found; i++) {
		struct penstock_device *dev = devices[i];

		if (dev && dev->facts.is_host)
			/* If no other device owns the memory, the host device is returned. */
			host = dev;
		else if (dev && dev->ops->classify(dev, ptr, &mem) == 1)
			found = dev;
	}
	pthread_rwlock_unlock(&table_lock);
	return found ? found : host;
}
