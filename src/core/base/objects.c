/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storages and devices as the caller sees them: open, close, facts (memory.c has their
 * memory, copy.c copies). Slow calls all; of these only pst_device_find, for segments that
 * name no device, is on the way of a request.
 * Lock order: device_lock (perhaps under route.c's route_lock), then table_lock.
 */
#include "core/base/objects.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/queue/inline_lane.h"
#include "core/lane/pump.h"
#include "core/route/route.h"
#include "core/base/spin.h"

#define KNOWN_FLAGS                                                                         \
	(PENSTOCK_O_WRITE | PENSTOCK_O_CREATE | PENSTOCK_O_REPLACE | PENSTOCK_O_IMMUTABLE | \
	 PENSTOCK_O_NOFOLLOW)

static pthread_mutex_t device_lock = PTHREAD_MUTEX_INITIALIZER;
static struct penstock_device *devices[PST_DEVICES_MAX]; /* the per-process pumps' owners */
/* Of the table too, but never held while something is waited for: for who looks through
 * all of it while others open and close. */
static pthread_rwlock_t table_lock = PTHREAD_RWLOCK_INITIALIZER;
static uint64_t serial;		/* the last device's, under device_lock */
static _Atomic unsigned opened; /* storages, so far */

static _Atomic unsigned generation = 1;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void forked(void)
{
	/* The child starts over: the parent's lanes do not run here. */
	atomic_fetch_add(&generation, 1);
	memset(devices, 0, sizeof(devices));
	pthread_mutex_init(&device_lock, NULL);
	pthread_rwlock_init(&table_lock, NULL);
	pst_routes_forked();
	pst_pumps_forked();
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, forked);
}

unsigned pst_fork_generation(void)
{
	return atomic_load_explicit(&generation, memory_order_relaxed);
}

int pst_fork_check(unsigned made, struct pst_err *err)
{
	if (made == pst_fork_generation())
		return 0;
	return pst_fail_errno(err, EOWNERDEAD, PENSTOCK_WHY_BAD_ARGUMENT,
			      "opened before a fork: the child must open its own");
}

int pst_struct_copy_in(void *into, size_t ours, const void *from, const char *what,
		       struct pst_err *err)
{
	size_t theirs;

	memset(into, 0, ours);
	if (!from)
		return 0;
	memcpy(&theirs, from, sizeof(theirs));
	if (theirs < sizeof(theirs) || theirs > 4096)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"%s: size is %zu, initialise it with its _INIT macro", what,
				theirs);
	for (size_t i = ours; i < theirs; i++)
		if (((const char *)from)[i])
			return pst_fail_errno(err, E2BIG, PENSTOCK_WHY_BAD_ARGUMENT,
					      "%s has fields that this library does not know",
					      what);
	memcpy(into, from, theirs < ours ? theirs : ours);
	return 0;
}

int pst_struct_copy_out(void *into, const void *ours, size_t size)
{
	size_t theirs;

	memcpy(&theirs, into, sizeof(theirs));
	if (theirs < sizeof(theirs))
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT, "the struct's size is not set");
	memcpy((char *)into + sizeof(theirs), (const char *)ours + sizeof(theirs),
	       (theirs < size ? theirs : size) - sizeof(theirs));
	return 0;
}

/* ---- storage ---- */

int pst_storage_open_ops(const struct pst_storage_ops *ops, const char *url, int fd,
			 const struct penstock_storage_opts *opts, struct penstock_storage **out,
			 struct pst_err *err)
{
	struct penstock_storage *st = calloc(1, sizeof(*st));
	int ret;

	if (!st)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a storage");
	st->ops = ops;
	st->facts.fd = st->facts.fd_direct = -1;
	st->facts.off_align = st->facts.mem_align = 1;
	st->facts.edge_align = 4096;
	st->generation = pst_fork_generation();
	st->cache_bit = (uint64_t)1 << atomic_fetch_add(&opened, 1) % 64;
	ret = ops->open(st, url, fd, opts, err);
	if (ret) {
		free(st);
		return ret;
	}
	*out = st;
	return 0;
}

