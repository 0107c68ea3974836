/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream order of device cuda by its table, with the driver's stream operations and
 * with host functions in their place; and what takes two devices: copies between them
 * and streams of the wrong one. Requests in stream order are tests/conf's.
 */
#include "cuda_device.h"

#include "device/host.h"

static struct penstock_device *dev;
static struct pst_cu_ctx *prim;
static uint64_t *words;

static int begin(void **state)
{
	(void)state;
	dev = device_open("cuda:0");
	assert_int_equal(ops->semaphores_alloc(dev, 512, &words, &err), 0);
	assert_int_equal(cu->cuDevicePrimaryCtxRetain(&prim, 0), PST_CU_OK);
	return 0;
}

static int end(void **state)
{
	if (is_standin())
		standin_fail(NULL);
	ops->semaphores_free(dev, words);
	cu->cuDevicePrimaryCtxRelease(0);
	device_close(dev);
	return case_end(state);
}

static struct pst_cu_stream *new_stream(struct pst_cu_ctx *of)
{
	struct pst_cu_stream *s = NULL;

	assert_int_equal(cu->cuCtxPushCurrent(of), PST_CU_OK);
	s = make_stream(PST_CU_STREAM_NON_BLOCKING);
	assert_int_equal(cu->cuCtxPopCurrent(&of), PST_CU_OK);
	return s;
}

static int idle(struct pst_cu_stream *s, struct pst_cu_ctx *of, long ms)
{
	bool is;

	cu->cuCtxPushCurrent(of);
	is = idle_within(s, ms);
	cu->cuCtxPopCurrent(&of);
	return is;
}

static void destroy_stream(struct pst_cu_stream *s, struct pst_cu_ctx *of)
{
	cu->cuCtxPushCurrent(of);
	cu->cuStreamDestroy(s);
	cu->cuCtxPopCurrent(&of);
}

