/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One file of a model: its descriptor, its header, and its storage for reading. Used by open.c,
 * by the loads and by src/group.
 */
#ifndef PST_WEIGHTS_FILE_H
#define PST_WEIGHTS_FILE_H

#include "weights/model.h"

/* Opens file->path for reading and returns the descriptor. May block. */
int pst_model_file_open(const struct pst_model_file *file);
/* Reads and checks the header; fills the rest of `file`. May block. */
int pst_model_file_read_header(struct pst_model_file *file, int fd);
/* Returns 0 if `fd` is the file whose header was read and its bytes have not changed since,
 * else -ESTALE. May block. */
int pst_model_file_check(const struct pst_model_file *file, int fd);

/* Returns the storage of file `index` of the model, which owns it. The first call in a process
 * opens it. May block; several threads may call it. */
int pst_model_file_storage(struct penstock_weights *w, unsigned index,
			   struct penstock_storage **out);
/* Returns true if the storage of file `index` is open already. */
bool pst_model_file_is_open(struct penstock_weights *w, unsigned index);

#endif
