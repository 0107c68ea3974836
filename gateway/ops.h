/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of the operations, for the table in route.c. Each fills the reply, also after an
 * error. "Amazon S3 API Reference" describes the operations.
 */
#ifndef GW_OPS_H
#define GW_OPS_H

#include "request.h"

/* op_bucket.c */
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

/* op_list.c */
void gw_op_list_v1(struct gw_request *req);
void gw_op_list_v2(struct gw_request *req);
void gw_op_list_versions(struct gw_request *req);

/* op_object.c */
void gw_op_get(struct gw_request *req);
void gw_op_head(struct gw_request *req);
void gw_op_delete(struct gw_request *req);
void gw_op_delete_many(struct gw_request *req);
void gw_op_attributes(struct gw_request *req);

/* op_put.c */
bool gw_check_put(struct gw_request *req);
void gw_op_put(struct gw_request *req);

/* op_copy.c */
bool gw_check_copy(struct gw_request *req);
void gw_op_copy(struct gw_request *req);
void gw_op_copy_part(struct gw_request *req);

/* op_multipart.c */
bool gw_check_create_upload(struct gw_request *req);
void gw_op_create_upload(struct gw_request *req);
bool gw_check_part(struct gw_request *req);
void gw_op_put_part(struct gw_request *req);
void gw_op_complete(struct gw_request *req);
void gw_op_abort(struct gw_request *req);
void gw_op_list_parts(struct gw_request *req);
void gw_op_list_uploads(struct gw_request *req);

#endif
