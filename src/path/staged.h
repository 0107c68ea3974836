/* SPDX-License-Identifier: Apache-2.0 */
/* The table of path staged: the drive's DMA fills the ring, the copy engine empties it. */
#ifndef PST_PATH_STAGED_H
#define PST_PATH_STAGED_H

#include "core/ops.h"

extern const struct pst_path_ops pst_path_staged;

#endif
