/* SPDX-License-Identifier: Apache-2.0 */
/* The function table of the path "fault", which wraps another path and injects faults. */
#ifndef PST_PATH_FAULT_H
#define PST_PATH_FAULT_H

#include "core/ops.h"

extern const struct pst_path_ops pst_path_fault;

#endif
