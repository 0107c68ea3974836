/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the rules of responses (src/s3/judge.c). The table has a row for each row of the protocol's
 * tables, and for each response that real servers were seen to send. One example is status 200 for
 * an empty object, from a server without RDMA that has stored the empty body. Also lets the
 * client's code judge the responses that the server's code composes.
 */
#include "test.h"

#include <errno.h>

#include "s3/judge.h"

#define LEN 4096
#define GET PENSTOCK_READ
#define PUT PENSTOCK_WRITE
#define DONE PENSTOCK_OBJECT_DONE
#define BODY PENSTOCK_OBJECT_BODY
#define RESEND PENSTOCK_OBJECT_RESEND
#define ERROR PENSTOCK_OBJECT_ERROR
#define REPLY "x-amz-rdma-reply"
#define BYTES "x-amz-rdma-bytes-transferred"
#define EMPTY "\"d41d8cd98f00b204e9800998ecf8427e\""

static const struct row {
	const char *what;
	enum penstock_op op;
	int status, ranged;
	const char *error;
	struct penstock_object_header headers[5];
	enum penstock_object_next next;
	uint64_t bytes;
	int remember, stored_empty;
	uint64_t expect;
} rows[] = {
	/* done */
	{"a PUT is done", PUT, 200, 0, NULL, {{REPLY, "200"}, {BYTES, "4096"}}, DONE, LEN},
	{"a PUT is done, with 204",
	 PUT,
	 204,
	 0,
	 NULL,
	 {{REPLY, "204"}, {BYTES, "4096"}},
	 DONE,
	 LEN},
	{"a GET is done",
	 GET,
	 200,
	 0,
	 NULL,
	 {{REPLY, "200"}, {BYTES, "4096"}, {"Content-Length", "0"}},
	 DONE,
	 LEN},
	{"a GET of a shorter object", GET, 200, 0, NULL, {{REPLY, "200"}, {BYTES, "10"}}, DONE, 10},
	{"a range is done",
	 GET,
	 206,
	 1,
	 NULL,
	 {{REPLY, "206"}, {BYTES, "4096"}, {"Content-Range", "bytes 8192-12287/99999"}},
	 DONE,
	 LEN},
	{"a range with reply 200",
	 GET,
	 206,
	 1,
	 NULL,
	 {{REPLY, "200"}, {BYTES, "10"}, {"content-range", "bytes 0-9/*"}},
	 DONE,
	 10},
	{"bytes with a total",
	 GET,
	 200,
	 0,
	 NULL,
	 {{REPLY, "200 OK"}, {BYTES, "4096/4096"}},
	 DONE,
	 LEN},
	{"other spelling of names",
	 PUT,
	 200,
	 0,
	 NULL,
	 {{"X-Amz-RDMA-Reply", " 200"}, {"X-AMZ-RDMA-BYTES-TRANSFERRED", " 4096 "}},
	 DONE,
	 LEN},
	/* responses to a GET whose token was declined, or whose transfer failed */
	{"a GET is declined",
	 GET,
	 200,
	 0,
	 NULL,
	 {{REPLY, "501"}, {"Content-Length", "4096"}},
	 BODY},
	{"a range is declined", GET, 206, 1, NULL, {{REPLY, "501"}}, BODY},
	{"a GET without reply", GET, 200, 0, NULL, {{"Content-Length", "4096"}}, BODY, 0, 1},
	{"a reply that is no number", GET, 200, 0, NULL, {{REPLY, "yes"}}, BODY, 0, 1},
	{"an empty body for expected bytes",
	 GET,
	 200,
	 0,
	 NULL,
	 {{"Content-Length", "0"}},
	 RESEND,
	 0,
	 1,
	 0,
	 LEN},
	/* responses to a PUT whose token the server has declined */
	{"a PUT is declined", PUT, 200, 0, "RDMANotSupported", {{REPLY, "501"}}, RESEND},
	{"a PUT is declined, as boto3 reports it",
	 PUT,
	 500,
	 0,
	 "RDMANotSupported",
	 {{REPLY, "501"}},
	 RESEND},
	/* responses of a server that has ignored the token and stored the empty body */
	{"a server ignores the token of a PUT",
	 PUT,
	 200,
	 0,
	 NULL,
	 {{"ETag", EMPTY}},
	 RESEND,
	 0,
	 1,
	 1},
	{"a server ignores the token, without ETag",
	 PUT,
	 200,
	 0,
	 NULL,
	 {{NULL, NULL}},
	 RESEND,
	 0,
	 1},
	{"a PUT with bytes but without reply", PUT, 200, 0, NULL, {{BYTES, "4096"}}, RESEND, 0, 1},
	/* errors that RDMA causes: a malformed token, a failed transfer */
	{"a malformed token of a PUT",
	 PUT,
	 400,
	 0,
	 "InvalidRDMAToken",
	 {{NULL, NULL}},
	 RESEND,
	 0,
	 1},
	{"a malformed token of a GET",
	 GET,
	 400,
	 0,
	 "InvalidRDMAToken",
	 {{NULL, NULL}},
	 RESEND,
	 0,
	 1},
	{"the transfer of a PUT failed", PUT, 500, 0, "RDMATransferFailed", {{NULL, NULL}}, RESEND},
	/* errors without any relation to RDMA */
	{"the response was lost", PUT, 0, 0, NULL, {{NULL, NULL}}, ERROR},
	{"no such key", GET, 404, 0, "NoSuchKey", {{NULL, NULL}}, ERROR},
	{"another 400", PUT, 400, 0, "BadDigest", {{NULL, NULL}}, ERROR},
	{"a 400 without a code", PUT, 400, 0, NULL, {{NULL, NULL}}, ERROR},
	{"another 500", PUT, 500, 0, "InternalError", {{REPLY, "200"}}, ERROR},
	{"changed in between", GET, 412, 0, "PreconditionFailed", {{NULL, NULL}}, ERROR},
	{"a redirection", GET, 307, 0, NULL, {{NULL, NULL}}, ERROR},
	/* responses that contradict the request */
	{"a PUT of fewer bytes", PUT, 200, 0, NULL, {{REPLY, "200"}, {BYTES, "4095"}}, RESEND},
	{"a PUT of more bytes", PUT, 200, 0, NULL, {{REPLY, "200"}, {BYTES, "4097"}}, RESEND},
	{"a PUT without bytes", PUT, 200, 0, NULL, {{REPLY, "200"}}, RESEND},
	{"a PUT with negative bytes", PUT, 200, 0, NULL, {{REPLY, "200"}, {BYTES, "-1"}}, RESEND},
	{"a GET without bytes", GET, 200, 0, NULL, {{REPLY, "200"}}, RESEND},
	{"a GET of more bytes than the window",
	 GET,
	 200,
	 0,
	 NULL,
	 {{REPLY, "200"}, {BYTES, "4097"}},
	 RESEND},
	{"a GET that was cut short",
	 GET,
	 200,
	 0,
	 NULL,
	 {{REPLY, "200"}, {BYTES, "4096/8192"}},
	 RESEND},
	{"a GET of fewer bytes than expected",
	 GET,
	 200,
	 0,
	 NULL,
	 {{REPLY, "200"}, {BYTES, "4095"}},
	 RESEND,
	 0,
	 0,
	 0,
	 LEN},
	{"a GET with a body as well",
	 GET,
	 200,
	 0,
	 NULL,
	 {{REPLY, "200"}, {BYTES, "4096"}, {"Content-Length", "4096"}},
	 RESEND},
	{"a range of other length",
	 GET,
	 206,
	 1,
	 NULL,
	 {{REPLY, "206"}, {BYTES, "10"}, {"Content-Range", "bytes 0-8/99"}},
	 RESEND},
	{"a range without Content-Range",
	 GET,
	 206,
	 1,
	 NULL,
	 {{REPLY, "206"}, {BYTES, "10"}},
	 RESEND},
	{"a range with a wrong Content-Range",
	 GET,
	 206,
	 1,
	 NULL,
	 {{REPLY, "206"}, {BYTES, "10"}, {"Content-Range", "bytes 9-0/99"}},
	 RESEND},
	{"the whole object instead of a range",
	 GET,
	 200,
	 1,
	 NULL,
	 {{REPLY, "200"}, {BYTES, "4096"}},
	 ERROR},
	{"an unknown reply to a PUT", PUT, 200, 0, NULL, {{REPLY, "302"}, {BYTES, "4096"}}, RESEND},
	{"an unknown reply to a GET", GET, 200, 0, NULL, {{REPLY, "302"}}, BODY},
};

