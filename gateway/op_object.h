/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading and deleting objects. Called through the table in route.c. Each function fills the reply,
 * also after an error; "Amazon S3 API Reference" describes the operations.
 */
#ifndef GW_OP_OBJECT_H
#define GW_OP_OBJECT_H

#include "request.h"

void gw_op_get(struct gw_request *req);
void gw_op_head(struct gw_request *req);
bool gw_check_delete(struct gw_request *req);
void gw_op_delete(struct gw_request *req);
void gw_op_delete_many(struct gw_request *req);
void gw_op_attributes(struct gw_request *req);

#endif
