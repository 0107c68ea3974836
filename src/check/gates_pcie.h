/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the gates that check the PCI Express route between device and drives. */
#ifndef PST_CHECK_GATES_PCIE_H
#define PST_CHECK_GATES_PCIE_H

#include "gate.h"

extern const struct pst_check_gate pst_check_pcie_gates[];

#endif
