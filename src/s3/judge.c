/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements judge.h. The protocol has tables of the responses to GET and PUT. judge_put and
 * judge_get have one statement for each row of these tables; tests/unit/test_judge.c has a case for
 * each row.
 */
#include "s3/judge.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/digits.h"

#define EMPTY_MD5                                                                      \
	"d41d8cd98f00b204e9800998ecf8427e" /* MD5 of no bytes: ETag of an empty object \
					    */

#define CRC64_DIGITS 12 /* length of 8 bytes in base64 */

/* The values of the headers by which a response is judged, as numbers. */
struct seen {
	long reply; /* leading integer of x-amz-rdma-reply; 0: none */
	bool has_bytes, has_total, has_length, has_range;
	/* from x-amz-rdma-bytes-transferred: "n" or "n/total" */
	uint64_t bytes, total;
	uint64_t length; /* value of Content-Length */
	/* from Content-Range; range_total is 0 if it is not known */
	uint64_t range_bytes, range_total;
	bool empty_etag;
	bool has_crc64;
	uint64_t crc64;
};

/* ---- parsing ---- */

static const char *skip_blanks(const char *at)
{
	return at + strspn(at, " \t");
}

/* Parses a decimal number of at most 19 digits. Returns the address after it, or NULL. */
static const char *number(const char *at, uint64_t *out)
{
	uint64_t n = 0;
	unsigned digits = 0;

	for (; *at >= '0' && *at <= '9' && digits < 20; digits++)
		n = n * 10 + (uint64_t)(*at++ - '0');
	*out = n;
	return digits && digits < 20 ? at : NULL;
}

static bool is_end(const char *at)
{
	return at && !*skip_blanks(at);
}

/* Parses "n" or "n/total". If the value has another form, the header counts as absent. */
static void parse_bytes(const char *value, struct seen *seen)
{
	const char *at = number(skip_blanks(value), &seen->bytes);

	seen->has_total = at && *at == '/';
	if (seen->has_total)
		at = number(at + 1, &seen->total);
	seen->has_bytes = is_end(at);
}

/* Parses "bytes first-last/total", where total may be an asterisk. */
static void parse_range(const char *value, struct seen *seen)
{
	uint64_t first, last;
	const char *at = skip_blanks(value);

	if (strncasecmp(at, "bytes ", 6))
		return;
	at = number(skip_blanks(at + 6), &first);
	if (!at || *at++ != '-' || !(at = number(at, &last)) || *at++ != '/' || last < first)
		return;
	if (*at == '*')
		at++;
	else if (!(at = number(at, &seen->range_total)) || last >= seen->range_total)
		return;
	seen->has_range = is_end(at);
	seen->range_bytes = last - first + 1;
}

/* Parses "CRC64NVME " and the base64 text of 8 bytes. If the value has another form, the header
 * counts as absent. */
static void parse_checksum(const char *value, struct seen *seen)
{
	const char *at = skip_blanks(value);
	unsigned char bytes[8];

	if (strncasecmp(at, "CRC64NVME ", 10))
		return;
	at = skip_blanks(at + 10);
	if (strnlen(at, CRC64_DIGITS) < CRC64_DIGITS || !is_end(at + CRC64_DIGITS) ||
	    pst_base64_parse(at, CRC64_DIGITS, bytes, sizeof(bytes)) != sizeof(bytes))
		return;
	seen->has_crc64 = true;
	seen->crc64 = 0;
	for (unsigned i = 0; i < sizeof(bytes); i++)
		seen->crc64 = seen->crc64 << 8 | bytes[i];
}

static void parse_headers(const struct penstock_object_reply *reply, struct seen *seen)
{
	memset(seen, 0, sizeof(*seen));
	for (unsigned i = 0; i < reply->header_count; i++) {
		const char *name = reply->headers[i].name, *value = reply->headers[i].value;
		uint64_t n;

		if (!name || !value)
			continue;
		if (!strcasecmp(name, "x-amz-rdma-reply"))
			seen->reply = number(skip_blanks(value), &n) && n < 1000 ? (long)n : 0;
		else if (!strcasecmp(name, "x-amz-rdma-bytes-transferred"))
			parse_bytes(value, seen);
		else if (!strcasecmp(name, "x-amz-rdma-checksum"))
			parse_checksum(value, seen);
		else if (!strcasecmp(name, "content-range"))
			parse_range(value, seen);
		else if (!strcasecmp(name, "content-length"))
			seen->has_length = is_end(number(skip_blanks(value), &seen->length));
		else if (!strcasecmp(name, "etag"))
			seen->empty_etag = strstr(value, EMPTY_MD5);
	}
}

/* ---- decisions ---- */