static uint64_t load(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static bool becomes(const uint64_t *word, uint64_t value)
{
	long until = now_ms() + SOON_MS;

	while (load(word) != value && now_ms() < until)
		usleep(100);
	return load(word) == value;
}

/* In front: not before the stream is there. Behind: not before the word is large
 * enough; a larger one will do. */
static int one_stream(struct penstock_device *d, uint64_t *w, struct pst_cu_stream *s,
		      struct pst_cu_ctx *of)
{
	for (int i = 0; i < 512; i++)
		WANT(load(&w[i]), 0);
	WANT(ops->stream_wait(d, s, &w[0], 2, &err), 0); /* what holds the stream */
	WANT(ops->stream_write(d, s, &w[1], 7, &err), 0);
	WANT(ops->stream_wait(d, s, &w[2], 5, &err), 0);
	WANT(ops->stream_write(d, s, &w[3], 1ull << 40, &err), 0);
	WANT(idle(s, of, HELD_MS), 0);
	WANT(load(&w[1]), 0);
	__atomic_store_n(&w[0], 1, __ATOMIC_RELEASE);
	WANT(idle(s, of, HELD_MS), 0);
	WANT(load(&w[1]), 0);
	__atomic_store_n(&w[0], 2, __ATOMIC_RELEASE);
	WANT(becomes(&w[1], 7), 1);
	WANT(idle(s, of, HELD_MS), 0);
	WANT(load(&w[3]), 0);
	__atomic_store_n(&w[2], 1ull << 33, __ATOMIC_RELEASE);
	WANT(becomes(&w[3], 1ull << 40), 1);
	WANT(idle(s, of, SOON_MS), 1);
	memset(w, 0, 512 * sizeof(*w));
	return 0;
}

static int every_stream(void)
{
	enum pst_cu_result (*make)(struct pst_cu_ctx **, unsigned, int);
	enum pst_cu_result (*destroy)(struct pst_cu_ctx *);
	struct pst_cu_stream *s;
	struct pst_cu_ctx *own;

	*(void **)&make = symbol("cuCtxCreate_v2");
	*(void **)&destroy = symbol("cuCtxDestroy_v2");
	begin(NULL);
	s = new_stream(prim);
	WANT(one_stream(dev, words, s, prim), 0);
	WANT(current_ctx() == NULL, 1);
	destroy_stream(s, prim);
	WANT(one_stream(dev, words, PST_CU_STREAM_LEGACY, prim), 0);
	WANT(one_stream(dev, words, PST_CU_STREAM_PER_THREAD, prim), 0);
	/* Of another context of this GPU, which is current; then with none current. */
	WANT(make(&own, 0, 0), PST_CU_OK);
	s = new_stream(own);
	WANT(one_stream(dev, words, s, own), 0);
	WANT(current_ctx() == own, 1);
	WANT(cu->cuCtxSetCurrent(NULL), PST_CU_OK);
	WANT(one_stream(dev, words, s, own), 0);
	destroy_stream(s, own);
	WANT(destroy(own), PST_CU_OK);
	WANT(end(NULL), 0);
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

static void captures_are_refused(void **state)
{
	int (*capture)(struct pst_cu_stream *, int);
	struct pst_cu_stream *s;
	unsigned long writes;

	(void)state;
	standin_only();
	s = new_stream(prim);
	*(void **)&capture = symbol("pst_standin_capture");
	assert_int_equal(capture(s, 1), 0);
	writes = standin_calls("cuStreamWriteValue64_v2");
	assert_int_equal(ops->stream_write(dev, s, &words[0], 1, &err), -EOPNOTSUPP);
	assert_non_null(strstr(err.text, "captured"));
	assert_int_equal(standin_calls("cuStreamWriteValue64_v2"), writes);
	assert_int_equal(capture(s, 0), 0);
	assert_int_equal(ops->stream_write(dev, s, &words[0], 1, &err), 0);
	assert_true(becomes(&words[0], 1));
	destroy_stream(s, prim);
}

static void failures_of_streams(void **state)
{
	struct pst_cu_stream *s;
	uint64_t *none;

	(void)state;
	standin_only();
	s = new_stream(prim);
	FAILS_WITH("cuMemHostRegister_v2:1:2", -ENOMEM, "CUDA_ERROR_OUT_OF_MEMORY",
		   ops->semaphores_alloc(dev, 8, &none, &err));
	FAILS_WITH("cuCtxPushCurrent_v2:1:709", -ESTALE, "CUDA_ERROR",
		   ops->semaphores_alloc(dev, 8, &none, &err));
	FAILS_WITH("cuStreamIsCapturing:1:400", -EBADF, "CUDA_ERROR_INVALID_HANDLE",
		   ops->stream_write(dev, s, &words[0], 1, &err));
	FAILS_WITH("cuCtxGetDevice:1:999", -EIO, "CUDA_ERROR",
		   ops->stream_write(dev, s, &words[0], 1, &err));
	FAILS_WITH("cuMemHostGetDevicePointer_v2:1:1", -EINVAL, "CUDA_ERROR",
		   ops->stream_write(dev, s, &words[0], 1, &err));
	FAILS_WITH("cuStreamWriteValue64_v2:1:999", -EIO, "CUDA_ERROR",
		   ops->stream_write(dev, s, &words[0], 1, &err));
	FAILS_WITH("cuCtxPushCurrent_v2:1:709", -ESTALE, "CUDA_ERROR",
		   ops->stream_write(dev, s, &words[0], 1, &err));
	FAILS_WITH("cuMemHostGetDevicePointer_v2:1:1", -EINVAL, "CUDA_ERROR",
		   ops->stream_wait(dev, s, &words[0], 1, &err));
	FAILS_WITH("cuMemsetD8Async:1:999", -EIO, "CUDA_ERROR",
		   ops->stream_wait(dev, s, &words[0], 1, &err));
	FAILS_WITH("cuStreamWaitValue64_v2:1:999", -EIO, "CUDA_ERROR",
		   ops->stream_wait(dev, s, &words[0], 1, &err));
	FAILS_WITH("cuCtxPushCurrent_v2:1:709", -ESTALE, "CUDA_ERROR",
		   ops->stream_wait(dev, s, &words[0], 1, &err));
	assert_int_equal(load(&words[0]), 0);
	assert_true(idle(s, prim, SOON_MS)); /* nothing was left in it */
	assert_true(ops->stream_write(dev, (void *)words, &words[0], 1, &err) < 0);
	destroy_stream(s, prim);
}

static int first_words(void)
{
	uint64_t *none;

	dev = device_open("cuda:0");
	FAILS_WITH("cuDevicePrimaryCtxRetain:1:2", -ENOMEM, "CUDA_ERROR",
		   ops->semaphores_alloc(dev, 8, &none, &err));
	standin_fail("cuMemAlloc_v2:1:2");
	WANT(ops->semaphores_alloc(dev, 8, &none, &err), -ENOMEM);
	standin_fail(NULL);
	WANT(standin_live().registrations, 0);
	device_close(dev);
	return 0;
}

static int no_launch(void)
{
	struct pst_cu_stream *s;

	begin(NULL);
	s = new_stream(prim);
	FAILS_WITH("cuLaunchHostFunc:1:2", -ENOMEM, "CUDA_ERROR",
		   ops->stream_write(dev, s, &words[0], 1, &err));
	FAILS_WITH("cuLaunchHostFunc:1:999", -EIO, "CUDA_ERROR",
		   ops->stream_wait(dev, s, &words[0], 1, &err));
	destroy_stream(s, prim);
	return end(NULL);
}

static void failures_of_the_first_words(void **state)
{
	static const char *const with[] = {"PENSTOCK_STANDIN_LEAKS=2", NULL};
	static const char *const poor[] = {"PENSTOCK_STANDIN_NO_MEMOPS=1",
					   "PENSTOCK_STANDIN_LEAKS=2", NULL};

	(void)state;
	standin_only();
	assert_int_equal(run_self("first_words", with), 0);
	assert_int_equal(run_self("no_launch", poor), 0);
}

/* ---- two devices -------------------------------------------------------------- */

#define SIDE (MIB + 100)

static int look_and_fill(struct penstock_device *d, void *at, char *host, size_t len, bool to_host)
{
	struct pst_rect r = {at, host, len, len, len, 1};
	struct pst_copier *c;
	uint64_t ticket;

	WANT(ops->copier_open(d, 9, &c, &err), 0);
	if (to_host)
		r = (struct pst_rect){host, at, len, len, len, 1};
	WANT(to_host ? ops->copy_out(c, &r) : ops->copy_in(c, &r), 0);
	WANT(ops->record(c, &ticket), 0);
	WANT(ops->wait(c, ticket), 0);
	ops->copier_close(c);
	return 0;
}

static int two_devices(void)
{
	struct penstock_device *a = device_open("cuda:0"), *b = device_open("cuda:1"), fake = {0};
	char *from = pages(2 * MIB, PROT_READ | PROT_WRITE), *back = pages(2 * MIB, 3);
	void *there = device_alloc(b, 2 * MIB), *here = device_alloc(a, 2 * MIB);
	struct pst_rect r = {there, here, SIDE, SIDE, SIDE, 1};
	struct pst_cu_stream *s;
	struct pst_cu_ctx *ctx1;
	struct pst_memory got;
	uint64_t *w;

	WANT(strcmp(a->facts.bdf, b->facts.bdf) != 0, 1);
	WANT(ops->classify(a, there, &got), 0);
	WANT(ops->classify(b, there, &got), 1);
	WANT(ops->classify(b, here, &got), 0);
	for (size_t i = 0; i < 2 * MIB; i++)
		from[i] = (char)(i * 37 >> 3);
	WANT(look_and_fill(a, here, from, 2 * MIB, false), 0);
	WANT(ops->copy_peer(b, a, &r, &err), 0);
	WANT(current_ctx() == NULL, 1);
	WANT(look_and_fill(b, there, back, SIDE, true), 0);
	WANT(memcmp(back, from, SIDE), 0);
	r = (struct pst_rect){there, here, 3000, 5000, 2000, 300};
	WANT(ops->copy_peer(b, a, &r, &err), 0);
	WANT(look_and_fill(b, there, back, 3000 * 299 + 2000, true), 0);
	for (int row = 0; row < 300; row++)
		WANT(memcmp(back + row * 3000, from + row * 5000, 2000), 0);
	fake.ops = &pst_device_host;
	WANT(ops->copy_peer(a, &fake, &r, &err), -EXDEV);
	/* A stream of one for words of the other. */
	WANT(ops->semaphores_alloc(a, 8, &w, &err), 0);
	WANT(cu->cuDevicePrimaryCtxRetain(&ctx1, 1), PST_CU_OK);
	s = new_stream(ctx1);
	WANT(ops->stream_write(a, s, &w[0], 1, &err), -EINVAL);
	WANT(strstr(err.text, "cuda:1") && strstr(err.text, "cuda:0"), 1);
	WANT(idle(s, ctx1, SOON_MS), 1);
	WANT(load(&w[0]), 0);
	destroy_stream(s, ctx1);
	cu->cuDevicePrimaryCtxRelease(1);
	ops->semaphores_free(a, w);
	WANT(ops->free(a, here, &err), 0);
	WANT(ops->free(b, there, &err), 0);
	device_close(a);
	device_close(b);
	return 0;
}

static void two_devices_together(void **state)
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

/* ---- main --------------------------------------------------------------------- */

static const struct alone alone[] = {
	{"every_stream", every_stream, false},
	{"first_words", first_words, false},
	{"no_launch", no_launch, false},
	{"two_devices", two_devices, false},
};

#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)
#define CASE_ALONE(f) cmocka_unit_test_setup_teardown(f, NULL, case_end)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE_ALONE(words_in_stream_order),
		CASE_ALONE(words_by_host_functions),
		CASE(captures_are_refused),
		CASE(failures_of_streams),
		CASE_ALONE(failures_of_the_first_words),
		CASE_ALONE(two_devices_together),
	};

	check_choose();
	if (argc > 1)
		return run_alone(alone, sizeof(alone) / sizeof(alone[0]), argv[1], driver_open);
	return cmocka_run_group_tests_name("cuda_stream", tests, driver_open, NULL);
}
