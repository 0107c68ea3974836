/* SPDX-License-Identifier: Apache-2.0 */
/* Registered buffers, and the lookup of the device that an address belongs to. */
#ifndef SHIM_BUFFER_H
#define SHIM_BUFFER_H

#include <stddef.h>
#include <sys/types.h>

#include "penstock.h"

/* Finds the address base + off and its device, for a transfer of `len` bytes. Returns 0 or a code.
 * Any thread may call it; for a registered buffer it takes no lock. */
int shim_resolve(const void *base, off_t off, size_t len, void **addr,
		 struct penstock_device **dev);
/* Returns the number of bytes from `base` on that are registered without a gap, 0 if `base` is not
 * registered. Any thread may call it; it takes no lock. */
size_t shim_registered(const void *base);
/* Removes all registrations at the last close, after the devices were removed from `shim`. */
void shim_buffers_drop(void);
/* Removes all registrations and resets the lock in the child of a fork. */
void shim_buffers_forked(void);

#endif
