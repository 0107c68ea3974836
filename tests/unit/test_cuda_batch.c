/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests deferred copies. A copier of device cuda collects copies, and later queues many of them
 * with one driver call. All bytes must arrive. If the driver refuses a copy, only that copy may
 * fail.
 */
#include "cuda_copier.h"

/* ---- deferred copies ---- */

/* Defers small and large copies in turn, to the device and from it. All bytes must arrive. */
static void deferred_copies_arrive(void **state)
{
	enum { COUNT = 40, EACH = 50000 };
	uint64_t random = test_seed(11);
	int refused[2 * COUNT] = {0};

	(void)state;
	random_fill(host, COUNT * EACH, &random);
	for (int way = 0; way < 2; way++) {
		char *back = host + 2 * MIB;

		for (int i = 0; i < COUNT; i++) {
			size_t len = (size_t)(1 + i * 1200), at = (size_t)i * EACH;
			struct pst_rect r = way ? flat_rect(back + at, mem + at, len)
						: flat_rect(mem + at, host + at, len);

			r.refused = &refused[way * COUNT + i];
			assert_int_equal(way ? ops->copy_out(cp, &r) : ops->copy_in(cp, &r), 0);
		}
		copies_wait();
		for (int i = 0; i < COUNT && way; i++)
			assert_memory_equal(back + i * EACH, host + i * EACH, 1 + i * 1200);
	}
	for (int i = 0; i < 2 * COUNT; i++)
		assert_int_equal(refused[i], 0);
}

/* Defers more copies than fit into one batch. All of them must arrive. */
static void more_copies_than_a_batch(void **state)
{
	enum { COUNT = 150, EACH = 25000 };
	uint64_t random = test_seed(12);
	int refused[COUNT] = {0};

	(void)state;
	random_fill(host, HOST, &random);
	for (int i = 0; i < COUNT; i++) {
		struct pst_rect r =
			flat_rect(mem + (size_t)i * EACH, host + (size_t)i * EACH, EACH);

		r.refused = &refused[i];
		assert_int_equal(ops->copy_in(cp, &r), 0);
	}
	copies_wait();
	for (int i = 0; i < COUNT; i++) {
		char back[EACH];

		assert_int_equal(refused[i], 0);
		assert_int_equal(queue_out(back, mem + (size_t)i * EACH, EACH), 0);
		copies_wait();
		assert_memory_equal(back, host + (size_t)i * EACH, EACH);
	}
}

/* The driver refuses a whole batch. The copier then queues each copy alone, and the driver refuses
 * one of them again. */
static void refused_batch_is_queued_one_by_one(void **state)
{
	int refused[3] = {0};

	(void)state;
	standin_only();
	memset(host, 0x11, 3 * 32768);
	memset(host + MIB, 0, 3 * 32768);
	/* The copier queues this copy at once, because `refused` of its pst_rect is NULL: the
	 * copier could not report a later refusal. */
	assert_int_equal(queue_out(host + MIB, mem, 32768), 0);
	copies_wait();
	for (int i = 0; i < 3; i++) {
		struct pst_rect r = flat_rect(mem + i * 32768, host + i * 32768, 32768);

		r.refused = &refused[i];
		assert_int_equal(ops->copy_in(cp, &r), 0);
	}
	standin_fail("cuMemcpyBatchAsync_v2:1:1,cuMemcpyHtoDAsync_v2:2:1");
	copies_wait();
	standin_fail(NULL);
	assert_int_equal(refused[0], 0);
	assert_int_equal(refused[1], -EINVAL);
	assert_int_equal(refused[2], 0);
	assert_int_equal(queue_out(host + MIB, mem, 32768), 0);
	assert_int_equal(queue_out(host + MIB + 2 * 32768, mem + 2 * 32768, 32768), 0);
	copies_wait();
	assert_memory_equal(host + MIB, host, 32768);
	assert_memory_equal(host + MIB + 2 * 32768, host, 32768);
}

/* A copy to an address outside all allocations fails at once and is not deferred. The copies
 * deferred before and after it arrive, whether the copier queues them in a batch or in pairs. */
