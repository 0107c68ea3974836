/* SPDX-License-Identifier: Apache-2.0 */
/* The function table of the storage named "mem": bytes in this process's memory, generated from a
 * seed. */
#ifndef PST_STORAGE_MEM_H
#define PST_STORAGE_MEM_H

#include "core/ops.h"

extern const struct pst_storage_ops pst_storage_mem;

#endif
