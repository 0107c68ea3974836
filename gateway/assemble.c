/* SPDX-License-Identifier: Apache-2.0 */
/* Implements gw_assemble, which makes an object out of the parts of a multipart upload. */
#include "assemble.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/digits.h"
#include "condition.h"
#include "copy.h"
#include "partlist.h"
#include "stored.h"
#include "sums.h"

#define PART_MIN (5u << 20) /* minimum length in bytes of each part except the last */
/* Maximum length in bytes of the metadata `parts` (the parts' lengths) and `sums` (the parts'
 * checksums). A longer list is not stored. */
#define PART_LIST_MAX 4000

/* State of one CompleteMultipartUpload request while gw_assemble handles it. */
struct work {
	struct gw_request *req;
	struct gw_upload *upload;
	/* hashes the parts' MD5 digests for the object's ETag; NULL if a part has no digest */
	struct pst_hash *md5;
	/* hashes the parts' checksums; NULL unless the object gets a checksum of type COMPOSITE */
	struct pst_hash *sum;
	enum pst_hash_kind sum_kind;
	/* whether the checksum is that of the object's bytes (FULL_OBJECT); otherwise it is the
	 * checksum of the parts' checksums (COMPOSITE) */
	bool full;
	uint64_t crc, at;
	struct gw_partlist_writer lens;
	struct pst_text sums; /* checksums of the parts, separated by commas */
};

/* Combines the checksum of a part into that of the object. Returns false if the part has no valid
 * checksum. */
static bool sum_add(struct work *w, const char *sum, uint64_t len)
{
	unsigned char bytes[PST_HASH_MAX];
	size_t n = pst_hash_len(w->sum_kind);
	uint64_t crc = 0;

	if (!sum || pst_base64_parse(sum, strlen(sum), bytes, sizeof(bytes)) != (long)n)
		return false;
	if (w->sums.len)
		pst_text_put_str(&w->sums, ",");
	pst_text_put_str(&w->sums, sum);
	if (!w->full) {
		pst_hash_put(w->sum, bytes, n);
		return true;
	}
	for (size_t i = 0; i < n; i++)
		crc = crc << 8 | bytes[i];
	w->crc = w->at ? pst_crc_combine(w->sum_kind, w->crc, crc, len) : crc;
	return true;
}

/* Compares a stored part with the ETag and checksum that the request states for it, and checks its
 * length. On an error, fills the reply and returns false. */
static bool part_check(struct work *w, const struct gw_assembly_part *want,
		       const struct gw_object *part, bool last)
{
	const char *etag = gw_meta_get(&part->meta, "etag"), *sum = NULL;
	unsigned char digest[16];

	if (strcmp(etag, want->etag) != 0)
		return gw_fail(w->req, GW_InvalidPart, NULL) == 0;
	if (!last && part->st.st_size < (off_t)PART_MIN)
		return gw_fail(w->req, GW_EntityTooSmall, NULL) == 0;
	if (w->sum_kind != PST_HASH_KINDS) {
		sum = gw_meta_get(&part->meta, gw_sum_of(w->sum_kind)->header);
		if (want->sum[0] && (!sum || strcmp(sum, want->sum) != 0))
			return gw_fail(w->req, GW_InvalidPart, NULL) == 0;
		if (!sum_add(w, sum, (uint64_t)part->st.st_size))
			return gw_fail(w->req, GW_InvalidPart, "Part %u has no checksum.",
				       want->number) == 0;
	}
	if (w->md5 && strlen(etag) == PST_MD5_DIGITS && pst_md5_parse(etag, digest)) {
		pst_hash_put(w->md5, digest, 16);
	} else {
		pst_hash_close(w->md5);
		w->md5 = NULL;
	}
	return true;
}

/* Copies all parts into the draft, the file that becomes the object. Returns false after it has
 * filled the reply with an error, or after it has set `gone`. */
static bool parts_copy(struct work *w, struct gw_assembly *a)
{
	struct gw_draft *draft = &w->req->body.draft;

	for (unsigned i = 1; i < a->count; i++)
		if (a->parts[i].number <= a->parts[i - 1].number)
			return gw_fail(w->req, GW_InvalidPartOrder, NULL) == 0;
	for (unsigned i = 0; i < a->count; i++) {
		struct gw_object part;
		bool ok;
		int ret;

		ret = gw_part_open(&w->req->server->store, w->upload, a->parts[i].number, &part);
		a->gone = ret == -ENOENT && !gw_upload_exists(w->upload);
		if (ret)
			return !a->gone && gw_fail_errno(w->req, ret, GW_InvalidPart) == 0;
		ok = part_check(w, &a->parts[i], &part, i + 1 == a->count);
		if (ok) {
			ret = gw_copy(&w->req->server->stopping, part.fd, 0,
				      (uint64_t)part.st.st_size, draft, w->at, NULL, NULL);
			if (ret)
				ok = gw_fail_errno(w->req, ret, GW_InternalError) == 0;
		}
		w->at += (uint64_t)part.st.st_size;
		gw_partlist_add(&w->lens, (uint64_t)part.st.st_size);
		gw_object_close(&part);
		if (!ok)
			return false;
	}
	return true;
}

