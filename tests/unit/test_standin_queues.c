/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the hardware queues of the stand-in CUDA driver: which other streams a waiting stream
 * blocks, and how to avoid this blocking. tests/standin/README.md explains the effect. Every case
 * also passes on the real driver (with PENSTOCK_STANDIN=0). In this test both drivers have one
 * hardware queue of each kind.
 */
#include "../standin/hold.h"

/* Queues an operation on stream `s`. `part` is a part of the memory that no other stream uses. */
typedef void op_fn(struct pst_cu_stream *s, int part);

static void to_device(struct pst_cu_stream *s, int part)
{
	assert_int_equal(cu->cuMemcpyHtoDAsync(big + part * MIB, pinned + part * MIB, MIB, s), 0);
}

static void to_device_small(struct pst_cu_stream *s, int part)
{
	assert_int_equal(cu->cuMemcpyHtoDAsync(big + part * MIB, pinned + part * MIB, 64, s), 0);
}

static void to_device_two_rows(struct pst_cu_stream *s, int part)
{
	struct pst_cu_memcpy2d c = {.src_type = PST_CU_MEMTYPE_HOST,
				    .src_host = pinned + part * MIB,
				    .src_pitch = 32,
				    .dst_type = PST_CU_MEMTYPE_DEVICE,
				    .dst_dev = big + part * MIB,
				    .dst_pitch = 32,
				    .width_bytes = 32,
				    .height = 2};

	assert_int_equal(cu->cuMemcpy2DAsync(&c, s), PST_CU_OK);
}

/* Queues four copies of `len` bytes each with one batch call. */
static void batch_copy(struct pst_cu_stream *s, int part, size_t len, bool in)
{
	struct pst_cu_copy_attr attr = {.source_order = PST_CU_SOURCE_IN_STREAM};
	pst_cu_ptr dev[4], host[4];
	size_t lens[4], first = 0;

	for (size_t i = 0; i < 4; i++) {
		dev[i] = big + part * MIB + i * len;
		host[i] = (uintptr_t)(pinned + part * MIB + i * len);
		lens[i] = len;
	}
	assert_int_equal(cu->cuMemcpyBatchAsync(in ? dev : host, in ? host : dev, lens, 4, &attr,
						&first, 1, s),
			 PST_CU_OK);
}

/* Queues four copies of two rows each with one batch call. */
static void batch_two_rows(struct pst_cu_stream *s, int part)
{
	struct pst_cu_copy3d copies[4];

	for (size_t i = 0; i < 4; i++)
		copies[i] = (struct pst_cu_copy3d){
			.src = {PST_CU_OPERAND_POINTER, (uintptr_t)(pinned + part * MIB + i * 64),
				32},
			.dst = {PST_CU_OPERAND_POINTER, big + part * MIB + i * 64, 512},
			.width_bytes = 32,
			.rows = 2,
			.layers = 1,
			.source_order = PST_CU_SOURCE_IN_STREAM,
		};
	assert_int_equal(cu->cuMemcpy3DBatchAsync(4, copies, 0, s), PST_CU_OK);
}

static void batch_in_small(struct pst_cu_stream *s, int part)
{
	batch_copy(s, part, 64, true);
}

static void batch_in(struct pst_cu_stream *s, int part)
{
	batch_copy(s, part, MIB / 4, true);
}

static void batch_out_small(struct pst_cu_stream *s, int part)
{
	batch_copy(s, part, 64, false);
}

static void batch_out(struct pst_cu_stream *s, int part)
{
	batch_copy(s, part, MIB / 4, false);
}

static void to_host(struct pst_cu_stream *s, int part)
{
	assert_int_equal(cu->cuMemcpyDtoHAsync(pinned + part * MIB, big + part * MIB, 64, s), 0);
}

static void inside_device(struct pst_cu_stream *s, int part)
{
	assert_int_equal(cu->cuMemcpyDtoDAsync(big + part * MIB, big + part * MIB + 64, 64, s), 0);
}

static void memset_byte(struct pst_cu_stream *s, int part)
{
	assert_int_equal(cu->cuMemsetD8Async(big + part * MIB, 0, 1, s), PST_CU_OK);
}

static void no_op(struct pst_cu_stream *s, int part)
{
	(void)s;
	(void)part;
}

/* Returns whether operation `op` on one stream completes while a second stream waits for a
 * semaphore. The second stream gets operation `earlier` and then the wait. If `over` is set, the
 * test queues the wait only when `earlier` has completed. `expected` is the result that the caller
 * expects; it selects the time limit. */
static bool op_completes_beside_wait(op_fn *earlier, op_fn *op, bool over, bool expected)
{
	struct pst_cu_stream *waiter = stream_new(PST_CU_STREAM_NON_BLOCKING);
	struct pst_cu_stream *worker = stream_new(PST_CU_STREAM_NON_BLOCKING);
	bool completed;

	earlier(waiter, 0);
	if (over)
		stream_sync(waiter);
	stream_hold_queue(waiter);
	op(worker, 1);
	completed = idle_within(worker, expected ? SOON_MS : HELD_MS);
	stream_release();
	assert_true(idle_within(worker, SOON_MS));
	stream_sync(waiter);
	assert_int_equal(cu->cuStreamDestroy(waiter), PST_CU_OK);
	assert_int_equal(cu->cuStreamDestroy(worker), PST_CU_OK);
	return completed;
}

