/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the verification of signatures. The input is a request: a line with the path, a line with
 * the query, and lines NAME:VALUE. libFuzzer runs this target, or replay.c does with its corpus. A
 * failure is a parsed claim (the fields of a signature) with characters that would break a line of
 * a log, or with an unsorted list of headers. An accepted request is a failure too, because no
 * input is signed with the secret.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "s3/sigv4.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static void require(bool truth)
{
	if (!truth)
		abort();
}

/* Cuts the first line off a text and returns it. Sets *text to the rest. */
static char *line_cut(char **text)
{
	char *line = *text, *end = strchr(line, '\n');

	if (end)
		*end++ = '\0';
	*text = end ? end : line + strlen(line);
	return line;
}

static void check_word(const char *word)
{
	require(*word);
	for (; *word; word++)
		require(*word > ' ' && *word <= '~');
}

static void check_claim(const struct pst_sigv4_claim *claim)
{
	char names[sizeof(claim->signed_headers)], *next = names;
	const char *previous = "";

	check_word(claim->access_key);
	check_word(claim->region);
	check_word(claim->service);
	check_word(claim->signed_headers);
	require(strlen(claim->date) == 16);
	require(strlen(claim->signature) == 64);
	require(strspn(claim->signature, "0123456789abcdef") == 64);
	require(claim->expires_s <= PST_SIGV4_EXPIRES_MAX &&
		!claim->expires_s == !claim->presigned);
	memcpy(names, claim->signed_headers, sizeof(names));
	for (char *name; (name = strsep(&next, ";")); previous = name)
		require(strcmp(previous, name) < 0 && !strpbrk(name, ":;\n"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	static struct pst_header headers[PST_SIGV4_HEADERS_MAX + 1];
	struct pst_sigv4_request req = {"GET", "", "", headers, 0, PST_SIGV4_UNSIGNED};
	char *text = malloc(len_bytes + 1), *at = text;
	struct pst_sigv4_claim claim;

	if (!text)
		return 0;
	memcpy(text, data, len_bytes);
	text[len_bytes] = '\0';
	req.path = line_cut(&at);
	req.query = line_cut(&at);
	while (*at && req.header_count <= PST_SIGV4_HEADERS_MAX) {
		char *name = line_cut(&at), *value = strchr(name, ':');

		if (!value)
			continue;
		*value++ = '\0';
		headers[req.header_count++] = (struct pst_header){name, value};
	}
	if (pst_sigv4_claim(&req, &claim) == PST_SIGV4_OK) {
		check_claim(&claim);
		require(pst_sigv4_verify(&req, &claim, "no input knows this secret", NULL, NULL,
					 1369353600) != PST_SIGV4_OK);
	}
	free(text);
	return 0;
}
