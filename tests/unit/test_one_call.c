/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What include/penstock.h says of the one-call forms and of what is written with
 * them: deadlines, the end of a storage, and what is left of a file that is given up or
 * committed. The CUDA driver is the stand-in.
 */
#include "api.h"

/* A one-call form ends, too, when its time is over before it began. */
static void deadlines(void **state)
{
	struct penstock_storage *st = open_it(0);
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_req req = PENSTOCK_REQ_INIT;
	unsigned char byte = 1;
	struct penstock_seg seg = {.buf = &byte, .dev = host, .row_len = 1};

	(void)state;
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	for (unsigned i = 0; i < 2; i++) { /* with its lanes awake, or not yet made */
		req.deadline_ns = 1;
		assert_int_equal(penstock_transfer(&req, &report), -ETIME);
		assert_int_equal(report.why, PENSTOCK_WHY_DEADLINE);
		assert_int_equal(report.bytes, 0);
		assert_int_equal(byte, 1);
		req.deadline_ns = INT64_MAX;
		assert_int_equal(penstock_transfer(&req, &report), 1);
		assert_int_equal(byte, 0);
		byte = 1;
	}
	penstock_close(st);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(deadlines),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, setup, teardown);
}
