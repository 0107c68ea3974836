/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pump of a device: starts and stops its worker threads (lanes), passes requests to them, and
 * lends spare lanes to callers' threads. The table of devices (base/devices.c) starts and stops the
 * pump through pst_pump_hooks, with the table's lock held. Queues submit to the pump without a
 * lock. This file must never touch a chunk; only lanes may.
 */
#include "core/lane/pump.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/thread.h"
#include "core/base/device_sync.h"
#include "core/base/fork.h"
#include "core/base/lifo.h"
#include "core/base/log.h"
#include "core/lane/inbox.h"
#include "core/lane/lane.h"
#include "core/lane/stage.h"

/* Length and number of a lane's staging slots, unless the device's options set them. The big slots
 * have 16 MiB together. Cut into parts of 1 MiB, they serve 16 drive calls at once, which keep a
 * drive busy. The lane can also fill 8 MiB of the slots while it copies the other 8 MiB. Long
 * chunks use whole big slots, and random reads use small slots. */
#define SLOT_BYTES (4u << 20)
#define SLOTS_BIG 4
#define SLOTS_BIG_MAX 4096u
#define SLOTS_SMALL LANE_LOAD_FULL
/* Length of a borrowed lane's big slot, and numbers of its big and small slots. A caller's thread
 * borrows such a lane for only one request, of at most 1 MiB. It reads the first and last blocks of
 * the request whole, so the big slot is longer than 1 MiB. The caller waits while the lane opens
 * and pins its slots, so all slots together fit in one huge page. */
#define BORROWED_BYTES (3u << 19)
#define BORROWED_BIG 1
#define BORROWED_SMALL 8

/* A lane gets all requests until its load (number of requests and chunks) reaches this number. Only
 * then is the next lane woken. A thread that is awake does the work in less time than waking
 * another thread takes. If more lanes work, they also wait for each other in the CUDA driver. A
 * call that starts a copy takes 2.2 us if one lane makes such calls, but 4 us if five lanes make
 * them (H200). */
#define LANE_LOAD_FULL 64
/* If a busy lane has not completed a pass of its loop for this time in ns, it may hang in a system
 * call, for example because a file server does not answer. A pass usually takes microseconds, or
 * milliseconds with long copies. */
#define LANE_TURN_NS 10000000u

/* Called by each new lane's thread. Counts that this lane has opened or failed to open, and waits
 * for the other lanes. Returns whether all lanes have opened. */
static bool start_await_open(struct pst_pump_start *start, bool failed)
{
	bool all;

	pthread_mutex_lock(&start->lock);
	start->open++;
	start->failed += failed;
	pthread_cond_broadcast(&start->cond);
	while (!start->created || start->open < start->created)
		pthread_cond_wait(&start->cond, &start->lock);
	all = !start->failed;
	pthread_mutex_unlock(&start->lock);
	return all;
}

/* Sets start->pinned, because the first lane has pinned its staging memory, and wakes the thread
 * that waits for the start. */
static void start_report_pinned(struct pst_pump_start *start)
{
	pthread_mutex_lock(&start->lock);
	start->pinned = true;
	pthread_cond_broadcast(&start->cond);
	pthread_mutex_unlock(&start->lock);
}

/* Counts a lane that is ready. */
static void start_report_ready(struct pst_pump_start *start)
{
	pthread_mutex_lock(&start->lock);
	start->ready++;
	pthread_cond_broadcast(&start->cond);
	pthread_mutex_unlock(&start->lock);
}

void pst_pump_await_ready(struct pst_pump *pump)
{
	struct pst_pump_start *start = &pump->start;

	pthread_mutex_lock(&start->lock);
	while (start->ready < pump->lane_count)
		pthread_cond_wait(&start->cond, &start->lock);
	pthread_mutex_unlock(&start->lock);
}

/* Returns whether the lane shall run on. If the pump stops, the lane runs until it has cleared the
 * stages that it must clear for cancelled requests, because streams wait for that. */
static bool lane_runs(const struct pst_lane *lane)
{
	const struct pst_stage *stage = lane->watched;

	if (!atomic_load_explicit(&lane->pump->stop, memory_order_acquire))
		return true;
	while (stage && !atomic_load_explicit(&stage->clear_due, memory_order_acquire))
		stage = stage->next;
	return stage;
}