static void bad_address_fails_alone(void **state)
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
			struct pst_rect r = flat_rect(to, host + i * len, len);

			r.refused = &refused[i];
			assert_int_equal(ops->copy_in(cp, &r), i == 1 ? -EINVAL : 0);
		}
		copies_wait();
		assert_int_equal(refused[0], 0);
		assert_int_equal(refused[2], 0);
		assert_int_equal(queue_out(host + MIB, mem, 3 * len), 0);
		copies_wait();
		assert_memory_equal(host + MIB, host, len);
		assert_memory_equal(host + MIB + 2 * len, host, len);
	}
}

/* ---- small copies, which the copier queues in pairs, many with one call ---- */

enum { BLOCKS = 200, ROOM = 8192 };

/* Copies BLOCKS blocks of `len` bytes in random order; `to[i]` is the destination of block i. The
 * bytes after each block must not change. */
static void small_blocks(char *const *to, size_t len)
{
	uint64_t random = test_seed(13);
	int refused[BLOCKS] = {0};
	unsigned order[BLOCKS];
	char back[ROOM];

	random_fill(host, HOST, &random);
	for (unsigned i = 0; i < BLOCKS; i++) {
		unsigned k = (unsigned)(test_random(&random) % (i + 1));

		order[i] = order[k];
		order[k] = i;
	}
	for (unsigned i = 0; i < BLOCKS; i++) {
		struct pst_rect r = flat_rect(to[order[i]], host + (size_t)i * ROOM, len);

		r.refused = &refused[i];
		assert_int_equal(ops->copy_in(cp, &r), 0);
	}
	copies_wait();
	for (unsigned i = 0; i < BLOCKS; i++) {
		assert_int_equal(refused[i], 0);
		assert_int_equal(queue_out(back, to[order[i]], ROOM), 0);
		copies_wait();
		assert_memory_equal(back, host + (size_t)i * ROOM, len);
		for (size_t k = len; k < ROOM; k++)
			if (back[k])
				fail_msg("block %u: byte %zu after it has changed", i, k);
	}
}

static void device_zero(char *at, size_t len)
{
	ctx_enter();
	assert_int_equal(cu->cuMemsetD8Async((uintptr_t)at, 0, len, NULL), PST_CU_OK);
	assert_int_equal(cu->cuStreamSynchronize(NULL), PST_CU_OK);
	ctx_leave();
}

/* Copies blocks of `len` bytes. Returns the number of driver calls that queued them in batches, and
 * stores in *alone the number of other calls. Both are 0 without the stand-in. */
static unsigned long small_calls(size_t len, unsigned long *alone)
{
	bool counts = is_standin();
	unsigned long batches = counts ? standin_calls("cuMemcpy3DBatchAsync_v2") : 0;
	unsigned long pairs = counts ? standin_calls("cuMemcpy2DAsync_v2") : 0;
	char *to[BLOCKS];

	for (unsigned i = 0; i < BLOCKS; i++)
		to[i] = mem + (size_t)i * ROOM;
	device_zero(mem, HOST);
	small_blocks(to, len);
	*alone = counts ? standin_calls("cuMemcpy2DAsync_v2") - pairs : 0;
	return counts ? standin_calls("cuMemcpy3DBatchAsync_v2") - batches : 0;
}

static void small_copies_are_batched(void **state)
{
	static const size_t lens[] = {4096, 2, 4095, 513};
	unsigned long alone;

	(void)state;
	for (unsigned k = 0; k < sizeof(lens) / sizeof(lens[0]); k++) {
		assert_in_range(small_calls(lens[k], &alone), is_standin() ? 1 : 0, 4);
		/* A copy of odd length cannot be queued as two rows of half its length. So the
		 * copier queues such a copy in a call of its own, unless it can combine it with
		 * another copy. */
		if (lens[k] % 2)
			assert_in_range(alone, 0, 2 * BLOCKS / 4);
		else
			assert_int_equal(alone, 0);
	}
}

/* The driver does not support batches of pitched copies. The copier tries one batch, and from
 * then on queues each pair of copies with one call. */
