/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams, events, words and host functions of the stand-in CUDA driver: what
 * comes after what, what holds up what, and which calls wait. All but the
 * cases that begin with standin_only() also hold for the real driver, and run
 * against it with PENSTOCK_STANDIN=0.
 */
#include "../standin/hold.h"

#include <stdatomic.h>
#include <sys/mman.h>

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

static void words_are_compared_in_four_ways(void **state)
{
	static const struct {
		unsigned int flags;
		uint64_t want, no, yes;
	} ways[] = {
		{PST_CU_WAIT_GEQ, 3, 2, 4},
		{PST_CU_WAIT_GEQ, 3, UINT64_MAX, 3}, /* signed: -1 is less */
		{PST_CU_WAIT_EQ, 3, 4, 3},
		{PST_CU_WAIT_AND, 6, 9, 2},
		{PST_CU_WAIT_NOR, 0xf0, ~0xf0ULL, 0x0f},
	};

	(void)state;
	need_memops();
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		word_set(8, ways[i].no);
		assert_int_equal(
			cu->cuStreamWaitValue64(stream, word_addr(8), ways[i].want, ways[i].flags),
			PST_CU_OK);
		assert_false(idle_within(stream, HELD_MS / 4));
		word_set(8, ways[i].yes);
		assert_true(idle_within(stream, SOON_MS));
	}
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

/* Room is made for a dozen or so at a time. */
static void do_many_streams(void)
{
	struct pst_cu_stream *many[40];

	for (int i = 0; i < 40; i++)
		many[i] = make_stream(PST_CU_STREAM_NON_BLOCKING);
	for (int i = 0; i < 40; i++)
		assert_int_equal(cu->cuStreamDestroy(many[i]), PST_CU_OK);
}

/* A queue of the hardware takes a thousand or so. */
static void do_many_copies(void)
{
	for (int i = 0; i < 3000; i++)
		assert_int_equal(cu->cuMemcpyDtoHAsync(pinned, big, 64, stream), PST_CU_OK);
}

static void do_some_copies(void)
{
	for (int i = 0; i < 900; i++)
		assert_int_equal(cu->cuMemcpyDtoHAsync(pinned, big, 64, stream), PST_CU_OK);
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

/* Whether the call returns while `stream` waits for a word. What is expected
 * sets how long it may take to prove it.
 */
static bool returns(void (*fn)(void), bool expected)
{
	struct attempt a = {.fn = fn};
	pthread_t thread;
	long until = now_ms() + (expected ? SOON_MS : HELD_MS);
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
	assert_true(returns(do_alloc, true));
	assert_false(returns(do_free, false));
	assert_true(returns(do_alloc_host, true));
	assert_false(returns(do_free_host, false));
	assert_true(returns(do_register, true));
	assert_false(returns(do_unregister, false));
	assert_true(returns(do_stream, true));
	assert_false(returns(do_ctx_sync, false));
	munmap(spare_pages, 8 * MIB);
}

static void what_is_full_waits(void **state)
{
	(void)state;
	need_memops();
	assert_false(returns(do_many_streams, false));
	assert_true(returns(do_many_streams, true)); /* the room is there */
	assert_true(returns(do_some_copies, true));
	assert_false(returns(do_many_copies, false));
}

static void pageable_copies_wait(void **state)
{
	(void)state;
	need_memops();
	spare_pages = calloc(1, 8 * MIB);
	assert_false(returns(do_read_pageable, false));
	assert_true(returns(do_write_pageable, true));
	assert_false(returns(do_write_much_pageable, false));
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

static atomic_int host_calls, host_begun;

static void sleeper(void *arg)
{
	(void)arg;
	atomic_fetch_add(&host_begun, 1);
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
	while (!atomic_load(&host_begun))
		usleep(100);
	assert_int_equal(cu->cuLaunchHostFunc(other, counter, NULL), PST_CU_OK);
	assert_false(idle_within(other, HELD_MS));
	assert_int_equal(atomic_load(&host_calls), 0);
	let_go();
	assert_true(idle_within(other, SOON_MS));
	settle(stream);
	assert_int_equal(atomic_load(&host_calls), 2);
	assert_int_equal(cu->cuStreamDestroy(other), PST_CU_OK);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, check_setup, hold_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(words_are_written_and_awaited),
		CASE(words_are_compared_in_four_ways),
		CASE(a_stream_keeps_order),
		CASE(the_source_is_read_late),
		CASE(pageable_memory_is_staged),
		CASE(events_mark_a_place),
		CASE(the_default_stream_is_legacy),
		CASE(destroyed_streams_finish),
		CASE(streams_say_what_they_are),
		CASE(giving_back_waits_for_everything),
		CASE(what_is_full_waits),
		CASE(pageable_copies_wait),
		CASE(host_functions_may_call_nothing),
		CASE(host_functions_run_one_at_a_time),
	};

	check_choose();
	return cmocka_run_group_tests_name("standin_streams", tests, hold_open, hold_close);
}
