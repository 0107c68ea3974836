/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements ListObjects (both versions) and ListObjectVersions, in which each object has the one
 * version "null". Called through route.c.
 */
#include "op_list.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/digits.h"
#include "folder.h"
#include "s3/uri.h"
#include "sums.h"
#include "walk.h"
#include "xml_write.h"

enum list_kind { LIST_V1, LIST_V2, LIST_VERSIONS };

struct listing {
	struct gw_request *req;
	enum list_kind kind;
	struct gw_walk walk;
	const char *delimiter;
	size_t delimiter_len;
	bool url, owner, truncated;
	int64_t max, count;
	char last[GW_KEY_MAX + 8]; /* last key or common prefix of the reply */
	size_t last_len;
	struct pst_text entries, prefixes;
};

/* Appends an element with a key, or with a part of a key. */
static void put_key(struct listing *l, struct pst_text *out, const char *name, const char *key,
		    size_t len)
{
	pst_text_put_str(out, "<");
	pst_text_put_str(out, name);
	pst_text_put_str(out, ">");
	if (l->url)
		pst_uri_put(out, key, len, true);
	else
		gw_xml_text(out, key, len);
	pst_text_put_str(out, "</");
	pst_text_put_str(out, name);
	pst_text_put_str(out, ">");
}

static void put_owner(struct pst_text *out)
{
	pst_text_put_str(out,
			 "<Owner><ID>penstock</ID><DisplayName>penstock</DisplayName></Owner>");
}

/* Appends the elements with the kind of an object's checksum. */
static void put_algorithm(struct pst_text *out, const struct gw_meta *meta)
{
	const char *type = gw_meta_get(meta, "x-amz-checksum-type");

	for (unsigned i = 0; i < GW_SUM_KINDS; i++)
		if (gw_meta_get(meta, gw_sums[i].header))
			gw_xml_element(out, "ChecksumAlgorithm", gw_sums[i].algorithm);
	if (type)
		gw_xml_element(out, "ChecksumType", type);
}

/* Opens the file of an object. Returns the descriptor or a negative errno. */
static int file_open(const struct listing *l, int dir, const char *path, struct stat *st)
{
	int fd = openat(dir, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), ret = 0;

	if (fd >= 0 && !fstat(fd, st) && S_ISDIR(st->st_mode)) {
		/* A folder has replaced the file since the walk has found it. */
		int self = gw_self_open(&l->req->server->store, fd);

		close(fd);
		fd = self;
		if (fd < 0)
			return fd;
	}
	if (fd < 0 || fstat(fd, st))
		ret = -errno;
	else if (!S_ISREG(st->st_mode))
		ret = -ENOENT;
	if (ret && fd >= 0)
		close(fd);
	return ret ? ret : fd;
}

/* Appends an object. Returns 1, 0 if the object has been removed meanwhile, or a negative errno. */
static int put_object(struct listing *l, const char *key, size_t len, int dir, const char *path)
{
	struct pst_text *out = &l->entries;
	struct gw_meta meta = {0};
	struct stat st;
	char date[40];
	int fd = file_open(l, dir, path, &st), ret;

	if (fd < 0)
		return gw_is_gone(-fd) ? 0 : fd;
	ret = gw_meta_load(&meta, fd, l->req->server->store.meta, &st);
	close(fd);
	if (ret)
		return ret;
	gw_iso_date(&st.st_mtim, date);
	pst_text_put_str(out, l->kind == LIST_VERSIONS ? "<Version>" : "<Contents>");
	put_key(l, out, "Key", key, len);
	if (l->kind == LIST_VERSIONS)
		pst_text_put_str(out, "<VersionId>null</VersionId><IsLatest>true</IsLatest>");
	gw_xml_element(out, "LastModified", date);
	pst_text_put_str(out, "<ETag>&quot;");
	pst_text_put_str(out, gw_meta_get(&meta, "etag"));
	pst_text_put_str(out, "&quot;</ETag>");
	put_algorithm(out, &meta);
	gw_xml_number(out, "Size", (uint64_t)st.st_size);
	if (l->owner)
		put_owner(out);
	pst_text_put_str(out, "<StorageClass>STANDARD</StorageClass>");
	pst_text_put_str(out, l->kind == LIST_VERSIONS ? "</Version>" : "</Contents>");
	gw_meta_close(&meta);
	return 1;
}

