/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the gates that check the limits of this process: locked memory, control group and
 * io_uring. */
#ifndef PST_CHECK_GATES_LIMITS_H
#define PST_CHECK_GATES_LIMITS_H

#include "gate.h"

extern const struct pst_check_gate pst_check_limit_gates[];

#endif
