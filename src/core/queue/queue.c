/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues: a pool of places, and how requests get from there to whoever drives them.
 * submit takes a place, admit.c fills it from what the caller asked, and it goes to a
 * pump, to the queue's own lane, or runs here. harvest.c hands out what has ended.
 */
#include "core/queue/queue.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/base/log.h"
#include "core/base/objects.h"
#include "core/lane/pump.h"
#include "core/route/route.h"
#include "core/base/stats.h"
#include "core/queue/stream.h"

#define REQUESTS_DEFAULT 256
#define SEGS_DEFAULT 1024
#define PLACES_MAX (16u << 20) /* requests_max x segs_max */
#define HERE_BYTES (1u << 20)  /* longer ones are quicker on several lanes */
/* A transfer of cached bytes up to this length ends about when it should. */
#define FORESEEN_BYTES (128u << 20)
#define FORESEEN_RATE 50u   /* bytes a nanosecond: what one link carries */
#define FORESEEN_NS 300000u /* until lanes are awake */
/* A lane that names what has ended looks at its lists soon, unless it hangs in a call. */
#define HUNG_NS 1000000000u

/* ---- open and close ---- */

int penstock_queue_open(const struct penstock_queue_opts *from, struct penstock_queue **out)
{
	struct penstock_queue_opts opts;
	struct penstock_queue *q;
	struct pst_err err;
	int ret = 0;

	if (pst_struct_copy_in(&opts, sizeof(opts), from, "penstock_queue_opts", &err))
		return pst_err_publish(&err);
	opts.requests_max = opts.requests_max ? opts.requests_max : REQUESTS_DEFAULT;
	opts.segs_max = opts.segs_max ? opts.segs_max : SEGS_DEFAULT;
	if (opts.requests_max > PENSTOCK_REQUESTS_MAX || opts.segs_max > PENSTOCK_SEGS_MAX ||
	    (uint64_t)opts.requests_max * opts.segs_max > PLACES_MAX)
		return pst_fail_errno(NULL, E2BIG, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%u requests of %u segments: together at most %u",
				      opts.requests_max, opts.segs_max, PLACES_MAX);
	q = calloc(1, sizeof(*q));
	if (!q)
		return pst_fail(NULL, PENSTOCK_WHY_NO_MEMORY, "no memory for a queue");
	q->requests_max = opts.requests_max;
	q->segs_max = opts.segs_max;
	q->spans_max = opts.segs_max * 3; /* head, body and tail of each */
	q->generation = pst_fork_generation();
	q->ready_end = &q->ready;
	q->fd = -1;
	/* Twice the places: as many again may be harvested with their reports in use. */
	q->place_count = 2 * opts.requests_max;
	q->requests = calloc(q->place_count, sizeof(*q->requests));
	q->segs = calloc((size_t)q->place_count * q->segs_max, sizeof(*q->segs));
	q->spans = calloc((size_t)q->place_count * q->spans_max, sizeof(*q->spans));
	if (!q->requests || !q->segs || !q->spans)
		ret = pst_fail(&err, PENSTOCK_WHY_NO_MEMORY, "no memory for %u requests",
			       opts.requests_max);
	else if ((q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
		ret = pst_fail_errno(&err, errno, pst_why_of_errno(errno),
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

static void free_queue(struct penstock_queue *q)
{
	free(q->requests);
	free(q->segs);
	free(q->spans);
	free(q);
}

/* What is in `returned` of a closed queue: no place. Who brings one lets go of it then. */
static struct pst_request *closed(struct penstock_queue *q)
{
	return q->requests + q->place_count;
}

static unsigned count_free(const struct pst_request *list)
{
	unsigned count = 0;

	for (; list; list = list->link)
		count++;
	return count;
}

static void let_places(struct penstock_queue *q, unsigned count)
{
	if (atomic_fetch_sub_explicit(&q->outliving, count, memory_order_acq_rel) == count)
		free_queue(q);
}

/* Lanes that hang may still have ended requests on their lists: the last to forget one frees
 * the memory. */
static void leave_to_lanes(struct penstock_queue *q)
{
	unsigned used = atomic_load(&q->place_used), free = count_free(q->free);

	atomic_store(&q->outliving, used + 1);
	free += count_free(atomic_exchange(&q->returned, closed(q)));
	let_places(q, free + 1);
}

void penstock_queue_close(struct penstock_queue *q)
{
	struct penstock_done done[16];
	bool ours = q && q->generation == pst_fork_generation() && q->requests;
	unsigned times = 0;

	if (!q)
		return;
	if (q->in_callback) { /* whoever called it goes on with the queue */
		pst_log(PST_LOG_ERROR, "core", "a queue is not closed inside its own callback");
		return;
	}
	if (ours) {
		for (unsigned i = 0; i < atomic_load(&q->place_used); i++)
			pst_req_cancel(&q->requests[i], atomic_load(&q->requests[i].generation));
		q->mute = true;
		while (atomic_load(&q->inflight))
			if (penstock_wait(q, done, 1, 16, -1) < 0)
				pst_backoff(&times); /* its own lane is another's to turn */
		while (atomic_load_explicit(&q->pushing, memory_order_acquire))
			pst_backoff(&times);
		pst_queue_free_harvested(q);
		if (q->inline_lane)
			pst_inline_lane_close(q->inline_lane);
	}
	if (q->fd >= 0)
		close(q->fd);
	if (ours)
		leave_to_lanes(q);
	else
		free_queue(q);
}

int pst_queue_check(const struct penstock_queue *q, struct pst_err *err)
{
	int ret = pst_fork_check(q->generation, err);

	return ret || !q->inline_lane ? ret : pst_inline_lane_check(q->inline_lane, err);
}

/* ---- submit ---- */

/* One that was never used: its memory is touched here for the first time. */
static struct pst_request *new_place(struct penstock_queue *q)
{
	unsigned i = atomic_load_explicit(&q->place_used, memory_order_relaxed);
	struct pst_request *req = &q->requests[i];

	if (i == q->place_count)
		return NULL;
	req->q = q;
	req->index = i;
	req->segs = &q->segs[(size_t)i * q->segs_max];
	req->spans = &q->spans[(size_t)i * q->spans_max];
	atomic_store_explicit(&q->place_used, i + 1, memory_order_release); /* for harvesters */
	return req;
}

static bool fill_free(struct penstock_queue *q)
{
	if (!q->free)
		q->free = atomic_exchange_explicit(&q->returned, NULL, memory_order_acquire);
	return q->free;
}

bool pst_queue_has_place(struct penstock_queue *q)
{
	pst_queue_free_harvested(q);
	return fill_free(q) || atomic_load(&q->place_used) < q->place_count;
}

/* All places are taken, by fewer requests: lanes have yet to forget some that ended early. */
static void await_place(struct penstock_queue *q)
{
	uint64_t until = pst_now_ns() + HUNG_NS;
	unsigned times = 0;

	while (!fill_free(q) && pst_now_ns() < until) {
		if (q->inline_lane)
			pst_inline_lane_turn(q->inline_lane, 0);
		pst_backoff(&times);
	}
}

static struct pst_request *take_place(struct penstock_queue *q, struct pst_err *err)
{
	struct pst_request *req;

	if (atomic_load_explicit(&q->inflight, memory_order_relaxed) >= q->requests_max) {
		pst_fail(err, PENSTOCK_WHY_FULL,
			 "all %u places are taken, harvest completions first", q->requests_max);
		return NULL;
	}
	if (!fill_free(q)) {
		req = new_place(q);
		if (req)
			return req;
		await_place(q);
	}
	req = q->free;
	if (req)
		q->free = req->link;
	else
		pst_fail(err, PENSTOCK_WHY_FULL,
			 "all places are taken by what lanes that hang in a call have yet to "
			 "forget");
	return req;
}

void pst_queue_return(struct penstock_queue *q, struct pst_request *req)
{
	if (req->route)
		pst_route_put(req->route);
	req->link = atomic_load_explicit(&q->returned, memory_order_relaxed);
	do {
		if (req->link == closed(q)) {
			let_places(q, 1);
			return;
		}
	} while (!atomic_compare_exchange_weak_explicit(
		&q->returned, &req->link, req, memory_order_release, memory_order_relaxed));
}

/* Paths that complete before start returns need no lane: null. */
static void run_at_once(struct pst_request *req)
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
	pst_req_bytes_done(req, NULL, req->total);
}

static void hand_in(struct pst_request *req)
{
	atomic_fetch_add_explicit(&req->st->inflight, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&req->q->inflight, 1, memory_order_relaxed);
	if (pst_req_only_syncs(req))
		pst_pump_submit(req);
	else if (!req->total)
		pst_req_put(req, PST_HOLD); /* nothing to do: it has ended */
	else if (req->forced >= 0 && pst_paths[req->forced]->traits.at_once)
		run_at_once(req);
	else if (req->q->inline_lane && pst_inline_lane_accepts(req->q->inline_lane, req))
		pst_inline_lane_enqueue(req->q->inline_lane, req);
	else
		pst_pump_submit(req);
}

/* A chunk or two: this thread does it, if a lane's place is free. */
static bool run_here(struct pst_request *req)
{
	struct pst_lane *lane;

	if (!req->pump || req->other_devices || req->span_count != 1 || req->total > HERE_BYTES ||
	    req->total > req->pump->spare[0].slot_bytes ||
	    (req->forced >= 0 && pst_paths[req->forced]->traits.at_once))
		return false;
	lane = pst_lane_borrow(req->pump);
	if (!lane)
		return false;
	atomic_fetch_add_explicit(&req->st->inflight, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&req->q->inflight, 1, memory_order_relaxed);
	/* It makes its calls at once, for whatever reason the others make theirs otherwise. */
	req->report.engine_why = lane->engine_why.why;
	req->alone = true;
	pst_lane_run(lane, req);
	pst_lane_return(lane);
	return true;
}

/* From here on the place is in use, by a request that is sure to end. What its report
 * says outlives storage and device. */
static void take_up(struct pst_request *req)
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

/* Who waits for it alone looks on while it is likely to end: to be woken takes a virtual
 * machine's processor 0.1 to 0.2 ms, as long as 8 MiB. What is read from a drive comes
 * later than this, and is slept for. */
static void foresee(struct penstock_queue *q, const struct pst_request *req)
{
	uint64_t ns = req->total / FORESEEN_RATE;

	if (req->total > FORESEEN_BYTES || req->op == PENSTOCK_WRITE)
		return;
	q->look_from = req->start_ns + ns - ns / 8;
	q->look_to = req->start_ns + ns + ns / 4 + FORESEEN_NS;
}

int pst_queue_submit_here(struct penstock_queue *q, const struct penstock_req *from)
{
	struct pst_err err;
	struct pst_request *req = take_place(q, &err);
	int ret = req ? pst_req_admit(req, from, &err) : err.code;

	if (ret) {
		if (req) {
			req->link = q->free;
			q->free = req;
		}
		return pst_err_publish(&err);
	}
	take_up(req);
	if (run_here(req))
		return 0;
	foresee(q, req);
	pst_queue_expect(q, req->deadline_ns);
	hand_in(req);
	return 0;
}

static int submit_one(struct penstock_queue *q, const struct penstock_req *from, uint64_t *id,
		      struct pst_err *err)
{
	struct pst_request *req = take_place(q, err);
	uint64_t deadline_ns;
	int ret;

	if (!req)
		return err->code;
	ret = pst_req_admit(req, from, err);
	if (!ret && req->stream)
		ret = pst_stream_arm(req, err);
	if (ret) {
		req->link = q->free;
		q->free = req;
		return ret;
	}
	take_up(req);
	if (id)
		*id = (uint64_t)req->generation << 32 | req->index;
	atomic_store_explicit(&q->fast,
			      req->effort == PENSTOCK_FAST && req->total <= PST_SPIN_SHORT,
			      memory_order_relaxed);
	deadline_ns = req->deadline_ns;
	if (req->stream)
		pst_stream_enqueue(req);
	else
		hand_in(req);
	pst_queue_expect(q, deadline_ns); /* only now: who sees it may end the request */
	return 0;
}

int penstock_submit(struct penstock_queue *q, const struct penstock_req *reqs, unsigned count,
		    uint64_t *ids)
{
	struct pst_err err;
	unsigned taken = 0;

	if (q->inline_lane && pst_queue_check(q, &err))
		return pst_err_publish(&err);
	for (; taken < count; taken++) {
		const struct penstock_req *from =
			(const struct penstock_req *)((const char *)reqs + taken * reqs[0].size);
		int ret = submit_one(q, from, ids ? &ids[taken] : NULL, &err);

		if (!ret)
			continue;
		pst_err_publish(&err);
		if (!taken)
			return ret;
		break;
	}
	if (q->inline_lane)
		pst_inline_lane_turn(q->inline_lane,
				     0); /* they begin now, and not with the next call */
	return (int)taken;
}

int penstock_cancel(struct penstock_queue *q, uint64_t id)
{
	uint32_t index = (uint32_t)id, generation = (uint32_t)(id >> 32);
	int ret = pst_fork_check(q->generation, NULL);

	if (ret)
		return ret;
	if (index >= q->place_count || !(generation & 1) ||
	    atomic_load_explicit(&q->requests[index].generation, memory_order_relaxed) !=
		    generation)
		return pst_fail_errno(NULL, ENOENT, PENSTOCK_WHY_NOT_FOUND,
				      "no such request, or it has been harvested");
	pst_req_cancel(&q->requests[index], generation);
	return 0;
}
