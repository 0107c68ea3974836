/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lanes' part of stream-ordered requests: see stream_poll.h. A lane polls the stages on its
 * list lane->watched. It must never call the driver, except to query whether the device still
 * works.
 */
#include "core/queue/stream_poll.h"

#include <errno.h>

#include "core/base/clock.h"
#include "core/lane/inbox.h"
#include "core/lane/stage.h"
#include "core/queue/captured.h"
#include "core/queue/streams.h"
#include "core/route/admit.h"

/* Interval in ns between two checks whether the device still works. */
#define ALIVE_NS 100000000u
/* Requests of at least this many bytes are passed from the lane that polls the streams to other
 * lanes. */
#define SPREAD_BYTES (256u << 10)
/* SPREAD_BYTES for early reads of a burst with effort fast. A burst is submitted while other
 * stream-ordered requests of the device are in flight. */
#define SPREAD_BYTES_BURST (32u << 10)

/* ---- late values ---- */

/* Checks that the buffer offset that the stream has stored in late->buf_off stays inside the
 * buf_len bytes that the caller specified. */
static int req_check_late_place(const struct pst_request *req, struct pst_err *err)
{
	const struct penstock_seg *seg = &req->segs[0];
	uint64_t need = (seg->rows - 1) * seg->buf_pitch + seg->row_len;
	uint64_t have = req->late.buf_len;

	if (have && seg->row_len && (seg->buf_off > have || need > have - seg->buf_off))
		return pst_fail(
			err, PENSTOCK_WHY_BAD_ARGUMENT,
			"late buffer offset: %llu bytes at offset %llu, the memory has %llu",
			(unsigned long long)need, (unsigned long long)seg->buf_off,
			(unsigned long long)have);
	return 0;
}

/* Reads the request's late values: offsets and a length that the stream has written before it
 * reached the request. Then divides the request into spans again, according to these values. */
static int req_bind_late(struct pst_request *req, struct pst_err *err)
{
	struct penstock_seg *seg = &req->segs[0];
	const struct penstock_late *late = &req->late;
	const struct pst_storage_facts *facts = &req->st->facts;
	uint64_t block = PST_STAGE_UNIT;
	int ret;

	if (late->row_len) {
		uint64_t len = *(const volatile uint64_t *)late->row_len;

		if (len > seg->row_len)
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
					"late row length: %llu bytes, more than the submitted %llu",
					(unsigned long long)len, (unsigned long long)seg->row_len);
		seg->row_len = len;
		if (seg->rows == 1)
			seg->pitch = seg->buf_pitch = len;
	}
	if (late->off)
		seg->off = *(const volatile uint64_t *)late->off;
	if (late->buf_off)
		seg->buf_off = *(const volatile uint64_t *)late->buf_off;
	if (!late->row_len && !late->off && !late->buf_off)
		return 0;
	if (seg->off > INT64_MAX || seg->buf_off > INT64_MAX)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"late offsets: %lld in the storage, %lld in the buffer, and none "
				"may be negative",
				(long long)seg->off, (long long)seg->buf_off);
	/* pst_admit_spans also checks the late values for overflow */
	ret = pst_admit_spans(req, req->spans_max, err);
	if (!ret && late->buf_off)
		ret = req_check_late_place(req, err);
	block = facts->off_align > block ? facts->off_align : block;
	block = facts->edge_align > block ? facts->edge_align : block;
	pst_stage_place(req, block);
	return ret;
}

/* ---- starting and failing requests; on the lane's thread, unless a comment says otherwise ---- */

/* Moves the request from phase ARMED (it waits for its stream) to phase NEW. Returns true to one
 * thread only, which then starts or fails the request. Any thread that has a reference to the
 * request may call this function and the next two. */
static bool req_disarm(struct pst_request *req)
{
	enum pst_phase armed = PST_PHASE_ARMED;

	return atomic_compare_exchange_strong(&req->phase, &armed, PST_PHASE_NEW);
}

/* Fails a request after req_disarm, before any lane has started a byte of it. Stores the error
 * first, because as soon as the phase is DONE, a lane may store the result for the application. */
