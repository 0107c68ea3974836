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

#include "core/lane.h"

/* Of its ring a lane begins with so much: a pump starts in half the time (7.7 ms, not 15.5;
 * the first 64 MiB of a process in 10, not 19; H200, 8 lanes of 20 MiB). */
#define START_BYTES (8u << 20)

/* On a caller's thread each call is made at once. */
static int open_engine_at_once(struct pst_lane *lane, struct pst_err *err)
{
	lane->engine_ops = pst_engine_plain;
	return lane->engine_ops->open(&lane->engine, 0, lane->wake_fd, err);
}

static int open_engine(struct pst_lane *lane, struct pst_err *err)
{
	const char *want = lane->pump->dev->opts.engine;
	int ret = -ENODEV;

	for (unsigned i = 0; pst_engines[i]; i++) {
		bool named = want && strcmp(want, "auto") != 0;

		if (named && strcmp(want, pst_engines[i]->name) != 0)
			continue;
		ret = pst_engines[i]->open(&lane->engine, PST_LANE_CHUNKS + 8, lane->wake_fd, err);
		if (ret == 0) {
			lane->engine_ops = pst_engines[i];
			err->code = 0; /* of one before it */
			return 0;
		}
		lane->engine_why = *err; /* the reason that the next one takes over */
	}
	if (ret == -ENODEV)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "engine '%s' does not exist", want);
	return ret;
}

/* See path/past.c: the pump's own lanes only, which share a request. */
static int open_past(struct pst_lane *lane, struct pst_err *err)
{
	if (lane->borrowed || pst_lane_is_own(lane) || lane->pump->dev->facts.cpu_addressable)
		return 0;
	lane->past = aligned_alloc(4096, PST_PAST_BYTES);
	return lane->past ? 0 : pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a lane");
}

static unsigned big_first(const struct pst_lane *lane)
{
	size_t small = (size_t)PST_SLOT_SMALL * lane->slots_small;
	size_t big = small < START_BYTES ? (START_BYTES - small) / lane->slot_bytes : 0;

	if (lane->borrowed || pst_lane_is_own(lane) || big >= lane->slots_big)
		return lane->slots_big;
	return big ? (unsigned)big : 1;
}

static int open_slots(struct pst_lane *lane, struct pst_err *err)
{
	const struct pst_pump *pump = lane->pump;
	size_t len = pst_slots_bytes(lane->slot_bytes, lane->slots_big, lane->slots_small);
	int ret = pst_ring_map(&lane->ring, &pump->near, len, err);

	return ret ? ret
		   : pst_slots_open(&lane->slots, lane->ring.base, lane->slot_bytes,
				    lane->slots_big, big_first(lane), lane->slots_small, err);
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
	ret = lane->borrowed ? open_engine_at_once(lane, err) : open_engine(lane, err);
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

static void pin_to(struct pst_lane *lane, size_t end)
{
	size_t at = lane->ring.pinned;

	pst_ring_pin(&lane->ring, end, lane->pump->dev);
	if (lane->engine_ops->register_slots &&
	    !lane->engine_ops->register_slots(lane->engine, lane->slots.base + at, end - at,
					      &lane->engine_why))
		lane->fixed = true;
}

void pst_lane_pin(struct pst_lane *lane)
{
	pin_to(lane, lane->slots.first_len);
}

int pst_lane_grow(struct pst_lane *lane)
{
	if (!lane->slots.is_short || lane->slots.big_first == lane->slots.big_count ||
	    atomic_exchange_explicit(&lane->pump->growing, true, memory_order_acquire))
		return 0;
	pin_to(lane, lane->slots.len);
	pst_slots_rest(&lane->slots);
	atomic_store_explicit(&lane->pump->growing, false, memory_order_release);
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
	free(lane->past);
	free(lane->chunks);
	lane->past = NULL;
	lane->chunks = lane->chunks_free = NULL;
}
