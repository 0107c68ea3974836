/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the gates that check the endpoint of an object store. */
#ifndef PST_CHECK_GATES_ENDPOINT_H
#define PST_CHECK_GATES_ENDPOINT_H

#include "gate.h"

extern const struct pst_check_gate pst_check_endpoint_gates[];

/* Makes test requests to the object store and stores the outcome in f->store. Must not be called if
 * the facts come from a capture (copied files of another machine). */
void pst_check_try_endpoint(struct pst_check_facts *f);

#endif
