/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the gates that check the network: RDMA, RoCE and NVMe over fabrics. */
#ifndef PST_CHECK_GATES_FABRIC_H
#define PST_CHECK_GATES_FABRIC_H

#include "gate.h"

extern const struct pst_check_gate pst_check_fabric_gates[];

#endif
