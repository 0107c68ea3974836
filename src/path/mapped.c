/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The path "mapped": the device's copy engine reads the page cache in place. A lane (a thread of
 * the library) maps the file shared and read-only, registers ranges of the mapping (windows) with
 * the device, and queues a copy from them. The CPU touches no byte and no page becomes dirty. The
 * path carries reads only.
 *
 * One lane registers all windows of a device, because the driver registers only one range at a
 * time: 57 GB/s on an H200, with any number of threads. Other lanes have nothing to do meanwhile,
 * so with the efforts "fast" and "balanced" they carry other chunks of the request on another path.
 * Never map with MAP_PRIVATE, because registering such a mapping hangs the CUDA driver.
 *
 * Unregistering waits for everything that the application has queued on the device. Meanwhile every
 * memory copy, event record and allocation that the process issues has to wait
 * (tests/standin/README.md). A read must not unregister, because the application may have a stream
 * that waits for the next read. So a registration is kept until its storage closes. For each
 * device, registrations may cover at most a quarter of the machine's memory. When this quarter is
 * used up, or the lane has no window left, chunks use the next path that is possible. After the
 * storage has closed, a separate thread unregisters. It does so only while the lane has nothing to
 * register and no CUDA stream waits for a request of the library.
 *
 * A later read uses an old registration only if the caller declared the storage immutable.
 * Otherwise the registered bytes could be out of date. So each read of another storage makes new
 * registrations, and they would use up the limits while the storage is open. They may use only a
 * part of the limits (RESERVE), so that immutable storages, such as models, can still register.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/thread.h"
#include "core/base/clock.h"
#include "core/base/device_sync.h"
#include "core/lane/chunk.h"
#include "core/lane/lane.h"
#include "core/lane/pump.h"
#include "core/request/request.h"
#include "core/request/residency_probe.h"
#include "core/request/plan.h"
#include "path/mapped.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

#define WINDOW (128u << 20)
/* Maximum length in bytes of a window (a registered range) while other threads use another path.
 * The copies of these threads wait until the window is registered. With windows of 128 MiB, plain
 * calls that use both paths read 12 % slower than with 32 or 16 MiB. With 64 MiB, the library read
 * as fast as with 32, and used less CPU time (H200). */
#define WINDOW_MIXED (64u << 20)
/* Cached ranges that are contiguous and shorter than this number of bytes go over the path "bounce"
 * (a copy by the CPU) if possible, because that takes less time than registering a window. Measured
 * on an H200 with a file of which every other MiB is cached: with windows of 1 MiB, the read took
 * 1.6 times as long as with CPU copies. */
#define WINDOW_MIN (8u << 20)
/* Length in bytes of the first and last windows (registered ranges) of a request. The copy engine
 * has no work until the first window is registered, which takes 0.15 ms. */
#define WINDOW_FIRST (8u << 20)
/* Maximum number of windows (registered ranges) of one lane. With windows of full length they cover
 * 256 GiB. If it is unknown which bytes are cached, windows are shorter and cover 64 GiB. If
 * requests are short, as in a rank that loads its part of a model, they cover 16 GiB. */
#define WINDOWS_MAX 2048
/* 1/RESERVE of the windows and of the bytes that may be registered is for immutable storages
 * only. */
#define RESERVE 4
#define RECHECK_NS 10000000 /* Interval in ns between checks whether a stream still waits. */
/* With each device, the library registers at most 1/HELD_SHARE of the machine's memory. */
#define HELD_SHARE 4

struct mapped_window {
	char *base;
	size_t len;
	uint64_t off; /* Offset of the window in the file. */
	struct penstock_device *dev;
	struct penstock_storage *st; /* Storage of the file; NULL once it has closed. */
	/* True if later reads may use the window, because the storage is immutable and its file
	 * has not changed. */
	bool reusable;
	struct timespec ctime; /* Change time of the file when the window was registered. */
	struct mapped_window *next;
};

struct mapped_lane {
	struct mapped_window windows[WINDOWS_MAX];
	struct mapped_window *free;
	unsigned free_count;
	struct mapped_window *live; /* List of registered windows, newest first. */
	/* The thread that unregisters windows. It is started when a window is to be unregistered
	 * for the first time. */
	pthread_t closer;
	bool has_closer;
	_Atomic bool resting; /* True while the lane has no window to register. */
	/* Protects the members below. A thread that holds it takes no other lock and makes no
	 * driver call. */
	pthread_mutex_t lock;
	pthread_cond_t work, done;
	struct mapped_window *due, *closed;
	/* The window that the thread unregisters at the moment, or NULL. */
	struct mapped_window *closing;
	bool stop;
};

