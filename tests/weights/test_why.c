/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks that the core and the weights code report the same reason for the same errno: the
 * reason in the table of common/why.c.
 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>

#include "common/why.h"
#include "core/base/err.h"
#include "weights/err.h"

#define ERRNO_MAX 200 /* Linux has 133. */

/* Every errno, positive or negative, has the same reason in the core and in the weights code. */
static void test_same_reason(void **state)
{
	(void)state;
	for (int code = 1; code <= ERRNO_MAX; code++) {
		const enum penstock_why why = pst_why_from_errno(code);

		assert_int_equal(pst_why_from_errno(-code), why);
		assert_int_equal(pst_why_from_errno(code), why);
		assert_int_equal(pst_why_from_errno(-code), why);
		assert_int_equal(pst_weights_fail_errno(code, "file", NULL, PST_NO_OFF, "%m"),
				 -code);
		assert_int_equal(penstock_errwhy(), why);
		assert_int_equal(pst_weights_fail_errno(-code, "file", NULL, PST_NO_OFF, "%m"),
				 -code);
		assert_int_equal(penstock_errwhy(), why);
	}
}

/* Checks the reasons in the table itself, with one errno for each row. */
static void test_table(void **state)
{
	static const struct {
		int code;
		enum penstock_why why;
	} rows[] = {
		{ENOENT, PENSTOCK_WHY_NOT_FOUND},     {ENAMETOOLONG, PENSTOCK_WHY_NOT_FOUND},
		{EACCES, PENSTOCK_WHY_NO_PERMISSION}, {EROFS, PENSTOCK_WHY_READ_ONLY},
		{EMFILE, PENSTOCK_WHY_NO_FILES},      {EFBIG, PENSTOCK_WHY_NO_SPACE},
		{ENOMEM, PENSTOCK_WHY_NO_MEMORY},     {EINVAL, PENSTOCK_WHY_BAD_ARGUMENT},
		{EISDIR, PENSTOCK_WHY_BAD_KIND},      {ECANCELED, PENSTOCK_WHY_CANCELLED},
		{ETIME, PENSTOCK_WHY_DEADLINE},	      {EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED},
		{ENOSYS, PENSTOCK_WHY_UNSUPPORTED},   {EIO, PENSTOCK_WHY_IO_ERROR},
		{ERRNO_MAX, PENSTOCK_WHY_IO_ERROR},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_int_equal(pst_why_from_errno(rows[i].code), rows[i].why);
}

/* penstock_open and the open function of models report the same reason for an errno of the kernel.
 * The test uses ELOOP, which the kernel returns for a symbolic link to itself. */
static void test_both_open(void **state)
{
	const char *tmp = getenv("TMPDIR");
	char path[1024];
	struct penstock_weights *model;
	struct penstock_storage *st;

	(void)state;
	snprintf(path, sizeof(path), "%s/loop", tmp ? tmp : "/tmp");
	unlink(path);
	assert_int_equal(symlink("loop", path), 0);
	assert_int_equal(penstock_open(path, NULL, &st), -ELOOP);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_NOT_FOUND);
	assert_int_equal(penstock_weights_open(path, NULL, &model), -ELOOP);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_NOT_FOUND);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_reason),
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_both_open),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
