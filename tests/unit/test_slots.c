/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the slots of a lane (pieces of a worker thread's pinned memory) with every slot length that
 * a device may have. No slot may be handed out twice, in whole or in part, whatever the order of
 * requests and returns. The test only compares invented addresses. test_ring.c tests slots of the
 * usual lengths.
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

static void slots_reset(size_t slot_bytes, struct pst_slot_counts all, struct pst_slot_counts first)
{
	struct pst_err err;

	memset(&slots, 0, sizeof(slots));
	assert_int_equal(pst_slots_open(&slots, BASE, slot_bytes, all, first, &err), 0);
	count = 0;
}

/* Requests a slot of at least `len` bytes. Checks that the slot is inside the lane's memory and
 * overlaps no other slot in use. Returns false if no slot is free. */
static bool slot_take(uint64_t len)
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

static void slot_return(unsigned i)
{
	pst_slot_put(&slots, taken[i]);
	taken[i] = taken[--count];
}

/* A slot of 1 GiB has 256 parts, one more than a byte can count. All parts must be handed out and
 * joined again. */
static void slot_of_256_parts(void **state)
{
	const struct pst_slot_counts all = {1, 4};

	(void)state;
	slots_reset(256 * MIB, all, all);
	for (unsigned i = 0; i < 256; i++)
		assert_true(slot_take(MIB));
	assert_false(slot_take(MIB));
	assert_false(slot_take(2 * MIB)); /* Every part of the slot is in use. */
	while (count)
		slot_return(0);
	assert_true(slot_take(2 * MIB)); /* The parts have merged into a whole slot again. */
	assert_false(slot_take(MIB));
	pst_slots_close(&slots);
}

/* Adds the slots that were missing when the lane's slots were opened. Slots in use must stay in
 * use, and each new slot must be inside one of the two pieces of the lane's memory. */
static void slots_add_rest(void)
{
	const char *first_end = BASE + slots.first_len;

	pst_slots_rest(&slots);
	assert_int_equal(slots.first_len, slots.len);
	for (unsigned i = 0; i < slots.count; i++)
		assert_true(slots.all[i].mem >= first_end ||
			    slots.all[i].mem + slots.all[i].len <= first_end);
}

static void random_order(void **state)
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

		slots_reset(slot, (struct pst_slot_counts){big, small}, first);
		for (unsigned step = 0; step < 2000; step++) {
			if (step == 1000)
				slots_add_rest();
			if (count && test_random(&random) % 2)
				slot_return((unsigned)(test_random(&random) % count));
			else
				slot_take(1 + test_random(&random) % slot);
		}
		while (count)
			slot_return(0);
		for (unsigned i = 0; i < big; i++) /* No slot was lost. */
			assert_true(slot_take(slot));
		pst_slots_close(&slots);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slot_of_256_parts),
		cmocka_unit_test(random_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
