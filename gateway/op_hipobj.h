/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles the requests of protocol hipobj-rc-v2 (s3/hipobj.h): POST /.hipobj-rc/prepare, ready and
 * cancel. A PREPARE opens a session. The READY of the session then becomes the GET or PUT that the
 * PREPARE has named. It passes the same checks and runs the same operation, but its bytes are in
 * the session's window instead of a body. A session can be used only once, and only by the access
 * key that has opened it. Called by front.c and through the table in route.c.
 */
#ifndef GW_OP_HIPOBJ_H
#define GW_OP_HIPOBJ_H

#include "request.h"

/* Returns whether the gateway serves hipobj-rc-v2. If not, fills the reply, which makes clients use
 * HTTP. */
bool gw_hipobj_check(struct gw_request *req);
/* Turns an authenticated READY into the GET or PUT of its session. On an error, fills the reply and
 * returns false. */
bool gw_hipobj_begin(struct gw_request *req);
/* Adds the headers of the protocol to the reply to a READY. */
void gw_hipobj_end(struct gw_request *req);

void gw_op_prepare(struct gw_request *req);
void gw_op_ready(struct gw_request *req);
void gw_op_cancel(struct gw_request *req);

#endif
