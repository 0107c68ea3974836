/* SPDX-License-Identifier: Apache-2.0 */
/* The function table of the path "null", which completes chunks at once and moves nothing. */
#ifndef PST_PATH_NULL_H
#define PST_PATH_NULL_H

#include "core/ops.h"

extern const struct pst_path_ops pst_path_null;

#endif
