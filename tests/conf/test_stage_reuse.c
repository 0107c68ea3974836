/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests that long reads with the flag PENSTOCK_R_EARLY use the pinned memory of earlier reads of
 * their stream again, if the device uses much of this memory. A stream waits for a word in memory,
 * the gate, so that it cannot pass the reads behind the wait. A read that uses the memory of an
 * earlier read must not start before the stream has passed the earlier one, and must not change its
 * bytes, even if it ends before it starts. With PENSTOCK_STANDIN=0 the tests use the machine's own
 * driver.
 */
#include "gate.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

#include "core/lane/stage.h"

#define LEN (256u << 10) /* length of a read, long enough that it uses memory again */
#define GUARD 0x77
#define UNSET (-7)
#define READS 12u /* number of reads of one test */
/* The first reads find no memory of two earlier reads of their stream, so they get new memory. */
#define FIRST 2u
#define LONG_LEN (4u << 20)
#define STREAMS 4u
#define BURST 32u
#ifdef __SANITIZE_THREAD__
/* These tests are 20 times as slow with the thread sanitizer. */
#define REFUSALS 200u
#define BURSTS 4u
#else
/* Each round refuses several reads. If a refused read lost its stage, the device would run out of
 * stages. */
#define REFUSALS 2600u
#define BURSTS 12u
#endif
/* Reads that occupy 64 MiB, so that further early reads use memory again. */
#define BALLAST 8u

/* A read, its place in the file and in device memory, and the address for its result. */
struct one {
	struct penstock_seg seg;
	struct penstock_late late;
	int64_t result;
	uint64_t id;
	bool ended; /* the read was cancelled, has a deadline, or was refused */
};

static struct one ones[BURST];
static struct pst_cu_stream *streams[STREAMS];
static struct penstock_queue *ballast_q;
static uint64_t ballast_ids[BALLAST];
static char *sink; /* device memory for bytes that no test checks */
static char *pool; /* device memory of BURST reads of LONG_LEN bytes */
static unsigned char *back;
static uint64_t seed;

static int reuse_setup(void **state)
{
	pst_cu_ptr ptr[2];

	seed = test_seed(20261128);
	back = malloc(LONG_LEN);
	if (gate_setup(state) || !back || penstock_queue_open(NULL, &ballast_q) ||
	    api->cuMemAlloc(&ptr[0], FILE_LEN + 4096) ||
	    api->cuMemAlloc(&ptr[1], (size_t)BURST * LONG_LEN))
		return -1;
	sink = (char *)(uintptr_t)ptr[0];
	pool = (char *)(uintptr_t)ptr[1];
	for (unsigned i = 0; i < STREAMS; i++)
		if (api->cuStreamCreateWithPriority(&streams[i], PST_CU_STREAM_NON_BLOCKING, 0))
			return -1;
	return 0;
}

static int reuse_teardown(void **state)
{
	for (unsigned i = 0; i < STREAMS; i++)
		api->cuStreamDestroy(streams[i]);
	api->cuMemFree((uintptr_t)sink);
	api->cuMemFree((uintptr_t)pool);
	penstock_queue_close(ballast_q);
	free(back);
	return gate_teardown(state);
}

static unsigned random_to(unsigned limit)
{
	return (unsigned)(test_random(&seed) >> 33) % limit;
}

/* ---- much pinned memory in use ---- */

/* Submits reads to the stream `other`, which waits for a word of its own, so that they occupy their
 * pinned memory until ballast_drop. */
static void ballast_take(void)
{
	struct penstock_seg seg = {.buf = sink, .dev = gpu, .row_len = FILE_LEN};
	struct penstock_req req = request(&seg, other);

	assert_int_equal(api->cuStreamWaitValue64(other, (uintptr_t)(gate + 8), gate[8] + 1,
						  PST_CU_WAIT_GEQ),
			 PST_CU_OK);
	for (unsigned i = 0; i < BALLAST; i++)
		assert_int_equal(penstock_submit(ballast_q, &req, 1, &ballast_ids[i]), 1);
}

static void ballast_drop(void)
{
	__atomic_store_n(gate + 8, gate[8] + 1, __ATOMIC_RELEASE);
	assert_int_equal(api->cuStreamSynchronize(other), PST_CU_OK);
	assert_int_equal(penstock_wait(ballast_q, NULL, BALLAST, BALLAST, LIMIT), BALLAST);
}

