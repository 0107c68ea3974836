/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements stages: see stage.h. A stage is the pinned memory through which the bytes of one
 * stream-ordered request pass. stream.c makes stages and queues the device's operations on them.
 * Paths and chunk.c move bytes through them. These functions must never call a device's driver,
 * allocate memory or take a lock.
 */
#include "core/lane/stage.h"

#include <errno.h>
#include <string.h>

#include "core/base/device_sync.h"
#include "core/lane/lane.h"

/* ---- places ---- */

/* Returns how many bytes of the stage a span of the request occupies. This is the number of bytes
 * of the span that move. */
static uint64_t span_bytes(const struct pst_request *req, const struct pst_span *span)
{
	unsigned i = (unsigned)(span - req->spans) + 1;

	return (i < req->span_count ? req->spans[i].start : req->total) - span->start;
}

uint64_t pst_stage_place(struct pst_request *req, uint64_t block)
{
	uint64_t at = 0;

	for (unsigned i = 0; i < req->span_count; i++) {
		struct pst_span *span = &req->spans[i];

		/* Start each span in a new block, so that no block has bytes of two spans, because
		 * storage calls read and write whole blocks. */
		span->stage_at = (at + block - 1) / block * block + span->off % block;
		at = span->stage_at + span_bytes(req, span);
	}
	return (at + block - 1) / block * block;
}

/* Returns the position in the stage of the span's byte that is at offset `off` of the storage. */
static uint64_t span_place(const struct pst_request *req, const struct pst_span *span, uint64_t off)
{
	const struct penstock_seg *seg = &req->segs[span->seg_first];

	if (!span->rowwise)
		return span->stage_at + off - span->off;
	off -= seg->off;
	return span->stage_at + off / seg->pitch * seg->row_len + off % seg->pitch;
}

uint64_t pst_stage_room(const struct pst_request *req, const struct pst_place *place)
{
	uint64_t piece = req->stage->piece_bytes;

	return piece - span_place(req, place->span, place->off) % piece;
}

/* ---- rounds ---- */

struct parts_arg {
	pst_stage_part_fn *fn;
	void *arg;
	char *mem; /* stage memory of the range's first byte */
};

static int part_place(void *arg, const struct pst_part *part)
{
	const struct parts_arg *a = arg;

	return a->fn(a->arg, part, a->mem + part->at);
}

/* Calls a->fn for each part of the request's bytes from position `pos` in the request up to, but
 * not including, `end`. If a GPU kernel makes the copies, leaves out bytes after the end of the
 * storage. */
static int range_parts(struct pst_request *req, uint64_t pos, uint64_t end, struct parts_arg *a)
{
	/* If a GPU kernel makes the copies, they are listed after the read, so they can stop at the
	 * end of the storage. Otherwise the copies were queued on the stream at submit, and they
	 * copy all bytes. */
	uint64_t stop = req->stage->by_kernel
				? atomic_load_explicit(&req->end_at, memory_order_relaxed)
				: UINT64_MAX;

	while (pos < end) {
		struct pst_place place;
		uint64_t n;
		int ret = 0;

		pst_spans_find(req, pos, &place);
		n = place.len < end - pos ? place.len : end - pos;
		pos += n;
		if (place.off < stop)
			ret = pst_span_parts(req, place.span, place.off,
					     n < stop - place.off ? n : stop - place.off,
					     part_place, a);
		if (ret)
			return ret;
		a->mem += n;
	}
	return 0;
}

int pst_stage_parts(struct pst_request *req, unsigned round, pst_stage_part_fn *fn, void *arg)
{
	const struct pst_stage *stage = req->stage;
	uint64_t low = round * stage->piece_bytes, high = low + stage->piece_bytes;
	char *mem = stage->mem + round % stage->pieces * stage->piece_bytes;

	for (unsigned i = 0; i < req->span_count; i++) {
		const struct pst_span *span = &req->spans[i];
		uint64_t at = span->stage_at, end = at + span_bytes(req, span);
		struct parts_arg a = {.fn = fn, .arg = arg};
		int ret;

		end = end < high ? end : high;
		at = at > low ? at : low;
		if (at >= end)
			continue;
		a.mem = mem + (at - low);
		ret = range_parts(req, span->start + (at - span->stage_at),
				  span->start + (end - span->stage_at), &a);
		if (ret)
			return ret;
	}
	return 0;
}

/* Appends one copy, between the stage at `mem` and the device memory of `part`, to the list of
 * copies that a GPU kernel makes for the request. */
static int copies_add(void *arg, const struct pst_part *part, char *mem)
{
	struct pst_request *req = arg;
	struct pst_stage *stage = req->stage;
	struct pst_stream_copy *copy = &stage->copies[stage->copies_used];
	bool read = req->op == PENSTOCK_READ;

	if (stage->copies_used == stage->copies_max)
		return -E2BIG; /* cannot happen, because stream.c has made room for all copies */
	stage->copies_used++;
	copy->dst = (uintptr_t)(read ? part->mem : mem);
	copy->src = (uintptr_t)(read ? mem : part->mem);
	copy->dst_pitch = read ? part->mem_pitch : part->pitch;
	copy->src_pitch = read ? part->pitch : part->mem_pitch;
	copy->row_len = part->row_len;
	copy->rows = part->rows;
	return 0;
}

