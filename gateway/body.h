/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The body of a request: decodes aws-chunked, checks lengths, hashes and checksums, and puts the
 * bytes into a draft, a text or the stream to the upstream. Called by front.c. Only bytes that have
 * passed all checks may be published: the operation runs after gw_body_end().
 */
#ifndef GW_BODY_H
#define GW_BODY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/text.h"
#include "s3/hash.h"
#include "store.h"

/* Longest body that is kept in memory: a list of keys or parts, and any other document. */
#define GW_BODY_LIST_MAX (4u << 20)
#define GW_BODY_TEXT_MAX (64u << 10)
#define GW_BODY_ALL_MAX (64u << 20) /* limit for all requests together */

struct gw_request;
struct pst_chunked;

enum gw_body_kind { GW_BODY_NONE, GW_BODY_TEXT, GW_BODY_FILE, GW_BODY_STREAM };

struct gw_body {
	enum gw_body_kind kind;
	struct gw_draft draft; /* of kind FILE */
	struct pst_text text;  /* of kind TEXT */
	uint64_t want, got;    /* length of the decoded body: expected, received */
	uint64_t max;	       /* of the decoded body */
	bool want_known;
	char md5[33]; /* hex digits; "" if it was not computed */
	/* The checksum, in base64, and its kind; PST_HASH_KINDS if there is none. */
	enum pst_hash_kind sum_kind;
	char sum[48];
	/* Checksum to compute if the request has none; PST_HASH_KINDS for none. */
	enum pst_hash_kind sum_default;
	/* used by body.c only */
	struct pst_hash *sha256_hash, *md5_hash, *sum_hash;
	struct pst_chunked *chunked;
	char sha256_want[65];
	unsigned char md5_want[16];
	bool has_md5_want, sum_in_trailer;
	uint64_t reserved; /* bytes that count in the server's `text_bytes` */
	char sum_want[48];
};

/* Prepares for the body by the request's headers. Returns false after it has filled the reply with
 * an error. */
bool gw_body_begin(struct gw_request *req, enum gw_body_kind kind);
/* Takes a piece. Returns false after it has filled the reply with an error. */
bool gw_body_put(struct gw_request *req, const char *bytes, size_t len);
/* Takes a piece of an object that is already where it belongs: only hashes and counts it. */
void gw_body_note(struct gw_request *req, const char *bytes, size_t len);
/* Checks the body as a whole. Returns false after it has filled the reply with an error. */
bool gw_body_end(struct gw_request *req);
void gw_body_close(struct gw_request *req);

#endif
