/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane (a thread that moves bytes) hangs in a system call, as if a file server went away.
 * Meanwhile each other request on the lane's lists still completes exactly once: when it is
 * cancelled, when its deadline passes, or when the queue closes. A request whose system call has
 * started does not complete, because the kernel may write to its memory until the call returns. No
 * test waits for the lane before it releases the call.
 */
#include "fixture.h"
#include "page_cache.h"
#include "request.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "calls.h"
#include "core/lane/lane.h"
#include "core/lane/pump.h"
#include "core/queue/queue.h"

#define LEN (4u << 20)
#define PIECE (64u << 10)
#define HUNG_NS 30000000u     /* time in ns after which the library considers a thread as hanging */
#define WAIT_NS 20000000000LL /* timeout in ns; only a hang lasts that long */
#define SOON_NS 20000000u     /* time in ns until a deadline in the near future */
#define CALLS_ALL UINT32_MAX  /* argument of calls_release that releases every call */
#define REQUESTS 256
#define PROBE_REQUEST 254 /* index of a request that hang_one_of_two submits */
#define ROUND_REQUESTS 48 /* number of requests in a round */
#define ROUNDS 24

static struct penstock_device *host;
static struct penstock_storage *st;
static struct penstock_queue *q;
static unsigned char *mem;
static unsigned completions[REQUESTS];
static struct penstock_report reports[REQUESTS];
static const char *name;
/* The file's bytes, which stay in the page cache. A lane makes the calls for cached bytes itself,
 * and passes other calls to a thread of its engine, which would hang in its place. */
static struct test_held held;

static int setup(void **state)
{
	(void)state;
	name = fixture_name("hung", false);
	fixture_make_file(name, LEN, 1);
	held = test_hold(name, LEN);
	mem = malloc(LEN);
	return !mem || penstock_open(name, NULL, &st);
}

static int teardown(void **state)
{
	(void)state;
	penstock_close(st);
	test_release(held);
	free(mem);
	unlink(name);
	return 0;
}

static int open_device(unsigned lanes)
{
	host = fixture_open_device_lanes("host", "threads", PIECE, lanes);
	return penstock_prepare(st, host, PENSTOCK_READ);
}

/* With one lane (worker thread), every request goes to the lane that hangs. */
static int one_lane(void **state)
{
	(void)state;
	return open_device(1);
}

static int two_lanes(void **state)
{
	(void)state;
	return open_device(2);
}

/* Releases all blocked calls, also after a case that failed. */
static int end_case(void **state)
{
	(void)state;
	calls_disarm();
	calls_release(CALLS_ALL);
	penstock_queue_close(q);
	q = NULL;
	penstock_device_close(host);
	alarm(0);
	return 0;
}

static void begin_case(unsigned requests_max)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;

	opts.requests_max = requests_max;
	assert_int_equal(penstock_queue_open(&opts, &q), 0);
	memset(completions, 0, sizeof(completions));
	memset(mem, 0x11, LEN);
	alarm(3 * WAIT_NS / 1000000000);
}

static void record_completion(const struct penstock_done *one)
{
	uintptr_t i = (uintptr_t)one->user;

	completions[i]++;
	reports[i] = *one->report;
}

static void await_completion(unsigned i)
{
	uint64_t until = test_now_ns() + WAIT_NS;

	while (!completions[i] && test_now_ns() < until)
		penstock_wait(q, NULL, 1, 0, WAIT_NS);
	if (completions[i] != 1)
		fail_msg("request %u has ended %u times", i, completions[i]);
}

/* Makes request `i`, a read through the page cache. The device's worker thread (lane) makes the
 * system call for it. */
static struct penstock_req read_req(struct penstock_seg *seg, unsigned i, uint64_t len)
{
	struct penstock_req req;
	uint64_t off = len == LEN ? 0 : (uint64_t)i % (LEN / PIECE) * PIECE;

	*seg = (struct penstock_seg){.buf = mem + off, .dev = host, .off = off, .row_len = len};
	req = test_request(st, seg, 1, PENSTOCK_READ);
	req.path = "bounce";
	req.user = (void *)(uintptr_t)i;
	req.done = record_completion;
	return req;
}

static uint64_t submit(struct penstock_queue *to, unsigned i, uint64_t len, uint64_t deadline_ns)
{
	struct penstock_seg seg;
	struct penstock_req req = read_req(&seg, i, len);
	uint64_t id;

	req.deadline_ns = deadline_ns;
	if (penstock_submit(to, &req, 1, &id) != 1)
		fail_msg("submit: %s", penstock_errmsg());
	return id;
}

