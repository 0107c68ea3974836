/* SPDX-License-Identifier: Apache-2.0 */
/* Implements multipart uploads, except UploadPartCopy. Called through route.c. */
#include "op_multipart.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "common/dir.h"
#include "assemble.h"
#include "s3/uri.h"
#include "rdma.h"
#include "stored.h"
#include "sums.h"
#include "upload.h"
#include "xml_read.h"
#include "xml_write.h"

#define UPLOADS_MAX 100000 /* maximum number of uploads that a listing reads */

static const char *upload_id(const struct gw_request *req)
{
	const char *id = gw_param(req, "uploadId");

	return id ? id : "";
}

/* Opens the request's upload. On an error, fills the reply and returns false. */
static bool upload_open(struct gw_request *req, struct gw_upload *upload)
{
	int ret =
		gw_upload_open(&req->server->store, req->bucket, upload_id(req), req->key, upload);

	if (ret)
		gw_fail_errno(req, ret, GW_NoSuchUpload);
	return !ret;
}

/* ---- CreateMultipartUpload ---- */

bool gw_check_create_upload(struct gw_request *req)
{
	const char *algorithm = gw_header(req, "x-amz-checksum-algorithm");
	const char *type = gw_header(req, "x-amz-checksum-type");
	enum pst_hash_kind kind = algorithm ? gw_sum_kind(algorithm) : PST_HASH_KINDS;

	if (!gw_stored_check(req))
		return false;
	if (algorithm && kind == PST_HASH_KINDS)
		return gw_fail(req, GW_InvalidRequest,
			       "Checksum algorithm provided is unsupported.") == 0;
	if (type && !algorithm)
		return gw_fail(req, GW_InvalidRequest,
			       "The x-amz-checksum-type header can only be "
			       "used with the x-amz-checksum-algorithm header.") == 0;
	if (type &&
	    ((!strcmp(type, "FULL_OBJECT") && (kind == PST_HASH_SHA1 || kind == PST_HASH_SHA256)) ||
	     (!strcmp(type, "COMPOSITE") && kind == PST_HASH_CRC64NVME) ||
	     (strcmp(type, "FULL_OBJECT") != 0 && strcmp(type, "COMPOSITE") != 0)))
		return gw_fail(req, GW_InvalidRequest,
			       "The %s checksum type cannot be used with "
			       "the %s checksum algorithm.",
			       type, algorithm) == 0;
	return true;
}

void gw_op_create_upload(struct gw_request *req)
{
	const char *algorithm = gw_header(req, "x-amz-checksum-algorithm");
	const char *type = gw_header(req, "x-amz-checksum-type");
	struct gw_meta meta = {0};
	char id[GW_UPLOAD_ID];
	struct pst_text *out;
	int ret;

	gw_stored_add(req, &meta);
	if (algorithm) {
		if (!type)
			type = gw_sum_kind(algorithm) == PST_HASH_CRC64NVME ? "FULL_OBJECT"
									    : "COMPOSITE";
		gw_meta_add(&meta, "x-amz-checksum-algorithm", algorithm);
		gw_meta_add(&meta, "x-amz-checksum-type", type);
		gw_header_add(req, "x-amz-checksum-algorithm", algorithm);
		gw_header_add(req, "x-amz-checksum-type", type);
	}
	ret = gw_upload_make(&req->server->store, req->bucket, req->key, &meta, id);
	gw_meta_close(&meta);
	if (ret) {
		gw_fail_errno(req, ret, GW_NoSuchBucket);
		return;
	}
	out = gw_reply_xml(req, 200);
	pst_text_put_str(out, "<InitiateMultipartUploadResult" GW_XML_SPACE ">");
	gw_xml_element(out, "Bucket", req->bucket);
	gw_xml_element(out, "Key", req->key);
	gw_xml_element(out, "UploadId", id);
	pst_text_put_str(out, "</InitiateMultipartUploadResult>");
}

/* ---- UploadPart ---- */

bool gw_check_part(struct gw_request *req)
{
	int64_t number = gw_param_number(req, "partNumber", 0, GW_PARTS_MAX + 1);
	struct gw_upload upload;
	const char *algorithm;

	if (number < 0)
		return false;
	if (number < 1 || number > GW_PARTS_MAX)
		return gw_fail(req, GW_InvalidArgument,
			       "Part number must be an integer between 1 and 10000, inclusive") ==
		       0;
	if (!gw_stored_check(req) || !gw_rdma_check(req) || !upload_open(req, &upload))
		return false;
	algorithm = gw_meta_get(&upload.meta, "x-amz-checksum-algorithm");
	if (algorithm)
		req->body.sum_default = gw_sum_kind(algorithm);
	gw_upload_close(&upload);
	return true;
}

