/* SPDX-License-Identifier: Apache-2.0 */
/* The function table of storage mem: bytes that are generated from a seed, in this process's
 * memory. */
#ifndef PST_STORAGE_MEM_H
#define PST_STORAGE_MEM_H

#include "core/ops.h"

extern const struct pst_storage_ops pst_storage_mem;

#endif
