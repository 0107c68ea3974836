/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements inline lanes, which carry requests inside the calls on a queue: see inline_lane.h.
 * queue.c opens inline lanes and runs their turns (passes of the loop) on the thread of the owner.
 * Another thread may only drop what a lane caches about a storage or device that closes, and must
 * never do so during a turn.
 */
#include "core/queue/inline_lane.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/device_sync.h"
#include "core/base/devices.h"
#include "core/base/fork.h"
#include "core/lane/inbox.h"
#include "core/lane/pump.h"

/* one small staging slot for each chunk that can be in flight on the lane */
#define SMALL_SLOTS PST_LANE_CHUNKS
#define BIG_SLOTS 2

struct pst_inline_lane {
	struct pst_pump_member member; /* first, because a pointer to it is cast to the struct */
	struct pst_lane lane;
	pthread_t owner;
	_Atomic bool locked; /* whether a thread runs the lane or drops its caches */
};

static void inline_lane_lock(struct pst_inline_lane *il)
{
	while (atomic_exchange_explicit(&il->locked, true, memory_order_acquire))
		sched_yield();
}

static void inline_lane_unlock(struct pst_inline_lane *il)
{
	atomic_store_explicit(&il->locked, false, memory_order_release);
}

static void inline_lane_free(struct pst_inline_lane *il)
{
	if (il->lane.wake_fd >= 0)
		close(il->lane.wake_fd);
	free(il);
}

static void member_invalidate(struct pst_pump_member *member, struct penstock_storage *st,
			      struct penstock_device *closing);
static void member_help(struct pst_pump_member *member);

int pst_inline_lane_open(struct penstock_device *dev, _Atomic(struct pst_request *) *completed,
			 const _Atomic unsigned *inflight, struct pst_inline_lane **out,
			 struct pst_err *err)
{
	struct pst_inline_lane *il;
	struct pst_pump *pump;
	int ret = pst_fork_check(dev->generation, err);

	if (!ret)
		ret = pst_device_ref(dev, err);
	if (ret)
		return ret;
	ret = pst_device_start(dev, err);
	il = ret ? NULL : calloc(1, sizeof(*il));
	if (!il) {
		pst_device_close(dev);
		return ret ? ret : pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a lane");
	}
	pump = atomic_load_explicit(&dev->pump, memory_order_acquire);
	il->member.invalidate = member_invalidate;
	il->member.help = member_help;
	il->owner = pthread_self();
	il->lane.kind = PST_LANE_INLINE;
	il->lane.pump = pump;
	il->lane.wake_fd = -1;
	il->lane.slot_bytes = pump->slot_bytes;
	il->lane.slot_counts.big = BIG_SLOTS;
	il->lane.slot_counts.small = SMALL_SLOTS;
	il->lane.completed = completed;
	il->lane.inflight = inflight;
	pst_device_sync_await(dev);
	ret = pst_lane_open(&il->lane, err);
	pst_device_sync_end(dev);
	if (ret) {
		pst_lane_close(&il->lane);
		inline_lane_free(il);
		pst_device_close(dev);
		return ret;
	}
	pst_lane_pin(&il->lane);
	pst_pump_add_member(pump, &il->member);
	*out = il;
	return 0;
}

void pst_inline_lane_close(struct pst_inline_lane *il)
{
	struct pst_pump *pump = il->lane.pump;
	struct penstock_device *dev = pump->dev;

	/* Close the lane before it leaves the pump's list of members. While it caches anything
	 * about a storage or device, a thread that closes that object must find the lane in the
	 * list. */
	inline_lane_lock(il);
	pst_lane_close(&il->lane);
	inline_lane_unlock(il);
	pst_pump_remove_member(pump, &il->member);
	while (atomic_load_explicit(&pump->outside, memory_order_acquire))
		sched_yield();
	inline_lane_free(il);
	pst_device_close(dev);
}

int pst_inline_lane_check(const struct pst_inline_lane *il, struct pst_err *err)
{
	if (pthread_equal(il->owner, pthread_self()))
		return 0;
	return pst_fail_errno(
		err, EPERM, PENSTOCK_WHY_BAD_ARGUMENT,
		"a queue with its own lane can be used only by the thread that opened it");
}

bool pst_inline_lane_accepts(const struct pst_inline_lane *il, const struct pst_request *req)
{
	/* An inline lane refuses requests with segments on other devices. Closing such a device
	 * would wait for these requests, and only the thread that owns the lane can complete
	 * them. */
	return req->pump == il->lane.pump && !req->stream && !req->other_devices &&
	       req->total <= PENSTOCK_OWN_LANE_MAX;
}

void pst_inline_lane_enqueue(struct pst_inline_lane *il, struct pst_request *req)
{
	req->report.engine_why = il->lane.engine_why.why;
	inline_lane_lock(il);
	pst_inbox_list(&il->lane, req);
	pst_req_open(req);
	inline_lane_unlock(il);
}

void pst_inline_lane_turn(struct pst_inline_lane *il, int64_t wait_us)
{
	inline_lane_lock(il);
	pst_lane_turn(&il->lane, wait_us);
	inline_lane_unlock(il);
}

static void member_help(struct pst_pump_member *member)
{
	struct pst_inline_lane *il = (struct pst_inline_lane *)member;

	if (pthread_equal(il->owner, pthread_self()))
		pst_inline_lane_turn(il, 0);
}

void pst_inline_lane_wake(struct pst_inline_lane *il)
{
	pst_inbox_wake(&il->lane);
}

void pst_inline_lane_cancel(struct pst_inline_lane *il)
{
	atomic_fetch_add_explicit(&il->lane.pump->cancel_turn, 1, memory_order_release);
	pst_inbox_wake(&il->lane);
}

/* Waits until the lane has dropped what it caches about the storage `st` or the device `closing`.
 * The thread that owns the lane does that in its next turn. If the owner is not running a turn,
 * this thread does it. */
static void member_invalidate(struct pst_pump_member *member, struct penstock_storage *st,
			      struct penstock_device *closing)
{
	struct pst_inline_lane *il = (struct pst_inline_lane *)member;

	if (!pst_lane_caches(&il->lane, st, closing))
		return; /* nothing to drop: the lane caches nothing about this storage or device */
	atomic_store_explicit(&il->lane.invalidate_due, true, memory_order_release);
	while (atomic_load_explicit(&il->lane.invalidate_due, memory_order_acquire)) {
		if (!atomic_exchange_explicit(&il->locked, true, memory_order_acquire)) {
			pst_lane_invalidate(&il->lane, st, closing);
			/* Release the resources that the paths do not need any more, on this
			 * thread, because the owner may not run a turn for a long time. */
			while (il->lane.trim_due && !il->lane.busy)
				pst_lane_trim(&il->lane);
			atomic_store_explicit(&il->lane.invalidate_due, false,
					      memory_order_release);
			inline_lane_unlock(il);
			return;
		}
		pst_inbox_wake(&il->lane);
		sched_yield();
	}
}
