/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations on buckets, and answers about features that the gateway does not have. Called through
 * the table in route.c. Each function fills the reply, also after an error; "Amazon S3 API
 * Reference" describes the operations.
 */
#ifndef GW_OP_BUCKET_H
#define GW_OP_BUCKET_H

#include "request.h"

void gw_op_list_buckets(struct gw_request *req);
void gw_op_create_bucket(struct gw_request *req);
void gw_op_delete_bucket(struct gw_request *req);
void gw_op_head_bucket(struct gw_request *req);
void gw_op_location(struct gw_request *req);
void gw_op_versioning(struct gw_request *req);
void gw_op_acl(struct gw_request *req);
void gw_op_no_tags(struct gw_request *req);
void gw_op_request_payment(struct gw_request *req);
void gw_op_missing_config(struct gw_request *req);
void gw_op_put_acl(struct gw_request *req);

#endif
