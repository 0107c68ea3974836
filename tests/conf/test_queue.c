/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of queues, as penstock.h has them: what is refused never fires, what is
 * taken fires once and only inside a harvest, a full queue says so and recovers,
 * cancels, deadlines, priorities, the eventfd, waiting.
 */
#include "queued.h"

#include <poll.h>

/* ---- once, or never ---- */

/* Good ones, empty ones, such as fail and such as are cancelled. */
static void exactly_once(void **state)
{
	uint64_t ids[400];
	unsigned failed = 0, have = 0;

	(void)state;
	begin_case(4, 400);
	for (unsigned i = 0; i < 400; i++) {
		ids[i] = submit_read(i, i * 50000ull, i % 5 ? 1 + i % 7 * 8000 : 0);
		if (i % 11 == 3)
			assert_int_equal(penstock_cancel(q, ids[i]), 0);
	}
	while (have < 400) {
		int n = wait_queue(1, 64, -1);

		assert_in_range(n, 1, 64);
		for (int k = 0; k < n; k++) {
			uintptr_t i = (uintptr_t)done[k].user;

			assert_int_equal(done[k].id, ids[i]);
			assert_int_equal(done[k].result, done[k].report->result);
			assert_true(done[k].result == -EIO || done[k].result == -ECANCELED ||
				    done[k].result == (int64_t)(i % 5 ? 1 + i % 7 * 8000 : 0));
			assert_true(done[k].result != -ECANCELED || i % 11 == 3);
			failed += done[k].result == -EIO;
			ids[i] = UINT64_MAX; /* a second time would not be equal */
		}
		have += (unsigned)n;
	}
	assert_in_range(failed, 1, 399);
	assert_int_equal(have, 400);
	assert_int_equal(wait_queue(1, 64, -1), 0); /* nothing is in flight */
	assert_int_equal(poll_queue(64), 0);
	for (unsigned i = 0; i < 400; i++)
		assert_int_equal(fired[i], 1);
}

/* Makes request `k` faulty, another way for each k, and says what is answered. */
static int spoil(struct penstock_req *req, struct penstock_seg *seg, unsigned k)
{
	switch (k) {
	case 0:
		req->storage = NULL;
		return -EINVAL;
	case 1:
		req->require = PENSTOCK_DIRECT;
		return -EOPNOTSUPP;
	case 2:
		req->op = PENSTOCK_WRITE; /* it was opened for reading */
		return -EBADF;
	case 3:
		req->path = "no-such-path";
		return -EINVAL;
	case 4:
		req->path = "staged"; /* it has no descriptor */
		return -EOPNOTSUPP;
	case 5:
		req->flags = 1u << 30;
		return -EINVAL;
	case 6:
		req->priority = 4;
		return -EINVAL;
	case 7:
		req->flags = PENSTOCK_R_DETACHED; /* without a stream */
		return -EINVAL;
	case 8:
		req->seg_count = 100000;
		return -E2BIG;
	case 9:
		seg->off = UINT64_MAX - 5;
		return -EOVERFLOW;
	case 10:
		seg->buf = NULL;
		return -EINVAL;
	default:
		req->size = 4;
		return -EINVAL;
	}
}

static void refused_never_fires(void **state)
{
	struct penstock_seg segs[3];
	struct penstock_req reqs[3];

	(void)state;
	begin_case(0, 8);
	for (unsigned k = 0; k < 12; k++) {
		uint64_t ids[3] = {7, 7, 7};
		int want;

		for (unsigned i = 0; i < 3; i++)
			reqs[i] = read_at(&segs[i], i, i * 5000, 5000);
		want = spoil(&reqs[0], &segs[0], k);
		if (penstock_submit(q, reqs, 1, ids) != want)
			fail_msg("fault %u: want %d, %s", k, want, penstock_errmsg());
		assert_true(strlen(penstock_errmsg()) > 10);
		assert_int_equal(ids[0], 7); /* written on success only */
		assert_int_equal(wait_queue(1, 8, -1), 0);
		/* In the middle of others: those in front go, the error comes when asked. */
		if (k == 11)
			continue; /* its size is the stride of all */
		reqs[0] = read_at(&segs[0], 0, 0, 5000);
		spoil(&reqs[1], &segs[1], k);
		assert_int_equal(penstock_submit(q, reqs, 3, ids), 1);
		assert_int_equal(penstock_submit(q, reqs + 1, 2, ids), want);
		assert_int_equal(penstock_submit(q, reqs + 2, 1, ids), 1);
		assert_int_equal(wait_queue(2, 8, -1), 2);
		assert_int_equal(fired[0], k + 1);
		assert_int_equal(fired[1], 0);
		assert_int_equal(fired[2], k + 1);
	}
}

