/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of open devices: one entry a device and process, counted by its openers, so that
 * all queues of a process share the device's pump. Whoever drives devices registers hooks
 * when it opens one; the table calls them and knows nothing of pumps.
 */
#ifndef PST_CORE_DEVICES_H
#define PST_CORE_DEVICES_H

#include "core/ops.h"

/* Called under the table's lock. `stop`, `invalidate` and `help` are called only for a device
 * whose pump runs. */
struct pst_device_hooks {
	/* Starts the device's pump and stores it in dev->pump. */
	int (*start)(struct penstock_device *dev, struct pst_err *err);
	/* Stops the pump of a device that closes and clears dev->pump. */
	void (*stop)(struct penstock_device *dev);
	/* Makes the lanes drop what they cache of a storage or another device that closes (the
	 * other argument is NULL). Returns when all have. */
	void (*invalidate)(struct penstock_device *dev, struct penstock_storage *st,
			   struct penstock_device *closing);
	/* Runs one turn of each inline lane of the calling thread. */
	void (*help)(struct penstock_device *dev);
};

/*
 * Opens a device by its resolved name ("cuda:0", never "auto"), or counts another opener of
 * one that is open. 0: opened; 1: it was open, and `opts` has no effect; -errno.
 */
int pst_device_open(const char *name, const struct penstock_device_opts *opts,
		    const struct pst_device_hooks *hooks, struct penstock_device **out,
		    struct pst_err *err);
/* Counts another opener of a device that stays open during the call. -ENODEV: it is closing. */
int pst_device_ref(struct penstock_device *dev, struct pst_err *err);
/* Uncounts an opener. The last one stops the pump and frees the device. */
void pst_device_close(struct penstock_device *dev);

/* Starts the device's pump unless it runs. */
int pst_device_start(struct penstock_device *dev, struct pst_err *err);

/* Makes the lanes of every pump drop what they cache of a storage that closes. */
void pst_devices_invalidate(struct penstock_storage *st);
/* Runs one turn of each inline lane of the calling thread, on every device. */
void pst_devices_help(void);

/* Keep devices open, or release them; bit i of the mask is the device with index i. */
void pst_devices_hold_all(uint64_t mask);
void pst_devices_release_all(uint64_t mask);

/* The same for the devices of a request besides its pump's, of which most have none. */
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

/* The open device that a pointer belongs to. NULL: none, and the host is not open. */
struct penstock_device *pst_device_find(const void *ptr);

#endif
