/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements pst_end_check: see end.h. The function polls the caller's cancel flag without a lock,
 * because a signal handler may set the flag.
 */
#include "core/base/end.h"

#include <stddef.h>

#include "core/base/clock.h"

int pst_end_check(const struct penstock_end_opts *opts, struct pst_err *err)
{
	if (!opts)
		return 0;
	if (opts->stop && __atomic_load_n(opts->stop, __ATOMIC_RELAXED))
		return pst_fail(err, PENSTOCK_WHY_CANCELLED, "stopped by the caller");
	if (opts->deadline_ns && pst_now_ns() > opts->deadline_ns)
		return pst_fail(err, PENSTOCK_WHY_DEADLINE, "the deadline passed");
	return 0;
}