/* ---- full ---- */

static void full_and_again(void **state)
{
	struct penstock_seg segs[6];
	struct penstock_req reqs[6];
	struct penstock_done old[4];
	uint64_t ids[6];

	(void)state;
	begin_case(0, 4);
	for (unsigned round = 0; round < 50; round++) {
		async_hold(far);
		for (unsigned i = 0; i < 6; i++)
			reqs[i] = read_at(&segs[i], i, i * 70000 + round, 60000 + round);
		assert_int_equal(penstock_submit(q, reqs, 6, ids), 4);
		assert_int_equal(penstock_submit(q, reqs + 4, 2, ids), -EAGAIN);
		assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_FULL);
		if (round) /* the last round's reports are read until the next harvest */
			for (unsigned i = 0; i < 4; i++)
				assert_int_equal(old[i].report->bytes, 60000 + round - 1);
		/* An end that is not harvested keeps its place. */
		async_release(far);
		assert_int_equal(wait_queue(1, 1, -1), 1);
		assert_int_equal(penstock_submit(q, reqs + 4, 2, ids), 1);
		assert_int_equal(penstock_submit(q, reqs + 5, 1, ids), -EAGAIN);
		assert_int_equal(wait_queue(4, 8, -1), 4);
		memcpy(old, done, sizeof(old));
		for (unsigned i = 0; i < 5; i++)
			assert_int_equal(fired[i], round + 1);
		assert_memory_equal(back + round, bytes + round, 60000 + round);
	}
	assert_int_equal(fired[5], 0);
}

static void many_in_one(void **state)
{
	static struct penstock_seg segs[MAX];
	static struct penstock_req reqs[MAX];
	static uint64_t ids[MAX];

	(void)state;
	begin_case(0, MAX - 24);
	for (unsigned i = 0; i < MAX; i++)
		reqs[i] = read_at(&segs[i], i, i * 20000ull, 20000);
	assert_int_equal(penstock_submit(q, reqs, MAX, ids), MAX - 24);
	for (unsigned have = 0; have < MAX - 24;) {
		int n = wait_queue(1, MAX, -1);

		assert_true(n > 0);
		for (int k = 0; k < n; k++) {
			assert_int_equal(done[k].id, ids[(uintptr_t)done[k].user]);
			assert_int_equal(done[k].result, 20000);
		}
		have += (unsigned)n;
	}
	for (unsigned i = 0; i < MAX; i++)
		assert_int_equal(fired[i], i < MAX - 24);
	assert_memory_equal(back, bytes, (MAX - 24) * 20000u);
}

/* ---- cancel ---- */

/* Nothing of it has begun: nothing ever does. */
static void cancel_before_start(void **state)
{
	struct async_seen seen;
	uint64_t id;

	(void)state;
	begin_case(0, 8);
	async_hold(far);
	fill_lane();
	id = submit_read(1, LEN - 10 * PIECE, 9 * PIECE);
	assert_int_equal(penstock_cancel(q, id), 0);
	assert_int_equal(penstock_cancel(q, id), 0); /* twice does no harm */
	async_release(far);
	assert_int_equal(wait_queue(2, 8, -1), 2);
	for (unsigned k = 0; k < 2; k++) {
		assert_int_equal(done[k].result, done[k].id == id ? -ECANCELED : (int)LEN);
		assert_int_equal(done[k].report->bytes, done[k].id == id ? 0 : LEN);
	}
	async_seen(far, &seen);
	assert_int_equal(seen.fills, LEN / PIECE);
	assert_int_equal(fired[1], 1);
}

/* What has begun is awaited, the rest is not begun. */
static void cancel_in_flight(void **state)
{
	struct async_seen seen;
	uint64_t id;

	(void)state;
	begin_case(0, 8);
	async_hold(far);
	id = fill_lane();
	assert_int_equal(penstock_cancel(q, id), 0);
	assert_int_equal(wait_queue(1, 8, 20000000), 0); /* its memory is the storage's */
	async_release(far);
	assert_int_equal(wait_queue(1, 8, -1), 1);
	async_seen(far, &seen);
	assert_int_equal(seen.fills, PST_LANE_CHUNKS);
	assert_int_equal(seen.waiting, 0);
	assert_int_equal(done[0].result, -ECANCELED);
	assert_int_equal(done[0].report->why, PENSTOCK_WHY_CANCELLED);
	assert_int_equal(done[0].report->bytes, PST_LANE_CHUNKS * PIECE);
	assert_int_equal(done[0].report->stop_off, PST_LANE_CHUNKS * PIECE);
	assert_memory_equal(back, bytes, PST_LANE_CHUNKS * PIECE);
	for (unsigned i = PST_LANE_CHUNKS * PIECE; i < LEN; i++)
		if (back[i] != 0xee)
			fail_msg("byte %u came all the same", i);
	assert_int_equal(wait_queue(1, 8, -1), 0);
	assert_int_equal(fired[0], 1);
}

