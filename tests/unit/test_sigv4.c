/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the signatures of S3 requests, made by a client and verified by a server. Uses the examples
 * of the Amazon S3 API Reference, every result of the verification, and random requests of which
 * one byte is changed. test_sigv4_suite.c has AWS's test suite.
 */
#include "test.h"

#include <errno.h>

#include "s3/canonical.h"
#include "s3/hash.h"
#include "s3/uri.h"

#define KEY "AKIAIOSFODNN7EXAMPLE"
#define SECRET "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
#define NOW 1369353600 /* 20130524T000000Z */
#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define WELCOME "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
#define CHUNKED "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const struct pst_sigv4_keys keys = {KEY, SECRET, NULL, "us-east-1", NULL};
#define HOST                                             \
	{                                                \
		"host", "examplebucket.s3.amazonaws.com" \
	}
#define DATE                                     \
	{                                        \
		"x-amz-date", "20130524T000000Z" \
	}
#define HASH(payload)                           \
	{                                       \
		"x-amz-content-sha256", payload \
	}

/* Examples of the Amazon S3 API Reference: those of "Signature Calculations for the Authorization
 * Header", and the first request of "Transferring Payload in Multiple Chunks" and of "Including
 * Trailing Headers". */
static const struct example {
	const char *method, *path, *query, *payload;
	struct pst_header headers[10];
	const char *names, *signature;
} examples[] = {
	{"GET",
	 "/test.txt",
	 "",
	 EMPTY,
	 {HOST, {"range", "bytes=0-9"}, HASH(EMPTY), DATE},
	 "host;range;x-amz-content-sha256;x-amz-date",
	 "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"},
	{"PUT",
	 "/test$file.text",
	 "",
	 WELCOME,
	 {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
	  HOST,
	  DATE,
	  {"x-amz-storage-class", "REDUCED_REDUNDANCY"},
	  HASH(WELCOME)},
	 "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
	 "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"},
	{"GET",
	 "/",
	 "lifecycle",
	 EMPTY,
	 {HOST, DATE, HASH(EMPTY)},
	 "host;x-amz-content-sha256;x-amz-date",
	 "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"},
	{"GET",
	 "/",
	 "max-keys=2&prefix=J",
	 EMPTY,
	 {HOST, DATE, HASH(EMPTY)},
	 "host;x-amz-content-sha256;x-amz-date",
	 "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"},
	{"PUT",
	 "/examplebucket/chunkObject.txt",
	 "",
	 CHUNKED,
	 {{"host", "s3.amazonaws.com"},
	  DATE,
	  {"x-amz-storage-class", "REDUCED_REDUNDANCY"},
	  HASH(CHUNKED),
	  {"content-encoding", "aws-chunked"},
	  {"x-amz-decoded-content-length", "66560"},
	  {"content-length", "66824"}},
	 "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;"
	 "x-amz-decoded-content-length;x-amz-storage-class",
	 "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"},
	{"PUT",
	 "/examplebucket/chunkObject.txt",
	 "",
	 CHUNKED "-TRAILER",
	 {{"host", "s3.amazonaws.com"},
	  DATE,
	  {"x-amz-storage-class", "REDUCED_REDUNDANCY"},
	  HASH(CHUNKED "-TRAILER"),
	  {"content-encoding", "aws-chunked"},
	  {"x-amz-decoded-content-length", "66560"},
	  {"x-amz-trailer", "x-amz-checksum-crc32c"}},
	 "content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;"
	 "x-amz-storage-class;x-amz-trailer",
	 "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"},
};

/* Fails if a result differs from the expected one. Prints the error codes of S3 for both
 * results. */
static void expect(enum pst_sigv4_result got, enum pst_sigv4_result wanted, const char *what)
{
	if (got != wanted)
		fail_msg("%s: result %d (%s), expected %d (%s)", what, got, pst_sigv4_code(got),
			 wanted, pst_sigv4_code(wanted));
}

/* Verifies a request as a server that knows one access key. */
static enum pst_sigv4_result check_at(const struct pst_sigv4_request *req, const char *region,
				      time_t now)
{
	static struct pst_sigv4_day *day; /* cache of signing keys, shared by all cases */
	struct pst_sigv4_claim claim;
	enum pst_sigv4_result result = pst_sigv4_claim(req, &claim), again;
	unsigned char key[sizeof(claim.signing_key)];
	const char *secret;

	if (result != PST_SIGV4_OK)
		return result;
	secret = strcmp(claim.access_key, KEY) ? NULL : SECRET;
	result = pst_sigv4_verify(req, &claim, secret, NULL, region, now);
	memcpy(key, claim.signing_key, sizeof(key));
	day = day ? day : pst_sigv4_day_open();
	assert_non_null(day);
	again = pst_sigv4_verify(req, &claim, secret, day, region, now);
	expect(again, result, "with the key of the day");
	assert_memory_equal(claim.signing_key, key, sizeof(key));
	return result;
}

