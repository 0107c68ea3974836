/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pump: starting and stopping a device's lanes and ring, and handing requests
 * to them. Started at the first route, under the device table's lock; submitting
 * takes no lock.
 */
#include "core/lane/pump.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/thread.h"
#include "core/queue/inline_lane.h"
#include "core/lane/lane.h"
#include "core/base/log.h"
#include "core/queue/stream.h"

/* 16 MiB of a lane in parts of 1 MiB are 16 calls of a drive, which keep it busy, and let a
 * lane fill 8 MiB while as much is copied; whole ones are for chunks that want to be long,
 * small ones for random reads. A device's options may ask for others. */
#define SLOT_BYTES (4u << 20)
#define SLOTS_BIG 4
#define SLOTS_BIG_MAX 4096u
#define SLOTS_SMALL LANE_LOAD_FULL
/* A caller's lane has one request at a time, of 1 MiB at most and the blocks around it. It
 * opens and pins within a call, so that its ring is one huge page. */
#define BORROWED_BYTES (3u << 19)
#define BORROWED_BIG 1
#define BORROWED_SMALL 8

/* A lane takes this many small requests before the next one is woken: a thread that
 * is awake is cheaper than one that must be woken, and more lanes only wait for each
 * other in the driver's calls (2.2 us a copy by one, 4 by five, H200). */
#define LANE_LOAD_FULL 64
/* But one that has something to do and has been at the same turn for so long may sit in a
 * system call that does not return (a server that went away). Its turns take microseconds,
 * those with long copies or calls to a drive milliseconds. */
#define LANE_TURN_NS 10000000u

/* A lane has opened, or could not. When all have: whether they did. */
static bool all_open(struct pst_pump_start *start, bool failed)
{
	bool all;

	pthread_mutex_lock(&start->lock);
	start->open++;
	start->failed += failed;
	pthread_cond_broadcast(&start->cond);
	while (!start->made || start->open < start->made)
		pthread_cond_wait(&start->cond, &start->lock);
	all = !start->failed;
	pthread_mutex_unlock(&start->lock);
	return all;
}

static void say_pinned(struct pst_pump_start *start)
{
	pthread_mutex_lock(&start->lock);
	start->pinned = true;
	pthread_cond_broadcast(&start->cond);
	pthread_mutex_unlock(&start->lock);
}

static void *lane_main(void *arg)
{
	struct pst_lane *lane = arg;
	struct pst_pump *pump = lane->pump;
	bool go;

	pst_numa_bind_thread(&pump->numa);
	go = all_open(&pump->start, pst_lane_open(lane, &lane->open_err) != 0);
	if (go)
		pst_lane_pin(lane);
	if (go && !lane->index)
		say_pinned(&pump->start);
	while (go && !atomic_load_explicit(&pump->stop, memory_order_acquire))
		pst_lane_turn(lane, -1);
	pst_lane_close(lane);
	return NULL;
}

static unsigned default_lanes(const struct penstock_device *dev)
{
	cpu_set_t set;
	unsigned cpus = 1, lanes = dev->facts.lanes_best ? dev->facts.lanes_best : 8;

	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		cpus = (unsigned)CPU_COUNT(&set);
	if (dev->opts.lanes)
		lanes = dev->opts.lanes;
	else if (lanes > cpus)
		lanes = cpus < 2 ? 2 : cpus; /* two: one may sit in a slow call */
	return lanes < PST_LANES_MAX ? lanes : PST_LANES_MAX;
}

