/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the gates that check the device, its driver and the kernel. */
#ifndef PST_CHECK_GATES_DEVICE_H
#define PST_CHECK_GATES_DEVICE_H

#include "gate.h"

extern const struct pst_check_gate pst_check_device_gates[];

#endif