static void judges_each_row(void **state)
{
	unsigned wrong = 0;

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct row *row = &rows[i];
		struct penstock_object_reply reply = PENSTOCK_OBJECT_REPLY_INIT;
		struct penstock_object_verdict v = PENSTOCK_OBJECT_VERDICT_INIT;

		reply.status = row->status;
		reply.ranged = row->ranged;
		reply.error = row->error;
		reply.headers = row->headers;
		reply.header_count = 5;
		reply.expect = row->expect;
		pst_judge(row->op, LEN, &reply, &v);
		if (v.next == row->next && v.bytes == row->bytes && v.remember == row->remember &&
		    v.stored_empty == row->stored_empty && v.text[0] && v.size == sizeof(v))
			continue;
		wrong++;
		printf("# %s: next %d, expected %d; bytes %llu, expected %llu; remember %d, "
		       "expected %d; stored_empty %d, expected %d; %s\n",
		       row->what, v.next, row->next, (unsigned long long)v.bytes,
		       (unsigned long long)row->bytes, v.remember, row->remember, v.stored_empty,
		       row->stored_empty, v.text);
	}
	assert_int_equal(wrong, 0);
}

static void reads_the_checksum(void **state)
{
	static const struct {
		const char *value;
		int has;
		uint64_t crc;
	} values[] = {
		{"CRC64NVME AAAAAAAAAAA=", 1, 0},
		{"crc64nvme //////////8=", 1, UINT64_MAX},
		{"CRC64NVME AQIDBAUGBwg=", 1, 0x0102030405060708},
		{"CRC64NVME AQIDBAUGBwg", 0, 0},
		{"CRC64NVME AQIDBAUGBwh=", 0, 0},
		{"CRC64NVME AQIDBAUGBw==", 0, 0},
		{"CRC64NVME ", 0, 0},
		{"CRC32C AQIDBA==", 0, 0},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		struct penstock_object_header headers[] = {
			{REPLY, "200"}, {BYTES, "4096"}, {"x-amz-rdma-checksum", values[i].value}};
		struct penstock_object_reply reply = PENSTOCK_OBJECT_REPLY_INIT;
		struct penstock_object_verdict v = PENSTOCK_OBJECT_VERDICT_INIT;

		reply.status = 200;
		reply.headers = headers;
		reply.header_count = 3;
		pst_judge(GET, LEN, &reply, &v);
		assert_int_equal(v.next, DONE);
		assert_int_equal(v.has_crc64, values[i].has);
		if (v.has_crc64)
			assert_int_equal(v.crc64, values[i].crc);
	}
}

