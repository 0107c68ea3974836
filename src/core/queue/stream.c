/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered requests: see stream.h. queue.c arms such requests and releases them. A lane polls
 * the streams of its armed requests through the pump's stream_hooks. This file must never make a
 * stream call a host function (cuLaunchHostFunc), because host functions may make no device calls.
 */
#include "core/queue/stream.h"

#include <pthread.h>
#include <stdlib.h>

#include "core/base/clock.h"
#include "core/base/device_sync.h"
#include "core/base/fork.h"
#include "core/lane/inbox.h"
#include "core/lane/pump.h"
#include "core/queue/queue.h"
#include "core/route/admit.h"

#define PAIRS_MAX 1024u /* number of stream-ordered requests that one pump can have in flight */
/* Interval in ns between two checks whether the device still works. */
#define ALIVE_NS 100000000u

struct pst_semaphores {
	/* pairs of semaphores: a stream writes the first word of its pair and waits for the
	 * second */
	uint64_t *words;
	/* a bit for each pair, set while the pair is free */
	_Atomic uint32_t free_mask[PAIRS_MAX / 32];
	/* For each pair: the value that its stream has yet to write although the pair's request
	 * was abandoned; 0 if there is no such value. */
	_Atomic uint64_t owed[PAIRS_MAX];
};

/* Taken by semaphores_open, so that each pump gets only one set of semaphores. A thread that
 * holds it takes no other lock. */
static pthread_mutex_t semaphores_lock = PTHREAD_MUTEX_INITIALIZER;

static const struct pst_stream_hooks stream_hooks;

/* Initialises the lock again in a forked child, where pst_fork_hook runs this function. Another
 * thread of the parent may have held the lock at the fork. */
static void semaphores_lock_reset(void)
{
	pthread_mutex_init(&semaphores_lock, NULL);
}

__attribute__((constructor)) static void stream_hook_fork(void)
{
	pst_fork_hook(semaphores_lock_reset);
}

/* Allocates the pump's semaphores. Sets the pump's stream_hooks before other threads can see the
 * semaphores. */
static int semaphores_make(struct pst_pump *pump, struct pst_err *err)
{
	struct pst_lane *lane = pst_pump_borrow_wait(pump, err);
	struct pst_semaphores *sems;
	int ret;

	if (!lane)
		return err->code;
	/* Borrowing the lane has opened it, and it stays open. This must happen before a stream
	 * waits, because no lane can open then. */
	pst_pump_return(lane);
	sems = calloc(1, sizeof(*sems));
	if (!sems)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for semaphores");
	ret = pump->dev->ops->semaphores_alloc(pump->dev, (size_t)PAIRS_MAX * 2, &sems->words, err);
	if (ret) {
		free(sems);
		return ret;
	}
	for (unsigned i = 0; i < PAIRS_MAX / 32; i++)
		atomic_store(&sems->free_mask[i], UINT32_MAX);
	pump->stream_hooks = &stream_hooks;
	atomic_store_explicit(&pump->semaphores, sems, memory_order_release);
	return 0;
}

/* Makes the pump's semaphores once, under a lock. Without the lock, two threads could each make
 * a set. One thread would then free its set while a stream waits for the other set. The CUDA
 * driver would block that thread until the stream is idle. */
static int semaphores_open(struct pst_pump *pump, struct pst_err *err)
{
	int ret = 0;

	if (atomic_load_explicit(&pump->semaphores, memory_order_acquire))
		return 0;
	if (!pump->dev->ops->stream_write || !pump->dev->ops->semaphores_alloc)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED, "%s has no streams",
				pump->dev->name);
	pthread_mutex_lock(&semaphores_lock);
	if (!atomic_load_explicit(&pump->semaphores, memory_order_acquire))
		ret = semaphores_make(pump, err);
	pthread_mutex_unlock(&semaphores_lock);
	return ret;
}

static void semaphores_close(struct pst_pump *pump)
{
	struct pst_semaphores *sems = atomic_load(&pump->semaphores);

	if (!sems)
		return;
	pump->dev->ops->semaphores_free(pump->dev, sems->words);
	free(sems);
}

/* Takes a free pair. Returns NULL if no pair is free. */
static uint64_t *pair_find_free(struct pst_semaphores *sems)
{
	for (unsigned i = 0; i < PAIRS_MAX / 32; i++) {
		uint32_t mask = atomic_load_explicit(&sems->free_mask[i], memory_order_relaxed);

		while (mask) {
			uint32_t bit = mask & -mask;

			if (atomic_compare_exchange_weak_explicit(&sems->free_mask[i], &mask,
								  mask & ~bit, memory_order_acquire,
								  memory_order_relaxed))
				return &sems->words[(i * 32 + (unsigned)__builtin_ctz(bit)) * 2];
		}
	}
	return NULL;
}

static void pair_put(struct pst_semaphores *sems, const uint64_t *pair)
{
	size_t index = (size_t)(pair - sems->words) / 2;

	atomic_fetch_or_explicit(&sems->free_mask[index / 32], 1u << index % 32,
				 memory_order_release);
}

