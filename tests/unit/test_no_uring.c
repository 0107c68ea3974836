/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests io/no_uring.c, which replaces io/uring.c in builds without liburing. The test runs in all
 * builds. The function `open` of the replacement must fail and return the reason.
 */
#include "test.h"

/* Renames the table of no_uring.c, because the library may define pst_engine_uring itself. */
#define pst_engine_uring missing_engine
#include "../../src/io/no_uring.c"

static void open_fails_with_reason(void **state)
{
	struct pst_engine *engine = NULL;
	struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};

	(void)state;
	assert_string_equal(missing_engine.name, "uring");
	assert_int_equal(missing_engine.open(&engine, 8, -1, &err), -EOPNOTSUPP);
	assert_null(engine);
	assert_int_equal(err.why, PENSTOCK_WHY_NOT_BUILT);
	assert_non_null(strstr(err.text, "liburing"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open_fails_with_reason),
	};

	return cmocka_run_group_tests_name("no_uring", tests, NULL, NULL);
}
