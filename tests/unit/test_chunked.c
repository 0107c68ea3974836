/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the decoding of aws-chunked bodies: the examples of the Amazon S3 API Reference, trailers,
 * pieces of all lengths, malformed bodies, and bodies of which one byte is changed.
 */
#include "test.h"

#include <errno.h>

#include "s3/chunked.h"
#include "s3/hash.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define SIGNED "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
#define TRAILER "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
#define UNSIGNED "STREAMING-UNSIGNED-PAYLOAD-TRAILER"

/* The signatures of the request in "Transferring Payload in Multiple Chunks" of the Amazon S3 API
 * Reference, and of its chunks, in this order. */
static const char *const plain[] = {
	"4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
	"ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
	"0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
	"b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
};
/* The signatures of the request in "Including Trailing Headers" of the API Reference, of its chunks
 * and of its trailers, in this order. */
static const char *const trailing[] = {
	"106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
	"b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
	"1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
	"2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
	"d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435",
};
#define CHECKSUM "x-amz-checksum-crc32c:sOO8/Q=="
#define PROOF "x-amz-trailer-signature:"

/* Makes the struct that pst_chunked_open expects for a request whose signature was verified, with
 * the keys of the examples. */
static struct pst_sigv4_claim claim_make(const char *signature)
{
	static const char *const steps[] = {"20130524", "us-east-1", "s3", "aws4_request"};
	const char *secret = "AWS4wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
	struct pst_sigv4_claim claim = {
		.date = "20130524T000000Z", .region = "us-east-1", .service = "s3"};
	unsigned char *key = claim.signing_key;

	for (unsigned i = 0; i < 4; i++)
		assert_true(pst_hmac_sha256(i ? (const void *)key : secret, i ? 32 : strlen(secret),
					    steps[i], strlen(steps[i]), key));
	memcpy(claim.signature, signature, 65);
	return claim;
}

/* Returns the body of the examples: 65 KiB of the letter a in signed chunks, followed by `end`. */
static struct pst_text body_make(const char *const signatures[], const char *end)
{
	static const size_t lens[] = {65536, 1024, 0};
	static char bytes[65536];
	struct pst_text body = {0};
	char line[128];

	memset(bytes, 'a', sizeof(bytes));
	for (unsigned i = 0; i < 3; i++) {
		snprintf(line, sizeof(line), "%zx;chunk-signature=%s\r\n", lens[i],
			 signatures[i + 1]);
		pst_text_put_str(&body, line);
		pst_text_put(&body, bytes, lens[i]);
		pst_text_put_str(&body, lens[i] ? "\r\n" : end);
	}
	assert_false(body.failed);
	return body;
}

static int collect(void *user, const char *bytes, size_t len)
{
	pst_text_put(user, bytes, len);
	return 0;
}

/* Decodes a body that arrives in pieces of `piece` bytes. Stores the value of the trailer in
 * `checksum`. */
static int decode(const char *payload, const char *seed, const char *bytes, size_t len,
		  size_t piece, struct pst_text *out, char checksum[64])
{
	struct pst_sigv4_claim claim = claim_make(seed);
	struct pst_chunked *body = pst_chunked_open(payload, &claim);
	const char *value;
	int rc = 0;

	assert_non_null(body);
	out->len = 0;
	for (size_t at = 0; at < len && !rc; at += piece) {
		/* The copy has exactly this length, so that a sanitizer detects a read of one
		 * byte too many. */
		size_t n = len - at < piece ? len - at : piece;
		char *copy = malloc(n);

		assert_non_null(copy);
		memcpy(copy, bytes + at, n);
		rc = pst_chunked_put(body, copy, n, collect, out);
		if (rc)
			assert_int_equal(pst_chunked_put(body, "x", 1, collect, out), rc);
		free(copy);
	}
	if (rc)
		assert_int_equal(pst_chunked_end(body), -EBADMSG);
	else
		rc = pst_chunked_end(body);
	value = pst_chunked_trailer(body, "x-amz-checksum-crc32c");
	snprintf(checksum, 64, "%s", value ? value : "");
	pst_chunked_close(body);
	return rc;
}

static void published_examples(void **state)
{
	static const char *const ends[] = {
		CHECKSUM "\r\n" PROOF "%s\r\n\r\n",
		CHECKSUM "\n\r\n" PROOF "%s\r\n\r\n", /* the API Reference prints this "\n" */
		CHECKSUM "\r\n" PROOF "%s\r\n",	      /* without an empty line at the end */
		"\r\n" CHECKSUM "\r\n" PROOF "%s\r\n",
		"X-Amz-Checksum-Crc32c: sOO8/Q== \r\n" PROOF " %s\r\n\r\n",
	};
	struct pst_text out = {0};
	char checksum[64], end[256];

	(void)state;
	for (unsigned i = 0; i <= COUNT(ends); i++) {
		bool is_plain = i == COUNT(ends);
		struct pst_text body;

		snprintf(end, sizeof(end), is_plain ? "\r\n" : ends[i], trailing[4]);
		body = body_make(is_plain ? plain : trailing, end);
		for (size_t piece = 1; piece < 200000; piece = piece * 3 + 1) {
			assert_int_equal(decode(is_plain ? SIGNED : TRAILER,
						is_plain ? plain[0] : trailing[0], body.at,
						body.len, piece, &out, checksum),
					 0);
			assert_int_equal(out.len, 66560);
			assert_int_equal(strspn(out.at, "a"), 66560);
			assert_string_equal(checksum, is_plain ? "" : "sOO8/Q==");
		}
		free(body.at);
	}
	free(out.at);
}