/* Makes the lane (the worker thread) hang: it blocks in the system call of request 0 until
 * requests 1 to `count` are on its lists, and then blocks in the system call of request 1. */
static void hang_lane(unsigned count, uint64_t *ids, uint64_t deadline_ns)
{
	calls_arm_onwards(CALLS_FILL, 1, CALLS_HANG);
	submit(q, 0, PIECE, 0);
	assert_true(calls_await_hits(1));
	for (unsigned i = 1; i <= count; i++)
		ids[i] = submit(q, i, PIECE, i > 1 ? deadline_ns : 0);
	calls_release(1);
	await_completion(0);
	assert_int_equal(reports[0].result, PIECE);
	assert_true(calls_await_hits(2));
	assert_int_equal(calls_disarm(), 2);
}

static void assert_completion(unsigned i, int64_t result, enum penstock_why why)
{
	await_completion(i);
	assert_int_equal(reports[i].result, result);
	assert_int_equal(reports[i].why, why);
	assert_int_equal(reports[i].bytes, result < 0 ? 0 : result);
	if (result < 0)
		assert_true(strlen(reports[i].text) > 10);
}

/* Releases the lane (the hanging worker thread). Then only request 1 completes, because all other
 * requests completed before. The lane must not write to the memory of the other requests. */
static void release_lane_and_check(int64_t result, unsigned count)
{
	memset(mem + 2 * PIECE, 0x22, LEN - 2 * PIECE);
	assert_int_equal(penstock_poll(q, NULL, 0), 0);
	assert_int_equal(completions[1], 0);
	calls_release(CALLS_ALL);
	assert_completion(1, result, PENSTOCK_WHY_NONE);
	submit(q, REQUESTS - 1, PIECE,
	       /* waits until this last request has completed; by then the worker thread has
	        * handled all requests on its lists */
	       0);
	assert_completion(REQUESTS - 1, PIECE, PENSTOCK_WHY_NONE);
	assert_int_equal(penstock_wait(q, NULL, 1, 0, WAIT_NS), 0);
	for (unsigned i = 0; i <= count; i++)
		assert_int_equal(completions[i], 1);
	for (unsigned i = 2 * PIECE; i < LEN - PIECE; i++)
		if (mem[i] != 0x22)
			fail_msg("byte %u came after the end", i);
}

/* Cancelling a request that the worker thread (lane) has started does not complete it. Cancelling
 * a request that has not started completes it. */
static void cancel_while_lane_hangs(void **state)
{
	uint64_t ids[6];

	(void)state;
	begin_case(0);
	hang_lane(5, ids, 0);
	assert_int_equal(penstock_cancel(q, ids[1]), 0);
	for (unsigned i = 5; i > 1; i--) {
		assert_int_equal(penstock_cancel(q, ids[i]), 0);
		assert_completion(i, -ECANCELED, PENSTOCK_WHY_CANCELLED);
		assert_int_equal(penstock_cancel(q, ids[i]), -ENOENT);
	}
	release_lane_and_check(PIECE, 5);
}

static void *wait_long(void *arg)
{
	penstock_wait(q, NULL, 1, 0, WAIT_NS);
	return arg;
}

static void deadline_while_lane_hangs(void **state)
{
	uint64_t ids[5], until;
	pthread_t thread;

	(void)state;
	begin_case(0);
	hang_lane(4, ids, test_now_ns() + SOON_NS);
	for (unsigned i = 2; i < 5; i++)
		assert_completion(i, -ETIME, PENSTOCK_WHY_DEADLINE);
	assert_int_equal(pthread_create(&thread, NULL, wait_long, NULL), 0);
	while (!atomic_load(&q->asleep))
		sched_yield();
	/* The other thread already sleeps, and has not taken the deadline of this request into
	 * account. */
	submit(q, 6, PIECE, test_now_ns() + SOON_NS);
	pthread_join(thread, NULL);
	assert_int_equal(completions[6], 1);
	/* The hanging worker thread has not even taken this request from its inbox. */
	submit(q, 5, PIECE, test_now_ns() + SOON_NS);
	until = test_now_ns() + WAIT_NS;
	while (!penstock_poll(q, NULL, 0) && test_now_ns() < until)
		sched_yield();
	assert_completion(5, -ETIME, PENSTOCK_WHY_DEADLINE);
	release_lane_and_check(PIECE, 6);
}

/* Other users of the storage and the device do not hang: a call of penstock_transfer returns when
 * its deadline has passed. */
