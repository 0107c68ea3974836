/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the bodies of requests, see body.h. */
#include "body.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/digits.h"
#include "request.h"
#include "s3/chunked.h"
#include "stream.h"
#include "sums.h"

static bool is_base64_of(const char *text, size_t len)
{
	unsigned char bytes[64];

	return strlen(text) < 48 &&
	       pst_base64_parse(text, strlen(text), bytes, sizeof(bytes)) == (long)len;
}

/* Reads from the headers which checksum the body must have. One header states its value, or the
 * header x-amz-trailer announces that the value follows the body. */
static bool sum_begin(struct gw_request *req)
{
	static const char prefix[] = "x-amz-checksum-";
	const char *trailer = gw_header(req, "x-amz-trailer");
	const char *wanted = gw_header(req, "x-amz-sdk-checksum-algorithm");
	struct gw_body *body = &req->body;

	/* In CompleteMultipartUpload, the header has the checksum of the new object. It is not the
	 * checksum of this body, which is a list of parts. gw_assemble checks it. */
	if (!strcmp(req->http->method, "POST") && gw_param_find(req, "uploadId"))
		return true;
	for (unsigned i = 0; i < req->http->header_count; i++) {
		const struct pst_header *header = &req->http->headers[i];
		enum pst_hash_kind kind;

		if (strncmp(header->name, prefix, strlen(prefix)) != 0)
			continue;
		kind = gw_sum_kind(header->name + strlen(prefix));
		if (kind == PST_HASH_KINDS)
			/* this is x-amz-checksum-mode, -algorithm or -type, which is no checksum */
			continue;
		if (body->sum_kind != PST_HASH_KINDS)
			return gw_fail(req, GW_InvalidRequest,
				       "Expecting a single x-amz-checksum- header. Multiple "
				       "checksum Types are not allowed.") == 0;
		if (!is_base64_of(header->value, pst_hash_len(kind)))
			return gw_fail(req, GW_InvalidRequest, "Value for %s header is invalid.",
				       header->name) == 0;
		body->sum_kind = kind;
		snprintf(body->sum_want, sizeof(body->sum_want), "%s", header->value);
	}
	if (trailer && !strncasecmp(trailer, prefix, strlen(prefix)) &&
	    body->sum_kind == PST_HASH_KINDS) {
		body->sum_kind = gw_sum_kind(trailer + strlen(prefix));
		body->sum_in_trailer = body->sum_kind != PST_HASH_KINDS;
	}
	if (trailer && !body->sum_in_trailer)
		return gw_fail(req, GW_InvalidRequest,
			       "The value specified in the x-amz-trailer header is not "
			       "supported") == 0;
	if (wanted && body->sum_kind == PST_HASH_KINDS)
		body->sum_kind = gw_sum_kind(wanted);
	else if (wanted && body->sum_kind != gw_sum_kind(wanted))
		return gw_fail(req, GW_InvalidRequest,
			       "Value for x-amz-sdk-checksum-algorithm header is invalid.") == 0;
	if (body->sum_kind == PST_HASH_KINDS)
		body->sum_kind = body->sum_default;
	if (body->sum_kind != PST_HASH_KINDS) {
		body->sum_hash = pst_hash_open(body->sum_kind);
		if (!body->sum_hash)
			return gw_fail(req, GW_SlowDown, NULL) == 0;
	}
	return true;
}

/* Reads the header Content-MD5. Begins to compute the MD5 digest of the body if this header or the
 * ETag needs it. */
static bool digests_begin(struct gw_request *req)
{
	const char *md5 = gw_header(req, "content-md5");
	struct gw_body *body = &req->body;

	if (md5) {
		if (pst_base64_parse(md5, strlen(md5), body->md5_want, 16) != 16)
			return gw_fail(req, GW_InvalidDigest, NULL) == 0;
		body->has_md5_want = true;
	}
	/* An object whose bytes come by RDMA has an opaque ETag. For an MD5 digest, the CPU would
	 * have to read all its bytes. */
	if (md5 || (body->kind == GW_BODY_FILE && req->server->md5 && !req->remote)) {
		body->md5_hash = pst_hash_open(PST_HASH_MD5);
		/* Without MD5, as in FIPS mode, the ETag is opaque. But a header Content-MD5 cannot
		 * be checked then. */
		if (!body->md5_hash && md5)
			return gw_fail(req, GW_NotImplemented, "MD5 is not available.") == 0;
	}
	return true;
}

/* Reads from x-amz-content-sha256 whether the body has the encoding aws-chunked, or which SHA-256
 * digest it must have. On an error, fills the reply and returns false. */
