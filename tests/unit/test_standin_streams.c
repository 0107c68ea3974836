/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams, events, words and host functions of the stand-in CUDA driver: what
 * comes after what, what holds up what, and which calls wait. All but the
 * cases that begin with standin_only() also hold for the real driver, and run
 * against it with PENSTOCK_STANDIN=0. Both have one hardware queue of each
 * kind here.
 */
#include "../standin/check.h"

#include <stdatomic.h>
#include <sys/mman.h>

static volatile uint64_t *words; /* pinned; [0] is the one that streams wait for */
static pst_cu_ptr big;		 /* device memory to copy to and from */
static char *pinned;

static pst_cu_ptr word_addr(int i)
{
	return (uintptr_t)(words + i);
}

static void word_set(int i, uint64_t value)
{
	__atomic_store_n(words + i, value, __ATOMIC_RELEASE);
}

static uint64_t word_get(int i)
{
	return __atomic_load_n(words + i, __ATOMIC_ACQUIRE);
}

static bool has_memops(void)
{
	int can = 0;

	cu->cuDeviceGetAttribute(&can, PST_CU_DEV_MEMOPS_64, 0);
	return can && cu->cuStreamWaitValue64;
}

#define need_memops()                                                            \
	do {                                                                     \
		if (!has_memops())                                               \
			test_skip("the driver has no stream memory operations"); \
	} while (0)

/* From here the stream does nothing until let_go(), and neither does what
 * shares the hardware queue that it used last.
 */
static void hold_queue(struct pst_cu_stream *s)
{
	word_set(0, 0);
	assert_int_equal(cu->cuStreamWaitValue64(s, word_addr(0), 1, PST_CU_WAIT_EQ), PST_CU_OK);
}

/* The same in the compute queue: copies of other streams go on. */
static void hold(struct pst_cu_stream *s)
{
	assert_int_equal(cu->cuMemsetD8Async(big + 8 * MIB - 1, 0, 1, s), PST_CU_OK);
	hold_queue(s);
}

static void let_go(void)
{
	word_set(0, 1);
}

static int open_all(void **state)
{
	if (check_open(state))
		return -1;
	words = alloc_host(4096);
	pinned = alloc_host(8 * MIB);
	big = alloc_dev(8 * MIB);
	return 0;
}

static int close_all(void **state)
{
	cu->cuMemFreeHost((void *)(uintptr_t)words);
	cu->cuMemFreeHost(pinned);
	cu->cuMemFree(big);
	return check_close(state);
}

static int teardown(void **state)
{
	let_go();
	return check_teardown(state);
}

/* --- order --------------------------------------------------------------- */

