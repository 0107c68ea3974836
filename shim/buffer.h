/* SPDX-License-Identifier: Apache-2.0 */
/* Registered buffers, and the lookup of the device that an address belongs to. */
#ifndef SHIM_BUFFER_H
#define SHIM_BUFFER_H

#include <stddef.h>
#include <sys/types.h>

#include "penstock.h"

/* Sets *addr to base + off, and finds the device that the `len` bytes from this address on
 * belong to. Returns 0 or a cuFile code. Any thread may call this function; it takes no lock if
 * the buffer is registered. */
int shim_resolve(const void *base, off_t off, size_t len, void **addr,
		 struct penstock_device **dev);
/* Returns the number of consecutive registered bytes from `base` on, or 0 if `base` is not
 * registered. Any thread may call this function; it takes no lock. */
size_t shim_registered(const void *base);
/* Removes all registered buffers at the last close of the driver. The caller has already
 * removed the devices from `shim`. */
void shim_buffers_drop(void);
/* Removes all registered buffers and resets the list's lock in the child of a fork. */
void shim_buffers_forked(void);

#endif