/* Ends a test, also one that has failed. */
static int case_teardown(void **state)
{
	(void)state;
	gate_open();
	while (penstock_wait(q, NULL, 1, 0, LIMIT) > 0)
		;
	__atomic_store_n(gate + 8, gate[8] + 1, __ATOMIC_RELEASE);
	while (penstock_wait(ballast_q, NULL, 1, 0, LIMIT) > 0)
		;
	return 0;
}

/* ---- reads ---- */

/* Submits a short read. Behind it, the copies of long reads are queued at submit although the
 * stream waits. A kernel would make the copies of long reads otherwise, and reads whose copies a
 * kernel makes do not use memory again. */
static int short_submit(void *stream)
{
	struct penstock_seg seg = {.buf = sink + FILE_LEN, .dev = gpu, .row_len = 4096};
	struct penstock_req req = request(&seg, stream);

	return penstock_submit(q, &req, 1, NULL);
}

/* Lets the stream `held` wait before a short read. */
static void hold(void)
{
	gate_shut(held);
	assert_int_equal(short_submit(held), 1);
}

/* Submits an early read number i of `len` bytes from a random offset on. */
static int one_submit(unsigned i, void *stream, uint64_t len, uint64_t deadline_ns)
{
	struct one *one = &ones[i];
	struct penstock_req req = request(&one->seg, stream);

	one->seg = (struct penstock_seg){.buf = pool + (size_t)i * LONG_LEN, .dev = gpu,
					 .off = random_to((unsigned)(FILE_LEN - len)),
					 .row_len = len};
	one->late = (struct penstock_late){.size = sizeof(one->late), .result = &one->result};
	one->result = UNSET;
	one->ended = deadline_ns;
	req.flags = PENSTOCK_R_EARLY;
	req.late = &one->late;
	req.user = one;
	req.deadline_ns = deadline_ns;
	return penstock_submit(q, &req, 1, &one->id);
}

static void pool_fill(unsigned count)
{
	assert_int_equal(api->cuMemsetD8Async((uintptr_t)pool, GUARD, (size_t)count * LONG_LEN,
					      streams[0]),
			 PST_CU_OK);
	assert_int_equal(api->cuStreamSynchronize(streams[0]), PST_CU_OK);
}

static int64_t result_of(const struct one *one)
{
	return __atomic_load_n(&one->result, __ATOMIC_ACQUIRE);
}

/* Waits until the bytes of a read are in its pinned memory. */
static void result_await(const struct one *one)
{
	uint64_t until = test_now_ns() + (uint64_t)LIMIT;

	while (result_of(one) == UNSET && test_now_ns() < until)
		usleep(100);
	assert_int_equal(result_of(one), one->seg.row_len);
}

/* Copies the bytes that a read has stored in device memory to `back`. */
static void bytes_fetch(const struct one *one)
{
	assert_int_equal(api->cuMemcpyDtoHAsync(back, (uintptr_t)one->seg.buf, one->seg.row_len,
						streams[0]),
			 PST_CU_OK);
	assert_int_equal(api->cuStreamSynchronize(streams[0]), PST_CU_OK);
}

/* Checks the bytes of a read that its stream has passed. If the read ended before its bytes were
 * there, they may be zeros or unchanged instead. */
static void bytes_check(const struct one *one)
{
	const uint64_t len = one->seg.row_len;
	const unsigned char *right = bytes + one->seg.off;

	bytes_fetch(one);
	if (!memcmp(back, right, len))
		return;
	for (uint64_t i = 0; i < len; i++)
		if (back[i] != right[i] && !(one->ended && (!back[i] || back[i] == GUARD)))
			fail_msg("read %u: byte %llu is %u instead of %u", (unsigned)(one - ones),
				 (unsigned long long)i, back[i], right[i]);
}

/* Takes the completion of one of the reads 0 to BURST - 1, or of a short read. */
static void completion_take(void)
{
	struct penstock_done done;
	const struct one *one;

	assert_int_equal(penstock_wait(q, &done, 1, 1, LIMIT), 1);
	one = done.user;
	if (!one || !one->ended)
		assert_int_equal(done.result, one ? one->seg.row_len : 4096);
	else if (done.result != (int64_t)one->seg.row_len)
		assert_true(done.result == -ECANCELED || done.result == -ETIME);
}

/* ---- the tests ---- */

