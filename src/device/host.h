/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the function table of device host: ordinary memory of this process. */
#ifndef PST_DEVICE_HOST_H
#define PST_DEVICE_HOST_H

#include "core/ops.h"

extern const struct pst_device_ops pst_device_host;

#endif
