/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements penstock_device_open, _close and _get_info, and penstock_stream_passed. Calls on
 * device memory are in memory.c, and penstock_copy is in copy.c. base/devices.c keeps the table of
 * open devices. Read and write requests do not use this file.
 */
#include <stdio.h>
#include <string.h>

#include "core/backends.h"
#include "core/base/devices.h"
#include "core/base/fork.h"
#include "core/base/struct_copy.h"
#include "core/lane/pump.h"
#include "core/lane/ring.h"
#include "core/queue/streams.h"

/* Copies `name` to `out`. If the name is "auto", writes the name of a device in its place: a device
 * of the first backend in the table pst_devices that has one. The last backend of the table, host
 * memory, always has a device. */
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

static bool engine_exists(const char *name)
{
	bool found = !name || !strcmp(name, "auto");

	for (unsigned i = 0; !found && pst_engines[i]; i++)
		found = !strcmp(name, pst_engines[i]->name);
	return found;
}

static int check_device_opts(const struct penstock_device_opts *opts, struct pst_err *err)
{
	if (!engine_exists(opts->engine))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "engine '%.40s' does not exist",
				opts->engine);
	if (opts->lanes > PST_LANES_MAX)
		return pst_fail_errno(err, E2BIG, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%u lanes: a device has at most %u", opts->lanes,
				      PST_LANES_MAX);
	if (opts->slot_bytes & (opts->slot_bytes - 1) || opts->slot_bytes > (1u << 30) ||
	    (opts->slot_bytes && opts->slot_bytes < PST_SLOT_SMALL))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"slots of %zu bytes: use a power of two from 64 KiB to 1 GiB",
				opts->slot_bytes);
	return 0;
}

int penstock_device_open(const char *name, const struct penstock_device_opts *from,
			 struct penstock_device **out)
{
	struct penstock_device_opts opts;
	struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};
	char full[64];
	int ret;

	if (!name || !out)
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
				"the device name or the output pointer is NULL");
	ret = pst_struct_copy_in(&opts, sizeof(opts), from, "penstock_device_opts", &err);
	if (!ret)
		ret = check_device_opts(&opts, &err);
	if (ret)
		return pst_err_publish(&err);
	resolve_auto(name, full, sizeof(full));
	ret = pst_device_open(full, &opts, &pst_pump_hooks, out, &err);
	return ret < 0 ? pst_err_publish(&err) : ret;
}

void penstock_device_close(struct penstock_device *dev)
{
	/* A forked child cannot close the device, which belongs to the parent process. */
	if (dev && dev->generation == pst_fork_generation())
		pst_device_close(dev);
}

const char *penstock_device_name(const struct penstock_device *dev)
{
	if (dev)
		return dev->name;
	pst_fail_null("the device");
	return NULL;
}

int penstock_device_get_info(const struct penstock_device *dev, struct penstock_device_info *info)
{
	const struct pst_pump *pump;
	struct penstock_device_info ours;

	if (!dev)
		return pst_fail_null("the device");
	pump = atomic_load(&dev->pump);
	ours = (struct penstock_device_info){
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
	struct penstock_device *dev;

	if (!out)
		return pst_fail_null("the output pointer");
	dev = pst_device_find(ptr);
	if (!dev)
		return pst_fail(NULL, PENSTOCK_WHY_NO_DEVICE,
				"the pointer belongs to no open device");
	*out = dev;
	return 0;
}

int penstock_stream_passed(struct penstock_device *dev, const void *user)
{
	struct pst_streams *streams;
	struct pst_pump *pump;
	int ret;

	if (!dev)
		return pst_fail_null("the device");
	ret = pst_fork_check(dev->generation, NULL);
	if (ret)
		return ret;
	/* Either pointer is NULL until the device's first request in stream order. */
	pump = atomic_load_explicit(&dev->pump, memory_order_acquire);
	streams = pump ? atomic_load_explicit(&pump->streams, memory_order_acquire) : NULL;
	return !streams || pst_streams_passed(streams, user);
}

const char *penstock_version(void)
{
#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)
	return TEXT(PENSTOCK_VERSION_MAJOR) "." TEXT(PENSTOCK_VERSION_MINOR) "." TEXT(
		PENSTOCK_VERSION_PATCH);
}
