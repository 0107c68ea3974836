/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the life of a chunk, which is a range of bytes that moves as one unit. A lane, usually
 * a worker thread, takes a chunk from its pool, transfers it to or from the storage, copies it, and
 * completes it. A chunk that failed on one path is retried on the next path that the required class
 * (kind of path) allows. Reports count the CPU copies and memory traffic of the failed try, but do
 * not count its bytes as transferred. Paths and the lane's loop call these functions, on the lane's
 * thread only. They must never allocate memory, with one exception: a lane that a caller's thread
 * has borrowed opens a copy queue at its first copy to a device.
 */
#include "core/lane/chunk.h"

#include <stddef.h>
#include <stdlib.h>

#include "core/backends.h"
#include "core/base/clock.h"
#include "core/base/lifo.h"
#include "core/base/log.h"
#include "core/base/stats.h"
#include "core/lane/claim.h"
#include "core/lane/inbox.h"
#include "core/lane/lane.h"
#include "core/lane/pump.h"
#include "core/lane/stage.h"
#include "core/request/residency_probe.h"
#include "core/request/spans.h"
#include "core/request/plan.h"

/* A ticket is a number that the lane records in the device's copy queue after some copies, and
 * later queries to find out whether these copies are done. While older copies keep the device busy,
 * the lane records one ticket for several copies, which together have at least this many bytes. It
 * is half of a lane's staging memory, so that drives can fill the other half at the same time. */
#define RECORD_BYTES (8u << 20)
/* New copies with fewer than this many bytes in total get their ticket later than longer ones: in
 * the next pass of the lane's loop, or when older copies are done. */
#define RECORD_MIN (256u << 10)
#define COPYQ_WAITS (PST_LANE_CHUNKS + PST_PASSED_MAX)
#define TICKETS 8 /* expected number of tickets in flight on one copy queue */

/* ---- the pool ---- */

struct pst_chunk *pst_chunk_get(struct pst_lane *lane)
{
	struct pst_chunk *chunk = lane->chunks_free;

	lane->chunks_free = chunk->next;
	chunk->lane = lane;
	chunk->tries = 0;
	chunk->tried = 0;
	chunk->slot = NULL;
	chunk->rest = 0;
	chunk->direct_bytes = 0;
	chunk->moved = chunk->cpu_copied = chunk->dram_laid = 0;
	chunk->engine = NULL;
	chunk->err.code = 0;
	chunk->timed = false;
	chunk->timed_ns = 0;
	chunk->on_done = NULL;
	chunk->priv = NULL;
	chunk->waits = 0;
	chunk->own_piece = 0;
	chunk->copy_within = false;
	chunk->io.st = NULL;
	chunk->io.engine_why = PENSTOCK_WHY_NONE;
	lane->busy++;
	return chunk;
}

void pst_chunk_claimed(struct pst_chunk *chunk, struct pst_request *req,
		       const struct pst_claim *claim)
{
	chunk->req = req;
	chunk->route = claim->route;
	chunk->span = claim->span;
	chunk->off = claim->off;
	chunk->len = claim->len;
	chunk->pad = claim->pad;
	chunk->path = claim->path;
	chunk->residency = claim->residency;
	chunk->fills_cache = claim->fills_cache;
	chunk->timed = claim->timed;
	chunk->start_ns = pst_now_ns();
}

static void chunk_put_slot(struct pst_chunk *chunk)
{
	if (chunk->slot)
		pst_slot_put(&chunk->lane->slots, chunk->slot);
	chunk->slot = NULL;
}

bool pst_chunk_memory(struct pst_chunk *chunk, uint64_t off, uint64_t len)
{
	if (chunk->req->stage) {
		chunk->mem = pst_stage_memory(chunk, off);
		return chunk->mem;
	}
	if (!chunk->slot)
		chunk->slot = pst_slot_get(&chunk->lane->slots, len);
	chunk->mem = chunk->slot ? chunk->slot->mem : NULL;
	return chunk->mem;
}

void pst_chunk_put(struct pst_chunk *chunk)
{
	struct pst_lane *lane = chunk->lane;

	pst_chunk_direct_end(chunk);
	chunk_put_slot(chunk);
	chunk->next = lane->chunks_free;
	lane->chunks_free = chunk;
	lane->busy--;
}

