/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening and closing a lane: its chunks, slots, engine, copy queue and what paths keep for
 * it. Called by pump.c and own.c on the lane's thread, or on a caller's for a borrowed one;
 * while requests come only the rest of a ring is pinned, once.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/lane/lane.h"

/* With so many slots a lane begins: a pump starts in half the time (6 to 8 ms, not 11 to 16;
 * the first 64 MiB of a process in 10 to 13, not 17 to 20; H200, 8 lanes of 20 MiB). They are
 * enough for what is in the page cache. */
#define FIRST_BIG_BYTES (8u << 20)
#define FIRST_SMALL 16u
#define DEPTH (PST_LANE_CHUNKS + 8) /* of its engine */

/* On a caller's thread each call is made at once. */
static int open_plain(struct pst_lane *lane, unsigned depth, struct pst_err *err)
{
	lane->engine_ops = pst_engine_plain;
	return lane->engine_ops->open(&lane->engine, depth, lane->wake_fd, err);
}

static int open_engine(struct pst_lane *lane, struct pst_err *err)
{
	const char *want = lane->pump->dev->opts.engine;
	int ret = -ENODEV;

	for (unsigned i = 0; pst_engines[i]; i++) {
		bool named = want && strcmp(want, "auto") != 0;

		if (named && strcmp(want, pst_engines[i]->name) != 0)
			continue;
		ret = pst_engines[i]->open(&lane->engine, DEPTH, lane->wake_fd, err);
		if (ret == 0) {
			lane->engine_ops = pst_engines[i];
			err->code = 0; /* of one before it */
			return 0;
		}
		lane->engine_why = *err; /* the reason that the next one takes over */
		lane->call_why = err->why;
	}
	if (ret == -ENODEV)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "engine '%s' does not exist", want);
	return ret;
}

/* Cached bytes need none but the lane's own calls, and an io_uring may take long to be had (up
 * to 44 ms for the last of eight, H200 machine): the first lane's tells what there is. One
 * that is asked for by name is to be had at once, or the device cannot be used. */
static bool engine_may_wait(const struct pst_lane *lane)
{
	const char *want = lane->pump->dev->opts.engine;

	return lane->index && (!want || !strcmp(want, "auto"));
}

static int open_first_engine(struct pst_lane *lane, struct pst_err *err)
{
	if (lane->borrowed)
		return open_plain(lane, 0, err);
	lane->engine_due = engine_may_wait(lane);
	return lane->engine_due ? open_plain(lane, DEPTH, err) : open_engine(lane, err);
}

/* See path/past.c: the pump's own lanes only, which share a request. */
static int open_past(struct pst_lane *lane, struct pst_err *err)
{
	if (lane->borrowed || pst_lane_is_own(lane) || lane->pump->dev->facts.cpu_addressable)
		return 0;
	lane->l2_buffer = aligned_alloc(4096, PST_L2_BOUNCE_BYTES);
	return lane->l2_buffer ? 0 : pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a lane");
}

static struct pst_slot_counts first_slots(const struct pst_lane *lane)
{
	unsigned big = FIRST_BIG_BYTES / (unsigned)lane->slot_bytes;

	big = big ? big : 1;
	if (lane->borrowed || pst_lane_is_own(lane) || big >= lane->slot_counts.big)
		return lane->slot_counts;
	return (struct pst_slot_counts){
		big, lane->slot_counts.small < FIRST_SMALL ? lane->slot_counts.small : FIRST_SMALL};
}

static int open_slots(struct pst_lane *lane, struct pst_err *err)
{
	const struct pst_pump *pump = lane->pump;
	size_t len = pst_slots_bytes(lane->slot_bytes, lane->slot_counts);
	int ret = pst_ring_map(&lane->ring, &pump->numa, len, err);

	return ret ? ret
		   : pst_slots_open(&lane->slots, lane->ring.base, lane->slot_bytes,
				    lane->slot_counts, first_slots(lane), err);
}