static void req_fail_unstarted(struct pst_request *req, const struct pst_err *err)
{
	pst_req_fail(req, err);
	req->phase = PST_PHASE_DONE;
	pst_req_put(req, PST_HOLD);
}

bool pst_stream_fail_armed(struct pst_request *req, const struct pst_err *err)
{
	bool armed = req_disarm(req);

	if (armed)
		req_fail_unstarted(req, err);
	return armed;
}

/* Chooses the lane for a request after the request's stream has reached it. A short request stays
 * on this lane, because waking another lane would take longer. A longer request would keep this
 * lane from polling streams, so it goes to the other lane with the least load. If several lanes are
 * idle, the function chooses the first of them. That one gets the most requests, so it has slept
 * for the shortest time. */
static struct pst_lane *lane_choose(struct pst_lane *lane, const struct pst_request *req)
{
	struct pst_pump *pump = lane->pump;
	struct pst_lane *best = lane;
	unsigned least = UINT32_MAX;
	bool burst = req->effort == PENSTOCK_FAST && pst_stage_is_burst(req->stage);

	if (req->total < (burst ? SPREAD_BYTES_BURST : SPREAD_BYTES))
		return lane;
	for (unsigned i = 0; i < pump->lane_count && least; i++) {
		struct pst_lane *other = &pump->lanes[i];
		unsigned load = atomic_load_explicit(&other->load, memory_order_relaxed) +
				atomic_load_explicit(&other->busy_seen, memory_order_relaxed);

		if (other == lane || load >= least)
			continue;
		best = other;
		least = load;
	}
	return best;
}

/* Passes a request, after its stream has reached it, to the lane that lane_choose returns. */
static void req_pass_on(struct pst_lane *lane, struct pst_request *req)
{
	struct pst_lane *other = lane_choose(lane, req);
	struct pst_lane_entry *entry;

	if (other == lane) {
		pst_inbox_list(lane, req);
		pst_req_open_phase(req);
		return;
	}
	entry = pst_inbox_entry(other, req);
	pst_req_open_phase(req);
	pst_inbox_push(other, entry);
}

/* Returns whether lanes may start the request: they may write to its stage, and its stream has
 * reached the request unless it may start before. A retracted request counts as reached even if
 * its stream has not passed the lender's request, so the first condition is needed in any case. */
static bool stage_may_start(const struct pst_stage *stage)
{
	return pst_stage_is_vacated(stage) &&
	       (pst_stage_is_early(stage) || pst_stage_arrived(stage));
}

/* Starts a request whose stream has reached it. A request with flag PENSTOCK_R_EARLY may start
 * before that. */
static void req_start(struct pst_lane *lane, struct pst_request *req)
{
	struct pst_err err;

	if (!req_disarm(req))
		return;
	if (req_bind_late(req, &err)) {
		/* A report finds an offset in the request's spans, which may be incomplete
		 * here. Without bytes, the report names no offset. */
		req->total = 0;
		req_fail_unstarted(req, &err);
	} else if (req->total || pst_req_only_syncs(req)) {
		pst_stage_start(req);
		req_pass_on(lane, req);
	} else {
		req->phase = PST_PHASE_DONE;
		pst_req_put(req, PST_HOLD);
	}
}

/* Returns whether the device has failed. Queries the device at most once in ALIVE_NS. A failure of
 * the application's own GPU work can break the device's context. Then all its streams stop without
 * any signal to the lanes. */
static bool device_is_broken(struct pst_lane *lane, struct pst_err *err)
{
	struct penstock_device *gpu = atomic_load(&lane->pump->streams)->gpu;
	uint64_t now = pst_now_ns();
	int ret;

	if (!gpu->ops->alive || now - lane->watch_asked_ns < ALIVE_NS)
		return false;
	lane->watch_asked_ns = now;
	ret = gpu->ops->alive(gpu);
	if (ret)
		pst_fail_errno(err, ret, PENSTOCK_WHY_DEVICE_ERROR,
			       "%s has failed, its streams will not run again: %m", gpu->name);
	return ret != 0;
}

/* Returns whether the request was cancelled, or its deadline has passed, before its stream reached
 * it. Such a request must be failed by this check, because the stream may never reach it. */