static void one_call_while_lane_hangs(void **state)
{
	struct penstock_seg seg;
	struct penstock_req req = read_req(&seg, 0, LEN);
	uint64_t ids[3];

	(void)state;
	begin_case(0);
	hang_lane(2, ids, 0);
	req.done = NULL;
	for (unsigned i = 0; i < 5; i++) {
		req.deadline_ns = test_now_ns() + SOON_NS;
		assert_int_equal(penstock_transfer(&req, NULL), -ETIME);
	}
	assert_int_equal(penstock_cancel(q, ids[2]), 0);
	assert_completion(2, -ECANCELED, PENSTOCK_WHY_CANCELLED);
	release_lane_and_check(PIECE, 2);
}

/* None of the queue's requests has started. It must be possible to close the queue while the
 * hanging worker thread still has these requests on a list. */
static void queue_closes_while_lane_hangs(void **state)
{
	struct penstock_queue *more;
	uint64_t ids[2];

	(void)state;
	begin_case(0);
	hang_lane(1, ids, 0);
	for (unsigned round = 0; round < 3; round++) {
		assert_int_equal(penstock_queue_open(NULL, &more), 0);
		for (unsigned i = 2; i < 10; i++)
			submit(more, i, PIECE, 0);
		penstock_queue_close(more);
	}
	for (unsigned i = 2; i < 10; i++)
		assert_int_equal(completions[i], 0);
	release_lane_and_check(PIECE, 1);
}

/* Makes one of two lanes (worker threads) hang in request 1 for so long that the library considers
 * it as hanging: a submit finds that the lane has made no progress since an earlier submit. Returns
 * the hanging lane. */
static struct pst_lane *hang_one_of_two(void)
{
	struct pst_lane *lane;
	uint64_t id, until;

	submit(q, 0, PIECE, 0);
	await_completion(0);
	calls_arm(CALLS_FILL, 1, CALLS_HANG);
	id = submit(q, 1, PIECE, 0);
	assert_true(calls_await_hits(1));
	calls_disarm();
	lane = q->requests[(uint32_t)id].home_lane;
	/* The library may have given this request to the hanging thread, so the test cancels it. */
	penstock_cancel(q, submit(q, PROBE_REQUEST, PIECE, 0));
	await_completion(PROBE_REQUEST);
	until = test_now_ns() + HUNG_NS;
	while (test_now_ns() < until)
		usleep(1000);
	return lane;
}

/* Waits until a worker thread (lane) is idle. On a busy machine the library might otherwise give
 * requests to the hanging thread instead. */
static void await_idle(const struct pst_lane *lane)
{
	uint64_t until = test_now_ns() + WAIT_NS;

	while ((atomic_load(&lane->load) || atomic_load(&lane->busy_seen)) && test_now_ns() < until)
		sched_yield();
	assert_int_equal(atomic_load(&lane->load), 0);
}

static struct pst_lane *other_lane(const struct pst_lane *lane)
{
	return &lane->pump->lanes[!lane->index];
}

/* New requests go to the lane (worker thread) that does not hang, although the hanging lane could
 * accept more requests. The hanging lane gets requests again after it has continued. */
static void requests_avoid_the_hanging_lane(void **state)
{
	struct pst_lane *lane;
	struct pst_request *req;
	uint64_t until;
	unsigned load;

	(void)state;
	begin_case(0);
	lane = hang_one_of_two();
	load = atomic_load(&lane->load);
	for (unsigned i = 2; i < 10; i++) {
		await_idle(other_lane(lane));
		submit(q, i, PIECE, 0);
		assert_completion(i, PIECE, PENSTOCK_WHY_NONE);
	}
	assert_int_equal(atomic_load(&lane->load), load);
	release_lane_and_check(PIECE, 9);
	until = test_now_ns() + WAIT_NS;
	do {
		completions[0] = 0;
		req = &q->requests[(uint32_t)submit(q, 0, PIECE, 0)];
		await_completion(0);
	} while (req->home_lane->index && test_now_ns() < until);
	/* A slow machine may need several requests until the library gives one to this worker
	 * thread. */
	assert_int_equal(req->home_lane->index, 0);
}

/* If the device has no other worker thread (lane), a request waits for the hanging one and can be
 * cancelled. */
static void request_waits_for_the_only_lane(void **state)
{
	uint64_t id;

	(void)state;
	begin_case(0);
	hang_one_of_two();
	id = submit(q, 2, PIECE, 0);
	assert_int_equal(penstock_cancel(q, id), 0);
	assert_completion(2, -ECANCELED, PENSTOCK_WHY_CANCELLED);
	release_lane_and_check(PIECE, 2);
}

