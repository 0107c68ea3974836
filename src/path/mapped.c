/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Path mapped: the device's copy engine reads the page cache where it lies. The
 * file is mapped shared and read-only, the mapping registered with the device, and
 * the copy queued from it; the CPU touches no byte and no page is dirtied. Reads
 * only.
 *
 * One lane does it all: the driver registers serially (57 GB/s on an H200 however
 * many threads ask). MAP_PRIVATE mappings hang the driver: never.
 *
 * Unregistering waits for all that the application gave the device, and holds up every
 * copy, record and allocation of the process meanwhile (tests/standin/README.md). A
 * read must not do that to its caller, who may have a stream wait for the next read. So
 * what was registered stays until its storage closes, up to a share of the machine's
 * memory for a device; from there on the plan's next path is taken. Then a thread beside
 * the lane unregisters, while the lane has nothing to register, and not while a stream
 * waits for a request of ours.
 *
 * Registered bytes are used again only when the caller said that the file does not
 * change: they would be old ones otherwise.
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
#include "core/lane/pump.h"
#include "core/request/request.h"
#include "core/route/route.h"
#include "core/queue/stream.h"
#include "path/paths.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

#define WINDOW (128u << 20)
/* Shorter runs go quicker by the CPU: a checkerboard of 1 MiB took 1.6 times as long by
 * windows (H200). */
#define WINDOW_MIN (8u << 20)
#define WINDOW_FIRST (8u << 20) /* the copy engine waits 0.15 ms for it, and at the end for one */
/* Of one lane: 256 GiB, 64 GiB where nobody says what is cached, and 16 GiB in requests that
 * are short: a rank of a group has its part of a model in such ones. */
#define WINDOWS_MAX 2048
#define LOOK_NS 10000000 /* how often to look whether a stream still waits for us */
#define HELD_SHARE 4	 /* of the machine's memory may be registered for a device */

struct window {
	char *base;
	size_t len;
	uint64_t off; /* of the file */
	struct penstock_device *dev;
	struct penstock_storage *st; /* NULL: it closed */
	bool again;		     /* may be used again, the file has not changed */
	struct timespec ctime;	     /* of the file when it was registered */
	struct window *next;
};

struct state {
	struct window windows[WINDOWS_MAX];
	struct window *free;
	struct window *live; /* newest first */
	/* The thread that closes windows, made when the first is due. */
	pthread_t closer;
	bool has_closer;
	_Atomic bool resting; /* the lane has nothing to register */
	pthread_mutex_t lock; /* of what follows; alone, never during a driver's call */
	pthread_cond_t work, done;
	struct window *due, *closed;
	struct window *closing; /* that it is at */
	bool stop;
};

/* Does DMA alone fill the page cache? Where nobody knows, a CPU counts as having done
 * it; memory that is a file has nothing to be filled from. */
static bool filled_by_dma(const struct pst_storage_facts *st)
{
	return st->listed || st->why_direct.why == PENSTOCK_WHY_NOT_REAL;
}

static uint64_t page_bytes(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t held_max(void)
{
	long pages = sysconf(_SC_PHYS_PAGES);

	return pages > 0 ? (uint64_t)pages * page_bytes() / HELD_SHARE : UINT64_MAX;
}

static int probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
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
	facts->class_ = filled_by_dma(st) ? PENSTOCK_NO_CPU_COPY : PENSTOCK_ANY;
	if (!filled_by_dma(st))
		*err = st->why_direct;
	facts->off_align = facts->mem_align = 1;
	facts->chunk_max = WINDOW;
	facts->chunk_first = WINDOW_FIRST;
	facts->chunk_quick = WINDOW_MIN;
	facts->held = &route->dev->page_cache;
	facts->held_max = held_max();
	facts->lanes = 1;
	facts->quick = st->mapped_quick;
	return 0;
}

static int make_state(struct pst_lane *lane, unsigned index, struct pst_err *err)
{
	struct state *s = calloc(1, sizeof(*s));

	if (!s)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for windows");
	for (unsigned i = WINDOWS_MAX; i-- > 0;) {
		s->windows[i].next = s->free;
		s->free = &s->windows[i];
	}
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->work, NULL);
	pthread_cond_init(&s->done, NULL);
	lane->path_state[index] = s;
	return 0;
}

static int lane_open(struct pst_lane *lane, unsigned index, struct pst_err *err)
{
	return lane->pump->dev->facts.reads_page_cache ? make_state(lane, index, err) : 0;
}

static void push(struct window **list, struct window *w)
{
	w->next = *list;
	*list = w;
}

static struct window *pop(struct window **list)
{
	struct window *w = *list;

	*list = w->next;
	return w;
}

static void unlist(struct state *s, const struct window *w)
{
	struct window **at = &s->live;

	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
}

