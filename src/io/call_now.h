/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes one system call at once on the calling thread. The worker threads of engine threads
 * call it, and so does a storage for a transfer that is known to be quick.
 */
#ifndef PST_IO_CALL_NOW_H
#define PST_IO_CALL_NOW_H

#include "core/ops.h"

/*
 * Makes the system call once and returns its byte count or -errno. The call may be short or
 * interrupted: only the caller decides whether to repeat it.
 */
int64_t pst_call_now(const struct pst_call *call);

#endif
