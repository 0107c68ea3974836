/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multipart uploads. Called through the table in route.c. Each function fills the reply, also after
 * an error; "Amazon S3 API Reference" describes the operations.
 */
#ifndef GW_OP_MULTIPART_H
#define GW_OP_MULTIPART_H

#include "request.h"

bool gw_check_create_upload(struct gw_request *req);
void gw_op_create_upload(struct gw_request *req);
bool gw_check_part(struct gw_request *req);
void gw_op_put_part(struct gw_request *req);
void gw_op_complete(struct gw_request *req);
void gw_op_abort(struct gw_request *req);
void gw_op_list_parts(struct gw_request *req);
void gw_op_list_uploads(struct gw_request *req);

#endif
