/* SPDX-License-Identifier: Apache-2.0 */
/* The function table of the path "odirect": the drive's DMA writes the caller's host memory, or
 * reads from it. */
#ifndef PST_PATH_ODIRECT_H
#define PST_PATH_ODIRECT_H

#include "core/ops.h"

extern const struct pst_path_ops pst_path_odirect;

#endif
