/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane in a system call that does not come back, as of a server that went away, and what
 * others have put on its lists: it can be cancelled, has its deadline, and is ended by
 * closing the queue, once, while the lane still hangs. What the lane has begun is not: its
 * memory is the library's until the call returns. No test waits for the lane before it lets
 * it go.
 */
#include "world.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"
#include "core/lane/pump.h"
#include "core/queue/queue.h"

#define LEN (4u << 20)
#define PIECE (64u << 10)
#define LONG_TURN 30000000u /* ns, and a lane is at its turn for too long */
#define LIMIT 20000000000LL /* nothing takes as long but a hang */
#define SOON 20000000u	    /* ns */
#define ALL UINT32_MAX	    /* calls that may go on */
#define REQUESTS 256
#define SEEN 254 /* the request that hang_one looks with */
#define EACH 48	 /* requests of a round */
#define ROUNDS 24

static struct penstock_device *host;
static struct penstock_storage *st;
static struct penstock_queue *q;
static unsigned char *mem;
static unsigned fired[REQUESTS];
static struct penstock_report reports[REQUESTS];
static const char *name;

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int setup(void **state)
{
	(void)state;
	name = world_name("hung", false);
	world_file(name, LEN, 1);
	world_cache(name, true);
	mem = malloc(LEN);
	return !mem || penstock_open(name, NULL, &st);
}

static int teardown(void **state)
{
	(void)state;
	penstock_close(st);
	free(mem);
	unlink(name);
	return 0;
}

static int begin(unsigned lanes)
{
	host = world_device_of("host", "threads", PIECE, lanes);
	return penstock_prepare(st, host, PENSTOCK_READ);
}

/* Whatever is handed in comes to the lane that hangs. */
static int one_lane(void **state)
{
	(void)state;
	return begin(1);
}

static int two_lanes(void **state)
{
	(void)state;
	return begin(2);
}

/* A case that failed leaves nobody hanging. */
static int end_case(void **state)
{
	(void)state;
	calls_disarm();
	calls_let(ALL);
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
	memset(fired, 0, sizeof(fired));
	memset(mem, 0x11, LEN);
	alarm(3 * LIMIT / 1000000000);
}

static void fire(const struct penstock_done *one)
{
	uintptr_t i = (uintptr_t)one->user;

	fired[i]++;
	reports[i] = *one->report;
}

static void ended(unsigned i)
{
	uint64_t until = now_ns() + LIMIT;

	while (!fired[i] && now_ns() < until)
		penstock_wait(q, NULL, 1, 0, LIMIT);
	if (fired[i] != 1)
		fail_msg("request %u has ended %u times", i, fired[i]);
}

/* Request `i`, through the page cache, by a call on the lane's own thread. */
static struct penstock_req read_of(struct penstock_seg *seg, unsigned i, uint64_t len)
{
	struct penstock_req req = PENSTOCK_REQ_INIT;
	uint64_t off = len == LEN ? 0 : (uint64_t)i % (LEN / PIECE) * PIECE;

	*seg = (struct penstock_seg){.buf = mem + off, .dev = host, .off = off, .row_len = len};
	req.storage = st;
	req.segs = seg;
	req.seg_count = 1;
	req.path = "bounce";
	req.user = (void *)(uintptr_t)i;
	req.done = fire;
	return req;
}

static uint64_t submit(struct penstock_queue *to, unsigned i, uint64_t len, uint64_t deadline_ns)
{
	struct penstock_seg seg;
	struct penstock_req req = read_of(&seg, i, len);
	uint64_t id;

	req.deadline_ns = deadline_ns;
	if (penstock_submit(to, &req, 1, &id) != 1)
		fail_msg("submit: %s", penstock_errmsg());
	return id;
}

/* Request 0 has hung the first lane, which then took up 1 to `count`; and hangs in 1. */
static void hang(unsigned count, uint64_t *ids, uint64_t deadline_ns)
{
	calls_arm_onwards(CALLS_FILL, 1, CALLS_HANG);
	submit(q, 0, PIECE, 0);
	assert_true(calls_await(1));
	for (unsigned i = 1; i <= count; i++)
		ids[i] = submit(q, i, PIECE, i > 1 ? deadline_ns : 0);
	calls_let(1);
	ended(0);
	assert_int_equal(reports[0].result, PIECE);
	assert_true(calls_await(2));
	assert_int_equal(calls_disarm(), 2);
}

static void ends_with(unsigned i, int64_t result, enum penstock_why why)
{
	ended(i);
	assert_int_equal(reports[i].result, result);
	assert_int_equal(reports[i].why, why);
	assert_int_equal(reports[i].bytes, result < 0 ? 0 : result);
	if (result < 0)
		assert_true(strlen(reports[i].text) > 10);
}

