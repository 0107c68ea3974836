/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups in an open model. These functions allocate no memory and never block. */
#ifndef PST_WEIGHTS_FIND_H
#define PST_WEIGHTS_FIND_H

#include "weights/model.h"

/* Returns the index of the tensor with this name. Returns -ENOENT if there is none, but sets no
 * message. */
int64_t pst_weights_index(const struct penstock_weights *w, const char *name);

/* Returns the name of the first tensor of the file that ends behind offset `off`, or "" if none
 * does. */
const char *pst_model_file_tensor_at(const struct pst_model_file *file, uint64_t off);

#endif