void pst_chunk_defer(struct pst_lane *lane, struct pst_chunk *chunk)
{
	chunk->next = NULL;
	*lane->deferred_end = chunk;
	lane->deferred_end = &chunk->next;
	chunk->req->entries[lane->index].stalled++;
}

/* ---- transfers to and from the storage ---- */

bool pst_chunk_direct_begin(struct pst_chunk *chunk, uint64_t len)
{
	struct penstock_storage *st = chunk->route->st;
	bool read = chunk->route->op == PENSTOCK_READ;
	uint64_t most = PST_DIRECT_CALLS_MAX * (read ? pst_io_size_get(&st->io_size) : 1u << 20);
	uint64_t before;

	if (chunk->lane->direct &&
	    atomic_load_explicit(&st->direct_bytes, memory_order_relaxed) + len > most)
		return false;
	before = atomic_fetch_add_explicit(&st->direct_bytes, len, memory_order_relaxed);
	if (read)
		pst_io_size_started(&st->io_size, len, before, pst_now_ns);
	chunk->direct_bytes = len;
	chunk->lane->direct++;
	chunk->lane->reading += read;
	return true;
}

void pst_chunk_direct_end(struct pst_chunk *chunk)
{
	struct penstock_storage *st;
	uint64_t before;

	if (!chunk->direct_bytes)
		return; /* nothing to subtract; the chunk may have no route, for example if it only
			 * syncs */
	st = chunk->route->st;
	before = atomic_fetch_sub_explicit(&st->direct_bytes, chunk->direct_bytes,
					   memory_order_relaxed);
	if (chunk->route->op == PENSTOCK_READ) {
		pst_io_size_completed(&st->io_size, chunk->direct_bytes, before, pst_now_ns);
		chunk->lane->reading--;
	}
	chunk->direct_bytes = 0;
	chunk->lane->direct--;
}

void pst_chunk_io(struct pst_chunk *chunk, void *mem, uint64_t off, uint64_t len, unsigned flags,
		  void (*done)(struct pst_io *io))
{
	struct pst_io *io = &chunk->io;

	io->st = chunk->route->st;
	io->lane = chunk->lane;
	io->op = chunk->route->op == PENSTOCK_READ ? PST_IO_FILL : PST_IO_DRAIN;
	io->flags = flags;
	io->off = off;
	io->len = len;
	io->one = (struct iovec){mem, len};
	io->iov = &io->one;
	io->iov_count = 1;
	io->window = NULL;
	io->dev = NULL;
	io->by_window = io->by_dma = false;
	io->kept = 0;
	io->done = done;
	io->err.code = 0;
}

/* Returns an error, such as -ECANCELED, if the chunk's transfer must be cancelled, or 0 if it may
 * go on. It must be cancelled if the caller has cancelled the request. If the storage can cancel
 * transfers, it must also be cancelled once the request's deadline has passed. A sync is not
 * cancelled at the deadline, because its bytes are already written. */
static int chunk_is_cut(const struct pst_chunk *chunk, struct pst_err *err)
{
	const struct pst_io *io = &chunk->io;

	if (pst_req_cancelled(chunk->req))
		return pst_fail(err, PENSTOCK_WHY_CANCELLED, "cancelled by the caller");
	if (!chunk->req->st->ops->cancel || io->op == PST_IO_SYNC)
		return 0;
	return pst_req_is_abandoned(chunk->req, err) ? err->code : 0;
}

/* Makes the lane wake at the deadline of the chunk's request, so that it then cancels the chunk's
 * transfer. */
static void chunk_expect_cut(const struct pst_chunk *chunk)
{
	struct pst_lane *lane = chunk->lane;
	uint64_t deadline_ns = chunk->req->deadline_ns;

	if (deadline_ns && (!lane->cut_ns || deadline_ns < lane->cut_ns))
		lane->cut_ns = deadline_ns;
}