static int open_storage(const char *url, int fd, const struct penstock_storage_opts *from,
			struct penstock_storage **out)
{
	struct penstock_storage_opts opts;
	struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};
	int ret;

	pthread_once(&fork_once, watch_forks);
	if (!out || (!url && fd < 0))
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT, "no name, or nowhere to put it");
	ret = pst_struct_copy_in(&opts, sizeof(opts), from, "penstock_storage_opts", &err);
	if (ret)
		return pst_err_publish(&err);
	if (opts.flags & ~KNOWN_FLAGS)
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
				"storage flags 0x%x: this library does not know 0x%x", opts.flags,
				opts.flags & ~KNOWN_FLAGS);
	if (opts.flags & (PENSTOCK_O_CREATE | PENSTOCK_O_REPLACE))
		opts.flags |= PENSTOCK_O_WRITE;
	if (opts.length > INT64_MAX)
		return pst_fail_errno(NULL, EFBIG, PENSTOCK_WHY_BAD_ARGUMENT,
				      "a length of %llu bytes overflows",
				      (unsigned long long)opts.length);
	for (unsigned i = 0; pst_storages[i]; i++) {
		if (url ? !pst_storages[i]->match(url) : i > 0)
			continue;
		ret = pst_storage_open_ops(pst_storages[i], url, fd, &opts, out, &err);
		return ret ? pst_err_publish(&err) : 0;
	}
	return pst_fail(
		NULL, PENSTOCK_WHY_BAD_KIND,
		"'%s': no storage of that kind, use a path, file:// or mem:", pst_path_tail(url));
}

int penstock_open(const char *url, const struct penstock_storage_opts *opts,
		  struct penstock_storage **out)
{
	return open_storage(url, -1, opts, out);
}

int penstock_open_fd(int fd, const struct penstock_storage_opts *opts,
		     struct penstock_storage **out)
{
	if (fd < 0)
		return pst_fail_errno(NULL, EBADF, PENSTOCK_WHY_BAD_ARGUMENT,
				      "descriptor %d is not open", fd);
	return open_storage(NULL, fd, opts, out);
}

/* What this thread waits for may be on its own queues' lanes. Under device_lock. */
static void help_own_lanes(void)
{
	for (unsigned i = 0; i < PST_DEVICES_MAX; i++)
		if (devices[i] && atomic_load(&devices[i]->pump))
			pst_inline_lanes_help(atomic_load(&devices[i]->pump));
}

static int end_writing(struct penstock_storage *st,
		       int (*end)(struct penstock_storage *, bool, struct pst_err *), bool durable)
{
	struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};
	int ret = pst_fork_check(st->generation, NULL);

	if (ret)
		return ret;
	if (atomic_load(&st->inflight))
		return pst_fail_errno(NULL, EBUSY, PENSTOCK_WHY_BAD_ARGUMENT,
				      "requests are in flight, wait for them first");
	ret = end ? end(st, durable, &err) : 0;
	return ret ? pst_err_publish(&err) : 0;
}

int penstock_commit(struct penstock_storage *st, int durable)
{
	return end_writing(st, st->ops->commit, durable);
}

static int abort_it(struct penstock_storage *st, bool durable, struct pst_err *err)
{
	(void)durable;
	return st->ops->abort ? st->ops->abort(st, err) : 0;
}

int penstock_abort(struct penstock_storage *st)
{
	return end_writing(st, abort_it, false);
}

void penstock_close(struct penstock_storage *st)
{
	unsigned times = 0;

	if (!st)
		return;
	if (st->generation != pst_fork_generation())
		return; /* the parent's, which decides over its file */
	while (atomic_load(&st->inflight)) {
		pthread_mutex_lock(&device_lock);
		help_own_lanes();
		pthread_mutex_unlock(&device_lock);
		pst_backoff(&times);
	}
	if (atomic_load(&st->cached_by_lanes)) /* of others lanes keep nothing, and sleep on */
		pst_pumps_invalidate(st);
	pst_routes_drop(st);
	st->ops->close(st);
	free(st);
}

int penstock_storage_get_info(const struct penstock_storage *st, struct penstock_storage_info *info)
{
	const struct pst_storage_facts *facts = &st->facts;
	struct penstock_storage_info ours = {
		.size = sizeof(ours),
		.length = facts->length,
		.kind = st->ops->name,
		.text = facts->text,
		.off_align = facts->off_align,
		.mem_align = facts->mem_align,
		.edge_align = facts->edge_align,
		.drive_count = facts->drive_count,
	};

	return pst_struct_copy_out(info, &ours, sizeof(ours));
}

int64_t penstock_storage_length(struct penstock_storage *st)
{
	struct pst_err err;
	uint64_t len = st->facts.length;
	int ret = pst_fork_check(st->generation, &err);

	if (!ret && st->ops->length)
		ret = st->ops->length(st, &len, &err);
	if (ret)
		return pst_err_publish(&err);
	return (int64_t)len;
}

/* ---- devices ---- */

static struct penstock_device *find_name(const char *name)
{
	for (unsigned i = 0; i < PST_DEVICES_MAX; i++)
		if (devices[i] && !strcmp(devices[i]->name, name))
			return devices[i];
	return NULL;
}

/* "auto": the first backend that has a device, in the table's order; the last one,
 * host memory, always has. */
