/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AWS Signature Version 4 for S3, in both roles: a client signs a request or makes a presigned
 * query, and a server checks either. Written from the specification, "Authenticating Requests (AWS
 * Signature Version 4)" in the Amazon S3 API Reference. Called by the storage of objects and by the
 * gateway. No secret may appear in a message.
 */
#ifndef PST_S3_SIGV4_H
#define PST_S3_SIGV4_H

#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#include "common/text.h"

#define PST_SIGV4_UNSIGNED "UNSIGNED-PAYLOAD"
#define PST_SIGV4_DATE 17 /* "20261122T190000Z", with its NUL */
#define PST_SIGV4_EXPIRES_MAX                                                       \
	(7 * 24 * 3600u)	 /* maximum validity of a presigned URL, in seconds \
				  */
#define PST_SIGV4_HEADERS_MAX 64 /* maximum number of headers of a request */

struct pst_header {
	const char *name; /* name in lower case */
	const char *value;
};

/* The parts of an HTTP request that a signature covers. The caller owns all strings. */
struct pst_sigv4_request {
	const char *method; /* such as "GET" */
	const char *path;   /* path as it is sent: percent-encoded, begins with a slash */
	/* query as it is sent, without the question mark; "" if there is none */
	const char *query;
	const struct pst_header *headers;
	unsigned header_count;
	/* Value of x-amz-content-sha256: hex digits, UNSIGNED-PAYLOAD or STREAMING-... */
	const char *payload;
};

/* Caches a signing key, which is the same for all signatures with one secret on one day in one
 * region. Any thread may use the cache. The cached key is as secret as the secret itself. */
struct pst_sigv4_day;

/* Returns an empty cache for the signing keys of one secret, or NULL if there is no memory. */
struct pst_sigv4_day *pst_sigv4_day_open(void);
/* Overwrites the cached key and frees the cache; NULL is allowed. */
void pst_sigv4_day_close(struct pst_sigv4_day *day);

/* A client's keys. */
struct pst_sigv4_keys {
	const char *access_key, *secret;
	const char *token;  /* session token; NULL if there is none */
	const char *region; /* such as "us-east-1" */
	/* cache for this secret; if NULL, each signature computes its signing key */
	struct pst_sigv4_day *day;
};

/* Writes a time in the form of x-amz-date. The year has four digits. */
void pst_sigv4_date(time_t now, char out[PST_SIGV4_DATE]);

/*
 * Appends the value of the header Authorization. The request's headers must contain host,
 * x-amz-date (the same time), x-amz-content-sha256, and x-amz-security-token if there is a token.
 * All headers of the request are signed, so the caller leaves out those that a proxy may change.
 * Sets out->failed if there is too little memory, if there are more than PST_SIGV4_HEADERS_MAX
 * headers, or if the path or the query is malformed.
 */
void pst_sigv4_sign(const struct pst_sigv4_request *req, const struct pst_sigv4_keys *keys,
		    time_t now, struct pst_text *out);

/* Appends the whole query of a presigned URL, with the request's own query first. The signed
 * headers are all headers of the request, usually only host. A client that uses the URL must send
 * them unchanged. The URL is valid for `expires_s` seconds, from 1 to PST_SIGV4_EXPIRES_MAX. Errors
 * are reported as by pst_sigv4_sign. */
void pst_sigv4_presign(const struct pst_sigv4_request *req, const struct pst_sigv4_keys *keys,
		       time_t now, unsigned expires_s, struct pst_text *out);

/* Results of the check of a signature. pst_sigv4_code has the error codes of S3. */
enum pst_sigv4_result {
	PST_SIGV4_OK,
	PST_SIGV4_ANONYMOUS, /* the request has no signature */
	PST_SIGV4_MALFORMED,
	PST_SIGV4_OLD_VERSION, /* signature version 2 or an unknown algorithm */
	/* the signature is for another region, or for another service than s3 */
	PST_SIGV4_WRONG_REGION,
	PST_SIGV4_SKEWED,	   /* the time differs by more than 15 minutes */
	PST_SIGV4_EXPIRED,	   /* a presigned URL is too old */
	PST_SIGV4_UNSIGNED_HEADER, /* host or a header x-amz-* is not signed */
	PST_SIGV4_WRONG_SIGNATURE,
	PST_SIGV4_UNKNOWN_KEY,
};

/* The fields of a request's signature, not yet verified. The strings end with a NUL. */
struct pst_sigv4_claim {
	bool presigned;
	char access_key[129];
	char date[PST_SIGV4_DATE];
	time_t time; /* the time of `date` as a number */
	char region[65];
	/* "s3"; any other value means that the signature is for another service */
	char service[33];
	unsigned expires_s; /* validity of a presigned URL, in seconds */
	char signature[65];
	/* Names of the signed headers, as the request has them, such as "host;x-amz-date". */
	char signed_headers[2049];
	/* Key of the signature and of signed chunks (chunked.h); set by pst_sigv4_verify. */
	unsigned char signing_key[32];
};

/* Finds the signature of a request, in the header authorization or in the query. Returns OK,
 * ANONYMOUS, MALFORMED or OLD_VERSION. The names of signed headers must be in lower case and in
 * order. If x-amz-date is missing, takes the time from the header date. */
enum pst_sigv4_result pst_sigv4_claim(const struct pst_sigv4_request *req,
				      struct pst_sigv4_claim *out);

/* Checks a signature. `secret` is the secret of the claimed access key; NULL if the server does not
 * have this key. `day` is the cache of this secret's signing key, or NULL. `region` is the server's
 * region; NULL accepts any. For a presigned request, the function ignores req->payload and uses the
 * header x-amz-content-sha256, or UNSIGNED-PAYLOAD without this header. The caller must compare the
 * used value with the body. */
enum pst_sigv4_result pst_sigv4_verify(const struct pst_sigv4_request *req,
				       struct pst_sigv4_claim *claim, const char *secret,
				       struct pst_sigv4_day *day, const char *region, time_t now);

/* Returns S3's error code for a result, such as "SignatureDoesNotMatch"; "" for OK. */
const char *pst_sigv4_code(enum pst_sigv4_result result);

#endif
