/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The headers of a request that stores an object: which of them are kept as metadata, and which ask
 * for features that the gateway does not have. Called by the operations that store objects. A
 * header for such a feature must be refused, never ignored.
 */
#ifndef GW_STORED_H
#define GW_STORED_H

#include "request.h"

/* Checks that no header asks for a feature that the gateway does not have. On an error, fills the
 * reply and returns false. */
bool gw_stored_check(struct gw_request *req);
/* Adds the headers that are kept with the object to its metadata. */
void gw_stored_add(const struct gw_request *req, struct gw_meta *meta);
/* Adds the checksum of the request's body to the metadata and to the reply. */
void gw_stored_sum(struct gw_request *req, struct gw_meta *meta);
/* Appends the value of a header Content-Encoding without "aws-chunked", which is the encoding of
 * the request and not of the object. */
void gw_encoding_put(struct pst_text *out, const char *value);
/* Writes the ETag of an object whose bytes are the request's body: the MD5 digest, or an opaque
 * ETag if no digest was computed. */
void gw_stored_etag(const struct gw_request *req, char out[GW_ETAG_MAX]);
/* Writes an ETag that is no digest: 32 hex digits and a suffix. */
void gw_opaque_etag(char out[GW_ETAG_MAX]);

#endif
