/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commits an upload, after which the object exists on the server. An object of one part is sent
 * with one PUT. For several parts, CompleteMultipartUpload makes the server join them.
 */
#include "storage/object_commit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/digits.h"
#include "core/base/end.h"
#include "storage/object_buffer.h"
#include "storage/object_part.h"
#include "storage/object_send.h"
#include "storage/object_sum.h"
#include "storage/object_upload_state.h"

/* Maximum wait in seconds for the reply to CompleteMultipartUpload. A server may join the parts for
 * minutes before it replies. */
#define COMPLETE_PATIENCE_S 600
#define NEXT_CARD 2 /* a result of commit_offer */

/* Returns the length of the object in bytes: the length that the caller gave, or else the offset
 * after the last written byte. */
static uint64_t object_length(const struct pst_object_upload *up)
{
	return up->length ? up->length : up->end;
}

/* Checks that all bytes have been written. A gap is an error, because an object has no holes. */
static int gaps_check(const struct pst_object_upload *up, uint64_t length, struct pst_err *err)
{
	for (unsigned i = 0; length; i++) {
		uint64_t len, off = pst_object_part_range(up, i, &len), written = len;
		const struct part *part = up->parts[i];

		if (off >= length)
			return 0;
		len = length - off < len ? length - off : len;
		if (part && part->state == PART_FILLING)
			written =
				part->span_count && !part->spans[0].first ? part->spans[0].end : 0;
		else if (part)
			/* An earlier, stopped commit may have sent this part as the last one. If
			 * the object has grown since then, the part is shorter than `len`. */
			written = part->len;
		else
			written = up->sent[i].etag ? up->sent[i].len : 0;
		if (written < len)
			return pst_fail_errno(
				err, EIO, PENSTOCK_WHY_SHORT_IO,
				"%s: byte %llu of %llu was never written", up->place->url.name,
				(unsigned long long)(off + written), (unsigned long long)length);
	}
	return 0;
}

static int commit_window(struct pst_object_upload *up, struct pst_object_call *call,
			 const struct penstock_end_opts *limits, struct pst_err *err);

/* Called if an object of one part cannot go through its window, for the reason `why`. If the part
 * is in the memory of a device, moves it to host memory, and offers its new window. Returns 1 if
 * the object must be sent in an HTTP body instead, else the result of the call or -errno. */
static int commit_near(struct pst_object_upload *up, struct pst_object_call *call,
		       const struct penstock_end_opts *limits, const struct pst_err *why,
		       struct pst_err *err)
{
	struct part *part = up->parts[0];
	int ret;

	if (part->window) {
		ret = pst_object_send_fetch(part, why, err);
		return ret ? ret : commit_window(up, call, limits, err);
	}
	ret = pst_object_part_near(up, why, err);
	return ret ? ret : 1;
}

/* Offers an object of one part once. Returns NEXT_CARD if the caller must offer it again, because
 * another network card may move it. Other results are those of commit_window. */
static int commit_offer(struct pst_object_upload *up, struct pst_object_call *call,
			const struct penstock_end_opts *limits, struct pst_object_grant *grant,
			struct pst_err *err)
{
	struct part *part = up->parts[0];
	struct pst_window *window;
	struct pst_err why;
	char code[64];
	bool began, passing;
	int ret;

