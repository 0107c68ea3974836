/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps driver calls that synchronise a device apart from streams that wait for requests: see
 * device_sync.h. Called by backends and by everything that frees or registers memory, and by
 * stream.c. It must never call the driver itself.
 */
#include "core/base/device_sync.h"

#include "core/base/clock.h"
#include "core/base/spin.h"

#define FIRST_NS 5000000u /* a request of some MiB completes within this time */
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

/* Stream-ordered requests that follow each other without a gap would keep this call waiting
 * for ever. So it asks streams to hold back, first for 5 ms and then for twice as long each
 * time. Each pause ends by itself: the thread that submits the next request may be the one
 * that a waiting stream depends on. */
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
	atomic_fetch_add(&dev->streams_waiting, 1); /* before any stream waits */
	while (atomic_load(&dev->syncs))
		pst_backoff(&times);
}

void pst_device_stream_leave(struct penstock_device *dev)
{
	atomic_fetch_sub_explicit(&dev->streams_waiting, 1, memory_order_release);
}