static int start_lanes(struct pst_pump *pump, struct pst_err *err)
{
	struct pst_pump_start *start = &pump->start;
	unsigned made = 0;
	bool failed;

	pthread_mutex_init(&start->lock, NULL);
	pthread_cond_init(&start->cond, NULL);
	while (made < pump->lane_count &&
	       !pst_thread_start(&pump->lanes[made].thread, lane_main, &pump->lanes[made]))
		made++;
	pthread_mutex_lock(&start->lock);
	start->made = made;
	start->failed += made < pump->lane_count;
	pthread_cond_broadcast(&start->cond);
	while (!start->pinned && !(start->failed && start->open == made))
		pthread_cond_wait(&start->cond, &start->lock);
	failed = start->failed;
	pthread_mutex_unlock(&start->lock);
	if (!failed)
		return 0;
	for (unsigned i = 0; i < made; i++) {
		pthread_join(pump->lanes[i].thread, NULL);
		if (pump->lanes[i].open_err.code)
			*err = pump->lanes[i].open_err;
	}
	if (made < pump->lane_count)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY,
				"cannot start lane %u of %u: this user or container has as many "
				"threads as it may have, or no memory: ulimit -u and -v tell",
				made, pump->lane_count);
	return err->code;
}

/* What a device's options ask for: an eighth of it in small slots if that leaves two big
 * ones. */
static int size_asked(struct pst_pump *pump, size_t room, struct pst_err *err)
{
	size_t big = (room - room / 8) / pump->slot_bytes, small;

	big = big > 1 ? big : room / pump->slot_bytes;
	if (big < 2 || big > SLOTS_BIG_MAX)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a ring of %zu bytes gives each of %u lanes %zu slots of %zu: it "
				"takes from 2 to %u",
				pump->dev->opts.ring_bytes, pump->lane_count, big, pump->slot_bytes,
				SLOTS_BIG_MAX);
	small = (room - big * pump->slot_bytes) / PST_SLOT_SMALL;
	for (unsigned i = 0; i < pump->lane_count; i++) {
		pump->lanes[i].slot_counts.big = (unsigned)big;
		pump->lanes[i].slot_counts.small =
			small < SLOTS_SMALL ? (unsigned)small : SLOTS_SMALL;
	}
	return 0;
}

static int size_rings(struct pst_pump *pump, struct pst_err *err)
{
	const struct penstock_device_opts *opts = &pump->dev->opts;

	pump->slot_bytes = opts->slot_bytes ? opts->slot_bytes : SLOT_BYTES;
	for (unsigned i = 0; i < pump->lane_count; i++) {
		pump->lanes[i].slot_bytes = pump->slot_bytes;
		pump->lanes[i].slot_counts.big = SLOTS_BIG;
		pump->lanes[i].slot_counts.small = SLOTS_SMALL;
	}
	for (unsigned i = 0; i < PST_BORROWED_MAX; i++) {
		pump->spare[i].slot_bytes =
			pump->slot_bytes < BORROWED_BYTES ? pump->slot_bytes : BORROWED_BYTES;
		pump->spare[i].slot_counts.big = BORROWED_BIG;
		pump->spare[i].slot_counts.small = BORROWED_SMALL;
	}
	return opts->ring_bytes ? size_asked(pump, opts->ring_bytes / pump->lane_count, err) : 0;
}

size_t pst_pump_ring_bytes(const struct pst_pump *pump)
{
	size_t bytes = 0;

	for (unsigned i = 0; i < pump->lane_count; i++)
		bytes += pump->lanes[i].ring.len;
	return bytes;
}

/* The wake descriptors are closed here and not by their lanes: others may still be
 * about to wake one that ends. */
static void free_lane(struct pst_lane *lane)
{
	if (lane->wake_fd >= 0)
		close(lane->wake_fd);
}

static void free_pump(struct pst_pump *pump)
{
	pst_stream_close(pump);
	for (unsigned i = 0; i < pump->lane_count && pump->lanes; i++)
		free_lane(&pump->lanes[i]);
	for (unsigned i = 0; i < PST_BORROWED_MAX; i++)
		free_lane(&pump->spare[i]);
	free(pump->lanes);
	free(pump);
}