static bool payload_begin(struct gw_request *req)
{
	const char *payload = gw_header(req, "x-amz-content-sha256");
	struct gw_body *body = &req->body;

	if (!payload || !strcmp(payload, PST_SIGV4_UNSIGNED))
		return true;
	if (!strncmp(payload, "STREAMING-", 10)) {
		body->chunked = pst_chunked_open(payload, req->claim);
		if (!body->chunked)
			return gw_fail(req, errno == EINVAL ? GW_NotImplemented : GW_SlowDown,
				       NULL) == 0;
		return true;
	}
	if (strlen(payload) != 64 || strspn(payload, "0123456789abcdef") != 64)
		return gw_fail(req, GW_InvalidArgument,
			       "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-... or a "
			       "valid sha256 value.") == 0;
	memcpy(body->sha256_want, payload, 65);
	body->sha256_hash = pst_hash_open(PST_HASH_SHA256);
	return body->sha256_hash || gw_fail(req, GW_SlowDown, NULL) == 0;
}

static bool length_parse(const char *text, uint64_t *out)
{
	char *end;

	if (!text || !*text || strspn(text, "0123456789") != strlen(text) || strlen(text) > 18)
		return false;
	*out = strtoull(text, &end, 10);
	return true;
}

/* Reads from the headers which length the decoded body must have. On an error, fills the reply and
 * returns false. */
static bool length_begin(struct gw_request *req)
{
	const char *length = gw_header(req, "content-length");
	const char *decoded = gw_header(req, "x-amz-decoded-content-length");
	const char *transfer = gw_header(req, "transfer-encoding");
	struct gw_body *body = &req->body;
	bool is_file = body->kind == GW_BODY_FILE || body->kind == GW_BODY_STREAM;
	bool is_list = gw_param_find(req, "uploadId") || gw_param_find(req, "delete");

	body->max = is_file ? req->server->body_max : is_list ? GW_BODY_LIST_MAX : GW_BODY_TEXT_MAX;
	if (body->chunked)
		length = decoded;
	if (length && !length_parse(length, &body->want))
		return gw_fail(req, GW_InvalidArgument, "The length of the body is malformed.") ==
		       0;
	body->want_known = length != NULL;
	if (!length && (body->kind == GW_BODY_FILE || (is_file && transfer)))
		return gw_fail(req, GW_MissingContentLength, NULL) == 0;
	if (!length && !transfer)
		body->want_known = true; /* there is no body */
	if (body->want > body->max)
		return gw_fail(req, is_file ? GW_EntityTooLarge : GW_MaxMessageLengthExceeded,
			       NULL) == 0;
	return true;
}

bool gw_body_begin(struct gw_request *req, enum gw_body_kind kind)
{
	struct gw_body *body = &req->body;
	int ret;

	body->kind = kind;
	if (!payload_begin(req) || !length_begin(req) || !digests_begin(req) || !sum_begin(req))
		return false;
	if (kind != GW_BODY_FILE)
		return true;
	ret = gw_draft_open(&req->server->store, &body->draft);
	return !ret || gw_fail_errno(req, ret, GW_InternalError) == 0;
}

/* Appends bytes to a body of the kind GW_BODY_TEXT, which stays in memory. Returns 0, or -1 after
 * it has filled the reply with an error. */
static int text_put(struct gw_request *req, const char *bytes, size_t len)
{
	struct gw_body *body = &req->body;

	if (len > body->max - body->got)
		return gw_fail(req, GW_MaxMessageLengthExceeded, NULL);
	body->reserved += len;
	if (atomic_fetch_add(&req->server->text_bytes, len) + len > GW_BODY_ALL_MAX)
		return gw_fail(req, GW_SlowDown, NULL);
	pst_text_put(&body->text, bytes, len);
	return body->text.failed ? gw_fail(req, GW_SlowDown, NULL) : 0;
}

void gw_body_note(struct gw_request *req, const char *bytes, size_t len)
{
	struct gw_body *body = &req->body;

	if (body->sha256_hash)
		pst_hash_put(body->sha256_hash, bytes, len);
	if (body->md5_hash)
		pst_hash_put(body->md5_hash, bytes, len);
	if (body->sum_hash)
		pst_hash_put(body->sum_hash, bytes, len);
	body->got += len;
}

/* Hashes a piece of the decoded body, and stores it in the place for the body's kind. Returns 0, or
 * -EPIPE after it has filled the reply with an error. */
