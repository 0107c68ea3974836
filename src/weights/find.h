/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups in an open model. They allocate nothing and never block. */
#ifndef PST_WEIGHTS_FIND_H
#define PST_WEIGHTS_FIND_H

#include "weights/model.h"

/* Returns the index of the tensor with this name, or -ENOENT without leaving a message. */
int64_t pst_weights_index(const struct penstock_weights *w, const char *name);

/* Returns the name of the first tensor that ends beyond offset `off` of the file, or "". */
const char *pst_model_file_tensor_at(const struct pst_model_file *file, uint64_t off);

#endif
