/* SPDX-License-Identifier: Apache-2.0 */
/* Implements CopyObject and UploadPartCopy. Called through route.c. */
#include "op_copy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "auth.h"
#include "common/digits.h"
#include "condition.h"
#include "copy.h"
#include "range.h"
#include "s3/uri.h"
#include "stored.h"
#include "sums.h"
#include "upload.h"
#include "xml_write.h"

/* The source of a copy. */
struct source {
	char *memory; /* memory that contains the names below */
	const char *bucket, *key;
	size_t key_len;
	struct gw_object object;
};

/* Finds bucket and key in the header x-amz-copy-source. On an error, fills the reply and returns
 * false. */
static bool source_parse(struct gw_request *req, struct source *source)
{
	const char *text = gw_header(req, "x-amz-copy-source"), *version;
	char *slash;
	long len;

	text += *text == '/';
	version = strstr(text, "?versionId=");
	if (version && strcmp(version, "?versionId=null") != 0)
		return gw_fail(req, GW_NoSuchVersion, NULL) == 0;
	source->memory = malloc(strlen(text) + 1);
	if (!source->memory)
		return gw_fail(req, GW_SlowDown, NULL) == 0;
	len = pst_uri_parse(text, version ? (size_t)(version - text) : strlen(text), false,
			    source->memory);
	slash = len < 0 ? NULL : memchr(source->memory, '/', (size_t)len);
	if (!slash || !slash[1] || memchr(source->memory, '\0', (size_t)len))
		return gw_fail(req, GW_InvalidArgument,
			       "Copy Source must mention the source bucket and key: "
			       "sourcebucket/sourcekey") == 0;
	*slash = '\0';
	source->bucket = source->memory;
	source->key = slash + 1;
	source->key_len = (size_t)(source->memory + len - source->key);
	return true;
}

/* Opens the source, and checks rights and conditions. On an error, fills the reply and returns
 * false. */
static bool source_open(struct gw_request *req, struct source *source)
{
	int bucket, ret;

	source->object.fd = -1;
	if (!source_parse(req, source))
		return false;
	if (!gw_auth_may_read(req, source->bucket))
		return gw_fail(req, GW_AccessDenied, NULL) == 0;
	bucket = gw_bucket_open(&req->server->store, source->bucket);
	if (bucket < 0)
		return gw_fail_errno(req, bucket, GW_NoSuchBucket) == 0;
	ret = gw_object_open(&req->server->store, bucket, source->key, source->key_len,
			     &source->object);
	close(bucket);
	if (ret)
		return gw_fail_errno(req, ret, GW_NoSuchKey) == 0;
	if (gw_condition_check(req, "x-amz-copy-source-", &source->object))
		return gw_fail(req, GW_PreconditionFailed, NULL) == 0;
	return true;
}

static void source_close(struct source *source)
{
	if (source->object.fd >= 0)
		gw_object_close(&source->object);
	free(source->memory);
}

bool gw_check_copy(struct gw_request *req)
{
	const char *directive = gw_header(req, "x-amz-metadata-directive");
	bool exclusive;

	if (directive && strcmp(directive, "COPY") != 0 && strcmp(directive, "REPLACE") != 0)
		return gw_fail(req, GW_InvalidArgument, "Unknown metadata directive.") == 0;
	return gw_stored_check(req) && gw_condition_store(req, &exclusive);
}

/* The hashes that are computed during a copy. */
struct hashes {
	struct pst_hash *md5, *sum;
	enum pst_hash_kind sum_kind;
	char md5_hex[33], sum_text[48];
};

static bool hashes_open(struct gw_request *req, struct hashes *h, bool md5)
{
	const char *wanted = gw_header(req, "x-amz-checksum-algorithm");

	*h = (struct hashes){.sum_kind = wanted ? gw_sum_kind(wanted) : PST_HASH_KINDS};
	if (wanted && h->sum_kind == PST_HASH_KINDS)
		return gw_fail(req, GW_InvalidRequest,
			       "Checksum algorithm provided is unsupported.") == 0;
	if (md5)
		h->md5 = pst_hash_open(PST_HASH_MD5);
	if (wanted)
		h->sum = pst_hash_open(h->sum_kind);
	return true;
}