static int decoded_put(void *user, const char *bytes, size_t len)
{
	struct gw_request *req = user;
	struct gw_body *body = &req->body;
	int ret = 0;

	if (body->want_known && len > body->want - body->got) {
		gw_fail(req, GW_IncompleteBody, NULL);
		return -EPIPE;
	}
	if (body->md5_hash)
		pst_hash_put(body->md5_hash, bytes, len);
	if (body->sum_hash)
		pst_hash_put(body->sum_hash, bytes, len);
	if (body->kind == GW_BODY_FILE) {
		ret = gw_draft_write(&body->draft, bytes, len, body->got);
		if (ret)
			gw_fail_errno(req, ret, GW_InternalError);
	} else if (body->kind == GW_BODY_STREAM) {
		gw_stream_put(req->http->stream, bytes, len);
	} else {
		ret = text_put(req, bytes, len);
	}
	body->got += len;
	return ret ? -EPIPE : 0;
}

static bool fail_chunked(struct gw_request *req, int ret)
{
	if (ret == -EACCES)
		gw_fail(req, GW_SignatureDoesNotMatch,
			"The signature of a chunk of the body does not match.");
	else if (ret == -ENOMEM)
		gw_fail(req, GW_SlowDown, NULL);
	else if (ret != -EPIPE)
		gw_fail(req, GW_IncompleteBody, "The encoding aws-chunked of the body is wrong.");
	return false;
}

bool gw_body_put(struct gw_request *req, const char *bytes, size_t len)
{
	struct gw_body *body = &req->body;
	int ret;

	if (body->sha256_hash)
		pst_hash_put(body->sha256_hash, bytes, len);
	if (!body->chunked)
		return !decoded_put(req, bytes, len);
	ret = pst_chunked_put(body->chunked, bytes, len, decoded_put, req);
	return !ret || fail_chunked(req, ret);
}

/* Compares the computed checksum of the body with that in the header or the trailer. */
static bool sum_end(struct gw_request *req)
{
	struct gw_body *body = &req->body;
	unsigned char digest[PST_HASH_MAX];
	const char *name = gw_sum_of(body->sum_kind)->header;
	size_t len;

	len = pst_hash_end(body->sum_hash, digest);
	pst_base64(digest, len, body->sum);
	if (body->sum_in_trailer) {
		const char *trailer;

		trailer = body->chunked ? pst_chunked_trailer(body->chunked, name) : NULL;
		if (!trailer || !is_base64_of(trailer, pst_hash_len(body->sum_kind)))
			return gw_fail(req, GW_InvalidRequest,
				       "Value for %s trailing header is "
				       "invalid.",
				       name) == 0;
		snprintf(body->sum_want, sizeof(body->sum_want), "%s", trailer);
	}
	if (body->sum_want[0] && strcmp(body->sum_want, body->sum) != 0)
		return gw_fail(req, GW_BadDigest,
			       "The %s you specified did not match the "
			       "calculated checksum.",
			       pst_hash_name(body->sum_kind)) == 0;
	return true;
}

bool gw_body_end(struct gw_request *req)
{
	struct gw_body *body = &req->body;
	unsigned char digest[PST_HASH_MAX];
	char hex[65];

	if (body->chunked && pst_chunked_end(body->chunked))
		return fail_chunked(req, -EBADMSG);
	if (body->want_known && body->got != body->want)
		return gw_fail(req, GW_IncompleteBody, NULL) == 0;
	if (body->sha256_hash) {
		pst_hex(digest, pst_hash_end(body->sha256_hash, digest), hex);
		if (strcmp(hex, body->sha256_want) != 0)
			return gw_fail(req, GW_XAmzContentSHA256Mismatch, NULL) == 0;
	}
	if (body->md5_hash) {
		if (pst_hash_end(body->md5_hash, digest) != 16)
			return gw_fail(req, GW_InternalError, NULL) == 0;
		if (body->has_md5_want && memcmp(digest, body->md5_want, 16) != 0)
			return gw_fail(req, GW_BadDigest, NULL) == 0;
		pst_hex(digest, 16, body->md5);
	}
	return !body->sum_hash || sum_end(req);
}

void gw_body_close(struct gw_request *req)
{
	struct gw_body *body = &req->body;

	gw_draft_close(&req->server->store, &body->draft);
	free(body->text.at);
	memset(&body->text, 0, sizeof(body->text));
	atomic_fetch_sub(&req->server->text_bytes, body->reserved);
	body->reserved = 0;
	pst_hash_close(body->sha256_hash);
	pst_hash_close(body->md5_hash);
	pst_hash_close(body->sum_hash);
	if (body->chunked)
		pst_chunked_close(body->chunked);
	body->sha256_hash = body->md5_hash = body->sum_hash = NULL;
	body->chunked = NULL;
}
