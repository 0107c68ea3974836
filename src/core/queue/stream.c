/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements stream-ordered requests, which start when a CUDA stream reaches them: see stream.h.
 * queue.c prepares them and passes them to a lane (worker thread) that never calls the driver. This
 * lane polls their streams through the pump's stream_hooks. It starts a request when the stream has
 * reached it, and drops a request when the stream has passed it. The thread that submits may call
 * the driver. Lanes must never do so, except to query whether the device still works.
 */
#include "core/queue/stream.h"

#include <errno.h>

#include "core/backends.h"
#include "core/base/clock.h"
#include "core/base/device_sync.h"
#include "core/base/spin.h"
#include "core/base/stats.h"
#include "core/lane/inbox.h"
#include "core/lane/pump.h"
#include "core/lane/stage.h"
#include "core/queue/captured.h"
#include "core/queue/queue.h"
#include "core/queue/streams.h"
#include "core/route/admit.h"

/* Interval in ns between two checks whether the device still works. */
#define ALIVE_NS 100000000u
/* Maximum number of copies that are queued on the stream for one request. A hardware queue of the
 * GPU holds about 1,020 operations, and a call that queues one more waits. */
#define COPIES_QUEUED 256u
/* Requests of at least this many bytes are passed from the lane that polls the streams to other
 * lanes. */
#define SPREAD_BYTES (256u << 10)
/* SPREAD_BYTES for early reads of a burst with effort fast. A burst is submitted while other
 * stream-ordered requests of the device are in flight. */
#define SPREAD_BYTES_BURST (32u << 10)
/* Maximum length in bytes of a read that pst_stream_fill carries out. For longer reads, several
 * lanes are faster than the thread that submits. */
#define FILL_BYTES (64u << 10)
/* FILL_BYTES for early reads of a burst. The thread that submits limits a burst's speed, so it
 * leaves longer reads to the lanes: early reads of 64 KiB then move 1.6 times as many bytes a
 * second with effort fast (H200). */
#define FILL_BYTES_BURST (16u << 10)
/* Time in ns for which a submit queries a stream that has passed its latest request, but that the
 * driver does not yet report to be idle. */
#define IDLE_LATE_NS 5000u
/* A value of the words `passed` and `released` (struct pst_stage_words) that is greater than the
 * number of any round. */
#define PASSED_ALL (PST_STAGE_ROUNDS_MAX + 2)

/* A request has at most PST_STAGE_ROUNDS_MAX + 1 steps, see stage_ops in streams.c. */
_Static_assert(PST_STREAM_OPS_MAX + 3 * (PST_STAGE_ROUNDS_MAX + 1) + COPIES_QUEUED < 1020,
	       "the operations that a stream may have must fit in a hardware queue");

static const struct pst_stream_hooks stream_hooks;

/* ---- the shape of a stage ---- */

/* Returns the maximum number of copies that a GPU kernel makes for segment i. A copy that continues
 * in the next piece of the pinned memory counts once. */
static uint64_t seg_copies(const struct pst_request *req, unsigned i)
{
	const struct penstock_seg *seg = &req->segs[i];
	bool may_be_rowwise = seg->pitch != seg->row_len || (!i && req->late.row_len);

	return seg->rows > 1 && may_be_rowwise ? 2 * seg->rows : 2;
}

/* Returns whether the storage had all bytes of the request when it was opened. */
static bool storage_has_all(const struct pst_request *req)
{
	for (unsigned i = 0; i < req->span_count; i++)
		if (req->spans[i].off + req->spans[i].len > req->st->facts.length)
			return false;
	return true;
}

