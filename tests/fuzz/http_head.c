/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the parser of HTTP responses. The input is a head and perhaps a chunked body. A failure is
 * an access outside of the input, or a head that is longer than its input or than the limit. A
 * result that depends on bytes after the head, or on the pieces in which a chunked body arrives, is
 * a failure too.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "io/http_head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

/* Decodes a chunked body that arrives in pieces of `piece` bytes. Returns the length of the decoded
 * body, -EAGAIN if its end is missing, or another negative errno. */
static long decode(const uint8_t *data, size_t len, size_t piece, char *out)
{
	struct pst_http_chunks chunks = {0};
	bool ended = false;
	long total = 0;

	for (size_t at = 0; at < len && !ended; at += piece) {
		size_t n = len - at < piece ? len - at : piece, decoded = 0;
		char *copy = malloc(n);
		long taken;

		memcpy(copy, data + at, n);
		taken = pst_http_chunks_take(&chunks, copy, n, &decoded, &ended);
		if (taken > (long)n || (taken >= 0 && taken < (long)n && !ended) || decoded > n)
			abort();
		if (taken >= 0)
			memcpy(out + total, copy, decoded);
		free(copy);
		if (taken < 0)
			return taken;
		total += (long)decoded;
	}
	return ended ? total : -EAGAIN;
}

static void check_chunks(const uint8_t *data, size_t len)
{
	char *whole = malloc(len + 1), *pieces = malloc(len + 1);
	long a = decode(data, len, len ? len : 1, whole), b = decode(data, len, 1, pieces);

	if (a != b || (a > 0 && memcmp(whole, pieces, (size_t)a)))
		abort();
	free(whole);
	free(pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct pst_http_head head, again;
	char *copy = malloc(len + 1);
	long n;

	memcpy(copy, data, len);
	n = pst_http_head_parse(copy, len, &head);
	if (n > (long)len || n > PST_HTTP_HEAD_MAX || (n < 0 && n != -EBADMSG && n != -E2BIG))
		abort();
	if (n > 0) {
		if (head.status < 100 || head.status > 599 ||
		    (head.has_range && head.range_last < head.range_first) ||
		    strlen(head.etag) >= sizeof(head.etag))
			abort();
		if (pst_http_head_parse(copy, (size_t)n, &again) != n ||
		    memcmp(&head, &again, sizeof(head)))
			abort();
	}
	check_chunks(data + (n > 0 ? n : 0), len - (size_t)(n > 0 ? n : 0));
	free(copy);
	return 0;
}
