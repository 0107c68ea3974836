/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions with which the data plane reaches memory of devices. Called by both halves of the
 * object API.
 */
#ifndef PST_OBJECT_MEMORY_H
#define PST_OBJECT_MEMORY_H

#include "wire/wire.h"

/* Opens the device "host" and returns the table, or NULL and an error. Each call needs a call of
 * pst_object_devices_close. */
const struct pst_wire_devices *pst_object_devices_open(void);
void pst_object_devices_close(void);

/* Returns NULL if `dev` is the device "host", because the data plane accesses host memory itself.
 * Else returns `dev`. */
struct penstock_device *pst_object_device(struct penstock_device *dev);

#endif
