/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests what penstock.h promises for three situations: queues, storages and devices are closed
 * while requests are in flight, no caller collects completions, and several threads use a queue.
 * Each close runs on its own thread. The test detects a close that returns too early, and fails
 * when a close hangs.
 */
#include "queued.h"
#include "freed_memory.h"

#include "core/lane/pump.h"
#include "core/route/route.h"
#include "device/cuda_api.h"

#define HELD_COUNT 6 /* number of requests in flight during a close */

static void thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
	assert_int_equal(pthread_create(thread, NULL, run, arg), 0);
}

/* ---- closing ---- */

static void (*close_function)(void);
static _Atomic bool closed;

static void *close_thread(void *arg)
{
	close_function();
	atomic_store(&closed, true);
	return arg;
}

static void close_queue(void)
{
	penstock_queue_close(q);
}

static void close_storage(void)
{
	penstock_close(st);
}

static void close_host(void)
{
	penstock_device_close(host);
}

/* Runs `what`, which closes an object while the store still uses the memory of requests. `what`
 * must not return before the store releases these requests. */
static void close_while_held(void (*what)(void))
{
	pthread_t thread;

	close_function = what;
	atomic_store(&closed, false);
	thread_start(&thread, close_thread, NULL);
	usleep(30000); /* a close that wrongly does not wait returns within this pause */
	assert_false(atomic_load(&closed));
	async_release(remote);
	pthread_join(thread, NULL);
}

static void submit_held_requests(void)
{
	async_hold(remote);
	for (unsigned i = 0; i < HELD_COUNT; i++)
		submit_read(i, i * PIECE * 2, PIECE * 2);
	assert_int_equal(async_await(remote, HELD_COUNT * 2), 0);
}

/* Closing a queue runs no callback. After the close, the library no longer uses the memory of the
 * queue's requests. */
static void queue_close_waits_for_requests(void **state)
{
	struct async_counts counts;

	(void)state;
	begin_case(0, 16);
	submit_held_requests();
	/* This request has more chunks than a worker thread (lane) may have in flight. Closing the
	 * queue cancels the chunks that have not started. */
	submit_read(HELD_COUNT, HELD_COUNT * PIECE * 2, LEN - HELD_COUNT * PIECE * 2);
	close_while_held(close_queue);
	q = NULL;
	async_get_counts(remote, &counts);
	assert_int_equal(counts.waiting, 0);
	assert_int_equal(atomic_load(&st->inflight), 0);
	for (unsigned i = 0; i <= HELD_COUNT; i++)
		assert_int_equal(fired[i], 0);
	for (unsigned i = 0; i < LEN; i++)
		if (back[i] != bytes[i] && back[i] != 0xee)
			fail_msg("byte %u is wrong", i);
}

/* A storage is closed while requests are in flight. The close must wait for them, and their
 * completions and the texts of their reports must remain valid. */
static void storage_close_waits_for_requests(void **state)
{
	(void)state;
	begin_case(0, 16);
	submit_held_requests();
	close_while_held(close_storage);
	st = NULL;
	freed_memory_overwrite(sizeof(struct pst_route));
	assert_int_equal(wait_queue(HELD_COUNT, 16, -1), HELD_COUNT);
	for (unsigned k = 0; k < HELD_COUNT; k++) {
		assert_int_equal(done[k].result, PIECE * 2);
		check_report(done[k].report, host, PIECE * 2, PIECE * 2);
		for (unsigned i = 0; i < done[k].report->path_count; i++)
			assert_true(strlen(done[k].report->paths[i].text) < PENSTOCK_TEXT_MAX);
		assert_int_equal(fired[k], 1);
	}
	assert_memory_equal(back, bytes, HELD_COUNT * PIECE * 2);
}