static const struct answer_row {
	enum penstock_op op;
	enum penstock_object_outcome outcome;
	int ranged, status, body;
	const char *error, *reply, *bytes;
	enum penstock_object_next next;
} answers[] = {
	{GET, PENSTOCK_OBJECT_MOVED, 0, 200, 0, NULL, "200", "4096", DONE},
	{GET, PENSTOCK_OBJECT_MOVED, 1, 206, 0, NULL, "206", "4096", DONE},
	{PUT, PENSTOCK_OBJECT_MOVED, 0, 200, 0, NULL, "200", "4096", DONE},
	{GET, PENSTOCK_OBJECT_DECLINED, 0, 200, 1, NULL, "501", "0", BODY},
	{GET, PENSTOCK_OBJECT_DECLINED, 1, 206, 1, NULL, "501", "0", BODY},
	{PUT, PENSTOCK_OBJECT_DECLINED, 0, 200, 0, "RDMANotSupported", "501", "0", RESEND},
	{GET, PENSTOCK_OBJECT_MALFORMED, 0, 400, 0, "InvalidRDMAToken", NULL, NULL, RESEND},
	{PUT, PENSTOCK_OBJECT_MALFORMED, 0, 400, 0, "InvalidRDMAToken", NULL, NULL, RESEND},
	{PUT, PENSTOCK_OBJECT_FAILED, 0, 500, 0, "RDMATransferFailed", NULL, NULL, RESEND},
	{GET, PENSTOCK_OBJECT_FAILED, 0, 200, 1, NULL, "501", "0", BODY},
};