static enum pst_sigv4_result check(const struct pst_sigv4_request *req)
{
	return check_at(req, "us-east-1", NOW);
}

static void published_examples(void **state)
{
	(void)state;
	for (unsigned i = 0; i < COUNT(examples); i++) {
		const struct example *e = &examples[i];
		struct pst_header headers[11];
		struct pst_sigv4_request req = {e->method, e->path, e->query,
						headers,   0,	    e->payload};
		struct pst_text got = {0};
		char wanted[1024];

		for (; e->headers[req.header_count].name; req.header_count++)
			headers[req.header_count] = e->headers[req.header_count];
		snprintf(wanted, sizeof(wanted),
			 "AWS4-HMAC-SHA256 Credential=" KEY "/20130524/us-east-1/s3/aws4_request, "
			 "SignedHeaders=%s, Signature=%s",
			 e->names, e->signature);
		pst_sigv4_sign(&req, &keys, NOW, &got);
		assert_false(got.failed);
		assert_string_equal(got.at, wanted);
		headers[req.header_count++] = (struct pst_header){"authorization", got.at};
		expect(check(&req), PST_SIGV4_OK, e->path);
		free(got.at);
	}
}

/* Tests the example of "Authenticating Requests: Using Query Parameters" in the Amazon S3 API
 * Reference. */
static void published_presigned_example(void **state)
{
	struct pst_header host = HOST;
	struct pst_sigv4_request req = {"GET", "/test.txt", "", &host, 1, ""};
	struct pst_text got = {0};

	(void)state;
	pst_sigv4_presign(&req, &keys, NOW, 86400, &got);
	assert_false(got.failed);
	assert_string_equal(
		got.at, "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=" KEY
			"%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z"
			"&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature="
			"aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404");
	req.query = got.at;
	expect(check_at(&req, "us-east-1", NOW + 86400), PST_SIGV4_OK, "at its end");
	expect(check_at(&req, "us-east-1", NOW + 86401), PST_SIGV4_EXPIRED, "after its end");
	expect(check_at(&req, "us-east-1", NOW - 900), PST_SIGV4_OK, "15 minutes early");
	expect(check_at(&req, "us-east-1", NOW - 901), PST_SIGV4_SKEWED, "15:01 early");
	free(got.at);
}

static void presigned_with_token(void **state)
{
	struct pst_sigv4_keys with_token = keys;
	struct pst_header host = HOST;
	struct pst_sigv4_request req = {"GET", "/a", "versionId=3", &host, 1, ""};
	struct pst_text got = {0}, none = {0};
	char *token;

	(void)state;
	with_token.token = "to+ken/==";
	pst_sigv4_presign(&req, &with_token, NOW, 1, &got);
	assert_false(got.failed);
	assert_int_equal(strncmp(got.at, "versionId=3&X-Amz-Algorithm=", 28), 0);
	token = strstr(got.at, "&X-Amz-Security-Token=to%2Bken%2F%3D%3D&");
	assert_non_null(token);
	req.query = got.at;
	expect(check(&req), PST_SIGV4_OK, "with the token");
	memcpy(token + strlen("&X-Amz-Security-Token="), "T", 1);
	expect(check(&req), PST_SIGV4_WRONG_SIGNATURE, "with another token");
	/* The validity of a URL must be between one second and seven days. */
	pst_sigv4_presign(&req, &keys, NOW, 0, &none);
	assert_true(none.failed);
	none.failed = false;
	pst_sigv4_presign(&req, &keys, NOW, 604801, &none);
	assert_true(none.failed);
	free(none.at);
	free(got.at);
}

/* A signed request. Each test changes parts of it. */
struct signed_request {
	struct pst_header headers[PST_SIGV4_HEADERS_MAX + 1];
	struct pst_sigv4_request req;
	struct pst_text authorization;
};

static void request_sign(struct signed_request *r, time_t now)
{
	static char date[PST_SIGV4_DATE];

	memset(r, 0, sizeof(*r));
	pst_sigv4_date(now, date);
	r->headers[0] = (struct pst_header)HOST;
	r->headers[1] = (struct pst_header){"x-amz-date", date};
	r->headers[2] = (struct pst_header)HASH(EMPTY);
	r->req = (struct pst_sigv4_request){"GET", "/key", "", r->headers, 3, EMPTY};
	pst_sigv4_sign(&r->req, &keys, now, &r->authorization);
	assert_false(r->authorization.failed);
	r->headers[3] = (struct pst_header){"authorization", r->authorization.at};
	r->req.header_count = 4;
}