/* Two lanes (worker threads) carry parts of a request. The first lane hangs after the second lane
 * has moved all remaining bytes. A cancel that comes later must not change the request's result. */
static void cancel_after_another_lane_moved_all(void **state)
{
	struct pst_lane *lane;
	struct pst_lane_entry *newest;
	struct pst_request *req;
	uint64_t id;

	(void)state;
	begin_case(0);
	lane = hang_one_of_two();
	newest = atomic_load(&lane->inbox);
	await_idle(other_lane(lane));
	id = submit(q, 2, LEN, 0);
	req = &q->requests[(uint32_t)id];
	while (atomic_load(&req->bytes) < LEN)
		sched_yield();
	assert_ptr_not_equal(atomic_load(&lane->inbox), newest);
	assert_int_equal(penstock_cancel(q, id), 0);
	assert_completion(2, LEN, PENSTOCK_WHY_NONE);
	release_lane_and_check(PIECE, 2);
}

/* A durable request without bytes waits for its sync, which has not started. It can be
 * cancelled. */
static void cancel_of_a_sync(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_seg seg = {.buf = mem, .dev = host};
	uint64_t ids[2], id;

	(void)state;
	opts.flags = PENSTOCK_O_WRITE;
	assert_int_equal(penstock_open(name, &opts, &req.storage), 0);
	assert_int_equal(penstock_prepare(req.storage, host, PENSTOCK_WRITE), 0);
	begin_case(0);
	hang_lane(1, ids, 0);
	req.segs = &seg;
	req.seg_count = 1;
	req.op = PENSTOCK_WRITE;
	req.flags = PENSTOCK_R_DURABLE;
	req.user = (void *)(uintptr_t)2;
	req.done = record_completion;
	assert_int_equal(penstock_submit(q, &req, 1, &id), 1);
	assert_int_equal(penstock_cancel(q, id), 0);
	assert_completion(2, -ECANCELED, PENSTOCK_WHY_CANCELLED);
	release_lane_and_check(PIECE, 2);
	penstock_close(req.storage);
}

/* A cancelled request completes at once, but its queue entry stays occupied while the hanging lane
 * (worker thread) has the request on its list. At most 8 requests may be in flight, and the queue
 * has twice as many entries. When all 16 are occupied, submit fails. They become free when the lane
 * continues. */
static void entries_return_with_the_lane(void **state)
{
	struct penstock_seg seg;
	struct penstock_req req = read_req(&seg, 20, PIECE);
	uint64_t ids[2];

	(void)state;
	begin_case(8);
	hang_lane(1, ids, 0);
	/* The hanging request 1 occupies one of the queue's 16 entries. The entry of request 0 is
	 * free again, because request 0 has completed. */
	for (unsigned i = 2; i <= 15; i++) {
		assert_int_equal(penstock_cancel(q, submit(q, i, PIECE, 0)), 0);
		assert_completion(i, -ECANCELED, PENSTOCK_WHY_CANCELLED);
	}
	assert_int_equal(penstock_cancel(q, submit(q, 16, PIECE, 0)), 0);
	assert_completion(16, -ECANCELED, PENSTOCK_WHY_CANCELLED);
	assert_int_equal(penstock_submit(q, &req, 1, NULL), -EAGAIN);
	assert_non_null(strstr(penstock_errmsg(), "hang"));
	release_lane_and_check(PIECE, 16);
}

/* ---- random cancels and closes ---- */

static _Atomic bool stop;

/* Releases blocked calls at random times. Up to three of the latest calls stay blocked until a
 * later release, so that the test also cancels requests of a hanging worker thread. When `stop` is
 * set, releases all calls and ends. */
static void *release_at_random(void *arg)
{
	uint64_t seed = *(uint64_t *)arg;

	while (!atomic_load(&stop)) {
		unsigned seen = calls_counted(), few = (unsigned)(test_random(&seed) % 4);

		calls_release(seen > few ? seen - few : 0);
		usleep((useconds_t)(test_random(&seed) % 2000));
	}
	calls_release(CALLS_ALL);
	return arg;
}