int pst_chunk_io_start(struct pst_chunk *chunk)
{
	struct pst_io *io = &chunk->io;
	const struct pst_storage_ops *ops = io->st->ops;
	int ret;

	/* If the request is cancelled already, do not start the transfer. The lane asks the storage
	 * to cancel only the transfers that are in progress at the time of the cancel. */
	if (ops->cancel && chunk_is_cut(chunk, &chunk->err))
		return chunk->err.code;
	if (ops->cancel)
		chunk_expect_cut(chunk);
	/* Set this before calling the storage, because that call may complete the transfer and
	 * clear it. */
	chunk->io_started = true;
	ret = io->op == PST_IO_FILL    ? ops->fill(io)
	      : io->op == PST_IO_DRAIN ? ops->drain(io)
				       : ops->sync(io);
	if (!ret)
		return 0;
	chunk->io_started = false;
	if (ret != -EAGAIN)
		chunk->err = io->err;
	return ret;
}

struct pst_chunk *pst_chunk_io_done(struct pst_io *io)
{
	struct pst_chunk *chunk = (struct pst_chunk *)((char *)io - offsetof(struct pst_chunk, io));

	chunk->io_started = false;
	if (chunk->timed_ns)
		pst_residency_probe_end(chunk, io->result);
	return chunk;
}

int pst_chunk_moved(struct pst_chunk *chunk, uint64_t n)
{
	chunk->moved = n < chunk->len ? n : chunk->len;
	if (chunk->route->op == PENSTOCK_READ || n >= chunk->len)
		return 0;
	return pst_fail(&chunk->err, PENSTOCK_WHY_SHORT_IO, "wrote %llu of %llu bytes",
			(unsigned long long)n, (unsigned long long)chunk->len);
}

bool pst_chunk_cancel(struct pst_chunk *chunk)
{
	const struct pst_storage_ops *ops = chunk->io_started ? chunk->io.st->ops : NULL;
	struct pst_err err;

	if (!ops || !ops->cancel)
		return false;
	if (!chunk_is_cut(chunk, &err)) {
		chunk_expect_cut(chunk);
		return false;
	}
	ops->cancel(&chunk->io);
	return true;
}

/* ---- copies ---- */

struct pst_copyq *pst_copyq_open(struct penstock_device *dev, bool alone, struct pst_err *err)
{
	struct pst_copyq *copyq = calloc(1, sizeof(*copyq));

	if (!copyq) {
		pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a copy queue");
		return NULL;
	}
	copyq->dev = dev;
	if (dev->ops->copier_open(dev, alone ? 1 : TICKETS, &copyq->copier, err)) {
		pst_log(PST_LOG_ERROR, dev->ops->name, "%s", err->text);
		free(copyq);
		return NULL;
	}
	return copyq;
}

void pst_copyq_close(struct pst_copyq *copyq)
{
	copyq->dev->ops->copier_close(copyq->copier);
	free(copyq);
}

void pst_copyqs_adopt(struct pst_lane *lane)
{
	struct pst_copyq *list;

	if (PST_LIFO_EMPTY(&lane->given))
		return;
	PST_LIFO_TAKE(&lane->given, list, link);
	while (list) {
		struct pst_copyq *copyq = list;

		list = copyq->link;
		lane->copyqs[lane->copyq_count++] = copyq;
	}
}

static struct pst_copyq *copyq_find(struct pst_lane *lane, struct penstock_device *dev, bool within)
{
	struct pst_copyq *copyq;

	for (int again = 0; again < 2; again++) {
		for (unsigned i = 0; i < lane->copyq_count; i++)
			if (lane->copyqs[i]->dev == dev && lane->copyqs[i]->within == within)
				return lane->copyqs[i];
		pst_copyqs_adopt(lane);
	}
	copyq = pst_copyq_open(dev, lane->kind == PST_LANE_BORROWED, &lane->open_err);
	if (!copyq)
		return NULL;
	copyq->within = within;
	lane->copyqs[lane->copyq_count++] = copyq;
	atomic_fetch_or(&lane->copies_to, (uint64_t)1 << dev->index);
	return copyq;
}

struct pst_copyq *pst_copyq_of(struct pst_lane *lane, struct penstock_device *dev)
{
	return copyq_find(lane, dev, false);
}

struct pst_copyq *pst_copyq_within(struct pst_lane *lane, struct penstock_device *dev)
{
	return copyq_find(lane, dev, true);
}

