/* SPDX-License-Identifier: Apache-2.0 */
/* The function table of the path "mapped": the device's copy engine reads the page cache. */
#ifndef PST_PATH_MAPPED_H
#define PST_PATH_MAPPED_H

#include "core/ops.h"

extern const struct pst_path_ops pst_path_mapped;

#endif