/* A stage may use memory that it has taken over as soon as the stream has passed the request of the
 * lender, also if the lender has its next request by then. */
static void vacated_memory(void **state)
{
	struct pst_stage_words words = {.passed = 3};
	struct pst_stage lender = {.words = &words, .last = 4, .turn = 7};
	struct pst_stage stage = {.lender = &lender, .lender_turn = 7};

	(void)state;
	assert_false(pst_stage_is_vacated(&stage));
	words.passed = 4;
	assert_true(pst_stage_is_vacated(&stage));
	lender.turn = 8;
	words.passed = 0;
	assert_true(pst_stage_is_vacated(&stage));
	stage.lender = NULL;
	assert_true(pst_stage_is_vacated(&stage));
}

/* While little memory is in use, all early reads start before their stream reaches them. */
static void little_memory(void **state)
{
	(void)state;
	hold();
	for (unsigned i = 0; i < READS; i++)
		assert_int_equal(one_submit(i, held, LEN, 0), 1);
	for (unsigned i = 0; i < READS; i++)
		result_await(&ones[i]);
	gate_open();
	for (unsigned i = 0; i < READS + 1; i++)
		completion_take();
}

/* If much memory is in use, only the first reads start before their stream reaches them. Each other
 * read uses the memory of an earlier one, and starts when the stream has passed that one. */
static void much_memory(void **state)
{
	(void)state;
	ballast_take();
	for (unsigned round = 0; round < 60; round++) {
		const unsigned pause_us = round < 3 ? 20000 : 0;

		pool_fill(READS);
		hold();
		for (unsigned i = 0; i < READS; i++)
			/* Every third read is shorter than the memory that it takes over. */
			assert_int_equal(one_submit(i, held, i % 3 == 2 ? LEN : 2 * LEN, 0), 1);
		for (unsigned i = 0; i < FIRST; i++)
			result_await(&ones[i]);
		usleep(pause_us);
		for (unsigned i = FIRST; i < READS; i++)
			assert_int_equal(result_of(&ones[i]), UNSET);
		gate_open();
		for (unsigned i = 0; i < READS + 1; i++)
			completion_take();
		assert_int_equal(api->cuStreamSynchronize(held), PST_CU_OK);
		for (unsigned i = 0; i < READS; i++)
			bytes_check(&ones[i]);
	}
	ballast_drop();
}

/* Submits reads to the thread's default stream, which waits for the gate. */
static void *reads_behind_gate(void *arg)
{
	bool ok = !api->cuCtxSetCurrent(arg) &&
		  !api->cuStreamWaitValue64(PST_CU_STREAM_PER_THREAD, (uintptr_t)gate,
					    gate_turn + 1, PST_CU_WAIT_GEQ) &&
		  short_submit(PST_CU_STREAM_PER_THREAD) == 1;

	for (unsigned i = 0; i < FIRST && ok; i++)
		ok = one_submit(i, PST_CU_STREAM_PER_THREAD, LEN, 0) == 1;
	return ok ? arg : NULL;
}

static void *read_on_own_stream(void *arg)
{
	return !api->cuCtxSetCurrent(arg) &&
			       one_submit(FIRST, PST_CU_STREAM_PER_THREAD, LEN, 0) == 1
		       ? arg
		       : NULL;
}

/* The default stream of a thread is not that of an earlier thread, even if the C library gives the
 * new thread the stack of the earlier one. So a read of the new thread must not take over memory of
 * the earlier thread's reads, whose stream may wait for the new thread. With the stand-in, all
 * threads share this stream, so the test only checks that the read starts. */
static void streams_of_threads(void **state)
{
	struct pst_cu_ctx *current = NULL;
	pthread_t thread;
	void *good;

	(void)state;
	if (getenv("PENSTOCK_STANDIN") && !strcmp(getenv("PENSTOCK_STANDIN"), "0"))
		test_skip("a thread must not end while its default stream waits");
	ballast_take();
	assert_int_equal(api->cuCtxGetCurrent(&current), PST_CU_OK);
	assert_int_equal(pthread_create(&thread, NULL, reads_behind_gate, current), 0);
	pthread_join(thread, &good);
	gate_turn++;
	assert_ptr_equal(good, current);
	assert_int_equal(pthread_create(&thread, NULL, read_on_own_stream, current), 0);
	pthread_join(thread, &good);
	assert_ptr_equal(good, current);
	result_await(&ones[FIRST]);
	gate_open();
	ballast_drop(); /* the streams of both may share a hardware queue */
	for (unsigned i = 0; i < FIRST + 2; i++)
		completion_take();
}

