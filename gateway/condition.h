/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conditional requests: If-Match, If-None-Match, If-Modified-Since and If-Unmodified-Since, and the
 * same conditions on the source of a copy (RFC 9110, section 13, and the Amazon S3 API Reference).
 * Called by the operations and by assemble.c.
 */
#ifndef GW_CONDITION_H
#define GW_CONDITION_H

#include "request.h"

/* Checks the conditions of headers that begin with `prefix` ("" or "x-amz-copy-source-") for an
 * object. Returns 0 if they hold, or the status 304 or 412. */
unsigned gw_condition_check(const struct gw_request *req, const char *prefix,
			    const struct gw_object *object);
/* Returns whether a list of ETags such as '"a", "b"' or "*" contains an ETag. */
bool gw_etag_matches(const char *list, const char *etag);
/* Checks the conditions of a request that stores an object. Sets *exclusive if the object must not
 * exist yet. If a condition fails, fills the reply and returns false. */
bool gw_condition_store(struct gw_request *req, bool *exclusive);

#endif
