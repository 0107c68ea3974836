/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The body of a request: decodes aws-chunked, and checks lengths, hashes and checksums. It puts the
 * bytes into a draft (a file that is not published yet), a text in memory or the stream to the
 * upstream server. Called by front.c. Only bytes that have passed all checks may be published: the
 * operation runs after gw_body_end().
 */
#ifndef GW_BODY_H
#define GW_BODY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/text.h"
#include "s3/hash.h"
#include "store.h"

/* Maximum length in bytes of a request's body that stays in memory: LIST for a list of keys or
 * parts, TEXT for any other document. */
#define GW_BODY_LIST_MAX (4u << 20)
#define GW_BODY_TEXT_MAX (64u << 10)
/* maximum total length in bytes of all bodies that are in memory at a time */
#define GW_BODY_ALL_MAX (64u << 20)

struct gw_request;
struct pst_chunked;

enum gw_body_kind { GW_BODY_NONE, GW_BODY_TEXT, GW_BODY_FILE, GW_BODY_STREAM };

struct gw_body {
	enum gw_body_kind kind;
	struct gw_draft draft; /* for kind FILE: the file that receives the body */
	struct pst_text text;  /* for kind TEXT: the body */
	uint64_t want, got;    /* length of the decoded body: expected, received */
	uint64_t max;	       /* maximum length of the decoded body */
	bool want_known;
	char md5[33]; /* MD5 digest of the body in hex digits; "" if it was not computed */
	/* The checksum, in base64, and its kind; PST_HASH_KINDS if there is none. */
	enum pst_hash_kind sum_kind;
	char sum[48];
	/* Kind of the checksum to compute if the request has none; PST_HASH_KINDS: none. */
	enum pst_hash_kind sum_default;
	/* used by body.c only */
	struct pst_hash *sha256_hash, *md5_hash, *sum_hash;
	struct pst_chunked *chunked;
	char sha256_want[65];
	unsigned char md5_want[16];
	bool has_md5_want, sum_in_trailer;
	/* number of bytes that this body has added to the server's `text_bytes` */
	uint64_t reserved;
	char sum_want[48];
};

/* Prepares to receive the body that the request's headers announce. On an error, fills the reply
 * and returns false. */
bool gw_body_begin(struct gw_request *req, enum gw_body_kind kind);
/* Handles the next piece of the body as it came from the network. On an error, fills the reply and
 * returns false. */
bool gw_body_put(struct gw_request *req, const char *bytes, size_t len);
/* Handles a piece of a body that came by RDMA and is already in its file: only hashes and counts
 * it. */
void gw_body_note(struct gw_request *req, const char *bytes, size_t len);
/* Called at the end of the body: checks its length, hashes and checksums. On an error, fills the
 * reply and returns false. */
bool gw_body_end(struct gw_request *req);
void gw_body_close(struct gw_request *req);

#endif