static void words_are_written_and_awaited(void **state)
{
	const enum pst_cu_result bad = PST_CU_INVALID_VALUE;
	static char pageable[64];
	int can_flush = 0;

	(void)state;
	need_memops();
	word_set(8, 5);
	assert_int_equal(cu->cuStreamWaitValue64(stream, word_addr(8), 3, PST_CU_WAIT_GEQ), 0);
	assert_int_equal(cu->cuStreamWaitValue64(stream, word_addr(8), 4, PST_CU_WAIT_AND), 0);
	assert_int_equal(cu->cuStreamWaitValue64(stream, word_addr(8), 5, PST_CU_WAIT_EQ), 0);
	assert_int_equal(cu->cuStreamWaitValue32(stream, word_addr(8), 5, PST_CU_WAIT_EQ), 0);
	assert_int_equal(cu->cuStreamWriteValue64(stream, word_addr(9), 1ULL << 40, 0), 0);
	assert_int_equal(cu->cuStreamWriteValue32(stream, word_addr(10), 7, 0), 0);
	assert_int_equal(cu->cuStreamWriteValue64(stream, big, 7, 0), 0);
	assert_int_equal(cu->cuStreamWaitValue64(stream, big, 7, PST_CU_WAIT_EQ), 0);
	settle(stream);
	assert_int_equal(word_get(9), 1ULL << 40);
	assert_int_equal((uint32_t)word_get(10), 7);
	assert_int_equal(cu->cuStreamWriteValue64(stream, word_addr(8) + 4, 1, 0), bad);
	assert_int_equal(cu->cuStreamWriteValue32(stream, word_addr(8) + 2, 1, 0), bad);
	assert_int_equal(cu->cuStreamWriteValue64(stream, word_addr(8), 1, 99), bad);
	assert_int_equal(cu->cuStreamWaitValue64(stream, word_addr(8), 1, 9), bad);
	assert_int_equal(cu->cuStreamWriteValue64(stream, 0, 1, 0), bad);
	assert_int_equal(
		cu->cuStreamWriteValue64(stream, ((uintptr_t)pageable + 7) & ~(uintptr_t)7, 1, 0),
		bad);
	cu->cuDeviceGetAttribute(&can_flush, PST_CU_DEV_CAN_FLUSH_REMOTE, 0);
	if (!can_flush)
		assert_int_equal(cu->cuStreamWaitValue64(stream, word_addr(8), 5,
							 PST_CU_WAIT_EQ | PST_CU_WAIT_FLUSH),
				 PST_CU_NOT_SUPPORTED);
}

static void a_stream_keeps_order(void **state)
{
	(void)state;
	need_memops();
	hold(stream);
	word_set(9, 0);
	assert_int_equal(cu->cuStreamWriteValue64(stream, word_addr(9), 1, 0), PST_CU_OK);
	assert_false(idle_within(stream, HELD_MS));
	assert_int_equal(word_get(9), 0);
	let_go();
	assert_true(idle_within(stream, SOON_MS));
	assert_int_equal(word_get(9), 1);
}

static void the_source_is_read_late(void **state)
{
	(void)state;
	need_memops();
	memset(pinned, 1, MIB);
	hold(stream);
	assert_int_equal(cu->cuMemcpyHtoDAsync(big, pinned, MIB, stream), PST_CU_OK);
	overwrite(pinned, 2, MIB);
	let_go();
	settle(stream);
	assert_int_equal(byte_at(big), 2);
}

static void pageable_memory_is_staged(void **state)
{
	char *pageable = malloc(64 * KIB);

	(void)state;
	need_memops();
	memset(pageable, 1, 64 * KIB);
	hold(stream);
	assert_int_equal(cu->cuMemcpyHtoDAsync(big, pageable, 64 * KIB, stream), PST_CU_OK);
	memset(pageable, 2, 64 * KIB);
	let_go();
	settle(stream);
	assert_int_equal(byte_at(big), 1);
	free(pageable);
}

static void events_mark_a_place(void **state)
{
	struct pst_cu_stream *after = make_stream(PST_CU_STREAM_NON_BLOCKING);
	struct pst_cu_event *e;

	(void)state;
	need_memops();
	assert_int_equal(cu->cuEventCreate(&e, PST_CU_EVENT_NO_TIMING), PST_CU_OK);
	assert_int_equal(cu->cuEventQuery(e), PST_CU_OK);
	assert_int_equal(cu->cuEventSynchronize(e), PST_CU_OK);
	assert_int_equal(cu->cuStreamWaitEvent(after, e, 0), PST_CU_OK);
	assert_int_equal(cu->cuEventRecord(e, stream), PST_CU_OK);
	assert_int_equal(cu->cuEventSynchronize(e), PST_CU_OK);
	hold(stream);
	assert_int_equal(cu->cuEventQuery(e), PST_CU_OK);
	assert_int_equal(cu->cuEventRecord(e, stream), PST_CU_OK);
	assert_int_equal(cu->cuEventQuery(e), PST_CU_NOT_READY);
	assert_int_equal(cu->cuStreamWaitEvent(after, e, 0), PST_CU_OK);
	assert_int_equal(cu->cuStreamQuery(after), PST_CU_NOT_READY);
	/* Who waits goes on waiting for the place, not for the event. */
	assert_int_equal(cu->cuEventDestroy(e), PST_CU_OK);
	assert_false(idle_within(after, HELD_MS));
	let_go();
	assert_true(idle_within(after, SOON_MS));
	assert_int_equal(cu->cuStreamDestroy(after), PST_CU_OK);
	assert_int_equal(cu->cuEventDestroy(NULL), PST_CU_INVALID_HANDLE);
}

