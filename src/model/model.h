/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the models. The command, the page and the tests find them here. */
#ifndef PST_MODEL_MODEL_H
#define PST_MODEL_MODEL_H

#include "table.h"

/* Returns model number `i`, or NULL after the last one. */
const struct pst_model *pst_model_at(unsigned i);
/* Returns the model of this name, or NULL. */
const struct pst_model *pst_model_find(const char *name);

#endif