static void hashes_close(struct hashes *h)
{
	unsigned char digest[PST_HASH_MAX];

	if (h->md5 && pst_hash_end(h->md5, digest) == 16)
		pst_hex(digest, 16, h->md5_hex);
	if (h->sum)
		pst_base64(digest, pst_hash_end(h->sum, digest), h->sum_text);
	pst_hash_close(h->md5);
	pst_hash_close(h->sum);
}

/* Collects the metadata of the new object. */
static void meta_collect(struct gw_request *req, const struct source *source,
			 const struct hashes *h, const char *etag, struct gw_meta *meta)
{
	const char *directive = gw_header(req, "x-amz-metadata-directive"), *name, *value;
	const char *type = gw_meta_get(&source->object.meta, "x-amz-checksum-type");
	bool replace = directive && !strcmp(directive, "REPLACE");
	size_t at = 0;

	gw_meta_add(meta, "etag", etag);
	if (replace)
		gw_stored_add(req, meta);
	while (gw_meta_next(&source->object.meta, &at, &name, &value)) {
		bool internal = !strcmp(name, "etag") || !strcmp(name, "parts") ||
				!strcmp(name, "sums") || !strcmp(name, "upload");

		/* A checksum of type COMPOSITE is made of the parts' checksums. It does not apply
		 * to the copy, because the copy has no parts. */
		if (!strncmp(name, "x-amz-checksum-", 15)
			    ? !h->sum_text[0] && type && !strcmp(type, "FULL_OBJECT")
			    : !replace && !internal)
			gw_meta_add(meta, name, value);
	}
	if (h->sum_text[0]) {
		gw_meta_add(meta, gw_sum_of(h->sum_kind)->header, h->sum_text);
		gw_meta_add(meta, "x-amz-checksum-type", "FULL_OBJECT");
	}
}

/* Fills the reply to a copy. */
static void reply_copied(struct gw_request *req, const char *element, const char *etag,
			 const struct timespec *when, const struct hashes *h)
{
	struct pst_text *out = gw_reply_xml(req, 200);
	char date[40], quoted[GW_ETAG_MAX + 2];

	gw_iso_date(when, date);
	snprintf(quoted, sizeof(quoted), "\"%s\"", etag);
	pst_text_put_str(out, "<");
	pst_text_put_str(out, element);
	pst_text_put_str(out, GW_XML_SPACE ">");
	gw_xml_element(out, "LastModified", date);
	gw_xml_element(out, "ETag", quoted);
	if (h->sum_text[0])
		gw_xml_element(out, gw_sum_of(h->sum_kind)->element, h->sum_text);
	pst_text_put_str(out, "</");
	pst_text_put_str(out, element);
	pst_text_put_str(out, ">");
}

/* Copies the object to the request's key. */
static void copy_object(struct gw_request *req, struct source *source)
{
	struct gw_store *store = &req->server->store;
	const char *old = gw_meta_get(&source->object.meta, "etag");
	struct gw_draft *draft = &req->body.draft;
	bool exclusive = false, is_md5 = !strchr(old, '-');
	struct gw_meta meta = {0};
	char etag[GW_ETAG_MAX];
	struct hashes hashes;
	struct stat st;
	int ret;

	if (!gw_condition_store(req, &exclusive) ||
	    !hashes_open(req, &hashes, req->server->md5 && !is_md5))
		return;
	ret = gw_draft_open(store, draft);
	if (!ret)
		ret = gw_copy(&req->server->stopping, source->object.fd, 0,
			      (uint64_t)source->object.st.st_size, draft, 0, hashes.md5,
			      hashes.sum);
	hashes_close(&hashes);
	if (is_md5)
		snprintf(etag, sizeof(etag), "%s", old);
	else if (hashes.md5_hex[0])
		snprintf(etag, sizeof(etag), "%s", hashes.md5_hex);
	else
		gw_opaque_etag(etag);
	meta_collect(req, source, &hashes, etag, &meta);
	if (!ret)
		ret = gw_draft_finish(store, draft, &meta);
	if (!ret && fstat(draft->fd, &st))
		ret = -errno;
	/* During the copy, another request may have changed the object that the copy replaces. So
	 * check the conditions of the request again. */
	if (!ret && !gw_condition_store(req, &exclusive)) {
		gw_meta_close(&meta);
		return;
	}
	if (!ret)
		ret = gw_draft_publish(store, draft, req->bucket_fd, req->key, req->key_len,
				       exclusive);
	gw_meta_close(&meta);
	if (ret)
		gw_fail_errno(req, ret, GW_NoSuchBucket);
	else
		reply_copied(req, "CopyObjectResult", etag, &st.st_mtim, &hashes);
}