static bool req_abandoned_unstarted(struct pst_request *req, struct pst_err *err)
{
	if (pst_req_cancelled(req))
		return pst_fail(err, PENSTOCK_WHY_CANCELLED,
				"cancelled by the caller before its stream reached it");
	if (!req->deadline_ns || pst_now_ns() <= req->deadline_ns)
		return false;
	return pst_fail(err, PENSTOCK_WHY_DEADLINE,
			"the deadline passed before its stream reached it");
}

/* Any thread that has a reference to the request may call this function. */
void pst_stream_abandon(struct pst_request *req)
{
	struct pst_err err;

	if (!req_abandoned_unstarted(req, &err))
		return;
	if (!pst_stream_fail_armed(req, &err) && req->flags & PENSTOCK_R_EARLY &&
	    !pst_stage_arrived(req->stage))
		/* The request started early, and its stream has not copied its bytes from the stage
		 * to the device. So it must fail even if all bytes are in the stage. */
		pst_req_fail(req, &err);
}

/* ---- replays of captured requests; on the thread of the lane that watches the stage ---- */

/* Cancels a running replay of a captured request, so that lanes start no more bytes of it. */
static void replay_stop(struct pst_request *req, const struct pst_err *err)
{
	if (pst_req_cancelled(req) || !pst_req_hold(req))
		return;
	pst_req_fail_unclaimed(req, err);
	atomic_store_explicit(&req->cancelled, true, memory_order_relaxed);
	pst_pump_cancel(req->pump);
	pst_req_put(req, PST_HOLD);
}

/* Checks a running replay (one execution of a captured request). Ends it if all its bytes are done.
 * Cancels it if another replay has begun meanwhile, or if the device is broken. Returns whether the
 * replay has ended. */
static bool replay_ended(struct pst_captured *cap, const struct pst_err *broken)
{
	struct pst_request *req = &cap->req;
	struct pst_stage *stage = req->stage;
	struct pst_err err;
	/* Load the number of arrivals before stage_done. Once a thread has set stage_done, the
	 * stream may pass this replay, and the next replay may arrive. If stage_done were loaded
	 * first, that next replay could look like an overlap with this one. */
	bool more = pst_stage_arrivals(stage) != atomic_load(&stage->replays);

	if (req->phase == PST_PHASE_DONE &&
	    atomic_load_explicit(&req->refs, memory_order_acquire) == PST_LISTED) {
		pst_stage_finish(req);
		pst_captured_end(cap);
		return true;
	}
	if (more && !atomic_load(&req->stage_done)) {
		atomic_store(&stage->overlapped, true);
		pst_fail_errno(&err, EBUSY, PENSTOCK_WHY_BAD_ARGUMENT,
			       "two replays of a captured request ran at the same time");
		replay_stop(req, &err);
	} else if (broken) {
		replay_stop(req, broken);
	}
	return false;
}

/* Fails a replay (execution of a captured request) that cannot start. */
static void req_refuse_replay(struct pst_request *req, const struct pst_err *err)
{
	/* A report finds an offset in the request's spans, which may be incomplete
	 * here. Without bytes, the report names no offset. */
	req->total = 0;
	pst_stream_fail_armed(req, err);
}

/* Starts the replay (execution of a captured request) that the stream has reached, unless another
 * replay has begun before this one ended. */
static void replay_start(struct pst_lane *lane, struct pst_captured *cap, uint64_t arrivals)
{
	struct pst_stage *stage = cap->req.stage;
	struct pst_err err;

	if (atomic_load(&cap->req.retracted) || arrivals != atomic_load(&stage->replays) + 1 ||
	    __atomic_load_n(&stage->words->left, __ATOMIC_ACQUIRE) != arrivals - 1) {
		atomic_store(&stage->overlapped, true);
		return;
	}
	atomic_store(&stage->replays, arrivals);
	if (!pst_captured_begin(cap, lane, &err))
		req_start(lane, &cap->req);
	else
		req_refuse_replay(&cap->req, &err);
}

/* Checks a captured request. Ends its running replay if that is complete, and starts a replay if
 * the stream has reached the request. Returns whether the lane shall remove the request from its
 * list. Adds 1 to *did if a replay has started or ended. */
