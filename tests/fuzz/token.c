/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the parser of tokens of S3 over RDMA. Also fuzzes the function that judges responses,
 * because their headers come from the network, too. The first line of the input is a token, and
 * each further line is a header "name: value" of a response. A failure is a token that changes when
 * it is printed and parsed again, or the verdict "done" with more bytes than the window has.
 */
#include <stdlib.h>
#include <string.h>

#include "s3/judge.h"
#include "s3/token.h"

#define LINES_MAX 16
#define WINDOW 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static void check_token(const char *text, size_t len)
{
	char first[PST_TOKEN_MAX + 1], second[PST_TOKEN_MAX + 1];
	struct pst_token t;
	int n;

	if (pst_token_parse(text, len, &t))
		return;
	n = pst_token_print(&t, first);
	if (n <= 0 || pst_token_parse(first, (size_t)n, &t) || pst_token_print(&t, second) != n ||
	    strcmp(first, second))
		abort();
}

/* Splits lines into headers, in place, and checks the verdict about a response with these headers,
 * for each operation. */
static void check_headers(char *text)
{
	struct penstock_object_header headers[LINES_MAX];
	struct penstock_object_reply reply = PENSTOCK_OBJECT_REPLY_INIT;

	reply.headers = headers;
	while (text && *text && reply.header_count < LINES_MAX) {
		char *end = strchr(text, '\n'), *colon;

		if (end)
			*end = '\0';
		colon = strchr(text, ':');
		if (colon) {
			*colon = '\0';
			headers[reply.header_count].name = text;
			headers[reply.header_count++].value = colon + 1;
		}
		text = end ? end + 1 : NULL;
	}
	for (unsigned i = 0; i < 8; i++) {
		struct penstock_object_verdict v = PENSTOCK_OBJECT_VERDICT_INIT;
		enum penstock_op op = i & 1 ? PENSTOCK_WRITE : PENSTOCK_READ;

		reply.status = i & 2 ? 206 : 200;
		reply.ranged = i >> 2;
		pst_judge(op, WINDOW, &reply, &v);
		if (!v.text[0] || (v.next == PENSTOCK_OBJECT_DONE && v.bytes > WINDOW) ||
		    (v.next == PENSTOCK_OBJECT_DONE && op == PENSTOCK_WRITE && v.bytes != WINDOW))
			abort();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	char *text = malloc(len_bytes + 1), *rest;

	if (!text)
		return 0;
	memcpy(text, data, len_bytes);
	text[len_bytes] = '\0';
	rest = memchr(text, '\n', len_bytes);
	check_token(text, rest ? (size_t)(rest - text) : len_bytes);
	if (rest)
		check_headers(rest + 1);
	free(text);
	return 0;
}
