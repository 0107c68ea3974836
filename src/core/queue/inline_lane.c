/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue's own lane: without a thread, with slots and an engine, turned inside the
 * calls on that queue. So a short request needs no thread to be woken, neither for its
 * start nor for its end. Called by queue.c and harvest.c on the thread that opened the
 * queue; another comes only to drop what the lane keeps of a storage that closes.
 */
#include "core/queue/inline_lane.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/lane/lane.h"
#include "core/base/objects.h"
#include "core/lane/pump.h"
#include "core/queue/stream.h"

#define OWN_SMALL PST_LANE_CHUNKS /* a slot for each chunk that can be in flight */
#define OWN_BIG 2

struct pst_inline_lane {
	struct pst_lane lane;
	pthread_t owner;
	_Atomic bool taken; /* somebody turns the lane, or has it forget */
	struct pst_inline_lane *link;
};

static void take(struct pst_inline_lane *o)
{
	while (atomic_exchange_explicit(&o->taken, true, memory_order_acquire))
		sched_yield();
}

static void let(struct pst_inline_lane *o)
{
	atomic_store_explicit(&o->taken, false, memory_order_release);
}

static void free_own(struct pst_inline_lane *o)
{
	if (o->lane.wake_fd >= 0)
		close(o->lane.wake_fd);
	free(o);
}

int pst_inline_lane_open(struct penstock_device *dev, _Atomic(struct pst_request *) *ended,
			 const _Atomic unsigned *inflight, struct pst_inline_lane **out,
			 struct pst_err *err)
{
	struct pst_inline_lane *o;
	struct pst_pump *pump;
	int ret = pst_fork_check(dev->generation, err);

	if (ret)
		return ret;
	if (penstock_device_open(dev->name, NULL, &dev) < 0)
		return pst_fail(err, PENSTOCK_WHY_NO_DEVICE, "the device is being closed");
	ret = pst_device_start_pump(dev, err);
	o = ret ? NULL : calloc(1, sizeof(*o));
	if (!o) {
		penstock_device_close(dev);
		return ret ? ret : pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a lane");
	}
	pump = atomic_load_explicit(&dev->pump, memory_order_acquire);
	o->owner = pthread_self();
	o->lane.pump = pump;
	o->lane.wake_fd = -1;
	o->lane.slot_bytes = pump->slot_bytes;
	o->lane.slot_counts.big = OWN_BIG;
	o->lane.slot_counts.small = OWN_SMALL;
	o->lane.completed = ended;
	o->lane.inflight = inflight;
	pst_device_sync_await(dev);
	ret = pst_lane_open(&o->lane, err);
	pst_device_sync_end(dev);
	if (ret) {
		pst_lane_close(&o->lane);
		free_own(o);
		penstock_device_close(dev);
		return ret;
	}
	pst_lane_pin(&o->lane);
	pthread_mutex_lock(&pump->inline_lanes_lock);
	o->link = pump->inline_lanes;
	pump->inline_lanes = o;
	pthread_mutex_unlock(&pump->inline_lanes_lock);
	*out = o;
	return 0;
}

void pst_inline_lane_close(struct pst_inline_lane *o)
{
	struct pst_pump *pump = o->lane.pump;
	struct penstock_device *dev = pump->dev;
	struct pst_inline_lane **at = &pump->inline_lanes;

	/* Until it keeps nothing more, who closes a storage or a device must find it. */
	take(o);
	pst_lane_close(&o->lane);
	let(o);
	pthread_mutex_lock(&pump->inline_lanes_lock);
	while (*at != o)
		at = &(*at)->link;
	*at = o->link;
	pthread_mutex_unlock(&pump->inline_lanes_lock);
	while (atomic_load_explicit(&pump->outside, memory_order_acquire))
		sched_yield();
	free_own(o);
	penstock_device_close(dev);
}

int pst_inline_lane_check(const struct pst_inline_lane *o, struct pst_err *err)
{
	if (pthread_equal(o->owner, pthread_self()))
		return 0;
	return pst_fail_errno(err, EPERM, PENSTOCK_WHY_BAD_ARGUMENT,
			      "a queue with a lane of its own is the thread's that opened it");
}

bool pst_inline_lane_accepts(const struct pst_inline_lane *o, const struct pst_request *req)
{
	/* Nor with parts on other devices: who closes one of those waits for them. */
	return req->pump == o->lane.pump && !req->stream && !req->other_devices &&
	       req->total <= PENSTOCK_OWN_LANE_MAX;
}

void pst_inline_lane_enqueue(struct pst_inline_lane *o, struct pst_request *req)
{
	req->report.engine_why = o->lane.engine_why.why;
	take(o);
	pst_lane_list(&o->lane, req);
	pst_req_open(req);
	let(o);
}

void pst_inline_lane_turn(struct pst_inline_lane *o, int64_t wait_us)
{
	take(o);
	pst_lane_turn(&o->lane, wait_us);
	let(o);
}

void pst_inline_lanes_help(struct pst_pump *pump)
{
	pthread_mutex_lock(&pump->inline_lanes_lock);
	for (struct pst_inline_lane *o = pump->inline_lanes; o; o = o->link)
		if (pthread_equal(o->owner, pthread_self()))
			pst_inline_lane_turn(o, 0);
	pthread_mutex_unlock(&pump->inline_lanes_lock);
}

void pst_inline_lane_wake(struct pst_inline_lane *o)
{
	pst_lane_wake(&o->lane);
}

void pst_inline_lane_cancel(struct pst_inline_lane *o)
{
	atomic_fetch_add_explicit(&o->lane.pump->cancel_turn, 1, memory_order_release);
	pst_lane_wake(&o->lane);
}

/* Its owner does it in his turn, or is not there: then it is done for him. */
static void forget(struct pst_inline_lane *o, struct penstock_storage *st,
		   struct penstock_device *dev)
{
	if (!pst_lane_caches(&o->lane, st, dev))
		return; /* its owner may be in it for long */
	atomic_store_explicit(&o->lane.invalidate_due, true, memory_order_release);
	while (atomic_load_explicit(&o->lane.invalidate_due, memory_order_acquire)) {
		if (!atomic_exchange_explicit(&o->taken, true, memory_order_acquire)) {
			pst_lane_invalidate(&o->lane, st, dev);
			while (o->lane.trim_due && !o->lane.busy) /* nobody may come for long */
				pst_lane_trim(&o->lane);
			atomic_store_explicit(&o->lane.invalidate_due, false, memory_order_release);
			let(o);
			return;
		}
		pst_lane_wake(&o->lane);
		sched_yield();
	}
}

void pst_inline_lanes_invalidate(struct pst_pump *pump, struct penstock_storage *st,
				 struct penstock_device *dev)
{
	pthread_mutex_lock(&pump->inline_lanes_lock);
	for (struct pst_inline_lane *o = pump->inline_lanes; o; o = o->link)
		forget(o, st, dev);
	pthread_mutex_unlock(&pump->inline_lanes_lock);
}
