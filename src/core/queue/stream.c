/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered requests: see stream.h. No I/O and no device call happens inside a
 * host function of the device; the lane that watches does both.
 */
#include "core/queue/stream.h"

#include <pthread.h>
#include <stdlib.h>

#include "core/base/clock.h"
#include "core/lane/lane.h"
#include "core/queue/queue.h"

#define PAIRS 1024u	  /* stream-ordered requests of one device at once */
#define FIRST_NS 5000000u /* a request of some MiB has ended by then */
#define FIRST_MAX_NS 320000000u
#define ALIVE_NS 100000000u /* so often a device is asked whether its streams can come */

struct pst_semaphores {
	uint64_t *words;
	_Atomic uint32_t free_mask[PAIRS / 32]; /* 1: free */
	_Atomic uint64_t owed[PAIRS]; /* not 0: given up, and the stream still writes this */
};

static pthread_mutex_t words_lock = PTHREAD_MUTEX_INITIALIZER; /* no other mutex under it */

void pst_streams_forked(void)
{
	pthread_mutex_init(&words_lock, NULL);
}

static int make_words(struct pst_pump *pump, struct pst_err *err)
{
	struct pst_lane *lane = pst_lane_borrow_wait(pump, err);
	struct pst_semaphores *w;
	int ret;

	if (!lane)
		return err->code;
	pst_lane_return(lane); /* one is open: none opens while a stream waits */
	w = calloc(1, sizeof(*w));
	if (!w)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for stream words");
	ret = pump->dev->ops->semaphores_alloc(pump->dev, (size_t)PAIRS * 2, &w->words, err);
	if (ret) {
		free(w);
		return ret;
	}
	for (unsigned i = 0; i < PAIRS / 32; i++)
		atomic_store(&w->free_mask[i], UINT32_MAX);
	atomic_store_explicit(&pump->semaphores, w, memory_order_release);
	return 0;
}

/* One thread makes them: those of who comes second would have to be given back while a
 * stream may already wait, and the driver waits for that stream with the caller in it. */
static int open_words(struct pst_pump *pump, struct pst_err *err)
{
	int ret = 0;

	if (atomic_load_explicit(&pump->semaphores, memory_order_acquire))
		return 0;
	if (!pump->dev->ops->stream_write || !pump->dev->ops->semaphores_alloc)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED, "%s has no streams",
				pump->dev->name);
	pthread_mutex_lock(&words_lock);
	if (!atomic_load_explicit(&pump->semaphores, memory_order_acquire))
		ret = make_words(pump, err);
	pthread_mutex_unlock(&words_lock);
	return ret;
}

void pst_stream_close(struct pst_pump *pump)
{
	struct pst_semaphores *w = atomic_load(&pump->semaphores);

	if (!w)
		return;
	pump->dev->ops->semaphores_free(pump->dev, w->words);
	free(w);
}

static uint64_t *take_free(struct pst_semaphores *w)
{
	for (unsigned i = 0; i < PAIRS / 32; i++) {
		uint32_t mask = atomic_load_explicit(&w->free_mask[i], memory_order_relaxed);

		while (mask) {
			uint32_t bit = mask & -mask;

			if (atomic_compare_exchange_weak_explicit(&w->free_mask[i], &mask,
								  mask & ~bit, memory_order_acquire,
								  memory_order_relaxed))
				return &w->words[(i * 32 + (unsigned)__builtin_ctz(bit)) * 2];
		}
	}
	return NULL;
}

static void give_pair(struct pst_semaphores *w, const uint64_t *pair)
{
	size_t index = (size_t)(pair - w->words) / 2;

	atomic_fetch_or_explicit(&w->free_mask[index / 32], 1u << index % 32, memory_order_release);
}

/* The stream goes on, or need not wait at all; the pair is given back when it has come. */
static void let_go(struct pst_semaphores *w, uint64_t *pair, uint64_t value)
{
	__atomic_store_n(&pair[1], value, __ATOMIC_RELEASE);
	if (__atomic_load_n(&pair[0], __ATOMIC_ACQUIRE) >= value)
		give_pair(w, pair);
	else /* it will still write */
		atomic_store_explicit(&w->owed[(pair - w->words) / 2], value, memory_order_release);
}