void gw_op_put_part(struct gw_request *req)
{
	int64_t number = gw_param_number(req, "partNumber", 0, GW_PARTS_MAX);
	struct gw_store *store = &req->server->store;
	struct gw_meta meta = {0};
	struct gw_upload upload;
	char etag[GW_ETAG_MAX];
	int ret;

	if (!upload_open(req, &upload))
		return;
	gw_stored_etag(req, etag);
	gw_meta_add(&meta, "etag", etag);
	gw_stored_sum(req, &meta);
	ret = gw_draft_finish(store, &req->body.draft, &meta);
	if (!ret)
		ret = gw_part_place(store, &upload, (unsigned)number, &req->body.draft);
	gw_meta_close(&meta);
	gw_upload_close(&upload);
	if (ret) {
		gw_fail_errno(req, ret, GW_NoSuchUpload);
		return;
	}
	gw_header_etag(req, etag);
	gw_reply_empty(req, 200);
}

/* ---- CompleteMultipartUpload ---- */

static int complete_end(void *user, const char *path, const char *text, size_t len)
{
	static const char part[] = "CompleteMultipartUpload/Part/";
	struct gw_assembly *a = user;
	struct gw_assembly_part *p = a->count ? &a->parts[a->count - 1] : NULL;

	if (strncmp(path, part, strlen(part)) != 0 || !p)
		return 0;
	path += strlen(part);
	if (!strcmp(path, "PartNumber")) {
		if (!len || len > 5 || strspn(text, "0123456789") != len)
			return -EBADMSG;
		p->number = (unsigned)strtoul(text, NULL, 10);
	} else if (!strcmp(path, "ETag")) {
		bool quoted = len >= 2 && text[0] == '"' && text[len - 1] == '"';

		snprintf(p->etag, sizeof(p->etag), "%.*s", (int)(quoted ? len - 2 : len),
			 text + quoted);
	} else if (!strncmp(path, "Checksum", 8)) {
		snprintf(p->sum, sizeof(p->sum), "%s", text);
	}
	return 0;
}

static int complete_begin(void *user, const char *path)
{
	struct gw_assembly *a = user;

	if (strcmp(path, "CompleteMultipartUpload/Part") != 0)
		return 0;
	if (a->count == GW_PARTS_MAX)
		return -EBADMSG;
	a->count++;
	return 0;
}

static void reply_completed(struct gw_request *req, const char *etag, const struct gw_meta *meta)
{
	const char *type = gw_meta_get(meta, "x-amz-checksum-type");
	struct pst_text *out = gw_reply_xml(req, 200);
	char quoted[GW_ETAG_MAX + 2];

	snprintf(quoted, sizeof(quoted), "\"%s\"", etag);
	pst_text_put_str(out, "<CompleteMultipartUploadResult" GW_XML_SPACE ">");
	pst_text_put_str(out, "<Location>");
	gw_xml_text(out, req->path, strlen(req->path));
	pst_text_put_str(out, "</Location>");
	gw_xml_element(out, "Bucket", req->bucket);
	gw_xml_element(out, "Key", req->key);
	gw_xml_element(out, "ETag", quoted);
	gw_sums_put(out, meta);
	if (type)
		gw_xml_element(out, "ChecksumType", type);
	pst_text_put_str(out, "</CompleteMultipartUploadResult>");
}

/* Answers a repeated CompleteMultipartUpload whose first reply was lost, although the upload was
 * completed. Returns whether it was such a request. */
static bool complete_again(struct gw_request *req)
{
	struct gw_object object;
	const char *id;
	bool again;

	if (gw_object_open(&req->server->store, req->bucket_fd, req->key, req->key_len, &object))
		return false;
	id = gw_meta_get(&object.meta, "upload");
	again = id && !strcmp(id, upload_id(req));
	if (again)
		reply_completed(req, gw_meta_get(&object.meta, "etag"), &object.meta);
	gw_object_close(&object);
	return again;
}