/* The lane comes back: request 1 ends, nothing else does, and of what had ended before
 * nothing comes. */
static void lane_comes_back(int64_t result, unsigned count)
{
	memset(mem + 2 * PIECE, 0x22, LEN - 2 * PIECE);
	assert_int_equal(penstock_poll(q, NULL, 0), 0);
	assert_int_equal(fired[1], 0);
	calls_let(ALL);
	ends_with(1, result, PENSTOCK_WHY_NONE);
	submit(q, REQUESTS - 1, PIECE, 0); /* behind all that was on its list */
	ends_with(REQUESTS - 1, PIECE, PENSTOCK_WHY_NONE);
	assert_int_equal(penstock_wait(q, NULL, 1, 0, LIMIT), 0);
	for (unsigned i = 0; i <= count; i++)
		assert_int_equal(fired[i], 1);
	for (unsigned i = 2 * PIECE; i < LEN - PIECE; i++)
		if (mem[i] != 0x22)
			fail_msg("byte %u came after the end", i);
}

/* What it has begun does not end, what is behind that does. */
static void cancelled(void **state)
{
	uint64_t ids[6];

	(void)state;
	begin_case(0);
	hang(5, ids, 0);
	assert_int_equal(penstock_cancel(q, ids[1]), 0);
	for (unsigned i = 5; i > 1; i--) {
		assert_int_equal(penstock_cancel(q, ids[i]), 0);
		ends_with(i, -ECANCELED, PENSTOCK_WHY_CANCELLED);
		assert_int_equal(penstock_cancel(q, ids[i]), -ENOENT);
	}
	lane_comes_back(PIECE, 5);
}

static void *wait_long(void *arg)
{
	penstock_wait(q, NULL, 1, 0, LIMIT);
	return arg;
}

static void late(void **state)
{
	uint64_t ids[5], until;
	pthread_t thread;

	(void)state;
	begin_case(0);
	hang(4, ids, now_ns() + SOON);
	for (unsigned i = 2; i < 5; i++)
		ends_with(i, -ETIME, PENSTOCK_WHY_DEADLINE);
	assert_int_equal(pthread_create(&thread, NULL, wait_long, NULL), 0);
	while (!atomic_load(&q->asleep))
		sched_yield();
	submit(q, 6, PIECE, now_ns() + SOON); /* who sleeps has not heard of it */
	pthread_join(thread, NULL);
	assert_int_equal(fired[6], 1);
	submit(q, 5, PIECE, now_ns() + SOON); /* not even taken up */
	until = now_ns() + LIMIT;
	while (!penstock_poll(q, NULL, 0) && now_ns() < until)
		sched_yield();
	ends_with(5, -ETIME, PENSTOCK_WHY_DEADLINE);
	lane_comes_back(PIECE, 6);
}

/* The storage's and the device's other users get on. */
static void one_call(void **state)
{
	struct penstock_seg seg;
	struct penstock_req req = read_of(&seg, 0, LEN);
	uint64_t ids[3];

	(void)state;
	begin_case(0);
	hang(2, ids, 0);
	req.done = NULL;
	for (unsigned i = 0; i < 5; i++) {
		req.deadline_ns = now_ns() + SOON;
		assert_int_equal(penstock_transfer(&req, NULL), -ETIME);
	}
	assert_int_equal(penstock_cancel(q, ids[2]), 0);
	ends_with(2, -ECANCELED, PENSTOCK_WHY_CANCELLED);
	lane_comes_back(PIECE, 2);
}

/* A queue with nothing begun closes while the lane still has its requests on a list. */
static void queue_closes(void **state)
{
	struct penstock_queue *more;
	uint64_t ids[2];

	(void)state;
	begin_case(0);
	hang(1, ids, 0);
	for (unsigned round = 0; round < 3; round++) {
		assert_int_equal(penstock_queue_open(NULL, &more), 0);
		for (unsigned i = 2; i < 10; i++)
			submit(more, i, PIECE, 0);
		penstock_queue_close(more);
	}
	for (unsigned i = 2; i < 10; i++)
		assert_int_equal(fired[i], 0);
	lane_comes_back(PIECE, 1);
}

/* One of two hangs in request 1, for so long that it is noticed: by who hands something in
 * and has seen it at this turn before. Returns it. */
static struct pst_lane *hang_one(void)
{
	struct pst_lane *lane;
	uint64_t id, until;

