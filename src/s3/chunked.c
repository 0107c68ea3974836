/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements chunked.h as a state machine, because the input arrives in pieces of any length.
 *
 * A chunk is LENGTH[;chunk-signature=SIGNATURE]\r\n, the bytes and \r\n, where LENGTH is in hex
 * digits. A chunk of length 0 has no bytes and no \r\n of its own. It is followed by lines
 * NAME:VALUE, the trailers, and by an empty line. The last trailer of a signed body is
 * x-amz-trailer-signature. Each signature covers the one before it.
 */
#include "s3/chunked.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/digits.h"
#include "s3/hash.h"

#define LINE_MAX_LEN 1024   /* maximum length of a line, with its end */
#define TRAILERS_MAX 8	    /* maximum number of trailers */
#define LENGTH_DIGITS_MAX 8 /* maximum number of digits of a chunk's length */

/* SHA-256 of an empty text. The text that a chunk's signature covers contains this hash in place of
 * headers. */
#define EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

enum state {
	AT_LENGTH,   /* in the first line of a chunk */
	AT_BYTES,    /* in the bytes of a chunk */
	AT_BYTES_CR, /* before the \r\n that follows the bytes */
	AT_BYTES_LF,
	AT_TRAILER, /* in the lines that follow the last chunk */
	AT_END,
};

struct pst_chunked {
	bool is_signed, may_have_trailers;
	enum state state;
	int failed;  /* error that every later call returns; 0 if there was none */
	size_t left; /* bytes of the chunk that have not arrived */
	/* number of bytes received after the end: some clients send one more empty line ("\r\n") */
	unsigned extra;
	bool trailer_proven; /* whether the signature of the trailers has been checked */
	/* whether an empty line came before the line with the trailers' signature */
	bool empty_line;

	char line[LINE_MAX_LEN];
	size_t line_len;

	/* hash of the chunk's bytes; NULL if the body is not signed */
	struct pst_hash *hash;
	char expected[65]; /* the signature that the client has sent with the chunk */
	/* signature of the chunk before, which the next signature covers */
	char previous[65];
	char date[PST_SIGV4_DATE], region[65], service[33];
	unsigned char key[32];

	unsigned trailer_count;
	/* each element is a name, a NUL and a value */
	char trailers[TRAILERS_MAX][LINE_MAX_LEN];
};

