/* SPDX-License-Identifier: Apache-2.0 */
/* The storages' tables, for core/backends.c. The first one takes descriptors. */
#ifndef PST_STORAGE_STORAGES_H
#define PST_STORAGE_STORAGES_H

#include "core/ops.h"

extern const struct pst_storage_ops pst_storage_file;
extern const struct pst_storage_ops pst_storage_mem;

#endif
