/* SPDX-License-Identifier: Apache-2.0 */
/* Declares pst_storage_open_ops, which opens a storage with a given table of functions. Tests of
 * backends call it too. */
#ifndef PST_CORE_API_STORAGE_H
#define PST_CORE_API_STORAGE_H

#include "core/ops.h"

/* Opens `url` as a storage with the functions `ops`. If `url` is NULL, opens the caller's
 * descriptor `fd`. */
int pst_storage_open_ops(const struct pst_storage_ops *ops, const char *url, int fd,
			 const struct penstock_storage_opts *opts, struct penstock_storage **out,
			 struct pst_err *err);

#endif
