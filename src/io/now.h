/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call made at once on the thread that is here: the body of the threads
 * engine's workers, and what a storage does with a transfer known to be quick.
 */
#ifndef PST_IO_NOW_H
#define PST_IO_NOW_H

#include "core/ops.h"

/* Makes the system call once; bytes or -errno. May be short or interrupted. */
int64_t pst_call_now(const struct pst_call *call);

#endif
