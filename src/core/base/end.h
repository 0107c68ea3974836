/* SPDX-License-Identifier: Apache-2.0 */
/* Declares pst_end_check, which returns whether a running commit or abort of a storage must stop
 * because of the caller's deadline or cancel flag. */
#ifndef PST_CORE_BASE_END_H
#define PST_CORE_BASE_END_H

#include "core/base/err.h"
#include "penstock.h"

/* Interval in ns at which a commit or an abort that waits for a server calls pst_end_check. */
#define PST_END_CHECK_NS 50000000u

/* Returns 0 if a running commit or abort may go on. Returns -ECANCELED, with the reason in `err`,
 * if the caller has set the cancel flag, or -ETIME if the caller's deadline has passed. `opts` may
 * be NULL: no limits. */
int pst_end_check(const struct penstock_end_opts *opts, struct pst_err *err);

#endif
