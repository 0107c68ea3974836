/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests streams, events, semaphores and host functions of the stand-in CUDA driver: the order
 * of operations, what blocks an operation, and which calls wait. All cases, except
 * those with standin_only(), also pass on the real driver (with PENSTOCK_STANDIN=0).
 */
#include "../standin/hold.h"

#include <stdatomic.h>
#include <sys/mman.h>

/* ---- order ---- */

static void semaphores_are_written_and_awaited(void **state)
{
	const enum pst_cu_result bad = PST_CU_INVALID_VALUE;
	static char pageable[64];
	int can_flush = 0;
	union pst_cu_mem_op ops[2] = {
		{.word = {PST_CU_OP_WRITE_64, semaphore_addr(9), .value = 77}},
		{.word = {PST_CU_OP_WAIT_64, semaphore_addr(8), .value = 5}},
	};

	(void)state;
	need_memops();
	semaphore_set(8, 5);
	assert_int_equal(cu->cuStreamWaitValue64(stream, semaphore_addr(8), 3, PST_CU_WAIT_GEQ), 0);
	assert_int_equal(cu->cuStreamWaitValue64(stream, semaphore_addr(8), 4, PST_CU_WAIT_AND), 0);
	assert_int_equal(cu->cuStreamWaitValue64(stream, semaphore_addr(8), 5, PST_CU_WAIT_EQ), 0);
	assert_int_equal(cu->cuStreamWaitValue32(stream, semaphore_addr(8), 5, PST_CU_WAIT_EQ), 0);
	assert_int_equal(cu->cuStreamWriteValue64(stream, semaphore_addr(9), 1ULL << 40, 0), 0);
	assert_int_equal(cu->cuStreamWriteValue32(stream, semaphore_addr(10), 7, 0), 0);
	assert_int_equal(cu->cuStreamWriteValue64(stream, big, 7, 0), 0);
	assert_int_equal(cu->cuStreamWaitValue64(stream, big, 7, PST_CU_WAIT_EQ), 0);
	stream_sync(stream);
	assert_int_equal(semaphore_get(9), 1ULL << 40);
	assert_int_equal((uint32_t)semaphore_get(10), 7);
	assert_int_equal(cu->cuStreamWriteValue64(stream, semaphore_addr(8) + 4, 1, 0), bad);
	assert_int_equal(cu->cuStreamWriteValue32(stream, semaphore_addr(8) + 2, 1, 0), bad);
	assert_int_equal(cu->cuStreamWriteValue64(stream, semaphore_addr(8), 1, 99), bad);
	assert_int_equal(cu->cuStreamWaitValue64(stream, semaphore_addr(8), 1, 9), bad);
	assert_int_equal(cu->cuStreamWriteValue64(stream, 0, 1, 0), bad);
	assert_int_equal(
		cu->cuStreamWriteValue64(stream, ((uintptr_t)pageable + 7) & ~(uintptr_t)7, 1, 0),
		bad);
	assert_int_equal(cu->cuStreamBatchMemOp(stream, 2, ops, 0), 0);
	stream_sync(stream);
	assert_int_equal(semaphore_get(9), 77);
	assert_int_equal(cu->cuStreamBatchMemOp(stream, 2, ops, 1), bad);
	ops[0].word.addr += 4;
	assert_int_equal(cu->cuStreamBatchMemOp(stream, 2, ops, 0), bad);
	cu->cuDeviceGetAttribute(&can_flush, PST_CU_DEV_CAN_FLUSH_REMOTE, 0);
	if (!can_flush)
		assert_int_equal(cu->cuStreamWaitValue64(stream, semaphore_addr(8), 5,
							 PST_CU_WAIT_EQ | PST_CU_WAIT_FLUSH),
				 PST_CU_NOT_SUPPORTED);
}