/* Writes the pair's second semaphore: a stream that waits for it continues, and a stream
 * that comes later does not wait. The pair becomes free once the stream has written its
 * first semaphore. */
static void pair_release(struct pst_semaphores *sems, uint64_t *pair, uint64_t value)
{
	__atomic_store_n(&pair[1], value, __ATOMIC_RELEASE);
	if (__atomic_load_n(&pair[0], __ATOMIC_ACQUIRE) >= value)
		pair_put(sems, pair);
	else /* pairs_reclaim frees the pair later */
		atomic_store_explicit(&sems->owed[(pair - sems->words) / 2], value,
				      memory_order_release);
}

/* Frees each pair of an abandoned request whose stream has written the first semaphore
 * meanwhile. */
static void pairs_reclaim(struct pst_semaphores *sems)
{
	for (unsigned i = 0; i < PAIRS_MAX; i++) {
		uint64_t value = atomic_load_explicit(&sems->owed[i], memory_order_acquire);

		if (value && __atomic_load_n(&sems->words[2 * i], __ATOMIC_ACQUIRE) >= value &&
		    atomic_compare_exchange_strong(&sems->owed[i], &value, 0))
			pair_put(sems, &sems->words[2 * i]);
	}
}

/* Takes a free pair. Returns NULL if PAIRS_MAX requests are in flight. */
static uint64_t *pair_get(struct pst_semaphores *sems)
{
	uint64_t *pair = pair_find_free(sems);

	if (pair)
		return pair;
	pairs_reclaim(sems);
	return pair_find_free(sems);
}

int pst_stream_arm(struct pst_request *req, struct pst_err *err)
{
	struct pst_pump *pump = req->pump;
	struct penstock_device *dev;
	uint64_t *pair;
	int ret;

	if (!pump)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a stream-ordered request needs a segment");
	dev = pump->dev;
	ret = semaphores_open(pump, err);
	if (ret)
		return ret;
	pair = pair_get(atomic_load(&pump->semaphores));
	if (!pair)
		return pst_fail(err, PENSTOCK_WHY_FULL,
				"%u stream-ordered requests of the device are in flight, the "
				"limit: wait for some",
				PAIRS_MAX);
	/* The values of both semaphores only grow, and a stream waits until the second has at
	 * least the given value. So a pair can serve the next request while the device still reads
	 * the second semaphore for the last one. */
	req->semaphore_value = __atomic_load_n(&pair[1], __ATOMIC_RELAXED) + 1;
	pst_device_stream_enter(dev);
	ret = dev->ops->stream_write(dev, req->stream, &pair[0], req->semaphore_value, err);
	if (ret) {
		pair_put(atomic_load(&pump->semaphores), pair);
		pst_device_stream_leave(dev);
		return ret;
	}
	ret = dev->ops->stream_wait(dev, req->stream, &pair[1], req->semaphore_value, err);
	if (ret) {
		pair_release(atomic_load(&pump->semaphores), pair, req->semaphore_value);
		pst_device_stream_leave(dev);
		return ret;
	}
	req->semaphores = pair;
	return 0;
}

void pst_stream_release(struct pst_request *req)
{
	/* req->semaphores stays set, because a lane may still poll it */
	uint64_t *pair = req->semaphores;

	if (req->late.result)
		*(volatile int64_t *)req->late.result = req->result;
	pair_release(atomic_load(&req->pump->semaphores), pair, req->semaphore_value);
	pst_device_stream_leave(req->pump->dev);
}

/* Checks that a buffer offset that the stream supplied stays inside the memory that the caller
 * named. */
static int req_check_late_place(const struct pst_request *req, struct pst_err *err)
{
	const struct penstock_seg *seg = &req->segs[0];
	uint64_t need = (seg->rows - 1) * seg->buf_pitch + seg->row_len;
	uint64_t have = req->late.buf_len;
	struct pst_memory mem;

	if (!have && seg->dev->ops->classify(seg->dev, seg->buf, &mem) == 1 && mem.len)
		have = mem.base + mem.len - (uintptr_t)seg->buf;
	if (have && seg->row_len && (seg->buf_off > have || need > have - seg->buf_off))
		return pst_fail(
			err, PENSTOCK_WHY_BAD_ARGUMENT,
			"late buffer offset: %llu bytes at offset %llu, the memory has %llu",
			(unsigned long long)need, (unsigned long long)seg->buf_off,
			(unsigned long long)have);
	return 0;
}

/* Reads the request's late values, which the stream has written by this time, and makes the
 * request's spans again. */