void gw_op_complete(struct gw_request *req)
{
	static const struct gw_xml_calls calls = {complete_begin, complete_end};
	struct gw_assembly *a;
	struct gw_upload upload;
	int ret =
		gw_upload_open(&req->server->store, req->bucket, upload_id(req), req->key, &upload);

	if (!ret)
		ret = gw_upload_lock(&upload);
	/* An earlier request may have completed the object, even if the upload still exists: the
	 * gateway may have been killed before it removed the upload. */
	if ((!ret || ret == -ENOENT) && complete_again(req)) {
		if (!ret)
			gw_upload_remove(&req->server->store, req->bucket, upload_id(req));
		gw_upload_close(&upload);
		return;
	}
	if (ret) {
		gw_fail_errno(req, ret, GW_NoSuchUpload);
		gw_upload_close(&upload);
		return;
	}
	a = calloc(1, sizeof(*a));
	if (!a) {
		gw_fail(req, GW_SlowDown, NULL);
		gw_upload_close(&upload);
		return;
	}
	ret = gw_xml_read(req->body.text.at ? req->body.text.at : "", req->body.text.len, &calls,
			  a);
	if (ret || !a->count)
		gw_fail(req, GW_MalformedXML, NULL);
	else if (gw_assemble(req, &upload, upload_id(req), a)) {
		reply_completed(req, a->etag, &a->meta);
		gw_upload_remove(&req->server->store, req->bucket, upload_id(req));
	} else if (a->gone && !complete_again(req)) {
		gw_fail(req, GW_NoSuchUpload, NULL);
	}
	gw_meta_close(&a->meta);
	free(a);
	gw_upload_close(&upload);
}

void gw_op_abort(struct gw_request *req)
{
	struct gw_upload upload;
	int ret;

	if (!upload_open(req, &upload))
		return;
	gw_upload_close(&upload);
	ret = gw_upload_remove(&req->server->store, req->bucket, upload_id(req));
	if (ret)
		gw_fail_errno(req, ret, GW_NoSuchUpload);
	else
		gw_reply_empty(req, 204);
}

/* ---- ListParts ---- */

/* Appends a part to the reply to ListParts. Returns 0, also if the part has been removed meanwhile,
 * or a negative errno. */
static int put_part(struct gw_request *req, const struct gw_upload *upload, unsigned number,
		    struct pst_text *out)
{
	struct gw_object part;
	char date[40];
	int ret = gw_part_open(&req->server->store, upload, number, &part);

	if (ret)
		return ret == -ENOENT ? 0 : ret;
	gw_iso_date(&part.st.st_mtim, date);
	pst_text_put_str(out, "<Part>");
	gw_xml_number(out, "PartNumber", number);
	gw_xml_element(out, "LastModified", date);
	pst_text_put_str(out, "<ETag>&quot;");
	pst_text_put_str(out, gw_meta_get(&part.meta, "etag"));
	pst_text_put_str(out, "&quot;</ETag>");
	gw_xml_number(out, "Size", (uint64_t)part.st.st_size);
	gw_sums_put(out, &part.meta);
	pst_text_put_str(out, "</Part>");
	gw_object_close(&part);
	return 0;
}

/* Called for each file of an upload. If the file is a part, marks its number in an array of
 * GW_PARTS_MAX + 1 elements. */
static int part_find(void *user, const struct dirent *entry)
{
	unsigned long n = strtoul(entry->d_name, NULL, 10);
	bool *has = user;

	if (strlen(entry->d_name) == 5 && n >= 1 && n <= GW_PARTS_MAX)
		has[n] = true;
	return 0;
}

static void put_owners(struct pst_text *out)
{
	pst_text_put_str(out, "<Initiator><ID>penstock</ID><DisplayName>penstock</DisplayName>"
			      "</Initiator><Owner><ID>penstock</ID><DisplayName>penstock"
			      "</DisplayName></Owner><StorageClass>STANDARD</StorageClass>");
}

