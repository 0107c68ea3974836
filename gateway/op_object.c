/* SPDX-License-Identifier: Apache-2.0 */
/* Implements reading and deleting objects. Called through route.c. */
#include "op_object.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "condition.h"
#include "partlist.h"
#include "range.h"
#include "rdma.h"
#include "sums.h"
#include "xml_read.h"
#include "xml_write.h"

#define DELETE_MAX 1000 /* maximum number of keys in a DeleteObjects request */

/* The range of an object that a request asks for. */
struct part {
	uint64_t at, len;
	bool partial; /* whether the reply has status 206 (Partial Content) */
	/* number of parts of the object if the request names a part; otherwise 0 */
	unsigned parts;
};

/* Opens the request's object. On an error, fills the reply and returns false. */
static bool object_open(struct gw_request *req, struct gw_object *object)
{
	const char *version = gw_param(req, "versionId");
	int ret;

	if (version && *version && strcmp(version, "null") != 0) {
		gw_fail(req, GW_NoSuchVersion, NULL);
		return false;
	}
	ret = gw_object_open(&req->server->store, req->bucket_fd, req->key, req->key_len, object);
	if (ret)
		gw_fail_errno(req, ret, GW_NoSuchKey);
	return !ret;
}

/* Finds part `number` of an object. The item "parts" of its metadata has the lengths of all parts.
 * Returns false if there is no such part. */
static bool part_find(const struct gw_object *object, int64_t number, struct part *part)
{
	const char *list = gw_meta_get(&object->meta, "parts");
	struct gw_partlist parts = {0};
	uint64_t at = 0, len;

	if (!list) {
		part->partial = number == 1;
		return part->partial;
	}
	parts.at = list;
	while (gw_partlist_next(&parts, &len)) {
		if (++part->parts == number) {
			part->at = at;
			part->len = len;
			part->partial = true;
		}
		at += len;
	}
	return part->partial;
}

/* Finds the range that the request asks for. On an error, fills the reply and returns false. */
static bool part_choose(struct gw_request *req, const struct gw_object *object, struct part *part)
{
	const char *range = gw_header(req, "range"), *if_range = gw_header(req, "if-range");
	int64_t number = gw_param_number(req, "partNumber", 0, 100000);
	uint64_t size = (uint64_t)object->st.st_size;
	char text[64];

	*part = (struct part){.len = size};
	if (number < 0)
		return false;
	if (gw_param_find(req, "partNumber")) {
		if (range || !part_find(object, number, part)) {
			gw_fail(req, range ? GW_InvalidRequest : GW_InvalidPartNumber, NULL);
			return false;
		}
		return true;
	}
	if (if_range && !gw_etag_matches(if_range, gw_meta_get(&object->meta, "etag")))
		return true;
	switch (gw_range_parse(range, size, &part->at, &part->len)) {
	case GW_RANGE_OK:
		part->partial = true;
		return true;
	case GW_RANGE_BEYOND:
		gw_fail(req, GW_InvalidRange, NULL);
		snprintf(text, sizeof(text), "bytes */%llu", (unsigned long long)size);
		gw_header_add(req, "Content-Range", text);
		return false;
	default:
		part->at = 0;
		part->len = size;
		return true;
	}
}

/* Adds the headers that are stored with the object. If a parameter such as response-content-type
 * states another value for one of them, adds that value instead. */
static void put_stored_headers(struct gw_request *req, const struct gw_object *object, bool sums)
{
	static const char *const overrides[] = {
		"content-type",	 "content-language",	"expires",
		"cache-control", "content-disposition", "content-encoding"};
	const char *name, *value;
	char param[64];
	size_t at = 0;

	for (unsigned i = 0; i < sizeof(overrides) / sizeof(overrides[0]); i++) {
		snprintf(param, sizeof(param), "response-%s", overrides[i]);
		value = gw_param(req, param);
		if (!value)
			value = gw_meta_get(&object->meta, overrides[i]);
		if (!value && i == 0)
			value = "binary/octet-stream";
		if (value)
			gw_header_add(req, overrides[i], value);
	}
	while (gw_meta_next(&object->meta, &at, &name, &value))
		if (!strncmp(name, "x-amz-meta-", 11) ||
		    !strcmp(name, "x-amz-website-redirect-location") ||
		    (sums && !strncmp(name, "x-amz-checksum-", 15)))
			gw_header_add(req, name, value);
}