static void semaphores_are_compared_in_four_ways(void **state)
{
	static const struct {
		unsigned int flags;
		uint64_t want, no, yes;
	} comparisons[] = {
		{PST_CU_WAIT_GEQ, 3, 2, 4},
		/* The comparison is signed: -1 is less than 3. */
		{PST_CU_WAIT_GEQ, 3, UINT64_MAX, 3},
		{PST_CU_WAIT_EQ, 3, 4, 3},
		{PST_CU_WAIT_AND, 6, 9, 2},
		{PST_CU_WAIT_NOR, 0xf0, ~0xf0ULL, 0x0f},
	};

	(void)state;
	need_memops();
	for (size_t i = 0; i < sizeof(comparisons) / sizeof(comparisons[0]); i++) {
		semaphore_set(8, comparisons[i].no);
		assert_int_equal(cu->cuStreamWaitValue64(stream, semaphore_addr(8),
							 comparisons[i].want, comparisons[i].flags),
				 PST_CU_OK);
		assert_false(idle_within(stream, HELD_MS / 4));
		semaphore_set(8, comparisons[i].yes);
		assert_true(idle_within(stream, SOON_MS));
	}
}

static void a_stream_keeps_order(void **state)
{
	(void)state;
	need_memops();
	stream_hold(stream);
	semaphore_set(9, 0);
	assert_int_equal(cu->cuStreamWriteValue64(stream, semaphore_addr(9), 1, 0), PST_CU_OK);
	assert_false(idle_within(stream, HELD_MS));
	assert_int_equal(semaphore_get(9), 0);
	stream_release();
	assert_true(idle_within(stream, SOON_MS));
	assert_int_equal(semaphore_get(9), 1);
}

static void copy_reads_source_when_it_runs(void **state)
{
	(void)state;
	need_memops();
	memset(pinned, 1, MIB);
	stream_hold(stream);
	assert_int_equal(cu->cuMemcpyHtoDAsync(big, pinned, MIB, stream), PST_CU_OK);
	overwrite(pinned, 2, MIB);
	stream_release();
	stream_sync(stream);
	assert_int_equal(byte_at(big), 2);
}

static void pageable_memory_is_staged(void **state)
{
	char *pageable = malloc(64 * KIB);

	(void)state;
	need_memops();
	memset(pageable, 1, 64 * KIB);
	stream_hold(stream);
	assert_int_equal(cu->cuMemcpyHtoDAsync(big, pageable, 64 * KIB, stream), PST_CU_OK);
	memset(pageable, 2, 64 * KIB);
	stream_release();
	stream_sync(stream);
	assert_int_equal(byte_at(big), 1);
	free(pageable);
}

static void event_marks_a_position(void **state)
{
	struct pst_cu_stream *after = stream_new(PST_CU_STREAM_NON_BLOCKING);
	struct pst_cu_event *e;

	(void)state;
	need_memops();
	assert_int_equal(cu->cuEventCreate(&e, PST_CU_EVENT_NO_TIMING), PST_CU_OK);
	assert_int_equal(cu->cuEventQuery(e), PST_CU_OK);
	assert_int_equal(cu->cuEventSynchronize(e), PST_CU_OK);
	assert_int_equal(cu->cuStreamWaitEvent(after, e, 0), PST_CU_OK);
	assert_int_equal(cu->cuEventRecord(e, stream), PST_CU_OK);
	assert_int_equal(cu->cuEventSynchronize(e), PST_CU_OK);
	stream_hold(stream);
	assert_int_equal(cu->cuEventQuery(e), PST_CU_OK);
	assert_int_equal(cu->cuEventRecord(e, stream), PST_CU_OK);
	assert_int_equal(cu->cuEventQuery(e), PST_CU_NOT_READY);
	assert_int_equal(cu->cuStreamWaitEvent(after, e, 0), PST_CU_OK);
	assert_int_equal(cu->cuStreamQuery(after), PST_CU_NOT_READY);
	/* When the event is destroyed, stream `after` still waits until `stream` has reached the
	 * point at which the event was recorded. */
	assert_int_equal(cu->cuEventDestroy(e), PST_CU_OK);
	assert_false(idle_within(after, HELD_MS));
	stream_release();
	assert_true(idle_within(after, SOON_MS));
	assert_int_equal(cu->cuStreamDestroy(after), PST_CU_OK);
	assert_int_equal(cu->cuEventDestroy(NULL), PST_CU_INVALID_HANDLE);
}