struct pst_chunked *pst_chunked_open(const char *payload, const struct pst_sigv4_claim *claim)
{
	bool is_signed = !strncmp(payload, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", 34);
	bool trailers = !strcmp(payload, "STREAMING-UNSIGNED-PAYLOAD-TRAILER") ||
			(is_signed && !strcmp(payload + 34, "-TRAILER"));
	struct pst_chunked *body;

	if (!trailers && (!is_signed || payload[34])) {
		errno = EINVAL;
		return NULL;
	}
	body = calloc(1, sizeof(*body));
	if (!body)
		return NULL;
	body->is_signed = is_signed;
	body->may_have_trailers = trailers;
	memcpy(body->previous, claim->signature, sizeof(body->previous));
	memcpy(body->date, claim->date, sizeof(body->date));
	memcpy(body->region, claim->region, sizeof(body->region));
	memcpy(body->service, claim->service, sizeof(body->service));
	memcpy(body->key, claim->signing_key, sizeof(body->key));
	return body;
}

void pst_chunked_close(struct pst_chunked *body)
{
	if (!body)
		return;
	pst_hash_close(body->hash);
	explicit_bzero(body->key, sizeof(body->key));
	free(body);
}

/* Computes the signature of a text that ends with `digests`, and compares it with `signature`,
 * which the client sent. The computed signature becomes body->previous. */
static int signature_check(struct pst_chunked *body, const char *algorithm, const char *digests,
			   const char *signature)
{
	/* NULL stands for the day, the first eight characters of the date. */
	const char *const parts[] = {algorithm,	     "\n",
				     body->date,     "\n",
				     NULL,	     "/",
				     body->region,   "/",
				     body->service,  "/aws4_request\n",
				     body->previous, "\n",
				     digests};
	struct pst_text text = {0};
	unsigned char mac[32];
	char hex[PST_SHA256_HEX];
	int rc = -ENOMEM;

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		if (parts[i])
			pst_text_put_str(&text, parts[i]);
		else
			pst_text_put(&text, body->date, 8);
	if (!text.failed && pst_hmac_sha256(body->key, sizeof(body->key), text.at, text.len, mac)) {
		pst_hex(mac, sizeof(mac), hex);
		rc = pst_compare_secret(hex, signature, 64) ? -EACCES : 0;
		memcpy(body->previous, hex, sizeof(hex));
	}
	free(text.at);
	return rc;
}

/* Checks the signature of the chunk whose bytes have all arrived. */
static int chunk_check(struct pst_chunked *body)
{
	unsigned char digest[PST_HASH_MAX];
	char digests[2 * PST_SHA256_HEX] = EMPTY_SHA256 "\n";
	size_t len;

	if (!body->is_signed)
		return 0;
	len = pst_hash_end(body->hash, digest);
	pst_hash_close(body->hash);
	body->hash = NULL;
	if (len != 32)
		return -ENOMEM;
	pst_hex(digest, len, digests + 65);
	return signature_check(body, "AWS4-HMAC-SHA256-PAYLOAD", digests, body->expected);
}

/* Reads a signature of 64 hex digits, which must be the whole text. */
static bool signature_read(const char *text, char out[65])
{
	if (strlen(text) != 64 || strspn(text, "0123456789abcdef") != 64)
		return false;
	memcpy(out, text, 65);
	return true;
}

/* Parses the first line of a chunk, without its line end. */
static int length_line(struct pst_chunked *body)
{
	static const char name[] = ";chunk-signature=";
	size_t digits = strspn(body->line, "0123456789abcdefABCDEF");
	const char *rest = body->line + digits;

	if (!digits || digits > LENGTH_DIGITS_MAX)
		return -EBADMSG;
	body->left = strtoul(body->line, NULL, 16);
	if (body->left > PST_CHUNK_LEN_MAX)
		return -EBADMSG;
	if (body->is_signed) {
		if (strncmp(rest, name, strlen(name)) ||
		    !signature_read(rest + strlen(name), body->expected))
			return -EBADMSG;
		body->hash = pst_hash_open(PST_HASH_SHA256);
		if (!body->hash)
			return -ENOMEM;
	} else if (*rest) {
		return -EBADMSG;
	}
	body->state = body->left ? AT_BYTES : AT_TRAILER;
	return body->left ? 0 : chunk_check(body);
}

/* Checks the signature of all trailers. */
static int trailers_check(struct pst_chunked *body, const char *signature)
{
	struct pst_text text = {0};
	char expected[65], digest[PST_SHA256_HEX];
	int rc = -ENOMEM;

	if (!signature_read(signature, expected))
		return -EBADMSG;
	for (unsigned i = 0; i < body->trailer_count; i++) {
		const char *name = body->trailers[i];

		pst_text_put_str(&text, name);
		pst_text_put_str(&text, ":");
		pst_text_put_str(&text, name + strlen(name) + 1);
		pst_text_put_str(&text, "\n");
	}
	if (!text.failed && pst_sha256_hex(text.at ? text.at : "", text.len, digest))
		rc = signature_check(body, "AWS4-HMAC-SHA256-TRAILER", digest, expected);
	free(text.at);
	body->trailer_proven = !rc;
	return rc;
}

/* Handles an empty line, which ends the body. But a signed body with trailers may have one more
 * empty line before the trailers' signature, as the API Reference shows it. */
static int empty_line(struct pst_chunked *body)
{
	if (!body->is_signed || !body->may_have_trailers || body->trailer_proven) {
		body->state = AT_END;
		return 0;
	}
	if (body->empty_line)
		return -EBADMSG;
	body->empty_line = true;
	return 0;
}

/* Parses a line after the last chunk, without its line end. */
static int trailer_line(struct pst_chunked *body)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789-_";
	char *colon = strchr(body->line, ':'), *value, *end, *to;

