/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests of hipobj-rc-v2 (s3/hipobj.h): POST /.hipobj-rc/prepare, ready and cancel. A PREPARE
 * opens a session. Its READY becomes the GET or PUT that the PREPARE has named: it goes through the
 * same checks and the same operation, and the session's window stands for the body. A session can
 * be used only by the access key that has opened it, once. Called by front.c and through route.c.
 */
#ifndef GW_OP_HIPOBJ_H
#define GW_OP_HIPOBJ_H

#include "request.h"

/* Returns whether the gateway takes such requests. Otherwise fills the reply, which tells clients
 * to use HTTP. */
bool gw_hipobj_check(struct gw_request *req);
/* Turns an authenticated READY into the request of its session. Returns false after it has filled
 * the reply. */
bool gw_hipobj_begin(struct gw_request *req);
/* Adds the protocol's headers to the reply to a READY. */
void gw_hipobj_end(struct gw_request *req);

void gw_op_prepare(struct gw_request *req);
void gw_op_ready(struct gw_request *req);
void gw_op_cancel(struct gw_request *req);

#endif
