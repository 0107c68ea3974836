/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the slots of a lane. A lane is a worker thread, its ring is pinned memory, and slots are
 * pieces of the ring. No slot may be handed out twice or get lost, whatever the order and length of
 * the requests for slots. Returned parts must merge into whole slots again. Many requests for parts
 * must not starve a request for a whole slot. Also tests the ring.
 */
#include "test.h"

#include <stdbool.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/lane/ring.h"

#define MIB (1u << 20)
#define BIG 4
#define SMALL 6
#define SLOT (4u * MIB)

static char *base;
static const struct pst_slot_counts all = {BIG, SMALL};
static struct pst_slots slots;

static int setup(void **state)
{
	struct pst_err err;

	(void)state;
	base = aligned_alloc(4096, pst_slots_bytes(SLOT, all));
	return pst_slots_open(&slots, base, SLOT, all, all, &err);
}

static int teardown(void **state)
{
	(void)state;
	pst_slots_close(&slots);
	free(base);
	return 0;
}

/* Returns how many slots of `len` bytes are available. Takes all of them, then returns them. */
static unsigned available(uint64_t len)
{
	struct pst_slot *got[256];
	unsigned n = 0;

	while (n < 256 && (got[n] = pst_slot_get(&slots, len)))
		n++;
	for (unsigned i = 0; i < n; i++)
		pst_slot_put(&slots, got[i]);
	return n;
}

static void slot_sizes(void **state)
{
	(void)state;
	assert_int_equal(available(SLOT), BIG);
	assert_int_equal(available(MIB), BIG * 4);
	assert_int_equal(available(MIB + 1), BIG);
	/* When all small slots are in use, the lane divides big slots into parts for short
	 * requests. */
	assert_int_equal(available(4096), SMALL + BIG * 4);
	assert_int_equal(available(SLOT), BIG);
	assert_null(pst_slot_get(&slots, SLOT + 1));
	assert_int_equal(available(SLOT), BIG);
}

/* Two slots that are in use at the same time never overlap. */
static void no_overlap_in_random_order(void **state)
{
	uint64_t random = test_seed(5);
	struct pst_slot *out[64] = {NULL};

	(void)state;
	for (unsigned turn = 0; turn < 20000; turn++) {
		unsigned i = test_random(&random) % 64;
		static const uint64_t lens[] = {100, 64 << 10, 65537, MIB, MIB + 1, SLOT};

		if (out[i]) {
			pst_slot_put(&slots, out[i]);
			out[i] = NULL;
			continue;
		}
		out[i] = pst_slot_get(&slots, lens[test_random(&random) % 6]);
		for (unsigned j = 0; out[i] && j < 64; j++)
			assert_true(j == i || !out[j] || out[j]->mem + out[j]->len <= out[i]->mem ||
				    out[i]->mem + out[i]->len <= out[j]->mem);
		if (out[i])
			assert_true(out[i]->mem >= base &&
				    out[i]->mem + out[i]->len <= base + slots.len);
	}
	for (unsigned i = 0; i < 64; i++)
		if (out[i])
			pst_slot_put(&slots, out[i]);
	assert_int_equal(available(SLOT), BIG);
	assert_int_equal(available(MIB), BIG * 4);
}

/* While a request for a whole big slot waits, no part of a big slot may be handed out until that
 * request got its slot. */
static void whole_slot_is_not_starved(void **state)
{
	struct pst_slot *parts[BIG * 4], *big;

	(void)state;
	for (unsigned i = 0; i < BIG * 4; i++)
		assert_non_null(parts[i] = pst_slot_get(&slots, MIB));
	assert_null(pst_slot_get(&slots, SLOT));
	for (unsigned i = 0; i < BIG * 4; i++) {
		bool whole = parts[i]->whole->parts_out == 1;

		pst_slot_put(&slots, parts[i]);
		if (whole)
			break;
		assert_null(pst_slot_get(&slots, MIB));
	}
	assert_non_null(big = pst_slot_get(&slots, SLOT));
	pst_slot_put(&slots, big);
	assert_non_null(pst_slot_get(&slots, MIB));
}

/* Opens the slots of a lane with only some of the memory, and adds the rest later. Before that,
 * only the first slots may be handed out, and after that all slots. */
