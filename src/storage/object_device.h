/* SPDX-License-Identifier: Apache-2.0 */
/* The functions for memory of devices that windows of object_window.c use. */
#ifndef PST_STORAGE_OBJECT_DEVICE_H
#define PST_STORAGE_OBJECT_DEVICE_H

#include "wire/wire.h"

/* A window in the memory of a device is allocated by the lane that uses it, and freed after
 * pst_device_sync_begin. No transport copies from or to it by a CPU (pst_wire_buffer_direct), so
 * the table has no function for copies, imports and files. */
extern const struct pst_wire_devices pst_object_device_table;

#endif
