/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the public functions on queues: submit, cancel and harvest. Submit takes a free
 * request from the pool, and admit.c fills it. Then worker threads, the queue's inline lane or the
 * calling thread carry it. When the request has completed, the hook req_completed pushes it onto a
 * lock-free list. To harvest is to take completed requests from this list: penstock_poll and
 * penstock_wait return their completions and reports. The next harvest frees them, so that their
 * reports stay readable until then. This file must never move a byte itself, except on a path that
 * needs no lane.
 */
#include "core/queue/queue.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/backends.h"
#include "core/base/clock.h"
#include "core/base/devices.h"
#include "core/base/fork.h"
#include "core/base/lifo.h"
#include "core/base/log.h"
#include "core/base/stats.h"
#include "core/base/struct_copy.h"
#include "core/lane/pump.h"
#include "core/lane/stage.h"
#include "core/queue/stream.h"
#include "core/queue/stream_poll.h"
#include "core/route/admit.h"
#include "core/route/route.h"

#define REQUESTS_DEFAULT 256
#define SEGS_DEFAULT 1024
#define POOL_SEGS_MAX (16u << 20) /* limit of the product requests_max x segs_max */
/* Maximum length of a request that the calling thread carries. Lanes carry longer ones faster. */
#define HERE_BYTES (1u << 20)
/* Maximum length in bytes of a read whose completion time queue_predict predicts, assuming that its
 * bytes are cached. */
#define PREDICTED_BYTES (128u << 20)
#define PREDICTED_RATE 50u   /* bytes per nanosecond that one PCIe link moves */
#define PREDICTED_NS 300000u /* nanoseconds allowed for lanes to wake up */
/* Maximum time in ns that a lane takes to drop a completed request from its list, unless the lane
 * hangs in a system call. */
#define HUNG_NS 1000000000u
/* Normally a lane abandons a request that is past its deadline. A thread that waits on the queue
 * does so if the lane has not done it LATE_NS nanoseconds later. The delay keeps this thread from
 * scanning the pool whenever a lane is only busy. */
#define LATE_NS 2000000u

/* ---- completion: any thread may call these functions ---- */

/* Makes the queue's descriptor readable. */
static void queue_signal_fd(struct penstock_queue *q)
{
	uint64_t one = 1;

	if (write(q->fd, &one, sizeof(one)) < 0)
		/* the write fails only if the counter is full, and then the descriptor is
		 * readable already */
		return;
}

/* Pushes a completed request onto its queue's list and wakes the harvesting thread. */
static void queue_push(struct penstock_queue *q, struct pst_request *req)
{
	bool wake = true;

	/* As soon as the request is on the list, another thread may harvest it and close the
	 * queue. The close waits until `pushing` is 0. */
	atomic_fetch_add_explicit(&q->pushing, 1, memory_order_relaxed);
	if (req->flags & PENSTOCK_R_DETACHED || atomic_load(&req->retracted)) {
		pst_req_retire_id(req);
		pst_req_put(req, PST_SUBMITTED);
		/* No thread harvests such a request, but one may wait until no request is in
		 * flight. */
		wake = atomic_fetch_sub_explicit(&q->inflight, 1, memory_order_seq_cst) == 1;
	} else {
		PST_LIFO_PUSH(&q->completed, req, link, memory_order_seq_cst);
	}
	if (wake && q->inline_lane)
		pst_inline_lane_wake(q->inline_lane);
	else if (wake && atomic_load_explicit(&q->armed, memory_order_seq_cst))
		queue_signal_fd(q);
	atomic_fetch_sub_explicit(&q->pushing, 1, memory_order_release);
}

/* Hook, called when the request has completed. If the request is in stream order, lets its CUDA
 * stream continue. Decrements the numbers of requests in flight of its other devices, its home lane
 * and its storage. Then pushes the request onto its queue's list. */