/* Checks the table in tests/standin/README.md, which says which operations a waiting stream
 * blocks. */
static void wait_blocks_its_hardware_queue(void **state)
{
	(void)state;
	need_memops();
	for (int over = 0; over < 2; over++) {
		assert_false(op_completes_beside_wait(no_op, to_device_small, over, false));
		assert_false(op_completes_beside_wait(no_op, inside_device, over, false));
		assert_false(op_completes_beside_wait(no_op, memset_byte, over, false));
		assert_true(op_completes_beside_wait(no_op, to_device, over, true));
		assert_true(op_completes_beside_wait(no_op, to_device_two_rows, over, true));
		assert_true(op_completes_beside_wait(no_op, to_host, over, true));
		assert_false(op_completes_beside_wait(to_device, to_device, over, false));
		assert_false(op_completes_beside_wait(to_device, to_device_two_rows, over, false));
		assert_true(op_completes_beside_wait(to_device, to_device_small, over, true));
		assert_true(op_completes_beside_wait(to_device, to_host, over, true));
		assert_false(op_completes_beside_wait(to_host, to_host, over, false));
		assert_true(op_completes_beside_wait(to_host, to_device, over, true));
		assert_true(op_completes_beside_wait(to_host, memset_byte, over, true));
	}
}

/* Each copy of a batch uses the hardware queue that it would use alone. */
static void batch_uses_the_queues_of_its_copies(void **state)
{
	(void)state;
	need_memops();
	if (!cu->cuMemcpyBatchAsync)
		test_skip("this driver has no batched copies (before 13.0)");
	for (int over = 0; over < 2; over++) {
		assert_false(op_completes_beside_wait(no_op, batch_in_small, over, false));
		assert_true(op_completes_beside_wait(no_op, batch_in, over, true));
		assert_true(op_completes_beside_wait(no_op, batch_out_small, over, true));
		assert_true(op_completes_beside_wait(no_op, batch_out, over, true));
		assert_true(op_completes_beside_wait(to_host, batch_in_small, over, true));
		assert_true(op_completes_beside_wait(to_host, batch_in, over, true));
		assert_true(op_completes_beside_wait(to_device, batch_out_small, over, true));
		assert_true(op_completes_beside_wait(to_device, batch_out, over, true));
		assert_true(op_completes_beside_wait(to_device, batch_in_small, over, true));
		assert_false(op_completes_beside_wait(to_device, batch_in, over, false));
		assert_false(op_completes_beside_wait(to_host, batch_out_small, over, false));
		assert_false(op_completes_beside_wait(to_host, batch_out, over, false));
		assert_true(op_completes_beside_wait(batch_in, to_host, over, true));
		assert_false(op_completes_beside_wait(batch_in, to_device, over, false));
	}
}

static void batch_of_two_rows_uses_the_copy_engine(void **state)
{
	(void)state;
	need_memops();
	if (!cu->cuMemcpy3DBatchAsync)
		test_skip("this driver has no batches of pitched copies (before 13.0)");
	for (int over = 0; over < 2; over++) {
		assert_true(op_completes_beside_wait(no_op, batch_two_rows, over, true));
		assert_true(op_completes_beside_wait(to_host, batch_two_rows, over, true));
		assert_false(op_completes_beside_wait(to_device, batch_two_rows, over, false));
		assert_false(op_completes_beside_wait(batch_two_rows, to_device, over, false));
		assert_true(op_completes_beside_wait(batch_two_rows, to_host, over, true));
	}
}

static void memset_before_wait_frees_the_copy_queues(void **state)
{
	struct pst_cu_stream *waiter[64], *worker;

	(void)state;
	need_memops();
	for (int i = 0; i < 64; i++)
		waiter[i] = stream_new(PST_CU_STREAM_NON_BLOCKING);
	worker = stream_new(PST_CU_STREAM_NON_BLOCKING);
	for (int i = 0; i < 64; i++)
		i % 2 ? to_device(waiter[i], 0) : to_host(waiter[i], 1);
	assert_int_equal(cu->cuCtxSynchronize(), PST_CU_OK);
	for (int i = 0; i < 64; i++)
		stream_hold(waiter[i]);
	to_device(worker, 2);
	to_device_two_rows(worker, 3);
	to_host(worker, 4);
	assert_true(idle_within(worker, SOON_MS));
	assert_int_equal(cu->cuStreamQuery(waiter[63]), PST_CU_NOT_READY);
	stream_release();
	for (int i = 0; i < 64; i++) {
		assert_true(idle_within(waiter[i], SOON_MS));
		assert_int_equal(cu->cuStreamDestroy(waiter[i]), PST_CU_OK);
	}
	assert_int_equal(cu->cuStreamDestroy(worker), PST_CU_OK);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, check_setup, hold_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(wait_blocks_its_hardware_queue),
		CASE(batch_uses_the_queues_of_its_copies),
		CASE(batch_of_two_rows_uses_the_copy_engine),
		CASE(memset_before_wait_frees_the_copy_queues),
	};

	check_choose();
	return cmocka_run_group_tests_name("standin_queues", tests, hold_open, hold_close);
}
