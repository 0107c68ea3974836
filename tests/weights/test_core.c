/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests two functions of the core that the weights code relies on: penstock_fail, which sets
 * the message, and the offset at which a request stopped.
 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>

#include "penstock.h"

static void test_message(void **state)
{
	(void)state;
	assert_int_equal(penstock_fail(ENOENT, PENSTOCK_WHY_NOT_FOUND, "%s: %m", "x"), -ENOENT);
	assert_string_equal(penstock_errmsg(), "x: No such file or directory");
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_NOT_FOUND);
	/* An argument of the call that sets the new message may point to the previous message. */
	assert_int_equal(
		penstock_fail(-EBADMSG, PENSTOCK_WHY_MALFORMED, "y: %s", penstock_errmsg()),
		-EBADMSG);
	assert_string_equal(penstock_errmsg(), "y: x: No such file or directory");
	assert_string_equal(penstock_why_name(penstock_errwhy()), "malformed");
}

static void check_stop(struct penstock_storage *st, struct penstock_device *host, const char *path,
		       uint64_t off, int64_t result, uint64_t stop)
{
	static char buf[65536];
	struct penstock_seg seg = {.buf = buf, .dev = host, .off = off, .row_len = sizeof(buf)};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_report report = PENSTOCK_REPORT_INIT;

	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.flags = result < 0 ? PENSTOCK_R_EXACT : 0;
	req.path = path;
	assert_int_equal(penstock_transfer(&req, &report), result);
	assert_int_equal(report.stop_off, stop);
}

static void test_stop_offset(void **state)
{
	struct penstock_storage *st;
	struct penstock_device *host;

	(void)state;
	assert_int_equal(penstock_open("mem:100000?seed=1", NULL, &st), 0);
	assert_true(penstock_device_open("host", NULL, &host) >= 0);
	check_stop(st, host, NULL, 0, 65536, UINT64_MAX);
	check_stop(st, host, NULL, 65536, -ENODATA, 100000);
	check_stop(st, host, NULL, 65536, 100000 - 65536, 100000);
	check_stop(st, host, "fault?eio=1", 4096, -EIO, 4096);
	penstock_close(st);
	penstock_device_close(host);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_message),
		cmocka_unit_test(test_stop_offset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