static void req_completed(struct pst_request *req)
{
	if (req->stage)
		pst_stage_finish(req);
	pst_devices_release(req->other_devices);
	if (req->home_lane) /* if this count is 0, another thread may free the pump */
		atomic_fetch_sub_explicit(&req->home_lane->requests, 1, memory_order_release);
	atomic_fetch_sub_explicit(&req->st->inflight, 1, memory_order_release);
	queue_push(req->q, req);
}

static void queue_free(struct penstock_queue *q)
{
	free(q->requests);
	free(q->segs);
	free(q->spans);
	free(q);
}

/* Returns the value that marks a queue as closed when it is stored in q->returned: the address just
 * after the pool. A thread that finds this mark does not return its request, but drops its
 * reference to the queue's memory. */
static struct pst_request *queue_closed_mark(struct penstock_queue *q)
{
	return q->requests + q->pool_count;
}

/* Drops `count` references to a closed queue's memory. The last drop frees the memory. */
static void queue_release(struct penstock_queue *q, unsigned count)
{
	if (atomic_fetch_sub_explicit(&q->outliving, count, memory_order_acq_rel) == count)
		queue_free(q);
}

/* Hook, called when no thread refers to the request any more: returns the request to its pool. */
static void req_released(struct pst_request *req)
{
	struct penstock_queue *q = req->q;

	if (req->route)
		pst_route_put(req->route);
	req->link = atomic_load_explicit(&q->returned, memory_order_relaxed);
	do {
		if (req->link == queue_closed_mark(q)) {
			queue_release(q, 1);
			return;
		}
	} while (!atomic_compare_exchange_weak_explicit(
		&q->returned, &req->link, req, memory_order_release, memory_order_relaxed));
}

static const struct pst_req_hooks req_hooks = {
	.completed = req_completed,
	.released = req_released,
};

/* Frees the requests that the last harvest returned. */
static void queue_free_harvested(struct penstock_queue *q)
{
	while (q->harvested) {
		struct pst_request *req = q->harvested;

		q->harvested = req->link;
		pst_req_put(req, PST_SUBMITTED);
	}
}

/* Checks that this thread may use the queue. Returns -errno if it runs in a forked child, or if
 * the queue's inline lane belongs to another thread. */
static int queue_check(const struct penstock_queue *q, struct pst_err *err)
{
	int ret = pst_fork_check(q->generation, err);

	return ret || !q->inline_lane ? ret : pst_inline_lane_check(q->inline_lane, err);
}

/* ---- cancelled and late requests ---- */

/* Abandons the bytes of the request that no lane has started. This thread does so itself, because
 * the lanes may hang. Chunks that have started still complete, unless their storage can cancel
 * them. The caller must have a reference to the request. */
static void req_abandon(struct pst_request *req)
{
	bool armed = req->phase == PST_PHASE_ARMED;
	struct pst_err err;

	atomic_fetch_or_explicit(&req->refs, PST_ABANDONED, memory_order_relaxed);
	if (armed || (req->stage && req->flags & PENSTOCK_R_EARLY))
		pst_stream_abandon(req);
	if (armed || !pst_req_is_abandoned(req, &err))
		return;
	pst_req_fail_unclaimed(req, &err);
	if (req->phase == PST_PHASE_SYNC && pst_req_cancelled(req))
		pst_req_fail_sync(req, &err);
}

/* Makes the lanes that may carry the request check it. They then drop its chunks that wait for a
 * staging slot, and cancel its transfers if the storage supports that. */
static void req_wake_lanes(struct pst_request *req)
{
	struct pst_inline_lane *inline_lane = req->q->inline_lane;

	if (req->home_lane)
		pst_pump_cancel(req->home_lane->pump);
	else if (inline_lane && pst_inline_lane_accepts(inline_lane, req))
		pst_inline_lane_cancel(inline_lane);
}

/* Cancels the request if it still has this generation, a number that changes when an element of the
 * pool is reused for another request. An element is not reused while a thread holds a reference.
 * Lanes check `cancelled` before they take bytes of the request. */
