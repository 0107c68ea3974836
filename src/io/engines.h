/* SPDX-License-Identifier: Apache-2.0 */
/* The engines' tables, for core/backends.c and for a lane of the caller's. */
#ifndef PST_IO_ENGINES_H
#define PST_IO_ENGINES_H

#include "core/ops.h"

extern const struct pst_engine_ops pst_engine_uring;
extern const struct pst_engine_ops pst_engine_threads;

#endif