static void *lane_main(void *arg)
{
	struct pst_lane *lane = arg;
	struct pst_pump *pump = lane->pump;
	bool go;

	pst_numa_bind_thread(&pump->numa);
	go = start_await_open(&pump->start, pst_lane_open(lane, &lane->open_err) != 0);
	if (go)
		pst_lane_pin(lane);
	if (go && !lane->index)
		start_report_pinned(&pump->start);
	/* The last lane prepares the device for stream-ordered requests, because the other lanes
	 * get work earlier. */
	if (go && lane->index == pump->lane_count - 1 && pump->dev->ops->stream_prepare)
		pump->dev->ops->stream_prepare(pump->dev);
	start_report_ready(&pump->start);
	while (go && lane_runs(lane))
		pst_lane_turn(lane, -1);
	pst_lane_close(lane);
	return NULL;
}

/* Returns the number of worker threads (lanes) for the device. */
static unsigned device_lanes(const struct penstock_device *dev)
{
	cpu_set_t set;
	unsigned cpus = 1, lanes = dev->facts.lanes_best ? dev->facts.lanes_best : 8;

	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		cpus = (unsigned)CPU_COUNT(&set);
	if (dev->opts.lanes)
		lanes = dev->opts.lanes;
	else if (lanes > cpus)
		/* Use at least two lanes, because one may be blocked in a slow system call. */
		lanes = cpus < 2 ? 2 : cpus;
	return lanes < PST_LANES_MAX ? lanes : PST_LANES_MAX;
}

/* Creates the lanes' threads and waits until the pump has started. */
static int pump_start_lanes(struct pst_pump *pump, struct pst_err *err)
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
	start->created = made;
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
				"cannot start lane %u of %u: the user's or container's limit of "
				"threads or memory is reached (ulimit -u, ulimit -v)",
				made, pump->lane_count);
	return err->code;
}

/* Sets the lanes' numbers of slots from the device's options, which give each lane `bytes` bytes of
 * staging memory. An eighth of the memory becomes small slots if two or more big slots remain. */
static int pump_size_by_opts(struct pst_pump *pump, size_t bytes, struct pst_err *err)
{
	size_t big = (bytes - bytes / 8) / pump->slot_bytes, small;

	big = big > 1 ? big : bytes / pump->slot_bytes;
	if (big < 2 || big > SLOTS_BIG_MAX)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a ring of %zu bytes has %zu slots of %zu for each of %u lanes: "
				"each lane needs 2 to %u",
				pump->dev->opts.ring_bytes, big, pump->slot_bytes, pump->lane_count,
				SLOTS_BIG_MAX);
	small = (bytes - big * pump->slot_bytes) / PST_SLOT_SMALL;
	for (unsigned i = 0; i < pump->lane_count; i++) {
		pump->lanes[i].slot_counts.big = (unsigned)big;
		pump->lanes[i].slot_counts.small =
			small < SLOTS_SMALL ? (unsigned)small : SLOTS_SMALL;
	}
	return 0;
}

/* Sets the length and number of slots of every lane, including the spare lanes. */
static int pump_size_rings(struct pst_pump *pump, struct pst_err *err)
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
	return opts->ring_bytes ? pump_size_by_opts(pump, opts->ring_bytes / pump->lane_count, err)
				: 0;
}

size_t pst_pump_ring_bytes(const struct pst_pump *pump)
{
	size_t bytes = 0;

	for (unsigned i = 0; i < pump->lane_count; i++)
		bytes += pump->lanes[i].ring.len;
	return bytes;
}

/* Closes the lane's eventfd. The lane's thread does not close it when it exits, because another
 * thread may be about to wake the lane. */
static void lane_free(struct pst_lane *lane)
{
	if (lane->wake_fd >= 0)
		close(lane->wake_fd);
}

static void pump_free(struct pst_pump *pump)
{
	for (unsigned i = 0; i < pump->lane_count && pump->lanes; i++)
		lane_free(&pump->lanes[i]);
	for (unsigned i = 0; i < PST_BORROWED_MAX; i++)
		lane_free(&pump->spare[i]);
	free(pump->lanes);
	free(pump);
}

/* Allocates the pump of a device, but does not start its worker threads. */
static struct pst_pump *pump_new(struct penstock_device *dev, struct pst_err *err)
{
	struct pst_pump *pump = calloc(1, sizeof(*pump));
	/* Call device_lanes only once: a second call may return another number, because the
	 * process's CPU mask may change. */
	unsigned lanes = device_lanes(dev);

