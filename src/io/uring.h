/* SPDX-License-Identifier: Apache-2.0 */
/* The function table of the engine "uring". uring.c defines it, or no_uring.c in a build without
 * liburing. */
#ifndef PST_IO_URING_H
#define PST_IO_URING_H

#include "core/ops.h"

extern const struct pst_engine_ops pst_engine_uring;

#endif