/* Makes each signature wrong, one at a time, including the signature of the request. The decoder
 * must refuse every such body. */
static void wrong_signatures(void **state)
{
	struct pst_text out = {0};
	char checksum[64], end[256], wrong[65];

	(void)state;
	for (unsigned i = 0; i < 5; i++) {
		const char *signatures[5];
		struct pst_text body;

		memcpy(signatures, trailing, sizeof(signatures));
		memcpy(wrong, trailing[i], 65);
		wrong[i * 13] = wrong[i * 13] == '0' ? '1' : '0';
		signatures[i] = wrong;
		snprintf(end, sizeof(end), CHECKSUM "\r\n" PROOF "%s\r\n\r\n", signatures[4]);
		body = body_make(signatures, end);
		assert_int_equal(
			decode(TRAILER, signatures[0], body.at, body.len, 1000, &out, checksum),
			-EACCES);
		free(body.at);
	}
	/* A signed body with trailers must also have a signature of the trailers. */
	{
		struct pst_text body = body_make(trailing, CHECKSUM "\r\n\r\n");

		assert_int_equal(
			decode(TRAILER, trailing[0], body.at, body.len, 1000, &out, checksum),
			-EBADMSG);
		free(body.at);
	}
	free(out.at);
}

static void a_changed_byte_is_refused(void **state)
{
	uint64_t seed = test_seed(3);
	struct pst_text out = {0}, body;
	char checksum[64], end[256];

	(void)state;
	snprintf(end, sizeof(end), CHECKSUM "\r\n" PROOF "%s\r\n\r\n", trailing[4]);
	body = body_make(trailing, end);
	for (unsigned i = 0; i < 400; i++) {
		/* Half of the changes are in the last 600 bytes, which contain most of the syntax.
		 * The last two bytes are an empty line. They are not changed, because a body
		 * without them is valid. */
		size_t span = i % 2 ? body.len - 2 : 600;
		size_t at = body.len - 3 - test_random(&seed) % (span - 1);
		char old = body.at[at];
		int rc;

		body.at[at] = (char)(old ^ (1 + test_random(&seed) % 255));
		/* A blank at the end of a trailer's line is ignored, so the test does not write
		 * one. */
		if (old == '\r')
			body.at[at] = 'x';
		/* The decoder accepts upper case in a trailer's name and in the digits of a length.
		 * So a change of only the case may be accepted. */
		rc = decode(TRAILER, trailing[0], body.at, body.len, 4096, &out, checksum);
		if (!rc && (body.at[at] ^ old) != ('a' ^ 'A'))
			fail_msg("byte %zu of %zu: 0x%02x instead of 0x%02x is accepted", at,
				 body.len, (unsigned char)body.at[at], (unsigned char)old);
		body.at[at] = old;
	}
	free(body.at);
	free(out.at);
}