static bool captured_poll(struct pst_lane *lane, struct pst_captured *cap,
			  const struct pst_err *broken, int *did)
{
	struct pst_stage *stage = cap->req.stage;
	bool gone = pst_captured_gone(cap);
	uint64_t arrivals;

	if (cap->running) {
		if (!replay_ended(cap, broken))
			return false;
		++*did;
	}
	if (gone || broken)
		return true;
	if (atomic_load(&stage->overlapped)) {
		*did += pst_stage_part(&cap->req);
		return false;
	}
	arrivals = pst_stage_arrivals(stage);
	if (arrivals == atomic_load(&stage->replays))
		return false;
	replay_start(lane, cap, arrivals);
	++*did;
	return false;
}

/* ---- the watched stages of a lane ---- */

/* Starts, fails or finishes the request of one stage on the lane's list, if the request is ready
 * for that. Returns whether the lane shall remove the stage from the list. Adds 1 to *did if the
 * request has started or failed. */
static bool stage_poll(struct pst_lane *lane, struct pst_stage *stage, const struct pst_err *broken,
		       int *did)
{
	struct pst_request *req = stage->req;
	struct pst_err err;

	if (!req)
		return pst_stage_finish_later(stage, lane, broken);
	if (stage->captured)
		return captured_poll(lane, pst_captured_of(req), broken, did);
	if (req->phase == PST_PHASE_ARMED) {
		if (stage_may_start(stage))
			req_start(lane, req);
		else if (!(broken || req_abandoned_unstarted(req, &err)) ||
			 !pst_stream_fail_armed(req, broken ? broken : &err))
			return false;
		++*did;
	}
	if (req->phase != PST_PHASE_DONE)
		return false;
	pst_stage_finish(req);
	if (atomic_load_explicit(&stage->clear_due, memory_order_acquire)) {
		/* Drop the request at once, so that its queue can use it again. The stage stays on
		 * the list until its memory is cleared. */
		if (!(atomic_load_explicit(&req->refs, memory_order_acquire) & PST_HOLDS)) {
			stage->req = NULL;
			pst_req_put(req, PST_LISTED);
			return false;
		}
		/* The thread that submits still reads stage->req. It may wait in the driver until
		 * its stream passes this stage, so the stage must be cleared meanwhile. */
		pst_stage_finish_later(stage, lane, broken);
	}
	if (!atomic_load_explicit(&req->stage_left, memory_order_acquire))
		return false;
	if (pst_stage_passed(stage))
		return true;
	if (broken) /* the stream did not make its copies */
		pst_req_fail(req, broken);
	return broken || atomic_load_explicit(&req->refs, memory_order_relaxed) & PST_ABANDONED;
}

/* Gives back a stage that the lane has removed from its list, and drops the stage's request. */
static void stage_drop(struct pst_streams *streams, struct pst_stage *stage)
{
	struct pst_request *req = stage->req; /* another request may take the stage below */

	if (stage->captured) {
		pst_stage_put_unused(streams, stage);
		pst_captured_free(pst_captured_of(req));
		return;
	}
	pst_stage_put(streams, stage);
	if (req)
		pst_req_put(req, PST_LISTED);
}

/* Hook: see pst_stream_hooks. */
static int stream_poll(struct pst_lane *lane)
{
	struct pst_streams *streams = atomic_load(&lane->pump->streams);
	struct pst_stage **at = &lane->watched;
	struct pst_err why;
	bool broken = device_is_broken(lane, &why);
	int did = 0;

	while (*at) {
		struct pst_stage *stage = *at;

		if (!stage_poll(lane, stage, broken ? &why : NULL, &did)) {
			at = &stage->next;
			continue;
		}
		*at = stage->next;
		stage_drop(streams, stage);
		did++;
	}
	return did;
}

/* Hook: see pst_stream_hooks. */
static void streams_close(struct pst_pump *pump)
{
	pst_streams_close(atomic_load(&pump->streams));
}

const struct pst_stream_hooks pst_stream_poll_hooks = {
	.poll = stream_poll,
	.close = streams_close,
};
