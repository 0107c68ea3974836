/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The headers of a request that stores an object: which of them are kept as metadata, and which the
 * gateway cannot honour. Called by the operations that store. A header that it cannot honour must
 * be refused, never ignored.
 */
#ifndef GW_STORED_H
#define GW_STORED_H

#include "request.h"

/* Checks the headers. Returns false after it has filled the reply. */
bool gw_stored_check(struct gw_request *req);
/* Adds the headers that are kept. */
void gw_stored_add(const struct gw_request *req, struct gw_meta *meta);
/* Adds the checksum of the request's body, and puts it into the reply. */
void gw_stored_sum(struct gw_request *req, struct gw_meta *meta);
/* Appends the encodings of a header Content-Encoding. It leaves out aws-chunked, which is the
 * encoding of the request and not of the object. */
void gw_encoding_put(struct pst_text *out, const char *value);
/* Writes the ETag for the request's body: its MD5 digest, or an opaque ETag if there is none. */
void gw_stored_etag(const struct gw_request *req, char out[GW_ETAG_MAX]);
/* Writes an ETag that is no digest: 32 hex digits and a suffix. */
void gw_opaque_etag(char out[GW_ETAG_MAX]);

#endif