/* Adds the headers of the reply to GET and HEAD. */
static void put_headers(struct gw_request *req, const struct gw_object *object,
			const struct part *part)
{
	const char *mode = gw_header(req, "x-amz-checksum-mode");
	char date[40], range[96];

	gw_http_date(object->st.st_mtim.tv_sec, date);
	gw_header_add(req, "Last-Modified", date);
	gw_header_etag(req, gw_meta_get(&object->meta, "etag"));
	gw_header_add(req, "Accept-Ranges", "bytes");
	put_stored_headers(req, object, mode && !strcasecmp(mode, "ENABLED") && !part->partial);
	if (part->parts)
		gw_header_number(req, "x-amz-mp-parts-count", part->parts);
	if (part->partial && part->len) {
		snprintf(range, sizeof(range), "bytes %llu-%llu/%lld", (unsigned long long)part->at,
			 (unsigned long long)(part->at + part->len - 1),
			 (long long)object->st.st_size);
		gw_header_add(req, "Content-Range", range);
	}
}

void gw_op_get(struct gw_request *req)
{
	struct gw_reply *reply = &req->http->reply;
	struct gw_object object;
	enum gw_rdma_sent sent;
	struct part part;
	unsigned status;

	if (!object_open(req, &object))
		return;
	status = gw_condition_check(req, "", &object);
	if (status == 304) {
		gw_header_etag(req, gw_meta_get(&object.meta, "etag"));
		gw_reply_empty(req, 304);
	} else if (status) {
		gw_fail(req, GW_PreconditionFailed, NULL);
	} else if (part_choose(req, &object, &part)) {
		sent = gw_rdma_send(req, object.fd, part.at, part.len, part.partial);
		if (sent != GW_RDMA_FAILED) {
			put_headers(req, &object, &part);
			reply->status = part.partial ? 206 : 200;
		}
		if (sent == GW_RDMA_BODY) {
			reply->fd = object.fd;
			reply->at = part.at;
			reply->len = part.len;
			object.fd = -1;
		}
	}
	gw_object_close(&object);
}

void gw_op_head(struct gw_request *req)
{
	/* For HEAD, http.c sends only the headers of this reply. */
	gw_op_get(req);
}

bool gw_check_delete(struct gw_request *req)
{
	static const char *const unsupported[] = {"x-amz-if-match-size",
						  "x-amz-if-match-last-modified-time"};

	for (unsigned i = 0; i < 2; i++)
		if (gw_header(req, unsupported[i]))
			return gw_fail(req, GW_NotImplemented,
				       "The condition %s is not implemented.", unsupported[i]) == 0;
	return true;
}

void gw_op_delete(struct gw_request *req)
{
	const char *version = gw_param(req, "versionId"), *match = gw_header(req, "if-match");
	struct gw_object object;
	int ret;

	if (version && *version && strcmp(version, "null") != 0) {
		gw_fail(req, GW_NoSuchVersion, NULL);
		return;
	}
	if (match) {
		if (!object_open(req, &object))
			return;
		ret = !gw_etag_matches(match, gw_meta_get(&object.meta, "etag"));
		gw_object_close(&object);
		if (ret) {
			gw_fail(req, GW_PreconditionFailed, NULL);
			return;
		}
	}
	ret = gw_object_remove(&req->server->store, req->bucket_fd, req->key, req->key_len);
	if (ret && ret != -ENOENT)
		gw_fail_errno(req, ret, GW_NoSuchKey);
	else
		gw_reply_empty(req, 204);
}

/* ---- DeleteObjects ---- */

struct deletion {
	struct gw_request *req;
	char *keys[DELETE_MAX];
	size_t lens[DELETE_MAX];
	/* for each object: ETag that it must have, or NULL if the request states none */
	char *etags[DELETE_MAX];
	bool other_version[DELETE_MAX], unsupported[DELETE_MAX];
	unsigned count;
	bool quiet;
};

static int deletion_begin(void *user, const char *path)
{
	static const char object[] = "Delete/Object/";
	struct deletion *d = user;

	if (!strncmp(path, object, strlen(object))) {
		path += strlen(object);
		/* An element that this function does not handle, such as Size, may be a condition.
		 * An entry with such an element is refused. */
		if (strcmp(path, "Key") != 0 && strcmp(path, "VersionId") != 0 &&
		    strcmp(path, "ETag") != 0)
			d->unsupported[d->count - 1] = true;
		return 0;
	}
	if (strcmp(path, "Delete/Object") != 0)
		return 0;
	if (d->count == DELETE_MAX)
		return -E2BIG;
	d->count++;
	return 0;
}

static int deletion_end(void *user, const char *path, const char *text, size_t len)
{
	struct deletion *d = user;
	unsigned i = d->count - 1;

	if (!strcmp(path, "Delete/Quiet")) {
		d->quiet = !strcmp(text, "true");
	} else if (!strcmp(path, "Delete/Object/Key")) {
		if (d->keys[i])
			return -EBADMSG;
		d->keys[i] = strdup(text);
		d->lens[i] = len;
		return d->keys[i] ? 0 : -ENOMEM;
	} else if (!strcmp(path, "Delete/Object/ETag")) {
		if (d->etags[i])
			return -EBADMSG;
		d->etags[i] = strdup(text);
		return d->etags[i] ? 0 : -ENOMEM;
	} else if (!strcmp(path, "Delete/Object/VersionId")) {
		d->other_version[i] = *text && strcmp(text, "null") != 0;
	} else if (!strcmp(path, "Delete/Object") && !d->keys[i]) {
		return -EBADMSG;
	}
	return 0;
}