static void req_cancel(struct pst_request *req, uint32_t generation)
{
	if (!pst_req_hold(req))
		return; /* the request has completed */
	if (atomic_load_explicit(&req->generation, memory_order_relaxed) == generation) {
		atomic_store_explicit(&req->cancelled, true, memory_order_relaxed);
		req_abandon(req);
		req_wake_lanes(req);
	}
	pst_req_put(req, PST_HOLD);
}

/* Abandons the request if its deadline has passed. Returns the deadline if it is in the future,
 * else 0. */
static uint64_t req_expire(struct pst_request *req)
{
	uint64_t deadline_ns;

	if (!pst_req_hold(req))
		return 0;
	deadline_ns = req->deadline_ns;
	if (deadline_ns && pst_now_ns() > deadline_ns) {
		req_abandon(req);
		deadline_ns = 0;
	}
	pst_req_put(req, PST_HOLD);
	return deadline_ns;
}

/* Lowers q->deadline_ns to this deadline, so that a thread that waits on the queue expires
 * requests soon after it. Ignores a deadline of 0. */
static void queue_expect_deadline(struct penstock_queue *q, uint64_t deadline_ns)
{
	uint64_t first = atomic_load_explicit(&q->deadline_ns, memory_order_relaxed);

	while (deadline_ns && (!first || deadline_ns < first))
		if (atomic_compare_exchange_weak(&q->deadline_ns, &first, deadline_ns)) {
			/* Wake the thread that waits on the queue, because it may sleep for longer
			 * than this deadline. */
			if (atomic_load(&q->asleep))
				queue_signal_fd(q);
			break;
		}
}

/* Returns the time of the next scan of the pool for requests past their deadline, or 0 if no
 * request has a deadline. */
static uint64_t queue_expire_at(const struct penstock_queue *q)
{
	uint64_t first = atomic_load(&q->deadline_ns);

	return first && first <= UINT64_MAX - LATE_NS ? first + LATE_NS : 0;
}

/* Scans the pool and abandons all requests past their deadline, if it is time for a scan. */
static void queue_expire_late(struct penstock_queue *q)
{
	uint64_t at = queue_expire_at(q);
	unsigned used;

	if (!at || pst_now_ns() < at)
		return;
	/* Reset the deadline before reading pool_used. A request that this loop misses because it
	 * is new stores its deadline later, so the next scan finds it. */
	atomic_exchange(&q->deadline_ns, 0);
	used = atomic_load_explicit(&q->pool_used, memory_order_acquire);
	for (unsigned i = 0; i < used; i++)
		queue_expect_deadline(q, req_expire(&q->requests[i]));
}

int penstock_cancel(struct penstock_queue *q, uint64_t id)
{
	uint32_t index = (uint32_t)id, generation = (uint32_t)(id >> 32);
	int ret;

	if (!q)
		return pst_fail_null("the queue");
	ret = pst_fork_check(q->generation, NULL);
	if (ret)
		return ret;
	if (index >= q->pool_count || !(generation & 1) ||
	    atomic_load_explicit(&q->requests[index].generation, memory_order_relaxed) !=
		    generation)
		return pst_fail_errno(NULL, ENOENT, PENSTOCK_WHY_NOT_FOUND,
				      "no such request, or it has been harvested");
	req_cancel(&q->requests[index], generation);
	return 0;
}

/* ---- submit ---- */

/* Takes an element of the pool that was never used. Returns NULL if all elements have been
 * used. */
static struct pst_request *pool_new(struct penstock_queue *q)
{
	unsigned i = atomic_load_explicit(&q->pool_used, memory_order_relaxed);
	struct pst_request *req = &q->requests[i];

	if (i == q->pool_count)
		return NULL;
	req->q = q;
	req->hooks = &req_hooks;
	req->index = i;
	req->segs = &q->segs[(size_t)i * q->segs_max];
	req->spans = &q->spans[(size_t)i * q->spans_max];
	/* release order, because queue_expire_late first reads pool_used and then these elements */
	atomic_store_explicit(&q->pool_used, i + 1, memory_order_release);
	return req;
}

/* If q->free is empty, moves the released requests there. Returns whether q->free has a request. */
static bool pool_refill(struct penstock_queue *q)
{
	if (!q->free)
		q->free = atomic_exchange_explicit(&q->returned, NULL, memory_order_acquire);
	return q->free;
}