static void decide(struct penstock_object_verdict *v, enum penstock_object_next next,
		   const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void decide(struct penstock_object_verdict *v, enum penstock_object_next next,
		   const char *fmt, ...)
{
	va_list args;

	v->next = next;
	va_start(args, fmt);
	vsnprintf(v->text, sizeof(v->text), fmt, args);
	va_end(args);
}

static void done(struct penstock_object_verdict *v, const struct seen *seen)
{
	v->bytes = seen->bytes;
	v->has_crc64 = seen->has_crc64;
	v->crc64 = seen->crc64;
	decide(v, PENSTOCK_OBJECT_DONE, "%" PRIu64 " bytes by RDMA", seen->bytes);
}

static bool is_success(long reply)
{
	return reply == 200 || reply == 204 || reply == 206;
}

/* Handles the responses that mean the same for GET and PUT: a lost response, a refused token, and
 * errors that have nothing to do with RDMA. Returns whether the response was one of these. */
static bool judge_status(const struct penstock_object_reply *reply,
			 struct penstock_object_verdict *v)
{
	const char *error = reply->error ? reply->error : "";

	if (!reply->status)
		decide(v, PENSTOCK_OBJECT_ERROR,
		       "the response was lost: the server may have moved the bytes or not");
	else if (reply->status == 400 && !strcmp(error, "InvalidRDMAToken")) {
		v->remember = 1;
		decide(v, PENSTOCK_OBJECT_RESEND, "the server does not know this kind of token");
	} else if (!strcmp(error, "RDMANotSupported") && reply->status != 200) {
		/* Some clients, such as boto3, turn a response of status 200 with an error in its
		 * body into status 500. So the code RDMANotSupported is accepted with any status
		 * but 200. */
		decide(v, PENSTOCK_OBJECT_RESEND, "the server declined RDMA");
	} else if (reply->status >= 300 || reply->status < 200) {
		if (reply->status == 500 && !strcmp(error, "RDMATransferFailed"))
			decide(v, PENSTOCK_OBJECT_RESEND, "the transfer by RDMA failed");
		else
			decide(v, PENSTOCK_OBJECT_ERROR, "HTTP status %d %.64s", reply->status,
			       error);
	} else {
		return false;
	}
	return true;
}

static void judge_put(uint64_t len, const struct penstock_object_reply *reply,
		      const struct seen *seen, struct penstock_object_verdict *v)
{
	if (!seen->reply) {
		v->remember = 1;
		v->stored_empty = seen->empty_etag;
		decide(v, PENSTOCK_OBJECT_RESEND,
		       "the server ignored the token%s: the object is not stored",
		       seen->empty_etag ? ", and stored an empty object" : "");
	} else if (seen->reply == 501) {
		decide(v, PENSTOCK_OBJECT_RESEND, "the server declined RDMA");
	} else if (!is_success(seen->reply)) {
		decide(v, PENSTOCK_OBJECT_RESEND, "HTTP status %d with x-amz-rdma-reply %ld",
		       reply->status, seen->reply);
	} else if (!seen->has_bytes) {
		decide(v, PENSTOCK_OBJECT_RESEND,
		       "the server did not send x-amz-rdma-bytes-transferred");
	} else if (seen->bytes != len || (seen->has_total && seen->total != len)) {
		decide(v, PENSTOCK_OBJECT_RESEND,
		       "the server read %" PRIu64 " bytes instead of %" PRIu64, seen->bytes, len);
	} else {
		done(v, seen);
	}
}

/* Checks the number of bytes of a GET whose bytes are in the window. */
static void judge_delivered(uint64_t len, const struct penstock_object_reply *reply,
			    const struct seen *seen, struct penstock_object_verdict *v)
{
	const uint64_t n = seen->bytes;

	if (!seen->has_bytes)
		decide(v, PENSTOCK_OBJECT_RESEND,
		       "the server did not send x-amz-rdma-bytes-transferred");
	else if (seen->has_length && seen->length)
		/* The bytes of the object are either in the window or in the body. This response
		 * claims both, so it is unknown which of them has the right bytes. */
		decide(v, PENSTOCK_OBJECT_RESEND,
		       "the response has a body of %" PRIu64 " bytes "
		       "although the bytes went by RDMA",
		       seen->length);
	else if (n > len)
		decide(v, PENSTOCK_OBJECT_RESEND,
		       "the server reports %" PRIu64 " bytes in a window "
		       "of %" PRIu64,
		       n, len);
	else if (seen->has_total && seen->total != n)
		decide(v, PENSTOCK_OBJECT_RESEND,
		       "the server moved %" PRIu64 " of %" PRIu64 " bytes", n, seen->total);
	else if (reply->ranged && reply->status != 206)
		decide(v, PENSTOCK_OBJECT_ERROR, "HTTP status %d for a range", reply->status);
	else if (reply->ranged && !seen->has_range)
		decide(v, PENSTOCK_OBJECT_RESEND, "the response has no valid Content-Range");
	else if (seen->has_range && seen->range_bytes != n)
		decide(v, PENSTOCK_OBJECT_RESEND,
		       "the server moved %" PRIu64 " bytes, but "
		       "Content-Range has %" PRIu64,
		       n, seen->range_bytes);
	else if (reply->expect && reply->expect != n)
		decide(v, PENSTOCK_OBJECT_RESEND,
		       "the server moved %" PRIu64 " bytes instead of %" PRIu64, n, reply->expect);
	else
		done(v, seen);
}

static void judge_get(uint64_t len, const struct penstock_object_reply *reply,
		      const struct seen *seen, struct penstock_object_verdict *v)
{
	if (is_success(seen->reply)) {
		judge_delivered(len, reply, seen, v);
	} else {
		/* An empty body is right only if no bytes were expected. */
		v->remember = !seen->reply;
		if (seen->has_length && !seen->length && reply->expect)
			decide(v, PENSTOCK_OBJECT_RESEND,
			       "the body is empty, but %" PRIu64 " bytes were expected",
			       reply->expect);
		else
			decide(v, PENSTOCK_OBJECT_BODY,
			       seen->reply ? "the server declined RDMA"
					   : "the server ignored the token");
	}
}

void pst_judge(enum penstock_op op, uint64_t len, const struct penstock_object_reply *reply,
	       struct penstock_object_verdict *verdict)
{
	const size_t size = verdict->size;
	struct seen seen;

	memset(verdict, 0, sizeof(*verdict));
	verdict->size = size;
	if (judge_status(reply, verdict))
		return;
	parse_headers(reply, &seen);
	if (op == PENSTOCK_WRITE)
		judge_put(len, reply, &seen, verdict);
	else
		judge_get(len, reply, &seen, verdict);
}

void pst_judge_final(uint64_t len, const struct penstock_object_reply *reply,
		     struct penstock_object_verdict *v)
{
	const size_t size = v->size;
	struct seen seen;

	memset(v, 0, sizeof(*v));
	v->size = size;
	parse_headers(reply, &seen);
	if (!reply->status)
		decide(v, PENSTOCK_OBJECT_ERROR,
		       "the response was lost: the server may have moved the bytes or not");
	else if (reply->status == 412)
		decide(v, PENSTOCK_OBJECT_ERROR, "HTTP status %d", reply->status);
	else if (!is_success(reply->status))
		/* The client then repeats the request by plain HTTP. The reply to that shows
		 * whether the request itself is wrong. */
		decide(v, PENSTOCK_OBJECT_RESEND, "the transfer failed: HTTP status %d %.64s",
		       reply->status, reply->error ? reply->error : "");
	else if (!seen.has_bytes || seen.bytes != len)
		decide(v, PENSTOCK_OBJECT_RESEND,
		       "the server moved %" PRIu64 " bytes instead of %" PRIu64, seen.bytes, len);
	else
		done(v, &seen);
}

/* ---- the server's answer ---- */

static void answer_header(struct penstock_object_answer *a, const char *name, const char *value)
{
	a->headers[a->header_count++] = (struct penstock_object_header){name, value};
}

/* Writes "CRC64NVME " and the base64 text of 8 bytes, the highest byte first. */
static void print_checksum(uint64_t crc, char *out, size_t size)
{
	char text[CRC64_DIGITS + 1];
	unsigned char bytes[8];

	for (unsigned i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)(crc >> (56 - 8 * i));
	pst_base64(bytes, sizeof(bytes), text);
	snprintf(out, size, "CRC64NVME %s", text);
}

int pst_answer(struct penstock_object_answer *a)
{
	const bool get = a->op == PENSTOCK_READ, part = get && a->ranged;

	if (a->op != PENSTOCK_READ && a->op != PENSTOCK_WRITE)
		return -EINVAL;
	a->header_count = 0;
	a->error = NULL;
	a->body = 0;
	a->status = part ? 206 : 200;
	snprintf(a->text, sizeof(a->text), "%" PRIu64,
		 a->outcome == PENSTOCK_OBJECT_MOVED ? a->bytes : 0);
	switch (a->outcome) {
	case PENSTOCK_OBJECT_MOVED:
		answer_header(a, "x-amz-rdma-reply", part ? "206" : "200");
		answer_header(a, "x-amz-rdma-bytes-transferred", a->text);
		if (a->has_crc64) {
			print_checksum(a->crc64, a->checksum, sizeof(a->checksum));
			answer_header(a, "x-amz-rdma-checksum", a->checksum);
		}
		return 0;
	case PENSTOCK_OBJECT_MALFORMED:
		a->status = 400;
		a->error = "InvalidRDMAToken";
		return 0;
	case PENSTOCK_OBJECT_FAILED:
		if (!get) {
			a->status = 500;
			a->error = "RDMATransferFailed";
			return 0;
		}
		/* fall through */
	case PENSTOCK_OBJECT_DECLINED:
		answer_header(a, "x-amz-rdma-reply", "501");
		answer_header(a, "x-amz-rdma-bytes-transferred", a->text);
		a->body = get;
		a->error = get ? NULL : "RDMANotSupported";
		return 0;
	}
	return -EINVAL;
}
