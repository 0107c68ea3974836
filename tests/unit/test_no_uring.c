/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A build without liburing, whatever this one has: the engine that stands in the
 * ring's place does not open, and says why.
 */
#include "test.h"

/* The table, under a name of its own: the library has one too. */
#define pst_engine_uring no_engine
#include "../../src/io/no_uring.c"

static void says_why(void **state)
{
	struct pst_engine *engine = NULL;
	struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};

	(void)state;
	assert_string_equal(no_engine.name, "uring");
	assert_int_equal(no_engine.open(&engine, 8, -1, &err), -EOPNOTSUPP);
	assert_null(engine);
	assert_int_equal(err.why, PENSTOCK_WHY_NOT_BUILT);
	assert_non_null(strstr(err.text, "liburing"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(says_why),
	};

	return cmocka_run_group_tests_name("no_uring", tests, NULL, NULL);
}