static void results_of_a_signed_header(void **state)
{
	struct signed_request r;

	(void)state;
	request_sign(&r, NOW);
	expect(check(&r.req), PST_SIGV4_OK, "unchanged");
	expect(check_at(&r.req, NULL, NOW), PST_SIGV4_OK, "in any region");
	expect(check_at(&r.req, "eu-west-1", NOW), PST_SIGV4_WRONG_REGION, "in another region");
	expect(check_at(&r.req, "us-east-1", NOW + 900), PST_SIGV4_OK, "15 minutes late");
	expect(check_at(&r.req, "us-east-1", NOW + 901), PST_SIGV4_SKEWED, "15:01 late");
	expect(check_at(&r.req, "us-east-1", NOW - 900), PST_SIGV4_OK, "15 minutes early");
	expect(check_at(&r.req, "us-east-1", NOW - 901), PST_SIGV4_SKEWED, "15:01 early");
	r.headers[4] = (struct pst_header){"x-amz-acl", "public-read"};
	r.req.header_count = 5;
	expect(check(&r.req), PST_SIGV4_UNSIGNED_HEADER, "with an unsigned x-amz-acl");
	r.headers[4].name = "user-agent";
	expect(check(&r.req), PST_SIGV4_OK, "with an unsigned user-agent");
	r.headers[4] = r.headers[3];
	expect(check(&r.req), PST_SIGV4_MALFORMED, "with two signatures");
	r.headers[4] = r.headers[1];
	expect(check(&r.req), PST_SIGV4_MALFORMED, "with two dates");
	r.req.header_count = 4;
	r.req.query = "X-Amz-Signature=0";
	expect(check(&r.req), PST_SIGV4_MALFORMED, "with a signature in the query, too");
	r.req.query = "";
	r.req.path = "/%zz";
	expect(check(&r.req), PST_SIGV4_MALFORMED, "with a malformed path");
	r.req.path = "/key";
	r.req.payload = WELCOME;
	expect(check(&r.req), PST_SIGV4_WRONG_SIGNATURE, "with another payload");
	r.req.payload = NULL;
	expect(check(&r.req), PST_SIGV4_MALFORMED, "without a payload");
	r.req.payload = EMPTY;
	r.headers[0].value = "other.s3.amazonaws.com";
	expect(check(&r.req), PST_SIGV4_WRONG_SIGNATURE, "at another host");
	r.headers[0].name = "hos";
	expect(check(&r.req), PST_SIGV4_WRONG_SIGNATURE, "without the signed host");
	r.headers[0] = (struct pst_header)HOST;
	r.req.header_count = 3;
	expect(check(&r.req), PST_SIGV4_ANONYMOUS, "without a signature");
	r.req.query = "AWSAccessKeyId=a&Signature=b&Expires=1";
	expect(check(&r.req), PST_SIGV4_OLD_VERSION, "with version 2 in the query");
	free(r.authorization.at);
}

/* number of HMACs that were computed since the last reset */
static unsigned digests;

bool __real_pst_hmac_sha256(const void *key, size_t key_len, const void *bytes, size_t len,
			    unsigned char out[32]);
bool __wrap_pst_hmac_sha256(const void *key, size_t key_len, const void *bytes, size_t len,
			    unsigned char out[32]);

bool __wrap_pst_hmac_sha256(const void *key, size_t key_len, const void *bytes, size_t len,
			    unsigned char out[32])
{
	digests++;
	return __real_pst_hmac_sha256(key, key_len, bytes, len, out);
}

/* The signing key of one day and region is computed only once. It takes four HMACs, and each
 * signature takes one more. */
static void keys_of_a_day(void **state)
{
	static const struct {
		const char *region;
		time_t now;
		unsigned digests;
	} rows[] = {
		{"us-east-1", NOW, 5},	       {"us-east-1", NOW + 86399, 1},
		{"us-east-1", NOW, 1},	       {"us-east-1", NOW + 86400, 5},
		{"us-east-1", NOW - 1, 5},     {"eu-1", NOW - 1, 5},
		{"eu-1", NOW - 86400, 1},      {"us-east-1", NOW - 86400, 5},
		{"us-east-1", NOW - 86400, 1},
	};
	struct pst_header headers[] = {HOST, HASH(EMPTY)};
	struct pst_sigv4_request req = {"GET", "/key", "", headers, 2, EMPTY};
	struct pst_sigv4_day *day = pst_sigv4_day_open();

	(void)state;
	assert_non_null(day);
	for (unsigned i = 0; i < COUNT(rows); i++) {
		struct pst_sigv4_keys k = {KEY, SECRET, NULL, rows[i].region, day};
		struct pst_text kept = {0}, computed = {0};

		digests = 0;
		pst_sigv4_sign(&req, &k, rows[i].now, &kept);
		print_message("# row %u: %u digests, expected %u\n", i, digests, rows[i].digests);
		assert_int_equal(digests, rows[i].digests);
		k.day = NULL;
		pst_sigv4_sign(&req, &k, rows[i].now, &computed);
		assert_false(kept.failed || computed.failed);
		assert_string_equal(kept.at, computed.at);
		free(kept.at);
		free(computed.at);
	}
	pst_sigv4_day_close(day);
	pst_sigv4_day_close(NULL);
}

