/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks the signature of a request and the rights of its access key. Called by front.c before any
 * access to the store. No reply may contain a part of a secret or of the expected signature.
 */
#ifndef GW_AUTH_H
#define GW_AUTH_H

#include "request.h"

/* Checks the signature of a request and the rights of its access key. Returns true and sets the
 * request's `identity`, or returns false after it has filled the reply with an error. */
bool gw_auth(struct gw_request *req);
/* Checks the rights of the request's access key for bucket and operation. Returns false after it
 * has filled the reply. gw_auth calls this function, too. */
bool gw_auth_rights(struct gw_request *req);
/* Returns whether the request's access key may read a bucket. Used for the source of a copy. */
bool gw_auth_may_read(const struct gw_request *req, const char *bucket);

#endif