static void device_close_waits_for_requests(void **state)
{
	(void)state;
	begin_case(0, 16);
	submit_held_requests();
	close_while_held(close_host);
	freed_memory_overwrite(sizeof(struct pst_pump));
	assert_int_equal(penstock_device_open("host", host_opts, &host), 0);
	assert_int_equal(wait_queue(HELD_COUNT, 16, -1), HELD_COUNT);
	for (unsigned k = 0; k < HELD_COUNT; k++) {
		assert_int_equal(done[k].result, PIECE * 2);
		check_report(done[k].report, host, PIECE * 2, PIECE * 2);
	}
	assert_memory_equal(back, bytes, HELD_COUNT * PIECE * 2);
}

static void close_gpu(void)
{
	penstock_device_close(gpu);
}

/* A request has its first segment on the host and its second segment on the GPU. The device of the
 * first segment provides the worker threads (lanes), so lanes of the host carry the request.
 * Closing the GPU must wait for this request, too. */
static void close_of_second_device_waits(void **state)
{
	struct penstock_seg segs[2] = {{.buf = back, .dev = host, .row_len = PIECE},
				       {.dev = gpu, .off = PIECE, .row_len = PIECE}};
	struct penstock_req req;

	(void)state;
	begin_case(0, 16);
	assert_int_equal(penstock_alloc(gpu, PIECE, &segs[1].buf), 0);
	async_hold(remote);
	req = test_request(st, segs, 2, PENSTOCK_READ);
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(async_await(remote, 1), 0);
	close_while_held(close_gpu);
	freed_memory_overwrite(sizeof(struct penstock_device));
	assert_int_equal(wait_queue(1, 16, -1), 1);
	assert_int_equal(done[0].result, 2 * PIECE);
	assert_memory_equal(back, bytes, PIECE);
	assert_int_equal(penstock_device_open("cuda:0", NULL, &gpu), 0);
}

/* ---- after a close ---- */

