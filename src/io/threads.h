/* SPDX-License-Identifier: Apache-2.0 */
/* The function table of the engine "threads", which works on every kernel. */
#ifndef PST_IO_THREADS_H
#define PST_IO_THREADS_H

#include "core/ops.h"

extern const struct pst_engine_ops pst_engine_threads;

#endif