static void default_stream_waits_for_blocking_streams(void **state)
{
	struct pst_cu_stream *blocking = stream_new(PST_CU_STREAM_DEFAULT);
	struct pst_cu_event *e;
	long until;

	(void)state;
	need_memops();
	assert_int_equal(cu->cuEventCreate(&e, PST_CU_EVENT_NO_TIMING), PST_CU_OK);
	stream_hold(stream); /* a waiting non-blocking stream does not block the default stream */
	assert_int_equal(cu->cuMemcpyDtoHAsync(pinned, big, MIB, NULL), PST_CU_OK);
	assert_int_equal(cu->cuEventRecord(e, NULL), PST_CU_OK);
	assert_int_equal(cu->cuEventSynchronize(e), PST_CU_OK);
	stream_release();
	stream_sync(stream);
	stream_hold(blocking);
	assert_int_equal(cu->cuMemcpyDtoHAsync(pinned, big, MIB, NULL), PST_CU_OK);
	assert_int_equal(cu->cuEventRecord(e, NULL), PST_CU_OK);
	for (until = now_ms() + HELD_MS; now_ms() < until;)
		assert_int_equal(cu->cuEventQuery(e), PST_CU_NOT_READY);
	stream_release();
	assert_int_equal(cu->cuEventSynchronize(e), PST_CU_OK);
	assert_int_equal(cu->cuStreamDestroy(blocking), PST_CU_OK);
	assert_int_equal(cu->cuStreamDestroy(NULL), PST_CU_INVALID_HANDLE);
	assert_int_equal(cu->cuEventDestroy(e), PST_CU_OK);
}

static void destroyed_stream_finishes_its_work(void **state)
{
	struct pst_cu_stream *s = stream_new(PST_CU_STREAM_NON_BLOCKING);
	long until = now_ms() + SOON_MS;

	(void)state;
	need_memops();
	semaphore_set(9, 0);
	stream_hold(s);
	assert_int_equal(cu->cuStreamWriteValue64(s, semaphore_addr(9), 1, 0), PST_CU_OK);
	assert_int_equal(cu->cuStreamDestroy(s), PST_CU_OK);
	assert_int_equal(semaphore_get(9), 0);
	stream_release();
	while (!semaphore_get(9) && now_ms() < until)
		usleep(100);
	assert_int_equal(semaphore_get(9), 1);
}

static void stream_properties(void **state)
{
	enum pst_cu_capture status = PST_CU_CAPTURE_BROKEN;
	struct pst_cu_stream *s = NULL;
	struct pst_cu_ctx *owner = NULL;
	int least = 1, greatest = 1;

	(void)state;
	assert_int_equal(cu->cuStreamGetCtx(stream, &owner), PST_CU_OK);
	assert_ptr_equal(owner, ctx);
	assert_int_equal(cu->cuStreamGetCtx(NULL, &owner), PST_CU_OK);
	assert_ptr_equal(owner, ctx);
	assert_int_equal(cu->cuStreamIsCapturing(stream, &status), PST_CU_OK);
	assert_int_equal(status, PST_CU_CAPTURE_NONE);
	assert_int_equal(cu->cuCtxGetStreamPriorityRange(&least, &greatest), PST_CU_OK);
	assert_int_equal(least, 0);
	assert_true(greatest <= 0);
	assert_int_equal(cu->cuStreamCreateWithPriority(&s, 7, 0), PST_CU_INVALID_VALUE);
}

