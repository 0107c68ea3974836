/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests that device cuda queues operations in the order of a CUDA stream. The test calls them
 * through the device's table of operations, once with the driver's stream memory operations and
 * once with host functions instead. Also tests copies between two devices and streams of the wrong
 * device. tests/conf tests whole requests in stream order.
 */
#include "cuda_device.h"

#include "device/host.h"

static struct penstock_device *dev;
static struct pst_cu_ctx *prim;
static uint64_t *words;

static int stream_setup(void **state)
{
	(void)state;
	dev = device_open("cuda:0");
	words = words_alloc(dev, 512);
	assert_non_null(words);
	assert_int_equal(cu->cuDevicePrimaryCtxRetain(&prim, 0), PST_CU_OK);
	return 0;
}

static int stream_teardown(void **state)
{
	if (is_standin())
		standin_fail(NULL);
	words_free(dev, words, 512);
	cu->cuDevicePrimaryCtxRelease(0);
	device_close(dev);
	return case_end(state);
}

static struct pst_cu_stream *ctx_stream_new(struct pst_cu_ctx *owner)
{
	struct pst_cu_stream *s = NULL;

	assert_int_equal(cu->cuCtxPushCurrent(owner), PST_CU_OK);
	s = stream_new(PST_CU_STREAM_NON_BLOCKING);
	assert_int_equal(cu->cuCtxPopCurrent(&owner), PST_CU_OK);
	return s;
}

static int stream_idle_within(struct pst_cu_stream *s, struct pst_cu_ctx *owner, long ms)
{
	bool is;

	cu->cuCtxPushCurrent(owner);
	is = idle_within(s, ms);
	cu->cuCtxPopCurrent(&owner);
	return is;
}

static void ctx_stream_destroy(struct pst_cu_stream *s, struct pst_cu_ctx *owner)
{
	cu->cuCtxPushCurrent(owner);
	cu->cuStreamDestroy(s);
	cu->cuCtxPopCurrent(&owner);
}

