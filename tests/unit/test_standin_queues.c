/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hardware queues of the stand-in CUDA driver: which waiting stream holds up
 * which other one, and what avoids it. tests/standin/README.md says why that
 * matters. Every case also holds for the real driver, and runs against it with
 * PENSTOCK_STANDIN=0. Both have one queue of each kind here.
 */
#include "../standin/hold.h"

/* One operation on its own part of the memory: streams run side by side. */
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

/* Several copies handed on by one call: `len` bytes each. */
static void batch(struct pst_cu_stream *s, int part, size_t len, bool in)
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

static void batch_in_small(struct pst_cu_stream *s, int part)
{
	batch(s, part, 64, true);
}

static void batch_in(struct pst_cu_stream *s, int part)
{
	batch(s, part, MIB / 4, true);
}

static void batch_out_small(struct pst_cu_stream *s, int part)
{
	batch(s, part, 64, false);
}

static void batch_out(struct pst_cu_stream *s, int part)
{
	batch(s, part, MIB / 4, false);
}

static void to_host(struct pst_cu_stream *s, int part)
{
	assert_int_equal(cu->cuMemcpyDtoHAsync(pinned + part * MIB, big + part * MIB, 64, s), 0);
}

static void within(struct pst_cu_stream *s, int part)
{
	assert_int_equal(cu->cuMemcpyDtoDAsync(big + part * MIB, big + part * MIB + 64, 64, s), 0);
}

static void fill(struct pst_cu_stream *s, int part)
{
	assert_int_equal(cu->cuMemsetD8Async(big + part * MIB, 0, 1, s), PST_CU_OK);
}

static void nothing(struct pst_cu_stream *s, int part)
{
	(void)s;
	(void)part;
}

/* Whether `op` on one stream gets through while another waits for a word,
 * having last done `before`, whether that is long over or not. What is
 * expected sets how long it may take to prove it.
 */
static bool passes(op_fn *before, op_fn *op, bool over, bool expected)
{
	struct pst_cu_stream *waits = make_stream(PST_CU_STREAM_NON_BLOCKING);
	struct pst_cu_stream *works = make_stream(PST_CU_STREAM_NON_BLOCKING);
	bool through;

	before(waits, 0);
	if (over)
		settle(waits);
	hold_queue(waits);
	op(works, 1);
	through = idle_within(works, expected ? SOON_MS : HELD_MS);
	let_go();
	assert_true(idle_within(works, SOON_MS));
	settle(waits);
	assert_int_equal(cu->cuStreamDestroy(waits), PST_CU_OK);
	assert_int_equal(cu->cuStreamDestroy(works), PST_CU_OK);
	return through;
}

/* For each direction; what it tells is in tests/standin/README.md. */
static void waits_hold_up_their_queue(void **state)
{
	(void)state;
	need_memops();
	for (int over = 0; over < 2; over++) {
		assert_false(passes(nothing, to_device_small, over, false));
		assert_false(passes(nothing, within, over, false));
		assert_false(passes(nothing, fill, over, false));
		assert_true(passes(nothing, to_device, over, true));
		assert_true(passes(nothing, to_device_two_rows, over, true));
		assert_true(passes(nothing, to_host, over, true));
		assert_false(passes(to_device, to_device, over, false));
		assert_false(passes(to_device, to_device_two_rows, over, false));
		assert_true(passes(to_device, to_device_small, over, true));
		assert_true(passes(to_device, to_host, over, true));
		assert_false(passes(to_host, to_host, over, false));
		assert_true(passes(to_host, to_device, over, true));
		assert_true(passes(to_host, fill, over, true));
	}
}

/* The copies of a batch take the queues that they would take alone. */
static void batches_take_the_same_queues(void **state)
{
	(void)state;
	need_memops();
	if (!cu->cuMemcpyBatchAsync)
		test_skip("this driver has no batched copies (before 13.0)");
	for (int over = 0; over < 2; over++) {
		assert_false(passes(nothing, batch_in_small, over, false));
		assert_true(passes(nothing, batch_in, over, true));
		assert_true(passes(nothing, batch_out_small, over, true));
		assert_true(passes(nothing, batch_out, over, true));
		assert_true(passes(to_host, batch_in_small, over, true));
		assert_true(passes(to_host, batch_in, over, true));
		assert_true(passes(to_device, batch_out_small, over, true));
		assert_true(passes(to_device, batch_out, over, true));
		assert_true(passes(to_device, batch_in_small, over, true));
		assert_false(passes(to_device, batch_in, over, false));
		assert_false(passes(to_host, batch_out_small, over, false));
		assert_false(passes(to_host, batch_out, over, false));
		assert_true(passes(batch_in, to_host, over, true));
		assert_false(passes(batch_in, to_device, over, false));
	}
}

static void a_fill_frees_the_copy_queues(void **state)
{
	struct pst_cu_stream *waits[64], *works;

	(void)state;
	need_memops();
	for (int i = 0; i < 64; i++)
		waits[i] = make_stream(PST_CU_STREAM_NON_BLOCKING);
	works = make_stream(PST_CU_STREAM_NON_BLOCKING);
	for (int i = 0; i < 64; i++)
		i % 2 ? to_device(waits[i], 0) : to_host(waits[i], 1);
	assert_int_equal(cu->cuCtxSynchronize(), PST_CU_OK);
	for (int i = 0; i < 64; i++)
		hold(waits[i]);
	to_device(works, 2);
	to_device_two_rows(works, 3);
	to_host(works, 4);
	assert_true(idle_within(works, SOON_MS));
	assert_int_equal(cu->cuStreamQuery(waits[63]), PST_CU_NOT_READY);
	let_go();
	for (int i = 0; i < 64; i++) {
		assert_true(idle_within(waits[i], SOON_MS));
		assert_int_equal(cu->cuStreamDestroy(waits[i]), PST_CU_OK);
	}
	assert_int_equal(cu->cuStreamDestroy(works), PST_CU_OK);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, check_setup, hold_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(waits_hold_up_their_queue),
		CASE(batches_take_the_same_queues),
		CASE(a_fill_frees_the_copy_queues),
	};

	check_choose();
	return cmocka_run_group_tests_name("standin_queues", tests, hold_open, hold_close);
}