/* Pairs whose streams came by after all are free again. */
static void reclaim(struct pst_semaphores *w)
{
	for (unsigned i = 0; i < PAIRS; i++) {
		uint64_t value = atomic_load_explicit(&w->owed[i], memory_order_acquire);

		if (value && __atomic_load_n(&w->words[2 * i], __ATOMIC_ACQUIRE) >= value &&
		    atomic_compare_exchange_strong(&w->owed[i], &value, 0))
			give_pair(w, &w->words[2 * i]);
	}
}

static uint64_t *take_pair(struct pst_semaphores *w)
{
	uint64_t *pair = take_free(w);

	if (pair)
		return pair;
	reclaim(w);
	return take_free(w);
}

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

/* Where requests in stream order follow each other without a gap, one would wait for ever.
 * So it asks that none comes for a while, and then for longer; and no longer than that, for
 * what a stream waits for may be who submits the next. */
void pst_device_sync_await(struct penstock_device *dev)
{
	uint64_t first_ns = FIRST_NS, ask_ns = 0;
	unsigned times = 0;

	while (!pst_device_sync_begin(dev)) {
		uint64_t now = pst_now_ns();

		if (now >= ask_ns) {
			atomic_store(&dev->sync_first_ns, now + first_ns);
			ask_ns = now + 2 * first_ns;
			first_ns = first_ns < FIRST_MAX_NS ? 2 * first_ns : first_ns;
		}
		pst_backoff(&times);
	}
	atomic_store(&dev->sync_first_ns, 0);
}

/* Before a stream begins to wait. */
static void let_whole_go_first(struct penstock_device *dev)
{
	uint64_t until;
	unsigned times = 0;

	while ((until = atomic_load(&dev->sync_first_ns)) && pst_now_ns() < until)
		pst_backoff(&times);
}

int pst_stream_arm(struct pst_request *req, struct pst_err *err)
{
	struct pst_pump *pump = req->pump;
	struct penstock_device *dev;
	unsigned times = 0;
	uint64_t *pair;
	int ret;

	if (!pump)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a stream-ordered request needs a segment");
	dev = pump->dev;
	ret = open_words(pump, err);
	if (ret)
		return ret;
	pair = take_pair(atomic_load(&pump->semaphores));
	if (!pair)
		return pst_fail(err, PENSTOCK_WHY_FULL, "%u stream-ordered requests are waiting",
				PAIRS);
	/* Both words only ever grow, and the stream waits for at least the value: a pair
	 * may serve the next request while the device still looks at it for this one. */
	req->semaphore_value = __atomic_load_n(&pair[1], __ATOMIC_RELAXED) + 1;
	let_whole_go_first(dev);
	atomic_fetch_add(&dev->streams_waiting, 1); /* before any does */
	while (atomic_load(&dev->syncs))
		pst_backoff(&times);
	ret = dev->ops->stream_write(dev, req->stream, &pair[0], req->semaphore_value, err);
	if (ret) {
		give_pair(atomic_load(&pump->semaphores), pair);
		atomic_fetch_sub(&dev->streams_waiting, 1);
		return ret;
	}
	ret = dev->ops->stream_wait(dev, req->stream, &pair[1], req->semaphore_value, err);
	if (ret) {
		let_go(atomic_load(&pump->semaphores), pair, req->semaphore_value);
		atomic_fetch_sub(&dev->streams_waiting, 1);
		return ret;
	}
	req->semaphores = pair;
	return 0;
}

void pst_stream_enqueue(struct pst_request *req)
{
	atomic_fetch_add_explicit(&req->st->inflight, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&req->q->inflight, 1, memory_order_relaxed);
	pst_pump_submit(req);
}

void pst_stream_release(struct pst_request *req)
{
	uint64_t *pair = req->semaphores; /* a lane may still look at them */

	if (req->late.result)
		*(volatile int64_t *)req->late.result = req->result;
	let_go(atomic_load(&req->pump->semaphores), pair, req->semaphore_value);
	atomic_fetch_sub_explicit(&req->pump->dev->streams_waiting, 1, memory_order_release);
}

/* A place that came late is in the memory that was named, or it is somebody else's. */
static int check_inside(const struct pst_request *req, struct pst_err *err)
{
	const struct penstock_seg *seg = &req->segs[0];
	uint64_t need = (seg->rows - 1) * seg->buf_pitch + seg->row_len;
	uint64_t have = req->late.buf_len;
	struct pst_memory mem;

	if (!have && seg->dev->ops->classify(seg->dev, seg->buf, &mem) == 1 && mem.len)
		have = mem.base + mem.len - (uintptr_t)seg->buf;
	if (have && seg->row_len && (seg->buf_off > have || need > have - seg->buf_off))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a late place: %llu bytes at %llu of memory that has %llu",
				(unsigned long long)need, (unsigned long long)seg->buf_off,
				(unsigned long long)have);
	return 0;
}

