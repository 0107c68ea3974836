/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses heads of HTTP responses and chunked bodies: see http_head.h. The functions keep no state
 * outside their arguments and allocate nothing.
 */
#include "io/http_head.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "common/digits.h"

#define TRAILER_MAX 8192 /* maximum length of the trailers of a chunked body */

/* A part of the head, which does not end with a NUL. */
struct part {
	const char *at;
	size_t len;
};

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool part_is(struct part part, const char *word)
{
	return part.len == strlen(word) && !strncasecmp(part.at, word, part.len);
}

/* Parses decimal digits at the start of a part and removes them. Returns false if there is no digit
 * or the number exceeds INT64_MAX. */
static bool part_number(struct part *part, uint64_t *out)
{
	uint64_t n = 0;

	if (!part->len || !is_digit(*part->at))
		return false;
	for (; part->len && is_digit(*part->at); part->at++, part->len--) {
		n = n * 10 + (uint64_t)(*part->at - '0');
		if (n > INT64_MAX / 16)
			return false;
	}
	*out = n;
	return true;
}

/* Removes a character at the start of a part. Returns false if the part begins with another
 * character. */
static bool part_skip(struct part *part, char c)
{
	if (!part->len || *part->at != c)
		return false;
	part->at++;
	part->len--;
	return true;
}

static void part_trim(struct part *part)
{
	while (part->len && (*part->at == ' ' || *part->at == '\t'))
		part->at++, part->len--;
	while (part->len && (part->at[part->len - 1] == ' ' || part->at[part->len - 1] == '\t'))
		part->len--;
}

/* Copies the value to `out` if it fits and has only characters from `lowest` to '~'. Otherwise
 * leaves `out` empty. */
static void part_copy_from(struct part part, char lowest, char *out, size_t out_len)
{
	if (part.len >= out_len)
		return;
	for (size_t i = 0; i < part.len; i++)
		if (part.at[i] < lowest || part.at[i] > '~')
			return;
	memcpy(out, part.at, part.len);
	out[part.len] = '\0';
}

static void part_copy(struct part part, char *out, size_t out_len)
{
	part_copy_from(part, '!', out, out_len);
}

static int parse_length(struct part value, struct pst_http_head *out)
{
	uint64_t n;

	if (!part_number(&value, &n) || value.len)
		return -EBADMSG;
	/* Two different lengths would let two readers disagree about the body's end. */
	if (out->has_length && out->length != n)
		return -EBADMSG;
	out->has_length = true;
	out->length = n;
	return 0;
}

static int parse_range(struct part value, struct pst_http_head *out)
{
	if (value.len < 6 || strncasecmp(value.at, "bytes ", 6))
		return 0; /* a unit other than bytes, which the client never asks for */
	value.at += 6;
	value.len -= 6;
	part_trim(&value);
	if (!part_skip(&value, '*')) {
		if (!part_number(&value, &out->range_first) || !part_skip(&value, '-') ||
		    !part_number(&value, &out->range_last) || out->range_last < out->range_first)
			return -EBADMSG;
		out->has_range = true;
	}
	if (!part_skip(&value, '/'))
		return -EBADMSG;
	if (part_is(value, "*"))
		return 0;
	if (!part_number(&value, &out->range_total) || value.len)
		return -EBADMSG;
	out->has_total = true;
	return 0;
}

static int parse_coding(struct part value, struct pst_http_head *out)
{
	if (part_is(value, "identity"))
		return 0;
	if (!part_is(value, "chunked"))
		return -EBADMSG; /* the client accepts no other coding */
	out->chunked = true;
	return 0;
}

/* Parses the value of the header Connection, a list such as "keep-alive, Upgrade". */
static void parse_connection(struct part value, struct pst_http_head *out)
{
	while (value.len) {
		const char *comma = memchr(value.at, ',', value.len);
		struct part word = {value.at, comma ? (size_t)(comma - value.at) : value.len};
		size_t taken = word.len + (comma ? 1 : 0);

		part_trim(&word);
		if (part_is(word, "close"))
			out->keeps = false;
		else if (part_is(word, "keep-alive"))
			out->keeps = true;
		value.at += taken;
		value.len -= taken;
	}
}

