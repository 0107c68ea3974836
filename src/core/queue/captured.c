/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements captured requests, which are nodes of a CUDA graph: see captured.h. Each of them
 * attaches a CUDA user object to the graph. When the graph is destroyed, the driver calls the
 * object's destructor. It runs in a thread of the driver, so it only sets a flag.
 */
#include "core/queue/captured.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/log.h"
#include "core/base/spin.h"
#include "core/base/stats.h"
#include "core/lane/lane.h"

/* Maximum time in ns that a lane takes to free a captured request whose graph is destroyed, unless
 * the lane hangs in a system call. */
#define HUNG_NS 1000000000u

/* State that a captured request shares with the user object of its CUDA graph. Whichever of the two
 * drops its reference last frees the struct. */
struct pst_captured_tie {
	_Atomic unsigned refs;
	_Atomic bool gone;
};

/* Guards `list`, the list of all captured requests. Worker threads take this lock, so a thread that
 * holds it takes no other lock and makes no driver call. */
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pst_captured *list;
static _Atomic unsigned list_count; /* length of `list`; while it is 0, callers skip the lock */

/* Empties the list in a forked child, because the child cannot launch the graphs of the parent's
 * captured requests. */
static void list_reset(void)
{
	pthread_mutex_init(&list_lock, NULL);
	list = NULL;
	atomic_store(&list_count, 0);
}

__attribute__((constructor)) static void list_hook_fork(void)
{
	pst_fork_hook(list_reset);
}

/* ---- life ---- */

static void tie_put(struct pst_captured_tie *tie)
{
	if (atomic_fetch_sub(&tie->refs, 1) == 1)
		free(tie);
}

/* Destructor of the CUDA graph's user object: stores that the graph is destroyed. */
static void tie_gone(void *arg)
{
	struct pst_captured_tie *tie = arg;

	atomic_store(&tie->gone, true);
	tie_put(tie);
}

bool pst_captured_gone(const struct pst_captured *cap)
{
	return atomic_load_explicit(&cap->tie->gone, memory_order_acquire);
}

/* Allocates a captured request, its segments, its spans (contiguous storage ranges), and the struct
 * that it shares with its graph. */
static struct pst_captured *captured_alloc(unsigned seg_count, unsigned spans_max)
{
	struct pst_captured *cap = calloc(1, sizeof(*cap));

	if (!cap)
		return NULL;
	cap->tie = calloc(1, sizeof(*cap->tie));
	cap->req.segs = calloc(seg_count, sizeof(*cap->req.segs));
	cap->req.spans = calloc(spans_max, sizeof(*cap->req.spans));
	if (cap->tie && cap->req.segs && cap->req.spans)
		return cap;
	free(cap->tie);
	free(cap->req.segs);
	free(cap->req.spans);
	free(cap);
	return NULL;
}

/* Copies the members of `from` that describe the caller's request. */
static void captured_fill(struct pst_captured *cap, const struct pst_request *from)
{
	struct pst_request *req = &cap->req;

	req->st = from->st;
	req->pump = from->pump;
	req->op = from->op;
	req->require = from->require;
	req->effort = from->effort;
	req->flags = from->flags;
	req->priority = from->priority;
	req->forced = from->forced;
	req->wrap = from->wrap;
	memcpy(req->wrap_state, from->wrap_state, sizeof(req->wrap_state));
	req->stream = from->stream;
	req->late = from->late;
	req->seg_count = from->seg_count;
	req->span_count = from->span_count;
	memcpy(req->segs, from->segs, from->seg_count * sizeof(*req->segs));
	memcpy(req->spans, from->spans, from->span_count * sizeof(*req->spans));
	cap->first = req->segs[0];
	cap->gpu = req->segs[0].dev;
	cap->body = req->body = from->body;
	cap->total = req->total = from->total;
}

int pst_captured_make(struct pst_request *from, struct pst_stream_seq *seq,
		      struct pst_captured **out, struct pst_err *err)
{
	/* Each segment may have three spans: the unaligned bytes before its whole blocks, the
	 * blocks, and the bytes after them. */
	unsigned spans_max = 3 * from->seg_count;
	struct pst_captured *cap = captured_alloc(from->seg_count, spans_max);
	int ret;

	if (!cap)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a captured request");
	captured_fill(cap, from);
	cap->req.spans_max = spans_max;
	atomic_fetch_add(&cap->gpu->graphs, 1);
	pthread_mutex_lock(&list_lock);
	cap->next = list;
	list = cap;
	atomic_fetch_add(&list_count, 1);
	pthread_mutex_unlock(&list_lock);
	atomic_store(&cap->tie->refs, 2);
	ret = seq->dev->ops->stream_tie(seq, tie_gone, cap->tie, err);
	if (ret) {
		pst_captured_free(cap);
		return ret;
	}
	cap->req.stage = from->stage;
	cap->req.stage->req = &cap->req;
	*out = cap;
	return 0;
}