/* Bodies whose chunks have no signatures, and the result that the decoder must return. */
static void unsigned_bodies(void **state)
{
	static const struct {
		const char *body;
		int rc;
		const char *decoded, *checksum;
	} cases[] = {
		{"3\r\nabc\r\n0\r\n" CHECKSUM "\r\n\r\n", 0, "abc", "sOO8/Q=="},
		{"3\r\nabc\r\n0\r\n" CHECKSUM "\n\r\n\r\n", 0, "abc", "sOO8/Q=="},
		{"1\r\na\r\n00000002\r\nbc\r\n0\r\n\r\n", 0, "abc", ""},
		{"0\r\n\r\n", 0, "", ""},
		{"A\r\n0123456789\r\n0\r\nx-other:1\r\n" CHECKSUM "\r\n\r\n", 0, "0123456789",
		 "sOO8/Q=="},
		{"1\r\n\r\r\n0\r\n\r\n", 0, "\r", ""},
		{"", -EBADMSG, "", ""},
		{"0\r\n", -EBADMSG, "", ""},
		{"0\r\n" CHECKSUM "\r\n", -EBADMSG, "", "sOO8/Q=="},
		{"3\r\nabc", -EBADMSG, "abc", ""},
		{"3\r\nabc\r\n", -EBADMSG, "abc", ""},
		{"3\nabc\r\n0\r\n\r\n", -EBADMSG, "", ""},
		{"3\r\nabcd\r\n0\r\n\r\n", -EBADMSG, "abc", ""},
		{"3\r\nabc\r0\r\n\r\n", -EBADMSG, "abc", ""},
		{"3;x=1\r\nabc\r\n0\r\n\r\n", -EBADMSG, "", ""},
		{"\r\n", -EBADMSG, "", ""},
		{"-1\r\n", -EBADMSG, "", ""},
		{" 1\r\na\r\n0\r\n\r\n", -EBADMSG, "", ""},
		{"0x1\r\na\r\n0\r\n\r\n", -EBADMSG, "", ""},
		{"000000001\r\na\r\n0\r\n\r\n", -EBADMSG, "", ""},
		{"40000001\r\n", -EBADMSG, "", ""},
		{"ffffffffffffffff\r\n", -EBADMSG, "", ""},
		{"0\r\n\r\nx", -EBADMSG, "", ""},
		{"0\r\n\r\n\r\n", -EBADMSG, "", ""},
		{"0\r\n" CHECKSUM "\r\n\r\n\r\n\r\n", -EBADMSG, "", "sOO8/Q=="},
		{"0\r\n:v\r\n\r\n", -EBADMSG, "", ""},
		{"0\r\nname\r\n\r\n", -EBADMSG, "", ""},
		{"0\r\nna me:v\r\n\r\n", -EBADMSG, "", ""},
		{"0\r\na:\rb\r\n\r\n", -EBADMSG, "", ""},
		{"0\r\n" CHECKSUM "\r\n" CHECKSUM "\r\n\r\n", -EBADMSG, "", "sOO8/Q=="},
		{"0\r\n1:\r\n2:\r\n3:\r\n4:\r\n5:\r\n6:\r\n7:\r\n" CHECKSUM "\r\n\r\n", 0, "",
		 "sOO8/Q=="},
		{"0\r\n1:\r\n2:\r\n3:\r\n4:\r\n5:\r\n6:\r\n7:\r\n" CHECKSUM "\r\n9:\r\n\r\n",
		 -EBADMSG, "", "sOO8/Q=="},
	};
	struct pst_text out = {0};
	char checksum[64];

	(void)state;
	pst_text_put_str(&out, "");
	for (unsigned i = 0; i < COUNT(cases); i++)
		for (size_t piece = 1; piece < 30; piece++) {
			int rc;

			out.at[0] = '\0';
			rc = decode(UNSIGNED, plain[0], cases[i].body, strlen(cases[i].body), piece,
				    &out, checksum);
			if (rc != cases[i].rc)
				fail_msg("'%s': %d, expected %d", cases[i].body, rc, cases[i].rc);
			assert_string_equal(out.at, cases[i].decoded);
			assert_string_equal(checksum, cases[i].checksum);
		}
	free(out.at);
}

static int refuse(void *user, const char *bytes, size_t len)
{
	(void)bytes;
	*(size_t *)user += len;
	return -ENOSPC;
}

static void other_ends(void **state)
{
	struct pst_sigv4_claim claim = claim_make(plain[0]);
	struct pst_chunked *body = pst_chunked_open(UNSIGNED, &claim);
	struct pst_text out = {0}, line = {0};
	char checksum[64];
	size_t seen = 0;

	(void)state;
	/* A line of a trailer has at most 1022 characters, not counting the CR and LF at its
	 * end. */
	for (unsigned more = 0; more < 2; more++) {
		line.len = 0;
		pst_text_put_str(&line, "0\r\na:");
		for (unsigned i = 0; i < 1020 + more; i++)
			pst_text_put_str(&line, "x");
		pst_text_put_str(&line, "\r\n\r\n");
		assert_int_equal(
			decode(UNSIGNED, plain[0], line.at, line.len, 4096, &out, checksum),
			more ? -EBADMSG : 0);
	}
	assert_int_equal(pst_chunked_put(body, "3\r\nabc\r\n", 8, refuse, &seen), -ENOSPC);
	assert_int_equal(seen, 3);
	assert_int_equal(pst_chunked_end(body), -EBADMSG);
	pst_chunked_close(body);
	pst_chunked_close(NULL);
	assert_null(pst_chunked_open("UNSIGNED-PAYLOAD", &claim));
	assert_int_equal(errno, EINVAL);
	assert_null(pst_chunked_open(SIGNED "-TRAILERS", &claim));
	assert_null(pst_chunked_open("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", &claim));
	/* If the payload type does not end with -TRAILER, a trailer is refused. */
	{
		struct pst_text with = body_make(plain, "x-a:1\r\n\r\n");

		assert_int_equal(decode(SIGNED, plain[0], with.at, with.len, 5000, &out, checksum),
				 -EBADMSG);
		free(with.at);
	}
	free(line.at);
	free(out.at);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(published_examples),
		cmocka_unit_test(wrong_signatures),
		cmocka_unit_test(a_changed_byte_is_refused),
		cmocka_unit_test(unsigned_bodies),
		cmocka_unit_test(other_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