	if (!part || !up->far || !object_length(up))
		return 1;
	window = part->window ? part->window : pst_object_buffer_window(up, part->mem);
	if (!window)
		pst_fail(&why, PENSTOCK_WHY_NO_MEMORY, "no window could be allocated");
	else if (!pst_object_grant_open(grant, up->windows, window, PENSTOCK_WRITE,
					object_length(up), &why))
		why.code = 0;
	if (why.code)
		return commit_near(up, call, limits, &why, err);
	memset(call, 0, sizeof(*call));
	pst_object_call_init(call, up->place, "PUT", "");
	call->sends = true;
	pst_object_grant_offer(grant, call);
	if (up->must_be_new)
		pst_object_call_header(call, "if-none-match", "*");
	if (!up->no_sums)
		pst_object_call_header(call, "x-amz-checksum-crc64nvme", up->sum);
	call->limits = limits;
	ret = pst_object_call_run(call, err);
	pst_object_xml_text(&call->http.text, "Code", code, sizeof(code));
	if (!ret)
		pst_object_grant_judge(grant, call, code);
	began = call->exchange && call->exchange->phase == PST_OBJECT_MOVES;
	/* The library repeats a body for longer than a token. */
	passing = !ret && pst_object_call_is_passing(call) && (part->window || !up->windows_only);
	pst_object_grant_wait(grant);
	call->token = NULL;
	call->exchange = NULL;
	if (!ret && grant->verdict.next == PENSTOCK_OBJECT_ERROR && !up->no_sums &&
	    pst_object_call_lacks_sums(call)) {
		/* the server may not support this checksum, so it is left out */
		up->no_sums = true;
		pst_object_call_clear(call);
		return commit_window(up, call, limits, err);
	}
	if (ret || (grant->verdict.next == PENSTOCK_OBJECT_ERROR && !passing))
		return ret;
	if (grant->verdict.next == PENSTOCK_OBJECT_DONE && !passing) {
		up->parts_far++;
		up->parts_device += part->window != NULL;
		if (part->window)
			pst_object_windows_tested(up->windows, part->window->dev, NULL);
		return 0;
	}
	/* The server may have stored the object if the reply to an attempt was lost or incomplete,
	 * or if the transfer had begun. */
	up->unsure |= call->http.attempts > 1 || call->http.head.rdma_reply[0] == '2' || began;
	/* A server that does not support tokens has stored an empty object. Then the next request
	 * must not demand that the object does not exist. */
	up->must_be_new &= !grant->verdict.stored_empty;
	if (passing)
		pst_fail(&why, PENSTOCK_WHY_NO_WINDOW, "an error that may pass");
	else
		pst_object_grant_why(grant, &why);
	pst_object_call_clear(call);
	return !passing && pst_object_grant_next(grant) ? NEXT_CARD
							: commit_near(up, call, limits, &why, err);
}

/* Offers an object of one part to the server through the part's window, memory that the server can
 * read. Returns 1 if the object must be sent in an HTTP body instead, else the result of
 * pst_object_call_run. */
static int commit_window(struct pst_object_upload *up, struct pst_object_call *call,
			 const struct penstock_end_opts *limits, struct pst_err *err)
{
	struct pst_object_grant grant = {.inner = NULL};
	int ret;

	do
		ret = commit_offer(up, call, limits, &grant, err);
	while (ret == NEXT_CARD);
	return ret;
}

/* Sends an object of one part in the body of a PUT. */
static int commit_body(struct pst_object_upload *up, struct pst_object_call *call,
		       const struct penstock_end_opts *limits, struct pst_err *err)
{
	const struct part *part = up->parts[0];
	struct iovec iov = {part ? part->mem : NULL, (size_t)object_length(up)};

	for (unsigned sums = up->no_sums ? 0 : 1;; sums--) {
		int ret;

		memset(call, 0, sizeof(*call));
		pst_object_call_init(call, up->place, "PUT", "");
		call->sends = true;
		call->http.out = iov.iov_base;
		call->http.out_len = iov.iov_len;
		if (up->must_be_new)
			pst_object_call_header(call, "if-none-match", "*");
		if (sums)
			pst_object_call_header(call, "x-amz-checksum-crc64nvme", up->sum);
		call->limits = limits;
		ret = pst_object_call_run(call, err);
		if (ret || !sums || !pst_object_call_lacks_sums(call))
			return ret;
		/* sends the object again without a checksum, because the server may not support its
		 * kind */
		pst_object_call_clear(call);
	}
}

/* Sends an object of one part with a single PUT. */
static int commit_put(struct pst_object_upload *up, struct pst_object_call *call,
		      const struct penstock_end_opts *limits, struct pst_err *err)
{
	struct part *part = up->parts[0];
	const uint64_t full = part ? part->len : 0;
	int ret = 0;

	if (part) {
		part->len = object_length(up);
		ret = pst_object_send_prepare(part, err);
	}
	pst_object_sum_text(PST_HASH_CRC64NVME, part && !ret ? part->crc : 0, up->sum);
	if (!ret)
		ret = commit_window(up, call, limits, err);
	if (ret == 1)
		ret = commit_body(up, call, limits, err);
	/* Restores the length: if the commit was stopped, more bytes may be written. */
	if (part)
		part->len = full;
	return ret;
}