static int req_bind_late(struct pst_request *req, struct pst_err *err)
{
	struct penstock_seg *seg = &req->segs[0];
	const struct penstock_late *late = &req->late;
	int ret;

	if (late->row_len) {
		uint64_t len = *(const volatile uint64_t *)late->row_len;

		if (len > seg->row_len)
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
					"late row length: %llu bytes, more than the submitted %llu",
					(unsigned long long)len, (unsigned long long)seg->row_len);
		seg->row_len = len;
		if (seg->rows == 1)
			seg->pitch = seg->buf_pitch = len;
	}
	if (late->off)
		seg->off = *(const volatile uint64_t *)late->off;
	if (late->buf_off)
		seg->buf_off = *(const volatile uint64_t *)late->buf_off;
	if (!late->row_len && !late->off && !late->buf_off)
		return 0;
	if (seg->off > INT64_MAX || seg->buf_off > INT64_MAX)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"late offsets: %lld in the storage, %lld in the buffer, and none "
				"may be negative",
				(long long)seg->off, (long long)seg->buf_off);
	/* also checks the late values for overflow */
	ret = pst_admit_spans(req, req->q->spans_max, err);
	return !ret && late->buf_off ? req_check_late_place(req, err) : ret;
}

/* Moves the request from phase ARMED to phase `to`. Returns true to one thread only, which then
 * starts or fails the request. */
static bool req_disarm(struct pst_request *req, enum pst_phase to)
{
	enum pst_phase armed = PST_PHASE_ARMED;

	return atomic_compare_exchange_strong(&req->phase, &armed, to);
}

/* Fails a request of which no lane has started any byte. */
static void req_fail_unstarted(struct pst_request *req, const struct pst_err *err)
{
	req->phase = PST_PHASE_DONE;
	pst_req_fail(req, err);
	pst_req_put(req, PST_HOLD);
}

/* Starts a request that its stream has reached. */
static void req_start_arrived(struct pst_lane *lane, struct pst_request *req)
{
	struct pst_err err;

	if (!req_disarm(req, PST_PHASE_NEW))
		return;
	if (req_bind_late(req, &err)) {
		req->total = 0; /* the spans may be incomplete, so the report names no offset */
		req_fail_unstarted(req, &err);
	} else if (req->total || pst_req_only_syncs(req)) {
		pst_inbox_list(lane, req);
		pst_req_open_phase(req);
	} else {
		pst_req_put(req, PST_HOLD);
	}
}

/* Returns whether the device has failed. Asks the device at most once in ALIVE_NS. A failure of
 * the application's own work can break the device's context; then all its streams stop without
 * a notice. */
static bool device_is_broken(struct pst_lane *lane, struct pst_err *err)
{
	struct penstock_device *dev = lane->pump->dev;
	struct pst_copyq *copyq;
	uint64_t now = pst_now_ns();
	int ret;

	if (!dev->ops->alive || now - lane->watch_asked_ns < ALIVE_NS)
		return false;
	lane->watch_asked_ns = now;
	copyq = pst_copyq_of(lane, dev);
	ret = copyq ? dev->ops->alive(copyq->copier) : 0;
	if (ret)
		pst_fail_errno(err, ret, PENSTOCK_WHY_DEVICE_ERROR,
			       "%s has failed, its streams will not run again: %m", dev->name);
	return ret != 0;
}

/* Returns whether the request was cancelled, or its deadline has passed, before its stream
 * reached it. The stream may never reach it. */
static bool req_abandoned_unstarted(struct pst_request *req, struct pst_err *err)
{
	if (pst_req_cancelled(req))
		return pst_fail(err, PENSTOCK_WHY_CANCELLED,
				"cancelled by the caller before its stream reached it");
	if (!req->deadline_ns || pst_now_ns() <= req->deadline_ns)
		return false;
	return pst_fail(err, PENSTOCK_WHY_DEADLINE,
			"the deadline passed before its stream reached it");
}

void pst_stream_abandon(struct pst_request *req)
{
	struct pst_err err;

	if (req_abandoned_unstarted(req, &err) && req_disarm(req, PST_PHASE_DONE))
		req_fail_unstarted(req, &err);
}

/* Hook: starts the lane's armed requests that their streams have reached, and fails abandoned
 * ones; see pst_stream_hooks. */
static int stream_poll(struct pst_lane *lane)
{
	struct pst_lane_entry **at = &lane->watched;
	struct pst_err why;
	bool broken = device_is_broken(lane, &why);
	int left = 0;

	while (*at) {
		struct pst_lane_entry *entry = *at;
		struct pst_request *req = entry->req;
		bool arrived = __atomic_load_n(&req->semaphores[0], __ATOMIC_ACQUIRE) >=
			       req->semaphore_value;
		struct pst_err err;

		/* If another thread has taken the request out of phase ARMED, its semaphores may
		 * belong to another request already. Then this thread only drops the entry. */
		if (req->phase == PST_PHASE_ARMED && !arrived && !broken &&
		    !req_abandoned_unstarted(req, &err)) {
			at = &entry->next;
			continue;
		}
		*at = entry->next;
		if (arrived)
			req_start_arrived(lane, req);
		else if (req_disarm(req, PST_PHASE_DONE))
			req_fail_unstarted(req, broken ? &why : &err);
		pst_req_put(req, PST_LISTED);
		left++;
	}
	return left;
}

static const struct pst_stream_hooks stream_hooks = {
	.poll = stream_poll,
	.close = semaphores_close,
};