static int shape_find(struct pst_request *req, struct pst_stage_shape *out, struct pst_err *err)
{
	const struct pst_storage_facts *facts = &req->st->facts;
	bool late = req->late.row_len || req->late.off || req->late.buf_off;
	uint64_t copies = 0;

	*out = (struct pst_stage_shape){.block = PST_STAGE_UNIT};
	if (req->other_devices)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_STREAM_ORDER,
				      "a request in stream order has segments on several devices: "
				      "submit one request for each");
	out->block = facts->off_align > out->block ? facts->off_align : out->block;
	out->block = facts->edge_align > out->block ? facts->edge_align : out->block;
	out->empty =
		!req->total || (req->forced >= 0 && pst_paths[req->forced]->traits.synchronous);
	out->places = pst_stage_place(req, out->block);
	if (late) /* the values that the stream supplies may split the spans differently */
		out->places += (3 * (uint64_t)req->seg_count + 1) * 2 * out->block;
	for (unsigned i = 0; i < req->seg_count; i++)
		copies += seg_copies(req, i);
	copies += 3 * (PST_STAGE_ROUNDS_MAX + (uint64_t)req->seg_count);
	if (out->places > PST_STAGE_PLACES_MAX)
		return pst_fail_errno(err, E2BIG, PENSTOCK_WHY_STREAM_ORDER,
				      "a request in stream order has %llu bytes, more than %llu: "
				      "submit several",
				      (unsigned long long)req->total,
				      (unsigned long long)PST_STAGE_PLACES_MAX);
	if (copies > PST_STAGE_COPIES_MAX)
		return pst_fail_errno(
			err, E2BIG, PENSTOCK_WHY_STREAM_ORDER,
			"a request in stream order has too many rows: submit several");
	out->copies = (unsigned)copies;
	/* If the storage ends before the request does, the destination bytes after that end must
	 * not change. Their number is known only when the copies run, so a kernel must make
	 * them. */
	out->by_kernel = late || (req->op == PENSTOCK_READ && !storage_has_all(req));
	return 0;
}

/* ---- operations on the stream ---- */

/* State of the functions that queue or count the copies of one request. */
struct queueing {
	const struct pst_device_ops *ops;
	struct pst_stream_seq *seq;
	enum penstock_op op;
	unsigned queued; /* number of operations that are, or may be, on the stream */
	/* The store that comes next: `value` to *word; NULL if there is none. It is queued together
	 * with the wait that follows it, because that needs fewer calls of the driver. */
	uint64_t *word, value;
	unsigned copies; /* number of copies that count_part has counted */
	bool long_copy;	 /* a counted copy may delay other streams' copies */
	uint32_t copy_free_max;
	struct pst_err *err;
};

/* Queues the store that comes next, if there is one. */
static int queue_store(struct queueing *q)
{
	int ret = 0;

	if (q->word)
		ret = q->ops->stream_write(q->seq, q->word, q->value, q->err);
	q->queued += q->word && !ret;
	q->word = NULL;
	return ret;
}

/* Queues the copy of one part of a round on the stream. A part is a rectangle of device memory.
 * pst_stage_parts calls this function for each part. */
static int queue_part(void *arg, const struct pst_part *part, char *mem)
{
	struct queueing *q = arg;
	bool read = q->op == PENSTOCK_READ;
	struct pst_rect rect = {
		.dst = read ? part->mem : mem,
		.src = read ? mem : part->mem,
		.dst_pitch = read ? part->mem_pitch : part->pitch,
		.src_pitch = read ? part->pitch : part->mem_pitch,
		.row_len = part->row_len,
		.rows = part->rows,
	};

	q->queued++; /* counts also if it fails: some rows of the part may be on the stream */
	return q->ops->stream_copy(q->seq, &rect, q->op, q->err);
}

static int count_part(void *arg, const struct pst_part *part, char *mem)
{
	struct queueing *q = arg;

	(void)mem;
	q->long_copy |=
		q->op == PENSTOCK_WRITE || part->rows > 1 || part->row_len > q->copy_free_max;
	return ++q->copies > COPIES_QUEUED;
}

/* Queues the store that comes next, and then the wait for the word `released` before a round.
 * Queues no wait if lanes have stored the value already, because `released` only grows. In a
 * captured request, it is 0 again in each execution. */
static int queue_wait(struct queueing *q, struct pst_stage *stage, unsigned round)
{
	uint64_t *released = &stage->words->released;
	int ret;

	if (!stage->captured && __atomic_load_n(released, __ATOMIC_ACQUIRE) > round)
		return queue_store(q);
	ret = q->word ? q->ops->stream_write_wait(q->seq, q->word, q->value, released, round + 1,
						  q->err)
		      : q->ops->stream_wait(q->seq, released, round + 1, q->err);
	q->queued += q->word || !ret; /* a failed call may have queued the store */
	q->word = NULL;
	return ret;
}