/* If a request has no header x-amz-date, the header date is used. */
static void dates_in_the_header(void **state)
{
	static const struct {
		const char *date;
		enum pst_sigv4_result result;
	} cases[] = {
		{"Fri, 24 May 2013 00:00:00 GMT", PST_SIGV4_OK},
		{"Fri, 24 May 2013 00:00:00 -0000", PST_SIGV4_OK},
		{"20130524T000000Z", PST_SIGV4_OK},
		{"Fri, 24 May 2013 00:00:00 +0100", PST_SIGV4_MALFORMED},
		{"Fri, 24 May 2013 00:00:01 GMT", PST_SIGV4_WRONG_SIGNATURE},
		{"Thu, 24 May 2013 00:00:00 GMT", PST_SIGV4_MALFORMED},
		{"Fri, 24 May 2013 00:00:00 UTC", PST_SIGV4_MALFORMED},
		{"Fri, 24 May 2013 24:00:00 GMT", PST_SIGV4_MALFORMED},
		{"Fri, 24 ayJ 2013 00:00:00 GMT", PST_SIGV4_MALFORMED},
		{"Fri, +4 May 2013 00:00:00 GMT", PST_SIGV4_MALFORMED},
		{"Fri, 24 May 2013 00:00:00", PST_SIGV4_MALFORMED},
		{"1369353600", PST_SIGV4_MALFORMED},
		{"", PST_SIGV4_MALFORMED},
	};
	struct pst_header headers[] = {HOST, HASH(EMPTY), {NULL, NULL}, {NULL, NULL}};
	struct pst_sigv4_request req = {"GET", "/key", "", headers, 2, EMPTY};
	struct pst_text out = {0};

	(void)state;
	pst_sigv4_sign(&req, &keys, NOW, &out);
	assert_false(out.failed);
	headers[2] = (struct pst_header){"authorization", out.at};
	req.header_count = 3;
	expect(check(&req), PST_SIGV4_MALFORMED, "without a date");
	req.header_count = 4;
	for (unsigned i = 0; i < COUNT(cases); i++) {
		headers[3] = (struct pst_header){"date", cases[i].date};
		expect(check(&req), cases[i].result, cases[i].date);
	}
	free(out.at);
}

#define SIGNATURE "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define SCOPE "/20130524/us-east-1/s3/aws4_request"
#define NAMES "host;x-amz-content-sha256;x-amz-date"

