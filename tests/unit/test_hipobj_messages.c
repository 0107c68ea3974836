/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the messages of hipobj-rc-v2 (s3/hipobj.h): the bounds of each field, and that requests
 * contain their values in the same format as requests of other implementations.
 */
#include "test.h"

#include <errno.h>
#include <stdio.h>

#include "hipobj_message.h"

static void parses_requests(void **state)
{
	static const struct {
		const char *name, *value;
		int ret;
	} rows[] = {
		{"", "", 0},
		{"x-amz-rdma-protocol", "hipobj-rc-v1", -EPROTO},
		{"x-amz-rdma-op", "HEAD", -EBADMSG},
		{"x-amz-rdma-target", "bucket/key", -EBADMSG},
		{"x-amz-rdma-size", "0", -EBADMSG},
		{"x-amz-rdma-size", "-1", -EBADMSG},
		{"x-amz-rdma-size", "99999999999999999999", -EBADMSG},
		{"x-amz-rdma-size", "2147483647", 0},
		{"x-amz-rdma-size", "2147483648", -EFBIG},
		{"x-amz-rdma-offset", "x", -EBADMSG},
		{"x-amz-rdma-offset", "", -EBADMSG},
		{"x-amz-rdma-psn", "0", -EBADMSG},
		{"x-amz-rdma-psn", "1000000", -EBADMSG},
		{"x-amz-rdma-psn", "0000000000000001", 0},
		{"x-amz-rdma-psn", "00000000000000001", -EBADMSG},
		{"x-amz-rdma-cookie", "100000000", -EBADMSG},
		{"x-amz-rdma-cookie", "", -EBADMSG},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct pst_hipobj_prepare p;
		struct message m = {.count = 0};
		const struct pst_hipobj_source source = {message_find, &m};
		int ret;

		put(&m, "x-amz-rdma-protocol", HIPOBJ);
		put(&m, "x-amz-rdma-op", "GET");
		put(&m, "x-amz-rdma-target", "/bucket/key");
		put(&m, "x-amz-rdma-size", "4096");
		put(&m, "x-amz-rdma-offset", "12");
		put(&m, "x-amz-rdma-psn", "00a1b2");
		put(&m, "x-amz-rdma-cookie", "DEADbeef");
		put(&m, "x-amz-rdma-token", "x");
		for (unsigned j = 0; j < m.count; j++)
			if (!strcmp(m.headers[j].name, rows[i].name))
				m.headers[j].value = rows[i].value;
		ret = pst_hipobj_prepare_parse(&source, &p);
		if (ret != rows[i].ret)
			fail_msg("row %u: found %d, expected %d", i, ret, rows[i].ret);
		if (i)
			continue;
		assert_int_equal(p.len, 4096);
		assert_int_equal(p.offset, 12);
		assert_int_equal(p.psn, 0xa1b2);
		assert_int_equal(p.cookie, 0xdeadbeef);
		assert_int_equal(p.op, PENSTOCK_READ);
	}
}

/* Requests must contain their values in the format that other implementations of the protocol use.
 * The texts that this case expects have that format. */
static void composes_requests(void **state)
{
	const struct pst_hipobj_prepare p = {PENSTOCK_WRITE, "/b/k?uploadId=1", "T", 77, 0, 0xa1,
					     0xbeef};
	struct pst_hipobj_ready r = {SESSION, 0xbeef, 0x12, 0x99, 0x7f00};
	struct penstock_object_header h[PST_HIPOBJ_HEADERS_MAX];
	struct pst_hipobj_texts texts;

	(void)state;
	assert_int_equal(pst_hipobj_put_prepare(&p, &texts, h), 7);
	assert_string_equal(h[2].value, "0000a1");
	assert_string_equal(h[3].value, "0000beef");
	assert_string_equal(h[4].value, "PUT");
	assert_string_equal(h[5].value, "/b/k?uploadId=1");
	assert_string_equal(h[6].value, "77");
	assert_int_equal(pst_hipobj_put_ready(&r, &texts, h), 6);
	assert_string_equal(h[1].value, SESSION);
	assert_string_equal(h[3].value, "12");
	assert_string_equal(h[4].value, "7f00");
	assert_string_equal(h[5].value, "99");
	r.qpn = 0;
	assert_int_equal(pst_hipobj_put_ready(&r, &texts, h), 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parses_requests),
		cmocka_unit_test(composes_requests),
	};

	return cmocka_run_group_tests_name("hipobj_messages", tests, NULL, NULL);
}