/* Queues one round on the stream: the store that comes next, the wait for the word `released`, and
 * the round's copies. If `pass` is true, the store to the word `passed` then comes next. stage.h
 * explains these words. */
static int queue_round(struct queueing *q, struct pst_request *req, unsigned round, bool pass)
{
	struct pst_stage *stage = req->stage;
	int ret = queue_wait(q, stage, round);

	if (!ret && round < stage->rounds) {
		q->queued +=
			stage->by_kernel; /* counts also if it fails: it may be on the stream */
		ret = stage->by_kernel
			      ? q->ops->stream_run(q->seq, &stage->round[round], stage->copies,
						   stage->piece_bytes, q->err)
			      : pst_stage_parts(req, round, queue_part, q);
	}
	if (!ret && pass) {
		q->word = &stage->words->passed;
		q->value = round + 1;
	}
	return ret;
}

/* Returns whether lanes may start the request before its stream reaches it, because it has the flag
 * PENSTOCK_R_EARLY. Its stage must have room for all of its bytes. Otherwise its chunks would wait
 * for the stream and block other requests, for which the stream may be waiting. */
static bool stage_is_early(const struct pst_stage *stage)
{
	return stage->req->flags & PENSTOCK_R_EARLY && stage->rounds <= stage->pieces;
}

/* Returns whether lanes may start the request: they may write to its stage, and its stream has
 * reached the request unless it may start before. A retracted request counts as reached even if
 * its stream has not passed the lender's request, so the first condition is needed in any case. */
static bool stage_may_start(const struct pst_stage *stage)
{
	return pst_stage_is_vacated(stage) && (stage_is_early(stage) || pst_stage_arrived(stage));
}

/* Returns whether the request is an early read that was submitted while other stream-ordered
 * requests of the device were in flight. */
static bool stage_is_burst(const struct pst_stage *stage)
{
	return stage->crowded && stage_is_early(stage);
}

/* Queues all operations of the request on its stream. */
static int queue_all(struct queueing *q, struct pst_request *req)
{
	struct pst_stage *stage = req->stage;
	unsigned last = stage->last;
	int ret = 0;

	/* No lane waits until the stream reaches a request that has started. */
	if (!stage_is_early(stage) && req->phase != PST_PHASE_DONE) {
		q->word = &stage->words->arrived;
		q->value = 1;
	}
	for (unsigned round = 0; round < last && !ret; round++)
		ret = queue_round(q, req, round, true);
	return ret ? ret : queue_store(q);
}

/* Captures all operations of a request as nodes of a CUDA graph. A kernel makes the copies, for two
 * reasons. Queued copies that wait for earlier nodes could delay copies of other streams, and the
 * storage may have another length in each execution of the graph. */
static int capture_all(struct queueing *q, struct pst_request *req)
{
	struct pst_stage *stage = req->stage;
	struct pst_stage_words *words = stage->words;
	unsigned last = stage->last;
	int ret = q->ops->stream_count(q->seq, &words->arrived, &words->released, &words->passed,
				       q->err);

	q->queued += !ret;
	for (unsigned round = 0; round < last && !ret; round++)
		ret = queue_round(q, req, round, round + 1 < last);
	return ret ? ret : q->ops->stream_count(q->seq, &words->left, NULL, NULL, q->err);
}

/* Returns whether the stream is idle, or still executes the queued copies of an earlier request.
 * The driver reports that the stream is idle only a moment after the stream has passed that
 * request, so the function then queries it for that moment. */
static bool stream_is_copying_or_idle(struct pst_stream_seq *seq, enum pst_last last)
{
	return last == PST_LAST_COPYING ||
	       seq->dev->ops->stream_idle(seq, last == PST_LAST_COPIED ? IDLE_LATE_NS : 0);
}

/*
 * Returns whether copies may be queued on the stream at submit. Such copies are faster than those
 * of a GPU kernel. But a copy that waits for earlier work of its stream delays the copies of other
 * streams that share its hardware queue. The other streams may belong to worker threads, and the
 * earlier work may wait for the application. So at most COPIES_QUEUED copies are queued. They are
 * queued only if the stream is idle, if it still executes the queued copies of an earlier request,
 * or if they do not use a copy queue. The function counts the copies for the shortest pieces of
 * pinned memory that the request may get, because these need the most copies. It stores the number
 * of copies in the shape.
 */
