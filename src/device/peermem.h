/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the function table of device peermem: memory of a PCI device that is published for
 * peer-to-peer DMA. */
#ifndef PST_DEVICE_PEERMEM_H
#define PST_DEVICE_PEERMEM_H

#include "core/ops.h"

extern const struct pst_device_ops pst_device_peermem;

#endif
