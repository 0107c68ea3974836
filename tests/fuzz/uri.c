/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the percent-encoding of URIs and the parser of queries. libFuzzer runs this target, or
 * replay.c does with its corpus. A failure is a text that changes when it is encoded and decoded, a
 * decoded text that is too long, or a parameter outside the query.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "s3/uri.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static void require(bool truth)
{
	if (!truth)
		abort();
}

static void check_encoding(const char *bytes, size_t len, bool keep_slash)
{
	struct pst_text text = {0};
	char *again;

	pst_uri_put(&text, bytes, len, keep_slash);
	if (!text.failed && len) {
		again = malloc(text.len + 1);
		require(again && pst_uri_parse(text.at, text.len, true, again) == (long)len);
		require(!memcmp(again, bytes, len));
		free(again);
	}
	free(text.at);
}

static void check_query(const char *query)
{
	const char *at = query, *end = query + strlen(query), *name, *value;
	size_t name_len, value_len;

	while (pst_uri_next(&at, &name, &name_len, &value, &value_len)) {
		require(name >= query && name + name_len <= value && value + value_len == at);
		require(!memchr(name, '&', (size_t)(at - name)));
		require(!memchr(name, '=', name_len));
	}
	require(at == end);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	/* The heap blocks have exactly the promised lengths, so that a sanitizer detects an access
	 * of one byte too many. */
	char *bytes = malloc(len_bytes ? len_bytes : 1), *out = malloc(len_bytes + 1);
	char *text = malloc(len_bytes + 1);

	if (bytes && out && text) {
		long n;

		memcpy(bytes, data, len_bytes);
		memcpy(text, data, len_bytes);
		text[len_bytes] = '\0';
		for (int plus = 0; plus < 2; plus++) {
			n = pst_uri_parse(bytes, len_bytes, plus, out);
			require(n < 0 || ((size_t)n <= len_bytes && !out[n]));
			check_encoding(bytes, len_bytes, plus);
		}
		check_query(text);
	}
	free(text);
	free(out);
	free(bytes);
	return 0;
}