	if (pump)
		pump->lanes = calloc(lanes, sizeof(*pump->lanes));
	if (!pump || !pump->lanes) {
		free(pump);
		pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a pump of %u lanes", lanes);
		return NULL;
	}
	pump->dev = dev;
	pump->lane_count = lanes;
	pthread_mutex_init(&pump->members_lock, NULL);
	for (unsigned i = 0; i < pump->lane_count; i++) {
		pump->lanes[i].pump = pump;
		pump->lanes[i].index = i;
		pump->lanes[i].wake_fd = -1;
	}
	for (unsigned i = 0; i < PST_BORROWED_MAX; i++) {
		pump->spare[i].pump = pump;
		pump->spare[i].kind = PST_LANE_BORROWED;
		pump->spare[i].wake_fd = -1;
	}
	return pump;
}

static int pump_start(struct penstock_device *dev, struct pst_err *err)
{
	struct pst_pump *pump = pump_new(dev, err);
	int ret;

	if (!pump)
		return err->code;
	pst_numa_find(dev, &pump->numa);
	ret = pump_size_rings(pump, err);
	if (!ret)
		ret = pump_start_lanes(pump, err);
	if (ret) {
		pump_free(pump);
		return ret;
	}
	atomic_store_explicit(&dev->pump, pump, memory_order_release);
	return 0;
}

/* Waits until every request of the pump has completed. Each request counts only for the lane to
 * which it was passed first. So the function can wait for one lane after the other. */
static void pump_await_requests(struct pst_pump *pump)
{
	unsigned times = 0;

	for (unsigned i = 0; i < pump->lane_count; i++)
		while (atomic_load_explicit(&pump->lanes[i].requests, memory_order_acquire))
			pst_backoff(&times);
	for (unsigned i = 0; i < PST_BORROWED_MAX; i++)
		while (atomic_load_explicit(&pump->spare[i].taken, memory_order_acquire))
			pst_backoff(&times);
}

/* Stops the pump's threads and closes its spare lanes. First waits until no request of the pump is
 * in flight. */
static void pump_stop_lanes(struct pst_pump *pump)
{
	pump_await_requests(pump);
	atomic_store(&pump->stop, true);
	for (unsigned i = 0; i < pump->lane_count; i++) {
		pst_inbox_wake(&pump->lanes[i]);
		pthread_join(pump->lanes[i].thread, NULL);
	}
	while (atomic_load_explicit(&pump->outside, memory_order_acquire))
		sched_yield();
	for (unsigned i = 0; i < PST_BORROWED_MAX; i++)
		if (pump->spare[i].chunks)
			pst_lane_close(&pump->spare[i]);
}

static void pump_stop(struct penstock_device *dev)
{
	struct pst_pump *pump = atomic_load(&dev->pump);

	if (atomic_load(&pump->streams))
		pump->stream_hooks->close(pump);
	pump_stop_lanes(pump);
	atomic_store(&dev->pump, NULL);
	pump_free(pump);
}

int pst_pump_open_plain(const struct pst_pump *of, struct penstock_device *host,
			struct pst_streams *streams, const struct pst_stream_hooks *hooks,
			struct pst_pump **out, struct pst_err *err)
{
	struct pst_pump *pump = pump_new(host, err);
	int ret;

	if (!pump)
		return err->code;
	pump->numa = of->numa;
	pump->stream_hooks = hooks;
	atomic_store(&pump->streams, streams);
	ret = pump_size_rings(pump, err);
	pump->slot_bytes = of->slot_bytes;
	if (!ret)
		ret = pump_start_lanes(pump, err);
	if (ret) {
		pump_free(pump);
		return ret;
	}
	*out = pump;
	return 0;
}

void pst_pump_close_plain(struct pst_pump *pump)
{
	pump_stop_lanes(pump);
	pump_free(pump);
}

/* ---- other devices ---- */

/* Held during pst_pump_attach, so that only one thread runs it. A thread that holds this lock takes
 * no other lock. */
static pthread_mutex_t attach_lock = PTHREAD_MUTEX_INITIALIZER;

/* Makes attach_lock usable in a forked child. pst_fork_hook registers this function. */
static void attach_lock_reset(void)
{
	pthread_mutex_init(&attach_lock, NULL);
}

__attribute__((constructor)) static void attach_hook_fork(void)
{
	pst_fork_hook(attach_lock_reset);
}

/* Opens a copy queue on device `dev` for every lane of the pump. If one cannot be opened, closes
 * the others, and no lane gets one. */