/* Copies the value of a header x-amz-rdma-*. */
static void parse_rdma(struct part name, struct part value, struct pst_http_head *out)
{
#define RDMA(end, member)                                                         \
	{                                                                         \
		"x-amz-rdma-" end, offsetof(struct pst_http_head, rdma_##member), \
			sizeof(out->rdma_##member)                                \
	}
	static const struct {
		const char *name;
		size_t at, len;
	} fields[] = {RDMA("reply", reply),	  RDMA("bytes-transferred", bytes),
		      RDMA("checksum", checksum), RDMA("protocol", protocol),
		      RDMA("session", session),	  RDMA("psn", psn),
		      RDMA("qpn", qpn),		  RDMA("cookie", cookie),
		      RDMA("mr-addr", address),	  RDMA("mr-rkey", key),
		      RDMA("etag", etag)};
#undef RDMA

	for (unsigned i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		if (part_is(name, fields[i].name))
			part_copy_from(value, ' ', (char *)out + fields[i].at, fields[i].len);
}

static int parse_header(struct part name, struct part value, struct pst_http_head *out)
{
	uint64_t n;

	if (part_is(name, "content-length"))
		return parse_length(value, out);
	if (part_is(name, "content-range"))
		return parse_range(value, out);
	if (part_is(name, "transfer-encoding"))
		return parse_coding(value, out);
	if (part_is(name, "connection"))
		parse_connection(value, out);
	else if (part_is(name, "retry-after") && part_number(&value, &n) && !value.len)
		out->retry_after_s = n < 3600 ? (unsigned)n : 3600;
	else if (part_is(name, "etag"))
		part_copy(value, out->etag, sizeof(out->etag));
	else if (part_is(name, "last-modified"))
		part_copy_from(value, ' ', out->modified, sizeof(out->modified));
	else if (part_is(name, "x-amz-bucket-region"))
		part_copy(value, out->region, sizeof(out->region));
	else if (part_is(name, "x-amz-checksum-crc32"))
		part_copy(value, out->crc32, sizeof(out->crc32));
	else if (part_is(name, "x-amz-checksum-crc32c"))
		part_copy(value, out->crc32c, sizeof(out->crc32c));
	else if (part_is(name, "x-amz-checksum-crc64nvme"))
		part_copy(value, out->crc64nvme, sizeof(out->crc64nvme));
	else if (part_is(name, "x-amz-checksum-type"))
		part_copy(value, out->checksum_type, sizeof(out->checksum_type));
	else
		parse_rdma(name, value, out);
	return 0;
}

/* Parses a status line such as "HTTP/1.1 206 Partial Content". */
static int parse_status(struct part line, struct pst_http_head *out)
{
	uint64_t status;

	if (line.len < 12 || strncmp(line.at, "HTTP/1.", 7) || !is_digit(line.at[7]) ||
	    line.at[8] != ' ')
		return -EBADMSG;
	out->keeps = line.at[7] != '0';
	line.at += 9;
	line.len -= 9;
	if (!part_number(&line, &status) || status < 100 || status > 599 ||
	    (line.len && *line.at != ' '))
		return -EBADMSG;
	out->status = (unsigned)status;
	return 0;
}

static int parse_line(struct part line, struct pst_http_head *out)
{
	const char *colon = memchr(line.at, ':', line.len);
	struct part name = {line.at, colon ? (size_t)(colon - line.at) : 0};
	struct part value;

	if (!name.len)
		return -EBADMSG;
	/* This refuses a blank before the colon, and a folded line, which begins with a blank. */
	for (size_t i = 0; i < name.len; i++)
		if (name.at[i] <= ' ' || name.at[i] > '~')
			return -EBADMSG;
	value = (struct part){colon + 1, line.len - name.len - 1};
	for (size_t i = 0; i < value.len; i++)
		if (value.at[i] == '\0' || value.at[i] == '\r')
			return -EBADMSG;
	part_trim(&value);
	return parse_header(name, value, out);
}

long pst_http_head_parse(const char *bytes, size_t len, struct pst_http_head *out)
{
	size_t most = len < PST_HTTP_HEAD_MAX ? len : PST_HTTP_HEAD_MAX, at = 0;

	memset(out, 0, sizeof(*out));
	for (unsigned line = 0; line <= PST_HTTP_LINES_MAX + 1; line++) {
		const char *end = memchr(bytes + at, '\n', most - at);
		struct part part = {bytes + at, 0};
		int ret;

		if (!end)
			return most == PST_HTTP_HEAD_MAX ? -E2BIG : 0;
		part.len = (size_t)(end - part.at);
		if (part.len && part.at[part.len - 1] == '\r')
			part.len--;
		at = (size_t)(end - bytes) + 1;
		if (line && !part.len)
			return (long)at;
		ret = line ? parse_line(part, out) : parse_status(part, out);
		if (ret)
			return ret;
	}
	return -E2BIG;
}

/* ---- chunked bodies ---- */

enum { CHUNK_SIZE, CHUNK_EXTENSION, CHUNK_BYTES, CHUNK_CR, CHUNK_LF, CHUNK_TRAILERS };

/* Handles one byte of the line with a chunk's size. */
static int chunk_size_take(struct pst_http_chunks *chunks, char c)
{
	int digit = pst_hex_value(c);

	if (chunks->state == CHUNK_SIZE && digit >= 0) {
		chunks->left = chunks->left << 4 | (unsigned)digit;
		return ++chunks->digits > 15 ? -EBADMSG : 0;
	}
	if (!chunks->digits || (c != '\n' && ++chunks->trailer_len > TRAILER_MAX))
		return -EBADMSG;
	if (c == '\n') {
		chunks->state = chunks->left ? CHUNK_BYTES : CHUNK_TRAILERS;
		chunks->digits = 0;
		chunks->line_has_bytes = false;
	} else if (c == ';' || c == '\r' || c == ' ' || chunks->state == CHUNK_EXTENSION) {
		chunks->state = CHUNK_EXTENSION;
	} else {
		return -EBADMSG;
	}
	return 0;
}

/* Handles one byte of a chunked body that is not data: a byte of a chunk's size, a line end or a
 * trailer. Returns 1 at the end of the body. */
static int chunk_control_take(struct pst_http_chunks *chunks, char c)
{
	switch (chunks->state) {
	case CHUNK_CR:
		chunks->state = CHUNK_LF;
		return c == '\r' ? 0 : -EBADMSG;
	case CHUNK_LF:
		chunks->state = CHUNK_SIZE;
		return c == '\n' ? 0 : -EBADMSG;
	case CHUNK_TRAILERS:
		if (++chunks->trailer_len > TRAILER_MAX)
			return -EBADMSG;
		if (c == '\n' && !chunks->line_has_bytes)
			return 1;
		chunks->line_has_bytes = c != '\n' && (c != '\r' || chunks->line_has_bytes);
		return 0;
	default:
		return chunk_size_take(chunks, c);
	}
}

long pst_http_chunks_take(struct pst_http_chunks *chunks, char *bytes, size_t len, size_t *decoded,
			  bool *ended)
{
	size_t at = 0, out = 0;

	*ended = false;
	while (at < len && !*ended) {
		int ret;

		if (chunks->state == CHUNK_BYTES) {
			size_t n = len - at < chunks->left ? len - at : (size_t)chunks->left;

			memmove(bytes + out, bytes + at, n);
			out += n;
			at += n;
			chunks->left -= n;
			if (!chunks->left)
				chunks->state = CHUNK_CR;
			continue;
		}
		ret = chunk_control_take(chunks, bytes[at++]);
		if (ret < 0)
			return ret;
		*ended = ret;
	}
	*decoded = out;
	return (long)at;
}