/* All of it had begun, or it had ended: as if nothing had been asked. */
static void cancel_too_late(void **state)
{
	uint64_t id, never[] = {0, 1, 7, 1000, 1ull << 32, UINT64_MAX};

	(void)state;
	begin_case(0, 8);
	for (unsigned i = 0; i < COUNT(never); i++)
		assert_int_equal(penstock_cancel(q, never[i]), -ENOENT);
	async_hold(far);
	id = submit_read(1, 0, 5 * PIECE);
	assert_int_equal(async_await(far, 5), 0);
	assert_int_equal(penstock_cancel(q, id), 0);
	async_release(far);
	assert_int_equal(wait_queue(1, 8, -1), 1);
	assert_int_equal(done[0].result, 5 * PIECE);
	assert_int_equal(penstock_cancel(q, id), -ENOENT); /* it is harvested */
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_NOT_FOUND);
	/* Ended, not yet harvested. */
	id = submit_read(2, 0, PIECE);
	while (atomic_load(&st->inflight))
		sched_yield();
	assert_int_equal(penstock_cancel(q, id), 0);
	assert_int_equal(wait_queue(1, 8, -1), 1);
	assert_int_equal(done[0].id, id);
	assert_int_equal(done[0].result, PIECE);
	assert_int_equal(penstock_cancel(q, id), -ENOENT);
	/* The next in its place is another. */
	for (unsigned i = 0; i < 40; i++) {
		uint64_t next = submit_read(3, 0, PIECE);

		assert_int_not_equal(next, id);
		assert_int_equal(penstock_cancel(q, id), -ENOENT);
		assert_int_equal(wait_queue(1, 8, -1), 1);
		assert_int_equal(done[0].result, PIECE);
	}
	assert_int_equal(fired[1], 1);
	assert_int_equal(fired[2], 1);
	assert_int_equal(fired[3], 40);
}

/* ---- deadlines ---- */

static void until_over(uint64_t deadline)
{
	while (now_ns() <= deadline)
		sched_yield();
}

static int64_t with_deadline(unsigned i, uint64_t off, uint64_t len, uint64_t deadline)
{
	struct penstock_seg seg;
	struct penstock_req req = read_at(&seg, i, off, len);

	req.deadline_ns = deadline;
	return penstock_submit(q, &req, 1, NULL);
}

static void deadlines(void **state)
{
	uint64_t soon;
	struct async_seen seen;

	(void)state;
	begin_case(0, 8);
	/* Over already: taken, ended, nothing begun. */
	assert_int_equal(with_deadline(0, 0, PIECE, 1), 1);
	assert_int_equal(wait_queue(1, 8, -1), 1);
	assert_int_equal(done[0].result, -ETIME);
	assert_int_equal(done[0].report->why, PENSTOCK_WHY_DEADLINE);
	assert_int_equal(done[0].report->bytes, 0);
	/* Far away: no harm. */
	assert_int_equal(with_deadline(1, 0, 5 * PIECE, now_ns() + 3600000000000u), 1);
	assert_int_equal(wait_queue(1, 8, -1), 1);
	assert_int_equal(done[0].result, 5 * PIECE);
	async_seen(far, &seen);
	assert_int_equal(seen.fills, 5);
	/* Over when all has begun but one piece: what has begun arrives. */
	async_hold(far);
	soon = now_ns() + 1000000000u;
	assert_int_equal(with_deadline(2, 0, LEN, soon), 1);
	assert_int_equal(async_await(far, 1), 0);
	until_over(soon);
	async_seen(far, &seen);
	async_release(far);
	assert_int_equal(wait_queue(1, 8, -1), 1);
	assert_int_equal(done[0].result, -ETIME);
	assert_in_range(done[0].report->bytes, PIECE, PST_LANE_CHUNKS * PIECE);
	assert_int_equal(done[0].report->bytes, done[0].report->stop_off);
	assert_memory_equal(back, bytes, done[0].report->bytes);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(fired[i], 1);
}

