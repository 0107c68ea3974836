/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the handling of headers that are stored with objects, see stored.h. */
#include "stored.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "common/digits.h"
#include "s3/hash.h"
#include "sums.h"

#define USER_META_MAX 2048 /* as in S3: maximum length in bytes of all user metadata */

static bool begins(const char *text, const char *begin)
{
	return !strncmp(text, begin, strlen(begin));
}

/* Returns whether a header asks for a feature that the gateway does not have. */
static bool is_beyond(const struct pst_header *header)
{
	static const char *const names[] = {
		"x-amz-server-side-encryption", "x-amz-object-lock-", "x-amz-grant-",
		"x-amz-copy-source-server-side-encryption", "x-amz-write-offset-bytes"};

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (begins(header->name, names[i]))
			return true;
	if (!strcmp(header->name, "x-amz-tagging"))
		return *header->value != '\0';
	return !strcmp(header->name, "x-amz-acl") && strcmp(header->value, "private") != 0 &&
	       !begins(header->value, "bucket-owner-");
}

bool gw_stored_check(struct gw_request *req)
{
	const char *class = gw_header(req, "x-amz-storage-class");
	size_t user = 0;

	for (unsigned i = 0; i < req->http->header_count; i++) {
		const struct pst_header *header = &req->http->headers[i];

		if (is_beyond(header)) {
			gw_fail(req, GW_NotImplemented, "%s is not implemented.", header->name);
			return false;
		}
		if (begins(header->name, "x-amz-meta-"))
			user += strlen(header->name) - 11 + strlen(header->value);
	}
	if (class && strcmp(class, "STANDARD") != 0) {
		gw_fail(req, GW_InvalidStorageClass, NULL);
		return false;
	}
	if (user > USER_META_MAX) {
		gw_fail(req, GW_MetadataTooLarge, NULL);
		return false;
	}
	return true;
}

void gw_encoding_put(struct pst_text *out, const char *value)
{
	while (*value) {
		size_t n;

		value += strspn(value, ", \t");
		n = strcspn(value, ", \t");
		if (n && !(n == 11 && !strncasecmp(value, "aws-chunked", 11))) {
			if (out->len)
				pst_text_put_str(out, ",");
			pst_text_put(out, value, n);
		}
		value += n;
	}
}

static void encoding_add(struct gw_meta *meta, const char *value)
{
	struct pst_text encoding = {0};

	gw_encoding_put(&encoding, value);
	if (encoding.len)
		gw_meta_add(meta, "content-encoding", encoding.at);
	meta->items.failed |= encoding.failed;
	free(encoding.at);
}

void gw_stored_add(const struct gw_request *req, struct gw_meta *meta)
{
	static const char *const kept[] = {
		"content-type",	    "cache-control", "content-disposition",
		"content-language", "expires",	     "x-amz-website-redirect-location"};

	for (unsigned i = 0; i < req->http->header_count; i++) {
		const struct pst_header *header = &req->http->headers[i];

		if (!strcmp(header->name, "content-encoding"))
			encoding_add(meta, header->value);
		if (begins(header->name, "x-amz-meta-"))
			gw_meta_add(meta, header->name, header->value);
		for (unsigned j = 0; j < sizeof(kept) / sizeof(kept[0]); j++)
			if (!strcmp(header->name, kept[j]))
				gw_meta_add(meta, header->name, header->value);
	}
}

void gw_stored_sum(struct gw_request *req, struct gw_meta *meta)
{
	const char *header;

	if (req->body.sum_kind == PST_HASH_KINDS)
		return;
	header = gw_sum_of(req->body.sum_kind)->header;
	gw_meta_add(meta, header, req->body.sum);
	gw_header_add(req, header, req->body.sum);
}

void gw_stored_etag(const struct gw_request *req, char out[GW_ETAG_MAX])
{
	if (req->body.md5[0] && req->server->md5)
		memcpy(out, req->body.md5, sizeof(req->body.md5));
	else
		gw_opaque_etag(out);
}

void gw_opaque_etag(char out[GW_ETAG_MAX])
{
	unsigned char random[16];
	char hex[33];

	while (getrandom(random, sizeof(random), 0) != sizeof(random))
		;
	pst_hex(random, sizeof(random), hex);
	snprintf(out, GW_ETAG_MAX, "%s-1", hex);
}