/* Compares the ETag of the object with the ETag that entry `i` states. Sets *error if they differ
 * or if there is no object. Returns 0 or a negative errno. */
static int deletion_compare(const struct deletion *d, unsigned i, enum gw_error *error)
{
	struct gw_object object;
	int ret = gw_object_open(&d->req->server->store, d->req->bucket_fd, d->keys[i], d->lens[i],
				 &object);

	if (ret) {
		*error = ret == -ENOENT ? GW_NoSuchKey : *error;
		return ret;
	}
	if (!gw_etag_matches(d->etags[i], gw_meta_get(&object.meta, "etag")))
		*error = GW_PreconditionFailed;
	gw_object_close(&object);
	return *error == GW_PreconditionFailed ? -EINVAL : 0;
}

/* Deletes the object of entry `i`, and appends the result to the reply. */
static void delete_one(struct deletion *d, unsigned i, struct pst_text *out)
{
	enum gw_error error = GW_ERROR_COUNT;
	int ret = 0;

	if (d->unsupported[i])
		error = GW_NotImplemented;
	else if (d->other_version[i])
		error = GW_NoSuchVersion;
	else if (d->etags[i])
		ret = deletion_compare(d, i, &error);
	if (!ret && error == GW_ERROR_COUNT)
		ret = gw_object_remove(&d->req->server->store, d->req->bucket_fd, d->keys[i],
				       d->lens[i]);
	if (error == GW_ERROR_COUNT && (!ret || ret == -ENOENT)) {
		if (!d->quiet) {
			pst_text_put_str(out, "<Deleted>");
			gw_xml_element(out, "Key", d->keys[i]);
			pst_text_put_str(out, "</Deleted>");
		}
		return;
	}
	pst_text_put_str(out, "<Error>");
	gw_xml_element(out, "Key", d->keys[i]);
	if (error != GW_ERROR_COUNT) {
		gw_xml_element(out, "Code", gw_error_code(error));
		gw_xml_element(out, "Message", gw_error_text(error));
	} else {
		gw_xml_element(out, "Code",
			       gw_error_code(ret == -ENAMETOOLONG ? GW_KeyTooLongError
								  : GW_InternalError));
		gw_xml_element(out, "Message", strerror(-ret));
	}
	pst_text_put_str(out, "</Error>");
}

void gw_op_delete_many(struct gw_request *req)
{
	static const struct gw_xml_calls calls = {deletion_begin, deletion_end};
	struct deletion *d = calloc(1, sizeof(*d));
	struct pst_text *out;
	int ret;

	if (!d) {
		gw_fail(req, GW_SlowDown, NULL);
		return;
	}
	if (!req->body.md5[0] && req->body.sum_kind == PST_HASH_KINDS) {
		gw_fail(req, GW_InvalidRequest,
			"Missing required header for this request: Content-MD5 OR "
			"x-amz-checksum-*");
		free(d);
		return;
	}
	d->req = req;
	ret = gw_xml_read(req->body.text.at ? req->body.text.at : "", req->body.text.len, &calls,
			  d);
	if (ret || !d->count) {
		gw_fail(req, ret == -ENOMEM ? GW_SlowDown : GW_MalformedXML, NULL);
	} else {
		out = gw_reply_xml(req, 200);
		pst_text_put_str(out, "<DeleteResult" GW_XML_SPACE ">");
		for (unsigned i = 0; i < d->count; i++)
			delete_one(d, i, out);
		pst_text_put_str(out, "</DeleteResult>");
	}
	for (unsigned i = 0; i < d->count; i++) {
		free(d->keys[i]);
		free(d->etags[i]);
	}
	free(d);
}

/* ---- GetObjectAttributes ---- */

static bool attribute_wanted(const char *list, const char *name)
{
	size_t len = strlen(name);

	for (const char *at = list; (at = strstr(at, name)); at += len)
		if ((at == list || strchr(", ", at[-1])) && (!at[len] || strchr(", ", at[len])))
			return true;
	return false;
}

/* Returns whether a list of attributes (x-amz-object-attributes) is not empty and contains only
 * known names. */