int pst_pump_start(struct penstock_device *dev, struct pst_err *err)
{
	struct pst_pump *pump;
	int ret;

	if (atomic_load_explicit(&dev->pump, memory_order_acquire))
		return 0;
	pump = calloc(1, sizeof(*pump));
	if (!pump)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a pump");
	pump->dev = dev;
	pthread_mutex_init(&pump->inline_lanes_lock, NULL);
	pump->lane_count = default_lanes(dev);
	pump->lanes = calloc(pump->lane_count, sizeof(*pump->lanes));
	if (!pump->lanes) {
		free(pump);
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for %u lanes",
				default_lanes(dev));
	}
	for (unsigned i = 0; i < pump->lane_count; i++) {
		pump->lanes[i].pump = pump;
		pump->lanes[i].index = i;
		pump->lanes[i].wake_fd = -1;
	}
	for (unsigned i = 0; i < PST_BORROWED_MAX; i++) {
		pump->spare[i].pump = pump;
		pump->spare[i].borrowed = true;
		pump->spare[i].wake_fd = -1;
	}
	pst_numa_find(dev, &pump->numa);
	ret = size_rings(pump, err);
	if (!ret)
		ret = start_lanes(pump, err);
	if (ret) {
		free_pump(pump);
		return ret;
	}
	atomic_store_explicit(&dev->pump, pump, memory_order_release);
	return 0;
}

/* A request stays where it was first handed in, so one lane after the other will do. */
static void await_ends(struct pst_pump *pump)
{
	unsigned times = 0;

	for (unsigned i = 0; i < pump->lane_count; i++)
		while (atomic_load_explicit(&pump->lanes[i].requests, memory_order_acquire))
			pst_backoff(&times);
	for (unsigned i = 0; i < PST_BORROWED_MAX; i++)
		while (atomic_load_explicit(&pump->spare[i].taken, memory_order_acquire))
			pst_backoff(&times);
}

void pst_pump_stop(struct penstock_device *dev)
{
	struct pst_pump *pump = atomic_load(&dev->pump);

	if (!pump)
		return;
	await_ends(pump);
	atomic_store(&pump->stop, true);
	for (unsigned i = 0; i < pump->lane_count; i++) {
		pst_lane_wake(&pump->lanes[i]);
		pthread_join(pump->lanes[i].thread, NULL);
	}
	while (atomic_load_explicit(&pump->outside, memory_order_acquire))
		sched_yield();
	for (unsigned i = 0; i < PST_BORROWED_MAX; i++)
		if (pump->spare[i].chunks)
			pst_lane_close(&pump->spare[i]);
	atomic_store(&dev->pump, NULL);
	free_pump(pump);
}

/* ---- other devices ---- */

static pthread_mutex_t meet_lock = PTHREAD_MUTEX_INITIALIZER; /* taken last of all */

static int open_for_all(struct pst_pump *pump, struct penstock_device *dev, struct pst_err *err)
{
	struct pst_copyq *opened[PST_LANES_MAX];

	for (unsigned i = 0; i < pump->lane_count; i++) {
		opened[i] = pst_copyq_open(dev, false, err);
		if (opened[i])
			continue;
		while (i-- > 0)
			pst_copyq_close(opened[i]);
		return err->code;
	}
	for (unsigned i = 0; i < pump->lane_count; i++) {
		struct pst_copyq *copyq = opened[i];

		copyq->link = atomic_load_explicit(&pump->lanes[i].given, memory_order_relaxed);
		atomic_fetch_or(&pump->lanes[i].copies_to, (uint64_t)1 << dev->index);
		while (!atomic_compare_exchange_weak_explicit(&pump->lanes[i].given, &copyq->link,
							      copyq, memory_order_release,
							      memory_order_relaxed))
			;
	}
	return 0;
}

int pst_pump_attach(struct pst_pump *pump, struct penstock_device *dev, struct pst_err *err)
{
	uint64_t bit = (uint64_t)1 << dev->index;
	int ret = 0;

	if (dev == pump->dev || (atomic_load_explicit(&pump->attached, memory_order_acquire) & bit))
		return 0;
	pthread_mutex_lock(&meet_lock);
	if (!(atomic_load(&pump->attached) & bit)) {
		pst_device_sync_await(dev);
		ret = open_for_all(pump, dev, err);
		pst_device_sync_end(dev);
	}
	if (!ret)
		atomic_fetch_or_explicit(&pump->attached, bit, memory_order_release);
	pthread_mutex_unlock(&meet_lock);
	return ret;
}