/* ---- calls that wait ---- */

struct attempt {
	void (*fn)(void);
	atomic_bool done;
};

static pst_cu_ptr spare;
static void *spare_host;
static char *spare_pages;
static struct pst_cu_stream *spare_stream;

static void try_free(void)
{
	assert_int_equal(cu->cuMemFree(spare), PST_CU_OK);
}

static void try_free_host(void)
{
	assert_int_equal(cu->cuMemFreeHost(spare_host), PST_CU_OK);
}

static void try_unregister(void)
{
	assert_int_equal(cu->cuMemHostUnregister(spare_pages), PST_CU_OK);
}

static void try_ctx_sync(void)
{
	assert_int_equal(cu->cuCtxSynchronize(), PST_CU_OK);
}

static void try_alloc(void)
{
	spare = alloc_dev(MIB);
}

static void try_alloc_host(void)
{
	spare_host = alloc_host(MIB);
}

static void try_register(void)
{
	assert_int_equal(cu->cuMemHostRegister(spare_pages, MIB, 0), PST_CU_OK);
}

static void try_stream(void)
{
	spare_stream = stream_new(PST_CU_STREAM_NON_BLOCKING);
	assert_int_equal(cu->cuStreamDestroy(spare_stream), PST_CU_OK);
}

/* NVIDIA's driver keeps a pool of streams. When the pool is empty, it grows by about a dozen
 * streams, and waits until the context is idle. 40 streams make it grow several times. */
static void try_many_streams(void)
{
	struct pst_cu_stream *many[40];

	for (int i = 0; i < 40; i++)
		many[i] = stream_new(PST_CU_STREAM_NON_BLOCKING);
	for (int i = 0; i < 40; i++)
		assert_int_equal(cu->cuStreamDestroy(many[i]), PST_CU_OK);
}

/* Queues more operations than a hardware queue holds, which is about a thousand. */
static void try_many_copies(void)
{
	for (int i = 0; i < 3000; i++)
		assert_int_equal(cu->cuMemcpyDtoHAsync(pinned, big, 64, stream), PST_CU_OK);
}

static void try_some_copies(void)
{
	for (int i = 0; i < 900; i++)
		assert_int_equal(cu->cuMemcpyDtoHAsync(pinned, big, 64, stream), PST_CU_OK);
}

static void try_read_pageable(void)
{
	char byte;

	assert_int_equal(cu->cuMemcpyDtoHAsync(&byte, big, 1, stream), PST_CU_OK);
}

static void try_write_pageable(void)
{
	assert_int_equal(cu->cuMemcpyHtoDAsync(big, spare_pages, MIB, stream), PST_CU_OK);
}

static void try_write_much_pageable(void)
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

/* Returns whether fn() returns while `stream` waits for a semaphore. `expected` is the expected
 * result; it selects the time limit. */
static bool call_returns(void (*fn)(void), bool expected)
{
	struct attempt a = {.fn = fn};
	pthread_t thread;
	long until = now_ms() + (expected ? SOON_MS : HELD_MS);
	bool done;

	stream_hold(stream);
	assert_int_equal(pthread_create(&thread, NULL, attempt_main, &a), 0);
	while (!atomic_load(&a.done) && now_ms() < until)
		usleep(100);
	done = atomic_load(&a.done);
	stream_release();
	pthread_join(thread, NULL);
	stream_sync(stream);
	return done;
}

static void frees_wait_for_idle_context(void **state)
{
	(void)state;
	need_memops();
	spare_pages =
		mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(spare_pages, MAP_FAILED);
	assert_true(call_returns(try_alloc, true));
	assert_false(call_returns(try_free, false));
	assert_true(call_returns(try_alloc_host, true));
	assert_false(call_returns(try_free_host, false));
	assert_true(call_returns(try_register, true));
	assert_false(call_returns(try_unregister, false));
	assert_true(call_returns(try_stream, true));
	assert_false(call_returns(try_ctx_sync, false));
	munmap(spare_pages, 8 * MIB);
}

