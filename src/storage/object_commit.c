/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commit of an upload: it makes the object appear, with one PUT or by putting the parts
 * together.
 */
#include "storage/object_upload_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/object_sum.h"

/* The server may need minutes to put the parts together. */
#define COMPLETE_PATIENCE_S 600

/* Returns the length of the object. */
static uint64_t object_length(const struct pst_object_upload *up)
{
	return up->length ? up->length : up->end;
}

/* Checks that all bytes have been written. A gap is an error, because an object has no holes. */
static int gaps_check(const struct pst_object_upload *up, uint64_t length, struct pst_err *err)
{
	for (unsigned i = 0; length; i++) {
		uint64_t len, off = pst_object_upload_part_range(up, i, &len), written = len;
		const struct part *part = up->parts[i];

		if (off >= length)
			return 0;
		len = length - off < len ? length - off : len;
		if (part && part->state == PART_FILLING)
			written =
				part->span_count && !part->spans[0].first ? part->spans[0].end : 0;
		else if (!part && !up->sent[i].etag)
			written = 0;
		if (written < len)
			return pst_fail_errno(
				err, EIO, PENSTOCK_WHY_SHORT_IO,
				"%s: byte %llu of %llu was never written", up->place->url.name,
				(unsigned long long)(off + written), (unsigned long long)length);
	}
	return 0;
}

/* Sends an object of one part. */
static int commit_put(struct pst_object_upload *up, struct pst_object_call *call, char *sum,
		      struct pst_err *err)
{
	struct part *part = up->parts[0];
	struct iovec iov = {part ? part->mem : NULL, (size_t)object_length(up)};
	uint64_t crc = pst_object_sum_of(PST_HASH_CRC64NVME, &iov, 1, iov.iov_len);

	pst_object_sum_text(PST_HASH_CRC64NVME, crc, sum);
	for (unsigned sums = up->no_sums ? 0 : 1;; sums--) {
		unsigned status;
		int ret;

		memset(call, 0, sizeof(*call));
		pst_object_call_init(call, up->place, "PUT", "");
		call->sends = true;
		call->http.out = iov.iov_base;
		call->http.out_len = iov.iov_len;
		if (up->must_be_new)
			pst_object_call_header(call, "if-none-match", "*");
		if (sums)
			pst_object_call_header(call, "x-amz-checksum-crc64nvme", sum);
		ret = pst_object_call_run(call, err);
		status = call->http.head.status;
		if (ret || !sums || (status != 400 && status != 501))
			return ret;
		pst_object_call_clear(call); /* the server may not know this checksum */
	}
}