	submit(q, 0, PIECE, 0);
	ended(0);
	calls_arm(CALLS_FILL, 1, CALLS_HANG);
	id = submit(q, 1, PIECE, 0);
	assert_true(calls_await(1));
	calls_disarm();
	lane = q->requests[(uint32_t)id].home_lane;
	penstock_cancel(q, submit(q, SEEN, PIECE, 0)); /* it may be on that lane's list */
	ended(SEEN);
	until = now_ns() + LONG_TURN;
	while (now_ns() < until)
		usleep(1000);
	return lane;
}

/* Or it might be kept from its processor for as long as the other hangs. */
static void await_idle(const struct pst_lane *lane)
{
	uint64_t until = now_ns() + LIMIT;

	while ((atomic_load(&lane->load) || atomic_load(&lane->busy_seen)) && now_ns() < until)
		sched_yield();
	assert_int_equal(atomic_load(&lane->load), 0);
}

static struct pst_lane *beside(const struct pst_lane *lane)
{
	return &lane->pump->lanes[!lane->index];
}

/* What comes next goes to a lane that does its work. The one that hangs has room, and is
 * taken again when it has come back. */
static void others_are_idle(void **state)
{
	struct pst_lane *lane;
	struct pst_request *req;
	uint64_t until;
	unsigned load;

	(void)state;
	begin_case(0);
	lane = hang_one();
	load = atomic_load(&lane->load);
	for (unsigned i = 2; i < 10; i++) {
		await_idle(beside(lane));
		submit(q, i, PIECE, 0);
		ends_with(i, PIECE, PENSTOCK_WHY_NONE);
	}
	assert_int_equal(atomic_load(&lane->load), load);
	lane_comes_back(PIECE, 9);
	until = now_ns() + LIMIT;
	do {
		fired[0] = 0;
		req = &q->requests[(uint32_t)submit(q, 0, PIECE, 0)];
		ended(0);
	} while (req->home_lane->index && now_ns() < until);
	assert_int_equal(req->home_lane->index, 0); /* it was this one, but for a slow machine */
}

/* With nobody else it is as before: it waits for the lane, and can be cancelled. */
static void nobody_else(void **state)
{
	uint64_t id;

	(void)state;
	begin_case(0);
	hang_one();
	id = submit(q, 2, PIECE, 0);
	assert_int_equal(penstock_cancel(q, id), 0);
	ends_with(2, -ECANCELED, PENSTOCK_WHY_CANCELLED);
	lane_comes_back(PIECE, 2);
}

/* Another lane has moved all of it; this one was to help. */
static void done_by_others(void **state)
{
	struct pst_lane *lane;
	struct pst_lane_entry *newest;
	struct pst_request *req;
	uint64_t id;

	(void)state;
	begin_case(0);
	lane = hang_one();
	newest = atomic_load(&lane->inbox);
	await_idle(beside(lane));
	id = submit(q, 2, LEN, 0);
	req = &q->requests[(uint32_t)id];
	while (atomic_load(&req->bytes) < LEN)
		sched_yield();
	assert_ptr_not_equal(atomic_load(&lane->inbox), newest);
	assert_int_equal(penstock_cancel(q, id), 0);
	ends_with(2, LEN, PENSTOCK_WHY_NONE);
	lane_comes_back(PIECE, 2);
}

/* Nothing to write, but to make durable what was: that has not begun either. */
static void sync_only(void **state)
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
	hang(1, ids, 0);
	req.segs = &seg;
	req.seg_count = 1;
	req.op = PENSTOCK_WRITE;
	req.flags = PENSTOCK_R_DURABLE;
	req.user = (void *)(uintptr_t)2;
	req.done = fire;
	assert_int_equal(penstock_submit(q, &req, 1, &id), 1);
	assert_int_equal(penstock_cancel(q, id), 0);
	ends_with(2, -ECANCELED, PENSTOCK_WHY_CANCELLED);
	lane_comes_back(PIECE, 2);
	penstock_close(req.storage);
}

/* Places come back with the lane. Until then there are twice as many as may be in flight. */
static void places(void **state)
{
	struct penstock_seg seg;
	struct penstock_req req = read_of(&seg, 20, PIECE);
	uint64_t ids[2];

	(void)state;
	begin_case(8);
	hang(1, ids, 0);
	for (unsigned i = 2; i <= 15; i++) { /* one is hanging, one was the first */
		assert_int_equal(penstock_cancel(q, submit(q, i, PIECE, 0)), 0);
		ends_with(i, -ECANCELED, PENSTOCK_WHY_CANCELLED);
	}
	assert_int_equal(penstock_cancel(q, submit(q, 16, PIECE, 0)), 0);
	ends_with(16, -ECANCELED, PENSTOCK_WHY_CANCELLED);
	assert_int_equal(penstock_submit(q, &req, 1, NULL), -EAGAIN);
	assert_non_null(strstr(penstock_errmsg(), "hang"));
	lane_comes_back(PIECE, 16);
}