static void the_default_stream_is_legacy(void **state)
{
	struct pst_cu_stream *blocking = make_stream(PST_CU_STREAM_DEFAULT);
	struct pst_cu_event *e;
	long until;

	(void)state;
	need_memops();
	assert_int_equal(cu->cuEventCreate(&e, PST_CU_EVENT_NO_TIMING), PST_CU_OK);
	hold(stream); /* non-blocking: of no concern to the default stream */
	assert_int_equal(cu->cuMemcpyDtoHAsync(pinned, big, MIB, NULL), PST_CU_OK);
	assert_int_equal(cu->cuEventRecord(e, NULL), PST_CU_OK);
	assert_int_equal(cu->cuEventSynchronize(e), PST_CU_OK);
	let_go();
	settle(stream);
	hold(blocking);
	assert_int_equal(cu->cuMemcpyDtoHAsync(pinned, big, MIB, NULL), PST_CU_OK);
	assert_int_equal(cu->cuEventRecord(e, NULL), PST_CU_OK);
	for (until = now_ms() + HELD_MS; now_ms() < until;)
		assert_int_equal(cu->cuEventQuery(e), PST_CU_NOT_READY);
	let_go();
	assert_int_equal(cu->cuEventSynchronize(e), PST_CU_OK);
	assert_int_equal(cu->cuStreamDestroy(blocking), PST_CU_OK);
	assert_int_equal(cu->cuStreamDestroy(NULL), PST_CU_INVALID_HANDLE);
	assert_int_equal(cu->cuEventDestroy(e), PST_CU_OK);
}

static void destroyed_streams_finish(void **state)
{
	struct pst_cu_stream *s = make_stream(PST_CU_STREAM_NON_BLOCKING);
	long until = now_ms() + SOON_MS;

	(void)state;
	need_memops();
	word_set(9, 0);
	hold(s);
	assert_int_equal(cu->cuStreamWriteValue64(s, word_addr(9), 1, 0), PST_CU_OK);
	assert_int_equal(cu->cuStreamDestroy(s), PST_CU_OK);
	assert_int_equal(word_get(9), 0);
	let_go();
	while (!word_get(9) && now_ms() < until)
		usleep(100);
	assert_int_equal(word_get(9), 1);
}

static void streams_say_what_they_are(void **state)
{
	enum pst_cu_capture status = PST_CU_CAPTURE_BROKEN;
	struct pst_cu_stream *s = NULL;
	struct pst_cu_ctx *of = NULL;
	int least = 1, greatest = 1;

	(void)state;
	assert_int_equal(cu->cuStreamGetCtx(stream, &of), PST_CU_OK);
	assert_ptr_equal(of, ctx);
	assert_int_equal(cu->cuStreamGetCtx(NULL, &of), PST_CU_OK);
	assert_ptr_equal(of, ctx);
	assert_int_equal(cu->cuStreamIsCapturing(stream, &status), PST_CU_OK);
	assert_int_equal(status, PST_CU_CAPTURE_NONE);
	assert_int_equal(cu->cuCtxGetStreamPriorityRange(&least, &greatest), PST_CU_OK);
	assert_int_equal(least, 0);
	assert_true(greatest <= 0);
	assert_int_equal(cu->cuStreamCreateWithPriority(&s, 7, 0), PST_CU_INVALID_VALUE);
}

