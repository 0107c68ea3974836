/* SPDX-License-Identifier: Apache-2.0 */
/* The function table of the path "p2p": the drive's DMA writes device memory, or reads from it. */
#ifndef PST_PATH_P2P_H
#define PST_PATH_P2P_H

#include "core/ops.h"

extern const struct pst_path_ops pst_path_p2p;

#endif
