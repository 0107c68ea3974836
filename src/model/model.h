/* SPDX-License-Identifier: Apache-2.0 */
/* Returns the models by number or by name, for `penstock model`, its HTML page and the tests. */
#ifndef PST_MODEL_MODEL_H
#define PST_MODEL_MODEL_H

#include "table.h"

/* Returns model number `i`, from 0. Returns NULL after the last model. */
const struct pst_model *pst_model_at(unsigned i);
/* Returns the model with this name, such as "pipeline", or NULL if there is none. */
const struct pst_model *pst_model_find(const char *name);

#endif