/* State of one call of chunk_queue_copies, which it passes to chunk_copy_part. */
struct copying {
	struct pst_chunk *chunk;
	uint64_t bytes;
	/* bit i is set if a copy was queued on lane->copyqs[i] */
	unsigned __int128 touched;
	enum penstock_op op;
};

/* Queues the copy of one part of a segment: a rectangle of memory on one device. pst_span_parts
 * calls this function for each part. */
static int chunk_copy_part(void *arg, const struct pst_part *part)
{
	struct copying *c = arg;
	struct pst_lane *lane = c->chunk->copy_lane;
	struct pst_copyq *copyq = c->chunk->copy_within ? pst_copyq_within(lane, part->dev)
							: pst_copyq_of(lane, part->dev);
	char *base = c->chunk->copy_base;
	struct pst_rect rect = {
		.row_len = part->row_len,
		.rows = part->rows,
		.unsure = c->chunk->req->flags & PENSTOCK_R_UNSURE,
		.piece = c->chunk->copy_piece,
		.within = c->chunk->copy_within,
		.refused = &c->chunk->refused,
	};
	int ret;

	if (!copyq)
		return pst_fail(&c->chunk->err, PENSTOCK_WHY_DEVICE_ERROR,
				"%s: cannot open a copy queue: %s", part->dev->name,
				lane->open_err.text);
	if (c->op == PENSTOCK_READ) {
		rect.dst = part->mem;
		rect.dst_pitch = part->mem_pitch;
		rect.src = base + part->at;
		rect.src_pitch = part->pitch;
		ret = part->dev->ops->copy_in(copyq->copier, &rect);
	} else {
		rect.dst = base + part->at;
		rect.dst_pitch = part->pitch;
		rect.src = part->mem;
		rect.src_pitch = part->mem_pitch;
		ret = part->dev->ops->copy_out(copyq->copier, &rect);
	}
	if (ret)
		return pst_fail_errno(&c->chunk->err, ret,
				      part->dev->facts.is_host ? pst_why_from_errno(ret)
							       : PENSTOCK_WHY_DEVICE_ERROR,
				      "%s: copying %llu bytes: %m", part->dev->name,
				      (unsigned long long)(part->row_len * part->rows));
	c->bytes += part->row_len * part->rows;
	if (part->dev->facts.cpu_addressable)
		c->chunk->cpu_copied += part->row_len * part->rows;
	for (unsigned i = 0; i < lane->copyq_count; i++)
		if (lane->copyqs[i] == copyq)
			c->touched |= (unsigned __int128)1 << i;
	return 0;
}

/* Records one ticket, by which the lane later checks for completion, for all copies that were
 * queued since the last ticket. One ticket serves many copies because each ticket makes the GPU's
 * copy engine pause for about 4 us (H200). */
static void copyq_record(struct pst_copyq *copyq)
{
	uint64_t ticket = 0;
	int ret;

	if (!copyq->unrecorded)
		return;
	ret = copyq->dev->ops->record(copyq->copier, &ticket);
	for (unsigned i = copyq->tail - copyq->unrecorded; i != copyq->tail; i++) {
		copyq->waits[i % COPYQ_WAITS].ticket = ticket;
		copyq->waits[i % COPYQ_WAITS].error = ret;
	}
	copyq->unrecorded = 0;
	copyq->unrecorded_bytes = 0;
}

/* Returns whether the lane must record a ticket for the newest copies now. It must if the copies
 * without a ticket have RECORD_BYTES or more, or if no older copy keeps the device busy. */
static bool copyq_record_due(const struct pst_copyq *copyq)
{
	return copyq->unrecorded_bytes >= RECORD_BYTES ||
	       copyq->tail - copyq->head == copyq->unrecorded;
}

/* Returns whether the lane shall delay the ticket for the newest copies until the queue's older
 * copies are done. It shall if all copies in flight on the lane have fewer than RECORD_MIN bytes.
 * More copies may come meanwhile, and all of them then share driver calls and a ticket. If there
 * are no older copies, the newest need the ticket at once, because nothing would wake the lane
 * later. */
static bool copyq_may_hold(const struct pst_lane *lane, const struct pst_copyq *copyq)
{
	return lane->copy_bytes < RECORD_MIN && !copyq_record_due(copyq);
}