	if (!body->line[0])
		return empty_line(body);
	if (!colon || colon == body->line || !body->may_have_trailers || body->trailer_proven)
		return -EBADMSG;
	for (char *at = body->line; at < colon; at++)
		if (*at >= 'A' && *at <= 'Z')
			*at = (char)(*at - 'A' + 'a');
	*colon = '\0';
	if (body->line[strspn(body->line, allowed)])
		return -EBADMSG;
	value = colon + 1 + strspn(colon + 1, " \t");
	end = value + strlen(value);
	while (end > value && strchr(" \t", end[-1]))
		end--;
	*end = '\0';
	if (body->is_signed && !strcmp(body->line, "x-amz-trailer-signature"))
		return trailers_check(body, value);
	if (body->trailer_count == TRAILERS_MAX || pst_chunked_trailer(body, body->line))
		return -EBADMSG;
	to = body->trailers[body->trailer_count++];
	memcpy(to, body->line, (size_t)(colon + 1 - body->line));
	memcpy(to + (colon + 1 - body->line), value, (size_t)(end + 1 - value));
	return 0;
}

/* Adds a byte to the line. At the end of the line, parses it. */
static int line_put(struct pst_chunked *body, char c)
{
	bool chunk = body->state == AT_LENGTH;
	bool cr = body->line_len && body->line[body->line_len - 1] == '\r';

	/* A carriage return is allowed only directly before the \n that ends the line. */
	if (!c || (cr && c != '\n'))
		return -EBADMSG;
	if (c != '\n') {
		if (body->line_len + 1 == sizeof(body->line))
			return -EBADMSG;
		body->line[body->line_len++] = c;
		return 0;
	}
	/* Some clients end trailers with \n only, as the API Reference shows it. */
	if (!cr && chunk)
		return -EBADMSG;
	body->line[body->line_len - cr] = '\0';
	body->line_len = 0;
	return chunk ? length_line(body) : trailer_line(body);
}

/* Decodes bytes of a chunk. Returns their number in *used. */
static int bytes_put(struct pst_chunked *body, const char *bytes, size_t len, size_t *used,
		     int (*put)(void *user, const char *bytes, size_t len), void *user)
{
	size_t n = len < body->left ? len : body->left;

	*used = n;
	if (body->hash)
		pst_hash_put(body->hash, bytes, n);
	body->left -= n;
	if (!body->left)
		body->state = AT_BYTES_CR;
	return put(user, bytes, n);
}

/* Decodes one byte that is not data of a chunk: a byte of a line or of a line's end. */
static int byte_put(struct pst_chunked *body, char c)
{
	switch (body->state) {
	case AT_BYTES_CR:
		body->state = AT_BYTES_LF;
		return c == '\r' ? 0 : -EBADMSG;
	case AT_BYTES_LF:
		body->state = AT_LENGTH;
		return c == '\n' ? chunk_check(body) : -EBADMSG;
	case AT_END:
		/* Clients that end the last trailer with \n send one more empty line. */
		return body->trailer_count && body->extra < 2 && c == "\r\n"[body->extra++]
			       ? 0
			       : -EBADMSG;
	default:
		return line_put(body, c);
	}
}

int pst_chunked_put(struct pst_chunked *body, const char *bytes, size_t len,
		    int (*put)(void *user, const char *bytes, size_t len), void *user)
{
	while (len && !body->failed) {
		size_t used = 1;

		if (body->state == AT_BYTES)
			body->failed = bytes_put(body, bytes, len, &used, put, user);
		else
			body->failed = byte_put(body, *bytes);
		bytes += used;
		len -= used;
	}
	return body->failed;
}

int pst_chunked_end(const struct pst_chunked *body)
{
	/* Not all clients send an empty line after the signature of the trailers. So a body whose
	 * trailers have been checked is complete without it. */
	bool proven = body->trailer_proven && !body->line_len;

	return (body->state == AT_END || proven) && !body->failed ? 0 : -EBADMSG;
}

const char *pst_chunked_trailer(const struct pst_chunked *body, const char *name)
{
	for (unsigned i = 0; i < body->trailer_count; i++)
		if (!strcmp(body->trailers[i], name))
			return body->trailers[i] + strlen(name) + 1;
	return NULL;
}
