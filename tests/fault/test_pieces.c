/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane's ring is registered with io_uring in two pieces, and the first or the second one is
 * refused: the bytes arrive all the same, and the report says why they came slower. Must
 * never ask for less than needs the whole ring.
 */
#include "world.h"

#include "calls.h"

#define LEN (48u << 20)

/* A write of all that the slots of one lane take, and more, while io_uring refuses pieces of
 * its ring from the nth on. */
static void in_pieces(const char *name, unsigned nth, struct penstock_report *report,
		      struct penstock_explanation *known)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_seg seg = {.row_len = LEN};
	unsigned tried;

	opts.flags = PENSTOCK_O_WRITE;
	calls_arm_onwards(CALLS_REGISTER, nth, ENOMEM);
	seg.dev = world_device_of("cuda:0", "auto", 4u << 20, 1);
	assert_int_equal(penstock_alloc(seg.dev, LEN, &seg.buf), 0);
	assert_int_equal(penstock_open(name, &opts, &req.storage), 0);
	req.segs = &seg;
	req.seg_count = 1;
	req.op = PENSTOCK_WRITE;
	req.path = "bounce";
	assert_int_equal(penstock_transfer(&req, report), LEN);
	assert_int_equal(penstock_explain(&req, known), 0);
	tried = calls_seen();
	calls_disarm();
	assert_int_equal(tried, nth);
	penstock_close(req.storage);
	penstock_free(seg.dev, seg.buf);
	penstock_device_close(seg.dev);
}

/* Where the first is refused the next is not tried; either way calls are carried and say it.
 * What is known of the device is as it was when it opened: anybody may be looking. */
static void refused(void **state)
{
	const char *name = world_name("data", false);

	(void)state;
	if (!world_has_uring())
		test_skip("io_uring is refused here");
	world_file(name, 4096, 1);
	for (unsigned nth = 1; nth <= 2; nth++) {
		struct penstock_report report = PENSTOCK_REPORT_INIT;
		struct penstock_explanation known = {.size = sizeof(known)};

		in_pieces(name, nth, &report, &known);
		assert_string_equal(report.engine, "uring");
		assert_int_equal(report.engine_why, PENSTOCK_WHY_MEMLOCK);
		assert_int_equal(known.engine_why,
				 nth == 1 ? PENSTOCK_WHY_MEMLOCK : PENSTOCK_WHY_NONE);
	}
	unlink(name);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refused),
	};

	world_use_standin();
	return cmocka_run_group_tests_name("pieces", tests, NULL, NULL);
}