/* Called when one device's copy queue has completed its copies of the chunk. The last call for a
 * chunk lets the chunk's path continue. If another lane has queued the copies, that lane first
 * passes the chunk back to the lane that owns it. */
static void chunk_copies_done(struct pst_chunk *chunk, int result)
{
	struct pst_lane *own = chunk->lane;

	if (!result)
		result = chunk->refused;
	if (result && !chunk->err.code)
		pst_fail_errno(&chunk->err, result, PENSTOCK_WHY_DEVICE_ERROR,
			       "the device reported an error for a copy: %m");
	if (--chunk->waits)
		return;
	chunk->copy_lane->copies--;
	if (chunk->copy_lane == own) {
		chunk->after_copies(chunk, chunk->err.code);
		return;
	}
	chunk->copy_lane->passed_count--;
	PST_LIFO_PUSH(&own->returned, chunk, next, memory_order_release);
	pst_inbox_wake(own);
}

/* Queues the chunk's copies on the copy queues of chunk->copy_lane. Only the thread of that lane
 * may call this function. */
static void chunk_queue_copies(struct pst_chunk *chunk)
{
	struct pst_request *req = chunk->req;
	struct pst_lane *lane = chunk->copy_lane;
	struct copying c = {.chunk = chunk, .op = req->op};
	int ret = pst_span_parts(req, &req->spans[chunk->span], chunk->off, chunk->copy_len,
				 chunk_copy_part, &c);

	/* `waits` counts the copy queues that have not completed. It starts at 1, so that it cannot
	 * reach 0 before this loop has counted all of them. */
	chunk->waits = 1;
	lane->copies++;
	for (unsigned i = 0; i < lane->copyq_count; i++) {
		struct pst_copyq *copyq = lane->copyqs[i];
		unsigned at = copyq->tail % COPYQ_WAITS;

		if (!(c.touched >> i & 1))
			continue;
		copyq->waits[at].bytes = c.bytes;
		copyq->waits[at].chunk = chunk;
		copyq->tail++;
		copyq->unrecorded++;
		copyq->unrecorded_bytes += c.bytes;
		lane->copy_bytes += c.bytes;
		chunk->waits++;
		if (c.bytes >= RECORD_MIN && copyq_record_due(copyq))
			copyq_record(copyq);
	}
	chunk_copies_done(chunk, ret);
}

/* Returns the lane that shall queue the chunk's copies in place of the chunk's own lane, or NULL if
 * the own lane queues them. */
static struct pst_lane *chunk_pass_to(const struct pst_chunk *chunk)
{
	const struct pst_request *req = chunk->req;
	struct pst_lane *first;

	if (!req->home_lane || req->forced >= 0 || chunk->lane->kind != PST_LANE_PUMP ||
	    chunk->residency != PST_WARM || req->spans[chunk->span].plan->mixed < 2)
		return NULL;
	first = pst_pump_first_lane(req);
	/* Pass the copies only while the first lane starts a chunk of the same storage. Otherwise a
	 * storage that does not answer would stop that lane, and with it copies of other storages'
	 * bytes. */
	return first != chunk->lane &&
			       atomic_load_explicit(&first->drives, memory_order_relaxed) == req->st
		       ? first
		       : NULL;
}

int pst_chunk_copy(struct pst_chunk *chunk, char *base, uint64_t len,
		   void (*after)(struct pst_chunk *chunk, int result))
{
	struct pst_lane *other;

	if (chunk->req->stage) { /* stream-ordered: the stream makes the copies */
		after(chunk, 0);
		return 0;
	}
	other = chunk_pass_to(chunk);
	chunk->refused = 0;
	chunk->after_copies = after;
	chunk->copy_base = base;
	chunk->copy_len = len;
	chunk->copy_piece =
		chunk->own_piece ? chunk->own_piece : pst_ring_piece(&chunk->lane->ring, base);
	chunk->copy_lane = other ? other : chunk->lane;
	if (!other) {
		chunk_queue_copies(chunk);
		return 0;
	}
	PST_LIFO_PUSH(&other->passed, chunk, next, memory_order_release);
	pst_inbox_wake(other);
	return 0;
}

