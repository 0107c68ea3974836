/* SPDX-License-Identifier: Apache-2.0 */
/* The paths' tables, for core/backends.c. */
#ifndef PST_PATH_PATHS_H
#define PST_PATH_PATHS_H

#include "core/ops.h"

extern const struct pst_path_ops pst_path_p2p;
extern const struct pst_path_ops pst_path_odirect;
extern const struct pst_path_ops pst_path_vendor;
extern const struct pst_path_ops pst_path_mapped;
extern const struct pst_path_ops pst_path_staged;
extern const struct pst_path_ops pst_path_bounce;
extern const struct pst_path_ops pst_path_null;
extern const struct pst_path_ops pst_path_fault;

#endif