/* Appends an object that the walk has found, or its common prefix, to the listing. */
static int list_object(void *user, const char *key, size_t len, int dir, const char *path)
{
	struct listing *l = user;
	const char *found = NULL;
	size_t rest = l->walk.prefix_len;

	if (l->count >= l->max) {
		l->truncated = l->max > 0;
		return 1;
	}
	if (l->delimiter_len)
		found = memmem(key + rest, len - rest, l->delimiter, l->delimiter_len);
	if (found) {
		len = (size_t)(found - key) + l->delimiter_len;
		pst_text_put_str(&l->prefixes, "<CommonPrefixes>");
		put_key(l, &l->prefixes, "Prefix", key, len);
		pst_text_put_str(&l->prefixes, "</CommonPrefixes>");
		memcpy(l->walk.skip, key, len);
		l->walk.skip_len = len;
	} else {
		int ret = put_object(l, key, len, dir, path);

		if (ret <= 0)
			return ret;
	}
	memcpy(l->last, key, len);
	l->last_len = len;
	l->count++;
	return 0;
}

/* Finds the key after which the listing begins. On an error, fills the reply and returns false. */
static bool listing_start(struct listing *l, char *token)
{
	struct gw_request *req = l->req;
	const struct gw_param *after = gw_param_find(req, l->kind == LIST_V1   ? "marker"
							  : l->kind == LIST_V2 ? "start-after"
									       : "key-marker");
	const struct gw_param *next =
		l->kind == LIST_V2 ? gw_param_find(req, "continuation-token") : NULL;
	const char *found;

	if (next) {
		long len = pst_base64_parse(next->value, next->value_len, token, GW_KEY_MAX);

		if (len <= 0)
			return gw_fail(req, GW_InvalidArgument,
				       "The continuation token provided is incorrect") == 0;
		l->walk.after = token;
		l->walk.after_len = (size_t)len;
	} else if (after && after->value_len) {
		l->walk.after = after->value;
		l->walk.after_len = after->value_len;
	}
	/* If the previous page ended with a common prefix, skip all keys with this prefix. */
	if (!l->walk.after || !l->delimiter_len || l->walk.after_len <= l->walk.prefix_len ||
	    l->walk.after_len > GW_KEY_MAX)
		return true;
	found = memmem(l->walk.after + l->walk.prefix_len, l->walk.after_len - l->walk.prefix_len,
		       l->delimiter, l->delimiter_len);
	if (found && found + l->delimiter_len == l->walk.after + l->walk.after_len) {
		memcpy(l->walk.skip, l->walk.after, l->walk.after_len);
		l->walk.skip_len = l->walk.after_len;
	}
	return true;
}

static void echo_param(struct listing *l, struct pst_text *out, const char *param,
		       const char *element, bool always)
{
	const struct gw_param *p = gw_param_find(l->req, param);

	if (p || always)
		put_key(l, out, element, p ? p->value : "", p ? p->value_len : 0);
}

/* Appends the elements with which the client asks for the next page. */
static void put_next(struct listing *l, struct pst_text *out)
{
	char token[(GW_KEY_MAX + 8 + 2) / 3 * 4 + 1];

	if (l->kind == LIST_V2) {
		gw_xml_number(out, "KeyCount", (uint64_t)l->count);
		if (gw_param(l->req, "continuation-token"))
			gw_xml_element(out, "ContinuationToken",
				       gw_param(l->req, "continuation-token"));
		if (l->truncated) {
			pst_base64(l->last, l->last_len, token);
			gw_xml_element(out, "NextContinuationToken", token);
		}
	} else if (l->kind == LIST_VERSIONS && l->truncated) {
		put_key(l, out, "NextKeyMarker", l->last, l->last_len);
		gw_xml_element(out, "NextVersionIdMarker", "null");
	} else if (l->truncated && l->delimiter_len) {
		put_key(l, out, "NextMarker", l->last, l->last_len);
	}
}

