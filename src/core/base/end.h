/* SPDX-License-Identifier: Apache-2.0 */
/* Declares pst_end_check, which tells whether a commit or an abort must end early. */
#ifndef PST_CORE_BASE_END_H
#define PST_CORE_BASE_END_H

#include "core/base/err.h"
#include "penstock.h"

/* How often a function that waits for a server looks at the caller's limits. */
#define PST_END_CHECK_NS 50000000u

/* Returns 0, or -ETIME or -ECANCELED with the reason if the limits of a commit or an abort tell it
 * to end. `opts` may be NULL. */
int pst_end_check(const struct penstock_end_opts *opts, struct pst_err *err);

#endif
