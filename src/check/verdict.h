/* SPDX-License-Identifier: Apache-2.0 */
/* Derives the verdict of `penstock check` from the lines of the gates and the measurements. */
#ifndef PST_CHECK_VERDICT_H
#define PST_CHECK_VERDICT_H

#include "facts.h"

void pst_check_verdict(const struct pst_check_facts *f, struct pst_check *check);

#endif