static bool copies_may_queue(struct pst_request *req, struct pst_stage_shape *shape,
			     struct pst_stream_seq *seq, enum pst_last last)
{
	struct pst_stage stage = {.req = req};
	struct queueing q = {.op = req->op, .copy_free_max = req->segs[0].dev->facts.copy_free_max};
	bool many = false;

	pst_stage_cut(&stage, shape, PST_STAGE_SMALL);
	req->stage = &stage;
	for (unsigned round = 0; round < stage.rounds && !many; round++)
		many = pst_stage_parts(req, round, count_part, &q);
	req->stage = NULL;
	shape->copies_queued = q.copies;
	return !many && (!q.long_copy || stream_is_copying_or_idle(seq, last));
}

/* Returns the number of bytes from the segment's buffer to the end of the memory allocation that
 * contains it, or 0 if that is unknown. */
static uint64_t buffer_end(const struct penstock_seg *seg)
{
	struct pst_memory mem;

	if (seg->dev->ops->classify(seg->dev, seg->buf, &mem) != 1 || !mem.len)
		return 0;
	return mem.base + mem.len - (uintptr_t)seg->buf;
}

/* Gives back a stage (pinned memory of a request) that no stream uses any more. */
static void stage_return(struct pst_stage *stage, struct pst_streams *streams)
{
	__atomic_store_n(&stage->words->passed, PASSED_ALL, __ATOMIC_RELEASE);
	pst_stage_put(streams, stage);
}

/* Captures the request into a graph. If this fails after some nodes were captured, the application
 * may still launch the graph. Lanes then treat these launches as overlapping replays, and let them
 * pass without copies, because none of them adds 1 to the word `left`. */
static int req_capture(struct pst_request *req, struct pst_stream_seq *seq, struct pst_err *err)
{
	struct queueing q = {.ops = seq->dev->ops, .seq = seq, .op = req->op, .err = err};
	struct pst_streams *streams = atomic_load(&req->pump->streams);
	struct pst_stage *stage = req->stage;
	struct pst_captured *cap = NULL;
	int ret = pst_captured_make(req, seq, &cap, err);

	if (!ret)
		ret = capture_all(&q, &cap->req);
	if (ret)
		atomic_fetch_add_explicit(&pst_stats_get()->refused, 1, memory_order_relaxed);
	if (ret && cap)
		atomic_store(&cap->req.retracted, true);
	if (!ret || q.queued) {
		pst_pump_submit(&cap->req);
	} else {
		stage_return(stage, streams);
		if (cap)
			pst_captured_free(cap);
	}
	seq->dev->ops->stream_end(seq);
	req->stage = NULL;
	req->seg_count = 0;
	req->body = req->total = 0;
	req->flags &= ~PENSTOCK_R_DURABLE;
	return ret;
}

/* Checks that a request can be captured into a graph: it needs late->result, and must not have a
 * deadline. */
static int capture_check(const struct pst_request *req, struct pst_err *err)
{
	if (!req->late.result)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a request that is captured into a graph needs late->result, "
				"because no completion reports its replays");
	if (req->deadline_ns)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a request that is captured into a graph cannot have a deadline");
	return 0;
}

/* Waits until the device's lanes are ready, if the stream is idle. Until they are, a lane may load
 * a kernel. If a stream then starts to wait for the application, the load waits for this stream,
 * and calls of the driver wait for the load. If the stream has work, the function does not wait,
 * because the work may wait for the calling thread. It does not query a stream that is being
 * captured. */
static void lanes_await_ready(struct pst_request *req, struct pst_stream_seq *seq)
{
	struct penstock_device *dev = req->pump->dev;
	struct pst_err err; /* not used: pst_stream_arm gets the same error for the request */
	bool idle;

	if (!dev->ops->stream_begin || dev->ops->stream_begin(dev, req->stream, seq, &err))
		return;
	idle = dev->ops->stream_idle(seq, 0);
	dev->ops->stream_end(seq);
	if (idle)
		pst_pump_await_ready(req->pump);
}