/* Other lanes pass chunks to this lane, which then makes their copies. This function moves these
 * chunks from lane->passed to the end of the list lane->passed_todo. */
static void passed_take(struct pst_lane *lane)
{
	struct pst_chunk *list;

	if (PST_LIFO_EMPTY(&lane->passed))
		return;
	PST_LIFO_TAKE(&lane->passed, list, next);
	*lane->passed_todo_end = list;
	while (*lane->passed_todo_end)
		lane->passed_todo_end = &(*lane->passed_todo_end)->next;
}

/* Continues the chunks of this lane whose copies another lane has completed. Returns their
 * count. */
static int returned_take(struct pst_lane *lane)
{
	struct pst_chunk *list;
	int count = 0;

	if (PST_LIFO_EMPTY(&lane->returned))
		return 0;
	PST_LIFO_TAKE(&lane->returned, list, next);
	while (list) {
		struct pst_chunk *chunk = list;

		list = chunk->next;
		chunk->after_copies(chunk, chunk->err.code);
		count++;
	}
	return count;
}

int pst_chunks_exchange(struct pst_lane *lane)
{
	int count = returned_take(lane);

	passed_take(lane);
	while (lane->passed_todo && lane->passed_count < PST_PASSED_MAX) {
		struct pst_chunk *chunk = lane->passed_todo;

		lane->passed_todo = chunk->next;
		if (!lane->passed_todo)
			lane->passed_todo_end = &lane->passed_todo;
		lane->passed_count++;
		count++;
		chunk_queue_copies(chunk);
	}
	return count;
}

int pst_copyqs_reap(struct pst_lane *lane, enum pst_reap how)
{
	int reaped = 0;

	for (unsigned i = 0; i < lane->copyq_count; i++) {
		struct pst_copyq *copyq = lane->copyqs[i];

		if (how != PST_REAP_LOOK && !copyq_may_hold(lane, copyq))
			copyq_record(copyq);
		/* A chunk that completes in this loop may queue more copies at the end of the
		 * queue. The loop stops at the first copy that has no ticket, because it cannot be
		 * queried. */
		while (copyq->tail - copyq->head > copyq->unrecorded) {
			const unsigned at = copyq->head % COPYQ_WAITS;
			uint64_t ticket = copyq->waits[at].ticket;
			int ret = copyq->waits[at].error;

			if (!ret)
				ret = copyq->dev->ops->query(copyq->copier, ticket);
			if (!ret)
				break;
			copyq->head++;
			lane->copy_bytes -= copyq->waits[at].bytes;
			chunk_copies_done(copyq->waits[at].chunk, ret < 0 ? ret : 0);
			reaped++;
		}
		if (how != PST_REAP_LOOK && !copyq_may_hold(lane, copyq))
			copyq_record(copyq);
	}
	return reaped;
}

int pst_copy_now(struct pst_lane *lane, struct penstock_device *dev, const struct pst_rect *rect,
		 bool in)
{
	struct pst_copyq *copyq = pst_copyq_of(lane, dev);
	uint64_t ticket;
	int ret;

	if (!copyq)
		return lane->open_err.code;
	ret = in ? dev->ops->copy_in(copyq->copier, rect) : dev->ops->copy_out(copyq->copier, rect);
	if (!ret)
		ret = dev->ops->record(copyq->copier, &ticket);
	if (!ret)
		ret = dev->ops->wait(copyq->copier, ticket);
	return ret;
}

/* ---- completion ---- */

/* Adds the chunk, which has completed with `result`, to the counters of the process. */
static void chunk_count(const struct pst_chunk *chunk, int result)
{
	struct pst_stats_path *row = &pst_stats_get()->paths[chunk->path];
	unsigned op = chunk->req->op;
	uint64_t ns = pst_now_ns() - chunk->start_ns;
	struct pst_err cut;

	atomic_fetch_add_explicit(&row->chunks[op], 1, memory_order_relaxed);
	if (!result) /* like a report, the statistics do not count the bytes of failed chunks */
		atomic_fetch_add_explicit(&row->bytes[op], chunk->moved, memory_order_relaxed);
	atomic_fetch_add_explicit(&row->cpu_copied, chunk->cpu_copied, memory_order_relaxed);
	atomic_fetch_add_explicit(&row->dram_laid, chunk->dram_laid, memory_order_relaxed);
	atomic_fetch_add_explicit(&row->latency[pst_stats_bucket(ns)], 1, memory_order_relaxed);
	if (result && !(result == -ECANCELED && chunk_is_cut(chunk, &cut)))
		atomic_fetch_add_explicit(&row->errors, 1, memory_order_relaxed);
}

