/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements memory.h. The table of functions below calls the public API. Three tasks have no
 * public function, so the table calls the device's own functions: the length of an export,
 * dma-bufs, and ordering a network card's writes. All clients and servers of a process share one
 * reference to the device "host".
 */
#include "object/memory.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "core/base/device_dma.h"
#include "core/base/fork.h"
#include "core/machine/nic.h"
#include "core/ops.h"
#include "object/files.h"

static int import_memory(struct penstock_device *dev, const struct penstock_export *exported,
			 void **out, uint64_t *len)
{
	int ret = penstock_import_memory(dev, exported, out);

	if (!ret)
		*len = dev->ops->export_len(exported);
	return ret;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects `users` and `table.host` */
static unsigned users;
static struct pst_wire_devices table = {
	.alloc = penstock_alloc,
	.free = penstock_free,
	.serial = pst_device_serial,
	.copy = penstock_copy,
	.export_memory = penstock_export_memory,
	.import_memory = import_memory,
	.dma_buf = pst_device_dma_buf,
	.order_writes = pst_device_order_writes,
	.file_io = pst_object_file_io,
	.tidy = pst_object_files_tidy,
	.nic_find = pst_nic_find,
	.nic_distance = pst_nic_distance,
	.nic_is_up = pst_nic_is_up,
};

/* Runs in a forked child. Another thread of the parent may have held the lock at the fork, and the
 * device "host" belongs to the parent. */
static void devices_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	users = 0;
	table.host = NULL;
	pst_object_files_forked();
}

__attribute__((constructor)) static void devices_hook_fork(void)
{
	pst_fork_hook(devices_forked);
}

const struct pst_wire_devices *pst_object_devices_open(void)
{
	int ret = 0;

	pthread_mutex_lock(&lock);
	if (!users)
		ret = penstock_device_open("host", NULL, &table.host);
	users += ret >= 0;
	pthread_mutex_unlock(&lock);
	return ret < 0 ? NULL : &table;
}

void pst_object_devices_close(void)
{
	pthread_mutex_lock(&lock);
	if (!--users) {
		pst_object_files_close();
		penstock_device_close(table.host);
		table.host = NULL;
	}
	pthread_mutex_unlock(&lock);
}

struct penstock_device *pst_object_device(struct penstock_device *dev)
{
	return dev && !strcmp(penstock_device_name(dev), "host") ? NULL : dev;
}