/* Adds the copies of one round (the device's operations for one piece of the stage) to the stage's
 * list of copies. Returns false if this list is full. */
static bool round_list(struct pst_request *req, unsigned round)
{
	struct pst_stage *stage = req->stage;
	unsigned first = stage->copies_used;
	int ret = pst_stage_parts(req, round, copies_add, req);

	stage->round[round].first = first;
	stage->round[round].count = ret ? 0 : stage->copies_used - first;
	return !ret;
}

/* Sets *word to `value`, unless *word is higher already. Several threads may do so at once. */
static void word_raise(uint64_t *word, uint64_t value)
{
	uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);

	while (old < value && !__atomic_compare_exchange_n(word, &old, value, true,
							   __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
}

void pst_stage_start(struct pst_request *req)
{
	struct pst_stage *stage = req->stage;

	for (unsigned i = 0; i < stage->rounds; i++)
		atomic_store_explicit(&stage->left[i], 0, memory_order_relaxed);
	for (unsigned i = 0; i < req->span_count; i++) {
		const struct pst_span *span = &req->spans[i];
		uint64_t at = span->stage_at, end = at + span_bytes(req, span);

		while (at < end && stage->rounds) {
			uint64_t n = stage->piece_bytes - at % stage->piece_bytes;

			n = n < end - at ? n : end - at;
			atomic_fetch_add_explicit(&stage->left[at / stage->piece_bytes], n,
						  memory_order_relaxed);
			at += n;
		}
	}
	atomic_store(&stage->complete, 0);
	stage->copies_used = 0;
	for (unsigned i = 0; stage->by_kernel && i < stage->rounds; i++) {
		stage->round[i].count = 0;
		if (req->op == PENSTOCK_WRITE)
			round_list(req, i);
	}
	if (req->op == PENSTOCK_WRITE)
		word_raise(&stage->words->released,
			   stage->pieces < stage->rounds ? stage->pieces : stage->rounds);
}

/* Stores the request's result at the address that the caller gave with the request, if it gave
 * one. */
static void result_store(struct pst_request *req, int64_t result)
{
	if (req->late.result && !atomic_load(&req->retracted))
		__atomic_store_n(req->late.result, result, __ATOMIC_RELEASE);
}

/* A replay is one execution of a captured request by a launch of its CUDA graph. Returns whether
 * another replay of this request has begun before the current one has ended. */
static bool replays_overlap(struct pst_stage *stage)
{
	if (pst_stage_arrivals(stage) != atomic_load(&stage->replays))
		atomic_store(&stage->overlapped, true);
	return atomic_load(&stage->overlapped);
}

/* Stores the request's result for the application. After that, the request counts as done for
 * threads that wait until no stream-ordered request is in flight on the device. */
static void stage_report(struct pst_request *req)
{
	if (req->stage->captured) {
		result_store(req, replays_overlap(req->stage) ? -EBUSY : pst_req_result(req));
	} else {
		result_store(req, pst_req_result(req));
		pst_device_stream_leave(req->segs[0].dev);
	}
}

/* Lets the CUDA stream pass all rounds. */
static void stage_release(struct pst_stage *stage)
{
	word_raise(&stage->words->released,
		   atomic_load_explicit(&stage->last, memory_order_relaxed));
}

/* Lets the CUDA stream continue after the request. After this call the stage may belong to another
 * request, or to the next execution of this captured request. */
static void stage_open(struct pst_request *req)
{
	struct pst_stage *stage = req->stage;
	bool captured = stage->captured;

	stage_release(stage);
	/* This store must come last, because the lane that polls for it may then free the request.
	 * A captured request may already be freed here, so do not access it. */
	if (!captured)
		atomic_store_explicit(&req->stage_left, true, memory_order_release);
}

/* Clears the stage of a read that has ended before all its bytes were in the stage. The stream
 * still makes the copies that were queued at submit, and they must not copy bytes of earlier
 * requests to the device. If each round has a piece of its own, leaves the complete rounds, which
 * the stream may be copying. */
static void stage_clear(struct pst_stage *stage)
{
	unsigned keep = stage->rounds <= stage->pieces ? atomic_load(&stage->complete) : 0;

	memset(stage->mem + keep * stage->piece_bytes, 0,
	       (stage->pieces - keep) * stage->piece_bytes);
}

void pst_stage_finish(struct pst_request *req)
{
	struct pst_stage *stage = req->stage;

	if (atomic_exchange_explicit(&req->stage_done, true, memory_order_acq_rel))
		return;
	stage_report(req);
	if (req->op == PENSTOCK_READ && !stage->by_kernel &&
	    atomic_load(&stage->complete) < stage->rounds) {
		if (!pst_stage_is_vacated(stage)) {
			/* The pump must not stop before pst_stage_finish_later. */
			atomic_fetch_add_explicit(&req->home_lane->requests, 1,
						  memory_order_relaxed);
			atomic_store_explicit(&stage->clear_due, true, memory_order_release);
			return;
		}
		stage_clear(stage);
	}
	stage_open(req);
}

bool pst_stage_finish_later(struct pst_stage *stage, struct pst_lane *lane, bool broken)
{
	if (!broken && !pst_stage_is_vacated(stage))
		return false;
	atomic_store_explicit(&stage->clear_due, false, memory_order_relaxed);
	stage_clear(stage);
	stage_release(stage);
	if (stage->req)
		atomic_store_explicit(&stage->req->stage_left, true, memory_order_release);
	atomic_fetch_sub_explicit(&lane->requests, 1, memory_order_release);
	return true;
}

bool pst_stage_part(struct pst_request *req)
{
	struct pst_stage *stage = req->stage;
	/* Load `left` before `arrived`. Every replay increments `arrived` first and `left` at its
	 * end, so equal values mean that all replays have ended. */
	uint64_t left = __atomic_load_n(&stage->words->left, __ATOMIC_ACQUIRE);
	uint64_t arrived = pst_stage_arrivals(stage);

	/* Store the error before removing the copies, so that no replay without copies has a
	 * successful result. */
	result_store(req, -EBUSY);
	for (unsigned i = 0; stage->by_kernel && i < stage->rounds; i++)
		__atomic_store_n(&stage->round[i].count, 0, __ATOMIC_RELEASE);
	if (left != arrived) {
		/* Release all waits of the replays. Done in each call, because a replay that
		 * arrives sets `released` to 0. */
		word_raise(&stage->words->released, UINT32_MAX);
		return false;
	}
	atomic_store(&stage->replays, arrived);
	atomic_store(&stage->overlapped, false);
	return true;
}

/* Called when lanes have moved all bytes of a round, which is one piece of the stage. For a read,
 * lets the stream copy them to the device. For a write, lets the stream fill the same memory with
 * the bytes of a later round. After the last round of a read, lets the stream continue after the
 * request. */
static void round_complete(struct pst_request *req, unsigned round)
{
	struct pst_stage *stage = req->stage;

	if (req->op == PENSTOCK_WRITE) {
		unsigned next = round + stage->pieces + 1;

		word_raise(&stage->words->released, next < stage->rounds ? next : stage->rounds);
		return;
	}
	if (stage->by_kernel)
		round_list(req, round);
	if (round + 1 < stage->rounds) {
		word_raise(&stage->words->released, round + 1);
	} else if (!atomic_exchange_explicit(&req->stage_done, true, memory_order_acq_rel)) {
		stage_report(req);
		stage_open(req);
	}
}

/* Calls round_complete for all rounds that are complete, in order. Only one thread does so at a
 * time. */
static void rounds_advance(struct pst_request *req)
{
	struct pst_stage *stage = req->stage;
	unsigned rounds = stage->rounds, next;

	do {
		if (atomic_exchange(&stage->counting, true))
			return;
		next = atomic_load(&stage->complete);
		while (next < rounds && !atomic_load(&stage->left[next])) {
			atomic_store(&stage->complete, next + 1);
			round_complete(req, next++);
		}
		atomic_store(&stage->counting, false);
		/* Check again: another thread may have completed a round after this loop ended, and
		 * returned because `counting` was true. */
	} while (next < rounds && !atomic_load(&stage->left[next]));
}

/* ---- chunks ---- */

char *pst_stage_memory(const struct pst_chunk *chunk, uint64_t off)
{
	const struct pst_request *req = chunk->req;
	const struct pst_stage *stage = req->stage;
	uint64_t place = span_place(req, &req->spans[chunk->span], chunk->off) - (chunk->off - off);
	uint64_t round = place / stage->piece_bytes;
	uint64_t passed = __atomic_load_n(&stage->words->passed, __ATOMIC_ACQUIRE);
	uint64_t needed = round + 1;

	if (req->op == PENSTOCK_READ)
		needed = needed > stage->pieces ? needed - stage->pieces : 0;
	if (passed < needed)
		return NULL;
	return stage->mem + round % stage->pieces * stage->piece_bytes + place % stage->piece_bytes;
}

void pst_stage_moved(const struct pst_chunk *chunk)
{
	struct pst_request *req = chunk->req;
	struct pst_stage *stage = req->stage;
	uint64_t place = span_place(req, &req->spans[chunk->span], chunk->off);

	if (!stage->rounds)
		return;
	if (chunk->moved < chunk->len) {
		pst_req_end_at(req, chunk->off + chunk->moved);
		/* The file has become shorter since submit, so zero the missing bytes, which the
		 * stream copies in any case. */
		if (!stage->by_kernel)
			memset(pst_stage_memory(chunk, chunk->off) + chunk->moved, 0,
			       chunk->len - chunk->moved);
	}
	if (atomic_fetch_sub(&stage->left[place / stage->piece_bytes], chunk->len) == chunk->len)
		rounds_advance(req);
}