/* Values of the header authorization, and the results that the verification must have. */
static void claims_in_the_header(void **state)
{
	static const struct {
		const char *value;
		enum pst_sigv4_result result;
	} cases[] = {
#define CLAIM(credential, names, signature)                                     \
	"AWS4-HMAC-SHA256 Credential=" credential ", SignedHeaders=" names ", " \
	"Signature=" signature
		{CLAIM(KEY SCOPE, NAMES, SIGNATURE), PST_SIGV4_WRONG_SIGNATURE},
		{"AWS4-HMAC-SHA256   Signature=" SIGNATURE ",Credential=" KEY SCOPE
		 ",SignedHeaders=" NAMES " ",
		 PST_SIGV4_WRONG_SIGNATURE},
		{CLAIM("other" SCOPE, NAMES, SIGNATURE), PST_SIGV4_UNKNOWN_KEY},
		{CLAIM("with/slash" SCOPE, NAMES, SIGNATURE), PST_SIGV4_UNKNOWN_KEY},
		{CLAIM(KEY "/20130524/us-east-1/sts/aws4_request", NAMES, SIGNATURE),
		 PST_SIGV4_WRONG_REGION},
		{CLAIM(KEY "/20130524/us-west-1/s3/aws4_request", NAMES, SIGNATURE),
		 PST_SIGV4_WRONG_REGION},
		{CLAIM(KEY SCOPE, "x-amz-content-sha256;x-amz-date", SIGNATURE),
		 PST_SIGV4_UNSIGNED_HEADER},
		{CLAIM(KEY SCOPE, "host;x-amz-date", SIGNATURE), PST_SIGV4_UNSIGNED_HEADER},
		{CLAIM(KEY SCOPE, "host;range;x-amz-content-sha256;x-amz-date", SIGNATURE),
		 /* the list names the header range, which the request lacks */
		 PST_SIGV4_WRONG_SIGNATURE},
		{"AWS " KEY ":c2ln", PST_SIGV4_OLD_VERSION},
		{"Basic YTpi", PST_SIGV4_OLD_VERSION},
		{"AWS4-ECDSA-P256-SHA256 Credential=a", PST_SIGV4_OLD_VERSION},
		{"", PST_SIGV4_OLD_VERSION},
		{"AWS4-HMAC-SHA256", PST_SIGV4_MALFORMED},
		{"AWS4-HMAC-SHA256 Credential", PST_SIGV4_MALFORMED},
		{CLAIM("", NAMES, SIGNATURE), PST_SIGV4_MALFORMED},
		{CLAIM("/20130524/us-east-1/s3/aws4_request", NAMES, SIGNATURE),
		 PST_SIGV4_MALFORMED},
		{CLAIM("20130524/us-east-1/s3/aws4_request", NAMES, SIGNATURE),
		 PST_SIGV4_MALFORMED},
		{CLAIM(KEY "/20130525/us-east-1/s3/aws4_request", NAMES, SIGNATURE),
		 PST_SIGV4_MALFORMED}, /* x-amz-date is a day earlier */
		{CLAIM(KEY "/20130524//s3/aws4_request", NAMES, SIGNATURE), PST_SIGV4_MALFORMED},
		{CLAIM(KEY "/20130524/us-east-1/s3/aws4", NAMES, SIGNATURE), PST_SIGV4_MALFORMED},
		{CLAIM(KEY SCOPE, "", SIGNATURE), PST_SIGV4_MALFORMED},
		{CLAIM(KEY SCOPE, "host;", SIGNATURE), PST_SIGV4_MALFORMED},
		{CLAIM(KEY SCOPE, ";host", SIGNATURE), PST_SIGV4_MALFORMED},
		{CLAIM(KEY SCOPE, "host;host", SIGNATURE), PST_SIGV4_MALFORMED},
		{CLAIM(KEY SCOPE, "x-amz-date;host", SIGNATURE), PST_SIGV4_MALFORMED},
		{CLAIM(KEY SCOPE, "Host;x-amz-date", SIGNATURE), PST_SIGV4_MALFORMED},
		{CLAIM(KEY SCOPE, "host:x", SIGNATURE), PST_SIGV4_MALFORMED},
		{CLAIM(KEY SCOPE, NAMES, "0123"), PST_SIGV4_MALFORMED},
		{CLAIM(KEY SCOPE, NAMES, SIGNATURE "0"), PST_SIGV4_MALFORMED},
		{CLAIM(KEY SCOPE, NAMES, "G" SIGNATURE), PST_SIGV4_MALFORMED},
		{CLAIM(KEY SCOPE, NAMES, SIGNATURE) ", Signature=" SIGNATURE, PST_SIGV4_MALFORMED},
		{CLAIM(KEY SCOPE, NAMES, SIGNATURE) ", More=1", PST_SIGV4_MALFORMED},
		{CLAIM(KEY SCOPE, NAMES, SIGNATURE) " More=1", PST_SIGV4_MALFORMED},
	};
	struct signed_request r;

	(void)state;
	request_sign(&r, NOW);
	for (unsigned i = 0; i < COUNT(cases); i++) {
		r.headers[3].value = cases[i].value;
		expect(check(&r.req), cases[i].result, cases[i].value);
	}
	free(r.authorization.at);
}

/* Queries of presigned URLs, and the results that the verification must have. */
static void claims_in_the_query(void **state)
{
	static const struct {
		const char *query;
		enum pst_sigv4_result result;
	} cases[] = {
#define QUERY(credential, date, expires, names, signature)                                  \
	"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=" credential "&X-Amz-Date=" date \
	"&X-Amz-Expires=" expires "&X-Amz-SignedHeaders=" names "&X-Amz-Signature=" signature
#define AT "20130524T000000Z"
		{QUERY(KEY SCOPE, AT, "60", "host", SIGNATURE), PST_SIGV4_WRONG_SIGNATURE},
		{QUERY(KEY SCOPE, AT, "604800", "host", SIGNATURE), PST_SIGV4_WRONG_SIGNATURE},
		{QUERY(KEY SCOPE, AT, "604801", "host", SIGNATURE), PST_SIGV4_MALFORMED},
		{QUERY(KEY SCOPE, AT, "4294967297", "host", SIGNATURE), PST_SIGV4_MALFORMED},
		{QUERY(KEY SCOPE, AT, "0", "host", SIGNATURE), PST_SIGV4_MALFORMED},
		{QUERY(KEY SCOPE, AT, "-1", "host", SIGNATURE), PST_SIGV4_MALFORMED},
		{QUERY(KEY SCOPE, AT, "+1", "host", SIGNATURE), PST_SIGV4_MALFORMED},
		{QUERY(KEY SCOPE, AT, "", "host", SIGNATURE), PST_SIGV4_MALFORMED},
		{QUERY(KEY SCOPE, "20130524T000000", "60", "host", SIGNATURE), PST_SIGV4_MALFORMED},
		{QUERY(KEY SCOPE, "20130524T240000Z", "60", "host", SIGNATURE),
		 PST_SIGV4_MALFORMED},
		{QUERY(KEY "/20130230/us-east-1/s3/aws4_request", "20130230T000000Z", "60", "host",
		       SIGNATURE),
		 PST_SIGV4_MALFORMED},
		{QUERY(KEY SCOPE, AT, "60", "x-a", SIGNATURE), PST_SIGV4_UNSIGNED_HEADER},
		{QUERY(KEY SCOPE, AT, "60", "host", ""), PST_SIGV4_MALFORMED},
		{QUERY(KEY SCOPE, AT, "60", "host", SIGNATURE) "&X-Amz-Date=" AT,
		 PST_SIGV4_MALFORMED},
		{QUERY(KEY SCOPE, AT, "60", "host", SIGNATURE) "&X-Amz-Signat%75re=0",
		 PST_SIGV4_MALFORMED},
		{QUERY(KEY SCOPE, AT, "60", "host", SIGNATURE) "&a=%", PST_SIGV4_MALFORMED},
		{QUERY(KEY SCOPE, AT, "60", "host%00", SIGNATURE), PST_SIGV4_MALFORMED},
		{QUERY(KEY "%00" SCOPE, AT, "60", "host", SIGNATURE), PST_SIGV4_MALFORMED},
		{QUERY(KEY "%0a" SCOPE, AT, "60", "host", SIGNATURE), PST_SIGV4_MALFORMED},
		{"X-Amz-Algorithm=AWS4-ECDSA-P256-SHA256", PST_SIGV4_OLD_VERSION},
		{"X-Amz-Algorithm=AWS4-HMAC-SHA256", PST_SIGV4_MALFORMED},
		{"X-Amz-Signature=" SIGNATURE, PST_SIGV4_MALFORMED},
		{"x-amz-signature=" SIGNATURE, PST_SIGV4_ANONYMOUS},
		{"prefix=a", PST_SIGV4_ANONYMOUS},
	};
	struct pst_header host = HOST;
	struct pst_sigv4_request req = {"GET", "/a", "", &host, 1, NULL};

	(void)state;
	for (unsigned i = 0; i < COUNT(cases); i++) {
		req.query = cases[i].query;
		expect(check(&req), cases[i].result, cases[i].query);
	}
}

