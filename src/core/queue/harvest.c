/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Harvesting: ended requests come off a lock-free list that lanes push onto, get
 * their report, and are handed out. A harvested place is free again at the next
 * harvest, so that its report stays readable until then.
 */
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/objects.h"
#include "core/queue/queue.h"

/* So long after a deadline whoever waits ends what its lane has not: a lane that is only busy
 * comes by then, and nobody looks at all places more often. */
#define LATE_NS 2000000u

static void signal_fd(struct penstock_queue *q)
{
	uint64_t one = 1;

	if (write(q->fd, &one, sizeof(one)) < 0)
		return; /* full: it is readable */
}

static void push(struct penstock_queue *q, struct pst_request *req)
{
	req->link = atomic_load_explicit(&q->completed, memory_order_relaxed);
	while (!atomic_compare_exchange_weak_explicit(&q->completed, &req->link, req,
						      memory_order_seq_cst, memory_order_relaxed))
		;
}

void pst_queue_push(struct penstock_queue *q, struct pst_request *req)
{
	bool news = true;

	/* Once it is on the list it may be harvested, and the queue closed. */
	atomic_fetch_add_explicit(&q->pushing, 1, memory_order_relaxed);
	if (req->flags & PENSTOCK_R_DETACHED) {
		pst_req_retire_id(req);
		pst_req_put(req, PST_SUBMITTED);
		/* Nothing to harvest, but who waits until nothing is in flight is to know. */
		news = atomic_fetch_sub_explicit(&q->inflight, 1, memory_order_seq_cst) == 1;
	} else {
		push(q, req);
	}
	if (news && q->inline_lane)
		pst_inline_lane_wake(q->inline_lane);
	else if (news && atomic_load_explicit(&q->armed, memory_order_seq_cst))
		signal_fd(q);
	atomic_fetch_sub_explicit(&q->pushing, 1, memory_order_release);
}

int penstock_queue_fd(struct penstock_queue *q)
{
	int ret = pst_fork_check(q->generation, NULL);

	if (ret)
		return ret;
	if (q->inline_lane)
		return pst_fail_errno(NULL, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "nothing ends on a queue with a lane of its own while "
				      "nobody calls it: penstock_poll it");
	/* From here on every completion signals; one that was there before must too. */
	atomic_store(&q->watched, true);
	atomic_store(&q->armed, true);
	signal_fd(q);
	return q->fd;
}

static void collect(struct penstock_queue *q)
{
	struct pst_request *list = NULL, *req, *last = NULL;

	if (!atomic_load_explicit(&q->completed, memory_order_relaxed))
		return;
	req = atomic_exchange_explicit(&q->completed, NULL, memory_order_acquire);
	last = req;
	while (req) {
		struct pst_request *next = req->link;

		req->link = list;
		list = req;
		req = next;
	}
	*q->ready_end = list;
	q->ready_end = &last->link;
}

void pst_queue_free_harvested(struct penstock_queue *q)
{
	while (q->harvested) {
		struct pst_request *req = q->harvested;

		q->harvested = req->link;
		pst_req_put(req, PST_SUBMITTED);
	}
}

/* ---- what is too late ---- */

void pst_queue_expect(struct penstock_queue *q, uint64_t deadline_ns)
{
	uint64_t first = atomic_load_explicit(&q->deadline_ns, memory_order_relaxed);

	while (deadline_ns && (!first || deadline_ns < first))
		if (atomic_compare_exchange_weak(&q->deadline_ns, &first, deadline_ns)) {
			if (atomic_load(&q->asleep)) /* for longer */
				signal_fd(q);
			break;
		}
}

/* When that is; 0: never. */
static uint64_t look_at(const struct penstock_queue *q)
{
	uint64_t first = atomic_load(&q->deadline_ns);

	return first && first <= UINT64_MAX - LATE_NS ? first + LATE_NS : 0;
}

static void end_late(struct penstock_queue *q)
{
	uint64_t at = look_at(q);
	unsigned used;

	if (!at || pst_now_ns() < at)
		return;
	/* Before the places: one that is not among them yet is expected behind this. */
	atomic_exchange(&q->deadline_ns, 0);
	used = atomic_load_explicit(&q->place_used, memory_order_acquire);
	for (unsigned i = 0; i < used; i++)
		pst_queue_expect(q, pst_req_expire(&q->requests[i]));
}

/* No later than that. */
static uint64_t sooner(const struct penstock_queue *q, uint64_t until_ns)
{
	uint64_t at = look_at(q);

	return at && (!until_ns || at < until_ns) ? at : until_ns;
}

static unsigned harvest(struct penstock_queue *q, struct penstock_done *done, unsigned have,
			unsigned max)
{
	collect(q);
	while (have < max && q->ready) {
		struct pst_request *req = q->ready;
		struct penstock_done one;

		q->ready = req->link;
		if (!q->ready)
			q->ready_end = &q->ready;
		pst_req_report(req);
		one.id = (uint64_t)req->generation << 32 | req->index;
		one.user = req->user;
		one.result = req->result;
		one.report = &req->report;
		pst_req_retire_id(req); /* from here on its id is nobody's */
		req->link = q->harvested;
		q->harvested = req;
		atomic_fetch_sub_explicit(&q->inflight, 1, memory_order_relaxed);
		if (done)
			done[have] = one;
		have++;
		if (req->done && !q->mute) {
			q->in_callback = true;
			req->done(&one);
			q->in_callback = false;
		}
	}
	return have;
}