/* Checks that the stream has written zeros for a read that was cancelled before it started. */
static void zeros_check(const struct one *one)
{
	bytes_fetch(one);
	for (uint64_t i = 0; i < one->seg.row_len; i++)
		assert_int_equal(back[i], 0);
}

/* A read that is cancelled, or whose deadline passes, before it starts completes at once. The bytes
 * of the read whose memory it has taken over must stay, and must not reach its buffer. */
static void ended_before_start(void **state)
{
	(void)state;
	ballast_take();
	for (unsigned round = 0; round < 60; round++) {
		unsigned ended = 0;

		pool_fill(READS);
		hold();
		for (unsigned i = 0; i < READS; i++) {
			bool late = i >= FIRST && !random_to(4);

			assert_int_equal(one_submit(i, held, LEN,
						    late ? test_now_ns() + 100000 : 0),
					 1);
		}
		for (unsigned i = FIRST; i < READS; i++) {
			if (!ones[i].ended && random_to(2)) {
				ones[i].ended = true;
				assert_int_equal(penstock_cancel(q, ones[i].id), 0);
			}
			ended += ones[i].ended;
		}
		for (unsigned i = 0; i < ended; i++)
			completion_take();
		for (unsigned i = 0; i < FIRST; i++)
			result_await(&ones[i]);
		for (unsigned i = 0; i < READS; i++) {
			assert_int_equal(penstock_stream_passed(gpu, &ones[i]), 0);
			if (i >= FIRST)
				assert_true(ones[i].ended ? result_of(&ones[i]) < 0 &&
								    result_of(&ones[i]) != UNSET
							  : result_of(&ones[i]) == UNSET);
		}
		gate_open();
		for (unsigned i = 0; i < READS + 1 - ended; i++)
			completion_take();
		assert_int_equal(api->cuStreamSynchronize(held), PST_CU_OK);
		for (unsigned i = 0; i < READS; i++) {
			assert_int_equal(penstock_stream_passed(gpu, &ones[i]), 1);
			ones[i].ended ? zeros_check(&ones[i]) : bytes_check(&ones[i]);
		}
	}
	ballast_drop();
}

/* The driver refuses an operation of a read that takes over memory, so the submit fails. The memory
 * must not be free before the stream has passed the earlier read, and must be free after that. */
static void refused_reads(void **state)
{
	static const char *const fails[] = {
		"cuStreamWaitValue64_v2:1:999", "cuMemcpyHtoDAsync_v2:1:999",
		"cuStreamWriteValue64_v2:1:999"};
	int ret;

	(void)state;
	driver_fail(NULL);
	ballast_take();
	for (unsigned round = 0; round < REFUSALS; round++) {
		hold();
		for (unsigned i = 0; i < 10; i++) {
			bool refused = i && i % 2 == 0;

			if (refused)
				driver_fail(fails[(round + i) % 3]);
			ret = one_submit(i, held, LEN, 0);
			driver_fail(NULL);
			if (refused ? ret >= 0 : ret != 1)
				fail_msg("submit of read %u of round %u: %d", i, round, ret);
			if (refused)
				assert_int_equal(short_submit(held), 1);
		}
		/* These reads get memory that is free. */
		for (unsigned i = 10; i < READS; i++)
			assert_int_equal(one_submit(i, streams[i % 2], LEN, 0), 1);
		for (unsigned i = 10; i < READS; i++)
			result_await(&ones[i]);
		gate_open();
		for (unsigned i = 0; i < READS + 1; i++)
			completion_take();
		for (unsigned i = 0; i < READS && round % 8 == 0; i++)
			if (!i || i % 2 || i >= 10)
				bytes_check(&ones[i]);
	}
	ballast_drop();
}

