/* SPDX-License-Identifier: Apache-2.0 */
/* The devices' tables, for core/backends.c. */
#ifndef PST_DEVICE_DEVICES_H
#define PST_DEVICE_DEVICES_H

#include "core/ops.h"

extern const struct pst_device_ops pst_device_cuda;
extern const struct pst_device_ops pst_device_host;
extern const struct pst_device_ops pst_device_peermem;

#endif
