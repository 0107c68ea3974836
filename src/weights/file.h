/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles one file of a model: its descriptor, its header, and the storage that reads its tensors.
 * Used by open.c, by the code that loads tensors and by src/group.
 */
#ifndef PST_WEIGHTS_FILE_H
#define PST_WEIGHTS_FILE_H

#include "weights/model.h"

/* Opens file->path for reading: a descriptor, or the storage of a URL. May block. */
int pst_model_file_open(const struct pst_model_file *file, struct pst_file_source *out);
/* Reads and checks the header of an open file, and fills the members of `file` except its path. May
 * block. */
int pst_model_file_read_header(struct pst_model_file *file, const struct pst_file_source *source);
/* Closes an open file. */
void pst_model_file_close(struct pst_file_source *source);
/* Returns 0 if `fd` refers to the file whose header was read and the file's bytes have not
 * changed since then; returns -ESTALE otherwise. For a URL it returns 0, because a read of the
 * storage fails if the bytes have changed. May block. */
int pst_model_file_check(const struct pst_model_file *file, int fd);

/* Sets *out to the storage of file `index` of the model. The model owns the storage. The first
 * call in a process opens it. May block. Several threads may call this function at the same
 * time. */
int pst_model_file_storage(struct penstock_weights *w, unsigned index,
			   struct penstock_storage **out);
/* Returns true if the storage of file `index` has been opened. */
bool pst_model_file_is_open(struct penstock_weights *w, unsigned index);

#endif
