/* SPDX-License-Identifier: Apache-2.0 */
/* References to an open model. penstock_weights.h declares penstock_weights_open and
 * penstock_weights_close. */
#ifndef PST_WEIGHTS_OPEN_H
#define PST_WEIGHTS_OPEN_H

#include "weights/model.h"

/* Adds a reference to the model. Each reference needs one more call of penstock_weights_close. */
void pst_weights_ref(struct penstock_weights *w);

#endif