static int pump_open_copyqs(struct pst_pump *pump, struct penstock_device *dev, struct pst_err *err)
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
		atomic_fetch_or(&pump->lanes[i].copies_to, (uint64_t)1 << dev->index);
		PST_LIFO_PUSH(&pump->lanes[i].given, opened[i], link, memory_order_release);
	}
	return 0;
}

int pst_pump_attach(struct pst_pump *pump, struct penstock_device *dev, struct pst_err *err)
{
	uint64_t bit = (uint64_t)1 << dev->index;
	int ret = 0;

	if (dev == pump->dev || (atomic_load_explicit(&pump->attached, memory_order_acquire) & bit))
		return 0;
	pthread_mutex_lock(&attach_lock);
	if (!(atomic_load(&pump->attached) & bit)) {
		pst_device_sync_await(dev);
		ret = pump_open_copyqs(pump, dev, err);
		pst_device_sync_end(dev);
	}
	if (!ret)
		atomic_fetch_or_explicit(&pump->attached, bit, memory_order_release);
	pthread_mutex_unlock(&attach_lock);
	return ret;
}

/* ---- passing requests to lanes ---- */

/* Returns the lane's approximate load: how many of its requests and chunks are not complete. */
static unsigned lane_load(struct pst_lane *lane)
{
	return atomic_load_explicit(&lane->load, memory_order_relaxed) +
	       atomic_load_explicit(&lane->busy_seen, memory_order_relaxed);
}

/* Returns whether the lane seems to hang: it is busy and has completed no pass of its loop for
 * LANE_TURN_NS. If several threads call this function at once, a hang may be detected only by a
 * later call. */
static bool lane_seems_hung(struct pst_lane *lane, unsigned load, uint64_t now)
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

/* Chooses a lane for a new request: the first lane whose load is below LANE_LOAD_FULL, else the
 * lane with the least load. A lane that seems to hang is chosen only if all lanes seem to hang. */
static struct pst_lane *pump_choose_lane(struct pst_pump *pump, uint64_t now)
{
	struct pst_lane *best = NULL;
	unsigned least = 0;
	bool best_hung = true;

	for (unsigned i = 0; i < pump->lane_count; i++) {
		struct pst_lane *lane = &pump->lanes[i];
		unsigned load = lane_load(lane);
		bool hung = lane_seems_hung(lane, load, now);

		if (load < LANE_LOAD_FULL && !hung)
			return lane;
		if (!best || hung < best_hung || (hung == best_hung && load < least)) {
			best = lane;
			least = load;
			best_hung = hung;
		}
	}
	return best;
}

void pst_pump_submit(struct pst_request *req)
{
	struct pst_pump *pump = req->pump;
	struct pst_lane *best = pump_choose_lane(pump, req->start_ns);
	struct pst_lane_entry *entry;

	atomic_store_explicit(&req->spread, 1, memory_order_relaxed);
	req->home_lane = best;
	/* Do not count a request that is captured in a CUDA graph, because it never completes. The
	 * pump is not stopped while such a request exists. */
	if (!req->stage || !req->stage->captured)
		atomic_fetch_add_explicit(&best->requests, 1, memory_order_relaxed);
	entry = pst_inbox_entry(best, req);
	entry->watch = req->stage;
	if (req->phase != PST_PHASE_DONE) /* else its bytes are in the stage: pst_stream_fill */
		pst_req_open(req);
	pst_inbox_push(best, entry);
}

void pst_pump_cancel(struct pst_pump *pump)
{
	atomic_fetch_add_explicit(&pump->cancel_turn, 1, memory_order_release);
	for (unsigned i = 0; i < pump->lane_count; i++)
		pst_inbox_wake(&pump->lanes[i]);
}

/* ---- closing storages and devices ---- */

static void pump_invalidate(struct penstock_device *dev, struct penstock_storage *st,
			    struct penstock_device *closing)
{
	struct pst_pump *pump = atomic_load(&dev->pump);
	unsigned times = 0;

