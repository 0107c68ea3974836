/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies that a copier of device cuda puts off, to hand on many with one call of the
 * driver: all arrive, and one that the driver refuses is refused by itself.
 */
#include "cuda_copier.h"

/* ---- copies that are put off ---------------------------------------------------- */

/* Two hundred of odd lengths, both ways, in as many batches as they need. */
static void copies_may_be_put_off(void **state)
{
	enum { COUNT = 200, EACH = 5000 };
	uint64_t random = test_seed(11);
	int refused[2 * COUNT] = {0};

	(void)state;
	fill(host, COUNT * EACH, &random);
	for (int way = 0; way < 2; way++) {
		char *back = host + 2 * MIB;

		for (int i = 0; i < COUNT; i++) {
			size_t len = (size_t)(1 + i * 24), at = (size_t)i * EACH;
			struct pst_rect r = way ? flat(back + at, mem + at, len)
						: flat(mem + at, host + at, len);

			r.refused = &refused[way * COUNT + i];
			assert_int_equal(way ? ops->copy_out(cp, &r) : ops->copy_in(cp, &r), 0);
		}
		finish();
		for (int i = 0; i < COUNT && way; i++)
			assert_memory_equal(back + i * EACH, host + i * EACH, 1 + i * 24);
	}
	for (int i = 0; i < 2 * COUNT; i++)
		assert_int_equal(refused[i], 0);
}

/* One that the driver refuses does not take the others of its batch with it. */
static void a_refusal_is_its_own(void **state)
{
	int refused[3] = {0};

	(void)state;
	memset(host, 0x11, 3 * 4096);
	memset(host + MIB, 0, 3 * 4096);
	for (int i = 0; i < 3; i++) {
		struct pst_rect r = flat(i == 1 ? (char *)64 : mem + i * 4096, host + i * 4096, 4096);

		r.refused = &refused[i];
		assert_int_equal(ops->copy_in(cp, &r), 0);
	}
	finish();
	assert_int_equal(refused[0], 0);
	assert_int_equal(refused[1], -EINVAL);
	assert_int_equal(refused[2], 0);
	assert_int_equal(out(host + MIB, mem, 4096), 0);
	assert_int_equal(out(host + MIB + 2 * 4096, mem + 2 * 4096, 4096), 0);
	finish();
	assert_memory_equal(host + MIB, host, 4096);
	assert_memory_equal(host + MIB + 2 * 4096, host, 4096);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(copies_may_be_put_off),
		CASE(a_refusal_is_its_own),
	};

	check_choose();
	return cmocka_run_group_tests_name("cuda_batch", tests, driver_open, NULL);
}
