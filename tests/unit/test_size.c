/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the parser of sizes: units, fractions, limits, and texts that are not a size.
 */
#include "test.h"

#include "common/size.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void sizes(void **state)
{
	static const struct {
		const char *text;
		uint64_t bytes;
		const char *rest;
	} cases[] = {
		{"0", 0, ""},
		{"4096", 4096, ""},
		{"512B", 512, ""},
		{"999 bytes", 999, ""},
		{"4k", 4096, ""},
		{"4K", 4096, ""},
		{"4KiB", 4096, ""},
		{"4kB", 4000, ""},
		{"4KB", 4000, ""},
		{"1M", 1048576, ""},
		{"1MiB", 1048576, ""},
		{"1MB", 1000000, ""},
		{"2G", 2147483648, ""},
		{"1GB", 1000000000, ""},
		{"3TB", 3000000000000, ""},
		{"1.5GiB", 1610612736, ""},
		{"67.11 MB", 67110000, ""},
		{"0.125KiB", 128, ""},
		{"0.001kB", 1, ""},
		{"0.0001kB", 0, ""},
		{"1.999999999999999999999999kB", 1999, ""},
		{"9223372036854775807", INT64_MAX, ""},
		{"8388607TiB", 8388607ull << 40, ""},
		{"1MiB?seed=7", 1048576, "?seed=7"},
		{"1.5GiB:2", 1610612736, ":2"},
		{"1XB", 1, "XB"},
		{"4 ", 4, " "},
		{"1MiBx", 1048576, "x"},
		{"7.", 7, "."},
	};

	(void)state;
	for (unsigned i = 0; i < COUNT(cases); i++) {
		uint64_t bytes = 77;
		const char *end = pst_size_parse(cases[i].text, &bytes);

		assert_non_null(end);
		assert_string_equal(end, cases[i].rest);
		assert_int_equal(bytes, cases[i].bytes);
	}
}

static void texts_that_are_no_size(void **state)
{
	static const char *const cases[] = {"",
					    "-1",
					    " 1",
					    ".5GiB",
					    "KiB",
					    "1.5",
					    "1.5x",
					    "9223372036854775808",
					    "18446744073709551616",
					    "8388608TiB",
					    "8388607.9999999999999TiBx1"};
	uint64_t bytes = 77;

	(void)state;
	for (unsigned i = 0; i + 1 < COUNT(cases); i++)
		if (pst_size_parse(cases[i], &bytes))
			fail_msg("'%s' is accepted", cases[i]);
	assert_int_equal(bytes, 77);
	/* The largest sizes that fit are accepted. */
	assert_non_null(pst_size_parse(cases[COUNT(cases) - 1], &bytes));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes),
		cmocka_unit_test(texts_that_are_no_size),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
