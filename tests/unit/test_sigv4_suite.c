/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the canonical form of requests with AWS's test suite. The suite's service is not S3, so
 * the test computes the signatures itself, from the canonical requests of the library.
 */
#include "test.h"

#include "common/digits.h"
#include "s3/canonical.h"
#include "s3/hash.h"
#include "sigv4_suite.h"

#define SECRET "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
#define DAY "20150830"
#define TIME DAY "T123600Z"
#define SCOPE DAY "/us-east-1/service/aws4_request"

/* Computes the signature of a request as the clients of the test suite do. */
static void sign(const struct pst_sigv4_request *req, const char *names, const char *payload,
		 char out[PST_SHA256_HEX])
{
	static const char *const steps[] = {DAY, "us-east-1", "service", "aws4_request"};
	struct pst_text canonical = {0};
	unsigned char key[32] = {0}, mac[32];
	char digest[PST_SHA256_HEX], text[256];
	const char *secret = "AWS4" SECRET;

	assert_int_equal(pst_canonical_put(req, names, payload, &canonical), 0);
	assert_true(pst_sha256_hex(canonical.at, canonical.len, digest));
	for (unsigned i = 0; i < 4; i++)
		assert_true(pst_hmac_sha256(i ? (const void *)key : secret, i ? 32 : strlen(secret),
					    steps[i], strlen(steps[i]), key));
	snprintf(text, sizeof(text), "AWS4-HMAC-SHA256\n" TIME "\n" SCOPE "\n%s", digest);
	assert_true(pst_hmac_sha256(key, 32, text, strlen(text), mac));
	pst_hex(mac, 32, out);
	free(canonical.at);
}

/* Compares a signature with the expected one. If they differ, prints the name of the case and
 * fails. */
static void expect(const struct suite_case *c, const char *got, const char *wanted)
{
	if (strcmp(got, wanted))
		fail_msg("%s: signature %s, the suite has %s", c->name, got, wanted);
}

/* Appends a name to a list with semicolons, unless the list ends with this name. */
static void name_add(char *list, size_t size, const char *name)
{
	size_t len = strlen(list), n = strlen(name);

	if (len >= n && !strcmp(list + len - n, name))
		return;
	snprintf(list + len, size - len, "%s%s", len ? ";" : "", name);
}

static int by_name(const void *a, const void *b)
{
	const struct pst_header *left = a, *right = b;
	int order = strcmp(left->name, right->name);

	/* Headers with the same name keep their order. */
	return order ? order : (left > right) - (left < right);
}

/* Fills `out` with the headers of a case. Returns the number of headers. */
static unsigned headers_take(const struct suite_case *c, struct pst_header *out)
{
	unsigned n = 0;

	for (; n < 5 && c->headers[n].name; n++)
		out[n] = c->headers[n];
	return n;
}

static void names_list(struct pst_header *headers, unsigned n, char *out, size_t size)
{
	struct pst_header sorted[8];

	memcpy(sorted, headers, n * sizeof(headers[0]));
	qsort(sorted, n, sizeof(sorted[0]), by_name);
	out[0] = '\0';
	for (unsigned i = 0; i < n; i++)
		name_add(out, size, sorted[i].name);
}

static void in_the_header(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(suite_cases) / sizeof(suite_cases[0]); i++) {
		const struct suite_case *c = &suite_cases[i];
		struct pst_header headers[8];
		struct pst_sigv4_request req = {c->method, c->path, c->query, headers, 0, NULL};
		char names[256], got[PST_SHA256_HEX];

		req.header_count = headers_take(c, headers);
		headers[req.header_count++] = (struct pst_header){"x-amz-date", TIME};
		if (!strcmp(c->payload, FORM))
			headers[req.header_count++] =
				(struct pst_header){"x-amz-content-sha256", FORM};
		if (c->token && !c->token_later)
			headers[req.header_count++] =
				(struct pst_header){"x-amz-security-token", c->token};
		names_list(headers, req.header_count, names, sizeof(names));
		sign(&req, names, c->payload, got);
		expect(c, got, c->signature);
	}
}

static void in_the_query(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(suite_cases) / sizeof(suite_cases[0]); i++) {
		const struct suite_case *c = &suite_cases[i];
		struct pst_header headers[8];
		struct pst_text query = {0};
		struct pst_sigv4_request req = {c->method, c->path, "", headers, 0, NULL};
		char names[256], got[PST_SHA256_HEX];

		req.header_count = headers_take(c, headers);
		names_list(headers, req.header_count, names, sizeof(names));
		/* The parameters of this query are not sorted. The last one, X-Amz-Signature, is
		 * not signed, so the library must ignore it. */
		pst_text_put_str(&query, "X-Amz-SignedHeaders=");
		pst_text_put_str(&query, names);
		pst_text_put_str(&query,
				 "&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Expires=3600"
				 "&X-Amz-Date=" TIME "&X-Amz-Credential=AKIDEXAMPLE/" SCOPE);
		if (c->token && !c->token_later) {
			pst_text_put_str(&query, "&X-Amz-Security-Token=");
			for (const char *at = c->token; *at; at++)
				pst_text_put_str(&query, *at == '+' ? "%2B" : (char[]){*at, 0});
		}
		pst_text_put_str(&query, *c->query ? "&" : "");
		pst_text_put_str(&query, c->query);
		pst_text_put_str(&query, "&X-Amz-Signature=0123");
		req.query = query.at;
		sign(&req, names, c->payload, got);
		expect(c, got, c->presigned_signature);
		free(query.at);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(in_the_header),
		cmocka_unit_test(in_the_query),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