/* ---- at random ---- */

static _Atomic bool stop;

/* Lets calls go on, all but the last few. */
static void *let_some(void *arg)
{
	uint64_t seed = *(uint64_t *)arg;

	while (!atomic_load(&stop)) {
		unsigned seen = calls_seen(), few = (unsigned)(test_random(&seed) % 4);

		calls_let(seen > few ? seen - few : 0);
		usleep((useconds_t)(test_random(&seed) % 2000));
	}
	calls_let(ALL);
	return arg;
}

static void judge(unsigned i, uint64_t len, const unsigned char *bytes)
{
	const struct penstock_report *report = &reports[i];
	unsigned char *at = mem + (uint64_t)i * (LEN / EACH);

	assert_int_equal(fired[i], 1);
	if (report->result >= 0) {
		assert_int_equal(report->result, len);
		assert_memory_equal(at, bytes + i * (LEN / EACH), len);
	} else if (report->result != -ECANCELED) {
		assert_int_equal(report->result, -ETIME);
	}
	memset(at, 0x33, len); /* it is ours */
}

/* Returns how many ended early. */
static unsigned round_of(uint64_t *seed, bool closes, const unsigned char *bytes)
{
	uint64_t lens[EACH], ids[EACH];
	unsigned early = 0, have = 0;

	begin_case(EACH);
	for (unsigned i = 0; i < EACH; i++) {
		struct penstock_seg seg;
		struct penstock_req req = read_of(&seg, i, PIECE);

		lens[i] = seg.row_len = 1 + test_random(seed) % (LEN / EACH);
		seg.off = (uint64_t)i * (LEN / EACH);
		seg.buf = mem + seg.off;
		if (!(test_random(seed) % 3))
			req.deadline_ns = now_ns() + test_random(seed) % 8000000;
		assert_int_equal(penstock_submit(q, &req, 1, &ids[i]), 1);
		if (!(test_random(seed) % 3))
			penstock_cancel(q, ids[test_random(seed) % (i + 1)]);
	}
	for (bool was[EACH] = {false}; have < (closes ? EACH / 2 : EACH);) {
		assert_true(penstock_wait(q, NULL, 1, 0, LIMIT) > 0);
		for (unsigned i = 0; i < EACH; i++)
			if (fired[i] && !was[i]) {
				was[i] = true;
				have++;
				early += reports[i].result < 0;
				judge(i, lens[i], bytes);
			}
		penstock_cancel(q, ids[test_random(seed) % EACH]);
	}
	if (closes)
		memset(fired, 0, sizeof(fired));
	penstock_queue_close(q);
	q = NULL;
	if (closes)
		memset(mem, 0x33, LEN);
	for (unsigned i = 0; i < EACH; i++) {
		assert_int_equal(fired[i], !closes);
		for (uint64_t b = 0; b < lens[i]; b++)
			if (mem[i * (LEN / EACH) + b] != 0x33)
				fail_msg("request %u: byte %llu came after its end", i,
					 (unsigned long long)b);
	}
	return early;
}

static void at_random(void **state)
{
	uint64_t seed = test_seed(37), other = seed + 1;
	unsigned char *bytes = malloc(LEN);
	unsigned early = 0;
	pthread_t thread;

	(void)state;
	world_fill(bytes, LEN, 1);
	atomic_store(&stop, false);
	calls_arm_onwards(CALLS_FILL, 1, CALLS_HANG);
	assert_int_equal(pthread_create(&thread, NULL, let_some, &other), 0);
	for (unsigned round = 0; round < ROUNDS; round++)
		early += round_of(&seed, round % 3 == 2, bytes);
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	printf("# %u requests ended early\n", early);
	free(bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(cancelled, one_lane, end_case),
		cmocka_unit_test_setup_teardown(late, one_lane, end_case),
		cmocka_unit_test_setup_teardown(one_call, one_lane, end_case),
		cmocka_unit_test_setup_teardown(queue_closes, one_lane, end_case),
		cmocka_unit_test_setup_teardown(others_are_idle, two_lanes, end_case),
		cmocka_unit_test_setup_teardown(nobody_else, one_lane, end_case),
		cmocka_unit_test_setup_teardown(done_by_others, two_lanes, end_case),
		cmocka_unit_test_setup_teardown(sync_only, one_lane, end_case),
		cmocka_unit_test_setup_teardown(places, one_lane, end_case),
		cmocka_unit_test_setup_teardown(at_random, two_lanes, end_case),
	};

	world_use_standin();
	return cmocka_run_group_tests_name("hung", tests, setup, teardown);
}
