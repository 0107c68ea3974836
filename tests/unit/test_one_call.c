/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What include/penstock.h says of the one-call forms and of what is written with
 * them: deadlines, the end of a storage, and what is left of a file that is given up or
 * committed. The CUDA driver is the stand-in.
 */
#include "api.h"

#include <fcntl.h>
#include <sys/stat.h>

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

/* What an open created: given up it is gone, and cannot be committed; committed it stays,
 * whatever is given up after that. */
static void ends_of_writing(unsigned flags, bool commit)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	unsigned char byte = 1;
	struct penstock_storage *st;

	unlink(file_name);
	opts.flags = flags;
	assert_int_equal(penstock_open(file_name, &opts, &st), 0);
	assert_int_equal(penstock_write(st, host, &byte, 1, 0), 1);
	if (commit)
		assert_int_equal(penstock_commit(st, 0), 0);
	assert_int_equal(penstock_abort(st), 0);
	assert_int_equal(access(file_name, F_OK), commit ? 0 : -1);
	assert_int_equal(penstock_commit(st, 1), commit ? 0 : -ESTALE);
	assert_int_equal(penstock_abort(st), 0);
	penstock_close(st);
	assert_int_equal(access(file_name, F_OK), commit ? 0 : -1);
}

static void given_up(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		ends_of_writing(PENSTOCK_O_CREATE, i);
		ends_of_writing(PENSTOCK_O_REPLACE, i);
	}
}

/* What was there before is no open's to remove, and can be committed after that. */
static void given_up_in_place(void **state)
{
	struct penstock_storage *st = open_it(PENSTOCK_O_WRITE | PENSTOCK_O_CREATE);
	unsigned char byte = 1;

	(void)state;
	assert_int_equal(penstock_write(st, host, &byte, 1, 0), 1);
	assert_int_equal(penstock_abort(st), 0);
	assert_int_equal(penstock_commit(st, 0), 0);
	assert_int_equal(penstock_read(st, host, &byte, 1, 0), 1);
	assert_int_equal(byte, 1);
	penstock_close(st);
	assert_int_equal(access(file_name, F_OK), 0);
}

/* What has taken the place of what an open created is another's. */
static void given_up_elsewhere(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	char made[sizeof(file_name) + 8], other[sizeof(made) + 8];
	struct penstock_storage *st;

	(void)state;
	snprintf(made, sizeof(made), "%s.made", file_name);
	snprintf(other, sizeof(other), "%s.other", made);
	opts.flags = PENSTOCK_O_CREATE;
	assert_int_equal(penstock_open(made, &opts, &st), 0);
	close(open(other, O_RDWR | O_CREAT, 0600));
	assert_int_equal(rename(other, made), 0);
	assert_int_equal(penstock_abort(st), 0); /* nothing is left of it */
	penstock_close(st);
	assert_int_equal(unlink(made), 0);
}

/* What cannot be removed is told of. */
static void given_up_in_vain(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	char dir[sizeof(file_name) + 8], moved[sizeof(dir) + 8];
	struct penstock_storage *st;

	(void)state;
	/* It stands elsewhere, and a folder in its place. */
	snprintf(dir, sizeof(dir), "%s.d", file_name);
	snprintf(moved, sizeof(moved), "%s.moved", dir);
	opts.flags = PENSTOCK_O_CREATE;
	assert_int_equal(penstock_open(dir, &opts, &st), 0);
	assert_int_equal(rename(dir, moved), 0);
	assert_int_equal(mkdir(dir, 0700), 0);
	assert_int_equal(penstock_abort(st), -ESTALE);
	assert_non_null(strstr(penstock_errmsg(), dir));
	assert_int_equal(rmdir(dir), 0);
	assert_int_equal(penstock_abort(st), 0);
	penstock_close(st);
	unlink(moved);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(deadlines),
		cmocka_unit_test(given_up_in_place),
		cmocka_unit_test(given_up),
		cmocka_unit_test(given_up_elsewhere),
		cmocka_unit_test(given_up_in_vain),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, setup, teardown);
}