int pst_stream_arm(struct pst_request *req, struct pst_stream_seq *seq, struct pst_err *err)
{
	struct pst_streams *streams;
	struct pst_stage_shape shape;
	int ret;

	if (!req->pump)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a stream-ordered request needs a segment");
	if (!atomic_load_explicit(&req->pump->streams, memory_order_acquire))
		lanes_await_ready(req, seq); /* the device's first request in stream order */
	ret = pst_streams_open(req->pump, &stream_hooks, err);
	if (!ret)
		ret = shape_find(req, &shape, err);
	if (ret)
		return ret;
	if (req->flags & PENSTOCK_R_EARLY &&
	    (req->late.row_len || req->late.off || req->late.buf_off))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a request with flag PENSTOCK_R_EARLY cannot have late values");
	streams = atomic_load(&req->pump->streams);
	if (req->late.buf_off && !req->late.buf_len)
		req->late.buf_len = buffer_end(&req->segs[0]);
	ret = streams->gpu->ops->stream_begin(streams->gpu, req->stream, seq, err);
	if (ret)
		return ret;
	shape.stream = seq->id;
	if (seq->capturing) {
		ret = capture_check(req, err);
		shape.captured = true;
		shape.by_kernel = !shape.empty;
	} else {
		enum pst_last last = pst_streams_last(streams, seq->id);

		if (!shape.empty && !shape.by_kernel)
			shape.by_kernel = !copies_may_queue(req, &shape, seq, last);
		/* false if the stream was not queried */
		shape.reached = !shape.by_kernel && seq->reached;
		/* Saves a query: a stream that executes copies is not idle. */
		seq->asked |= last == PST_LAST_COPYING;
	}
	if (!ret)
		ret = pst_stage_get(streams, req, &shape, &req->stage, err);
	while (ret == -ENOMEM && seq->capturing && pst_captured_await_free(streams->gpu))
		ret = pst_stage_get(streams, req, &shape, &req->stage, err);
	if (ret) {
		streams->gpu->ops->stream_end(seq);
		return ret;
	}
	req->pump = streams->pump;
	if (seq->capturing)
		return req_capture(req, seq, err);
	pst_streams_remember(streams, seq->id, req->stage);
	pst_device_stream_enter(streams->gpu);
	return 0;
}

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

/* ---- starting and failing requests; on the lane's thread, unless a comment names another ---- */

/* Moves the request from phase ARMED (it waits for its stream) to phase NEW. Returns true to one
 * thread only, which then starts or fails the request. */
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
	bool burst = req->effort == PENSTOCK_FAST && stage_is_burst(req->stage);

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
	if (req_disarm(req))
		req_fail_unstarted(req, &err);
	else if (req->flags & PENSTOCK_R_EARLY && !pst_stage_arrived(req->stage))
		/* The request started early, and its stream has not copied its bytes from the stage
		 * to the device. So it must fail even if all bytes are in the stage. */
		pst_req_fail(req, &err);
}

/* Ends a request after an error in queueing its operations. `begun` is true if some operations are
 * on the stream. The stream executes these, and then a store to the word `passed`, which makes the
 * stage free. If this store cannot be queued either, the stage stays in use until the device
 * closes. */
static void req_retract(struct pst_request *req, struct pst_stream_seq *seq, bool begun,
			const struct pst_err *err)
{
	struct pst_stage_words *words = req->stage->words;
	struct pst_err ignored; /* only the first error is reported */
	unsigned times = 0;

	atomic_store(&req->retracted, true);
	atomic_store(&req->stage->last, PASSED_ALL);
	if (begun)
		seq->dev->ops->stream_write(seq, &words->passed, PASSED_ALL, &ignored);
	else
		__atomic_store_n(&words->passed, PASSED_ALL, __ATOMIC_RELEASE);
	atomic_fetch_or_explicit(&req->refs, PST_ABANDONED, memory_order_relaxed);
	if (req_disarm(req)) {
		req_fail_unstarted(req, err);
	} else { /* the stream has reached it */
		atomic_store_explicit(&req->cancelled, true, memory_order_relaxed);
		pst_req_fail_unclaimed(req, err);
		pst_pump_cancel(req->pump);
		/* Wait for the lanes. The submit fails, so the caller may reuse the request's
		 * memory after it. */
		while (req->phase != PST_PHASE_DONE)
			pst_backoff(&times);
	}
}

/* Returns whether the lanes may start the request at submit: they may write to its stage, and the
 * request is early, or its stream has reached it already. */
