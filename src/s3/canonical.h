/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The canonical form of an HTTP request, which a signature covers: "Task 1: Create a Canonical
 * Request" in the Amazon S3 API Reference, with S3's rules. The path is encoded once and not
 * normalised: "//" and "/./" stay. Called by sigv4.c. On a server, the request comes from the
 * network and may be malformed.
 */
#ifndef PST_S3_CANONICAL_H
#define PST_S3_CANONICAL_H

#include "common/text.h"
#include "s3/sigv4.h"

#define PST_QUERY_MAX 256 /* maximum number of parameters of a query */

/*
 * Appends the canonical request. `signed_headers` has the names of the signed headers, such as
 * "host;x-amz-date", and `payload` is the last line. The parameter X-Amz-Signature is left out.
 * Returns 0, -EINVAL if an escape is malformed or there are too many parameters, -ENOENT if a
 * signed header is missing, or -ENOMEM.
 */
int pst_canonical_put(const struct pst_sigv4_request *req, const char *signed_headers,
		      const char *payload, struct pst_text *out);

#endif
