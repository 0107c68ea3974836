/* SPDX-License-Identifier: Apache-2.0 */
/* The function table of the storage named "file": regular files, block devices and the caller's
 * descriptors. */
#ifndef PST_STORAGE_FILE_H
#define PST_STORAGE_FILE_H

#include "core/ops.h"

extern const struct pst_storage_ops pst_storage_file;

#endif
