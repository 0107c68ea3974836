/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table of functions with which the code in wire/ accesses memory of devices, such as GPUs. The
 * client and the server code of penstock_object.h pass the table to wire/.
 */
#ifndef PST_OBJECT_MEMORY_H
#define PST_OBJECT_MEMORY_H

#include "wire/wire.h"

/* Opens the device "host" and returns the table of functions, or NULL after an error. The caller
 * must call pst_object_devices_close once for each call. */
const struct pst_wire_devices *pst_object_devices_open(void);
void pst_object_devices_close(void);

/* Returns NULL if `dev` is the device "host", else `dev`. NULL makes the code in wire/ access the
 * host memory itself, without the table. */
struct penstock_device *pst_object_device(struct penstock_device *dev);

#endif