bool pst_queue_has_free(struct penstock_queue *q)
{
	queue_free_harvested(q);
	return pool_refill(q) || atomic_load(&q->pool_used) < q->pool_count;
}

/* Waits up to HUNG_NS for lanes to drop abandoned requests from their lists. Called when the
 * pool has no free request although fewer than requests_max are in flight. */
static void pool_await(struct penstock_queue *q)
{
	uint64_t until = pst_now_ns() + HUNG_NS;
	unsigned times = 0;

	while (!pool_refill(q) && pst_now_ns() < until) {
		if (q->inline_lane)
			pst_inline_lane_turn(q->inline_lane, 0);
		pst_backoff(&times);
	}
}

/* Takes a free request of the pool. Returns NULL, with the reason in `err`, if there is none. */
static struct pst_request *pool_get(struct penstock_queue *q, struct pst_err *err)
{
	struct pst_request *req;

	if (atomic_load_explicit(&q->inflight, memory_order_relaxed) >= q->requests_max) {
		pst_fail(err, PENSTOCK_WHY_FULL,
			 "all %u requests of the queue are in flight, harvest completions first",
			 q->requests_max);
		return NULL;
	}
	if (!pool_refill(q)) {
		req = pool_new(q);
		if (req)
			return req;
		pool_await(q);
	}
	req = q->free;
	if (req)
		q->free = req->link;
	else
		pst_fail(err, PENSTOCK_WHY_FULL,
			 "all requests of the queue are completed or in flight, and lanes that "
			 "hang in a system call still list some of them");
	return req;
}

static void pool_put(struct penstock_queue *q, struct pst_request *req)
{
	req->link = q->free;
	q->free = req;
}

/* Carries a request on a path that needs no lane, such as path "null". */
static void req_run_now(struct pst_request *req)
{
	struct pst_chunk chunk = {
		.req = req,
		.route = req->spans[0].route,
		.path = (uint8_t)req->forced,
	};

	atomic_store_explicit(&req->left, req->total, memory_order_relaxed);
	chunk.len = req->total;
	pst_paths[req->forced]->start(&chunk);
	pst_req_count(req, &chunk);
	pst_req_last_bytes_done(req, req->total);
}

/* Passes the request to a lane of the pump or to the inline lane, unless it needs no lane. */
static void req_dispatch(struct pst_request *req)
{
	atomic_fetch_add_explicit(&req->st->inflight, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&req->q->inflight, 1, memory_order_relaxed);
	atomic_store_explicit(&req->q->poll_ns, pst_spin_limit(req->effort, req->total),
			      memory_order_relaxed);
	if (req->stage || pst_req_only_syncs(req))
		pst_pump_submit(req);
	else if (!req->total)
		/* the request has no bytes to move, so dropping this reference completes it */
		pst_req_put(req, PST_HOLD);
	else if (req->forced >= 0 && pst_paths[req->forced]->traits.synchronous)
		req_run_now(req);
	else if (req->q->inline_lane && pst_inline_lane_accepts(req->q->inline_lane, req))
		pst_inline_lane_enqueue(req->q->inline_lane, req);
	else
		pst_pump_submit(req);
}

/* Carries a short request on this thread, on a borrowed lane. Returns false if the request is
 * not short or no lane is free. */
static bool req_run_here(struct pst_request *req)
{
	struct pst_lane *lane;

	if (!req->pump || req->other_devices || req->span_count != 1 || req->total > HERE_BYTES ||
	    req->total > req->pump->spare[0].slot_bytes ||
	    (req->forced >= 0 && pst_paths[req->forced]->traits.synchronous))
		return false;
	lane = pst_pump_borrow(req->pump);
	if (!lane)
		return false;
	atomic_fetch_add_explicit(&req->st->inflight, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&req->q->inflight, 1, memory_order_relaxed);
	/* Report why the borrowed lane uses its engine, not why the pump's lanes use theirs. */
	req->report.engine_why = lane->engine_why.why;
	req->alone = true;
	pst_pump_run(lane, req);
	pst_pump_return(lane);
	return true;
}