	for (unsigned i = 0; i < PST_BORROWED_MAX; i++) {
		struct pst_lane *lane = &pump->spare[i];

		if (!pst_lane_caches(lane, st, closing))
			/* The lane caches nothing of the closing storage or device. So do not wait
			 * for the thread that has borrowed it. */
			continue;
		while (atomic_exchange_explicit(&lane->taken, true, memory_order_acquire))
			pst_backoff(&times);
		pst_lane_invalidate(lane, st, closing);
		pst_pump_return(lane);
	}
	atomic_store_explicit(&pump->closing_storage, st, memory_order_relaxed);
	atomic_store_explicit(&pump->closing_device, closing, memory_order_relaxed);
	for (unsigned i = 0; i < pump->lane_count; i++) {
		struct pst_lane *lane = &pump->lanes[i];

		if (!pst_lane_caches(lane, st, closing))
			continue;
		atomic_store_explicit(&lane->invalidate_due, true, memory_order_release);
		pst_inbox_wake(lane);
	}
	pthread_mutex_lock(&pump->members_lock);
	for (struct pst_pump_member *m = pump->members; m; m = m->next)
		m->invalidate(m, st, closing);
	pthread_mutex_unlock(&pump->members_lock);
	for (unsigned i = 0; i < pump->lane_count; i++)
		while (atomic_load_explicit(&pump->lanes[i].invalidate_due, memory_order_acquire))
			pst_backoff(&times);
	if (closing)
		atomic_fetch_and(&pump->attached, ~((uint64_t)1 << closing->index));
}

static void pump_help(struct penstock_device *dev)
{
	struct pst_pump *pump = atomic_load(&dev->pump);

	pthread_mutex_lock(&pump->members_lock);
	for (struct pst_pump_member *m = pump->members; m; m = m->next)
		m->help(m);
	pthread_mutex_unlock(&pump->members_lock);
}

void pst_pump_add_member(struct pst_pump *pump, struct pst_pump_member *member)
{
	pthread_mutex_lock(&pump->members_lock);
	member->next = pump->members;
	pump->members = member;
	pthread_mutex_unlock(&pump->members_lock);
}

void pst_pump_remove_member(struct pst_pump *pump, struct pst_pump_member *member)
{
	struct pst_pump_member **at = &pump->members;

	pthread_mutex_lock(&pump->members_lock);
	while (*at != member)
		at = &(*at)->next;
	*at = member->next;
	pthread_mutex_unlock(&pump->members_lock);
}

/* ---- borrowed lanes ---- */

/* Opens a spare lane. Returns -EAGAIN with err->code 0 if a CUDA stream waits for a request,
 * because the driver call that creates the lane's own stream would wait for that stream. */
static int spare_open(struct pst_lane *lane, struct pst_err *err)
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
		pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "cannot open a lane");
	pst_lane_close(lane);
	return ret;
}

/* Borrows a spare lane for the calling thread. Returns NULL with err->code 0 if no spare lane is
 * free at this time, and NULL with an error if the lane cannot be opened. */
static struct pst_lane *spare_borrow(struct pst_pump *pump, struct pst_err *err)
{
	err->code = 0;
	for (unsigned i = 0; i < PST_BORROWED_MAX && !err->code; i++) {
		struct pst_lane *lane = &pump->spare[i];

		if (atomic_load_explicit(&lane->taken, memory_order_relaxed) ||
		    atomic_exchange_explicit(&lane->taken, true, memory_order_acquire))
			continue;
		if (lane->chunks || !spare_open(lane, err))
			return lane;
		atomic_store_explicit(&lane->taken, false, memory_order_release);
	}
	return NULL;
}

struct pst_lane *pst_pump_borrow(struct pst_pump *pump)
{
	struct pst_err err;

	return spare_borrow(pump, &err);
}

struct pst_lane *pst_pump_borrow_wait(struct pst_pump *pump, struct pst_err *err)
{
	struct pst_lane *lane = spare_borrow(pump, err);
	unsigned times = 0;

	/* This wait always ends, because a thread that has borrowed a lane never waits for this
	 * thread. */
	while (!lane && !err->code) {
		pst_backoff(&times);
		lane = spare_borrow(pump, err);
	}
	return lane;
}

void pst_pump_return(struct pst_lane *lane)
{
	while (lane->trim_due && !lane->busy)
		pst_lane_turn(lane, 0);
	atomic_store_explicit(&lane->taken, false, memory_order_release);
}

void pst_pump_run(struct pst_lane *lane, struct pst_request *req)
{
	pst_inbox_list(lane, req);
	pst_req_open_phase(req);
	while (lane->todo_count || lane->busy)
		pst_lane_turn(lane, -1);
}

const struct pst_device_hooks pst_pump_hooks = {
	.start = pump_start,
	.stop = pump_stop,
	.invalidate = pump_invalidate,
	.help = pump_help,
};