/* Returns true if the page cache is filled by DMA only, without a CPU copy. Returns
 * false if that is not known. A file in memory (tmpfs) counts as true, because its pages
 * need not be filled. */
static bool cache_filled_by_dma(const struct pst_storage_facts *st)
{
	return st->listed || st->why_direct.why == PENSTOCK_WHY_NOT_REAL;
}

static uint64_t page_bytes(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t mapped_held_max(void)
{
	long pages = sysconf(_SC_PHYS_PAGES);

	return pages > 0 ? (uint64_t)pages * page_bytes() / HELD_SHARE : UINT64_MAX;
}

static int mapped_probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
			char *fix)
{
	const struct pst_storage_facts *st = &route->st->facts;
	const struct pst_device_facts *dev = &route->dev->facts;

	(void)fix;
	if (dev->is_host)
		return pst_fail(err, PENSTOCK_WHY_DEVICE_ONLY, "%s",
				penstock_why_text(PENSTOCK_WHY_DEVICE_ONLY));
	if (st->fd < 0 || !st->mappable)
		return pst_fail(err, st->fd < 0 ? PENSTOCK_WHY_NO_FD : PENSTOCK_WHY_NOT_MAPPABLE,
				"%s cannot be mapped", st->text);
	if (!dev->reads_page_cache) {
		*err = dev->why_mapped;
		return err->code;
	}
	facts->class_ = cache_filled_by_dma(st) ? PENSTOCK_NO_CPU_COPY : PENSTOCK_ANY;
	if (!cache_filled_by_dma(st))
		*err = st->why_direct;
	facts->off_align = facts->mem_align = 1;
	facts->chunk_max = WINDOW;
	facts->chunk_first = WINDOW_FIRST;
	facts->chunk_quick = WINDOW_MIN;
	facts->held_max = mapped_held_max();
	facts->lanes = 1;
	/* Registrations of an immutable storage are used again, but only if the same lane carries
	 * the same chunks. So for such a storage, no other path may carry a part of a request at
	 * the same time. */
	facts->mixed_max = st->immutable ? 0 : WINDOW_MIXED;
	facts->quick = st->mapped_quick;
	return 0;
}

static void window_push(struct mapped_window **list, struct mapped_window *w)
{
	w->next = *list;
	*list = w;
}

static struct mapped_window *window_pop(struct mapped_window **list)
{
	struct mapped_window *w = *list;

	*list = w->next;
	return w;
}

static void window_free(struct mapped_lane *s, struct mapped_window *w)
{
	window_push(&s->free, w);
	s->free_count++;
}

static int mapped_lane_init(struct pst_lane *lane, unsigned index, struct pst_err *err)
{
	struct mapped_lane *s = calloc(1, sizeof(*s));

	if (!s)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for windows");
	for (unsigned i = WINDOWS_MAX; i-- > 0;)
		window_free(s, &s->windows[i]);
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->work, NULL);
	pthread_cond_init(&s->done, NULL);
	lane->path_state[index] = s;
	return 0;
}

static int mapped_lane_open(struct pst_lane *lane, unsigned index, struct pst_err *err)
{
	return lane->pump->dev->facts.reads_page_cache ? mapped_lane_init(lane, index, err) : 0;
}

static void window_unlist(struct mapped_lane *s, const struct mapped_window *w)
{
	struct mapped_window **at = &s->live;

	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
}

/* Unregisters and unmaps a window, a range of the page cache that is registered with the device.
 * The caller must have called pst_device_sync_begin, and calls pst_device_sync_end afterwards. */
static void window_unregister(struct mapped_window *w)
{
	w->dev->ops->host_unregister(w->dev, w->base, NULL);
	munmap(w->base, w->len);
	atomic_fetch_sub_explicit(&w->dev->page_cache, w->len, memory_order_relaxed);
}

static void window_drop(struct mapped_lane *s, struct mapped_window *w)
{
	window_unlist(s, w);
	window_unregister(w);
	window_free(s, w);
}

/* Unregisters a window (a registered range of the page cache) on this thread, instead of leaving it
 * to the closer thread. First waits until the driver's call may synchronise the device. */
static void window_drop_wait(struct mapped_lane *s, struct mapped_window *w)
{
	struct penstock_device *dev = w->dev;

	pst_device_sync_await(dev);
	window_drop(s, w);
	pst_device_sync_end(dev);
}