/* Marks the request as submitted: after this call it will complete. The request keeps a reference
 * to its route, so that its report is readable after storage and device have closed. */
static void req_submitted(struct pst_request *req)
{
	req->route = req->span_count ? req->spans[0].route : NULL;
	if (req->route)
		atomic_fetch_add_explicit(&req->route->refs, 1, memory_order_relaxed);
	pst_devices_hold(req->other_devices);
	req->report.engine_why = req->pump ? req->pump->lanes[0].engine_why.why : PENSTOCK_WHY_NONE;
	atomic_fetch_add_explicit(&req->generation, 1, memory_order_relaxed);
	atomic_store_explicit(&req->refs, PST_HOLD | PST_SUBMITTED, memory_order_release);
	atomic_fetch_add_explicit(&pst_stats_get()->requests, 1, memory_order_relaxed);
}

/* Predicts when the request completes if its bytes are cached. The thread that waits for the
 * request then polls around that time. A sleeping virtual processor would take 0.1 to 0.2 ms to
 * wake up, as long as it takes to move 8 MiB. A read from a drive completes later than
 * predicted. After the predicted time, the thread that waits for such a read sleeps. */
static void queue_predict(struct penstock_queue *q, const struct pst_request *req)
{
	uint64_t ns = req->total / PREDICTED_RATE;

	if (req->total > PREDICTED_BYTES || req->op == PENSTOCK_WRITE)
		return;
	q->poll_from = req->start_ns + ns - ns / 8;
	q->poll_to = req->start_ns + ns + ns / 4 + PREDICTED_NS;
}

int pst_queue_submit_here(struct penstock_queue *q, const struct penstock_req *from,
			  bool wants_report)
{
	struct pst_err err;
	struct pst_request *req = pool_get(q, &err);
	int ret = req ? pst_req_admit(req, from, q->segs_max, q->spans_max, &err) : err.code;

	if (ret) {
		if (req)
			pool_put(q, req);
		return pst_err_publish(&err);
	}
	req->wants_report = wants_report;
	req_submitted(req);
	if (req_run_here(req))
		return 0;
	queue_predict(q, req);
	queue_expect_deadline(q, req->deadline_ns);
	req_dispatch(req);
	return 0;
}

/* Submits one request. */
static int queue_submit_one(struct penstock_queue *q, const struct penstock_req *from, uint64_t *id,
			    struct pst_err *err)
{
	struct pst_stream_seq seq;
	struct pst_request *req;
	uint64_t deadline_ns;
	bool streamed;
	int ret = pst_fork_check(q->generation, err);

	if (ret)
		return ret;
	req = pool_get(q, err);
	if (!req)
		return err->code;
	ret = pst_req_admit(req, from, q->segs_max, q->spans_max, err);
	if (!ret && req->stream)
		ret = pst_stream_arm(req, &seq, err);
	if (ret) {
		pool_put(q, req);
		return ret;
	}
	streamed = req->stage;
	req->wants_report = true;
	req_submitted(req);
	if (id)
		*id = (uint64_t)req->generation << 32 | req->index;
	deadline_ns = req->deadline_ns;
	if (streamed)
		pst_stream_fill(req, &seq);
	req_dispatch(req);
	if (streamed)
		ret = pst_stream_queue(req, &seq, err);
	/* Last, because a thread that reads the deadline may abandon the request at once. */
	queue_expect_deadline(q, deadline_ns);
	return ret;
}

int penstock_submit(struct penstock_queue *q, const struct penstock_req *reqs, unsigned count,
		    uint64_t *ids)
{
	struct pst_err err;
	unsigned taken = 0;

	if (!q || (count && !reqs))
		return pst_fail_null("the queue or the list of requests");
	if (q->inline_lane && queue_check(q, &err))
		return pst_err_publish(&err);
	for (; taken < count; taken++) {
		const void *from;
		int ret = pst_struct_at(reqs, taken, "penstock_req", &from, &err);

		if (!ret)
			ret = queue_submit_one(q, from, ids ? &ids[taken] : NULL, &err);
		if (!ret)
			continue;
		pst_err_publish(&err);
		if (!taken)
			return ret;
		break;
	}
	if (q->inline_lane)
		pst_inline_lane_turn(q->inline_lane, 0); /* starts the submitted requests at once */
	return (int)taken;
}