/* How many of one call: their places are taken until the next one, and as many more may
 * be handed in by callbacks or beside it. */
static unsigned most(const struct penstock_queue *q, const struct penstock_done *done, unsigned max)
{
	return (max || done) && max < q->requests_max ? max : q->requests_max;
}

static void drain_fd(struct penstock_queue *q)
{
	uint64_t value;

	if (read(q->fd, &value, sizeof(value)) < 0)
		return; /* nothing was there */
}

/* What poll and wait begin with: the last harvest's places come free, and an own lane gets
 * on, also for who has no time to wait. */
static int begin(struct penstock_queue *q)
{
	int ret;

	if (q->in_callback)
		return pst_fail_errno(NULL, EDEADLK, PENSTOCK_WHY_BAD_ARGUMENT,
				      "completions cannot be harvested inside a callback");
	ret = pst_queue_check(q, NULL);
	if (ret)
		return ret;
	pst_queue_free_harvested(q);
	if (q->inline_lane)
		pst_inline_lane_turn(q->inline_lane, 0);
	end_late(q);
	if (atomic_load_explicit(&q->watched, memory_order_relaxed))
		drain_fd(q);
	return 0;
}

/* And end with: the descriptor is readable while completions are there. */
static int end(struct penstock_queue *q, unsigned have)
{
	if (q->ready && atomic_load_explicit(&q->watched, memory_order_relaxed))
		signal_fd(q);
	return (int)have;
}

int penstock_poll(struct penstock_queue *q, struct penstock_done *done, unsigned max)
{
	int ret = begin(q);

	return ret ? ret : end(q, harvest(q, done, 0, most(q, done, max)));
}

/* Looks on for a moment whether one comes. */
static bool soon(struct penstock_queue *q)
{
	q->spin.fast = atomic_load_explicit(&q->fast, memory_order_relaxed);
	while (pst_spin_on(&q->spin)) {
		for (unsigned i = 0; i < 64; i++) {
			if (!atomic_load_explicit(&q->completed, memory_order_relaxed))
				continue;
			pst_spin_found(&q->spin);
			return true;
		}
	}
	return false;
}

/* Sleeps until a completion comes, nothing is in flight or the time is up. */
static void sleep_on(struct penstock_queue *q, uint64_t until_ns)
{
	struct pollfd pfd = {.fd = q->fd, .events = POLLIN};
	struct timespec ts, *timeout = NULL;
	uint64_t now = pst_now_ns();

	atomic_store_explicit(&q->asleep, true, memory_order_relaxed);
	atomic_store_explicit(&q->armed, true, memory_order_seq_cst); /* a fence for both */
	until_ns = sooner(q, until_ns);
	if (until_ns) {
		uint64_t left = until_ns > now ? until_ns - now : 0;

		ts = (struct timespec){(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
		timeout = &ts;
	}
	if (!atomic_load_explicit(&q->completed, memory_order_seq_cst) &&
	    atomic_load_explicit(&q->inflight, memory_order_seq_cst))
		ppoll(&pfd, 1, timeout, NULL);
	atomic_store_explicit(&q->asleep, false, memory_order_relaxed);
	if (!atomic_load_explicit(&q->watched, memory_order_relaxed)) {
		atomic_store(&q->armed, false);
		if (atomic_load(&q->watched)) /* asked for on another thread just now */
			atomic_store(&q->armed, true);
	}
	drain_fd(q);
}

/* Until a completion is likely it sleeps, then it looks, and then it gives that up. True:
 * harvest again. */
static bool foreseen(struct penstock_queue *q, uint64_t until_ns)
{
	uint64_t now = pst_now_ns();

	if (now < q->look_from) {
		sleep_on(q, until_ns && until_ns < q->look_from ? until_ns : q->look_from);
		return true;
	}
	for (unsigned i = 0; i < 64; i++)
		if (atomic_load_explicit(&q->completed, memory_order_relaxed))
			return true;
	if (now >= q->look_to)
		q->look_to = q->look_from = 0;
	return q->look_to;
}

/* Rounded up, so that it is not over before the time is. */
static int64_t left_us(uint64_t until_ns)
{
	uint64_t now;

	if (!until_ns)
		return -1;
	now = pst_now_ns();
	return until_ns > now ? (int64_t)((until_ns - now + 999) / 1000) : 0;
}

int penstock_wait(struct penstock_queue *q, struct penstock_done *done, unsigned min, unsigned max,
		  int64_t timeout_ns)
{
	uint64_t until = timeout_ns < 0 ? 0 : pst_now_ns() + (uint64_t)timeout_ns;
	int ret = begin(q);
	unsigned have = 0;

	if (ret)
		return ret;
	max = most(q, done, max);
	min = min < max ? min : max;
	for (;;) {
		have = harvest(q, done, have, max);
		if (have >= min || !atomic_load_explicit(&q->inflight, memory_order_acquire) ||
		    (until && pst_now_ns() >= until))
			break;
		if (q->inline_lane)
			pst_inline_lane_turn(q->inline_lane, left_us(sooner(q, until)));
		else if (!(q->look_to && foreseen(q, until)) && !soon(q))
			sleep_on(q, until);
		end_late(q);
	}
	q->look_from = q->look_to = 0;
	return end(q, have);
}