static void small_copies_are_paired(void **state)
{
	static const size_t lens[] = {4096, 2};
	unsigned long alone;

	(void)state;
	standin_only();
	standin_fail("cuMemcpy3DBatchAsync_v2:1+:801");
	for (unsigned k = 0; k < sizeof(lens) / sizeof(lens[0]); k++) {
		assert_int_equal(small_calls(lens[k], &alone), k == 0 ? 1 : 0);
		assert_in_range(alone, BLOCKS / 2, BLOCKS * 7 / 10);
	}
}

/* The driver refuses a batch, then the first pair of it, and then one copy of this pair. Only this
 * copy fails, and the next batch is accepted. */
static void refused_small_copy_fails_alone(void **state)
{
	int refused[4] = {0};

	(void)state;
	standin_only();
	for (int round = 0; round < 2; round++) {
		unsigned long batches = standin_calls("cuMemcpy3DBatchAsync_v2");

		device_zero(mem, 4 * ROOM);
		memset(host, 0x21 + round, 4 * ROOM);
		for (int i = 0; i < 4; i++) {
			struct pst_rect r = flat_rect(mem + i * ROOM, host + i * ROOM, 4096);

			r.refused = &refused[i];
			assert_int_equal(ops->copy_in(cp, &r), 0);
		}
		if (!round)
			standin_fail("cuMemcpy3DBatchAsync_v2:1:1,cuMemcpy2DAsync_v2:1:1,"
				     "cuMemcpy2DAsync_v2:3:1");
		copies_wait();
		standin_fail(NULL);
		assert_int_equal(standin_calls("cuMemcpy3DBatchAsync_v2") - batches, 1);
		for (int i = 0; i < 4; i++) {
			bool fails = !round && i == 1;

			assert_int_equal(refused[i], fails ? -EINVAL : 0);
			refused[i] = 0;
			assert_int_equal(queue_out(host + MIB, mem + i * ROOM, 4096), 0);
			copies_wait();
			if (!fails)
				assert_memory_equal(host + MIB, host, 4096);
		}
	}
}

/* The driver refuses one call that copies two blocks in different allocations. So the copier
 * combines two blocks in one call only if they are in one allocation, and all blocks arrive. */
static void pairs_stay_in_one_allocation(void **state)
{
	char *other = device_alloc(dev, HOST), *to[BLOCKS];

	(void)state;
	device_zero(mem, HOST);
	device_zero(other, HOST);
	for (unsigned i = 0; i < BLOCKS; i++)
		to[i] = (i % 2 ? mem : other) + (size_t)i * ROOM;
	small_blocks(to, 4096);
	ops->free(dev, other, &err);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, copier_setup, copier_teardown)

/* If the copier cannot make its CUDA context current, it must mark all deferred copies as refused.
 * A ticket (the number that the copier returns for the copies so far) must not report them as
 * done. */
static void deferred_copies_fail_without_context(void **state)
{
	static const size_t lens[] = {BIG, BIG, 5000};
	int refused[3] = {0};
	uint64_t ticket;

	(void)state;
	standin_only();
	for (unsigned i = 0; i < 3; i++) {
		struct pst_rect r = flat_rect(mem + i * MIB, host + i * MIB, lens[i]);

		r.refused = &refused[i];
		assert_int_equal(ops->copy_in(cp, &r), 0);
	}
	standin_fail("cuCtxPushCurrent_v2:1:201");
	assert_in_range(-ops->record(cp, &ticket), 1, 4095);
	standin_fail(NULL);
	copies_wait();
	for (unsigned i = 0; i < 3; i++)
		assert_int_not_equal(refused[i], 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(deferred_copies_arrive),
		CASE(more_copies_than_a_batch),
		CASE(refused_batch_is_queued_one_by_one),
		CASE(bad_address_fails_alone),
		CASE(small_copies_are_batched),
		CASE(small_copies_are_paired),
		CASE(refused_small_copy_fails_alone),
		CASE(pairs_stay_in_one_allocation),
		CASE(deferred_copies_fail_without_context),
	};

	check_choose();
	return cmocka_run_group_tests_name("cuda_batch", tests, driver_open, NULL);
}
