/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the public functions that allocate and free device memory, share it with other
 * processes, and pin host memory. Each function calls the device backend's table of functions. Read
 * and write requests do not use this file.
 */
#include <unistd.h>

#include "core/base/device_sync.h"
#include "core/base/fork.h"
#include "core/base/struct_copy.h"
#include "core/ops.h"

int penstock_alloc(struct penstock_device *dev, size_t len, void **out)
{
	struct pst_err err;

	if (!dev || !len || !out)
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
				"the length is 0, or the device or the output pointer is NULL");
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
	if (!dev)
		return pst_fail_null("the device");
	if (pst_fork_check(dev->generation, &err))
		return pst_err_publish(&err);
	pst_device_sync_await(dev);
	ret = dev->ops->free(dev, ptr, &err);
	pst_device_sync_end(dev);
	return ret ? pst_err_publish(&err) : 0;
}

/* Stores the error that the device cannot do `what`, for example "export memory", and returns its
 * code. */
static int fail_unsupported(const struct penstock_device *dev, const char *what)
{
	return pst_fail(NULL, PENSTOCK_WHY_UNSUPPORTED, "%s cannot %s", dev->name, what);
}

int penstock_export_memory(struct penstock_device *dev, void *ptr, size_t len,
			   struct penstock_export *out)
{
	struct penstock_export ours = PENSTOCK_EXPORT_INIT;
	struct pst_err err;
	int ret;

	if (!dev || !ptr || !out)
		return pst_fail_null("the device, the address or the output pointer");
	if (pst_fork_check(dev->generation, &err))
		return pst_err_publish(&err);
	if (!dev->ops->export_memory)
		return fail_unsupported(dev, "export memory");
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

	if (!dev || !exported || !out)
		return pst_fail_null("the device, the description or the output pointer");
	if (pst_fork_check(dev->generation, &err))
		return pst_err_publish(&err);
	if (!dev->ops->import_memory)
		return fail_unsupported(dev, "import memory");
	if (pst_struct_copy_in(&ours, sizeof(ours), exported, "penstock_export", &err))
		return pst_err_publish(&err);
	return dev->ops->import_memory(dev, &ours, out, &err) ? pst_err_publish(&err) : 0;
}

int penstock_register(struct penstock_device *dev, void *host, size_t len)
{
	struct pst_err err;

	if (!dev || !host || !len)
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
				"the device or the address is NULL, or the length is 0");
	if (pst_fork_check(dev->generation, &err))
		return pst_err_publish(&err);
	if (!dev->ops->host_register)
		/* copies of this device need no pinned memory, so there is nothing to pin */
		return 0;
	return dev->ops->host_register(dev, host, len, false, &err) ? pst_err_publish(&err) : 0;
}

int penstock_unregister(struct penstock_device *dev, void *host)
{
	struct pst_err err;
	int ret;

	if (!dev || !host)
		return pst_fail_null("the device or the address");
	if (pst_fork_check(dev->generation, &err))
		return pst_err_publish(&err);
	if (!dev->ops->host_unregister)
		return 0;
	pst_device_sync_await(dev);
	ret = dev->ops->host_unregister(dev, host, &err);
	pst_device_sync_end(dev);
	return ret ? pst_err_publish(&err) : 0;
}