static void slots_added_later(void **state)
{
	const struct pst_slot_counts first = {2, 3};
	struct pst_err err;

	(void)state;
	pst_slots_close(&slots);
	assert_int_equal(pst_slots_open(&slots, base, SLOT, all, first, &err), 0);
	assert_int_equal(slots.first_len, 3 * PST_SLOT_SMALL + 2 * SLOT);
	for (unsigned i = 0; i < 2; i++)
		assert_non_null(pst_slot_get(&slots, SLOT));
	assert_null(pst_slot_get(&slots, MIB));
	assert_int_equal(available(4096), 3);
	pst_slots_rest(&slots);
	assert_int_equal(available(SLOT), BIG - 2);
	assert_int_equal(available(MIB), 4 * (BIG - 2));
	assert_int_equal(available(4096), SMALL + 4 * (BIG - 2));
}

static struct {
	char *base;
	size_t len;
} registered[4];
static unsigned registered_count;

static int fake_register(struct penstock_device *dev, void *mem, size_t len, bool read_only,
			 struct pst_err *err)
{
	(void)dev;
	(void)read_only;
	(void)err;
	registered[registered_count].base = mem;
	registered[registered_count++].len = len;
	return 0;
}

static int fake_unregister(struct penstock_device *dev, void *mem, struct pst_err *err)
{
	unsigned i = 0;

	(void)dev;
	(void)err;
	while (i < registered_count && registered[i].base != mem)
		i++;
	assert_true(i < registered_count);
	registered[i] = registered[--registered_count];
	return 0;
}

/* Pins the ring (the memory that holds a lane's slots) in two pieces, which cover it without
 * overlap. Closing the ring unregisters both pieces. */
static void pinned_in_two_pieces(void **state)
{
	const struct pst_numa near = {.node = -1};
	const struct pst_device_ops ops = {.name = "notes",
					   .host_register = fake_register,
					   .host_unregister = fake_unregister};
	struct penstock_device dev = {.ops = &ops};
	const size_t first = SMALL * PST_SLOT_SMALL + SLOT;
	struct pst_ring ring;
	struct pst_err err;

	(void)state;
	assert_int_equal(pst_ring_map(&ring, &near, 4 * SLOT, &err), 0);
	pst_ring_pin(&ring, first, &dev);
	assert_int_equal(registered_count, 1);
	pst_ring_pin(&ring, ring.len, &dev);
	assert_int_equal(registered_count, 2);
	assert_ptr_equal(registered[0].base, ring.base);
	assert_int_equal(registered[0].len, first);
	assert_ptr_equal(registered[1].base, ring.base + first);
	assert_int_equal(registered[1].len, ring.len - first);
	pst_ring_close(&ring, &dev);
	assert_int_equal(registered_count, 0);
}

/* A forked child must not inherit the ring, the pinned memory of a lane. If parent and child shared
 * its pages, a write would replace a page (copy-on-write) while a DMA transfer uses the old one. */
static void forked_child_does_not_inherit_the_ring(void **state)
{
	const struct pst_numa near = {.node = -1};
	struct penstock_device dev = {.ops = &(const struct pst_device_ops){.name = "none"}};
	struct pst_ring ring;
	struct pst_err err;
	static const char mark[] = "the ring's own";
	char got[sizeof(mark)];
	int status = -1;
	pid_t pid;

	(void)state;
	assert_int_equal(pst_ring_map(&ring, &near, 2 * MIB, &err), 0);
	pst_ring_pin(&ring, ring.len, &dev);
	memcpy(ring.base, mark, sizeof(mark));
	fflush(stdout);
	pid = fork();
	if (!pid) {
		struct iovec to = {got, sizeof(got)}, from = {ring.base, sizeof(got)};

		/* The child may have mapped other memory at this address, so the test compares
		 * the content. */
		_exit(process_vm_readv(getpid(), &to, 1, &from, 1, 0) == sizeof(got) &&
		      !memcmp(got, mark, sizeof(got)));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	pst_ring_close(&ring, &dev);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(slot_sizes, setup, teardown),
		cmocka_unit_test_setup_teardown(no_overlap_in_random_order, setup, teardown),
		cmocka_unit_test_setup_teardown(whole_slot_is_not_starved, setup, teardown),
		cmocka_unit_test_setup_teardown(slots_added_later, setup, teardown),
		cmocka_unit_test(pinned_in_two_pieces),
		cmocka_unit_test(forked_child_does_not_inherit_the_ring),
	};

	return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}