/* Writes the XML body of CompleteMultipartUpload to *out. Combines the checksums of the parts into
 * the object's checksum, in `sum`. */
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

/* Sends the last part, waits until the server has all parts, and requests that it join them. */
static int commit_parts(struct pst_object_upload *up, struct pst_object_call *call,
			const struct penstock_end_opts *limits, struct pst_err *err)
{
	unsigned count = pst_object_part_at(up, object_length(up) - 1) + 1;
	struct pst_text body = {NULL, 0, 0, false};
	char query[UPLOAD_QUERY_MAX];
	int ret = pst_object_upload_finish(up, count, limits, err);

	if (ret)
		return ret;
	complete_write(up, count, &body, up->sum);
	pst_object_part_query(up, 0, query);
	memset(call, 0, sizeof(*call));
	pst_object_call_init(call, up->place, "POST", query);
	call->sends = true;
	call->http.out = body.at;
	call->http.out_len = body.len;
	call->http.patience_s = COMPLETE_PATIENCE_S;
	call->limits = limits;
	if (up->must_be_new)
		pst_object_call_header(call, "if-none-match", "*");
	if (!up->no_sums) {
		pst_object_call_header(call, "x-amz-checksum-crc64nvme", up->sum);
		pst_object_call_header(call, "x-amz-checksum-type", "FULL_OBJECT");
	} else
		/* without the checksums of the parts, the object's checksum cannot be computed */
		up->sum[0] = '\0';
	ret = body.failed ? pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a request")
			  : pst_object_call_run(call, err);
	free(body.at);
	call->query = "";
	return ret;
}

/* Parses an ETag that is an MD5 digest, and adds its 16 bytes to the hash. Returns false for any
 * other ETag. */
static bool etag_put(struct pst_hash *hash, const char *etag)
{
	size_t quote = etag[0] == '"';
	unsigned char digest[16];

	if (strlen(etag) != PST_MD5_DIGITS + 2 * quote || !pst_md5_parse(etag + quote, digest))
		return false;
	pst_hash_put(hash, digest, sizeof(digest));
	return true;
}

/* Computes the ETag that most servers give to the object of this upload. It is the MD5 digest of
 * the object's bytes or, for several parts, of the parts' digests. Returns false if a digest is
 * unknown. */
static bool etag_expect(const struct pst_object_upload *up, char *out, size_t out_len)
{
	struct pst_hash *hash = pst_hash_open(PST_HASH_MD5);
	unsigned char digest[PST_HASH_MAX];
	char hex[2 * PST_HASH_MAX + 1], count[16] = "";
	bool known = hash;
	unsigned parts = 0;
	size_t len;

	if (!hash)
		return false;
	for (; parts < PARTS_MAX && up->sent[parts].etag; parts++)
		known = known && etag_put(hash, up->sent[parts].etag);
	if (parts)
		snprintf(count, sizeof(count), "-%u", parts);
	else if (up->parts[0] && !up->parts[0]->mem)
		known = false;
	else if (up->parts[0])
		pst_hash_put(hash, up->parts[0]->mem, (size_t)object_length(up));
	len = pst_hash_end(hash, digest);
	pst_hash_close(hash);
	pst_hex(digest, len, hex);
	snprintf(out, out_len, "\"%s%s\"", hex, count);
	return known && len;
}

enum pst_object_identity pst_object_upload_identify(struct pst_object_upload *up,
						    const struct penstock_end_opts *limits,
						    char *etag, size_t etag_len)
{
	struct pst_object_call call = {0};
	const struct pst_http_head *head = &call.http.head;
	enum pst_object_identity found = PST_OBJECT_UNKNOWN;
	struct pst_err ignored;
	char want[2 * PST_HASH_MAX + 16];

	pst_object_call_init(&call, up->place, "HEAD", "");
	pst_object_call_header(&call, "x-amz-checksum-mode", "ENABLED");
	call.limits = limits;
	if (pst_object_call_run(&call, &ignored))
		found = PST_OBJECT_UNKNOWN;
	else if (head->status == 404 ||
		 (head->status == 200 && head->has_length && head->length != object_length(up)))
		found = PST_OBJECT_NOT_OURS;
	else if (head->status == 200 && head->crc64nvme[0] && up->sum[0])
		found = strcmp(head->crc64nvme, up->sum) ? PST_OBJECT_NOT_OURS : PST_OBJECT_OURS;
	else if (head->status == 200 && head->has_length && etag_expect(up, want, sizeof(want)) &&
		 !strcmp(head->etag, want))
		found = PST_OBJECT_OURS;
	if (found == PST_OBJECT_OURS)
		snprintf(etag, etag_len, "%s", head->etag);
	pst_object_call_clear(&call);
	return found;
}

