/* SPDX-License-Identifier: Apache-2.0 */
/* The function table of the path "vendor": NVIDIA's libcufile moves the bytes. */
#ifndef PST_PATH_VENDOR_H
#define PST_PATH_VENDOR_H

#include "core/ops.h"

extern const struct pst_path_ops pst_path_vendor;

#endif