void pst_pumps_forked(void)
{
	pthread_mutex_init(&meet_lock, NULL);
	pst_streams_forked();
}

/* ---- handing in ---- */

/* Before the request is put in: from then on it may end. */
static struct pst_lane_entry *name(struct pst_lane *lane, struct pst_request *req)
{
	struct pst_lane_entry *entry = &req->entries[lane->index];

	entry->req = req;
	atomic_fetch_add_explicit(&req->refs, PST_LISTED, memory_order_relaxed);
	atomic_fetch_add_explicit(&lane->load, 1, memory_order_relaxed);
	return entry;
}

static void push(struct pst_lane *lane, struct pst_lane_entry *entry)
{
	entry->next = atomic_load_explicit(&lane->inbox, memory_order_relaxed);
	while (!atomic_compare_exchange_weak_explicit(&lane->inbox, &entry->next, entry,
						      memory_order_release, memory_order_relaxed))
		;
	pst_lane_wake(lane);
}

static unsigned load_of(struct pst_lane *lane)
{
	return atomic_load_explicit(&lane->load, memory_order_relaxed) +
	       atomic_load_explicit(&lane->busy_seen, memory_order_relaxed);
}

/* Asked by several threads at once: what one of them misses the next one sees. */
static bool hangs(struct pst_lane *lane, unsigned load, uint64_t now)
{
	unsigned turns = atomic_load_explicit(&lane->turns, memory_order_relaxed);

	if (load && turns == atomic_load_explicit(&lane->turns_seen, memory_order_relaxed) &&
	    !atomic_load_explicit(&lane->asleep, memory_order_relaxed))
		return now >
		       LANE_TURN_NS + atomic_load_explicit(&lane->turned_ns, memory_order_relaxed);
	atomic_store_explicit(&lane->turned_ns, now, memory_order_relaxed);
	atomic_store_explicit(&lane->turns_seen, turns, memory_order_relaxed);
	return false;
}

/* The first that has room. Else, and only then one that hangs, which has the least to do. */
static struct pst_lane *choose(struct pst_pump *pump, uint64_t now)
{
	struct pst_lane *best = NULL;
	unsigned least = 0;
	bool best_hangs = true;

	for (unsigned i = 0; i < pump->lane_count; i++) {
		struct pst_lane *lane = &pump->lanes[i];
		unsigned load = load_of(lane);
		bool lane_hangs = hangs(lane, load, now);

		if (load < LANE_LOAD_FULL && !lane_hangs)
			return lane;
		if (!best || lane_hangs < best_hangs ||
		    (lane_hangs == best_hangs && load < least)) {
			best = lane;
			least = load;
			best_hangs = lane_hangs;
		}
	}
	return best;
}

void pst_pump_submit(struct pst_request *req)
{
	struct pst_pump *pump = req->pump;
	struct pst_lane *best = choose(pump, req->start_ns);
	struct pst_lane_entry *entry;

	atomic_store_explicit(&req->spread, 1, memory_order_relaxed);
	req->home_lane = best;
	atomic_fetch_add_explicit(&best->requests, 1, memory_order_relaxed);
	entry = name(best, req);
	pst_req_open(req);
	push(best, entry);
}

void pst_pump_spread(struct pst_request *req, struct pst_lane *lane, unsigned lanes)
{
	struct pst_pump *pump = req->pump;
	unsigned want = lanes && lanes < pump->lane_count ? lanes : pump->lane_count;
	unsigned have = 1;

	/* Once a request: from one lane to as many as its first chunks ask for. */
	if (atomic_load_explicit(&req->spread, memory_order_relaxed) >= want ||
	    !atomic_compare_exchange_strong(&req->spread, &have, want))
		return;
	for (unsigned i = 1; i < want; i++) {
		struct pst_lane *other = &pump->lanes[(lane->index + i) % pump->lane_count];

		push(other, name(other, req));
	}
}