static void check_answer(const struct answer_row *row)
{
	struct penstock_object_answer a = PENSTOCK_OBJECT_ANSWER_INIT;
	struct penstock_object_reply reply = PENSTOCK_OBJECT_REPLY_INIT;
	struct penstock_object_verdict v = PENSTOCK_OBJECT_VERDICT_INIT;
	struct penstock_object_header headers[PENSTOCK_OBJECT_HEADERS_MAX + 1];

	a.op = row->op;
	a.outcome = row->outcome;
	a.ranged = row->ranged;
	a.bytes = LEN;
	assert_int_equal(pst_answer(&a), 0);
	assert_int_equal(a.status, row->status);
	assert_int_equal(a.body, row->body);
	assert_int_equal(a.header_count, row->reply ? 2 : 0);
	if (row->error)
		assert_string_equal(a.error, row->error);
	else
		assert_null(a.error);
	if (row->reply) {
		assert_string_equal(a.headers[0].name, REPLY);
		assert_string_equal(a.headers[0].value, row->reply);
		assert_string_equal(a.headers[1].name, BYTES);
		assert_string_equal(a.headers[1].value, row->bytes);
	}
	memcpy(headers, a.headers, sizeof(a.headers));
	headers[a.header_count] =
		(struct penstock_object_header){"Content-Range", "bytes 0-4095/8192"};
	reply.status = a.status;
	reply.ranged = row->ranged;
	reply.error = a.error;
	reply.headers = headers;
	reply.header_count = a.header_count + row->ranged;
	pst_judge(row->op, LEN, &reply, &v);
	assert_int_equal(v.next, row->next);
}

/* The client parses the checksum header that the server has printed. The checksum is that of
 * "123456789". */
static void checksum_is_understood(void **state)
{
	const uint64_t numbers[] = {0xae8b14860a799888, 0, UINT64_MAX, 0x8000000000000001};

	(void)state;
	for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		struct penstock_object_answer a = PENSTOCK_OBJECT_ANSWER_INIT;
		struct penstock_object_reply reply = PENSTOCK_OBJECT_REPLY_INIT;
		struct penstock_object_verdict v = PENSTOCK_OBJECT_VERDICT_INIT;

		a.outcome = PENSTOCK_OBJECT_MOVED;
		a.bytes = LEN;
		a.has_crc64 = 1;
		a.crc64 = numbers[i];
		assert_int_equal(pst_answer(&a), 0);
		assert_int_equal(a.header_count, 3);
		assert_string_equal(a.headers[2].name, "x-amz-rdma-checksum");
		if (!i)
			assert_string_equal(a.headers[2].value, "CRC64NVME rosUhgp5mIg=");
		reply.status = a.status;
		reply.headers = a.headers;
		reply.header_count = a.header_count;
		pst_judge(GET, LEN, &reply, &v);
		assert_int_equal(v.next, DONE);
		assert_int_equal(v.has_crc64, 1);
		assert_int_equal(v.crc64, numbers[i]);
	}
}

static void answers_are_understood(void **state)
{
	struct penstock_object_answer a = PENSTOCK_OBJECT_ANSWER_INIT;

	(void)state;
	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++)
		check_answer(&answers[i]);
	a.outcome = 99;
	assert_int_equal(pst_answer(&a), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(judges_each_row),
		cmocka_unit_test(reads_the_checksum),
		cmocka_unit_test(checksum_is_understood),
		cmocka_unit_test(answers_are_understood),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
