/* SPDX-License-Identifier: Apache-2.0 */
/* Declares pst_end_check, which tells whether a commit or an abort must end early. */
#ifndef PST_CORE_BASE_END_H
#define PST_CORE_BASE_END_H

#include "core/base/err.h"
#include "penstock.h"

/* Interval in ns at which a function that waits for a server checks the caller's limits. */
#define PST_END_CHECK_NS 50000000u

/* Returns 0 if a commit or an abort may go on. Returns -ETIME or -ECANCELED, with the reason, if
 * the caller's limits tell it to end. `opts` may be NULL: no limits. */
int pst_end_check(const struct penstock_end_opts *opts, struct pst_err *err);

#endif
