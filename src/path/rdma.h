/* SPDX-License-Identifier: Apache-2.0 */
/* Path rdma: the far side of a storage, such as a server of objects, moves the bytes itself. */
#ifndef PST_PATH_RDMA_H
#define PST_PATH_RDMA_H

#include "core/ops.h"

extern const struct pst_path_ops pst_path_rdma;

#endif