void gw_op_list_parts(struct gw_request *req)
{
	int64_t max = gw_param_number(req, "max-parts", 1000, 1000), shown = 0;
	int64_t marker = gw_param_number(req, "part-number-marker", 0, GW_PARTS_MAX);
	bool *has = calloc(GW_PARTS_MAX + 2, sizeof(*has)), truncated = false;
	struct pst_text parts = {0}, *out;
	struct gw_upload upload = {.dir = -1, .lock = -1};
	int64_t last = marker;
	int ret = 0;

	if (max < 0 || marker < 0 || !has || !upload_open(req, &upload) ||
	    (ret = pst_dir_each(upload.dir, part_find, has, NULL))) {
		/* upload_open may have filled the reply with an error already. gw_fail_errno then
		 * changes nothing. */
		gw_fail_errno(req, ret ? ret : -ENOMEM, GW_NoSuchUpload);
		gw_upload_close(&upload);
		free(has);
		return;
	}
	for (int64_t i = marker + 1; !ret && i <= GW_PARTS_MAX; i++) {
		if (!has[i])
			continue;
		truncated = shown == max;
		if (truncated)
			break;
		ret = put_part(req, &upload, (unsigned)i, &parts);
		shown++;
		last = i;
	}
	out = gw_reply_xml(req, 200);
	pst_text_put_str(out, "<ListPartsResult" GW_XML_SPACE ">");
	gw_xml_element(out, "Bucket", req->bucket);
	gw_xml_element(out, "Key", req->key);
	gw_xml_element(out, "UploadId", upload_id(req));
	put_owners(out);
	gw_xml_number(out, "PartNumberMarker", (uint64_t)marker);
	gw_xml_number(out, "NextPartNumberMarker", (uint64_t)last);
	gw_xml_number(out, "MaxParts", (uint64_t)max);
	gw_xml_element(out, "IsTruncated", truncated && max ? "true" : "false");
	if (gw_meta_get(&upload.meta, "x-amz-checksum-algorithm")) {
		gw_xml_element(out, "ChecksumAlgorithm",
			       gw_meta_get(&upload.meta, "x-amz-checksum-algorithm"));
		gw_xml_element(out, "ChecksumType",
			       gw_meta_get(&upload.meta, "x-amz-checksum-type"));
	}
	if (parts.at)
		pst_text_put(out, parts.at, parts.len);
	pst_text_put_str(out, "</ListPartsResult>");
	if (ret || parts.failed)
		gw_fail_errno(req, ret ? ret : -ENOMEM, GW_NoSuchUpload);
	free(parts.at);
	free(has);
	gw_upload_close(&upload);
}

/* ---- ListMultipartUploads ---- */

struct listed {
	char *key, id[GW_UPLOAD_ID];
	struct timespec begun;
};

static int compare_listed(const void *a, const void *b)
{
	const struct listed *x = a, *y = b;
	int ret = strcmp(x->key, y->key);

	return ret ? ret : strcmp(x->id, y->id);
}

/* The uploads of a request's bucket. */
struct uploads {
	struct gw_request *req;
	struct listed *list;
	size_t count;
};

/* Appends an upload to the list. Returns 0 (also if the upload has been removed meanwhile), 1 if
 * the list is full, or a negative errno. */
static int upload_read(void *user, const struct dirent *entry)
{
	struct uploads *u = user;
	struct gw_upload upload;
	struct listed *more;
	int ret;

	if (u->count == UPLOADS_MAX)
		return 1;
	ret = gw_upload_open(&u->req->server->store, u->req->bucket, entry->d_name, NULL, &upload);
	if (ret)
		return ret == -ENOENT ? 0 : ret;
	more = realloc(u->list, (u->count + 1) * sizeof(*more));
	if (more) {
		u->list = more;
		more += u->count;
		more->key = strdup(gw_meta_get(&upload.meta, "key"));
		memcpy(more->id, entry->d_name, GW_UPLOAD_ID);
		more->begun = upload.begun;
	}
	ret = more && more->key ? 0 : -ENOMEM;
	u->count += !ret;
	gw_upload_close(&upload);
	return ret;
}

/* Reads all uploads of the request's bucket, in order. Returns 0 or a negative errno. The caller
 * frees the list in all cases. */
static int uploads_read(struct gw_request *req, struct listed **out, size_t *count)
{
	int dir = gw_uploads_open(&req->server->store, req->bucket), ret;
	struct uploads uploads = {req, NULL, 0};

	if (dir < 0)
		return dir == -ENOENT ? 0 : dir;
	ret = pst_dir_each(dir, upload_read, &uploads, NULL);
	close(dir);
	*out = uploads.list;
	*count = uploads.count;
	if (*count)
		qsort(*out, *count, sizeof(**out), compare_listed);
	return ret < 0 ? ret : 0;
}

/* The parameters and the result of ListMultipartUploads. */
struct upload_listing {
	const char *prefix, *delimiter, *key_marker, *id_marker;
	bool url;
	int64_t max, shown;
	bool truncated;
	const char *last_key, *last_id;
	size_t last_len;
	struct pst_text uploads, prefixes;
};

static void put_name(const struct upload_listing *l, struct pst_text *out, const char *element,
		     const char *name, size_t len)
{
	pst_text_put_str(out, "<");
	pst_text_put_str(out, element);
	pst_text_put_str(out, ">");
	if (l->url)
		pst_uri_put(out, name, len, true);
	else
		gw_xml_text(out, name, len);
	pst_text_put_str(out, "</");
	pst_text_put_str(out, element);
	pst_text_put_str(out, ">");
}

