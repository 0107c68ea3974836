/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of open devices of this process. Each device has one entry, which counts the openers of
 * the device. So all queues of the process share the device's pump, which is the set of its worker
 * threads (lanes). Code that opens a device passes hooks, which are functions that start and stop
 * the pump. The table calls only these hooks and does not depend on the code of pumps.
 */
#ifndef PST_CORE_DEVICES_H
#define PST_CORE_DEVICES_H

#include "core/ops.h"

/* Functions that the table of open devices calls while it holds the lock device_lock. It calls
 * `stop`, `invalidate` and `help` only for a device whose pump runs. */
struct pst_device_hooks {
	/* Starts the device's pump (its worker threads) and stores it in dev->pump. */
	int (*start)(struct penstock_device *dev, struct pst_err *err);
	/* Stops the pump of a device that is being closed: waits for its requests, ends its worker
	 * threads, and sets dev->pump to NULL. */
	void (*stop)(struct penstock_device *dev);
	/* Makes the worker threads of `dev` drop what they have cached about an object that is
	 * being closed: the storage `st` or the device `closing`. The other argument is NULL. The
	 * function blocks until all these threads have dropped it. */
	void (*invalidate)(struct penstock_device *dev, struct penstock_storage *st,
			   struct penstock_device *closing);
	/* Lets the inline lanes of this device make progress, if they belong to the calling thread.
	 * An inline lane (queue/inline_lane.h) carries requests without a thread of its own. */
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
/* Removes one opener. When the last opener is removed, stops the device's pump (its worker threads)
 * and frees the device. But while requests that are captured in CUDA graphs use the device, it
 * stays open. Once these graphs are destroyed, a later call of this function or of pst_device_open
 * frees it. */
void pst_device_close(struct penstock_device *dev);

/* Opens a device without adding it to the table of open devices, for the library's own use. The
 * caller starts and stops its pump, if it has one. pst_device_close_unlisted closes it. */
int pst_device_open_unlisted(const char *name, const struct penstock_device_opts *opts,
			     struct penstock_device **out, struct pst_err *err);
void pst_device_close_unlisted(struct penstock_device *dev);

/* Starts the device's pump (its worker threads) unless it runs already. */
int pst_device_start(struct penstock_device *dev, struct pst_err *err);

/* Makes the worker threads of all devices drop what they have cached about a storage that is being
 * closed. */
void pst_devices_invalidate(struct penstock_storage *st);
/* Calls the hook `help` of each device whose pump runs. */
void pst_devices_help(void);

/* pst_devices_hold_all prevents the devices in the mask from being closed, and
 * pst_devices_release_all permits it again. Bit i of the mask stands for the device with index
 * i. */
void pst_devices_hold_all(uint64_t mask);
void pst_devices_release_all(uint64_t mask);

/* The next two functions call pst_devices_hold_all and pst_devices_release_all, unless the mask is
 * 0. The mask has a bit for each device that a request uses besides the device whose worker threads
 * carry the request. The functions are inline because most requests use no such device. */
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

/* Returns the open device that owns the memory at `ptr`. If no other device owns it, returns the
 * host device, or NULL if the host device is not open. */
struct penstock_device *pst_device_find(const void *ptr);

#endif