/* Returns the CPU time that a thread has used, in ns. */
static uint64_t thread_cpu_ns(pthread_t thread)
{
	struct timespec ts;
	clockid_t clock;

	assert_int_equal(pthread_getcpuclockid(thread, &clock), 0);
	assert_int_equal(clock_gettime(clock, &ts), 0);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void *one_call(void *arg)
{
	return (void *)(intptr_t)penstock_read(st, host, arg, PIECE, 0);
}

/* penstock_read does its work on the caller's thread, with a lane (the state of a worker) that it
 * borrows. The close of a device wakes all lanes, also those of other devices. Afterwards the
 * thread must sleep while the store holds back its transfer. It must not poll. */
static void one_call_thread_sleeps_after_device_close(void **state)
{
	uint64_t used, since, until = test_now_ns() + 10000000000u;
	pthread_t thread;
	void *n;

	(void)state;
	begin_case(0, 1);
	assert_int_equal(penstock_prepare(st, host, PENSTOCK_READ), 0);
	close_gpu();
	async_hold(remote);
	thread_start(&thread, one_call, back);
	assert_int_equal(async_await(remote, 1), 0);
	do {
		used = thread_cpu_ns(thread);
		since = test_now_ns();
		while (test_now_ns() - since < 100000000)
			sched_yield();
	} while (thread_cpu_ns(thread) != used && test_now_ns() < until);
	assert_int_equal(thread_cpu_ns(thread), used);
	async_release(remote);
	assert_int_equal(pthread_join(thread, &n), 0);
	assert_int_equal((intptr_t)n, PIECE);
	assert_int_equal(penstock_device_open("cuda:0", NULL, &gpu), 0);
}

static _Atomic bool prepared;

/* Prepares the paths between a new storage and the host device. The device's worker threads are
 * already running. */
static void *prepare_host(void *arg)
{
	assert_int_equal(penstock_prepare(arg, host, PENSTOCK_READ), 0);
	atomic_store(&prepared, true);
	return arg;
}

/* A thread that closes a device waits for that device's requests. Meanwhile it must not block
 * threads that work with another device. */
static void device_close_does_not_block_other_devices(void **state)
{
	struct penstock_seg seg = {.dev = gpu, .row_len = PIECE};
	uint64_t until = test_now_ns() + 20000000000u;
	struct penstock_storage *other;
	pthread_t threads[2];
	struct penstock_req req;

	(void)state;
	begin_case(0, 16);
	other = open_object(0);
	assert_int_equal(penstock_prepare(st, host, PENSTOCK_READ), 0);
	assert_int_equal(penstock_alloc(gpu, PIECE, &seg.buf), 0);
	async_hold(remote);
	req = test_request(st, &seg, 1, PENSTOCK_READ);
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(async_await(remote, 1), 0);
	close_function = close_gpu;
	atomic_store(&prepared, false);
	thread_start(&threads[0], close_thread, NULL);
	usleep(30000); /* gives the thread that closes the device enough time to start waiting */
	thread_start(&threads[1], prepare_host, other);
	while (!atomic_load(&prepared) && test_now_ns() < until)
		sched_yield();
	async_release(remote);
	assert_true(atomic_load(&prepared));
	for (unsigned i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(wait_queue(1, 16, -1), 1);
	assert_int_equal(done[0].result, PIECE);
	penstock_close(other);
	assert_int_equal(penstock_device_open("cuda:0", NULL, &gpu), 0);
}

/* ---- detached requests ---- */

struct stream {
	const struct pst_cuda *api;
	struct pst_cu_stream *stream;
	uint64_t *gate; /* the stream waits until *gate is 1; the test sets it at the end */
	char *mem;
	int64_t *results;
};

static void open_stream(struct stream *s)
{
	struct pst_cu_ctx *ctx;

	s->api = pst_cuda_get(NULL);
	assert_non_null(s->api);
	assert_int_equal(s->api->cuDevicePrimaryCtxRetain(&ctx, 0), PST_CU_OK);
	assert_int_equal(s->api->cuCtxSetCurrent(ctx), PST_CU_OK);
	assert_int_equal(
		s->api->cuStreamCreateWithPriority(&s->stream, PST_CU_STREAM_NON_BLOCKING, 0),
		PST_CU_OK);
	assert_int_equal(s->api->cuMemHostAlloc((void **)&s->gate, 4096, 2), PST_CU_OK);
	assert_int_equal(penstock_alloc(gpu, LEN, (void **)&s->mem), 0);
	s->results = calloc(MAX, sizeof(*s->results));
	*s->gate = 0;
}

static void close_stream(struct stream *s)
{
	s->api->cuStreamSynchronize(s->stream);
	s->api->cuStreamDestroy(s->stream);
	s->api->cuMemFreeHost(s->gate);
	penstock_free(gpu, s->mem);
	s->api->cuDevicePrimaryCtxRelease(0);
	free(s->results);
}

static int submit_detached(struct stream *s, unsigned i)
{
	struct penstock_late late = {.size = sizeof(late), .result = &s->results[i]};
	struct penstock_seg seg;
	struct penstock_req req = read_req(&seg, i, i * PIECE, PIECE);

	seg.buf = s->mem + i * PIECE;
	seg.dev = gpu;
	req.flags = PENSTOCK_R_DETACHED;
	req.stream = s->stream;
	req.late = &late;
	return penstock_submit(q, &req, 1, NULL);
}

/* A detached request adds no completion to the queue. When it completes, it frees its queue
 * entry and writes its result to the caller's variable. */
static void detached_requests_free_their_entries(void **state)
{
	struct stream s;

	(void)state;
	begin_case(0, 3);
	open_stream(&s);
	for (unsigned i = 0; i < 100; i++) {
		int ret;

		while ((ret = submit_detached(&s, i)) == -EAGAIN)
			/* The entries of detached requests become free although no thread collects
			 * their completions. */
			sched_yield();
		assert_int_equal(ret, 1);
	}
	assert_int_equal(s.api->cuStreamSynchronize(s.stream), PST_CU_OK);
	for (unsigned i = 0; i < 100; i++) {
		assert_int_equal(s.results[i], PIECE);
		assert_int_equal(fired[i], 0);
	}
	test_copy(host, back, gpu, s.mem, 100 * PIECE);
	assert_memory_equal(back, bytes, 100 * PIECE);
	assert_int_equal(wait_queue(1, 8, -1), 0);
	close_stream(&s);
}

static void *wait_thread(void *arg)
{
	*(int *)arg = penstock_wait(q, done, 1, 8, -1);
	atomic_store(&closed, true);
	return arg;
}

/* If only detached requests are in flight, their completion wakes a thread that waits on the queue
 * or closes it. */
static void waiting_for_detached_requests(void **state)
{
	struct stream s;

	(void)state;
	begin_case(0, 8);
	open_stream(&s);
	for (unsigned closes = 0; closes < 2; closes++) {
		pthread_t thread;
		int got = -1;

		async_hold(remote);
		atomic_store(&closed, false);
		close_function = close_queue;
		for (unsigned i = 0; i < 3; i++)
			assert_int_equal(submit_detached(&s, i), 1);
		/* The stream runs the requests one after the other, so only the first request is
		 * in flight. */
		assert_int_equal(async_await(remote, 1), 0);
		thread_start(&thread, closes ? close_thread : wait_thread, &got);
		usleep(30000); /* gives the waiting thread enough time to fall asleep */
		assert_false(atomic_load(&closed));
		async_release(remote);
		pthread_join(thread, NULL);
		if (closes)
			q = NULL;
		else
			assert_int_equal(got, 0);
		assert_int_equal(s.api->cuStreamSynchronize(s.stream), PST_CU_OK);
		/* Closing the queue cancels the requests that have not started. The requests that
		 * have started complete. */
		for (unsigned i = 0; i < 3; i++)
			assert_true(s.results[i] == PIECE ||
				    (closes && s.results[i] == -ECANCELED));
	}
	close_stream(&s);
}

/* ---- threads ---- */

#define REQUESTS_EACH 400

struct user {
	pthread_t thread;
	struct penstock_device *dev;
	char *mem;
	uint64_t random;
	unsigned ended, wrong;
};

/* Opens a queue on a device that two threads share, and uses it. The queue must return only
 * requests that this thread submitted to it. */
static void *use_own_queue(void *arg)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_done list[16];
	struct penstock_queue *own;
	struct user *u = arg;
	unsigned sent = 0;

	opts.requests_max = 16;
	u->wrong += penstock_queue_open(&opts, &own) != 0;
	while (u->ended < REQUESTS_EACH && !u->wrong) {
		uint64_t off = (uint64_t)sent * 40000 + test_random(&u->random) % 5000;
		uint64_t len = 1 + test_random(&u->random) % 35000;
		struct penstock_seg seg = {
			.buf = u->mem + off, .dev = u->dev, .off = off, .row_len = len};
		struct penstock_req req = test_request(st, &seg, 1, PENSTOCK_READ);
		int n;

		req.user = u;
		if (sent < REQUESTS_EACH && penstock_submit(own, &req, 1, NULL) == 1) {
			sent++;
			continue;
		}
		n = penstock_wait(own, list, 1, 16, -1);
		u->wrong += n < 1;
		for (int i = 0; i < n; i++, u->ended++)
			u->wrong += list[i].user != u || list[i].result < 1 ||
				    (uint64_t)list[i].result != list[i].report->bytes;
	}
	penstock_queue_close(own);
	return NULL;
}

static void two_queues_on_one_device(void **state)
{
	struct user users[2];

	(void)state;
	begin_case(0, 1);
	for (unsigned d = 0; d < 2; d++) {
		struct penstock_device *dev = d ? gpu : host;

		for (unsigned i = 0; i < 2; i++) {
			struct user *u = &users[i];

			*u = (struct user){.dev = dev, .random = test_seed(5) + i};
			assert_int_equal(penstock_alloc(dev, LEN, (void **)&u->mem), 0);
			memset(back, 0xee, LEN);
			test_copy(dev, u->mem, host, back, LEN);
		}
		for (unsigned i = 0; i < 2; i++)
			thread_start(&users[i].thread, use_own_queue, &users[i]);
		for (unsigned i = 0; i < 2; i++) {
			struct user *u = &users[i];
			unsigned there = 0;

			pthread_join(u->thread, NULL);
			assert_int_equal(u->wrong, 0);
			assert_int_equal(u->ended, REQUESTS_EACH);
			test_copy(host, back, dev, u->mem, LEN);
			for (unsigned b = 0; b < LEN; b++) {
				there += back[b] == bytes[b];
				if (back[b] != bytes[b] && back[b] != 0xee)
					fail_msg("byte %u is wrong", b);
			}
			assert_true(there > REQUESTS_EACH * 10000);
			penstock_free(dev, u->mem);
		}
	}
}

static _Atomic uint64_t last_id;
static _Atomic bool all_sent;

static void *submit_all(void *arg)
{
	for (unsigned i = 0; i < MAX;) {
		struct penstock_seg seg;
		struct penstock_req req = read_req(&seg, i, i * 20000ull, 20000);
		uint64_t id;

		req.done = NULL;
		if (penstock_submit(q, &req, 1, &id) != 1) {
			sched_yield();
			continue;
		}
		atomic_store(&last_id, id);
		i++;
	}
	return arg;
}

static void *cancel_latest(void *arg)
{
	while (!atomic_load(&all_sent)) {
		penstock_cancel(q, atomic_load(&last_id));
		sched_yield();
	}
	return arg;
}

/* One thread submits requests, one collects their completions, and one cancels some requests.
 * Every request completes once, with a result that fits the bytes in its memory. */
static void submit_harvest_cancel_by_three_threads(void **state)
{
	unsigned have = 0, cancelled = 0;
	pthread_t threads[2];

	(void)state;
	begin_case(0, 32);
	atomic_store(&last_id, 0);
	atomic_store(&all_sent, false);
	thread_start(&threads[0], submit_all, NULL);
	thread_start(&threads[1], cancel_latest, NULL);
	while (have < MAX) {
		int n = wait_queue(1, 8, 1000000);

		for (int k = 0; k < n; k++) {
			uint64_t off = (uintptr_t)done[k].user * 20000ull;

			fired[(uintptr_t)done[k].user]++;
			cancelled += done[k].result == -ECANCELED;
			if (done[k].result == -ECANCELED)
				continue;
			assert_int_equal(done[k].result, 20000);
			assert_memory_equal(back + off, bytes + off, 20000);
		}
		have += (unsigned)n;
	}
	atomic_store(&all_sent, true);
	for (unsigned i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	printf("# %u of %u were cancelled\n", cancelled, MAX);
	for (unsigned i = 0; i < MAX; i++)
		assert_int_equal(fired[i], 1);
	assert_int_equal(poll_queue(8), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(queue_close_waits_for_requests, close_queue_and_remote),
		cmocka_unit_test_teardown(storage_close_waits_for_requests, close_queue_and_remote),
		cmocka_unit_test_teardown(detached_requests_free_their_entries,
					  close_queue_and_remote),
		cmocka_unit_test_teardown(two_queues_on_one_device, close_queue_and_remote),
		cmocka_unit_test_teardown(submit_harvest_cancel_by_three_threads,
					  close_queue_and_remote),
		cmocka_unit_test_teardown(waiting_for_detached_requests, close_queue_and_remote),
		cmocka_unit_test_teardown(close_of_second_device_waits, close_queue_and_remote),
		cmocka_unit_test_teardown(one_call_thread_sleeps_after_device_close,
					  close_queue_and_remote),
		cmocka_unit_test_teardown(device_close_does_not_block_other_devices,
					  close_queue_and_remote),
		cmocka_unit_test_teardown(device_close_waits_for_requests, close_queue_and_remote),
	};

	return run_queues(tests);
}