/* ---- harvest ---- */

/* Moves completed requests to the end of the list `ready`, in order of completion. */
static void queue_collect(struct penstock_queue *q)
{
	struct pst_request *list;

	if (PST_LIFO_EMPTY(&q->completed))
		return;
	PST_LIFO_TAKE(&q->completed, list, link);
	*q->ready_end = list;
	while (*q->ready_end)
		q->ready_end = &(*q->ready_end)->link;
}

/* Returns the time at which a wait must end: until_ns, or the time of the next scan for late
 * requests if that is earlier. */
static uint64_t queue_wait_end(const struct penstock_queue *q, uint64_t until_ns)
{
	uint64_t at = queue_expire_at(q);

	return at && (!until_ns || at < until_ns) ? at : until_ns;
}

/* Harvests completed requests into `done`, which has `have` entries already. Returns the number
 * of entries after that. */
static unsigned queue_harvest(struct penstock_queue *q, struct penstock_done *done, unsigned have,
			      unsigned max)
{
	queue_collect(q);
	while (have < max && q->ready) {
		struct pst_request *req = q->ready;
		struct penstock_done one;

		q->ready = req->link;
		if (!q->ready)
			q->ready_end = &q->ready;
		if (req->wants_report || req->result < 0)
			pst_req_report(req);
		one.id = (uint64_t)req->generation << 32 | req->index;
		one.user = req->user;
		one.result = req->result;
		one.report = &req->report;
		pst_req_retire_id(req);
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

/* Returns how many completions one call may return. The requests of these completions stay in
 * use until the next call. Meanwhile requests_max new requests may be submitted, and the pool
 * has 2 * requests_max elements. So one call returns at most requests_max completions. */
static unsigned harvest_max(const struct penstock_queue *q, const struct penstock_done *done,
			    unsigned max)
{
	return (max || done) && max < q->requests_max ? max : q->requests_max;
}

/* Reads the queue's descriptor, so that it is not readable any more. */
static void queue_drain_fd(struct penstock_queue *q)
{
	uint64_t value;

	if (read(q->fd, &value, sizeof(value)) < 0)
		return; /* the read fails only if the descriptor was not readable */
}

/* The first part of penstock_poll and penstock_wait: frees the requests of the last harvest,
 * runs a turn of the inline lane, and expires late requests. */
static int harvest_begin(struct penstock_queue *q)
{
	int ret;

	if (!q)
		return pst_fail_null("the queue");
	if (q->in_callback)
		return pst_fail_errno(NULL, EDEADLK, PENSTOCK_WHY_BAD_ARGUMENT,
				      "completions cannot be harvested inside a callback");
	ret = queue_check(q, NULL);
	if (ret)
		return ret;
	queue_free_harvested(q);
	if (q->inline_lane)
		pst_inline_lane_turn(q->inline_lane, 0);
	queue_expire_late(q);
	if (atomic_load_explicit(&q->watched, memory_order_relaxed))
		queue_drain_fd(q);
	return 0;
}

/* The last part of penstock_poll and penstock_wait: keeps the descriptor readable if completions
 * are left. */
static int harvest_end(struct penstock_queue *q, unsigned have)
{
	if (q->ready && atomic_load_explicit(&q->watched, memory_order_relaxed))
		queue_signal_fd(q);
	return (int)have;
}

int penstock_poll(struct penstock_queue *q, struct penstock_done *done, unsigned max)
{
	int ret = harvest_begin(q);

	return ret ? ret : harvest_end(q, queue_harvest(q, done, 0, harvest_max(q, done, max)));
}

/* Polls for completions for a short time. Returns whether there is a completion. */
static bool queue_poll_shortly(struct penstock_queue *q)
{
	q->spin.limit_ns = atomic_load_explicit(&q->poll_ns, memory_order_relaxed);
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

/* Sleeps until a request completes, no request is in flight, or the time until_ns has come. An
 * until_ns of 0 means no limit. */
static void queue_sleep(struct penstock_queue *q, uint64_t until_ns)
{
	struct pollfd pfd = {.fd = q->fd, .events = POLLIN};
	struct timespec ts, *timeout = NULL;
	uint64_t now = pst_now_ns();

	atomic_store_explicit(&q->asleep, true, memory_order_relaxed);
	/* seq_cst: either the reads below see a change, or the changing thread sees `armed`. */
	atomic_store_explicit(&q->armed, true, memory_order_seq_cst);
	until_ns = queue_wait_end(q, until_ns);
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
		/* Arm it again if another thread has just called penstock_queue_fd. */
		if (atomic_load(&q->watched))
			atomic_store(&q->armed, true);
	}
	queue_drain_fd(q);
}

/* Sleeps until the predicted period begins, or polls during this period. Returns true if the
 * caller should harvest again. Returns false once the predicted period is over and the
 * prediction is dropped. */
static bool queue_wait_predicted(struct penstock_queue *q, uint64_t until_ns)
{
	uint64_t now = pst_now_ns();

	if (now < q->poll_from) {
		queue_sleep(q, until_ns && until_ns < q->poll_from ? until_ns : q->poll_from);
		return true;
	}
	for (unsigned i = 0; i < 64; i++)
		if (atomic_load_explicit(&q->completed, memory_order_relaxed))
			return true;
	if (now >= q->poll_to)
		q->poll_to = q->poll_from = 0;
	return q->poll_to;
}

/* Returns the microseconds until the time until_ns, rounded up so that a wait does not end too
 * early. Returns -1 for no limit if until_ns is 0. */
static int64_t time_left_us(uint64_t until_ns)
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
	int ret = harvest_begin(q);
	unsigned have = 0;

	if (ret)
		return ret;
	max = harvest_max(q, done, max);
	min = min < max ? min : max;
	for (;;) {
		have = queue_harvest(q, done, have, max);
		if (have >= min || !atomic_load_explicit(&q->inflight, memory_order_acquire) ||
		    (until && pst_now_ns() >= until))
			break;
		if (q->inline_lane)
			pst_inline_lane_turn(q->inline_lane,
					     time_left_us(queue_wait_end(q, until)));
		else if (!(q->poll_to && queue_wait_predicted(q, until)) && !queue_poll_shortly(q))
			queue_sleep(q, until);
		queue_expire_late(q);
	}
	q->poll_from = q->poll_to = 0;
	return harvest_end(q, have);
}

int penstock_queue_fd(struct penstock_queue *q)
{
	int ret;

	if (!q)
		return pst_fail_null("the queue");
	ret = pst_fork_check(q->generation, NULL);
	if (ret)
		return ret;
	if (q->inline_lane)
		return pst_fail_errno(NULL, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "a queue with its own lane completes requests only in "
				      "calls on the queue: use penstock_poll");
	/* After these stores every completion makes the descriptor readable. queue_signal_fd makes
	 * it readable for completions that came earlier. */
	atomic_store(&q->watched, true);
	atomic_store(&q->armed, true);
	queue_signal_fd(q);
	return q->fd;
}

/* ---- open and close ---- */

int penstock_queue_open(const struct penstock_queue_opts *from, struct penstock_queue **out)
{
	struct penstock_queue_opts opts;
	struct penstock_queue *q;
	struct pst_err err;
	int ret = 0;

	if (!out)
		return pst_fail_null("the output pointer");
	if (pst_struct_copy_in(&opts, sizeof(opts), from, "penstock_queue_opts", &err))
		return pst_err_publish(&err);
	opts.requests_max = opts.requests_max ? opts.requests_max : REQUESTS_DEFAULT;
	opts.segs_max = opts.segs_max ? opts.segs_max : SEGS_DEFAULT;
	if (opts.requests_max > PENSTOCK_REQUESTS_MAX || opts.segs_max > PENSTOCK_SEGS_MAX ||
	    (uint64_t)opts.requests_max * opts.segs_max > POOL_SEGS_MAX)
		return pst_fail_errno(NULL, E2BIG, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%u requests of %u segments: at most %u requests, at most "
				      "%u segments each, and together at most %u",
				      opts.requests_max, opts.segs_max, PENSTOCK_REQUESTS_MAX,
				      PENSTOCK_SEGS_MAX, POOL_SEGS_MAX);
	q = calloc(1, sizeof(*q));
	if (!q)
		return pst_fail(NULL, PENSTOCK_WHY_NO_MEMORY, "no memory for a queue");
	q->requests_max = opts.requests_max;
	q->segs_max = opts.segs_max;
	/* each segment may have three spans: head, body and tail */
	q->spans_max = opts.segs_max * 3;
	q->generation = pst_fork_generation();
	q->ready_end = &q->ready;
	q->fd = -1;
	/* The pool has twice requests_max elements, because the caller may still read the
	 * reports of as many harvested requests. */
	q->pool_count = 2 * opts.requests_max;
	q->requests = calloc(q->pool_count, sizeof(*q->requests));
	q->segs = calloc((size_t)q->pool_count * q->segs_max, sizeof(*q->segs));
	q->spans = calloc((size_t)q->pool_count * q->spans_max, sizeof(*q->spans));
	if (!q->requests || !q->segs || !q->spans)
		ret = pst_fail(&err, PENSTOCK_WHY_NO_MEMORY, "no memory for %u requests",
			       opts.requests_max);
	else if ((q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
		ret = pst_fail_errno(&err, errno, pst_why_from_errno(errno),
				     "a queue needs an eventfd: %m");
	else if (opts.own_lane)
		ret = pst_inline_lane_open(opts.own_lane, &q->completed, &q->inflight,
					   &q->inline_lane, &err);
	if (ret) {
		penstock_queue_close(q);
		return pst_err_publish(&err);
	}
	*out = q;
	return 0;
}

static unsigned list_count(const struct pst_request *list)
{
	unsigned count = 0;

	for (; list; list = list->link)
		count++;
	return count;
}

/* Frees the queue's memory. If lanes still list completed requests, the lane that drops the last
 * one frees the memory. This thread must not wait for a lane that hangs in a system call. */
static void queue_leave_to_lanes(struct penstock_queue *q)
{
	unsigned used = atomic_load(&q->pool_used), free = list_count(q->free);

	atomic_store(&q->outliving, used + 1);
	free += list_count(atomic_exchange(&q->returned, queue_closed_mark(q)));
	queue_release(q, free + 1);
}

void penstock_queue_close(struct penstock_queue *q)
{
	struct penstock_done done[16];
	bool ours = q && q->generation == pst_fork_generation() && q->requests;
	unsigned times = 0;

	if (!q)
		return;
	/* A callback runs inside a harvest, which still uses the queue after the callback. */
	if (q->in_callback) {
		pst_log(PST_LOG_ERROR, "core", "a queue cannot be closed inside its own callback");
		return;
	}
	if (ours) {
		for (unsigned i = 0; i < atomic_load(&q->pool_used); i++)
			req_cancel(&q->requests[i], atomic_load(&q->requests[i].generation));
		q->mute = true;
		while (atomic_load(&q->inflight))
			if (penstock_wait(q, done, 1, 16, -1) < 0)
				/* only the thread that owns the inline lane can complete the
				 * requests, so wait for it */
				pst_backoff(&times);
		while (atomic_load_explicit(&q->pushing, memory_order_acquire))
			pst_backoff(&times);
		queue_free_harvested(q);
		if (q->inline_lane)
			pst_inline_lane_close(q->inline_lane);
	}
	if (q->fd >= 0)
		close(q->fd);
	if (ours)
		queue_leave_to_lanes(q);
	else
		queue_free(q);
}
