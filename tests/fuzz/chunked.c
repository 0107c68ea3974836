/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the decoder of aws-chunked bodies. The first byte of the input selects the kind of the
 * body and the length of the pieces in which it arrives. libFuzzer runs this target, or replay.c
 * does with its corpus. A failure is a result that depends on the pieces, a decoded body that is
 * not shorter than the encoded one, or a trailer with a line break.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "s3/chunked.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static void require(bool truth)
{
	if (!truth)
		abort();
}

static int collect(void *user, const char *bytes, size_t len)
{
	pst_text_put(user, bytes, len);
	return 0;
}

/* Decodes a body that arrives in pieces of `piece` bytes. Returns the last result. */
static int decode(const char *payload, const char *bytes, size_t len, size_t piece,
		  struct pst_text *out)
{
	/* The bodies of the corpus are signed with this key. */
	struct pst_sigv4_claim claim = {
		.date = "20130524T000000Z", .region = "r", .service = "s3", .signature = "0"};
	struct pst_chunked *body = pst_chunked_open(payload, &claim);
	const char *trailer;
	int rc = 0;

	require(body != NULL);
	for (size_t n; len && !rc; bytes += n, len -= n) {
		n = len < piece ? len : piece;
		rc = pst_chunked_put(body, bytes, n, collect, out);
	}
	require(!rc || pst_chunked_end(body));
	trailer = pst_chunked_trailer(body, "x-amz-checksum-crc32c");
	require(!trailer || (!strpbrk(trailer, "\r\n") && strlen(trailer) < 1024));
	rc = rc ? rc : pst_chunked_end(body);
	pst_chunked_close(body);
	return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	static const char *const kinds[] = {
		"STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
		"STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
		"STREAMING-UNSIGNED-PAYLOAD-TRAILER",
	};
	struct pst_text whole = {0}, pieces = {0};
	const char *kind;
	int rc;

	if (!len_bytes)
		return 0;
	kind = kinds[data[0] % 3];
	rc = decode(kind, (const char *)data + 1, len_bytes - 1, len_bytes, &whole);
	require(rc ==
		decode(kind, (const char *)data + 1, len_bytes - 1, 1u + data[0] / 3, &pieces));
	/* Both decoders stop at the first error, so both results must have the same bytes. */
	require(whole.len == pieces.len && whole.len < len_bytes);
	require(!whole.len || !memcmp(whole.at, pieces.at, whole.len));
	free(whole.at);
	free(pieces.at);
	return 0;
}