/* Puts the chunk on the lane's list of deferred chunks. The lane then starts the first `len` bytes
 * of the chunk on `path`, and its remaining bytes after them. */
static void chunk_restart(struct pst_chunk *chunk, int path, uint64_t len, uint32_t pad)
{
	chunk_put_slot(chunk);
	pst_chunk_direct_end(chunk); /* in case the path has not ended its transfer */
	chunk->path = (uint8_t)path;
	chunk->timed = false;
	chunk->timed_ns = 0;
	chunk->rest += chunk->len - len;
	chunk->len = len;
	chunk->pad = pad;
	chunk->moved = chunk->cpu_copied = chunk->dram_laid = 0;
	chunk->err.code = 0;
	chunk->on_done = NULL;
	chunk->own_piece = 0;
	chunk->copy_within = false;
	pst_chunk_defer(chunk->lane, chunk);
}

/* Chooses the next path for a chunk that must leave its path for the reason `why`. Only paths
 * that the required class allows are chosen. Counts a retry. Returns -1 if no path is left, if the
 * request is cancelled or has failed, or if its deadline has passed and the storage can cancel
 * transfers. */
static int chunk_next_path(struct pst_chunk *chunk, const struct pst_err *why, uint64_t *len,
			   uint32_t *pad)
{
	struct pst_request *req = chunk->req;
	struct pst_err cut;
	int next;

	if (chunk_is_cut(chunk, &cut) || atomic_load_explicit(&req->failed, memory_order_relaxed))
		return -1;
	chunk->tried |= (uint16_t)(1u << chunk->path);
	next = pst_claim_retry(chunk, true, len, pad);
	/* Store the reason why the path is not used. The request's report shows the last reason of
	 * each path. */
	atomic_store_explicit(&req->path_why[chunk->path], (unsigned)why->why,
			      memory_order_relaxed);
	if (next < 0)
		return -1;
	atomic_fetch_add_explicit(&req->retries, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&pst_stats_get()->paths[chunk->path].retries, 1,
				  memory_order_relaxed);
	pst_log(PST_LOG_INFO, pst_paths[chunk->path]->name,
		"chunk at %llu continues on path %s: %s", (unsigned long long)chunk->off,
		pst_paths[next]->name, why->text);
	chunk->tries++;
	return next;
}

bool pst_chunk_demote(struct pst_chunk *chunk, const struct pst_err *why)
{
	uint64_t len;
	uint32_t pad;
	int next = chunk_next_path(chunk, why, &len, &pad);

	if (next >= 0)
		chunk->path = (uint8_t)next;
	return next >= 0;
}

void pst_chunk_note(struct pst_chunk *chunk, const struct pst_err *why)
{
	struct pst_request *req = chunk->req;

	pst_req_note(req, chunk->path, why->why);
	atomic_fetch_add_explicit(&req->retries, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&pst_stats_get()->paths[chunk->path].retries, 1,
				  memory_order_relaxed);
	pst_log(PST_LOG_INFO, pst_paths[chunk->path]->name, "chunk at %llu starts again: %s",
		(unsigned long long)chunk->off, why->text);
}

void pst_chunk_again(struct pst_chunk *chunk, const struct pst_err *why)
{
	pst_chunk_note(chunk, why);
	chunk_restart(chunk, chunk->path, chunk->len, chunk->pad);
}

/* Restarts a failed chunk on the next path that the required class allows. Returns false if no
 * path is left, or if the request is cancelled or has failed. */
static bool chunk_retry(struct pst_chunk *chunk)
{
	struct pst_request *req = chunk->req;
	uint64_t len;
	uint32_t pad;
	int next = chunk_next_path(chunk, &chunk->err, &len, &pad);

	if (next < 0)
		return false;
	/* The report counts the CPU copies and memory traffic of the failed try, but not its
	 * bytes. */
	atomic_fetch_add_explicit(&req->cpu_copied, chunk->cpu_copied, memory_order_relaxed);
	atomic_fetch_add_explicit(&req->dram_laid, chunk->dram_laid, memory_order_relaxed);
	chunk_restart(chunk, next, len, pad);
	return true;
}

