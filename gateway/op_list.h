/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listings of objects. Called through the table in route.c. Each function fills the reply, also
 * after an error; "Amazon S3 API Reference" describes the operations.
 */
#ifndef GW_OP_LIST_H
#define GW_OP_LIST_H

#include "request.h"

void gw_op_list_v1(struct gw_request *req);
void gw_op_list_v2(struct gw_request *req);
void gw_op_list_versions(struct gw_request *req);

#endif
