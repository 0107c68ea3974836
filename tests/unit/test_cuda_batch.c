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

/* A batch is refused as a whole: then each goes by itself, and one refuses again. */
static void a_refused_batch(void **state)
{
	int refused[3] = {0};

	(void)state;
	standin_only();
	memset(host, 0x11, 3 * 32768);
	memset(host + MIB, 0, 3 * 32768);
	assert_int_equal(out(host + MIB, mem, 32768), 0); /* nothing is put off before */
	finish();
	for (int i = 0; i < 3; i++) {
		struct pst_rect r = flat(mem + i * 32768, host + i * 32768, 32768);

		r.refused = &refused[i];
		assert_int_equal(ops->copy_in(cp, &r), 0);
	}
	standin_fail("cuMemcpyBatchAsync_v2:1:1,cuMemcpyHtoDAsync_v2:2:1");
	finish();
	standin_fail(NULL);
	assert_int_equal(refused[0], 0);
	assert_int_equal(refused[1], -EINVAL);
	assert_int_equal(refused[2], 0);
	assert_int_equal(out(host + MIB, mem, 32768), 0);
	assert_int_equal(out(host + MIB + 2 * 32768, mem + 2 * 32768, 32768), 0);
	finish();
	assert_memory_equal(host + MIB, host, 32768);
	assert_memory_equal(host + MIB + 2 * 32768, host, 32768);
}

/* An address of no allocation is refused at once, and not put off with others, of which
 * none is lost: neither those for a batch nor those for pairs. */
static void a_bad_address_is_its_own(void **state)
{
	static const size_t lens[] = {32768, 4096};

	(void)state;
	for (unsigned k = 0; k < sizeof(lens) / sizeof(lens[0]); k++) {
		int refused[3] = {0};
		size_t len = lens[k];

		memset(host, 0x11 + (int)k, 3 * len);
		memset(host + MIB, 0, 3 * len);
		for (size_t i = 0; i < 3; i++) {
			char *to = i == 1 ? (char *)64 : mem + i * len;
			struct pst_rect r = flat(to, host + i * len, len);

			r.refused = &refused[i];
			assert_int_equal(ops->copy_in(cp, &r), i == 1 ? -EINVAL : 0);
		}
		finish();
		assert_int_equal(refused[0], 0);
		assert_int_equal(refused[2], 0);
		assert_int_equal(out(host + MIB, mem, 3 * len), 0);
		finish();
		assert_memory_equal(host + MIB, host, len);
		assert_memory_equal(host + MIB + 2 * len, host, len);
	}
}

/* ---- small ones, which go in pairs ---------------------------------------------- */

enum { BLOCKS = 200, ROOM = 8192 };

/* Blocks of `len` bytes in random order on both sides, `to[i]` where block i goes. */
static void small_blocks(char *const *to, size_t len)
{
	uint64_t random = test_seed(13);
	int refused[BLOCKS] = {0};
	unsigned order[BLOCKS];
	char back[ROOM];

	fill(host, HOST, &random);
	for (unsigned i = 0; i < BLOCKS; i++) {
		unsigned k = (unsigned)(test_random(&random) % (i + 1));

		order[i] = order[k];
		order[k] = i;
	}
	for (unsigned i = 0; i < BLOCKS; i++) {
		struct pst_rect r = flat(to[order[i]], host + (size_t)i * ROOM, len);

		r.refused = &refused[i];
		assert_int_equal(ops->copy_in(cp, &r), 0);
	}
	finish();
	for (unsigned i = 0; i < BLOCKS; i++) {
		assert_int_equal(refused[i], 0);
		assert_int_equal(out(back, to[order[i]], ROOM), 0);
		finish();
		assert_memory_equal(back, host + (size_t)i * ROOM, len);
		for (size_t k = len; k < ROOM; k++)
			if (back[k])
				fail_msg("block %u: byte %zu behind it is not as it was", i, k);
	}
}

static void wipe(char *at, size_t len)
{
	enter();
	assert_int_equal(cu->cuMemsetD8Async((uintptr_t)at, 0, len, NULL), PST_CU_OK);
	assert_int_equal(cu->cuStreamSynchronize(NULL), PST_CU_OK);
	leave();
}

static void small_ones_go_in_pairs(void **state)
{
	static const size_t lens[] = {4096, 2, 4095, 513};
	char *to[BLOCKS];

	(void)state;
	for (unsigned i = 0; i < BLOCKS; i++)
		to[i] = mem + (size_t)i * ROOM;
	for (unsigned k = 0; k < sizeof(lens) / sizeof(lens[0]); k++) {
		unsigned long before = is_standin() ? standin_calls("cuMemcpy2DAsync_v2") : 0;

		wipe(mem, HOST);
		small_blocks(to, lens[k]);
		if (is_standin() && lens[k] % 2 == 0)
			assert_in_range(standin_calls("cuMemcpy2DAsync_v2") - before, BLOCKS / 2,
					BLOCKS * 7 / 10);
	}
}

/* The driver takes no pair of two allocations: pairs keep to one, and all arrive. */
static void pairs_of_two_allocations(void **state)
{
	char *other = device_alloc(dev, HOST), *to[BLOCKS];

	(void)state;
	wipe(mem, HOST);
	wipe(other, HOST);
	for (unsigned i = 0; i < BLOCKS; i++)
		to[i] = (i % 2 ? mem : other) + (size_t)i * ROOM;
	small_blocks(to, 4096);
	ops->free(dev, other, &err);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)

/* A context that cannot be entered: what was put off is refused, and no ticket that is
 * given for other copies later speaks for it. */
static void put_off_and_dropped(void **state)
{
	static const size_t lens[] = {BIG, BIG, 5000};
	int refused[3] = {0};
	uint64_t ticket;

	(void)state;
	standin_only();
	for (unsigned i = 0; i < 3; i++) {
		struct pst_rect r = flat(mem + i * MIB, host + i * MIB, lens[i]);

		r.refused = &refused[i];
		assert_int_equal(ops->copy_in(cp, &r), 0);
	}
	standin_fail("cuCtxPushCurrent_v2:1:201");
	assert_in_range(-ops->record(cp, &ticket), 1, 4095);
	standin_fail(NULL);
	finish();
	for (unsigned i = 0; i < 3; i++)
		assert_int_not_equal(refused[i], 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(copies_may_be_put_off),  CASE(many_copies_put_off),
		CASE(a_refused_batch),	      CASE(a_bad_address_is_its_own),
		CASE(small_ones_go_in_pairs), CASE(pairs_of_two_allocations),
		CASE(put_off_and_dropped),
	};

	check_choose();
	return cmocka_run_group_tests_name("cuda_batch", tests, driver_open, NULL);
}
