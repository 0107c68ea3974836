/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests penstock_copy between a GPU of the stand-in driver and host memory. The library queues
 * copies of pinned memory without waiting for each. Other cases use memory that is not pinned, or
 * only in part. The copies of one call must take effect in the order of the list.
 */
#include "api.h"

#define BYTES (1u << 20)
#define PIECES 1000u

static char *mem, *back;
static void *on_gpu;
static unsigned long (*calls)(const char *name);

static void fill(char *at, unsigned seed)
{
	for (unsigned i = 0; i < BYTES; i++)
		at[i] = (char)(i * 7 + seed + (i >> 9));
}

static int open_all(void **state)
{
	test_use_standin();
	if (setup(state) || penstock_alloc(gpu, 2 * BYTES, &on_gpu))
		return -1;
	mem = aligned_alloc(4096, BYTES);
	back = aligned_alloc(4096, BYTES);
	*(void **)&calls = test_standin_symbol("pst_standin_calls");
	return !mem || !back;
}

static int close_all(void **state)
{
	penstock_free(gpu, on_gpu);
	free(mem);
	free(back);
	return teardown(state);
}

static struct penstock_copy_args to_gpu(void *from, size_t off, size_t len)
{
	return (struct penstock_copy_args){.size = sizeof(struct penstock_copy_args),
					   .dst_dev = gpu,
					   .dst = (char *)on_gpu + off,
					   .src_dev = host,
					   .src = from,
					   .row_len = len};
}

static struct penstock_copy_args from_gpu(void *to, size_t off, size_t len)
{
	return (struct penstock_copy_args){.size = sizeof(struct penstock_copy_args),
					   .dst_dev = host,
					   .dst = to,
					   .src_dev = gpu,
					   .src = (char *)on_gpu + off,
					   .row_len = len};
}

/* Copies many pieces of odd lengths to the GPU and back, with one call for each direction. */
static void there_and_back(void)
{
	static struct penstock_copy_args list[PIECES];
	size_t len = BYTES / PIECES;

	fill(mem, 3);
	memset(back, 0, BYTES);
	for (unsigned i = 0; i < PIECES; i++)
		list[i] = to_gpu(mem + i * len, i * len, i == PIECES - 1 ? BYTES - i * len : len);
	assert_int_equal(penstock_copy(list, PIECES), 0);
	for (unsigned i = 0; i < PIECES; i++)
		list[i] =
			from_gpu(back + i * len, i * len, i == PIECES - 1 ? BYTES - i * len : len);
	assert_int_equal(penstock_copy(list, PIECES), 0);
	assert_memory_equal(back, mem, BYTES);
}

static void test_pinned(void **state)
{
	(void)state;
	there_and_back();
	assert_int_equal(penstock_register(gpu, mem, BYTES), 0);
	assert_int_equal(penstock_register(gpu, back, BYTES), 0);
	there_and_back();
	assert_int_equal(penstock_unregister(gpu, mem), 0);
	there_and_back();
	assert_int_equal(penstock_unregister(gpu, back), 0);
}

/* Each copy reads what the copy before it wrote, in both directions and within the GPU. */
static void test_order(void **state)
{
	struct penstock_copy_args list[5];

	(void)state;
	assert_int_equal(penstock_register(gpu, mem, BYTES), 0);
	assert_int_equal(penstock_register(gpu, back, BYTES), 0);
	for (unsigned round = 0; round < 50; round++) {
		fill(mem, round);
		memset(back, 0, BYTES);
		list[0] = to_gpu(mem, 0, BYTES);
		list[1] = from_gpu(back, 0, BYTES);
		list[2] = to_gpu(back, BYTES, BYTES);
		list[3] = list[2];
		list[3].src_dev = gpu;
		list[3].src = (char *)on_gpu + BYTES;
		list[3].dst = on_gpu;
		list[4] = from_gpu(mem, 0, BYTES);
		assert_int_equal(penstock_copy(list, 5), 0);
		assert_memory_equal(back, mem, BYTES);
		fill(back, round);
		assert_memory_equal(back, mem, BYTES);
	}
	assert_int_equal(penstock_unregister(gpu, mem), 0);
	assert_int_equal(penstock_unregister(gpu, back), 0);
}

/* Copies rows with gaps. Only the first half of the memory is pinned. */
static void test_rows(void **state)
{
	struct penstock_copy_args rows = to_gpu(mem, 0, 100);

	(void)state;
	assert_int_equal(penstock_register(gpu, mem, BYTES / 2), 0);
	for (unsigned reach = 1; reach <= 2; reach++) {
		fill(mem, reach);
		memset(back, 0, BYTES);
		rows.rows = reach * BYTES / 2 / 256;
		rows.src_pitch = 256;
		rows.dst_pitch = 100;
		assert_int_equal(penstock_copy(&rows, 1), 0);
		for (unsigned i = 0; i < rows.rows; i++) {
			struct penstock_copy_args one = from_gpu(back, i * 100, 100);

			assert_int_equal(penstock_copy(&one, 1), 0);
			assert_memory_equal(back, mem + i * 256, 100);
		}
	}
	assert_int_equal(penstock_unregister(gpu, mem), 0);
}

/* The second of three copies is invalid. When the call returns, the first copy is complete. */
static void test_failure(void **state)
{
	struct penstock_copy_args list[3];

	(void)state;
	assert_int_equal(penstock_register(gpu, mem, BYTES), 0);
	fill(mem, 9);
	list[0] = to_gpu(mem, 0, BYTES);
	list[1] = to_gpu(mem, 0, BYTES);
	list[1].src = NULL;
	list[2] = to_gpu(mem, BYTES, BYTES);
	assert_int_equal(penstock_copy(list, 3), -EINVAL);
	assert_non_null(strstr(penstock_errmsg(), "two addresses"));
	memset(mem, 0, BYTES);
	list[0] = from_gpu(mem, 0, BYTES);
	assert_int_equal(penstock_copy(list, 1), 0);
	fill(back, 9);
	assert_memory_equal(back, mem, BYTES);
	assert_int_equal(penstock_unregister(gpu, mem), 0);
}

/* Refuses rows that would end beyond the address space. */
static void test_overflow(void **state)
{
	struct penstock_copy_args rows = to_gpu(mem, 0, 100);

	(void)state;
	rows.rows = 3;
	rows.dst_pitch = 100;
	rows.src_pitch = UINT64_MAX / 2 + 1;
	assert_int_equal(penstock_copy(&rows, 1), -EINVAL);
	assert_non_null(strstr(penstock_errmsg(), "address space"));
}

/* For copies of pinned memory, the library waits once for many copies, not once for each. */
static void test_waits(void **state)
{
	unsigned long before;

	(void)state;
	if (!calls)
		skip();
	assert_int_equal(penstock_register(gpu, mem, BYTES), 0);
	assert_int_equal(penstock_register(gpu, back, BYTES), 0);
	before = calls("cuStreamSynchronize") + calls("cuEventSynchronize");
	there_and_back();
	before = calls("cuStreamSynchronize") + calls("cuEventSynchronize") - before;
	if (before > 2 * (PIECES / 256 + 1))
		fail_msg("%lu waits for %u copies", before, 2 * PIECES);
	assert_int_equal(penstock_unregister(gpu, mem), 0);
	assert_int_equal(penstock_unregister(gpu, back), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pinned), cmocka_unit_test(test_order),
		cmocka_unit_test(test_rows),   cmocka_unit_test(test_failure),
		cmocka_unit_test(test_waits),  cmocka_unit_test(test_overflow),
	};

	return cmocka_run_group_tests(tests, open_all, close_all);
}