/* --- what waits ---------------------------------------------------------- */

struct attempt {
	void (*fn)(void);
	atomic_bool done;
};

static pst_cu_ptr spare;
static void *spare_host;
static char *spare_pages;
static struct pst_cu_stream *spare_stream;

static void do_free(void)
{
	assert_int_equal(cu->cuMemFree(spare), PST_CU_OK);
}

static void do_free_host(void)
{
	assert_int_equal(cu->cuMemFreeHost(spare_host), PST_CU_OK);
}

static void do_unregister(void)
{
	assert_int_equal(cu->cuMemHostUnregister(spare_pages), PST_CU_OK);
}

static void do_ctx_sync(void)
{
	assert_int_equal(cu->cuCtxSynchronize(), PST_CU_OK);
}

static void do_alloc(void)
{
	spare = alloc_dev(MIB);
}

static void do_alloc_host(void)
{
	spare_host = alloc_host(MIB);
}

static void do_register(void)
{
	assert_int_equal(cu->cuMemHostRegister(spare_pages, MIB, 0), PST_CU_OK);
}

static void do_stream(void)
{
	spare_stream = make_stream(PST_CU_STREAM_NON_BLOCKING);
	assert_int_equal(cu->cuStreamDestroy(spare_stream), PST_CU_OK);
}

static void do_read_pageable(void)
{
	char byte;

	assert_int_equal(cu->cuMemcpyDtoHAsync(&byte, big, 1, stream), PST_CU_OK);
}

static void do_write_pageable(void)
{
	assert_int_equal(cu->cuMemcpyHtoDAsync(big, spare_pages, MIB, stream), PST_CU_OK);
}

static void do_write_much_pageable(void)
{
	assert_int_equal(cu->cuMemcpyHtoDAsync(big, spare_pages, 8 * MIB, stream), PST_CU_OK);
}

static void *attempt_main(void *arg)
{
	struct attempt *a = arg;

	cu->cuCtxSetCurrent(ctx);
	a->fn();
	atomic_store(&a->done, true);
	return NULL;
}

/* Whether the call returns while `stream` waits for a word. */
static bool returns(void (*fn)(void))
{
	struct attempt a = {.fn = fn};
	pthread_t thread;
	long until = now_ms() + HELD_MS;
	bool done;

	hold(stream);
	assert_int_equal(pthread_create(&thread, NULL, attempt_main, &a), 0);
	while (!atomic_load(&a.done) && now_ms() < until)
		usleep(100);
	done = atomic_load(&a.done);
	let_go();
	pthread_join(thread, NULL);
	settle(stream);
	return done;
}

static void giving_back_waits_for_everything(void **state)
{
	(void)state;
	need_memops();
	spare_pages =
		mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(spare_pages, MAP_FAILED);
	assert_true(returns(do_alloc));
	assert_false(returns(do_free));
	assert_true(returns(do_alloc_host));
	assert_false(returns(do_free_host));
	assert_true(returns(do_register));
	assert_false(returns(do_unregister));
	assert_true(returns(do_stream));
	assert_false(returns(do_ctx_sync));
	munmap(spare_pages, 8 * MIB);
}

static void pageable_copies_wait(void **state)
{
	(void)state;
	need_memops();
	spare_pages = calloc(1, 8 * MIB);
	assert_false(returns(do_read_pageable));
	assert_true(returns(do_write_pageable));
	assert_false(returns(do_write_much_pageable));
	free(spare_pages);
}

/* --- host functions ------------------------------------------------------ */

static enum pst_cu_result in_host[5];

static void forbidden(void *arg)
{
	struct pst_cu_ctx *c;
	unsigned int type;
	int version;

	in_host[0] = cu->cuMemAlloc(arg, 4096);
	in_host[1] = cu->cuPointerGetAttribute(&type, PST_CU_PTR_MEMORY_TYPE, big);
	in_host[2] = cu->cuCtxGetCurrent(&c);
	in_host[3] = cu->cuMemcpyHtoDAsync(big, pinned, 4096, stream);
	in_host[4] = cu->cuDriverGetVersion(&version);
}