static bool attributes_known(const char *list)
{
	static const char *const names[] = {"ETag", "Checksum", "ObjectParts", "StorageClass",
					    "ObjectSize"};
	bool any = false;

	for (list += strspn(list, ", "); *list; list += strspn(list, ", ")) {
		size_t len = strcspn(list, ", ");
		unsigned i = 0;

		while (i < 5 && (strlen(names[i]) != len || strncmp(names[i], list, len) != 0))
			i++;
		if (i == 5)
			return false;
		any = true;
		list += len;
	}
	return any;
}

/* Appends the checksum of an object, if it has one. */
static void put_checksum(struct pst_text *out, const struct gw_meta *meta)
{
	const char *type = gw_meta_get(meta, "x-amz-checksum-type");
	struct pst_text sums = {0};

	gw_sums_put(&sums, meta);
	if (type)
		gw_xml_element(&sums, "ChecksumType", type);
	if (sums.len) {
		pst_text_put_str(out, "<Checksum>");
		pst_text_put(out, sums.at, sums.len);
		pst_text_put_str(out, "</Checksum>");
	}
	out->failed |= sums.failed;
	free(sums.at);
}

/* Appends the checksum of a part. The item "sums" of the metadata has the checksums of all parts,
 * separated by commas. */
static void put_part_sum(struct pst_text *out, const struct gw_meta *meta, unsigned long number)
{
	const char *list = gw_meta_get(meta, "sums");
	char sum[64];

	for (; list && number > 1; number--) {
		list = strchr(list, ',');
		list = list ? list + 1 : NULL;
	}
	if (!list)
		return;
	snprintf(sum, sizeof(sum), "%.*s", (int)strcspn(list, ","), list);
	for (unsigned i = 0; i < GW_SUM_KINDS; i++)
		if (gw_meta_get(meta, gw_sums[i].header))
			gw_xml_element(out, gw_sums[i].element, sum);
}

/* Appends the parts of an object that was uploaded in parts. */
static void put_parts(struct gw_request *req, struct pst_text *out, const struct gw_meta *meta)
{
	const char *list = gw_meta_get(meta, "parts"),
		   *max_text = gw_header(req, "x-amz-max-parts");
	const char *marker_text = gw_header(req, "x-amz-part-number-marker");
	unsigned long max = max_text ? strtoul(max_text, NULL, 10) : 1000, shown = 0;
	unsigned long marker = marker_text ? strtoul(marker_text, NULL, 10) : 0, last = marker;
	struct gw_partlist lens = {0};
	struct pst_text parts = {0};
	unsigned long number = 0;
	uint64_t len;

	if (!list)
		return;
	lens.at = list;
	while (gw_partlist_next(&lens, &len))
		if (++number > marker && shown < max && shown < 1000) {
			pst_text_put_str(&parts, "<Part>");
			gw_xml_number(&parts, "PartNumber", number);
			gw_xml_number(&parts, "Size", len);
			put_part_sum(&parts, meta, number);
			pst_text_put_str(&parts, "</Part>");
			shown++;
			last = number;
		}
	pst_text_put_str(out, "<ObjectParts>");
	gw_xml_number(out, "PartsCount", number);
	gw_xml_number(out, "PartNumberMarker", marker);
	gw_xml_number(out, "NextPartNumberMarker", last);
	gw_xml_number(out, "MaxParts", max);
	gw_xml_element(out, "IsTruncated", last < number ? "true" : "false");
	if (parts.at)
		pst_text_put(out, parts.at, parts.len);
	pst_text_put_str(out, "</ObjectParts>");
	out->failed |= parts.failed;
	free(parts.at);
}

void gw_op_attributes(struct gw_request *req)
{
	const char *wanted = gw_header(req, "x-amz-object-attributes");
	struct gw_object object;
	struct pst_text *out;
	char date[40];

	if (!wanted || !attributes_known(wanted)) {
		gw_fail(req, GW_InvalidArgument,
			"The x-amz-object-attributes header is missing or has an unknown name.");
		return;
	}
	if (!object_open(req, &object))
		return;
	gw_http_date(object.st.st_mtim.tv_sec, date);
	gw_header_add(req, "Last-Modified", date);
	out = gw_reply_xml(req, 200);
	pst_text_put_str(out, "<GetObjectAttributesResponse" GW_XML_SPACE ">");
	if (attribute_wanted(wanted, "ETag"))
		gw_xml_element(out, "ETag", gw_meta_get(&object.meta, "etag"));
	if (attribute_wanted(wanted, "Checksum"))
		put_checksum(out, &object.meta);
	if (attribute_wanted(wanted, "ObjectParts"))
		put_parts(req, out, &object.meta);
	if (attribute_wanted(wanted, "StorageClass"))
		gw_xml_element(out, "StorageClass", "STANDARD");
	if (attribute_wanted(wanted, "ObjectSize"))
		gw_xml_number(out, "ObjectSize", (uint64_t)object.st.st_size);
	pst_text_put_str(out, "</GetObjectAttributesResponse>");
	gw_object_close(&object);
}