/* Over while it waits for a busy lane. */
static void deadline_behind_others(void **state)
{
	struct async_seen seen;
	uint64_t soon;

	(void)state;
	begin_case(0, 8);
	async_hold(far);
	fill_lane();
	soon = now_ns() + 10000000u;
	assert_int_equal(with_deadline(1, 0, PIECE, soon), 1);
	until_over(soon);
	async_release(far);
	assert_int_equal(wait_queue(2, 8, -1), 2);
	for (unsigned k = 0; k < 2; k++)
		assert_int_equal(done[k].result, done[k].user ? -ETIME : (int)LEN);
	async_seen(far, &seen);
	assert_int_equal(seen.fills, LEN / PIECE);
}

/* ---- priorities ---- */

/* Submitted behind a lane that is full: begun by priority, within one as submitted. */
static void priorities(void **state)
{
	static const int order[] = {-4, 0, 3, -1, 3, 0, 2, -4};
	static const unsigned want[] = {2, 4, 6, 1, 5, 3, 0, 7};
	uint64_t offs[PST_LANE_CHUNKS + 100];
	unsigned count, at = 0;

	(void)state;
	begin_case(0, 16);
	async_hold(far);
	submit_read(100, 0, PST_LANE_CHUNKS * PIECE);
	assert_int_equal(async_await(far, PST_LANE_CHUNKS), 0);
	for (unsigned i = 0; i < COUNT(order); i++) {
		uint64_t off = (PST_LANE_CHUNKS + 1 + i) * PIECE;
		struct penstock_seg seg;
		struct penstock_req req = read_at(&seg, i, off, PIECE);

		req.priority = order[i];
		assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	}
	seen_by_lane();
	async_release(far);
	assert_int_equal(wait_queue(COUNT(order) + 1, 16, -1), COUNT(order) + 1);
	count = async_begun(far, offs, COUNT(offs));
	assert_int_equal(count, PST_LANE_CHUNKS + COUNT(order));
	for (unsigned i = PST_LANE_CHUNKS; i < count; i++, at++)
		assert_int_equal(offs[i] / PIECE - PST_LANE_CHUNKS - 1, want[at]);
}

/* ---- callbacks ---- */

static unsigned chained, misused;
static struct penstock_req chain;

static void fire_and_submit(const struct penstock_done *one)
{
	struct penstock_done other;

	fire(one);
	misused += penstock_poll(q, &other, 1) == -EDEADLK;
	misused += penstock_wait(q, &other, 1, 1, 0) == -EDEADLK;
	if (chained == 7)
		penstock_queue_close(q); /* said on standard error, and it goes on */
	assert_int_equal(penstock_cancel(q, one->id), -ENOENT); /* allowed, too late */
	if (++chained < 50)
		assert_int_equal(penstock_submit(q, &chain, 1, NULL), 1);
}

/* Only inside poll and wait, on the thread that called; in one, submit is allowed. */
static void callbacks(void **state)
{
	struct penstock_seg seg;
	struct pollfd pfd;

	(void)state;
	begin_case(0, 2);
	pfd = (struct pollfd){.fd = penstock_queue_fd(q), .events = POLLIN};
	for (unsigned i = 0; i < 2; i++)
		submit_read(i, i * PIECE, PIECE);
	while (atomic_load(&st->inflight)) /* both have ended */
		sched_yield();
	assert_int_equal(poll(&pfd, 1, 60000), 1);
	assert_int_equal(fired[0] + fired[1], 0);
	inside = true;
	assert_int_equal(penstock_poll(q, NULL, 1), 1); /* no list: the callback is enough */
	inside = false;
	assert_int_equal(fired[0] + fired[1], 1);
	assert_int_equal(wait_queue(1, 8, -1), 1); /* listed too */
	assert_int_equal(fired[(uintptr_t)done[0].user], 1);
	assert_int_equal(fired[0] + fired[1], 2);
	chain = read_at(&seg, 9, 0, 3 * PIECE);
	chain.done = fire_and_submit;
	chained = misused = 0;
	assert_int_equal(penstock_submit(q, &chain, 1, NULL), 1);
	while (wait_queue(1, 1, -1) > 0)
		;
	assert_int_equal(chained, 50);
	assert_int_equal(fired[9], 50);
	assert_int_equal(misused, 100);
}

static unsigned to_come;

static void fire_and_go_on(const struct penstock_done *one)
{
	fired[0]++;
	assert_int_equal(one->result, PIECE);
	if (to_come && to_come--) {
		struct penstock_seg seg;
		struct penstock_req req = read_at(&seg, 0, 0, PIECE);

		req.done = fire_and_go_on;
		assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	}
}

/* Each hands in the next from its callback: there is always a place, for a call ends when
 * as many have been harvested as the queue takes. */
