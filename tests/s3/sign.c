/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sign: signs and verifies requests for tests/s3/botocore, which writes one request on each line of
 * stdin. Tabs separate the fields of a line. The fields are: the operation (sign, presign or
 * verify), method, path, query, payload, time, access key, secret, token, region, validity, and
 * headers as NAME:VALUE. For sign it prints the value of the header authorization, for presign the
 * query, and for verify the number and the error code of the result.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "s3/sigv4.h"

enum { OP, METHOD, PATH, QUERY, PAYLOAD, TIME, KEY, SECRET, TOKEN, REGION, EXPIRES, FIELDS };

static void verify(const struct pst_sigv4_request *req, const struct pst_sigv4_keys *keys,
		   time_t now)
{
	struct pst_sigv4_claim claim;
	enum pst_sigv4_result result = pst_sigv4_claim(req, &claim);

	if (result == PST_SIGV4_OK)
		result = pst_sigv4_verify(req, &claim,
					  strcmp(claim.access_key, keys->access_key) ? NULL
										     : keys->secret,
					  NULL, keys->region, now);
	printf("%d %s\n", result, pst_sigv4_code(result));
}

/* Handles one line. Returns false if it has too few fields. */
static bool line_do(char *line)
{
	struct pst_header headers[PST_SIGV4_HEADERS_MAX];
	const char *fields[FIELDS];
	struct pst_sigv4_request req = {.headers = headers};
	struct pst_sigv4_keys keys = {.day = NULL};
	struct pst_text out = {0};
	time_t now;

	line[strcspn(line, "\n")] = '\0';
	for (unsigned i = 0; i < FIELDS; i++)
		if (!(fields[i] = strsep(&line, "\t")))
			return false;
	for (char *header; (header = strsep(&line, "\t"));) {
		const char *name = strsep(&header, ":");

		if (!header || req.header_count == PST_SIGV4_HEADERS_MAX)
			return false;
		headers[req.header_count++] = (struct pst_header){name, header};
	}
	req.method = fields[METHOD];
	req.path = fields[PATH];
	req.query = fields[QUERY];
	req.payload = fields[PAYLOAD];
	keys.access_key = fields[KEY];
	keys.secret = fields[SECRET];
	keys.token = *fields[TOKEN] ? fields[TOKEN] : NULL;
	keys.region = fields[REGION];
	now = (time_t)strtoll(fields[TIME], NULL, 10);
	if (!strcmp(fields[OP], "verify")) {
		verify(&req, &keys, now);
		return true;
	}
	if (!strcmp(fields[OP], "sign"))
		pst_sigv4_sign(&req, &keys, now, &out);
	else
		pst_sigv4_presign(&req, &keys, now, (unsigned)strtoul(fields[EXPIRES], NULL, 10),
				  &out);
	printf("%s\n", out.failed ? "failed" : out.at);
	free(out.at);
	return true;
}

int main(void)
{
	char *line = NULL;
	size_t size = 0;

	while (getline(&line, &size, stdin) > 0) {
		if (!line_do(line)) {
			fprintf(stderr, "sign: a line has too few fields\n");
			return 1;
		}
		fflush(stdout);
	}
	free(line);
	return 0;
}
