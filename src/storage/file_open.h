/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that open, close, commit and abort files of the storage named "file", or return
 * their length. core/ops.h has their contracts. */
#ifndef PST_STORAGE_FILE_OPEN_H
#define PST_STORAGE_FILE_OPEN_H

#include "core/ops.h"

int pst_file_open(struct penstock_storage *st, const char *url, int fd,
		  const struct penstock_storage_opts *opts, struct pst_err *err);
void pst_file_close(struct penstock_storage *st);
int pst_file_commit(struct penstock_storage *st, const struct penstock_end_opts *opts,
		    struct pst_err *err);
int pst_file_abort(struct penstock_storage *st, const struct penstock_end_opts *opts,
		   struct pst_err *err);
int pst_file_length(struct penstock_storage *st, uint64_t *out, struct pst_err *err);

#endif
