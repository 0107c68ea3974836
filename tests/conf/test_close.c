/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues, storages and devices that close while requests are in flight, requests
 * that nobody harvests, and several threads at once: what penstock.h promises about
 * the end of things and about threads. Closing runs on a thread of its own, so that
 * a close that does not wait is seen to return, and one that hangs ends the test.
 */
#include "queued.h"

#include "core/route/route.h"
#include "device/cuda_api.h"

#define HELD 6 /* requests in flight while something closes */

static void start(pthread_t *thread, void *(*run)(void *), void *arg)
{
	assert_int_equal(pthread_create(thread, NULL, run, arg), 0);
}

/* ---- closing ---- */

static void (*close_what)(void);
static _Atomic bool closed;

static void *closer(void *arg)
{
	close_what();
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

/* Closes while the far side has the requests' memory: that must be waited for. */
static void close_while_held(void (*what)(void))
{
	pthread_t thread;

	close_what = what;
	atomic_store(&closed, false);
	start(&thread, closer, NULL);
	usleep(30000); /* so that one who does not wait is seen */
	assert_false(atomic_load(&closed));
	async_release(far);
	pthread_join(thread, NULL);
}

static void hold_some(void)
{
	async_hold(far);
	for (unsigned i = 0; i < HELD; i++)
		submit_read(i, i * PIECE * 2, PIECE * 2);
	assert_int_equal(async_await(far, HELD * 2), 0);
}

/* Takes the place of what was freed, so that who still reads it reads rubbish. */
static void spoil_heap(size_t size)
{
	void *volatile rubbish[8];

	for (unsigned i = 0; i < COUNT(rubbish); i++) {
		rubbish[i] = malloc(size);
		memset(rubbish[i], 0x5a, size);
	}
	for (unsigned i = 0; i < COUNT(rubbish); i++)
		free(rubbish[i]);
}

/* Nothing fires, and the memory is the caller's again. */
static void queue_closes(void **state)
{
	struct async_seen seen;

	(void)state;
	begin_case(0, 16);
	hold_some();
	/* More than the lane takes: cancelled in the middle. */
	submit_read(HELD, HELD * PIECE * 2, LEN - HELD * PIECE * 2);
	close_while_held(close_queue);
	q = NULL;
	async_seen(far, &seen);
	assert_int_equal(seen.waiting, 0);
	assert_int_equal(atomic_load(&st->inflight), 0);
	for (unsigned i = 0; i <= HELD; i++)
		assert_int_equal(fired[i], 0);
	for (unsigned i = 0; i < LEN; i++)
		if (back[i] != bytes[i] && back[i] != 0xee)
			fail_msg("byte %u is wrong", i);
}

/* Completions outlive the storage, with all that their reports say. */
static void storage_closes(void **state)
{
	(void)state;
	begin_case(0, 16);
	hold_some();
	close_while_held(close_storage);
	st = NULL;
	spoil_heap(sizeof(struct pst_route));
	assert_int_equal(wait_queue(HELD, 16, -1), HELD);
	for (unsigned k = 0; k < HELD; k++) {
		assert_int_equal(done[k].result, PIECE * 2);
		check_report(done[k].report, host, PIECE * 2, PIECE * 2);
		for (unsigned i = 0; i < done[k].report->path_count; i++)
			assert_true(strlen(done[k].report->paths[i].text) < PENSTOCK_TEXT_MAX);
		assert_int_equal(fired[k], 1);
	}
	assert_memory_equal(back, bytes, HELD * PIECE * 2);
}

static void device_closes(void **state)
{
	(void)state;
	begin_case(0, 16);
	hold_some();
	close_while_held(close_host);
	spoil_heap(sizeof(struct pst_pump));
	assert_int_equal(penstock_device_open("host", host_opts, &host), 0);
	assert_int_equal(wait_queue(HELD, 16, -1), HELD);
	for (unsigned k = 0; k < HELD; k++) {
		assert_int_equal(done[k].result, PIECE * 2);
		check_report(done[k].report, host, PIECE * 2, PIECE * 2);
	}
	assert_memory_equal(back, bytes, HELD * PIECE * 2);
}

static void close_gpu(void)
{
	penstock_device_close(gpu);
}

/* The request is the host's, by its first segment, and the GPU's by its second. */
static void guest_closes(void **state)
{
	struct penstock_seg segs[2] = {{.buf = back, .dev = host, .row_len = PIECE},
				       {.dev = gpu, .off = PIECE, .row_len = PIECE}};
	struct penstock_req req;

	(void)state;
	begin_case(0, 16);
	assert_int_equal(penstock_alloc(gpu, PIECE, &segs[1].buf), 0);
	async_hold(far);
	req = request(st, segs, 2, PENSTOCK_READ);
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(async_await(far, 1), 0);
	close_while_held(close_gpu);
	spoil_heap(sizeof(struct penstock_device));
	assert_int_equal(wait_queue(1, 16, -1), 1);
	assert_int_equal(done[0].result, 2 * PIECE);
	assert_memory_equal(back, bytes, PIECE);
	assert_int_equal(penstock_device_open("cuda:0", NULL, &gpu), 0);
}

/* ---- and after it ---- */

/* Processor time of a thread, in ns. */
static uint64_t used_ns(pthread_t thread)
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

/* The thread of a call that has a lane's place sleeps while there is nothing to do, also
 * when lanes have been told of something that closes. */
static void caller_sleeps(void **state)
{
	uint64_t used, since, until = now_ns() + 10000000000u;
	pthread_t thread;
	void *n;

	(void)state;
	begin_case(0, 1);
	assert_int_equal(penstock_prepare(st, host, PENSTOCK_READ), 0);
	close_gpu();
	async_hold(far);
	start(&thread, one_call, back);
	assert_int_equal(async_await(far, 1), 0);
	do {
		used = used_ns(thread);
		since = now_ns();
		while (now_ns() - since < 100000000)
			sched_yield();
	} while (used_ns(thread) != used && now_ns() < until);
	assert_int_equal(used_ns(thread), used);
	async_release(far);
	assert_int_equal(pthread_join(thread, &n), 0);
	assert_int_equal((intptr_t)n, PIECE);
	assert_int_equal(penstock_device_open("cuda:0", NULL, &gpu), 0);
}

static _Atomic bool met;

/* A storage that is new meets a device whose pump runs. */
static void *meet(void *arg)
{
	assert_int_equal(penstock_prepare(arg, host, PENSTOCK_READ), 0);
	atomic_store(&met, true);
	return arg;
}

/* Who closes a device waits for its requests, and keeps nobody from work on another. */
static void others_work_on(void **state)
{
	struct penstock_seg seg = {.dev = gpu, .row_len = PIECE};
	uint64_t until = now_ns() + 20000000000u;
	struct penstock_storage *other;
	pthread_t threads[2];
	struct penstock_req req;

	(void)state;
	begin_case(0, 16);
	other = open_it(0);
	assert_int_equal(penstock_prepare(st, host, PENSTOCK_READ), 0);
	assert_int_equal(penstock_alloc(gpu, PIECE, &seg.buf), 0);
	async_hold(far);
	req = request(st, &seg, 1, PENSTOCK_READ);
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(async_await(far, 1), 0);
	close_what = close_gpu;
	atomic_store(&met, false);
	start(&threads[0], closer, NULL);
	usleep(30000); /* so that it is at it */
	start(&threads[1], meet, other);
	while (!atomic_load(&met) && now_ns() < until)
		sched_yield();
	async_release(far);
	assert_true(atomic_load(&met));
	for (unsigned i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(wait_queue(1, 16, -1), 1);
	assert_int_equal(done[0].result, PIECE);
	penstock_close(other);
	assert_int_equal(penstock_device_open("cuda:0", NULL, &gpu), 0);
}

/* ---- detached ---- */

struct stream {
	const struct pst_cuda *api;
	struct pst_cu_stream *stream;
	uint64_t *gate; /* the stream waits until it is 1 */
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
	struct penstock_req req = read_at(&seg, i, i * PIECE, PIECE);

	seg.buf = s->mem + i * PIECE;
	seg.dev = gpu;
	req.flags = PENSTOCK_R_DETACHED;
	req.stream = s->stream;
	req.late = &late;
	return penstock_submit(q, &req, 1, NULL);
}

/* No completion is listed, its place frees itself, its result is left behind. */
static void detached(void **state)
{
	struct stream s;

	(void)state;
	begin_case(0, 3);
	open_stream(&s);
	for (unsigned i = 0; i < 100; i++) {
		int ret;

		while ((ret = submit_detached(&s, i)) == -EAGAIN)
			sched_yield(); /* no harvest: the places come back all the same */
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

static void *waiter(void *arg)
{
	*(int *)arg = penstock_wait(q, done, 1, 8, -1);
	atomic_store(&closed, true);
	return arg;
}

/* Who waits, or closes, while only such requests are in flight is not forgotten. */
static void detached_awaited(void **state)
{
	struct stream s;

	(void)state;
	begin_case(0, 8);
	open_stream(&s);
	for (unsigned closes = 0; closes < 2; closes++) {
		pthread_t thread;
		int got = -1;

		async_hold(far);
		atomic_store(&closed, false);
		close_what = close_queue;
		for (unsigned i = 0; i < 3; i++)
			assert_int_equal(submit_detached(&s, i), 1);
		assert_int_equal(async_await(far, 1), 0); /* one behind the other */
		start(&thread, closes ? closer : waiter, &got);
		usleep(30000); /* so that it sleeps */
		assert_false(atomic_load(&closed));
		async_release(far);
		pthread_join(thread, NULL);
		if (closes)
			q = NULL;
		else
			assert_int_equal(got, 0);
		assert_int_equal(s.api->cuStreamSynchronize(s.stream), PST_CU_OK);
		for (unsigned i = 0; i < 3; i++) /* closing cancels what has not begun */
			assert_true(s.results[i] == PIECE ||
				    (closes && s.results[i] == -ECANCELED));
	}
	close_stream(&s);
}

/* ---- threads ---- */

#define EACH 400

struct user {
	pthread_t thread;
	struct penstock_device *dev;
	char *mem;
	uint64_t random;
	unsigned ended, wrong;
};

/* A queue of its own on the device that both share; all it gets back is its own. */
static void *own_queue(void *arg)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_done list[16];
	struct penstock_queue *own;
	struct user *u = arg;
	unsigned sent = 0;

	opts.requests_max = 16;
	u->wrong += penstock_queue_open(&opts, &own) != 0;
	while (u->ended < EACH && !u->wrong) {
		uint64_t off = (uint64_t)sent * 40000 + test_random(&u->random) % 5000;
		uint64_t len = 1 + test_random(&u->random) % 35000;
		struct penstock_seg seg = {
			.buf = u->mem + off, .dev = u->dev, .off = off, .row_len = len};
		struct penstock_req req = request(st, &seg, 1, PENSTOCK_READ);
		int n;

		req.user = u;
		if (sent < EACH && penstock_submit(own, &req, 1, NULL) == 1) {
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

static void two_queues(void **state)
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
			start(&users[i].thread, own_queue, &users[i]);
		for (unsigned i = 0; i < 2; i++) {
			struct user *u = &users[i];
			unsigned there = 0;

			pthread_join(u->thread, NULL);
			assert_int_equal(u->wrong, 0);
			assert_int_equal(u->ended, EACH);
			test_copy(host, back, dev, u->mem, LEN);
			for (unsigned b = 0; b < LEN; b++) {
				there += back[b] == bytes[b];
				if (back[b] != bytes[b] && back[b] != 0xee)
					fail_msg("byte %u is wrong", b);
			}
			assert_true(there > EACH * 10000);
			penstock_free(dev, u->mem);
		}
	}
}

static _Atomic uint64_t last_id;
static _Atomic bool all_sent;

static void *submitter(void *arg)
{
	for (unsigned i = 0; i < MAX;) {
		struct penstock_seg seg;
		struct penstock_req req = read_at(&seg, i, i * 20000ull, 20000);
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

static void *canceller(void *arg)
{
	while (!atomic_load(&all_sent)) {
		penstock_cancel(q, atomic_load(&last_id));
		sched_yield();
	}
	return arg;
}

/* One submits, one harvests, one cancels: every request ends once, with what it says. */
static void three_threads(void **state)
{
	unsigned have = 0, cancelled = 0;
	pthread_t threads[2];

	(void)state;
	begin_case(0, 32);
	atomic_store(&last_id, 0);
	atomic_store(&all_sent, false);
	start(&threads[0], submitter, NULL);
	start(&threads[1], canceller, NULL);
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
		cmocka_unit_test_teardown(queue_closes, end_queue),
		cmocka_unit_test_teardown(storage_closes, end_queue),
		cmocka_unit_test_teardown(detached, end_queue),
		cmocka_unit_test_teardown(two_queues, end_queue),
		cmocka_unit_test_teardown(three_threads, end_queue),
		cmocka_unit_test_teardown(detached_awaited, end_queue),
		cmocka_unit_test_teardown(guest_closes, end_queue),
		cmocka_unit_test_teardown(caller_sleeps, end_queue),
		cmocka_unit_test_teardown(others_work_on, end_queue),
		cmocka_unit_test_teardown(device_closes, end_queue),
	};

	return run_queues(tests);
}
