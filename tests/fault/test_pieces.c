/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane (a worker thread) has pinned staging memory, called its ring. The lane registers this
 * memory with io_uring in two pieces. In these tests, io_uring_register fails for the first or the
 * second piece. All bytes must arrive, and the report must say why the calls were slower. Each
 * transfer is so long that it needs both pieces.
 */
#include "fixture.h"

#include "calls.h"

#define LEN (48u << 20)

/* Writes more bytes than the staging memory of one worker thread holds. The n-th call of
 * io_uring_register and all later ones fail, so the n-th piece of this memory is not registered. */
static void write_with_refused_piece(const char *name, unsigned nth, struct penstock_report *report,
				     struct penstock_explanation *known)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_seg seg = {.row_len = LEN};
	unsigned attempts;

	opts.flags = PENSTOCK_O_WRITE;
	calls_arm_onwards(CALLS_REGISTER, nth, ENOMEM);
	seg.dev = fixture_open_device_lanes("cuda:0", "auto", 4u << 20, 1);
	assert_int_equal(penstock_alloc(seg.dev, LEN, &seg.buf), 0);
	assert_int_equal(penstock_open(name, &opts, &req.storage), 0);
	req.segs = &seg;
	req.seg_count = 1;
	req.op = PENSTOCK_WRITE;
	req.path = "bounce";
	assert_int_equal(penstock_transfer(&req, report), LEN);
	assert_int_equal(penstock_explain(&req, known), 0);
	attempts = calls_counted();
	calls_disarm();
	assert_int_equal(attempts, nth);
	penstock_close(req.storage);
	penstock_free(seg.dev, seg.buf);
	penstock_device_close(seg.dev);
}

/* If io_uring refuses the first piece of a thread's ring (staging memory), the library does not
 * try the second. Whichever piece is refused, io_uring still carries the calls, and the report has
 * the reason. The reason that the device got when it opened does not change, because other threads
 * may be reading it. */
static void refused_piece_is_reported(void **state)
{
	const char *name = fixture_name("data", false);

	(void)state;
	if (!fixture_has_uring())
		test_skip("io_uring is refused here");
	fixture_make_file(name, 4096, 1);
	for (unsigned nth = 1; nth <= 2; nth++) {
		struct penstock_report report = PENSTOCK_REPORT_INIT;
		struct penstock_explanation known = {.size = sizeof(known)};

		write_with_refused_piece(name, nth, &report, &known);
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
		cmocka_unit_test(refused_piece_is_reported),
	};

	fixture_use_standin();
	return cmocka_run_group_tests_name("pieces", tests, NULL, NULL);
}