/* Tests the limits: the longest access key, region and list of names, and the largest number of
 * headers and parameters, are accepted. One more of each is refused. */
static void bounds(void **state)
{
	static char value[8192], list[4096], query[8192];
	struct signed_request r;
	struct pst_text out = {0};

	(void)state;
	request_sign(&r, NOW);
	for (int more = 0; more < 2; more++) {
		enum pst_sigv4_result wanted = more ? PST_SIGV4_MALFORMED : PST_SIGV4_UNKNOWN_KEY;

		r.headers[3].value = value;
		snprintf(value, sizeof(value), CLAIM("%0*d" SCOPE, NAMES, SIGNATURE), 128 + more,
			 0);
		expect(check(&r.req), wanted, "access key");
		snprintf(value, sizeof(value),
			 CLAIM("a/20130524/%0*d/s3/aws4_request", NAMES, SIGNATURE), 64 + more, 0);
		expect(check(&r.req), wanted, "region");
		snprintf(value, sizeof(value),
			 CLAIM("a/20130524/r/%0*d/aws4_request", NAMES, SIGNATURE), 32 + more, 0);
		expect(check(&r.req), wanted, "service");
		snprintf(list, sizeof(list), "%0*d", 2048 + more, 0);
		snprintf(value, sizeof(value), CLAIM("a" SCOPE, "%s", SIGNATURE), list);
		expect(check(&r.req), wanted, "names of headers");
	}
	r.headers[3].value = r.authorization.at;
	for (unsigned i = 4; i < COUNT(r.headers); i++)
		r.headers[i] = (struct pst_header){"a", "b"};
	r.req.header_count = PST_SIGV4_HEADERS_MAX;
	expect(check(&r.req), PST_SIGV4_OK, "64 headers");
	pst_sigv4_sign(&r.req, &keys, NOW, &out);
	assert_false(out.failed);
	r.req.header_count++;
	expect(check(&r.req), PST_SIGV4_MALFORMED, "65 headers");
	pst_sigv4_sign(&r.req, &keys, NOW, &out);
	assert_true(out.failed);
	out.failed = false;
	r.req.header_count = 4;
	for (unsigned i = 0; i < PST_QUERY_MAX; i++)
		memcpy(query + 2 * i, "a&", 3);
	r.req.query = query;
	expect(check(&r.req), PST_SIGV4_WRONG_SIGNATURE, "256 parameters");
	memcpy(query + 2 * (size_t)PST_QUERY_MAX, "a", 2);
	expect(check(&r.req), PST_SIGV4_MALFORMED, "257 parameters");
	pst_sigv4_sign(&r.req, &keys, NOW, &out);
	assert_true(out.failed);
	free(out.at);
	free(r.authorization.at);
}