/* ---- the thread that unregisters windows ---- */

/* Waits for a window (a registered range of the page cache) that may be unregistered. Returns true
 * if there is one, after a successful pst_device_sync_begin, or false when the thread must exit.
 * The caller holds the lock. */
static bool closer_await(struct mapped_lane *s)
{
	while (!s->stop) {
		struct timespec until;

		if (!s->due || !atomic_load_explicit(&s->resting, memory_order_relaxed)) {
			pthread_cond_wait(&s->work, &s->lock);
			continue;
		}
		if (pst_device_sync_begin(s->due->dev))
			return true;
		/* Nothing wakes this thread when the last stream stops waiting, so check again
		 * after RECHECK_NS. */
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += RECHECK_NS;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		pthread_cond_timedwait(&s->work, &s->lock, &until);
	}
	return false;
}

static void *closer_main(void *arg)
{
	struct mapped_lane *s = arg;

	pthread_mutex_lock(&s->lock);
	while (closer_await(s)) {
		struct mapped_window *w = window_pop(&s->due);

		s->closing = w;
		pthread_mutex_unlock(&s->lock);
		window_unregister(w);
		pst_device_sync_end(w->dev);
		pthread_mutex_lock(&s->lock);
		window_push(&s->closed, w);
		s->closing = NULL;
		pthread_cond_signal(&s->done);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* Unregisters the first window of the list `due` on this thread. The caller holds the lock,
 * which is released during the driver call. */
static void due_close_one(struct mapped_lane *s, struct mapped_window **due)
{
	struct mapped_window *w = window_pop(due);

	pthread_mutex_unlock(&s->lock);
	pst_device_sync_await(w->dev);
	window_unregister(w);
	pst_device_sync_end(w->dev);
	pthread_mutex_lock(&s->lock);
	window_push(&s->closed, w);
}

static void windows_reclaim(struct mapped_lane *s)
{
	pthread_mutex_lock(&s->lock);
	while (s->closed)
		window_free(s, window_pop(&s->closed));
	pthread_mutex_unlock(&s->lock);
}

/* Unregisters all windows of the list `due` that belong to the closing device `dev`, or all if
 * `dev` is NULL. Windows of other devices stay registered: unregistering waits for their device's
 * work, which may wait for this thread. */
static void due_close_all(struct mapped_lane *s, const struct penstock_device *dev)
{
	struct mapped_window **at = &s->due;

	pthread_mutex_lock(&s->lock);
	while (*at) {
		if (dev && (*at)->dev != dev) {
			at = &(*at)->next;
			continue;
		}
		due_close_one(s, at);
		/* Start again, because the list may have changed while the lock was released. */
		at = &s->due;
	}
	while (s->closing && (!dev || s->closing->dev == dev))
		pthread_cond_wait(&s->done, &s->lock);
	pthread_mutex_unlock(&s->lock);
}

static void closer_stop(struct mapped_lane *s)
{
	if (!s->has_closer)
		return;
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_cond_signal(&s->work);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->closer, NULL);
}

/* ---- windows of a lane ---- */

/* Returns the oldest window (registered range of the page cache) whose storage has closed, or NULL
 * if there is none. */
static struct mapped_window *window_oldest_orphan(const struct mapped_lane *s)
{
	struct mapped_window *found = NULL;

	for (struct mapped_window *w = s->live; w; w = w->next)
		if (!w->st)
			found = w;
	return found;
}

static bool mapped_idle(struct pst_lane *lane, unsigned index)
{
	struct mapped_lane *s = lane->path_state[index];
	struct mapped_window *w = window_oldest_orphan(s);

	if (!s->has_closer && w)
		s->has_closer = !pst_thread_start(&s->closer, closer_main, s);
	/* Without a thread that unregisters, this function unregisters. It handles only one window
	 * in each idle pass of the lane's loop, because a request may need the lane. */
	if (!s->has_closer && w) {
		struct penstock_device *dev = w->dev;

		if (!pst_device_sync_begin(dev))
			/* A stream waits for a request, so the window stays registered. mapped_idle
			 * runs again after the next chunk, which sets lane->trim_due. */
			return false;
		window_drop(s, w);
		pst_device_sync_end(dev);
		return window_oldest_orphan(s) != NULL;
	}
	pthread_mutex_lock(&s->lock);
	for (; w; w = window_oldest_orphan(s)) {
		window_unlist(s, w);
		window_push(&s->due, w);
	}
	atomic_store_explicit(&s->resting, true, memory_order_relaxed);
	pthread_cond_signal(&s->work);
	pthread_mutex_unlock(&s->lock);
	return false;
}

static uint64_t mapped_invalidate(struct pst_lane *lane, unsigned index,
				  struct penstock_storage *st, const struct penstock_device *dev)
{
	struct mapped_lane *s = lane->path_state[index];
	uint64_t keeps = 0;

	if (dev)
		due_close_all(s, dev);
	/* A window stays registered when its storage closes, because it does not need the storage.
	 * Later mapped_idle puts it on the list `due`, from which it is unregistered. Only the
	 * close of its device unregisters it at once. That device may differ from the lane's
	 * device. */
	for (struct mapped_window *w = s->live, *next; w; w = next) {
		next = w->next;
		if (w->dev == dev) {
			window_drop_wait(s, w);
			continue;
		}
		if (st && w->st == st) {
			w->st = NULL;
			lane->trim_due = true;
		}
		keeps |= w->st ? w->st->cache_bit : 0;
	}
	return keeps;
}

static void mapped_lane_close(struct pst_lane *lane, unsigned index)
{
	struct mapped_lane *s = lane->path_state[index];

	closer_stop(s);
	due_close_all(s, NULL);
	while (s->live)
		window_drop_wait(s, s->live);
	pthread_cond_destroy(&s->done);
	pthread_cond_destroy(&s->work);
	pthread_mutex_destroy(&s->lock);
	free(s);
	lane->path_state[index] = NULL;
}

/* Reads the window's pages into the page cache. The time that this takes shows whether the
 * pages were cached. */
static int window_populate(const struct mapped_window *w, struct pst_chunk *chunk)
{
	int code;

	if (chunk->timed)
		chunk->timed_ns = pst_now_ns();
	code = madvise(w->base, w->len, MADV_POPULATE_READ) ? errno : 0;
	if (chunk->timed_ns)
		pst_residency_probe_end(chunk, code ? 0 : (int64_t)w->len);
	return code == EINVAL ? 0 : code;
}

static int window_map(struct mapped_window *w, struct pst_chunk *chunk, struct pst_err *err)
{
	const struct pst_storage_facts *st = &chunk->route->st->facts;
	/* The window does not reach beyond the file's last page, because pages beyond that cannot
	 * be registered. */
	uint64_t page = page_bytes(), end = (chunk->off + chunk->moved + page - 1) / page * page;
	int ret;

	w->off = chunk->off / page * page;
	w->len = end - w->off;
	w->dev = chunk->route->dev;
	w->base = mmap(NULL, w->len, PROT_READ, MAP_SHARED, st->fd, (off_t)w->off);
	if (w->base == MAP_FAILED)
		return pst_fail_errno(err, errno, PENSTOCK_WHY_NOT_MAPPABLE,
				      "mapping %zu bytes: %m", w->len);
	ret = window_populate(w, chunk);
	if (ret) {
		ret = pst_fail_errno(err, ret, PENSTOCK_WHY_SHRANK, "populating the mapping: %m");
		munmap(w->base, w->len);
		return ret;
	}
	ret = w->dev->ops->host_register(w->dev, w->base, w->len, true, err);
	if (ret)
		munmap(w->base, w->len);
	else
		atomic_fetch_add_explicit(&w->dev->page_cache, w->len, memory_order_relaxed);
	return ret;
}

static bool ctime_equal(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* Returns a window (a registered range of the page cache) that holds these bytes and may be used
 * again, or NULL if there is none. */
static struct mapped_window *window_find(const struct mapped_lane *s, const struct pst_route *route,
					 uint64_t off, uint64_t len)
{
	struct mapped_window *w = s->live;

	while (w && (!w->reusable || w->st != route->st || w->dev != route->dev || w->off > off ||
		     off + len > w->off + w->len))
		w = w->next;
	return w;
}

/* Does the same as window_find, but returns only windows that were registered after the file's last
 * change. */
static struct mapped_window *window_find_current(const struct mapped_lane *s,
						 const struct pst_chunk *chunk,
						 const struct stat *stat)
{
	struct mapped_window *w;

	while ((w = window_find(s, chunk->route, chunk->off, chunk->moved)) &&
	       !ctime_equal(&w->ctime, &stat->st_ctim))
		/* The file has changed, although the caller had declared it immutable. */
		w->reusable = false;
	return w;
}

/* Returns whether the lane has a free element of `windows` for a chunk of the storage. */
static bool lane_has_window(struct mapped_lane *s, const struct penstock_storage *st)
{
	unsigned reserved = st->facts.immutable ? 0 : WINDOWS_MAX / RESERVE;

	if (s->free_count <= reserved)
		windows_reclaim(s);
	return s->free_count > reserved;
}

static bool mapped_full(struct pst_lane *lane, unsigned index, const struct pst_route *route,
			uint64_t off, uint64_t len)
{
	struct mapped_lane *s = lane->path_state[index];
	bool immutable = route->st->facts.immutable;
	uint64_t max = route->paths[index].facts.held_max;

	if (!immutable)
		max -= max / RESERVE;
	if (atomic_load_explicit(&route->dev->page_cache, memory_order_relaxed) < max &&
	    (!s || lane_has_window(s, route->st)))
		return false;
	return !s || !immutable || !window_find(s, route, off, len);
}

static void mapped_copied(struct pst_chunk *chunk, int result)
{
	chunk->lane->trim_due = true;
	pst_chunk_done(chunk, result);
}

static struct mapped_window *window_get(struct mapped_lane *s, struct pst_chunk *chunk,
					const struct stat *stat)
{
	struct penstock_storage *st = chunk->route->st;
	struct mapped_window *w = NULL;

	if (st->facts.immutable)
		w = window_find_current(s, chunk, stat);
	if (w)
		return w;
	atomic_store_explicit(&s->resting, false, memory_order_relaxed);
	/* trim_due makes the lane call mapped_idle later. mapped_idle sets `resting` again, even if
	 * this chunk fails. */
	chunk->lane->trim_due = true;
	if (!lane_has_window(s, st)) {
		pst_fail(&chunk->err, PENSTOCK_WHY_HELD,
			 "%u ranges of the page cache are registered already: close their files",
			 WINDOWS_MAX - s->free_count);
		return NULL;
	}
	if (window_map(s->free, chunk, &chunk->err))
		return NULL;
	w = window_pop(&s->free);
	s->free_count--;
	w->st = st;
	w->reusable = st->facts.immutable;
	atomic_store_explicit(&st->cached_by_lanes, true, memory_order_relaxed);
	atomic_fetch_or_explicit(&chunk->lane->caches, st->cache_bit, memory_order_relaxed);
	w->ctime = stat->st_ctim;
	window_push(&s->live, w);
	return w;
}

static int mapped_start(struct pst_chunk *chunk)
{
	struct mapped_window *w;
	struct stat stat;
	uint64_t size;

	/* A request's segments may be on several devices, so this lane may belong to another
	 * device, such as the host. So the path's state for the lane is made here. */
	if (!chunk->lane->path_state[chunk->path] &&
	    mapped_lane_init(chunk->lane, chunk->path, &chunk->err))
		return chunk->err.code;
	if (fstat(chunk->route->st->facts.fd, &stat))
		return pst_fail_errno(&chunk->err, errno, PENSTOCK_WHY_IO_ERROR, "fstat: %m");
	size = (uint64_t)stat.st_size;
	if (chunk->off >= size) {
		chunk->moved = 0;
		pst_chunk_done(chunk, 0);
		return 0;
	}
	chunk->moved = size - chunk->off < chunk->len ? size - chunk->off : chunk->len;
	w = window_get(chunk->lane->path_state[chunk->path], chunk, &stat);
	if (!w)
		return chunk->err.code;
	chunk->engine = "mmap";
	/* If the bytes were not cached, this read has filled the page cache. */
	if (chunk->residency != PST_WARM || chunk->fills_cache) {
		chunk->dram_laid += chunk->moved;
		chunk->cpu_copied +=
			cache_filled_by_dma(&chunk->route->st->facts) ? 0 : chunk->moved;
	}
	return pst_chunk_copy(chunk, w->base + (chunk->off - w->off), chunk->moved, mapped_copied);
}

const struct pst_path_ops pst_path_mapped = {
	.name = "mapped",
	.traits = {.reads = true,
		   .uses_cache = true,
		   .detects_cold = true,
		   .needs_file = true,
		   .class_ = PENSTOCK_NO_CPU_COPY},
	.probe = mapped_probe,
	.start = mapped_start,
	.lane_open = mapped_lane_open,
	.lane_close = mapped_lane_close,
	.idle = mapped_idle,
	.full = mapped_full,
	.invalidate = mapped_invalidate,
};