/* Writes the body of CompleteMultipartUpload, and combines the checksums of the parts. */
static void complete_write(const struct pst_object_upload *up, unsigned count, struct pst_text *out,
			   char *sum)
{
	uint64_t crc = 0;

	pst_text_put_str(out, "<CompleteMultipartUpload "
			      "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
	for (unsigned i = 0; i < count; i++) {
		const struct sent *sent = &up->sent[i];
		char part_sum[17];

		pst_text_put_str(out, "<Part><PartNumber>");
		pst_text_put_number(out, i + 1);
		pst_text_put_str(out, "</PartNumber><ETag>");
		pst_text_put_str(out, sent->etag);
		pst_text_put_str(out, "</ETag>");
		if (!up->no_sums) {
			pst_object_sum_text(PST_HASH_CRC64NVME, sent->crc, part_sum);
			pst_text_put_str(out, "<ChecksumCRC64NVME>");
			pst_text_put_str(out, part_sum);
			pst_text_put_str(out, "</ChecksumCRC64NVME>");
		}
		pst_text_put_str(out, "</Part>");
		crc = i ? pst_crc_combine(PST_HASH_CRC64NVME, crc, sent->crc, sent->len)
			: sent->crc;
	}
	pst_text_put_str(out, "</CompleteMultipartUpload>");
	pst_object_sum_text(PST_HASH_CRC64NVME, crc, sum);
}

/* Sends the last part, waits for all parts, and puts them together. */
static int commit_parts(struct pst_object_upload *up, struct pst_object_call *call, char *sum,
			struct pst_err *err)
{
	unsigned count = pst_object_upload_part_at(up, object_length(up) - 1) + 1;
	struct pst_text body = {NULL, 0, 0, false};
	char query[UPLOAD_QUERY_MAX];
	int ret = pst_object_upload_finish(up, count, err);

	if (ret)
		return ret;
	complete_write(up, count, &body, sum);
	pst_object_upload_query(up, 0, query);
	memset(call, 0, sizeof(*call));
	pst_object_call_init(call, up->place, "POST", query);
	call->sends = true;
	call->http.out = body.at;
	call->http.out_len = body.len;
	call->http.patience_s = COMPLETE_PATIENCE_S;
	if (up->must_be_new)
		pst_object_call_header(call, "if-none-match", "*");
	if (!up->no_sums) {
		pst_object_call_header(call, "x-amz-checksum-crc64nvme", sum);
		pst_object_call_header(call, "x-amz-checksum-type", "FULL_OBJECT");
	}
	ret = body.failed ? pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a request")
			  : pst_object_call_run(call, err);
	free(body.at);
	call->query = "";
	return ret;
}

/*
 * Returns whether the object on the server is the one that was sent. A commit whose answer was lost
 * is repeated, and the repetition fails, because the upload has ended or the object exists.
 */
static bool object_is_ours(struct pst_object_upload *up, const char *sum, char *etag,
			   size_t etag_len)
{
	struct pst_object_call call = {0};
	struct pst_err ignored;
	const struct pst_http_head *head = &call.http.head;
	bool ours;

	pst_object_call_init(&call, up->place, "HEAD", "");
	pst_object_call_header(&call, "x-amz-checksum-mode", "ENABLED");
	ours = !pst_object_call_run(&call, &ignored) && head->status == 200 && head->has_length &&
	       head->length == object_length(up) && !up->no_sums && !strcmp(head->crc64nvme, sum);
	if (ours)
		snprintf(etag, etag_len, "%s", head->etag);
	pst_object_call_clear(&call);
	return ours;
}

/* Judges the answer to the commit's last request. */
static int commit_result(struct pst_object_upload *up, struct pst_object_call *call,
			 const char *sum, char *etag, size_t etag_len, struct pst_err *err)
{
	unsigned status = call->http.head.status;
	char code[64];
	int ret = pst_object_call_result(call, "commit", err);

	if (call->http.attempts > 1 && (status == 404 || status == 412) &&
	    object_is_ours(up, sum, etag, etag_len))
		return 0;
	if (status == 412 || status == 409)
		return pst_fail_errno(err, EEXIST, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%s: another client has created the object: replace it with "
				      "PENSTOCK_O_REPLACE",
				      up->place->url.name);
	if (ret)
		return ret;
	/* The server begins to answer before it has put the parts together, so an error may come
	 * after the status 200. */
	pst_object_xml_text(&call->http.text, "Code", code, sizeof(code));
	if (code[0])
		return pst_fail_errno(err, EIO, PENSTOCK_WHY_IO_ERROR,
				      "%s: cannot commit: the server answered %s",
				      up->place->url.name, code);
	snprintf(etag, etag_len, "%s", call->http.head.etag);
	if (call->http.text.len)
		pst_object_xml_text(&call->http.text, "ETag", etag, etag_len);
	return 0;
}

int pst_object_upload_commit(struct pst_object_upload *up, char *etag, size_t etag_len,
			     uint64_t *length, struct pst_err *err)
{
	struct pst_object_call *call = calloc(1, sizeof(*call));
	char sum[17] = "";
	int ret = call ? 0 : pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a request");

	pthread_mutex_lock(&up->lock);
	if (!ret && up->err.code) {
		*err = up->err;
		ret = up->err.code;
	}
	if (!ret)
		ret = gaps_check(up, object_length(up), err);
	pthread_mutex_unlock(&up->lock);
	if (ret) {
		free(call);
		return ret;
	}
	if (object_length(up) > up->part_bytes || up->id_state != ID_NONE || up->sent[0].etag)
		ret = commit_parts(up, call, sum, err);
	else
		ret = commit_put(up, call, sum, err);
	if (!ret)
		ret = commit_result(up, call, sum, etag, etag_len, err);
	pst_object_call_clear(call);
	free(call);
	if (ret)
		return ret;
	up->ended = true;
	*length = object_length(up);
	return 0;
}