/* Adds `bytes` to the completed bytes of a request. A write may have several phases, for example
 * its whole blocks, its unaligned edges and a sync. If the phase is complete and another one
 * follows, the function begins that phase and puts the request on the lane's list. */
static void chunk_bytes_done(struct pst_lane *lane, struct pst_request *req, uint64_t bytes)
{
	if (!pst_req_bytes_done(req, bytes))
		return;
	pst_inbox_list(lane, req);
	pst_req_begin_phase(req);
}

/* Fails the request of a chunk, and completes the chunk. The bytes that the chunk would move after
 * its first ones (chunk->rest) count as failed, too. */
static void chunk_fail(struct pst_chunk *chunk)
{
	struct pst_request *req = chunk->req;
	struct pst_lane *lane = chunk->lane;
	uint64_t len = chunk->len + chunk->rest;

	chunk->moved = 0;
	pst_req_count(req, chunk);
	pst_req_fail(req, &chunk->err);
	pst_chunk_put(chunk);
	chunk_bytes_done(lane, req, len);
}

/* Called when the first bytes of a chunk (chunk->len) are done. Its remaining bytes (chunk->rest)
 * become its new range, and the lane starts them. */
static void chunk_continue(struct pst_chunk *chunk)
{
	struct pst_request *req = chunk->req;
	struct pst_lane *lane = chunk->lane;
	uint64_t done = chunk->len, len;
	uint32_t pad;
	int path = -1;

	chunk->off += done;
	chunk->len = chunk->rest;
	chunk->rest = 0;
	chunk->cpu_copied = chunk->dram_laid = 0;
	if (!atomic_load_explicit(&req->failed, memory_order_relaxed))
		path = pst_claim_retry(chunk, false, &len, &pad);
	if (path >= 0) {
		chunk_restart(chunk, path, len, pad);
	} else {
		pst_fail(&chunk->err, PENSTOCK_WHY_UNALIGNED,
			 "no path of the class can carry the %llu bytes at %llu",
			 (unsigned long long)chunk->len, (unsigned long long)chunk->off);
		chunk_fail(chunk);
	}
	/* This call must come last, because the request may be freed during it. */
	chunk_bytes_done(lane, req, done);
}

/* A chunk that has not started is abandoned after a cancel or at the request's deadline. A chunk
 * that is retried on another path has started before the deadline. So only a cancel abandons it,
 * unless its storage can cancel transfers at the deadline. */
bool pst_chunk_abandon(struct pst_chunk *chunk)
{
	if (chunk->tries ? !chunk_is_cut(chunk, &chunk->err)
			 : !pst_req_is_abandoned(chunk->req, &chunk->err))
		return false;
	chunk_fail(chunk);
	return true;
}

void pst_chunk_done(struct pst_chunk *chunk, int result)
{
	struct pst_request *req = chunk->req;
	struct pst_lane *lane = chunk->lane;
	uint64_t len = chunk->len;

	if (chunk->on_done) {
		chunk->on_done(chunk, result);
		return;
	}
	if (!result && req->op == PENSTOCK_WRITE && chunk->route->paths[chunk->path].facts.canary)
		result = chunk->route->verify_write(chunk);
	chunk_count(chunk, result);
	if (result && chunk_retry(chunk))
		return;
	if (result) {
		/* -ECANCELED does not contain the reason for the cancel. So store in chunk->err
		 * whether the caller or the deadline was the reason. */
		if (result == -ECANCELED)
			chunk_is_cut(chunk, &chunk->err);
		if (!chunk->err.code)
			pst_fail_errno(&chunk->err, result, pst_why_from_errno(result), "%m");
		chunk_fail(chunk);
		return;
	}
	if (req->stage)
		pst_stage_moved(chunk);
	pst_req_count(req, chunk);
	if (chunk->rest) {
		chunk_continue(chunk);
		return;
	}
	pst_chunk_put(chunk);
	chunk_bytes_done(lane, req, len);
}