static void put_listing(struct listing *l)
{
	static const char *const roots[] = {"ListBucketResult", "ListBucketResult",
					    "ListVersionsResult"};
	struct pst_text *out = gw_reply_xml(l->req, 200);

	pst_text_put_str(out, "<");
	pst_text_put_str(out, roots[l->kind]);
	pst_text_put_str(out, GW_XML_SPACE ">");
	gw_xml_element(out, "Name", l->req->bucket);
	echo_param(l, out, "prefix", "Prefix", true);
	if (l->kind == LIST_V1)
		echo_param(l, out, "marker", "Marker", true);
	if (l->kind == LIST_V2)
		echo_param(l, out, "start-after", "StartAfter", false);
	if (l->kind == LIST_VERSIONS) {
		echo_param(l, out, "key-marker", "KeyMarker", true);
		pst_text_put_str(out, "<VersionIdMarker></VersionIdMarker>");
	}
	gw_xml_number(out, "MaxKeys", (uint64_t)l->max);
	if (l->delimiter_len)
		echo_param(l, out, "delimiter", "Delimiter", false);
	if (l->url)
		gw_xml_element(out, "EncodingType", "url");
	gw_xml_element(out, "IsTruncated", l->truncated ? "true" : "false");
	put_next(l, out);
	if (l->entries.at)
		pst_text_put(out, l->entries.at, l->entries.len);
	if (l->prefixes.at)
		pst_text_put(out, l->prefixes.at, l->prefixes.len);
	pst_text_put_str(out, "</");
	pst_text_put_str(out, roots[l->kind]);
	pst_text_put_str(out, ">");
	if (out->failed || l->entries.failed || l->prefixes.failed)
		gw_fail(l->req, GW_SlowDown, NULL);
}

static void list(struct gw_request *req, enum list_kind kind)
{
	const struct gw_param *prefix = gw_param_find(req, "prefix");
	const struct gw_param *delimiter = gw_param_find(req, "delimiter");
	const char *encoding = gw_param(req, "encoding-type"),
		   *owner = gw_param(req, "fetch-owner");
	struct listing *l = calloc(1, sizeof(*l));
	char token[GW_KEY_MAX];
	int ret;

	if (!l) {
		gw_fail(req, GW_SlowDown, NULL);
		return;
	}
	l->req = req;
	l->kind = kind;
	l->walk.store = &req->server->store;
	l->walk.prefix = prefix ? prefix->value : "";
	l->walk.prefix_len = prefix ? prefix->value_len : 0;
	l->walk.object = list_object;
	l->walk.user = l;
	l->delimiter = delimiter ? delimiter->value : "";
	l->delimiter_len = delimiter ? delimiter->value_len : 0;
	l->url = encoding && !strcmp(encoding, "url");
	l->owner = kind != LIST_V2 || (owner && !strcmp(owner, "true"));
	l->max = gw_param_number(req, "max-keys", 1000, 1000);
	if (encoding && !l->url) {
		gw_fail(req, GW_InvalidArgument, "Invalid Encoding Method specified in Request");
	} else if (l->max >= 0 && listing_start(l, token)) {
		ret = gw_walk(&l->walk, req->bucket_fd);
		if (ret < 0)
			gw_fail_errno(req, ret, GW_NoSuchBucket);
		else
			put_listing(l);
	}
	free(l->entries.at);
	free(l->prefixes.at);
	free(l);
}

void gw_op_list_v1(struct gw_request *req)
{
	list(req, LIST_V1);
}

void gw_op_list_v2(struct gw_request *req)
{
	const char *type = gw_param(req, "list-type");

	list(req, type && !strcmp(type, "2") ? LIST_V2 : LIST_V1);
}

void gw_op_list_versions(struct gw_request *req)
{
	list(req, LIST_VERSIONS);
}