static void resolve_auto(const char *name, char *out, size_t len)
{
	snprintf(out, len, "%s", name);
	if (strcmp(name, "auto") != 0)
		return;
	for (unsigned i = 0; pst_devices[i]; i++) {
		if (!pst_devices[i]->count || pst_devices[i]->count() <= 0)
			continue;
		snprintf(out, len, "%s%s", pst_devices[i]->name,
			 pst_devices[i]->numbered ? ":0" : "");
		return;
	}
}

static void free_device(struct penstock_device *dev)
{
	free((char *)dev->opts.engine);
	free((char *)dev->opts.sys_root);
	free(dev);
}

static char *copy_text(const char *text)
{
	return text ? strdup(text) : NULL;
}

static int open_device(const char *name, const struct penstock_device_opts *opts, unsigned index,
		       struct penstock_device **out, struct pst_err *err)
{
	struct penstock_device *dev;
	int ret = -ENODEV;

	if (strlen(name) >= sizeof(dev->name))
		return pst_fail_errno(err, ENODEV, PENSTOCK_WHY_NO_DEVICE,
				      "'%.40s...': no device has so long a name", name);
	dev = calloc(1, sizeof(*dev));
	if (!dev)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a device");
	dev->index = index;
	dev->opts = *opts;
	dev->opts.engine = copy_text(opts->engine);
	dev->opts.sys_root = copy_text(opts->sys_root);
	if ((opts->engine && !dev->opts.engine) || (opts->sys_root && !dev->opts.sys_root)) {
		free_device(dev);
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a device");
	}
	dev->facts.numa = -1;
	dev->generation = pst_fork_generation();
	dev->serial = ++serial;
	memcpy(dev->name, name, strlen(name) + 1);
	pst_fail(err, PENSTOCK_WHY_NO_DEVICE,
		 "'%s': no such device, use host, cuda:N, peermem:BDF or auto", name);
	for (unsigned i = 0; pst_devices[i]; i++) {
		if (!pst_devices[i]->match(name))
			continue;
		dev->ops = pst_devices[i];
		ret = dev->ops->open(dev, err);
		break;
	}
	if (ret) {
		free_device(dev);
		return ret;
	}
	*out = dev;
	return 0;
}

static bool engine_exists(const char *name)
{
	bool found = !name || !strcmp(name, "auto");

	for (unsigned i = 0; !found && pst_engines[i]; i++)
		found = !strcmp(name, pst_engines[i]->name);
	return found;
}

/* Under device_lock. */
static void set_place(unsigned index, struct penstock_device *dev)
{
	pthread_rwlock_wrlock(&table_lock);
	devices[index] = dev;
	pthread_rwlock_unlock(&table_lock);
}

static int check_device_opts(const struct penstock_device_opts *opts, struct pst_err *err)
{
	if (!engine_exists(opts->engine))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "there is no engine '%.40s'",
				opts->engine);
	if (opts->lanes > PST_LANES_MAX)
		return pst_fail_errno(err, E2BIG, PENSTOCK_WHY_BAD_ARGUMENT, "%u lanes, at most %u",
				      opts->lanes, PST_LANES_MAX);
	if (opts->slot_bytes & (opts->slot_bytes - 1) || opts->slot_bytes > (1u << 30) ||
	    (opts->slot_bytes && opts->slot_bytes < PST_SLOT_SMALL))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"slots of %zu bytes: take a power of two from 64 KiB to 1 GiB",
				opts->slot_bytes);
	return 0;
}

int penstock_device_open(const char *name, const struct penstock_device_opts *from,
			 struct penstock_device **out)
{
	struct penstock_device_opts opts;
	struct penstock_device *dev;
	struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};
	char full[64];
	unsigned index = 0;
	int ret;

	pthread_once(&fork_once, watch_forks);
	if (!name || !out)
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT, "no name, or nowhere to put it");
	ret = pst_struct_copy_in(&opts, sizeof(opts), from, "penstock_device_opts", &err);
	if (!ret)
		ret = check_device_opts(&opts, &err);
	if (ret)
		return pst_err_publish(&err);
	resolve_auto(name, full, sizeof(full));
	pthread_mutex_lock(&device_lock);
	dev = find_name(full);
	while (index < PST_DEVICES_MAX && devices[index])
		index++;
	if (!dev && index == PST_DEVICES_MAX)
		ret = pst_fail(&err, PENSTOCK_WHY_FULL, "%u devices are open", index);
	else if (!dev)
		ret = open_device(full, &opts, index, &dev, &err);
	if (!ret) {
		if (!dev->refs)
			set_place(index, dev);
		ret = dev->refs++ > 0;
		*out = dev;
	}
	pthread_mutex_unlock(&device_lock);
	return ret < 0 ? pst_err_publish(&err) : ret;
}