static void canonical_forms(void **state)
{
	static const struct {
		const char *path, *query, *value, *canonical;
	} cases[] = {
		{"//a/./b/../c//", "", "v", "GET\n//a/./b/../c//\n\nh:v\n\nh\np"},
		{"/%41+ %2b%2F~", "", "v", "GET\n/A%2B%20%2B/~\n\nh:v\n\nh\np"},
		{"", "", "", "GET\n/\n\nh:\n\nh\np"},
		{"/", "b&a=&a=2&a-b=1&=x&a=10&&A=%7e&c=x=y", "v",
		 "GET\n/\n=x&A=~&a=&a=10&a=2&a-b=1&b=&c=x%3Dy\nh:v\n\nh\np"},
		{"/", "a=b+c%2bd%20e", "v", "GET\n/\na=b%20c%2Bd%20e\nh:v\n\nh\np"},
		{"/", "X-Amz-Signature=1&y=1&X-Amz-Signaturf=2", "v",
		 "GET\n/\nX-Amz-Signaturf=2&y=1\nh:v\n\nh\np"},
		{"/", "", "  a \t b  c\t", "GET\n/\n\nh:a b c\n\nh\np"},
		{"/", "", "a\r\nx-amz-acl:b", "GET\n/\n\nh:a x-amz-acl:b\n\nh\np"},
	};

	(void)state;
	for (unsigned i = 0; i < COUNT(cases); i++) {
		struct pst_header header = {"h", cases[i].value};
		struct pst_sigv4_request req = {"GET", cases[i].path, cases[i].query, &header,
						1,     NULL};
		struct pst_text got = {0};

		assert_int_equal(pst_canonical_put(&req, "h", "p", &got), 0);
		assert_string_equal(got.at, cases[i].canonical);
		free(got.at);
	}
}

static void codes(void **state)
{
	(void)state;
	assert_string_equal(pst_sigv4_code(PST_SIGV4_OK), "");
	assert_string_equal(pst_sigv4_code(PST_SIGV4_ANONYMOUS), "AccessDenied");
	assert_string_equal(pst_sigv4_code(PST_SIGV4_MALFORMED), "AuthorizationHeaderMalformed");
	assert_string_equal(pst_sigv4_code(PST_SIGV4_OLD_VERSION), "InvalidRequest");
	assert_string_equal(pst_sigv4_code(PST_SIGV4_WRONG_REGION), "AuthorizationHeaderMalformed");
	assert_string_equal(pst_sigv4_code(PST_SIGV4_SKEWED), "RequestTimeTooSkewed");
	assert_string_equal(pst_sigv4_code(PST_SIGV4_EXPIRED), "AccessDenied");
	assert_string_equal(pst_sigv4_code(PST_SIGV4_UNSIGNED_HEADER), "AccessDenied");
	assert_string_equal(pst_sigv4_code(PST_SIGV4_WRONG_SIGNATURE), "SignatureDoesNotMatch");
	assert_string_equal(pst_sigv4_code(PST_SIGV4_UNKNOWN_KEY), "InvalidAccessKeyId");
}

/* A random request in one block of memory, so that one byte of any part can be changed. */
struct random_request {
	char method[8], path[64], query[700], payload[65];
	char values[4][24];
	char authorization[700];
	struct pst_header headers[8];
	struct pst_sigv4_request req;
};

static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

static char random_digit(uint64_t *seed, unsigned count)
{
	return digits[test_random(seed) % count];
}

/* Writes up to `max` characters: letters and digits, escapes, and some of `others`. */
static void random_text(uint64_t *seed, char *out, size_t max, const char *others, bool escapes)
{
	size_t len = test_random(seed) % max;
	char *end = out + len;

	while (out < end) {
		unsigned kind = test_random(seed) % 8;

		if (kind == 0 && escapes && end - out >= 3) {
			*out++ = '%';
			*out++ = random_digit(seed, 16);
			*out++ = random_digit(seed, 16);
		} else if (kind == 1 && *others) {
			*out++ = others[test_random(seed) % strlen(others)];
		} else {
			*out++ = random_digit(seed, 62);
		}
	}
	*out = '\0';
}

static void random_make(uint64_t *seed, struct random_request *r)
{
	static const char *const methods[] = {"GET", "PUT", "HEAD", "POST", "DELETE"};

	memset(r, 0, sizeof(*r));
	snprintf(r->method, sizeof(r->method), "%s", methods[test_random(seed) % 5]);
	r->path[0] = '/';
	random_text(seed, r->path + 1, 60, "/.-_~", true);
	snprintf(r->query, sizeof(r->query), "k%u=", (unsigned)(test_random(seed) % 10));
	random_text(seed, r->query + 3, 60, ".-_~", true);
	strncat(r->query, "&prefix=", 9);
	random_text(seed, r->query + strlen(r->query), 30, "", true);
	for (unsigned i = 0; i < 64; i++)
		r->payload[i] = "0123456789abcdef"[test_random(seed) % 16];
	for (unsigned i = 0; i < 4; i++)
		random_text(seed, r->values[i], sizeof(r->values[i]) - 1, "=;-./", false);
	r->headers[0] = (struct pst_header){"x-amz-date", "20130524T000000Z"};
	r->headers[1] = (struct pst_header){"x-amz-content-sha256", r->payload};
	r->headers[2] = (struct pst_header){"host", r->values[0]};
	r->headers[3] = (struct pst_header){"x-amz-meta-b", r->values[1]};
	r->headers[4] = (struct pst_header){"range", r->values[2]};
	r->headers[5] = (struct pst_header){"x-amz-meta-a", r->values[3]};
	r->req =
		(struct pst_sigv4_request){r->method, r->path, r->query, r->headers, 6, r->payload};
}