/* Returns how many reads of FILE_LEN bytes the device accepts until its pinned memory is full. */
static unsigned room_count(void)
{
	struct penstock_seg seg = {.dev = gpu, .row_len = FILE_LEN};
	struct penstock_req req = request(&seg, NULL);
	unsigned count = 0;
	int ret = 1;

	for (unsigned i = 0; i < STREAMS; i++)
		gate_shut(streams[i]);
	while (ret == 1) {
		req.stream = streams[count % STREAMS];
		/* Each stream fills memory of its own. */
		seg.buf = pool + (size_t)(count % STREAMS) * FILE_LEN;
		ret = penstock_submit(q, &req, 1, NULL);
		count += ret == 1;
	}
	assert_int_equal(ret, -EAGAIN);
	gate_open();
	for (unsigned i = 0; i < count; i++)
		await(FILE_LEN);
	for (unsigned i = 0; i < STREAMS; i++)
		assert_int_equal(api->cuStreamSynchronize(streams[i]), PST_CU_OK);
	return count;
}

/* Submits read i of a burst, and takes completions as long as a limit is reached. Cancels another
 * read now and then. Returns the number of completions that it took. */
static unsigned burst_submit(unsigned i)
{
	uint64_t deadline_ns = random_to(6) ? 0 : test_now_ns() + random_to(8000000);
	unsigned other_one = random_to(i + 1), taken = 0;
	int ret = one_submit(i, streams[i % STREAMS], LONG_LEN, deadline_ns);

	while (ret == -EAGAIN) {
		completion_take();
		taken++;
		ret = one_submit(i, streams[i % STREAMS], LONG_LEN, deadline_ns);
	}
	assert_int_equal(ret, 1);
	if (!random_to(6) && penstock_cancel(q, ones[other_one].id) == 0)
		ones[other_one].ended = true;
	return taken;
}

/* Bursts of long early reads on several streams. Some reads are cancelled or have a deadline. After
 * the bursts, all memory must be free again. */
static void storm(void **state)
{
	uint64_t until;
	unsigned before = room_count();

	(void)state;
	for (unsigned burst = 0; burst < BURSTS; burst++) {
		unsigned taken = 0;

		pool_fill(BURST);
		for (unsigned i = 0; i < BURST; i++)
			taken += burst_submit(i);
		for (unsigned i = 0; i < STREAMS; i++)
			assert_int_equal(api->cuStreamSynchronize(streams[i]), PST_CU_OK);
		for (; taken < BURST; taken++)
			completion_take();
		for (unsigned i = 0; i < BURST; i++)
			bytes_check(&ones[i]);
	}
	/* A lane frees the memory of a cancelled read a moment after the stream has passed it. */
	until = test_now_ns() + (uint64_t)LIMIT;
	while (room_count() != before)
		assert_true(test_now_ns() < until);
}

/* While a stream waits, more reads are cancelled than the queue has requests. All of them wait for
 * the memory of earlier reads. The queue must reuse the cancelled requests, although their stages
 * still wait. */
static void small_queue(void **state)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_queue *large = q;

	(void)state;
	ballast_take();
	opts.requests_max = READS + 1;
	assert_int_equal(penstock_queue_open(&opts, &q), 0);
	hold();
	for (unsigned i = 0; i < FIRST; i++)
		assert_int_equal(one_submit(i, held, LEN, 0), 1);
	for (unsigned i = FIRST; i < BURST; i++) {
		assert_int_equal(one_submit(i, held, LEN, 0), 1);
		ones[i].ended = true;
		assert_int_equal(penstock_cancel(q, ones[i].id), 0);
		completion_take();
	}
	gate_open();
	for (unsigned i = 0; i < FIRST + 1; i++)
		completion_take();
	assert_int_equal(api->cuStreamSynchronize(held), PST_CU_OK);
	for (unsigned i = 0; i < BURST; i++)
		ones[i].ended ? zeros_check(&ones[i]) : bytes_check(&ones[i]);
	penstock_queue_close(q);
	q = large;
	ballast_drop();
}

static enum pst_cu_result (*driver_copy)(pst_cu_ptr dst, const void *src, size_t len,
					 struct pst_cu_stream *stream);
static pthread_t freer, opener;

/* Replaces the function that the library calls for a copy from the host to the GPU. */
static void copy_set(enum pst_cu_result (*copy)(pst_cu_ptr, const void *, size_t,
						struct pst_cu_stream *))
{
	((struct pst_cuda *)(uintptr_t)api)->cuMemcpyHtoDAsync = copy;
}

static void *memory_free(void *ptr)
{
	api->cuCtxSetCurrent(ctx);
	return api->cuMemFree((uintptr_t)ptr) ? NULL : ptr;
}