static void full_pool_and_full_queue_wait(void **state)
{
	(void)state;
	need_memops();
	assert_false(call_returns(try_many_streams, false));
	/* The first call of try_many_streams has made the stream pool grow, so the second does not
	 * wait. */
	assert_true(call_returns(try_many_streams, true));
	assert_true(call_returns(try_some_copies, true));
	assert_false(call_returns(try_many_copies, false));
}

static void pageable_copies_wait(void **state)
{
	(void)state;
	need_memops();
	spare_pages = calloc(1, 8 * MIB);
	assert_false(call_returns(try_read_pageable, false));
	assert_true(call_returns(try_write_pageable, true));
	assert_false(call_returns(try_write_much_pageable, false));
	free(spare_pages);
}

/* ---- host functions ---- */

static enum pst_cu_result host_results[5];

static void forbidden_calls(void *arg)
{
	struct pst_cu_ctx *c;
	unsigned int type;
	int version;

	host_results[0] = cu->cuMemAlloc(arg, 4096);
	host_results[1] = cu->cuPointerGetAttribute(&type, PST_CU_PTR_MEMORY_TYPE, big);
	host_results[2] = cu->cuCtxGetCurrent(&c);
	host_results[3] = cu->cuMemcpyHtoDAsync(big, pinned, 4096, stream);
	host_results[4] = cu->cuDriverGetVersion(&version);
}

static void host_function_may_not_call_the_driver(void **state)
{
	pst_cu_ptr dev;

	(void)state;
	assert_int_equal(cu->cuLaunchHostFunc(stream, forbidden_calls, &dev), PST_CU_OK);
	stream_sync(stream);
	for (int i = 0; i < 4; i++)
		assert_int_equal(host_results[i], PST_CU_NOT_PERMITTED);
	assert_int_equal(host_results[4], PST_CU_OK);
}

static atomic_int host_calls, host_begun;

static void sleeper(void *arg)
{
	(void)arg;
	atomic_fetch_add(&host_begun, 1);
	while (!semaphore_get(0))
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
	struct pst_cu_stream *other = stream_new(PST_CU_STREAM_NON_BLOCKING);

	(void)state;
	atomic_store(&host_calls, 0);
	semaphore_set(0, 0);
	assert_int_equal(cu->cuLaunchHostFunc(stream, sleeper, NULL), PST_CU_OK);
	while (!atomic_load(&host_begun))
		usleep(100);
	assert_int_equal(cu->cuLaunchHostFunc(other, counter, NULL), PST_CU_OK);
	assert_false(idle_within(other, HELD_MS));
	assert_int_equal(atomic_load(&host_calls), 0);
	stream_release();
	assert_true(idle_within(other, SOON_MS));
	stream_sync(stream);
	assert_int_equal(atomic_load(&host_calls), 2);
	assert_int_equal(cu->cuStreamDestroy(other), PST_CU_OK);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, check_setup, hold_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(semaphores_are_written_and_awaited),
		CASE(semaphores_are_compared_in_four_ways),
		CASE(a_stream_keeps_order),
		CASE(copy_reads_source_when_it_runs),
		CASE(pageable_memory_is_staged),
		CASE(event_marks_a_position),
		CASE(default_stream_waits_for_blocking_streams),
		CASE(destroyed_stream_finishes_its_work),
		CASE(stream_properties),
		CASE(frees_wait_for_idle_context),
		CASE(full_pool_and_full_queue_wait),
		CASE(pageable_copies_wait),
		CASE(host_function_may_not_call_the_driver),
		CASE(host_functions_run_one_at_a_time),
	};

	check_choose();
	return cmocka_run_group_tests_name("standin_streams", tests, hold_open, hold_close);
}
