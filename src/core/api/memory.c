/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of devices as the caller sees it: allocated and freed, shared with another
 * process, host memory pinned for a device. Each call asks the device's table; copies
 * are copy.c's. Slow calls all; nothing here is on the way of a request.
 */
#include <stdatomic.h>
#include <unistd.h>

#include "core/base/objects.h"
#include "core/route/route.h"
#include "core/queue/stream.h"

int penstock_alloc(struct penstock_device *dev, size_t len, void **out)
{
	struct pst_err err;

	if (!len || !out)
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT, "nothing to allocate");
	if (pst_fork_check(dev->generation, &err))
		return pst_err_publish(&err);
	return dev->ops->alloc(dev, len, out, &err) ? pst_err_publish(&err) : 0;
}

int penstock_free(struct penstock_device *dev, void *ptr)
{
	struct pst_err err;
	int ret;

	if (!ptr)
		return 0;
	if (pst_fork_check(dev->generation, &err))
		return pst_err_publish(&err);
	pst_device_sync_await(dev);
	ret = dev->ops->free(dev, ptr, &err);
	pst_device_sync_end(dev);
	return ret ? pst_err_publish(&err) : 0;
}

int pst_scratch_get(struct penstock_device *dev, void **out, struct pst_err *err)
{
	*out = atomic_exchange(&dev->scratch, NULL);
	return *out ? 0 : dev->ops->alloc(dev, PST_SCRATCH_BYTES, out, err);
}

/* While a stream waits nothing may be freed: then the next trial has it, or who closes the
 * device frees it. */
void pst_scratch_put(struct penstock_device *dev, void *mem)
{
	void *none = NULL;

	if (!pst_device_sync_begin(dev)) {
		if (atomic_compare_exchange_strong(&dev->scratch, &none, mem))
			return;
		pst_device_sync_await(dev); /* two trials at once */
	}
	dev->ops->free(dev, mem, NULL);
	pst_device_sync_end(dev);
}

static int unsupported(const struct penstock_device *dev, const char *what)
{
	return pst_fail(NULL, PENSTOCK_WHY_UNSUPPORTED, "%s cannot %s", dev->name, what);
}

int penstock_export_memory(struct penstock_device *dev, void *ptr, size_t len,
			   struct penstock_export *out)
{
	struct penstock_export ours = PENSTOCK_EXPORT_INIT;
	struct pst_err err;
	int ret;

	if (pst_fork_check(dev->generation, &err))
		return pst_err_publish(&err);
	if (!dev->ops->export_memory)
		return unsupported(dev, "export memory");
	if (dev->ops->export_memory(dev, ptr, len, &ours, &err))
		return pst_err_publish(&err);
	ret = pst_struct_copy_out(out, &ours, sizeof(ours));
	if (ret && ours.fd >= 0)
		close(ours.fd);
	return ret;
}

int penstock_import_memory(struct penstock_device *dev, const struct penstock_export *exported,
			   void **out)
{
	struct penstock_export ours;
	struct pst_err err;

	if (pst_fork_check(dev->generation, &err))
		return pst_err_publish(&err);
	if (!dev->ops->import_memory)
		return unsupported(dev, "import memory");
	if (pst_struct_copy_in(&ours, sizeof(ours), exported, "penstock_export", &err))
		return pst_err_publish(&err);
	return dev->ops->import_memory(dev, &ours, out, &err) ? pst_err_publish(&err) : 0;
}

int penstock_register(struct penstock_device *dev, void *host, size_t len)
{
	struct pst_err err;

	if (!host || !len)
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT, "nothing to register");
	if (pst_fork_check(dev->generation, &err))
		return pst_err_publish(&err);
	if (!dev->ops->host_register)
		return 0; /* its copies need none */
	return dev->ops->host_register(dev, host, len, false, &err) ? pst_err_publish(&err) : 0;
}

int penstock_unregister(struct penstock_device *dev, void *host)
{
	struct pst_err err;
	int ret;

	if (pst_fork_check(dev->generation, &err))
		return pst_err_publish(&err);
	if (!dev->ops->host_unregister)
		return 0;
	pst_device_sync_await(dev);
	ret = dev->ops->host_unregister(dev, host, &err);
	pst_device_sync_end(dev);
	return ret ? pst_err_publish(&err) : 0;
}