/* Computes the checksum of the object, and compares it with the checksum that the request
 * announces. On an error, fills the reply and returns false. */
static bool sum_finish(struct work *w, struct gw_assembly *a)
{
	unsigned char bytes[PST_HASH_MAX];
	size_t n = pst_hash_len(w->sum_kind);
	const char *header = gw_sum_of(w->sum_kind)->header, *want;
	char text[64];

	if (w->full)
		for (size_t i = 0; i < n; i++)
			bytes[i] = (unsigned char)(w->crc >> (8 * (n - 1 - i)));
	else
		n = pst_hash_end(w->sum, bytes);
	pst_base64(bytes, n, text);
	if (!w->full)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "-%u", a->count);
	want = gw_header(w->req, header);
	if (want && strcmp(want, text) != 0)
		return gw_fail(w->req, GW_BadDigest, NULL) == 0;
	gw_meta_add(&a->meta, header, text);
	gw_meta_add(&a->meta, "x-amz-checksum-type", w->full ? "FULL_OBJECT" : "COMPOSITE");
	return true;
}

/* Collects the new object's metadata in `a->meta`. On an error, fills the reply and returns
 * false. */
static bool meta_finish(struct work *w, const char *id, struct gw_assembly *a)
{
	unsigned char digest[PST_HASH_MAX];
	const char *name, *value;
	char hex[GW_ETAG_MAX];
	size_t at = 0;

	if (w->md5 && pst_hash_end(w->md5, digest) == 16)
		pst_hex(digest, 16, hex);
	else
		gw_opaque_etag(hex);
	snprintf(a->etag, sizeof(a->etag), "%.32s-%u", hex, a->count);
	gw_meta_add(&a->meta, "etag", a->etag);
	gw_meta_add(&a->meta, "upload", id);
	gw_partlist_end(&w->lens);
	if (w->lens.text.at && w->lens.text.len < PART_LIST_MAX)
		gw_meta_add(&a->meta, "parts", w->lens.text.at);
	if (w->sums.at && w->sums.len < PART_LIST_MAX)
		gw_meta_add(&a->meta, "sums", w->sums.at);
	while (gw_meta_next(&w->upload->meta, &at, &name, &value))
		if (strcmp(name, "etag") != 0 && strcmp(name, "key") != 0 &&
		    strncmp(name, "x-amz-checksum-", 15) != 0)
			gw_meta_add(&a->meta, name, value);
	return w->sum_kind == PST_HASH_KINDS || sum_finish(w, a);
}

/* Opens the hashes for the ETag and for the checksum that the client chose when it created the
 * upload. On an error, fills the reply and returns false. */
static bool work_open(struct work *w)
{
	const char *algorithm = gw_meta_get(&w->upload->meta, "x-amz-checksum-algorithm");
	const char *type = gw_meta_get(&w->upload->meta, "x-amz-checksum-type");

	w->sum_kind = algorithm ? gw_sum_kind(algorithm) : PST_HASH_KINDS;
	w->full = type && !strcmp(type, "FULL_OBJECT");
	w->md5 = pst_hash_open(PST_HASH_MD5);
	if (w->sum_kind == PST_HASH_KINDS || w->full)
		return true;
	w->sum = pst_hash_open(w->sum_kind);
	return w->sum || gw_fail(w->req, GW_SlowDown, NULL) == 0;
}

bool gw_assemble(struct gw_request *req, struct gw_upload *upload, const char *id,
		 struct gw_assembly *a)
{
	struct gw_store *store = &req->server->store;
	struct gw_draft *draft = &req->body.draft;
	struct work w = {.req = req, .upload = upload};
	const char *size = gw_header(req, "x-amz-mp-object-size");
	bool exclusive = false, ok;
	int ret;

	ok = gw_condition_store(req, &exclusive) && work_open(&w);
	if (ok) {
		ret = gw_draft_open(store, draft);
		ok = !ret || gw_fail_errno(req, ret, GW_InternalError) == 0;
	}
	ok = ok && parts_copy(&w, a);
	if (ok && size && strtoull(size, NULL, 10) != w.at)
		ok = gw_fail(req, GW_InvalidRequest, "The object has another size.") == 0;
	ok = ok && meta_finish(&w, id, a);
	if (ok) {
		ret = gw_draft_finish(store, draft, &a->meta);
		ok = !ret || gw_fail_errno(req, ret, GW_InternalError) == 0;
	}
	/* During the copy, another request may have replaced the object, or completed or aborted
	 * the upload. So check both before the new object is published. */
	a->gone = a->gone || (ok && !gw_upload_exists(upload));
	ok = ok && !a->gone && gw_condition_store(req, &exclusive);
	if (ok) {
		ret = gw_draft_publish(store, draft, req->bucket_fd, req->key, req->key_len,
				       exclusive);
		ok = !ret || gw_fail_errno(req, ret, GW_NoSuchBucket) == 0;
	}
	pst_hash_close(w.md5);
	pst_hash_close(w.sum);
	free(w.lens.text.at);
	free(w.sums.at);
	return ok;
}