static uint64_t word_load(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static bool word_becomes(const uint64_t *word, uint64_t value)
{
	long until = now_ms() + SOON_MS;

	while (word_load(word) != value && now_ms() < until)
		usleep(100);
	return word_load(word) == value;
}

/* Checks the order of operations on stream `s`. A word that stream_write writes changes only when
 * the stream reaches this operation. A stream_wait blocks the stream until the word has at least
 * the value. */
static int check_stream_order(struct penstock_device *d, uint64_t *w, struct pst_cu_stream *s,
			      struct pst_cu_ctx *owner)
{
	for (int i = 0; i < 512; i++)
		EXPECT_EQ(word_load(&w[i]), 0);
	/* the stream is blocked until the word is at least 2 */
	EXPECT_EQ(stream_await(d, s, &w[0], 2), 0);
	EXPECT_EQ(stream_store(d, s, &w[1], 7), 0);
	EXPECT_EQ(stream_await(d, s, &w[2], 5), 0);
	EXPECT_EQ(stream_store(d, s, &w[3], 1ull << 40), 0);
	EXPECT_EQ(stream_idle_within(s, owner, HELD_MS), 0);
	EXPECT_EQ(word_load(&w[1]), 0);
	__atomic_store_n(&w[0], 1, __ATOMIC_RELEASE);
	EXPECT_EQ(stream_idle_within(s, owner, HELD_MS), 0);
	EXPECT_EQ(word_load(&w[1]), 0);
	__atomic_store_n(&w[0], 2, __ATOMIC_RELEASE);
	EXPECT_EQ(word_becomes(&w[1], 7), 1);
	EXPECT_EQ(stream_idle_within(s, owner, HELD_MS), 0);
	EXPECT_EQ(word_load(&w[3]), 0);
	__atomic_store_n(&w[2], 1ull << 33, __ATOMIC_RELEASE);
	EXPECT_EQ(word_becomes(&w[3], 1ull << 40), 1);
	EXPECT_EQ(stream_idle_within(s, owner, SOON_MS), 1);
	/* a store and a wait at once; the store does not wait, the next operation does */
	EXPECT_EQ(stream_await(d, s, &w[4], 1), 0);
	EXPECT_EQ(stream_store_await(d, s, &w[5], 3, &w[6], 1ull << 34), 0);
	EXPECT_EQ(stream_store(d, s, &w[7], 9), 0);
	EXPECT_EQ(stream_idle_within(s, owner, HELD_MS), 0);
	EXPECT_EQ(word_load(&w[5]), 0);
	__atomic_store_n(&w[4], 1, __ATOMIC_RELEASE);
	EXPECT_EQ(word_becomes(&w[5], 3), 1);
	__atomic_store_n(&w[6], (1ull << 34) - 1, __ATOMIC_RELEASE);
	EXPECT_EQ(stream_idle_within(s, owner, HELD_MS), 0);
	EXPECT_EQ(word_load(&w[7]), 0);
	__atomic_store_n(&w[6], 1ull << 34, __ATOMIC_RELEASE);
	EXPECT_EQ(word_becomes(&w[7], 9), 1);
	EXPECT_EQ(stream_idle_within(s, owner, SOON_MS), 1);
	memset(w, 0, 512 * sizeof(*w));
	return 0;
}

static int every_stream(void)
{
	enum pst_cu_result (*make)(struct pst_cu_ctx **, unsigned, int);
	enum pst_cu_result (*destroy)(struct pst_cu_ctx *);
	struct pst_cu_stream *s;
	struct pst_cu_ctx *other_ctx;

	*(void **)&make = lib_symbol("cuCtxCreate_v2");
	*(void **)&destroy = lib_symbol("cuCtxDestroy_v2");
	stream_setup(NULL);
	s = ctx_stream_new(prim);
	EXPECT_EQ(check_stream_order(dev, words, s, prim), 0);
	EXPECT_EQ(current_ctx() == NULL, 1);
	ctx_stream_destroy(s, prim);
	EXPECT_EQ(check_stream_order(dev, words, PST_CU_STREAM_LEGACY, prim), 0);
	EXPECT_EQ(check_stream_order(dev, words, PST_CU_STREAM_PER_THREAD, prim), 0);
	/* Uses a stream of another context of the same GPU, first while that context is current,
	 * and then while no context is current. */
	EXPECT_EQ(make(&other_ctx, 0, 0), PST_CU_OK);
	s = ctx_stream_new(other_ctx);
	EXPECT_EQ(check_stream_order(dev, words, s, other_ctx), 0);
	EXPECT_EQ(current_ctx() == other_ctx, 1);
	EXPECT_EQ(cu->cuCtxSetCurrent(NULL), PST_CU_OK);
	EXPECT_EQ(check_stream_order(dev, words, s, other_ctx), 0);
	ctx_stream_destroy(s, other_ctx);
	EXPECT_EQ(destroy(other_ctx), PST_CU_OK);
	EXPECT_EQ(stream_teardown(NULL), 0);
	return 0;
}

static void words_in_stream_order(void **state)
{
	static const char *const with[] = {"PENSTOCK_STANDIN_LEAKS=2", NULL};

	(void)state;
	assert_int_equal(run_self("every_stream", with), 0);
}

static void words_by_host_functions(void **state)
{
	static const char *const with[] = {"PENSTOCK_STANDIN_NO_MEMOPS=1",
					   "PENSTOCK_STANDIN_LEAKS=2", NULL};

	(void)state;
	standin_only();
	assert_int_equal(run_self("every_stream", with), 0);
}

/* The driver refuses an operation on a stream that is being captured. The message says that the
 * operation was to become a node of a graph. */
static void refused_node_is_named(void **state)
{
	int (*capture)(struct pst_cu_stream *, int);
	struct pst_cu_stream *s;
	unsigned long writes;

	(void)state;
	standin_only();
	s = ctx_stream_new(prim);
	*(void **)&capture = lib_symbol("pst_standin_capture");
	assert_int_equal(capture(s, 1), 0);
	writes = standin_calls("cuStreamWriteValue64_v2");
	assert_int_equal(stream_store(dev, s, &words[0], 1), -EOPNOTSUPP);
	assert_non_null(strstr(err.text, "storing a word as a node of a graph"));
	assert_int_equal(standin_calls("cuStreamWriteValue64_v2"), writes + 1);
	assert_int_equal(capture(s, 0), 0);
	assert_int_equal(stream_store(dev, s, &words[0], 1), 0);
	assert_true(word_becomes(&words[0], 1));
	ctx_stream_destroy(s, prim);
}

static void failed_stream_calls_leave_nothing(void **state)
{
	struct pst_cu_stream *s;

	(void)state;
	standin_only();
	s = ctx_stream_new(prim);
	/* The first operation creates objects that the device keeps until it is closed. Without
	 * this call, FAILS_WITH would report them as leaked. */
	assert_int_equal(stream_store(dev, s, &words[1], 1), 0);
	FAILS_WITH("cuStreamIsCapturing:1:400", -EBADF, "CUDA_ERROR_INVALID_HANDLE",
		   stream_store(dev, s, &words[0], 1));
	FAILS_WITH("cuCtxGetDevice:1:999", -EIO, "CUDA_ERROR", stream_store(dev, s, &words[0], 1));
	FAILS_WITH("cuMemHostGetDevicePointer_v2:1:1", -EINVAL, "CUDA_ERROR",
		   stream_store(dev, s, &words[0], 1));
	FAILS_WITH("cuStreamWriteValue64_v2:1:999", -EIO, "CUDA_ERROR",
		   stream_store(dev, s, &words[0], 1));
	FAILS_WITH("cuCtxPushCurrent_v2:1:709", -ESTALE, "CUDA_ERROR",
		   stream_store(dev, s, &words[0], 1));
	FAILS_WITH("cuMemHostGetDevicePointer_v2:1:1", -EINVAL, "CUDA_ERROR",
		   stream_await(dev, s, &words[0], 1));
	FAILS_WITH("cuStreamWaitValue64_v2:1:999", -EIO, "CUDA_ERROR",
		   stream_await(dev, s, &words[0], 1));
	FAILS_WITH("cuCtxPushCurrent_v2:1:709", -ESTALE, "CUDA_ERROR",
		   stream_await(dev, s, &words[0], 1));
	FAILS_WITH("cuMemHostGetDevicePointer_v2:2:1", -EINVAL, "CUDA_ERROR",
		   stream_store_await(dev, s, &words[0], 1, &words[2], 1));
	FAILS_WITH("cuStreamBatchMemOp_v2:1:999", -EIO, "CUDA_ERROR",
		   stream_store_await(dev, s, &words[0], 1, &words[2], 1));
	assert_int_equal(word_load(&words[0]), 0);
	/* the stream is idle, so no failed call has queued an operation */
	assert_true(stream_idle_within(s, prim, SOON_MS));
	assert_true(stream_store(dev, (void *)words, &words[0], 1) < 0);
	ctx_stream_destroy(s, prim);
}

/* A store and a wait need one call of the driver. If the driver does not support this call, they
 * need two. */
static void store_and_wait_in_one_call(void **state)
{
	struct pst_cu_stream *s;
	unsigned long writes, waits;

	(void)state;
	standin_only();
	s = ctx_stream_new(prim);
	writes = standin_calls("cuStreamWriteValue64_v2");
	waits = standin_calls("cuStreamWaitValue64_v2");
	assert_int_equal(stream_store_await(dev, s, &words[0], 1, &words[1], 0), 0);
	assert_true(word_becomes(&words[0], 1));
	assert_int_equal(standin_calls("cuStreamWriteValue64_v2"), writes);
	assert_int_equal(standin_calls("cuStreamWaitValue64_v2"), waits);
	standin_fail("cuStreamBatchMemOp_v2:1:801");
	assert_int_equal(stream_store_await(dev, s, &words[0], 2, &words[1], 0), 0);
	standin_fail(NULL);
	assert_true(word_becomes(&words[0], 2));
	assert_int_equal(standin_calls("cuStreamWriteValue64_v2"), writes + 1);
	assert_int_equal(standin_calls("cuStreamWaitValue64_v2"), waits + 1);
	ctx_stream_destroy(s, prim);
	words[0] = 0;
}

/* A stream has executed a copy and then has to wait. Its wait could hold up copies of other
 * streams in the same copy queue. So the library first queues a short memset, which moves the
 * stream to a compute queue. */
static void waits_after_copies_use_a_compute_queue(void **state)
{
	struct pst_rect rect = {.src = &words[8], .row_len = 64, .rows = 1};
	struct pst_stream_seq seq;
	struct pst_cu_stream *s;
	unsigned long before;

	(void)state;
	standin_only();
	s = ctx_stream_new(prim);
	rect.dst = device_alloc(dev, 4096);
	before = standin_calls("cuMemsetD8Async");
	assert_int_equal(ops->stream_begin(dev, s, &seq, &err), 0);
	assert_true(ops->stream_idle(&seq, 0));
	assert_int_equal(ops->stream_wait(&seq, &words[0], 1, &err), 0);
	assert_int_equal(standin_calls("cuMemsetD8Async"), before);
	assert_int_equal(ops->stream_copy(&seq, &rect, PENSTOCK_READ, &err), 0);
	FAILS_WITH("cuMemsetD8Async:1:999", -EIO, "CUDA_ERROR",
		   ops->stream_wait(&seq, &words[1], 1, &err));
	assert_int_equal(ops->stream_copy(&seq, &rect, PENSTOCK_READ, &err), 0);
	assert_int_equal(ops->stream_wait(&seq, &words[1], 1, &err), 0);
	assert_int_equal(standin_calls("cuMemsetD8Async"), before + 2);
	ops->stream_end(&seq);
	assert_int_equal(ops->stream_begin(dev, s, &seq, &err), 0);
	/* queries again while the stream is busy, and remembers the answer */
	before = standin_calls("cuStreamQuery");
	assert_false(ops->stream_idle(&seq, 50000000));
	assert_true(standin_calls("cuStreamQuery") >= before + 2);
	before = standin_calls("cuStreamQuery");
	assert_false(ops->stream_idle(&seq, 50000000));
	assert_int_equal(standin_calls("cuStreamQuery"), before);
	ops->stream_end(&seq);
	__atomic_store_n(&words[1], 1, __ATOMIC_RELEASE);
	__atomic_store_n(&words[0], 1, __ATOMIC_RELEASE);
	assert_true(stream_idle_within(s, prim, SOON_MS));
	ctx_stream_destroy(s, prim);
	ops->free(dev, rect.dst, &err);
}

/* The first operation on a stream retains the primary context, and allocates scratch memory and an
 * event. In this case, each of these steps fails once. */
static int first_operation(void)
{
	uint64_t word = 0;

	dev = device_open("cuda:0");
	FAILS_WITH("cuDevicePrimaryCtxRetain:1:2", -ENOMEM, "CUDA_ERROR",
		   stream_store(dev, PST_CU_STREAM_LEGACY, &word, 1));
	standin_fail("cuMemAlloc_v2:1:2");
	EXPECT_EQ(stream_store(dev, PST_CU_STREAM_LEGACY, &word, 1), -ENOMEM);
	standin_fail("cuEventCreate:1:2");
	EXPECT_EQ(stream_store(dev, PST_CU_STREAM_LEGACY, &word, 1), -ENOMEM);
	standin_fail(NULL);
	EXPECT_EQ(ops->alive(dev), 0);
	device_close(dev);
	EXPECT_EQ(standin_live().allocs, 0);
	return 0;
}

static int no_launch(void)
{
	struct pst_cu_stream *s;

	stream_setup(NULL);
	s = ctx_stream_new(prim);
	/* The first operation creates objects that the device keeps until it is closed. Without
	 * this call, FAILS_WITH would report them as leaked. */
	EXPECT_EQ(stream_store(dev, s, &words[1], 1), 0);
	FAILS_WITH("cuLaunchHostFunc:1:2", -ENOMEM, "CUDA_ERROR",
		   stream_store(dev, s, &words[0], 1));
	FAILS_WITH("cuLaunchHostFunc:1:999", -EIO, "CUDA_ERROR",
		   stream_await(dev, s, &words[0], 1));
	ctx_stream_destroy(s, prim);
	return stream_teardown(NULL);
}

static void failures_of_the_first_operation(void **state)
{
	static const char *const with[] = {"PENSTOCK_STANDIN_LEAKS=2", NULL};
	static const char *const poor[] = {"PENSTOCK_STANDIN_NO_MEMOPS=1",
					   "PENSTOCK_STANDIN_LEAKS=2", NULL};

	(void)state;
	standin_only();
	assert_int_equal(run_self("first_operation", with), 0);
	assert_int_equal(run_self("no_launch", poor), 0);
}

/* ---- two devices ---- */

#define SIDE (MIB + 100)

static int copy_and_wait(struct penstock_device *d, void *at, char *host, size_t len, bool to_host)
{
	struct pst_rect r = {at, host, len, len, len, 1};
	struct pst_copier *c;
	uint64_t ticket;

	EXPECT_EQ(ops->copier_open(d, 9, &c, &err), 0);
	if (to_host)
		r = (struct pst_rect){host, at, len, len, len, 1};
	EXPECT_EQ(to_host ? ops->copy_out(c, &r) : ops->copy_in(c, &r), 0);
	EXPECT_EQ(ops->record(c, &ticket), 0);
	EXPECT_EQ(ops->wait(c, ticket), 0);
	ops->copier_close(c);
	return 0;
}

static int two_devices(void)
{
	struct penstock_device *a = device_open("cuda:0"), *b = device_open("cuda:1"), fake = {0};
	char *from = pages_map(2 * MIB, PROT_READ | PROT_WRITE), *back = pages_map(2 * MIB, 3);
	void *there = device_alloc(b, 2 * MIB), *here = device_alloc(a, 2 * MIB);
	struct pst_rect r = {there, here, SIDE, SIDE, SIDE, 1};
	struct pst_cu_stream *s;
	struct pst_cu_ctx *ctx1;
	struct pst_memory got;
	uint64_t *w;

	EXPECT_EQ(strcmp(a->facts.bdf, b->facts.bdf) != 0, 1);
	EXPECT_EQ(ops->classify(a, there, &got), 0);
	EXPECT_EQ(ops->classify(b, there, &got), 1);
	EXPECT_EQ(ops->classify(b, here, &got), 0);
	for (size_t i = 0; i < 2 * MIB; i++)
		from[i] = (char)(i * 37 >> 3);
	EXPECT_EQ(copy_and_wait(a, here, from, 2 * MIB, false), 0);
	EXPECT_EQ(ops->copy_peer(b, a, &r, &err), 0);
	EXPECT_EQ(current_ctx() == NULL, 1);
	EXPECT_EQ(copy_and_wait(b, there, back, SIDE, true), 0);
	EXPECT_EQ(memcmp(back, from, SIDE), 0);
	r = (struct pst_rect){there, here, 3000, 5000, 2000, 300};
	EXPECT_EQ(ops->copy_peer(b, a, &r, &err), 0);
	EXPECT_EQ(copy_and_wait(b, there, back, 3000 * 299 + 2000, true), 0);
	for (int row = 0; row < 300; row++)
		EXPECT_EQ(memcmp(back + row * 3000, from + row * 5000, 2000), 0);
	fake.ops = &pst_device_host;
	EXPECT_EQ(ops->copy_peer(a, &fake, &r, &err), -EXDEV);
	/* A word that was allocated for one device must not be used on a stream of the other
	 * device. */
	w = words_alloc(a, 8);
	EXPECT_EQ(!w, 0);
	EXPECT_EQ(cu->cuDevicePrimaryCtxRetain(&ctx1, 1), PST_CU_OK);
	s = ctx_stream_new(ctx1);
	EXPECT_EQ(stream_store(a, s, &w[0], 1), -EINVAL);
	EXPECT_EQ(strstr(err.text, "cuda:1") && strstr(err.text, "cuda:0"), 1);
	EXPECT_EQ(stream_idle_within(s, ctx1, SOON_MS), 1);
	EXPECT_EQ(word_load(&w[0]), 0);
	ctx_stream_destroy(s, ctx1);
	cu->cuDevicePrimaryCtxRelease(1);
	words_free(a, w, 8);
	EXPECT_EQ(ops->free(a, here, &err), 0);
	EXPECT_EQ(ops->free(b, there, &err), 0);
	device_close(a);
	device_close(b);
	return 0;
}

static void peer_copies_and_wrong_streams(void **state)
{
	static const char *const with[] = {"PENSTOCK_STANDIN_DEVICES=2", "PENSTOCK_STANDIN_LEAKS=2",
					   NULL};
	static const char *const apart[] = {"PENSTOCK_STANDIN_DEVICES=2", "PENSTOCK_STANDIN_PEER=0",
					    "PENSTOCK_STANDIN_LEAKS=2", NULL};

	(void)state;
	if (!is_standin() && cu->device_count < 2)
		test_skip("one GPU only");
	assert_int_equal(run_self("two_devices", with), 0);
	if (is_standin())
		assert_int_equal(run_self("two_devices", apart), 0);
}

/* ---- main ---- */

static const struct child_case child_cases[] = {
	{"every_stream", every_stream, false},
	{"first_operation", first_operation, false},
	{"no_launch", no_launch, false},
	{"two_devices", two_devices, false},
};

#define CASE(f) cmocka_unit_test_setup_teardown(f, stream_setup, stream_teardown)
#define CASE_ALONE(f) cmocka_unit_test_setup_teardown(f, NULL, case_end)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE_ALONE(words_in_stream_order),
		CASE_ALONE(words_by_host_functions),
		CASE(refused_node_is_named),
		CASE(failed_stream_calls_leave_nothing),
		CASE(store_and_wait_in_one_call),
		CASE(waits_after_copies_use_a_compute_queue),
		CASE_ALONE(failures_of_the_first_operation),
		CASE_ALONE(peer_copies_and_wrong_streams),
	};

	check_choose();
	if (argc > 1)
		return child_case_run(child_cases, sizeof(child_cases) / sizeof(child_cases[0]),
				      argv[1], driver_open);
	return cmocka_run_group_tests_name("cuda_stream", tests, driver_open, NULL);
}
