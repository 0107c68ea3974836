/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies that a copier of device cuda puts off, to hand on many with one call of the
 * driver: all arrive, and one that the driver refuses is refused by itself.
 */
#include "cuda_copier.h"

/* ---- copies that are put off ---------------------------------------------------- */

/* Small and large ones in turns, both ways. */
static void copies_may_be_put_off(void **state)
{
	enum { COUNT = 40, EACH = 50000 };
	uint64_t random = test_seed(11);
	int refused[2 * COUNT] = {0};

	(void)state;
	fill(host, COUNT * EACH, &random);
	for (int way = 0; way < 2; way++) {
		char *back = host + 2 * MIB;

		for (int i = 0; i < COUNT; i++) {
			size_t len = (size_t)(1 + i * 1200), at = (size_t)i * EACH;
			struct pst_rect r = way ? flat(back + at, mem + at, len)
						: flat(mem + at, host + at, len);

			r.refused = &refused[way * COUNT + i];
			assert_int_equal(way ? ops->copy_out(cp, &r) : ops->copy_in(cp, &r), 0);
		}
		finish();
		for (int i = 0; i < COUNT && way; i++)
			assert_memory_equal(back + i * EACH, host + i * EACH, 1 + i * 1200);
	}
	for (int i = 0; i < 2 * COUNT; i++)
		assert_int_equal(refused[i], 0);
}

/* One that the driver refuses does not take the others of its batch with it. */
/* More than a batch holds. */
static void many_copies_put_off(void **state)
{
	enum { COUNT = 150, EACH = 25000 };
	uint64_t random = test_seed(12);
	int refused[COUNT] = {0};

	(void)state;
	fill(host, HOST, &random);
	for (int i = 0; i < COUNT; i++) {
		struct pst_rect r = flat(mem + (size_t)i * EACH, host + (size_t)i * EACH, EACH);

		r.refused = &refused[i];
		assert_int_equal(ops->copy_in(cp, &r), 0);
	}
	finish();
	for (int i = 0; i < COUNT; i++) {
		char back[EACH];

		assert_int_equal(refused[i], 0);
		assert_int_equal(out(back, mem + (size_t)i * EACH, EACH), 0);
		finish();
		assert_memory_equal(back, host + (size_t)i * EACH, EACH);
	}
}

static void a_refusal_is_its_own(void **state)
{
	int refused[3] = {0};

	(void)state;
	memset(host, 0x11, 3 * 32768);
	memset(host + MIB, 0, 3 * 32768);
	for (int i = 0; i < 3; i++) {
		char *to = i == 1 ? (char *)64 : mem + i * 32768;
		struct pst_rect r = flat(to, host + i * 32768, 32768);

		r.refused = &refused[i];
		assert_int_equal(ops->copy_in(cp, &r), 0);
	}
	finish();
	assert_int_equal(refused[0], 0);
	assert_int_equal(refused[1], -EINVAL);
	assert_int_equal(refused[2], 0);
	assert_int_equal(out(host + MIB, mem, 32768), 0);
	assert_int_equal(out(host + MIB + 2 * 32768, mem + 2 * 32768, 32768), 0);
	finish();
	assert_memory_equal(host + MIB, host, 32768);
	assert_memory_equal(host + MIB + 2 * 32768, host, 32768);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(copies_may_be_put_off),
		CASE(many_copies_put_off),
		CASE(a_refusal_is_its_own),
	};

	check_choose();
	return cmocka_run_group_tests_name("cuda_batch", tests, driver_open, NULL);
}
