/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles CopyObject and UploadPartCopy. Called through the table in route.c. Each function fills
 * the reply, also after an error. "Amazon S3 API Reference" describes the operations.
 */
#ifndef GW_OP_COPY_H
#define GW_OP_COPY_H

#include "request.h"

bool gw_check_copy(struct gw_request *req);
void gw_op_copy(struct gw_request *req);
void gw_op_copy_part(struct gw_request *req);

#endif