/* Changes one byte of a text to another letter or digit. A hex digit of an escape stays a hex
 * digit. Returns false if the text is empty. */
static bool byte_change(uint64_t *seed, char *text)
{
	size_t len = strlen(text), at = len ? test_random(seed) % len : 0;
	bool escape = (at >= 1 && text[at - 1] == '%') || (at >= 2 && text[at - 2] == '%');
	char old = text[at];

	while (len && text[at] == old)
		text[at] = random_digit(seed, escape ? 16 : 62);
	return len;
}

static void a_changed_byte_is_refused(void **state)
{
	uint64_t seed = test_seed(42);
	unsigned changed = 0;

	(void)state;
	for (unsigned i = 0; i < 3000; i++) {
		struct random_request r;
		struct pst_text out = {0};
		bool presigned = test_random(&seed) % 2;
		char *parts[] = {r.method,    r.path,	       r.query,
				 r.values[0], r.values[1],     r.values[2],
				 r.values[3], r.authorization, r.payload};
		unsigned part;

		random_make(&seed, &r);
		if (presigned) {
			r.headers[0] = r.headers[2];
			r.req.header_count = 1;
			pst_sigv4_presign(&r.req, &keys, NOW, 60, &out);
			snprintf(r.query, sizeof(r.query), "%s", out.at);
		} else {
			pst_sigv4_sign(&r.req, &keys, NOW, &out);
			snprintf(r.authorization, sizeof(r.authorization), "%s", out.at);
			r.headers[r.req.header_count++] =
				(struct pst_header){"authorization", r.authorization};
		}
		assert_false(out.failed);
		expect(check(&r.req), PST_SIGV4_OK, out.at);
		/* In a presigned request, only the first four parts are signed. */
		part = test_random(&seed) % (presigned ? 4 : COUNT(parts));
		if (byte_change(&seed, parts[part])) {
			changed++;
			if (check(&r.req) == PST_SIGV4_OK)
				fail_msg("request %u, part %u: '%s' is accepted", i, part,
					 parts[part]);
		}
		free(out.at);
	}
	printf("# %u requests with a changed byte\n", changed);
	assert_true(changed > 2000);
}

static void uris(void **state)
{
	static const char all[] = "az09-._~/ +%\x80\n";
	struct pst_text text = {0};
	char out[64];
	const char *query = "&a=1&&b&c==&=d", *name, *value;
	size_t name_len, value_len;
	char seen[64] = "";

	(void)state;
	pst_uri_put(&text, all, sizeof(all), false);
	assert_string_equal(text.at, "az09-._~%2F%20%2B%25%80%0A%00");
	assert_int_equal(pst_uri_parse(text.at, text.len, false, out), sizeof(all));
	assert_memory_equal(out, all, sizeof(all));
	text.len = 0;
	pst_uri_put(&text, "a/b", 3, true);
	assert_string_equal(text.at, "a/b");
	assert_int_equal(pst_uri_parse("a+%2b", 5, true, out), 3);
	assert_string_equal(out, "a +");
	assert_int_equal(pst_uri_parse("a+%2b", 5, false, out), 3);
	assert_string_equal(out, "a++");
	assert_int_equal(pst_uri_parse("%4", 2, false, out), -EINVAL);
	assert_int_equal(pst_uri_parse("%", 1, false, out), -EINVAL);
	assert_int_equal(pst_uri_parse("%4g", 3, false, out), -EINVAL);
	/* The text ends before the digits of this escape. */
	assert_int_equal(pst_uri_parse("%41", 2, false, out), -EINVAL);
	while (pst_uri_next(&query, &name, &name_len, &value, &value_len))
		snprintf(seen + strlen(seen), sizeof(seen) - strlen(seen), "[%.*s|%.*s]",
			 (int)name_len, name, (int)value_len, value);
	assert_string_equal(seen, "[a|1][b|][c|=][|d]");
	free(text.at);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(published_examples),
		cmocka_unit_test(published_presigned_example),
		cmocka_unit_test(presigned_with_token),
		cmocka_unit_test(results_of_a_signed_header),
		cmocka_unit_test(keys_of_a_day),
		cmocka_unit_test(dates_in_the_header),
		cmocka_unit_test(claims_in_the_header),
		cmocka_unit_test(claims_in_the_query),
		cmocka_unit_test(bounds),
		cmocka_unit_test(canonical_forms),
		cmocka_unit_test(codes),
		cmocka_unit_test(a_changed_byte_is_refused),
		cmocka_unit_test(uris),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