void penstock_device_close(struct penstock_device *dev)
{
	unsigned times = 0;

	if (!dev)
		return;
	if (dev->generation != pst_fork_generation())
		return; /* the parent's */
	pthread_mutex_lock(&device_lock);
	if (--dev->refs == 0) {
		while (atomic_load_explicit(&dev->guests, memory_order_acquire))
			pst_backoff(&times);
		pst_pump_stop(dev); /* no stream waits any more for what it gives back */
		for (unsigned i = 0; i < PST_DEVICES_MAX; i++)
			if (devices[i] && devices[i] != dev && atomic_load(&devices[i]->pump))
				pst_pump_invalidate(atomic_load(&devices[i]->pump), NULL, dev);
		set_place(dev->index, NULL);
		if (atomic_load(&dev->scratch))
			dev->ops->free(dev, atomic_load(&dev->scratch), NULL);
		dev->ops->close(dev);
		free_device(dev);
	}
	pthread_mutex_unlock(&device_lock);
}

void pst_devices_hold(uint64_t mask)
{
	for (; mask; mask &= mask - 1)
		atomic_fetch_add_explicit(&devices[__builtin_ctzll(mask)]->guests, 1,
					  memory_order_relaxed);
}

void pst_devices_release(uint64_t mask)
{
	for (; mask; mask &= mask - 1)
		atomic_fetch_sub_explicit(&devices[__builtin_ctzll(mask)]->guests, 1,
					  memory_order_release);
}

int pst_device_start_pump(struct penstock_device *dev, struct pst_err *err)
{
	int ret;

	/* Who closes another device may hold the lock until its requests have ended. */
	if (atomic_load_explicit(&dev->pump, memory_order_acquire))
		return 0;
	pthread_mutex_lock(&device_lock);
	ret = pst_pump_start(dev, err);
	pthread_mutex_unlock(&device_lock);
	return ret;
}

/* Lanes that keep something of a storage drop it. It has no request in flight, so such a
 * lane either is asleep or works for others. */
void pst_pumps_invalidate(struct penstock_storage *st)
{
	pthread_mutex_lock(&device_lock);
	for (unsigned i = 0; i < PST_DEVICES_MAX; i++)
		if (devices[i] && atomic_load(&devices[i]->pump))
			pst_pump_invalidate(atomic_load(&devices[i]->pump), st, NULL);
	pthread_mutex_unlock(&device_lock);
}

struct penstock_device *pst_device_find(const void *ptr)
{
	struct penstock_device *host = NULL, *found = NULL;
	struct pst_memory mem;

	/* That one stays open is the caller's promise, but others may come and go. */
	pthread_rwlock_rdlock(&table_lock);
	for (unsigned i = 0; i < PST_DEVICES_MAX && !found; i++) {
		struct penstock_device *dev = devices[i];

		if (dev && dev->facts.is_host)
			host = dev; /* what nobody else knows */
		else if (dev && dev->ops->classify(dev, ptr, &mem) == 1)
			found = dev;
	}
	pthread_rwlock_unlock(&table_lock);
	return found ? found : host;
}

const char *penstock_device_name(const struct penstock_device *dev)
{
	return dev->name;
}

int penstock_device_get_info(const struct penstock_device *dev, struct penstock_device_info *info)
{
	const struct pst_pump *pump = atomic_load(&dev->pump);
	struct penstock_device_info ours = {
		.size = sizeof(ours),
		.name = dev->name,
		.text = dev->facts.text,
		.bdf = dev->facts.bdf,
		.numa = dev->facts.numa,
		.cpu_addressable = dev->facts.cpu_addressable,
		.lanes = pump ? pump->lane_count : 0,
		.ring_bytes = pump ? pst_pump_ring_bytes(pump) : 0,
	};

	return pst_struct_copy_out(info, &ours, sizeof(ours));
}

int penstock_device_of(const void *ptr, struct penstock_device **out)
{
	struct penstock_device *dev = pst_device_find(ptr);

	if (!dev)
		return pst_fail(NULL, PENSTOCK_WHY_NO_DEVICE,
				"the pointer belongs to no device that is open");
	*out = dev;
	return 0;
}

int pst_path_index(const char *name)
{
	for (unsigned i = 0; i < pst_path_count; i++)
		if (!strcmp(pst_paths[i]->name, name))
			return (int)i;
	return -1;
}

const char *penstock_version(void)
{
#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)
	return TEXT(PENSTOCK_VERSION_MAJOR) "." TEXT(PENSTOCK_VERSION_MINOR) "." TEXT(
		PENSTOCK_VERSION_PATCH);
}
