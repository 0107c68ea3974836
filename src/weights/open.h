/* SPDX-License-Identifier: Apache-2.0 */
/* Lifetime of an open model, besides penstock_weights_open and penstock_weights_close. */
#ifndef PST_WEIGHTS_OPEN_H
#define PST_WEIGHTS_OPEN_H

#include "weights/model.h"

/* Adds a reference: the model lives until one more penstock_weights_close. */
void pst_weights_ref(struct penstock_weights *w);

#endif
