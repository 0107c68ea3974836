/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the parsers for object stores. The input is parsed as a URL and as an HTTP answer.
 * libFuzzer runs this target, or replay.c does with its corpus. A failure is a request with an
 * invalid host or port, or a server name with control characters, which a terminal would
 * execute.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static void check_url(const char *text)
{
	struct pst_http_url out;

	if (pst_http_url_parse(text, &out) < 0)
		return;
	if (!out.host[0] || strpbrk(out.host, " \r\n/?#") || !out.port[0] ||
	    out.port[strspn(out.port, "0123456789")] || atoll(out.port) > 65535)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	struct pst_http_answer answer;
	char *text = malloc(len_bytes + 1), *c;

	if (!text)
		return 0;
	memcpy(text, data, len_bytes);
	text[len_bytes] = '\0';
	check_url(text);
	free(text);
	/* The heap block has exactly this length, so that a sanitizer detects a read of one byte
	 * too many. */
	text = malloc(len_bytes ? len_bytes : 1);
	if (!text)
		return 0;
	memcpy(text, data, len_bytes);
	if (!pst_http_answer_parse(text, len_bytes, &answer)) {
		if (answer.status < 0 || answer.status > 999)
			abort();
		for (c = answer.server; *c; c++)
			if (*c < ' ' || *c > '~')
				abort();
	}
	free(text);
	return 0;
}
