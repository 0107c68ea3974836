/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decodes bodies with the content encoding aws-chunked: chunks with or without signatures, and
 * trailers with a checksum. Written from "Signature Calculations for the Authorization Header:
 * Transferring Payload in Multiple Chunks" and "Including Trailing Headers" in the Amazon S3 API
 * Reference. Called by the gateway. The input comes from the network.
 */
#ifndef PST_S3_CHUNKED_H
#define PST_S3_CHUNKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "s3/sigv4.h"

#define PST_CHUNK_LEN_MAX (1u << 30) /* maximum length of one chunk, in bytes */

struct pst_chunked;

/* Begins a body. `payload` is the value of x-amz-content-sha256, such as
 * STREAMING-AWS4-HMAC-SHA256-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER or
 * STREAMING-UNSIGNED-PAYLOAD-TRAILER. `claim` is the signature of the request's headers, which must
 * have been verified; it is copied. Returns NULL with errno ENOMEM if there is no memory, or EINVAL
 * if the payload is of another kind. */
struct pst_chunked *pst_chunked_open(const char *payload, const struct pst_sigv4_claim *claim);

/*
 * Decodes the next `len` bytes. Calls put() for each piece of the decoded body; a result of put()
 * other than 0 ends the call. Returns 0, put()'s result, -EBADMSG if the encoding is malformed,
 * -EACCES if the signature of a chunk or of the trailers is wrong, or -ENOMEM. After an error,
 * every call returns the same error.
 *
 * The signature of a chunk is checked after its last byte. So put() gets bytes that are not
 * authenticated yet, and the caller must not publish them before pst_chunked_end returns 0.
 */
int pst_chunked_put(struct pst_chunked *body, const char *bytes, size_t len,
		    int (*put)(void *user, const char *bytes, size_t len), void *user);

/* Checks that the body is complete. Returns 0 or -EBADMSG. */
int pst_chunked_end(const struct pst_chunked *body);

/* Returns the value of the trailer `name`, such as "x-amz-checksum-crc32", or NULL. */
const char *pst_chunked_trailer(const struct pst_chunked *body, const char *name);
void pst_chunked_close(struct pst_chunked *body);

#endif
