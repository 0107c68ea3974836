/* SPDX-License-Identifier: Apache-2.0 */
/* The storage named "object": an object of an S3 server, or behind a presigned URL. See
 * object.c. */
#ifndef PST_STORAGE_OBJECT_H
#define PST_STORAGE_OBJECT_H

#include "core/ops.h"

extern const struct pst_storage_ops pst_storage_object;

#endif