static void one_from_another(void **state)
{
	struct penstock_seg seg;
	struct penstock_req req;
	int n;

	(void)state;
	begin_case(0, 3);
	to_come = 20;
	req = read_at(&seg, 0, 0, PIECE);
	req.done = fire_and_go_on;
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	while ((n = penstock_wait(q, NULL, 1000, 0, -1)) > 0)
		assert_in_range(n, 1, 3);
	assert_int_equal(n, 0);
	assert_int_equal(fired[0], 21);
}

/* ---- waiting ---- */

static bool readable(int fd, int timeout_ms)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};

	return poll(&pfd, 1, timeout_ms) == 1;
}

/* A completion that was harvested may have signalled late: look at an end of that. */
static bool becomes_quiet(int fd)
{
	uint64_t until = now_ns() + 60000000000u;

	while (readable(fd, 0) && now_ns() < until)
		if (poll_queue(8) != 0)
			return false;
	return !readable(fd, 0);
}

static void event_descriptor(void **state)
{
	int fd;

	(void)state;
	begin_case(0, 8);
	submit_read(0, 0, PIECE);
	while (atomic_load(&st->inflight))
		sched_yield();
	fd = penstock_queue_fd(q); /* asked for behind the end */
	assert_int_equal(penstock_queue_fd(q), fd);
	assert_true(readable(fd, 60000));
	assert_int_equal(wait_queue(1, 8, -1), 1);
	assert_false(readable(fd, 0)); /* nor is it by who only waits */
	for (unsigned round = 0; round < 20; round++) {
		async_hold(far);
		for (unsigned i = 0; i < 3; i++)
			submit_read(i, i * PIECE, PIECE);
		assert_int_equal(async_await(far, 3), 0);
		assert_false(readable(fd, 0));
		assert_int_equal(poll_queue(8), 0);
		async_release(far);
		for (unsigned have = 0; have < 3; have++) { /* as long as one is there */
			assert_true(readable(fd, 60000));
			assert_int_equal(round % 2 ? poll_queue(1) : wait_queue(1, 1, -1), 1);
		}
		assert_true(becomes_quiet(fd));
	}
}

static void wait_with_timeout(void **state)
{
	uint64_t began;

	(void)state;
	begin_case(0, 8);
	assert_int_equal(wait_queue(1, 8, -1), 0); /* nothing to wait for */
	async_hold(far);
	submit_read(0, 0, PIECE);
	submit_read(1, PIECE, PIECE);
	assert_int_equal(async_await(far, 2), 0);
	assert_int_equal(wait_queue(1, 8, 0), 0);
	assert_int_equal(wait_queue(0, 8, -1), 0); /* min 0: what is there */
	began = now_ns();
	assert_int_equal(wait_queue(1, 8, 30000000), 0);
	assert_true(now_ns() - began >= 30000000u);
	async_let(far, 1);
	assert_int_equal(wait_queue(1, 8, -1), 1);
	assert_int_equal(done[0].user == NULL, 1);
	began = now_ns();
	assert_int_equal(wait_queue(2, 8, 30000000), 0);
	assert_true(now_ns() - began >= 30000000u);
	async_release(far);
	assert_int_equal(wait_queue(2, 8, -1), 1); /* more than there is: all of it */
	submit_read(2, 0, PIECE);
	submit_read(3, PIECE, PIECE);
	assert_int_equal(wait_queue(8, 1, -1), 1); /* min above max: max */
	assert_int_equal(wait_queue(8, 1, -1), 1);
	assert_int_equal(wait_queue(8, 1, -1), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(exactly_once, end_queue),
		cmocka_unit_test_teardown(refused_never_fires, end_queue),
		cmocka_unit_test_teardown(full_and_again, end_queue),
		cmocka_unit_test_teardown(many_in_one, end_queue),
		cmocka_unit_test_teardown(cancel_before_start, end_queue),
		cmocka_unit_test_teardown(cancel_in_flight, end_queue),
		cmocka_unit_test_teardown(cancel_too_late, end_queue),
		cmocka_unit_test_teardown(deadlines, end_queue),
		cmocka_unit_test_teardown(deadline_behind_others, end_queue),
		cmocka_unit_test_teardown(priorities, end_queue),
		cmocka_unit_test_teardown(callbacks, end_queue),
		cmocka_unit_test_teardown(one_from_another, end_queue),
		cmocka_unit_test_teardown(event_descriptor, end_queue),
		cmocka_unit_test_teardown(wait_with_timeout, end_queue),
	};

	return run_queues(tests);
}