static bool may_start(const struct pst_stage *stage, struct pst_stream_seq *seq)
{
	return pst_stage_is_vacated(stage) &&
	       (stage_is_early(stage) || (seq->dev->ops->stream_idle(seq, 0) && seq->reached));
}

void pst_stream_fill(struct pst_request *req, struct pst_stream_seq *seq)
{
	const struct pst_storage_ops *ops = req->st->ops;
	const struct pst_stage *stage = req->stage;
	struct pst_lane *lane;
	enum penstock_why why;

	pst_req_hold(req);
	if (req->op != PENSTOCK_READ || stage->by_kernel || !req->total ||
	    req->total > (stage_is_burst(stage) ? FILL_BYTES_BURST : FILL_BYTES) ||
	    req->span_count != 1 || stage->rounds != 1 || req->forced >= 0 || !ops->residency ||
	    !may_start(stage, seq) ||
	    ops->residency(req->st, req->spans[0].off, req->total, &why) != PST_WARM)
		return;
	lane = pst_pump_borrow(req->pump);
	if (!lane)
		return;
	req->report.engine_why = lane->engine_why.why;
	pst_stage_start(req);
	pst_pump_run(lane, req);
	pst_pump_return(lane);
}

/* Only the thread that submits the request calls this function, because it calls the driver. */
int pst_stream_queue(struct pst_request *req, struct pst_stream_seq *seq, struct pst_err *err)
{
	struct queueing q = {.ops = seq->dev->ops, .seq = seq, .op = req->op, .err = err};
	struct pst_stage *stage = req->stage;
	bool lends = req->op == PENSTOCK_READ && !stage->by_kernel;
	uint64_t turn = stage->turn;
	int ret = queue_all(&q, req);

	if (ret)
		req_retract(req, seq, q.queued, err);
	else if (lends)
		/* The stage may belong to another request already. Then this store has no effect,
		 * because the stage has another `turn`. */
		atomic_store_explicit(&stage->lends, turn, memory_order_release);
	seq->dev->ops->stream_end(seq);
	pst_req_put(req, PST_HOLD);
	return ret;
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
	req_disarm(req);
	req_fail_unstarted(req, err);
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

/* Starts, fails or finishes one request on the lane's list of requests that wait for streams, if
 * the request is ready for that. Returns whether the lane shall remove the request from the list.
 * Adds 1 to *did if the request has started or failed. */
static bool stage_poll(struct pst_lane *lane, struct pst_stage *stage, const struct pst_err *broken,
		       int *did)
{
	struct pst_request *req = stage->req;
	struct pst_err err;

	if (stage->captured)
		return captured_poll(lane, pst_captured_of(req), broken, did);
	if (req->phase == PST_PHASE_ARMED) {
		if (stage_may_start(stage))
			req_start(lane, req);
		else if (broken && req_disarm(req))
			req_fail_unstarted(req, broken);
		else if (req_abandoned_unstarted(req, &err) && req_disarm(req))
			req_fail_unstarted(req, &err);
		else
			return false;
		++*did;
	}
	if (req->phase != PST_PHASE_DONE)
		return false;
	pst_stage_finish(req);
	pst_stage_finish_later(req, broken);
	if (!atomic_load_explicit(&req->stage_left, memory_order_acquire))
		return false;
	if (pst_stage_passed(stage))
		return true;
	if (broken) /* the stream did not make its copies */
		pst_req_fail(req, broken);
	return broken || atomic_load_explicit(&req->refs, memory_order_relaxed) & PST_ABANDONED;
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
		struct pst_request *req = stage->req;

		if (!stage_poll(lane, stage, broken ? &why : NULL, &did)) {
			at = &stage->next;
			continue;
		}
		*at = stage->next;
		if (stage->captured) {
			stage_return(stage, streams);
			pst_captured_free(pst_captured_of(req));
		} else {
			pst_stage_put(streams, stage);
			pst_req_put(req, PST_LISTED);
		}
		did++;
	}
	return did;
}

/* Hook: see pst_stream_hooks. */
static void streams_close(struct pst_pump *pump)
{
	pst_streams_close(atomic_load(&pump->streams));
}

static const struct pst_stream_hooks stream_hooks = {
	.poll = stream_poll,
	.close = streams_close,
};