/* The late values, as they are now that the stream is here. */
static int take_late(struct pst_request *req, struct pst_err *err)
{
	struct penstock_seg *seg = &req->segs[0];
	const struct penstock_late *late = &req->late;
	int ret;

	if (late->row_len) {
		uint64_t len = *(const volatile uint64_t *)late->row_len;

		if (len > seg->row_len)
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
					"a late length of %llu bytes, %llu were submitted",
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
	ret = pst_req_make_spans(req, err); /* which tells what overflows */
	return !ret && late->buf_off ? check_inside(req, err) : ret;
}

/* Whoever does this first has what comes next to himself. */
static bool leave_stream(struct pst_request *req, enum pst_phase to)
{
	enum pst_phase armed = PST_PHASE_ARMED;

	return atomic_compare_exchange_strong(&req->phase, &armed, to);
}

/* Nothing of it can be claimed. */
static void end_before(struct pst_lane *lane, struct pst_request *req, const struct pst_err *err)
{
	req->phase = PST_PHASE_DONE;
	pst_req_fail(req, lane, err);
	pst_req_put(req, PST_HOLD);
}

static void begin(struct pst_lane *lane, struct pst_request *req)
{
	struct pst_err err;

	if (!leave_stream(req, PST_PHASE_NEW))
		return;
	if (take_late(req, &err)) {
		req->total = 0; /* its spans may be half cut */
		end_before(lane, req, &err);
	} else if (req->total || pst_req_only_syncs(req)) {
		pst_lane_list(lane, req);
		pst_req_open_phase(req);
	} else {
		pst_req_put(req, PST_HOLD);
	}
}

/* A context that broke under another's work takes all streams with it, in silence. */
static bool broken(struct pst_lane *lane, struct pst_err *err)
{
	struct penstock_device *dev = lane->pump->dev;
	struct pst_copyq *copyq;
	uint64_t now = pst_now_ns();
	int ret;

	if (!dev->ops->alive || now - lane->watch_asked_ns < ALIVE_NS)
		return false;
	lane->watch_asked_ns = now;
	copyq = pst_lane_copyq(lane, dev);
	ret = copyq ? dev->ops->alive(copyq->copier) : 0;
	if (ret)
		pst_fail_errno(err, ret, PENSTOCK_WHY_DEVICE_ERROR,
			       "%s is broken, its stream will not come: %m", dev->name);
	return ret != 0;
}

/* Its stream may never come: it waits for somebody who is not there. */
static bool too_late(struct pst_request *req, struct pst_err *err)
{
	if (pst_req_cancelled(req))
		return pst_fail(err, PENSTOCK_WHY_CANCELLED,
				"cancelled by the caller before its stream came to it");
	if (!req->deadline_ns || pst_now_ns() <= req->deadline_ns)
		return false;
	return pst_fail(err, PENSTOCK_WHY_DEADLINE,
			"the deadline passed before its stream came to it");
}

void pst_stream_abandon(struct pst_request *req)
{
	struct pst_err err;

	if (too_late(req, &err) && leave_stream(req, PST_PHASE_DONE))
		end_before(NULL, req, &err);
}

bool pst_stream_poll(struct pst_lane *lane)
{
	struct pst_lane_entry **at = &lane->watched;
	struct pst_err why;
	bool any = false, none = broken(lane, &why);

	while (*at) {
		struct pst_lane_entry *entry = *at;
		struct pst_request *req = entry->req;
		bool came = __atomic_load_n(&req->semaphores[0], __ATOMIC_ACQUIRE) >=
			    req->semaphore_value;
		struct pst_err err;

		/* Where another has ended it, its words may be another's. */
		if (req->phase == PST_PHASE_ARMED && !came && !none && !too_late(req, &err)) {
			at = &entry->next;
			continue;
		}
		*at = entry->next;
		if (came)
			begin(lane, req);
		else if (leave_stream(req, PST_PHASE_DONE))
			end_before(lane, req, none ? &why : &err);
		pst_req_put(req, PST_LISTED);
		any = true;
	}
	return any;
}
