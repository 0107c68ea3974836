/* SPDX-License-Identifier: Apache-2.0 */
/* The table of storage mem: bytes generated from a seed, in this process's memory. */
#ifndef PST_STORAGE_MEM_H
#define PST_STORAGE_MEM_H

#include "core/ops.h"

extern const struct pst_storage_ops pst_storage_mem;

#endif
