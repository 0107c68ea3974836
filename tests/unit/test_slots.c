/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots of every length that a device may have: none is given twice, in whole or in
 * part, whatever is asked for and given back in whatever order. The memory is made up
 * and never touched. What a lane's usual slots do is in test_ring.c.
 */
#include "test.h"

#include <stdbool.h>

#include "core/lane/ring.h"

#define MIB (1ull << 20)
#define BASE ((char *)(uintptr_t)(1ull << 40))
#define TAKEN_MAX 600

static struct pst_slots slots;
static struct pst_slot *taken[TAKEN_MAX];
static unsigned count;

static void open_slots(size_t slot_bytes, struct pst_slot_counts all, struct pst_slot_counts first)
{
	struct pst_err err;

	memset(&slots, 0, sizeof(slots));
	assert_int_equal(pst_slots_open(&slots, BASE, slot_bytes, all, first, &err), 0);
	count = 0;
}

/* One of at least `len` bytes, inside the lane's memory and beside all others. */
static bool take(uint64_t len)
{
	struct pst_slot *slot = pst_slot_get(&slots, len);

	if (!slot)
		return false;
	assert_true(slot->len >= len);
	assert_true(slot->mem >= BASE && slot->mem + slot->len <= BASE + slots.first_len);
	for (unsigned i = 0; i < count; i++)
		assert_true(slot->mem >= taken[i]->mem + taken[i]->len ||
			    slot->mem + slot->len <= taken[i]->mem);
	assert_true(count < TAKEN_MAX);
	taken[count++] = slot;
	return true;
}

static void give(unsigned i)
{
	pst_slot_put(&slots, taken[i]);
	taken[i] = taken[--count];
}

/* A slot may be of 1 GiB: so many parts that their number needs more than a byte. */
static void all_parts_of_a_long_slot(void **state)
{
	const struct pst_slot_counts all = {1, 4};

	(void)state;
	open_slots(256 * MIB, all, all);
	for (unsigned i = 0; i < 256; i++)
		assert_true(take(MIB));
	assert_false(take(MIB));
	assert_false(take(2 * MIB)); /* in use, every bit of it */
	while (count)
		give(0);
	assert_true(take(2 * MIB)); /* whole again */
	assert_false(take(MIB));
	pst_slots_close(&slots);
}

/* What was in use stays so, and none of the rest lies in both pieces. */
static void hand_out_the_rest(void)
{
	const char *first_end = BASE + slots.first_len;

	pst_slots_rest(&slots);
	assert_int_equal(slots.first_len, slots.len);
	for (unsigned i = 0; i < slots.count; i++)
		assert_true(slots.all[i].mem >= first_end ||
			    slots.all[i].mem + slots.all[i].len <= first_end);
}

static void any_order(void **state)
{
	static const size_t lengths[] = {64u << 10, 512u << 10, MIB, 2 * MIB, 16 * MIB};
	uint64_t random = test_seed(20261121);

	(void)state;
	for (unsigned turn = 0; turn < 50; turn++) {
		size_t slot = lengths[test_random(&random) % 5];
		unsigned big = 1 + (unsigned)(test_random(&random) % 5);
		unsigned small = (unsigned)(test_random(&random) % 20);
		struct pst_slot_counts first = {1 + (unsigned)(test_random(&random) % big),
						(unsigned)(test_random(&random) % (small + 1))};

		open_slots(slot, (struct pst_slot_counts){big, small}, first);
		for (unsigned step = 0; step < 2000; step++) {
			if (step == 1000)
				hand_out_the_rest();
			if (count && test_random(&random) % 2)
				give((unsigned)(test_random(&random) % count));
			else
				take(1 + test_random(&random) % slot);
		}
		while (count)
			give(0);
		for (unsigned i = 0; i < big; i++) /* nothing was lost */
			assert_true(take(slot));
		pst_slots_close(&slots);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_parts_of_a_long_slot),
		cmocka_unit_test(any_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