/* Returns whether an upload comes after the markers in the request. The markers name the last
 * upload of the previous page. */
static bool is_after(const struct upload_listing *l, const struct listed *u)
{
	int order = strcmp(u->key, l->key_marker);

	if (!*l->key_marker)
		return true;
	return order > 0 || (!order && *l->id_marker && strcmp(u->id, l->id_marker) > 0);
}

static void uploads_choose(struct upload_listing *l, const struct listed *all, size_t count)
{
	const char *prefix = NULL;
	size_t prefix_len = 0;
	char date[40];

	for (size_t i = 0; i < count && !l->truncated; i++) {
		const struct listed *u = &all[i];
		const char *found = NULL;

		if (strncmp(u->key, l->prefix, strlen(l->prefix)) != 0 || !is_after(l, u) ||
		    (prefix && !strncmp(u->key, prefix, prefix_len)))
			continue;
		if (l->shown == l->max) {
			l->truncated = l->max > 0;
			break;
		}
		if (*l->delimiter)
			found = strstr(u->key + strlen(l->prefix), l->delimiter);
		l->shown++;
		l->last_key = u->key;
		l->last_len =
			found ? (size_t)(found - u->key) + strlen(l->delimiter) : strlen(u->key);
		l->last_id = found ? "" : u->id;
		if (found) {
			prefix = u->key;
			prefix_len = l->last_len;
			pst_text_put_str(&l->prefixes, "<CommonPrefixes>");
			put_name(l, &l->prefixes, "Prefix", prefix, prefix_len);
			pst_text_put_str(&l->prefixes, "</CommonPrefixes>");
			continue;
		}
		gw_iso_date(&u->begun, date);
		pst_text_put_str(&l->uploads, "<Upload>");
		put_name(l, &l->uploads, "Key", u->key, strlen(u->key));
		gw_xml_element(&l->uploads, "UploadId", u->id);
		put_owners(&l->uploads);
		gw_xml_element(&l->uploads, "Initiated", date);
		pst_text_put_str(&l->uploads, "</Upload>");
	}
}

static const char *param_or_empty(const struct gw_request *req, const char *name)
{
	const char *value = gw_param(req, name);

	return value ? value : "";
}

void gw_op_list_uploads(struct gw_request *req)
{
	struct upload_listing l = {.prefix = param_or_empty(req, "prefix"),
				   .delimiter = param_or_empty(req, "delimiter"),
				   .key_marker = param_or_empty(req, "key-marker"),
				   .id_marker = param_or_empty(req, "upload-id-marker"),
				   .url = !strcmp(param_or_empty(req, "encoding-type"), "url"),
				   .max = gw_param_number(req, "max-uploads", 1000, 1000),
				   .last_key = "",
				   .last_id = ""};
	struct listed *all = NULL;
	struct pst_text *out;
	size_t count = 0;
	int ret;

	if (l.max < 0)
		return;
	ret = uploads_read(req, &all, &count);
	uploads_choose(&l, all, count);
	out = gw_reply_xml(req, 200);
	pst_text_put_str(out, "<ListMultipartUploadsResult" GW_XML_SPACE ">");
	gw_xml_element(out, "Bucket", req->bucket);
	put_name(&l, out, "KeyMarker", l.key_marker, strlen(l.key_marker));
	gw_xml_element(out, "UploadIdMarker", l.id_marker);
	if (l.truncated) {
		put_name(&l, out, "NextKeyMarker", l.last_key, l.last_len);
		gw_xml_element(out, "NextUploadIdMarker", l.last_id);
	}
	put_name(&l, out, "Prefix", l.prefix, strlen(l.prefix));
	if (*l.delimiter)
		put_name(&l, out, "Delimiter", l.delimiter, strlen(l.delimiter));
	if (l.url)
		gw_xml_element(out, "EncodingType", "url");
	gw_xml_number(out, "MaxUploads", (uint64_t)l.max);
	gw_xml_element(out, "IsTruncated", l.truncated ? "true" : "false");
	if (l.uploads.at)
		pst_text_put(out, l.uploads.at, l.uploads.len);
	if (l.prefixes.at)
		pst_text_put(out, l.prefixes.at, l.prefixes.len);
	pst_text_put_str(out, "</ListMultipartUploadsResult>");
	if (ret || l.uploads.failed || l.prefixes.failed)
		gw_fail_errno(req, ret ? ret : -ENOMEM, GW_InternalError);
	free(l.uploads.at);
	free(l.prefixes.at);
	for (size_t i = 0; i < count; i++)
		free(all[i].key);
	free(all);
}
