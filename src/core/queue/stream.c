/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submits stream-ordered requests, which start when a CUDA stream reaches them: see stream.h. This
 * file makes their stages, and queues their operations on the stream. queue.c calls it on the
 * thread that submits, which may call the driver. The work of the lanes (worker threads), which
 * must never do so, is in stream_poll.c.
 */
#include "core/queue/stream.h"

#include <errno.h>

#include "core/backends.h"
#include "core/base/device_sync.h"
#include "core/base/spin.h"
#include "core/base/stats.h"
#include "core/lane/pump.h"
#include "core/lane/stage.h"
#include "core/queue/captured.h"
#include "core/queue/stream_poll.h"
#include "core/queue/streams.h"

/* Maximum number of copies that are queued on the stream for one request. A hardware queue of the
 * GPU holds about 1,020 operations, and a call that queues one more waits. */
#define COPIES_QUEUED 256u
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

/* A request has at most PST_STAGE_ROUNDS_MAX + 1 steps, see stage_ops in streams.c. */
_Static_assert(PST_STREAM_OPS_MAX + 3 * (PST_STAGE_ROUNDS_MAX + 1) + COPIES_QUEUED < 1020,
	       "the operations that a stream may have must fit in a hardware queue");

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

/* Queues all operations of the request on its stream. */
static int queue_all(struct queueing *q, struct pst_request *req)
{
	struct pst_stage *stage = req->stage;
	unsigned last = stage->last;
	int ret = 0;

	/* No lane waits until the stream reaches a request that has started. */
	if (!pst_stage_is_early(stage) && req->phase != PST_PHASE_DONE) {
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
		pst_stage_put_unused(streams, stage);
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
	ret = pst_streams_open(req->pump, &pst_stream_poll_hooks, err);
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

/* ---- the calls of queue.c that follow pst_stream_arm ---- */

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
	atomic_store(&req->stage->last, PST_STAGE_PASSED_ALL);
	if (begun)
		seq->dev->ops->stream_write(seq, &words->passed, PST_STAGE_PASSED_ALL, &ignored);
	else
		__atomic_store_n(&words->passed, PST_STAGE_PASSED_ALL, __ATOMIC_RELEASE);
	atomic_fetch_or_explicit(&req->refs, PST_ABANDONED, memory_order_relaxed);
	if (!pst_stream_fail_armed(req, err)) { /* the stream has reached it */
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
	       (pst_stage_is_early(stage) || (seq->dev->ops->stream_idle(seq, 0) && seq->reached));
}

void pst_stream_fill(struct pst_request *req, struct pst_stream_seq *seq)
{
	const struct pst_storage_ops *ops = req->st->ops;
	const struct pst_stage *stage = req->stage;
	struct pst_lane *lane;
	enum penstock_why why;

	pst_req_hold(req);
	if (req->op != PENSTOCK_READ || stage->by_kernel || !req->total ||
	    req->total > (pst_stage_is_burst(stage) ? FILL_BYTES_BURST : FILL_BYTES) ||
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