static void check_request(unsigned i, uint64_t len, const unsigned char *bytes)
{
	const struct penstock_report *report = &reports[i];
	unsigned char *at = mem + (uint64_t)i * (LEN / ROUND_REQUESTS);

	assert_int_equal(completions[i], 1);
	if (report->result >= 0) {
		assert_int_equal(report->result, len);
		assert_memory_equal(at, bytes + i * (LEN / ROUND_REQUESTS), len);
	} else if (report->result != -ECANCELED) {
		assert_int_equal(report->result, -ETIME);
	}
	memset(at, 0x33, len); /* after the completion, only the test may write to the memory */
}

/* Runs one round of random requests, cancels and deadlines. Returns how many requests completed
 * while the worker thread still hung. */
static unsigned random_round(uint64_t *seed, bool closes, const unsigned char *bytes)
{
	uint64_t lens[ROUND_REQUESTS], ids[ROUND_REQUESTS];
	unsigned early = 0, have = 0;

	begin_case(ROUND_REQUESTS);
	for (unsigned i = 0; i < ROUND_REQUESTS; i++) {
		struct penstock_seg seg;
		struct penstock_req req = read_req(&seg, i, PIECE);

		lens[i] = seg.row_len = 1 + test_random(seed) % (LEN / ROUND_REQUESTS);
		seg.off = (uint64_t)i * (LEN / ROUND_REQUESTS);
		seg.buf = mem + seg.off;
		if (!(test_random(seed) % 3))
			req.deadline_ns = test_now_ns() + test_random(seed) % 8000000;
		assert_int_equal(penstock_submit(q, &req, 1, &ids[i]), 1);
		if (!(test_random(seed) % 3))
			penstock_cancel(q, ids[test_random(seed) % (i + 1)]);
	}
	for (bool was[ROUND_REQUESTS] = {false};
	     have < (closes ? ROUND_REQUESTS / 2 : ROUND_REQUESTS);) {
		assert_true(penstock_wait(q, NULL, 1, 0, WAIT_NS) > 0);
		for (unsigned i = 0; i < ROUND_REQUESTS; i++)
			if (completions[i] && !was[i]) {
				was[i] = true;
				have++;
				early += reports[i].result < 0;
				check_request(i, lens[i], bytes);
			}
		penstock_cancel(q, ids[test_random(seed) % ROUND_REQUESTS]);
	}
	if (closes)
		memset(completions, 0, sizeof(completions));
	penstock_queue_close(q);
	q = NULL;
	if (closes)
		memset(mem, 0x33, LEN);
	for (unsigned i = 0; i < ROUND_REQUESTS; i++) {
		assert_int_equal(completions[i], !closes);
		for (uint64_t b = 0; b < lens[i]; b++)
			if (mem[i * (LEN / ROUND_REQUESTS) + b] != 0x33)
				fail_msg("request %u: byte %llu came after its end", i,
					 (unsigned long long)b);
	}
	return early;
}

static void random_cancels_and_closes(void **state)
{
	uint64_t seed = test_seed(37), other = seed + 1;
	unsigned char *bytes = malloc(LEN);
	unsigned early = 0;
	pthread_t thread;

	(void)state;
	fixture_fill(bytes, LEN, 1);
	atomic_store(&stop, false);
	calls_arm_onwards(CALLS_FILL, 1, CALLS_HANG);
	assert_int_equal(pthread_create(&thread, NULL, release_at_random, &other), 0);
	for (unsigned round = 0; round < ROUNDS; round++)
		early += random_round(&seed, round % 3 == 2, bytes);
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	printf("# %u requests ended early\n", early);
	free(bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(cancel_while_lane_hangs, one_lane, end_case),
		cmocka_unit_test_setup_teardown(deadline_while_lane_hangs, one_lane, end_case),
		cmocka_unit_test_setup_teardown(one_call_while_lane_hangs, one_lane, end_case),
		cmocka_unit_test_setup_teardown(queue_closes_while_lane_hangs, one_lane, end_case),
		cmocka_unit_test_setup_teardown(requests_avoid_the_hanging_lane, two_lanes,
						end_case),
		cmocka_unit_test_setup_teardown(request_waits_for_the_only_lane, one_lane,
						end_case),
		cmocka_unit_test_setup_teardown(cancel_after_another_lane_moved_all, two_lanes,
						end_case),
		cmocka_unit_test_setup_teardown(cancel_of_a_sync, one_lane, end_case),
		cmocka_unit_test_setup_teardown(entries_return_with_the_lane, one_lane, end_case),
		cmocka_unit_test_setup_teardown(random_cancels_and_closes, two_lanes, end_case),
	};

	fixture_use_standin();
	return cmocka_run_group_tests_name("hung", tests, setup, teardown);
}
