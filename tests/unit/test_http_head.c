/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the parser of the heads of HTTP responses: the values that it finds, and the heads that it
 * refuses. */
#include "test.h"

#include <errno.h>

#include "io/http_head.h"

static long parse(const char *text, struct pst_http_head *head)
{
	return pst_http_head_parse(text, strlen(text), head);
}

static void finds_what_a_client_needs(void **state)
{
	static const char text[] = "HTTP/1.1 206 Partial Content\r\n"
				   "content-LENGTH:  10 \r\n"
				   "Content-Range: bytes 5-14/100\r\n"
				   "ETag: \"abc\"\r\n"
				   "Retry-After: 7\r\n"
				   "x-amz-bucket-region: eu-west-1\r\n"
				   "x-amz-checksum-crc64nvme: AAAAAAAAAAA=\r\n"
				   "x-amz-checksum-type: FULL_OBJECT\r\n"
				   "\r\nbody";
	struct pst_http_head head;

	(void)state;
	assert_int_equal(parse(text, &head), (long)strlen(text) - 4);
	assert_int_equal(head.status, 206);
	assert_true(head.keeps && head.has_length && head.has_range && head.has_total);
	assert_false(head.chunked);
	assert_int_equal(head.length, 10);
	assert_int_equal(head.range_first, 5);
	assert_int_equal(head.range_last, 14);
	assert_int_equal(head.range_total, 100);
	assert_int_equal(head.retry_after_s, 7);
	assert_string_equal(head.etag, "\"abc\"");
	assert_string_equal(head.region, "eu-west-1");
	assert_string_equal(head.crc64nvme, "AAAAAAAAAAA=");
	assert_string_equal(head.checksum_type, "FULL_OBJECT");
}

static void needs_more_until_the_empty_line(void **state)
{
	static const char text[] = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n";
	struct pst_http_head head;

	(void)state;
	for (size_t len = 0; len < strlen(text); len++)
		assert_int_equal(pst_http_head_parse(text, len, &head), 0);
	assert_int_equal(parse(text, &head), (long)strlen(text));
}

static void knows_whether_the_connection_stays(void **state)
{
	struct pst_http_head head;

	(void)state;
	assert_true(parse("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", &head) > 0);
	assert_false(head.keeps);
	assert_true(parse("HTTP/1.0 200 OK\r\n\r\n", &head) > 0);
	assert_false(head.keeps);
	assert_true(parse("HTTP/1.0 200 OK\r\nConnection: x, Keep-Alive\r\n\r\n", &head) > 0);
	assert_true(head.keeps);
}

static void reads_the_length_of_an_empty_object(void **state)
{
	struct pst_http_head head;

	(void)state;
	assert_true(parse("HTTP/1.1 416 No\r\nContent-Range: bytes */0\r\n\r\n", &head) > 0);
	assert_true(head.has_total);
	assert_false(head.has_range);
	assert_int_equal(head.range_total, 0);
}

static void refuses_what_can_be_misread(void **state)
{
	static const char *const bad[] = {
		"HTTP/2 200 OK\r\n\r\n",
		"HTTP/1.1 99 Low\r\n\r\n",
		"HTTP/1.1 600 High\r\n\r\n",
		"HTTP/1.1 2000 Long\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
		"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
		"HTTP/1.1 200 OK\r\n: no name\r\n\r\n",
		"HTTP/1.1 200 OK\r\nA: b\rc\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
		"HTTP/1.1 206 OK\r\nContent-Range: bytes 9-5/10\r\n\r\n",
		"HTTP/1.1 206 OK\r\nContent-Range: bytes 5-9/x\r\n\r\n",
	};
	struct pst_http_head head;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		long ret = parse(bad[i], &head);

		if (ret != -EBADMSG)
			printf("# %s\n", bad[i]);
		assert_int_equal(ret, -EBADMSG);
	}
}

static void refuses_what_is_too_long(void **state)
{
	static char text[PST_HTTP_HEAD_MAX + 64];
	struct pst_http_head head;
	size_t at;

	(void)state;
	at = (size_t)snprintf(text, sizeof(text), "HTTP/1.1 200 OK\r\nA: ");
	memset(text + at, 'b', sizeof(text) - at);
	assert_int_equal(pst_http_head_parse(text, PST_HTTP_HEAD_MAX - 1, &head), 0);
	assert_int_equal(pst_http_head_parse(text, PST_HTTP_HEAD_MAX, &head), -E2BIG);
	for (unsigned i = 0; i <= PST_HTTP_LINES_MAX; i++)
		memcpy(text + at - 3 + 6 * i, "A: b\r\n", 6);
	memcpy(text + at - 3 + 6 * (PST_HTTP_LINES_MAX + 1), "\r\n", 3);
	assert_int_equal(parse(text, &head), -E2BIG);
	memcpy(text + at - 3 + 6 * PST_HTTP_LINES_MAX, "\r\n", 3);
	assert_true(parse(text, &head) > 0);
	/* A value that is too long is ignored, and the rest of the head is still parsed. */
	at = (size_t)snprintf(text, sizeof(text), "HTTP/1.1 200 OK\r\nETag: ");
	memset(text + at, 'e', 300);
	memcpy(text + at + 300, "\r\n\r\n", 5);
	assert_true(parse(text, &head) > 0);
	assert_string_equal(head.etag, "");
}

static void decodes_chunks_however_they_are_cut(void **state)
{
	static const char body[] = "5;name=value\r\nhello\r\n6\r\n world\r\n0\r\nA: b\r\n\r\nrest";

	(void)state;
	for (size_t piece = 1; piece <= strlen(body); piece++) {
		struct pst_http_chunks chunks = {0};
		char out[64] = "", copy[64];
		size_t at = 0, len = 0, decoded;
		bool ended = false;

		while (!ended) {
			size_t n = strlen(body) - at < piece ? strlen(body) - at : piece;
			long taken;

			memcpy(copy, body + at, n);
			taken = pst_http_chunks_take(&chunks, copy, n, &decoded, &ended);
			assert_true(taken > 0);
			memcpy(out + len, copy, decoded);
			len += decoded;
			at += (size_t)taken;
		}
		assert_string_equal(out, "hello world");
		assert_string_equal(body + at, "rest");
	}
}

static void refuses_malformed_chunks(void **state)
{
	static const char *const bad[] = {
		"\r\n", "g\r\n", "1\r\nab\r\n", "1\r\na\n", "1111111111111111\r\n", ";\r\n"};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct pst_http_chunks chunks = {0};
		char copy[32];
		size_t decoded;
		bool ended;

		memcpy(copy, bad[i], strlen(bad[i]));
		assert_int_equal(
			pst_http_chunks_take(&chunks, copy, strlen(bad[i]), &decoded, &ended),
			-EBADMSG);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(finds_what_a_client_needs),
		cmocka_unit_test(needs_more_until_the_empty_line),
		cmocka_unit_test(knows_whether_the_connection_stays),
		cmocka_unit_test(reads_the_length_of_an_empty_object),
		cmocka_unit_test(refuses_what_can_be_misread),
		cmocka_unit_test(refuses_what_is_too_long),
		cmocka_unit_test(decodes_chunks_however_they_are_cut),
		cmocka_unit_test(refuses_malformed_chunks),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