static void *gates_open(void *arg)
{
	usleep(50000);
	gate_open();
	__atomic_store_n(gate + 8, gate[8] + 1, __ATOMIC_RELEASE);
	return arg;
}

/* Stands for the driver's copy. While another thread frees memory, which holds the driver's lock
 * until all streams are idle, the deadline of the read passes. Then the copy waits for the lock. */
static enum pst_cu_result copy_behind_free(pst_cu_ptr dst, const void *src, size_t len,
					   struct pst_cu_stream *stream)
{
	pst_cu_ptr spare;

	copy_set(driver_copy);
	if (api->cuMemAlloc(&spare, 4096) ||
	    pthread_create(&freer, NULL, memory_free, (void *)(uintptr_t)spare))
		return PST_CU_INVALID_VALUE;
	usleep(50000);
	if (pthread_create(&opener, NULL, gates_open, NULL))
		return PST_CU_INVALID_VALUE;
	return api->cuMemcpyHtoDAsync(dst, src, len, stream);
}

/* The deadline of a read passes during its submit, which waits in the driver until the stream has
 * passed the wait of the same read. So the lanes must let the stream pass, although the submit has
 * not ended. If they do not, the program's time limit ends the test. */
static void ended_during_submit(void **state)
{
	void *freed;

	(void)state;
	ballast_take();
	hold();
	for (unsigned i = 0; i < FIRST; i++)
		assert_int_equal(one_submit(i, held, LEN, 0), 1);
	for (unsigned i = 0; i < FIRST; i++)
		result_await(&ones[i]);
	driver_copy = api->cuMemcpyHtoDAsync;
	copy_set(copy_behind_free);
	assert_int_equal(one_submit(FIRST, held, LEN, test_now_ns() + 10000000), 1);
	assert_ptr_equal(api->cuMemcpyHtoDAsync, driver_copy);
	assert_int_equal(result_of(&ones[FIRST]), -ETIME);
	pthread_join(opener, NULL);
	pthread_join(freer, &freed);
	assert_non_null(freed);
	for (unsigned i = 0; i < FIRST + 2; i++)
		completion_take();
	assert_int_equal(api->cuStreamSynchronize(held), PST_CU_OK);
	for (unsigned i = 0; i < FIRST + 1; i++)
		ones[i].ended ? zeros_check(&ones[i]) : bytes_check(&ones[i]);
	ballast_drop();
}

static void *close_device(void *arg)
{
	penstock_device_close(gpu);
	return arg;
}

/* A device is closed while a cancelled read waits for the memory that it has taken over. The close
 * must wait for it, because otherwise its stream would never continue. */
static void closed_device(void **state)
{
	pthread_t thread;
	void *ptr;

	(void)state;
	assert_int_equal(penstock_free(gpu, mem), 0);
	ballast_take();
	hold();
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(one_submit(i, held, LEN, 0), 1);
	penstock_queue_close(q); /* cancels them */
	penstock_queue_close(ballast_q);
	assert_int_equal(pthread_create(&thread, NULL, close_device, NULL), 0);
	usleep(50000);
	gate_open();
	__atomic_store_n(gate + 8, gate[8] + 1, __ATOMIC_RELEASE);
	assert_int_equal(api->cuStreamSynchronize(held), PST_CU_OK);
	assert_int_equal(api->cuStreamSynchronize(other), PST_CU_OK);
	pthread_join(thread, NULL);
	assert_int_equal(penstock_device_open("cuda:0", NULL, &gpu), 0);
	assert_int_equal(penstock_alloc(gpu, FILE_LEN, &ptr), 0);
	mem = ptr;
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	assert_int_equal(penstock_queue_open(NULL, &ballast_q), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(vacated_memory),
		cmocka_unit_test_teardown(little_memory, case_teardown),
		cmocka_unit_test_teardown(much_memory, case_teardown),
		cmocka_unit_test_teardown(streams_of_threads, case_teardown),
		cmocka_unit_test_teardown(ended_before_start, case_teardown),
		cmocka_unit_test_teardown(refused_reads, case_teardown),
		cmocka_unit_test_teardown(small_queue, case_teardown),
		cmocka_unit_test_teardown(ended_during_submit, case_teardown),
		cmocka_unit_test_teardown(storm, case_teardown),
		cmocka_unit_test_teardown(closed_device, case_teardown),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, reuse_setup, reuse_teardown);
}
