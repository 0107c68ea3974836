/* SPDX-License-Identifier: Apache-2.0 */
/* The functions with which object_window.c accesses the memory of devices, such as GPUs, and finds
 * the network card that is nearest to it. */
#ifndef PST_STORAGE_OBJECT_DEVICE_H
#define PST_STORAGE_OBJECT_DEVICE_H

#include "wire/wire.h"

/* Function table for windows in the memory of a device. The lane (worker thread) that uses the
 * window allocates it, and frees it after pst_device_sync_begin. No transport copies from or to
 * such a window by a CPU (pst_wire_buffer_direct), so the table has no function for copies, imports
 * and files. */
extern const struct pst_wire_devices pst_object_device_table;

#endif