static void host_functions_may_call_nothing(void **state)
{
	pst_cu_ptr dev;

	(void)state;
	assert_int_equal(cu->cuLaunchHostFunc(stream, forbidden, &dev), PST_CU_OK);
	settle(stream);
	for (int i = 0; i < 4; i++)
		assert_int_equal(in_host[i], PST_CU_NOT_PERMITTED);
	assert_int_equal(in_host[4], PST_CU_OK);
}

static atomic_int host_calls;

static void sleeper(void *arg)
{
	(void)arg;
	while (!word_get(0))
		usleep(100);
	atomic_fetch_add(&host_calls, 1);
}

static void counter(void *arg)
{
	(void)arg;
	atomic_fetch_add(&host_calls, 1);
}

static void host_functions_run_one_at_a_time(void **state)
{
	struct pst_cu_stream *other = make_stream(PST_CU_STREAM_NON_BLOCKING);

	(void)state;
	atomic_store(&host_calls, 0);
	word_set(0, 0);
	assert_int_equal(cu->cuLaunchHostFunc(stream, sleeper, NULL), PST_CU_OK);
	usleep(10000);
	assert_int_equal(cu->cuLaunchHostFunc(other, counter, NULL), PST_CU_OK);
	assert_false(idle_within(other, HELD_MS));
	assert_int_equal(atomic_load(&host_calls), 0);
	let_go();
	assert_true(idle_within(other, SOON_MS));
	settle(stream);
	assert_int_equal(atomic_load(&host_calls), 2);
	assert_int_equal(cu->cuStreamDestroy(other), PST_CU_OK);
}

/* --- hardware queues ----------------------------------------------------- */

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
 * having last done `before`, whether that is long over or not.
 */
static bool passes(op_fn *before, op_fn *op, bool over)
{
	struct pst_cu_stream *waits = make_stream(PST_CU_STREAM_NON_BLOCKING);
	struct pst_cu_stream *works = make_stream(PST_CU_STREAM_NON_BLOCKING);
	bool through;

	before(waits, 0);
	if (over)
		settle(waits);
	hold_queue(waits);
	op(works, 1);
	through = idle_within(works, HELD_MS);
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
		assert_false(passes(nothing, to_device_small, over));
		assert_false(passes(nothing, within, over));
		assert_false(passes(nothing, fill, over));
		assert_true(passes(nothing, to_device, over));
		assert_true(passes(nothing, to_device_two_rows, over));
		assert_true(passes(nothing, to_host, over));
		assert_false(passes(to_device, to_device, over));
		assert_false(passes(to_device, to_device_two_rows, over));
		assert_true(passes(to_device, to_device_small, over));
		assert_true(passes(to_device, to_host, over));
		assert_false(passes(to_host, to_host, over));
		assert_true(passes(to_host, to_device, over));
		assert_true(passes(to_host, fill, over));
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

#define CASE(f) cmocka_unit_test_setup_teardown(f, check_setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(words_are_written_and_awaited),
		CASE(a_stream_keeps_order),
		CASE(the_source_is_read_late),
		CASE(pageable_memory_is_staged),
		CASE(events_mark_a_place),
		CASE(the_default_stream_is_legacy),
		CASE(destroyed_streams_finish),
		CASE(streams_say_what_they_are),
		CASE(giving_back_waits_for_everything),
		CASE(pageable_copies_wait),
		CASE(host_functions_may_call_nothing),
		CASE(host_functions_run_one_at_a_time),
		CASE(waits_hold_up_their_queue),
		CASE(a_fill_frees_the_copy_queues),
	};

	check_choose();
	return cmocka_run_group_tests_name("standin_streams", tests, open_all, close_all);
}