/*
 * Judges an error in reply to the commit, if the reply to an earlier attempt was lost. The earlier
 * attempt may have succeeded, and then the repetition fails, because the upload has ended or the
 * object exists. Returns 0 if the object has been stored, 1 if the commit has failed, or -errno if
 * that is unknown.
 */
static int refusal_judge(struct pst_object_upload *up, const struct penstock_end_opts *limits,
			 char *etag, size_t etag_len, struct pst_err *err)
{
	int ret;

	switch (pst_object_upload_identify(up, limits, etag, etag_len)) {
	case PST_OBJECT_OURS:
		return 0;
	case PST_OBJECT_UNKNOWN:
		ret = pst_end_check(limits, err);
		if (ret)
			return ret;
		return pst_fail_errno(
			err, EIO, PENSTOCK_WHY_IO_ERROR,
			"%s: it is unknown whether the commit succeeded, because the "
			"server's answer was lost: compare the object with its source",
			up->place->url.name);
	default:
		return 1;
	}
}

/* Evaluates the response to the last request of the commit. Returns 0 and stores the object's ETag,
 * or returns -errno. */
static int commit_result(struct pst_object_upload *up, const struct pst_object_call *call,
			 char *etag, size_t etag_len, struct pst_err *err)
{
	unsigned status = call->http.head.status;
	char code[64];
	int ret = pst_object_call_result(call, "commit", err);

	if (up->unsure && (status == 404 || status == 412)) {
		int judged = refusal_judge(up, call->limits, etag, etag_len, err);

		if (judged <= 0)
			return judged;
	}
	if (status == 412 || status == 409)
		return pst_fail_errno(err, EEXIST, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%s: another client has created the object: replace it with "
				      "PENSTOCK_O_REPLACE",
				      up->place->url.name);
	if (ret)
		return ret;
	/* For several parts, a server sends the status 200 before it joins them. So the body after
	 * it may contain an error. */
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

/* Returns whether an object of one part is sent by a multipart upload instead of a PUT. A server
 * that ignores tokens stores an empty body. In a multipart upload, that body is only an empty part,
 * which no other client can read. With a PUT, it would be an empty object. An upload whose first
 * commit was stopped after it had begun to send the part continues in the same way. */
static bool needs_parts(const struct pst_object_upload *up)
{
	return up->far && object_length(up) &&
	       (!pst_object_windows_answered(up->windows) ||
		(up->parts[0] && up->parts[0]->state != PART_FILLING));
}

/* Writes the message for a commit that the caller's limits have ended: whether the object may
 * exist, and what to do. */
static int commit_stopped(const struct pst_object_upload *up, const struct pst_err *why,
			  struct pst_err *err)
{
	return pst_fail_errno(err, why->code, why->why, "%s: %s during the commit; %s",
			      up->place->url.name, why->text,
			      up->unsure
				      ? "the object may exist: commit again to find out, or abort"
				      : "the object was not committed: commit again, or abort");
}

int pst_object_upload_commit(struct pst_object_upload *up, const struct penstock_end_opts *limits,
			     char *etag, size_t etag_len, uint64_t *length, struct pst_err *err)
{
	struct pst_object_call *call = calloc(1, sizeof(*call));
	int ret = call ? 0 : pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a request");
	struct pst_err why;

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
	if (object_length(up) > up->part_bytes || up->id_state != ID_NONE || up->sent[0].etag ||
	    needs_parts(up))
		ret = commit_parts(up, call, limits, err);
	else
		ret = commit_put(up, call, limits, err);
	if (call->http.attempts > 1 || (ret && call->http.attempts))
		up->unsure = true;
	if (!ret)
		ret = commit_result(up, call, etag, etag_len, err);
	pst_object_call_clear(call);
	free(call);
	if (ret && pst_end_check(limits, &why) == ret)
		return commit_stopped(up, &why, err);
	if (ret)
		return ret;
	up->ended = true;
	*length = object_length(up);
	return 0;
}
