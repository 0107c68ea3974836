/* SPDX-License-Identifier: Apache-2.0 */
/* The table of path bounce: the CPU copies between page cache and ring. */
#ifndef PST_PATH_BOUNCE_H
#define PST_PATH_BOUNCE_H

#include "core/ops.h"

extern const struct pst_path_ops pst_path_bounce;

#endif
