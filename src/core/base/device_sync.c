/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the driver calls that synchronise a whole device wait until no CUDA stream of the device
 * waits for a request of this library: see device_sync.h. Called by backends, by all code that
 * frees or registers memory, and by core/queue/stream.c. This file must never make a driver call
 * itself.
 */
#include "core/base/device_sync.h"

#include "core/base/clock.h"
#include "core/base/spin.h"

/* Lengths, in ns, of the pauses that pst_device_sync_await imposes on threads that submit
 * stream-ordered requests. The first pause takes FIRST_NS: a request of some MiB completes within
 * this time. Each further pause takes twice as long as the one before, up to FIRST_MAX_NS. */
#define FIRST_NS 5000000u
#define FIRST_MAX_NS 320000000u

bool pst_device_sync_begin(struct penstock_device *dev)
{
	atomic_fetch_add(&dev->syncs, 1);
	if (!atomic_load(&dev->streams_waiting))
		return true;
	pst_device_sync_end(dev);
	return false;
}

void pst_device_sync_end(struct penstock_device *dev)
{
	atomic_fetch_sub(&dev->syncs, 1);
}

/* Waits until no stream waits for a request. If threads submitted stream-ordered requests without a
 * gap, this function would never return. So it makes these threads pause before they submit another
 * such request. Every pause has an end, because a waiting stream may depend on the work of a paused
 * thread. */
void pst_device_sync_await(struct penstock_device *dev)
{
	uint64_t pause_ns = FIRST_NS, ask_ns = 0;
	unsigned times = 0;

	while (!pst_device_sync_begin(dev)) {
		uint64_t now = pst_now_ns();

		if (now >= ask_ns) {
			atomic_store(&dev->sync_first_ns, now + pause_ns);
			ask_ns = now + 2 * pause_ns;
			pause_ns = pause_ns < FIRST_MAX_NS ? 2 * pause_ns : pause_ns;
		}
		pst_backoff(&times);
	}
	atomic_store(&dev->sync_first_ns, 0);
}

void pst_device_stream_enter(struct penstock_device *dev)
{
	uint64_t until;
	unsigned times = 0;

	while ((until = atomic_load(&dev->sync_first_ns)) && pst_now_ns() < until)
		pst_backoff(&times);
	/* Count the stream as waiting before it starts to wait, so that no synchronising driver
	 * call begins in between. */
	atomic_fetch_add(&dev->streams_waiting, 1);
	while (atomic_load(&dev->syncs))
		pst_backoff(&times);
}

void pst_device_stream_leave(struct penstock_device *dev)
{
	atomic_fetch_sub_explicit(&dev->streams_waiting, 1, memory_order_release);
}
