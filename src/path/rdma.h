/* SPDX-License-Identifier: Apache-2.0 */
/* Path rdma: the server of a storage, for example of objects, accesses the bytes in a window, which
 * is memory of this process. */
#ifndef PST_PATH_RDMA_H
#define PST_PATH_RDMA_H

#include "core/ops.h"

extern const struct pst_path_ops pst_path_rdma;

#endif