/* Between pst_device_sync_begin and _end. */
static void close_window(struct window *w)
{
	w->dev->ops->host_unregister(w->dev, w->base, NULL);
	munmap(w->base, w->len);
	atomic_fetch_sub_explicit(&w->dev->page_cache, w->len, memory_order_relaxed);
}

static void drop(struct state *s, struct window *w)
{
	unlist(s, w);
	close_window(w);
	push(&s->free, w);
}

/* Where there is no later. */
static void drop_now(struct state *s, struct window *w)
{
	struct penstock_device *dev = w->dev;

	pst_device_sync_await(dev);
	drop(s, w);
	pst_device_sync_end(dev);
}

/* ---- the thread that closes windows ---- */

/* Until there is a window that may be closed, before pst_device_sync_end, or the thread is to
 * end. Under the lock. */
static bool await_due(struct state *s)
{
	while (!s->stop) {
		struct timespec until;

		if (!s->due || !atomic_load_explicit(&s->resting, memory_order_relaxed)) {
			pthread_cond_wait(&s->work, &s->lock);
			continue;
		}
		if (pst_device_sync_begin(s->due->dev))
			return true;
		clock_gettime(CLOCK_REALTIME, &until); /* nobody says when it may */
		until.tv_nsec += LOOK_NS;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		pthread_cond_timedwait(&s->work, &s->lock, &until);
	}
	return false;
}