int pst_lane_open(struct pst_lane *lane, struct pst_err *err)
{
	int ret;

	for (unsigned p = 0; p < PST_PRIORITIES; p++)
		lane->todo_end[p] = &lane->todo[p];
	lane->deferred_end = &lane->deferred;
	lane->chunks = calloc(PST_LANE_CHUNKS, sizeof(*lane->chunks));
	if (!lane->chunks)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a lane");
	for (unsigned i = 0; i < PST_LANE_CHUNKS; i++) {
		lane->chunks[i].lane = lane;
		lane->chunks[i].next = lane->chunks_free;
		lane->chunks_free = &lane->chunks[i];
	}
	ret = open_slots(lane, err);
	if (!ret)
		ret = open_past(lane, err);
	if (ret)
		return ret;
	if (lane->wake_fd < 0)
		lane->wake_fd = eventfd(0, EFD_CLOEXEC);
	if (lane->wake_fd < 0)
		return pst_fail_errno(err, errno, pst_why_of_errno(errno), "eventfd: %m");
	ret = open_first_engine(lane, err);
	if (ret)
		return ret;
	if (!pst_lane_copyq(lane, lane->pump->dev)) {
		*err = lane->open_err;
		return err->code;
	}
	for (unsigned i = 0; i < pst_path_count; i++) {
		if (!pst_paths[i]->lane_open)
			continue;
		ret = pst_paths[i]->lane_open(lane, i, err);
		if (ret)
			return ret;
	}
	return 0;
}

/* Where the first piece was refused, so would be the rest; and a kernel before 5.13 lets
 * calls that are on their way end before it registers the first, among them the wait for
 * a wake-up. */
static void register_slots(struct pst_lane *lane, size_t at, size_t end, struct pst_err *why)
{
	if (!lane->engine_ops->register_slots || (at && !lane->fixed))
		return;
	if (lane->engine_ops->register_slots(lane->engine, lane->slots.base + at, end - at, why))
		lane->call_why = why->why;
	else
		lane->fixed = true;
}

static void pin_to(struct pst_lane *lane, size_t end, struct pst_err *why)
{
	size_t at = lane->ring.pinned;

	pst_ring_pin(&lane->ring, end, lane->pump->dev);
	register_slots(lane, at, end, why);
}

void pst_lane_want_engine(struct pst_lane *lane)
{
	const struct pst_engine_ops *plain_ops = lane->engine_ops;
	struct pst_engine *plain = lane->engine;
	struct pst_err err;

	if (!lane->engine_due)
		return;
	lane->engine_due = false;
	if (open_engine(lane, &err)) { /* for want of memory */
		lane->engine_ops = plain_ops;
		lane->engine = plain;
		return;
	}
	plain_ops->close(plain);
	register_slots(lane, 0, lane->ring.pinned, &lane->engine_why);
}

void pst_lane_pin(struct pst_lane *lane)
{
	pin_to(lane, lane->slots.first_len, &lane->engine_why);
}

int pst_lane_grow(struct pst_lane *lane)
{
	struct pst_pump *pump = lane->pump;
	struct pst_err why; /* its calls say it */

	if (!pst_lane_may_grow(lane) ||
	    atomic_exchange_explicit(&pump->growing, true, memory_order_acquire))
		return 0;
	pin_to(lane, lane->slots.len, &why);
	pst_slots_rest(&lane->slots);
	lane->wants_ring = false;
	atomic_store_explicit(&pump->growing, false, memory_order_release);
	for (unsigned i = 0; i < pump->lane_count; i++) /* one of them may wait for its turn */
		pst_lane_wake(&pump->lanes[i]);
	return 1;
}

void pst_lane_close(struct pst_lane *lane)
{
	pst_lane_unlist_all(lane);
	for (unsigned i = 0; i < pst_path_count; i++)
		if (pst_paths[i]->lane_close && lane->path_state[i])
			pst_paths[i]->lane_close(lane, i);
	pst_lane_take_copyqs(lane);
	for (unsigned i = 0; i < lane->copyq_count; i++)
		pst_copyq_close(lane->copyqs[i]);
	lane->copyq_count = 0;
	if (lane->engine)
		lane->engine_ops->close(lane->engine);
	lane->engine = NULL;
	pst_slots_close(&lane->slots);
	pst_ring_close(&lane->ring, lane->pump->dev);
	free(lane->l2_buffer);
	free(lane->chunks);
	lane->l2_buffer = NULL;
	lane->chunks = lane->chunks_free = NULL;
}