void pst_pump_cancel(struct pst_pump *pump)
{
	atomic_fetch_add_explicit(&pump->cancel_turn, 1, memory_order_release);
	for (unsigned i = 0; i < pump->lane_count; i++)
		pst_lane_wake(&pump->lanes[i]);
}

void pst_pump_invalidate(struct pst_pump *pump, struct penstock_storage *st,
			 struct penstock_device *dev)
{
	unsigned times = 0;

	for (unsigned i = 0; i < PST_BORROWED_MAX; i++) {
		struct pst_lane *lane = &pump->spare[i];

		if (!pst_lane_caches(lane, st, dev))
			continue; /* who is in it may stay for long */
		while (atomic_exchange_explicit(&lane->taken, true, memory_order_acquire))
			pst_backoff(&times);
		pst_lane_invalidate(lane, st, dev);
		pst_lane_return(lane);
	}
	atomic_store_explicit(&pump->forget, st, memory_order_relaxed);
	atomic_store_explicit(&pump->forget_device, dev, memory_order_relaxed);
	for (unsigned i = 0; i < pump->lane_count; i++) {
		struct pst_lane *lane = &pump->lanes[i];

		if (!pst_lane_caches(lane, st, dev))
			continue;
		atomic_store_explicit(&lane->invalidate_due, true, memory_order_release);
		pst_lane_wake(lane);
	}
	pst_inline_lanes_invalidate(pump, st, dev);
	for (unsigned i = 0; i < pump->lane_count; i++)
		while (atomic_load_explicit(&pump->lanes[i].invalidate_due, memory_order_acquire))
			pst_backoff(&times);
	if (dev)
		atomic_fetch_and(&pump->attached, ~((uint64_t)1 << dev->index));
}

/* ---- a caller's thread in place of a lane ---- */

/* Not while a stream waits: a lane has streams of its own. */
static int open_spare(struct pst_lane *lane, struct pst_err *err)
{
	struct penstock_device *dev = lane->pump->dev;
	int ret;

	err->code = 0;
	if (!pst_device_sync_begin(dev))
		return -EAGAIN;
	ret = pst_lane_open(lane, &lane->open_err);
	if (!ret)
		pst_lane_pin(lane);
	pst_device_sync_end(dev);
	if (!ret)
		return 0;
	pst_log(PST_LOG_WARN, "core", "%s", lane->open_err.text);
	*err = lane->open_err;
	if (!err->code)
		pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "a lane does not open");
	pst_lane_close(lane);
	return ret;
}

/* NULL and err->code 0: all that may be had are taken. */
static struct pst_lane *try_borrow(struct pst_pump *pump, struct pst_err *err)
{
	err->code = 0;
	for (unsigned i = 0; i < PST_BORROWED_MAX && !err->code; i++) {
		struct pst_lane *lane = &pump->spare[i];

		if (atomic_load_explicit(&lane->taken, memory_order_relaxed) ||
		    atomic_exchange_explicit(&lane->taken, true, memory_order_acquire))
			continue;
		if (lane->chunks || !open_spare(lane, err))
			return lane;
		atomic_store_explicit(&lane->taken, false, memory_order_release);
	}
	return NULL;
}

struct pst_lane *pst_lane_borrow(struct pst_pump *pump)
{
	struct pst_err err;

	return try_borrow(pump, &err);
}

struct pst_lane *pst_lane_borrow_wait(struct pst_pump *pump, struct pst_err *err)
{
	struct pst_lane *lane = try_borrow(pump, err);
	unsigned times = 0;

	while (!lane && !err->code) { /* who has one needs nothing of who waits here */
		pst_backoff(&times);
		lane = try_borrow(pump, err);
	}
	return lane;
}

void pst_lane_return(struct pst_lane *lane)
{
	while (lane->trim_due && !lane->busy)
		pst_lane_turn(lane, 0);
	atomic_store_explicit(&lane->taken, false, memory_order_release);
}

void pst_lane_run(struct pst_lane *lane, struct pst_request *req)
{
	pst_lane_list(lane, req);
	pst_req_open(req);
	while (lane->todo_count || lane->busy)
		pst_lane_turn(lane, -1);
}
