/* SPDX-License-Identifier: Apache-2.0 */
/* The function tables of the paths through a slot of the ring, staged and bounce: see slotted.c. */
#ifndef PST_PATH_SLOTTED_H
#define PST_PATH_SLOTTED_H

#include "core/ops.h"

extern const struct pst_path_ops pst_path_staged;
extern const struct pst_path_ops pst_path_bounce;

#endif