void gw_op_copy(struct gw_request *req)
{
	const char *directive = gw_header(req, "x-amz-metadata-directive");
	struct source source = {0};

	if (source_open(req, &source)) {
		if (!strcmp(source.bucket, req->bucket) && source.key_len == req->key_len &&
		    !memcmp(source.key, req->key, req->key_len) &&
		    (!directive || strcmp(directive, "REPLACE") != 0))
			gw_fail(req, GW_InvalidRequest,
				"This copy request is illegal because it is trying to copy an "
				"object to itself without changing the object's metadata, storage "
				"class, website redirect location or encryption attributes.");
		else if (source.object.st.st_size > (off_t)req->server->body_max)
			gw_fail(req, GW_InvalidRequest,
				"The source is too large for one copy; copy it in parts.");
		else
			copy_object(req, &source);
	}
	source_close(&source);
}

/* Finds the range of the source that UploadPartCopy asks for. On an error, fills the reply and
 * returns false. */
static bool part_range(struct gw_request *req, const struct source *source, uint64_t *at,
		       uint64_t *len)
{
	const char *range = gw_header(req, "x-amz-copy-source-range"), *dash;
	uint64_t size = (uint64_t)source->object.st.st_size;

	*at = 0;
	*len = size;
	if (!range)
		return true;
	dash = strchr(range, '-');
	if (gw_range_parse(range, size, at, len) != GW_RANGE_OK || !dash || dash[-1] == '=' ||
	    !dash[1] || strtoull(dash + 1, NULL, 10) >= size)
		return gw_fail(req, GW_InvalidArgument,
			       "The x-amz-copy-source-range value must be of the form "
			       "bytes=first-last, and within the source object.") == 0;
	return true;
}

/* Copies a range of the source object into a part of a multipart upload. */
static void copy_part(struct gw_request *req, struct source *source, struct gw_upload *upload)
{
	struct gw_store *store = &req->server->store;
	struct gw_draft *draft = &req->body.draft;
	const char *wanted = gw_meta_get(&upload->meta, "x-amz-checksum-algorithm");
	char etag[GW_ETAG_MAX];
	struct gw_meta meta = {0};
	struct hashes hashes;
	struct stat st;
	uint64_t at, len;
	unsigned number;
	int ret;

	if (!part_range(req, source, &at, &len) || !hashes_open(req, &hashes, req->server->md5))
		return;
	if (wanted && !hashes.sum) {
		hashes.sum_kind = gw_sum_kind(wanted);
		hashes.sum = pst_hash_open(hashes.sum_kind);
	}
	ret = gw_draft_open(store, draft);
	if (!ret)
		ret = gw_copy(&req->server->stopping, source->object.fd, at, len, draft, 0,
			      hashes.md5, hashes.sum);
	hashes_close(&hashes);
	if (hashes.md5_hex[0])
		snprintf(etag, sizeof(etag), "%s", hashes.md5_hex);
	else
		gw_opaque_etag(etag);
	gw_meta_add(&meta, "etag", etag);
	if (hashes.sum_text[0])
		gw_meta_add(&meta, gw_sum_of(hashes.sum_kind)->header, hashes.sum_text);
	if (!ret)
		ret = gw_draft_finish(store, draft, &meta);
	if (!ret && fstat(draft->fd, &st))
		ret = -errno;
	number = (unsigned)gw_param_number(req, "partNumber", 0, GW_PARTS_MAX);
	if (!ret)
		ret = gw_part_place(store, upload, number, draft);
	gw_meta_close(&meta);
	if (ret)
		gw_fail_errno(req, ret, GW_NoSuchUpload);
	else
		reply_copied(req, "CopyPartResult", etag, &st.st_mtim, &hashes);
}

void gw_op_copy_part(struct gw_request *req)
{
	struct source source = {0};
	struct gw_upload upload;
	int ret = gw_upload_open(&req->server->store, req->bucket, gw_param(req, "uploadId"),
				 req->key, &upload);

	if (ret) {
		gw_fail_errno(req, ret, GW_NoSuchUpload);
		return;
	}
	if (source_open(req, &source))
		copy_part(req, &source, &upload);
	source_close(&source);
	gw_upload_close(&upload);
}
