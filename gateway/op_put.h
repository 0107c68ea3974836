/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storing an object. Called through the table in route.c. Each function fills the reply, also after
 * an error; "Amazon S3 API Reference" describes the operations.
 */
#ifndef GW_OP_PUT_H
#define GW_OP_PUT_H

#include "request.h"

bool gw_check_put(struct gw_request *req);
void gw_op_put(struct gw_request *req);

#endif
