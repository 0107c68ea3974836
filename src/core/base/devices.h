/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of open devices of this process. Each device has one entry, which counts the
 * device's openers, so that all queues of the process share the device's pump. Code that opens a
 * device passes hooks; the table calls these hooks and knows nothing about pumps.
 */
#ifndef PST_CORE_DEVICES_H
#define PST_CORE_DEVICES_H

#include "core/ops.h"

/* Functions that the table calls with its lock held. It calls `stop`, `invalidate` and `help` only
 * for a device whose pump runs. */
struct pst_device_hooks {
	/* Starts the device's pump and stores it in dev->pump. */
	int (*start)(struct penstock_device *dev, struct pst_err *err);
	/* Stops the pump of a device that is being closed, and sets dev->pump to NULL. */
	void (*stop)(struct penstock_device *dev);
	/* Makes the lanes of `dev` drop their cached state of an object that is being closed:
	 * the storage `st` or the device `closing`. The other argument is NULL. The function
	 * blocks until all lanes have dropped that state. */
	void (*invalidate)(struct penstock_device *dev, struct penstock_storage *st,
			   struct penstock_device *closing);
	/* Runs one turn of each inline lane of this device that the calling thread owns. An
	 * inline lane (queue/inline_lane.h) is a lane without a thread of its own. */
	void (*help)(struct penstock_device *dev);
};

/*
 * Opens the device with this resolved name ("cuda:0", never "auto"). If the device is open
 * already, counts one more opener and ignores `opts`. Returns 0 if it opened the device, 1 if the
 * device was open already, or -errno.
 */
int pst_device_open(const char *name, const struct penstock_device_opts *opts,
		    const struct pst_device_hooks *hooks, struct penstock_device **out,
		    struct pst_err *err);
/* Counts one more opener of an open device. Returns -ENODEV if the device is being closed. */
int pst_device_ref(struct penstock_device *dev, struct pst_err *err);
/* Removes one opener. When the last opener is removed, stops the pump and frees the device. But if
 * captured requests still use the device, it stays open. Once their graphs are destroyed, a later
 * call of this function or of pst_device_open frees it. */
void pst_device_close(struct penstock_device *dev);

/* Opens a device that is in no table, for the library's own use. The caller starts and stops its
 * pump, if it has one. pst_device_close_unlisted closes it. */
int pst_device_open_unlisted(const char *name, const struct penstock_device_opts *opts,
			     struct penstock_device **out, struct pst_err *err);
void pst_device_close_unlisted(struct penstock_device *dev);

/* Starts the device's pump unless it runs already. */
int pst_device_start(struct penstock_device *dev, struct pst_err *err);

/* Makes the lanes of every pump drop their cached state of a storage that is being closed. */
void pst_devices_invalidate(struct penstock_storage *st);
/* Runs one turn of each inline lane that the calling thread owns, for all devices. */
void pst_devices_help(void);

/* Prevent devices from being closed, or permit it again. Bit i of the mask stands for the device
 * with index i. */
void pst_devices_hold_all(uint64_t mask);
void pst_devices_release_all(uint64_t mask);

/* Call pst_devices_hold_all or pst_devices_release_all if the mask is not 0. The mask is the
 * set of devices that a request uses besides its pump's device. These wrappers are inline
 * because most requests use no such device. */
static inline void pst_devices_hold(uint64_t mask)
{
	if (mask)
		pst_devices_hold_all(mask);
}

static inline void pst_devices_release(uint64_t mask)
{
	if (mask)
		pst_devices_release_all(mask);
}

/* Returns the open device that a pointer belongs to. If no other device owns the pointer, returns
 * the host device, or NULL if the host device is not open. */
struct penstock_device *pst_device_find(const void *ptr);

#endif