static void *closer_main(void *arg)
{
	struct state *s = arg;

	pthread_mutex_lock(&s->lock);
	while (await_due(s)) {
		struct window *w = pop(&s->due);

		s->closing = w;
		pthread_mutex_unlock(&s->lock);
		close_window(w);
		pst_device_sync_end(w->dev);
		pthread_mutex_lock(&s->lock);
		push(&s->closed, w);
		s->closing = NULL;
		pthread_cond_signal(&s->done);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* Closes one that is due here. Under the lock, but for the driver's call. */
static void close_one(struct state *s, struct window **due)
{
	struct window *w = pop(due);

	pthread_mutex_unlock(&s->lock);
	pst_device_sync_await(w->dev);
	close_window(w);
	pst_device_sync_end(w->dev);
	pthread_mutex_lock(&s->lock);
	push(&s->closed, w);
}

static void take_back(struct state *s)
{
	pthread_mutex_lock(&s->lock);
	while (s->closed)
		push(&s->free, pop(&s->closed));
	pthread_mutex_unlock(&s->lock);
}

/* All that are due on a device that closes (NULL: on any). Those of others wait for what
 * keeps theirs busy, which may wait for whoever closes this one. */
static void close_due(struct state *s, const struct penstock_device *dev)
{
	struct window **at = &s->due;

	pthread_mutex_lock(&s->lock);
	while (*at) {
		if (dev && (*at)->dev != dev) {
			at = &(*at)->next;
			continue;
		}
		close_one(s, at);
		at = &s->due; /* the list may be another meanwhile */
	}
	while (s->closing && (!dev || s->closing->dev == dev))
		pthread_cond_wait(&s->done, &s->lock);
	pthread_mutex_unlock(&s->lock);
}

static void stop_closer(struct state *s)
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

/* The oldest window whose storage closed. */
static struct window *oldest(const struct state *s)
{
	struct window *found = NULL;

	for (struct window *w = s->live; w; w = w->next)
		if (!w->st)
			found = w;
	return found;
}

static bool idle(struct pst_lane *lane, unsigned index)
{
	struct state *s = lane->path_state[index];
	struct window *w = oldest(s);

	if (!s->has_closer && w)
		s->has_closer = !pst_thread_start(&s->closer, closer_main, s);
	if (!s->has_closer && w) { /* one at a time: this lane may be wanted */
		struct penstock_device *dev = w->dev;

		if (!pst_device_sync_begin(dev))
			return false; /* with the next chunk */
		drop(s, w);
		pst_device_sync_end(dev);
		return oldest(s) != NULL;
	}
	pthread_mutex_lock(&s->lock);
	for (; w; w = oldest(s)) {
		unlist(s, w);
		push(&s->due, w);
	}
	atomic_store_explicit(&s->resting, true, memory_order_relaxed);
	pthread_cond_signal(&s->work);
	pthread_mutex_unlock(&s->lock);
	return false;
}

static uint64_t forget(struct pst_lane *lane, unsigned index, struct penstock_storage *st,
		       const struct penstock_device *dev)
{
	struct state *s = lane->path_state[index];
	uint64_t keeps = 0;

	if (dev)
		close_due(s, dev);
	/* A window needs nothing of its storage: it goes with the others, in time. Its
	 * device unregisters it, and this lane may be another's. */
	for (struct window *w = s->live, *next; w; w = next) {
		next = w->next;
		if (w->dev == dev) {
			drop_now(s, w);
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

static void lane_close(struct pst_lane *lane, unsigned index)
{
	struct state *s = lane->path_state[index];

	stop_closer(s);
	close_due(s, NULL);
	while (s->live)
		drop_now(s, s->live);
	pthread_cond_destroy(&s->done);
	pthread_cond_destroy(&s->work);
	pthread_mutex_destroy(&s->lock);
	free(s);
	lane->path_state[index] = NULL;
}

/* How long it takes tells whether it was there. */
static int read_in(const struct window *w, struct pst_chunk *chunk)
{
	int code;

	if (chunk->timed)
		chunk->timed_ns = pst_now_ns();
	code = madvise(w->base, w->len, MADV_POPULATE_READ) ? errno : 0;
	if (chunk->timed_ns)
		pst_residency_probe_end(chunk, code ? 0 : (int64_t)w->len);
	return code == EINVAL ? 0 : code;
}

static int map(struct window *w, struct pst_chunk *chunk, struct pst_err *err)
{
	const struct pst_storage_facts *st = &chunk->route->st->facts;
	/* Pages behind the file's last cannot be had. */
	uint64_t page = page_bytes(), end = (chunk->off + chunk->moved + page - 1) / page * page;
	int ret;

	w->off = chunk->off / page * page;
	w->len = end - w->off;
	w->dev = chunk->route->dev;
	w->base = mmap(NULL, w->len, PROT_READ, MAP_SHARED, st->fd, (off_t)w->off);
	if (w->base == MAP_FAILED)
		return pst_fail_errno(err, errno, PENSTOCK_WHY_NOT_MAPPABLE,
				      "mapping %zu bytes: %m", w->len);
	ret = read_in(w, chunk);
	if (ret) {
		ret = pst_fail_errno(err, ret, PENSTOCK_WHY_SHRANK, "reading the mapping in: %m");
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

static bool same_time(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* A window that holds the chunk and may be used again. */
static struct window *find_again(const struct state *s, const struct pst_chunk *chunk,
				 const struct stat *stat)
{
	for (struct window *w = s->live; w; w = w->next) {
		if (!w->again || w->st != chunk->route->st || w->dev != chunk->route->dev)
			continue;
		if (!same_time(&w->ctime, &stat->st_ctim)) {
			w->again = false; /* the file changed under the promise */
			continue;
		}
		if (w->off <= chunk->off && chunk->off + chunk->moved <= w->off + w->len)
			return w;
	}
	return NULL;
}

static void copied(struct pst_chunk *chunk, int result)
{
	chunk->lane->trim_due = true;
	pst_chunk_done(chunk, result);
}

static struct window *take_window(struct state *s, struct pst_chunk *chunk, const struct stat *stat)
{
	struct penstock_storage *st = chunk->route->st;
	struct window *w = st->facts.immutable ? find_again(s, chunk, stat) : NULL;

	if (w)
		return w;
	atomic_store_explicit(&s->resting, false, memory_order_relaxed);
	chunk->lane->trim_due = true; /* it rests again, also where this comes to nothing */
	if (!s->free)
		take_back(s);
	w = s->free;
	if (!w) {
		pst_fail(&chunk->err, PENSTOCK_WHY_HELD,
			 "%u stretches of the page cache are registered, until their files "
			 "are closed",
			 WINDOWS_MAX);
		return NULL;
	}
	if (map(w, chunk, &chunk->err))
		return NULL;
	s->free = w->next;
	w->next = s->live;
	w->st = st;
	w->again = st->facts.immutable;
	atomic_store_explicit(&st->cached_by_lanes, true, memory_order_relaxed);
	atomic_fetch_or_explicit(&chunk->lane->caches, st->cache_bit, memory_order_relaxed);
	w->ctime = stat->st_ctim;
	s->live = w;
	return w;
}

static int start(struct pst_chunk *chunk)
{
	struct window *w;
	struct stat stat;
	uint64_t size;

	/* A lane of the host, say, that has a part of a GPU's to do. */
	if (!chunk->lane->path_state[chunk->path] &&
	    make_state(chunk->lane, chunk->path, &chunk->err))
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
	w = take_window(chunk->lane->path_state[chunk->path], chunk, &stat);
	if (!w)
		return chunk->err.code;
	chunk->engine = "mmap";
	if (chunk->residency != PST_WARM) { /* the page cache was filled for it */
		chunk->dram_laid += chunk->moved;
		chunk->cpu_copied += filled_by_dma(&chunk->route->st->facts) ? 0 : chunk->moved;
	}
	return pst_chunk_copy(chunk, w->base + (chunk->off - w->off), chunk->moved, copied);
}

const struct pst_path_ops pst_path_mapped = {
	.name = "mapped",
	.traits = {.reads = true,
		   .uses_cache = true,
		   .tells = true,
		   .class_ = PENSTOCK_NO_CPU_COPY},
	.probe = probe,
	.start = start,
	.lane_open = lane_open,
	.lane_close = lane_close,
	.idle = idle,
	.invalidate = forget,
};
