/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the rules of queues in penstock.h. A refused request never completes. An accepted
 * request completes once, inside a poll or a wait. A full queue returns -EAGAIN and recovers.
 * Further cases cover cancels, deadlines, priorities, callbacks, the eventfd and waiting.
 */
#include "queued.h"

#include <poll.h>

/* ---- exactly once, or never ---- */

/* Every request completes exactly once, whether it succeeds, is empty, fails or is cancelled. */
static void completes_exactly_once(void **state)
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
			/* A second completion of this request would fail the comparison above. */
			ids[i] = UINT64_MAX;
		}
		have += (unsigned)n;
	}
	assert_in_range(failed, 1, 399);
	assert_int_equal(have, 400);
	assert_int_equal(wait_queue(1, 64, -1), 0); /* returns 0 because no request is in flight */
	assert_int_equal(poll_queue(64), 0);
	for (unsigned i = 0; i < 400; i++)
		assert_int_equal(fired[i], 1);
}

/* Makes a request invalid in a way that depends on `k`. Returns the error that submitting it
 * must return. */
static int request_spoil(struct penstock_req *req, struct penstock_seg *seg, unsigned k)
{
	switch (k) {
	case 0:
		req->storage = NULL;
		return -EINVAL;
	case 1:
		req->require = PENSTOCK_DIRECT;
		return -EOPNOTSUPP;
	case 2:
		/* a write is refused, because the storage was opened for reading only */
		req->op = PENSTOCK_WRITE;
		return -EBADF;
	case 3:
		req->path = "no-such-path";
		return -EINVAL;
	case 4:
		req->path =
			"staged"; /* path "staged" needs a descriptor, and the storage has none */
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

/* The message about a limit of penstock_queue_open names the limit that was exceeded. */
static void refused_queue_names_limits(void **state)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_queue *refused = NULL;

	(void)state;
	opts.requests_max = PENSTOCK_REQUESTS_MAX + 1;
	opts.segs_max = 1;
	assert_int_equal(penstock_queue_open(&opts, &refused), -E2BIG);
	assert_non_null(strstr(penstock_errmsg(), "at most 65536 requests"));
	opts.requests_max = 1;
	opts.segs_max = PENSTOCK_SEGS_MAX + 1;
	assert_int_equal(penstock_queue_open(&opts, &refused), -E2BIG);
	assert_non_null(strstr(penstock_errmsg(), "at most 65536 segments"));
	assert_null(refused);
}

static void refused_request_never_completes(void **state)
{
	struct penstock_seg segs[3];
	struct penstock_req reqs[3];

	(void)state;
	begin_case(0, 8);
	for (unsigned k = 0; k < 12; k++) {
		uint64_t ids[3] = {7, 7, 7};
		int want;

		for (unsigned i = 0; i < 3; i++)
			reqs[i] = read_req(&segs[i], i, i * 5000, 5000);
		want = request_spoil(&reqs[0], &segs[0], k);
		if (penstock_submit(q, reqs, 1, ids) != want)
			fail_msg("fault %u: want %d, %s", k, want, penstock_errmsg());
		assert_true(strlen(penstock_errmsg()) > 10);
		assert_int_equal(ids[0], 7); /* no ID was written */
		assert_int_equal(wait_queue(1, 8, -1), 0);
		/* One request in the middle of an array is invalid. The requests before it are
		 * accepted, and submitting the invalid request again returns its error. */
		if (k == 11)
			continue; /* Request 11 has a wrong member `size`. In an array, the size of
				   * the first request applies to all requests, so this case cannot
				   * occur. */
		reqs[0] = read_req(&segs[0], 0, 0, 5000);
		request_spoil(&reqs[1], &segs[1], k);
		assert_int_equal(penstock_submit(q, reqs, 3, ids), 1);
		assert_int_equal(penstock_submit(q, reqs + 1, 2, ids), want);
		assert_int_equal(penstock_submit(q, reqs + 2, 1, ids), 1);
		assert_int_equal(wait_queue(2, 8, -1), 2);
		assert_int_equal(fired[0], k + 1);
		assert_int_equal(fired[1], 0);
		assert_int_equal(fired[2], k + 1);
	}
}

/* ---- a full queue ---- */

static void full_queue_recovers(void **state)
{
	struct penstock_seg segs[6];
	struct penstock_req reqs[6];
	struct penstock_done old[4];
	uint64_t ids[6];

	(void)state;
	begin_case(0, 4);
	for (unsigned round = 0; round < 50; round++) {
		async_hold(remote);
		for (unsigned i = 0; i < 6; i++)
			reqs[i] = read_req(&segs[i], i, i * 70000 + round, 60000 + round);
		assert_int_equal(penstock_submit(q, reqs, 6, ids), 4);
		assert_int_equal(penstock_submit(q, reqs + 4, 2, ids), -EAGAIN);
		assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_FULL);
		if (round) /* The previous round's reports are valid until the next poll or wait. */
			for (unsigned i = 0; i < 4; i++)
				assert_int_equal(old[i].report->bytes, 60000 + round - 1);
		/* A completed request occupies its queue entry until a poll or a wait returns its
		 * completion. */
		async_release(remote);
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

static void many_requests_in_one_submit(void **state)
{
	static struct penstock_seg segs[MAX];
	static struct penstock_req reqs[MAX];
	static uint64_t ids[MAX];

	(void)state;
	begin_case(0, MAX - 24);
	for (unsigned i = 0; i < MAX; i++)
		reqs[i] = read_req(&segs[i], i, i * 20000ull, 20000);
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

/* A request is cancelled before any of its chunks has started. No chunk may start after that. */
static void cancel_before_start(void **state)
{
	struct async_counts counts;
	uint64_t id;

	(void)state;
	begin_case(0, 8);
	async_hold(remote);
	fill_lane();
	id = submit_read(1, LEN - 10 * PIECE, 9 * PIECE);
	assert_int_equal(penstock_cancel(q, id), 0);
	assert_int_equal(penstock_cancel(q, id),
			 0); /* the second cancel of a request has no effect */
	async_release(remote);
	assert_int_equal(wait_queue(2, 8, -1), 2);
	for (unsigned k = 0; k < 2; k++) {
		assert_int_equal(done[k].result, done[k].id == id ? -ECANCELED : (int)LEN);
		assert_int_equal(done[k].report->bytes, done[k].id == id ? 0 : LEN);
	}
	async_get_counts(remote, &counts);
	assert_int_equal(counts.fills, LEN / PIECE);
	assert_int_equal(fired[1], 1);
}

/* A request is cancelled in flight. It completes after the chunks that have started, and starts
 * no other chunk. */
static void cancel_in_flight(void **state)
{
	struct async_counts counts;
	uint64_t id;

	(void)state;
	begin_case(0, 8);
	async_hold(remote);
	id = fill_lane();
	assert_int_equal(penstock_cancel(q, id), 0);
	/* The request has not completed, because the storage still uses its memory. */
	assert_int_equal(wait_queue(1, 8, 20000000), 0);
	async_release(remote);
	assert_int_equal(wait_queue(1, 8, -1), 1);
	async_get_counts(remote, &counts);
	assert_int_equal(counts.fills, PST_LANE_CHUNKS);
	assert_int_equal(counts.waiting, 0);
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

/* A cancel has no effect if all chunks of the request have started or if the request has
 * completed. */
static void cancel_too_late(void **state)
{
	uint64_t id, never[] = {0, 1, 7, 1000, 1ull << 32, UINT64_MAX};

	(void)state;
	begin_case(0, 8);
	for (unsigned i = 0; i < COUNT(never); i++)
		assert_int_equal(penstock_cancel(q, never[i]), -ENOENT);
	async_hold(remote);
	id = submit_read(1, 0, 5 * PIECE);
	assert_int_equal(async_await(remote, 5), 0);
	assert_int_equal(penstock_cancel(q, id), 0);
	async_release(remote);
	assert_int_equal(wait_queue(1, 8, -1), 1);
	assert_int_equal(done[0].result, 5 * PIECE);
	assert_int_equal(penstock_cancel(q, id), -ENOENT); /* its completion was already returned */
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_NOT_FOUND);
	/* This request has completed, but no poll or wait has returned its completion yet. */
	id = submit_read(2, 0, PIECE);
	while (atomic_load(&st->inflight))
		sched_yield();
	assert_int_equal(penstock_cancel(q, id), 0);
	assert_int_equal(wait_queue(1, 8, -1), 1);
	assert_int_equal(done[0].id, id);
	assert_int_equal(done[0].result, PIECE);
	assert_int_equal(penstock_cancel(q, id), -ENOENT);
	/* The next request in the same queue entry has another ID. */
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

static void spin_until(uint64_t deadline)
{
	while (test_now_ns() <= deadline)
		sched_yield();
}

static int64_t submit_with_deadline(unsigned i, uint64_t off, uint64_t len, uint64_t deadline)
{
	struct penstock_seg seg;
	struct penstock_req req = read_req(&seg, i, off, len);

	req.deadline_ns = deadline;
	return penstock_submit(q, &req, 1, NULL);
}

static void deadlines_of_three_kinds(void **state)
{
	uint64_t soon;
	struct async_counts counts;

	(void)state;
	begin_case(0, 8);
	/* A deadline in the past: the request is accepted, completes with -ETIME and starts no
	 * chunk. */
	assert_int_equal(submit_with_deadline(0, 0, PIECE, 1), 1);
	assert_int_equal(wait_queue(1, 8, -1), 1);
	assert_int_equal(done[0].result, -ETIME);
	assert_int_equal(done[0].report->why, PENSTOCK_WHY_DEADLINE);
	assert_int_equal(done[0].report->bytes, 0);
	/* A deadline in the distant future has no effect. */
	assert_int_equal(submit_with_deadline(1, 0, 5 * PIECE, test_now_ns() + 3600000000000u), 1);
	assert_int_equal(wait_queue(1, 8, -1), 1);
	assert_int_equal(done[0].result, 5 * PIECE);
	async_get_counts(remote, &counts);
	assert_int_equal(counts.fills, 5);
	/* The deadline passes after many chunks have started. The bytes of these chunks arrive. */
	async_hold(remote);
	soon = test_now_ns() + 1000000000u;
	assert_int_equal(submit_with_deadline(2, 0, LEN, soon), 1);
	assert_int_equal(async_await(remote, 1), 0);
	spin_until(soon);
	async_get_counts(remote, &counts);
	async_release(remote);
	assert_int_equal(wait_queue(1, 8, -1), 1);
	assert_int_equal(done[0].result, -ETIME);
	assert_in_range(done[0].report->bytes, PIECE, PST_LANE_CHUNKS * PIECE);
	assert_int_equal(done[0].report->bytes, done[0].report->stop_off);
	assert_memory_equal(back, bytes, done[0].report->bytes);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(fired[i], 1);
}

/* A deadline passes while the request waits for a busy worker thread. The request must complete
 * with -ETIME, and none of its bytes may be read. */
static void deadline_passes_before_start(void **state)
{
	struct async_counts counts;
	uint64_t soon;

	(void)state;
	begin_case(0, 8);
	async_hold(remote);
	fill_lane();
	soon = test_now_ns() + 10000000u;
	assert_int_equal(submit_with_deadline(1, 0, PIECE, soon), 1);
	spin_until(soon);
	async_release(remote);
	assert_int_equal(wait_queue(2, 8, -1), 2);
	for (unsigned k = 0; k < 2; k++)
		assert_int_equal(done[k].result, done[k].user ? -ETIME : (int)LEN);
	async_get_counts(remote, &counts);
	assert_int_equal(counts.fills, LEN / PIECE);
}

/* ---- priorities ---- */

/* The device's only worker thread has its maximum of chunks in flight. Requests that are submitted
 * meanwhile must start in the order of their priority, the highest first. Requests of the same
 * priority must start in the order of submission. */
static void start_order_follows_priority(void **state)
{
	static const int order[] = {-4, 0, 3, -1, 3, 0, 2, -4};
	static const unsigned want[] = {2, 4, 6, 1, 5, 3, 0, 7};
	uint64_t offs[PST_LANE_CHUNKS + 100];
	unsigned count, at = 0;

	(void)state;
	begin_case(0, 16);
	async_hold(remote);
	submit_read(100, 0, PST_LANE_CHUNKS * PIECE);
	assert_int_equal(async_await(remote, PST_LANE_CHUNKS), 0);
	for (unsigned i = 0; i < COUNT(order); i++) {
		uint64_t off = (PST_LANE_CHUNKS + 1 + i) * PIECE;
		struct penstock_seg seg;
		struct penstock_req req = read_req(&seg, i, off, PIECE);

		req.priority = order[i];
		assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	}
	await_empty_inbox();
	async_release(remote);
	assert_int_equal(wait_queue(COUNT(order) + 1, 16, -1), COUNT(order) + 1);
	count = async_begun(remote, offs, COUNT(offs));
	assert_int_equal(count, PST_LANE_CHUNKS + COUNT(order));
	for (unsigned i = PST_LANE_CHUNKS; i < count; i++, at++)
		assert_int_equal(offs[i] / PIECE - PST_LANE_CHUNKS - 1, want[at]);
}

/* ---- callbacks ---- */

static unsigned chained, misused;
static struct penstock_req chain;

static void misuse_and_resubmit(const struct penstock_done *one)
{
	struct penstock_done other;

	count_callback(one);
	misused += penstock_poll(q, &other, 1) == -EDEADLK;
	misused += penstock_wait(q, &other, 1, 1, 0) == -EDEADLK;
	if (chained == 7)
		/* A callback must not close the queue. penstock_queue_close reports the misuse
		 * on standard error and has no effect. */
		penstock_queue_close(q);
	assert_int_equal(penstock_cancel(q, one->id),
			 /* a cancel is allowed in a callback, but this request has completed */
			 -ENOENT);
	if (++chained < 50)
		assert_int_equal(penstock_submit(q, &chain, 1, NULL), 1);
}

/* Callbacks run only inside poll and wait, on the calling thread. A callback may submit. */
static void callbacks_run_inside_harvest(void **state)
{
	struct penstock_seg seg;
	struct pollfd pfd;

	(void)state;
	begin_case(0, 2);
	pfd = (struct pollfd){.fd = penstock_queue_fd(q), .events = POLLIN};
	for (unsigned i = 0; i < 2; i++)
		submit_read(i, i * PIECE, PIECE);
	while (atomic_load(&st->inflight)) /* wait until both requests have completed */
		sched_yield();
	assert_int_equal(poll(&pfd, 1, 60000), 1);
	assert_int_equal(fired[0] + fired[1], 0);
	inside = true;
	/* A poll without an array for completions also runs the callback. */
	assert_int_equal(penstock_poll(q, NULL, 1), 1);
	inside = false;
	assert_int_equal(fired[0] + fired[1], 1);
	assert_int_equal(wait_queue(1, 8, -1),
			 1); /* returns the second completion and runs its callback */
	assert_int_equal(fired[(uintptr_t)done[0].user], 1);
	assert_int_equal(fired[0] + fired[1], 2);
	chain = read_req(&seg, 9, 0, 3 * PIECE);
	chain.done = misuse_and_resubmit;
	chained = misused = 0;
	assert_int_equal(penstock_submit(q, &chain, 1, NULL), 1);
	while (wait_queue(1, 1, -1) > 0)
		;
	assert_int_equal(chained, 50);
	assert_int_equal(fired[9], 50);
	assert_int_equal(misused, 100);
}

static unsigned submits_left;

static void submit_next(const struct penstock_done *one)
{
	fired[0]++;
	assert_int_equal(one->result, PIECE);
	if (submits_left && submits_left--) {
		struct penstock_seg seg;
		struct penstock_req req = read_req(&seg, 0, 0, PIECE);

		req.done = submit_next;
		assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	}
}

/* Each callback submits the next request and always finds a free queue entry. One poll or wait
 * returns at most as many completions as the queue has entries. */
static void callback_always_finds_a_free_entry(void **state)
{
	struct penstock_seg seg;
	struct penstock_req req;
	int n;

	(void)state;
	begin_case(0, 3);
	submits_left = 20;
	req = read_req(&seg, 0, 0, PIECE);
	req.done = submit_next;
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	while ((n = penstock_wait(q, NULL, 1000, 0, -1)) > 0)
		assert_in_range(n, 1, 3);
	assert_int_equal(n, 0);
	assert_int_equal(fired[0], 21);
}

/* ---- waiting ---- */

static bool fd_readable(int fd, int timeout_ms)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};

	return poll(&pfd, 1, timeout_ms) == 1;
}

/* Waits until the eventfd is not readable. A request may signal the eventfd even after a wait has
 * returned its completion. */
static bool eventfd_becomes_quiet(int fd)
{
	uint64_t until = test_now_ns() + 60000000000u;

	while (fd_readable(fd, 0) && test_now_ns() < until)
		if (poll_queue(8) != 0)
			return false;
	return !fd_readable(fd, 0);
}

static void event_descriptor_is_readable_until_harvested(void **state)
{
	int fd;

	(void)state;
	begin_case(0, 8);
	submit_read(0, 0, PIECE);
	while (atomic_load(&st->inflight))
		sched_yield();
	/* opens the eventfd after the request has completed; the eventfd must be readable even
	 * so */
	fd = penstock_queue_fd(q);
	assert_int_equal(penstock_queue_fd(q), fd);
	assert_true(fd_readable(fd, 60000));
	assert_int_equal(wait_queue(1, 8, -1), 1);
	/* after the wait has returned the completion, the eventfd is not readable any more */
	assert_false(fd_readable(fd, 0));
	for (unsigned round = 0; round < 20; round++) {
		async_hold(remote);
		for (unsigned i = 0; i < 3; i++)
			submit_read(i, i * PIECE, PIECE);
		assert_int_equal(async_await(remote, 3), 0);
		assert_false(fd_readable(fd, 0));
		assert_int_equal(poll_queue(8), 0);
		async_release(remote);
		/* The eventfd is readable while the queue has at least one completion that no poll
		 * or wait has returned. */
		for (unsigned have = 0; have < 3; have++) {
			assert_true(fd_readable(fd, 60000));
			assert_int_equal(round % 2 ? poll_queue(1) : wait_queue(1, 1, -1), 1);
		}
		assert_true(eventfd_becomes_quiet(fd));
	}
}

static void wait_with_timeout_and_min(void **state)
{
	uint64_t began;

	(void)state;
	begin_case(0, 8);
	assert_int_equal(wait_queue(1, 8, -1), 0); /* returns 0 because no request is in flight */
	async_hold(remote);
	submit_read(0, 0, PIECE);
	submit_read(1, PIECE, PIECE);
	assert_int_equal(async_await(remote, 2), 0);
	assert_int_equal(wait_queue(1, 8, 0), 0);
	/* With a minimum of 0, the wait returns only requests that have already completed. */
	assert_int_equal(wait_queue(0, 8, -1), 0);
	began = test_now_ns();
	assert_int_equal(wait_queue(1, 8, 30000000), 0);
	assert_true(test_now_ns() - began >= 30000000u);
	async_release_some(remote, 1);
	assert_int_equal(wait_queue(1, 8, -1), 1);
	assert_int_equal(done[0].user == NULL, 1);
	began = test_now_ns();
	assert_int_equal(wait_queue(2, 8, 30000000), 0);
	assert_true(test_now_ns() - began >= 30000000u);
	async_release(remote);
	/* If the minimum is more than the number of requests in flight, the wait returns all of
	 * them. */
	assert_int_equal(wait_queue(2, 8, -1), 1);
	submit_read(2, 0, PIECE);
	submit_read(3, PIECE, PIECE);
	assert_int_equal(wait_queue(8, 1, -1), 1); /* returns no more than the maximum */
	assert_int_equal(wait_queue(8, 1, -1), 1);
	assert_int_equal(wait_queue(8, 1, -1), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(completes_exactly_once, close_queue_and_remote),
		cmocka_unit_test(refused_queue_names_limits),
		cmocka_unit_test_teardown(refused_request_never_completes, close_queue_and_remote),
		cmocka_unit_test_teardown(full_queue_recovers, close_queue_and_remote),
		cmocka_unit_test_teardown(many_requests_in_one_submit, close_queue_and_remote),
		cmocka_unit_test_teardown(cancel_before_start, close_queue_and_remote),
		cmocka_unit_test_teardown(cancel_in_flight, close_queue_and_remote),
		cmocka_unit_test_teardown(cancel_too_late, close_queue_and_remote),
		cmocka_unit_test_teardown(deadlines_of_three_kinds, close_queue_and_remote),
		cmocka_unit_test_teardown(deadline_passes_before_start, close_queue_and_remote),
		cmocka_unit_test_teardown(start_order_follows_priority, close_queue_and_remote),
		cmocka_unit_test_teardown(callbacks_run_inside_harvest, close_queue_and_remote),
		cmocka_unit_test_teardown(callback_always_finds_a_free_entry,
					  close_queue_and_remote),
		cmocka_unit_test_teardown(event_descriptor_is_readable_until_harvested,
					  close_queue_and_remote),
		cmocka_unit_test_teardown(wait_with_timeout_and_min, close_queue_and_remote),
	};

	return run_queues(tests);
}