void pst_captured_free(struct pst_captured *cap)
{
	struct pst_captured **at = &list;

	pthread_mutex_lock(&list_lock);
	while (*at != cap)
		at = &(*at)->next;
	*at = cap->next;
	atomic_fetch_sub(&list_count, 1);
	pthread_mutex_unlock(&list_lock);
	/* When this count is 0, another thread may close the device, so do not use the device after
	 * this statement. */
	atomic_fetch_sub_explicit(&cap->gpu->graphs, 1, memory_order_release);
	tie_put(cap->tie);
	free(cap->req.segs);
	free(cap->req.spans);
	free(cap);
}

/* Returns the number of captured requests of the device whose graphs are destroyed, but which no
 * lane has freed yet. */
static unsigned gone_count(const struct penstock_device *gpu)
{
	unsigned count = 0;

	pthread_mutex_lock(&list_lock);
	for (const struct pst_captured *cap = list; cap; cap = cap->next)
		count += cap->gpu == gpu && pst_captured_gone(cap);
	pthread_mutex_unlock(&list_lock);
	return count;
}

bool pst_captured_await_free(const struct penstock_device *gpu)
{
	uint64_t until = pst_now_ns() + HUNG_NS;
	unsigned before = gone_count(gpu), times = 0;

	if (!before)
		return false;
	while (gone_count(gpu) >= before && pst_now_ns() < until)
		pst_backoff(&times);
	return pst_now_ns() < until;
}

/* ---- replays ---- */

/* Prevents the storage from being closed until the replay (an execution of the captured request)
 * ends. Returns an error if it is closed already. The flags `serving` and `closed` make this safe:
 * either this thread sees `closed`, or the thread that closes the storage sees `serving` and
 * waits. */
static int storage_enter(struct pst_captured *cap, struct pst_err *err)
{
	atomic_store(&cap->serving, true);
	if (atomic_load(&cap->closed)) {
		atomic_store(&cap->serving, false);
		return pst_fail_errno(err, EBADF, PENSTOCK_WHY_BAD_ARGUMENT,
				      "the storage of a captured request was closed before its "
				      "graph was destroyed");
	}
	atomic_fetch_add_explicit(&cap->req.st->inflight, 1, memory_order_relaxed);
	cap->req.losses = atomic_load_explicit(&cap->req.st->losses, memory_order_relaxed);
	return 0;
}

int pst_captured_begin(struct pst_captured *cap, struct pst_lane *lane, struct pst_err *err)
{
	struct pst_request *req = &cap->req;
	const struct pst_stage *stage = req->stage;

	pst_req_rewind(req);
	req->segs[0] = cap->first;
	req->body = cap->body;
	req->total = cap->total;
	req->start_ns = pst_now_ns();
	req->home_lane = lane;
	atomic_store_explicit(&req->spread, 1, memory_order_relaxed);
	/* Remove the list of copies of the last replay. Otherwise a replay that fails before its
	 * first round would make these copies again. */
	for (unsigned i = 0; stage->by_kernel && i < stage->rounds; i++)
		stage->round[i].count = 0;
	atomic_fetch_add_explicit(&pst_stats_get()->requests, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&req->refs, PST_HOLD, memory_order_relaxed);
	atomic_store_explicit(&req->phase, PST_PHASE_ARMED, memory_order_release);
	cap->running = true;
	return storage_enter(cap, err);
}

void pst_captured_end(struct pst_captured *cap)
{
	struct pst_request *req = &cap->req;

	if (atomic_load_explicit(&req->failed, memory_order_relaxed)) {
		atomic_fetch_add_explicit(&pst_stats_get()->failed, 1, memory_order_relaxed);
		pst_log(PST_LOG_INFO, "core", "a replay of a captured request failed: %s",
			req->err.text);
	}
	cap->running = false;
	if (!atomic_load_explicit(&cap->serving, memory_order_relaxed))
		return;
	atomic_fetch_sub_explicit(&req->st->inflight, 1, memory_order_release);
	/* After this store, another thread may free the storage. */
	atomic_store_explicit(&cap->serving, false, memory_order_release);
}

/* Marks all captured requests of the storage as closed, so that no replay of them can begin.
 * Returns whether a replay (an execution) of one of them is still running. */
static bool storage_serves(const struct penstock_storage *st)
{
	bool serves = false;

	pthread_mutex_lock(&list_lock);
	for (struct pst_captured *cap = list; cap; cap = cap->next) {
		if (cap->req.st != st)
			continue;
		atomic_store(&cap->closed, true);
		serves |= atomic_load(&cap->serving);
	}
	pthread_mutex_unlock(&list_lock);
	return serves;
}

void pst_captured_close_storage(const struct penstock_storage *st)
{
	unsigned times = 0;

	while (atomic_load(&list_count) && storage_serves(st))
		pst_backoff(&times);
}
