/* SPDX-License-Identifier: Apache-2.0 */
/* The path "rdma": the server of a storage, such as an S3 server, accesses the bytes in a window,
 * which is memory of this process. */
#ifndef PST_PATH_RDMA_H
#define PST_PATH_RDMA_H

#include "core/ops.h"

extern const struct pst_path_ops pst_path_rdma;

#endif
