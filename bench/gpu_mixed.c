/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the limit of mixed paths by plain calls, without Penstock. One thread registers windows
 * of the page cache with the driver and queues copies from them, like path `mapped`. Other threads
 * read pieces of the file into pinned memory, from where they are copied, like path `bounce`. All
 * threads take the next bytes of one range, in the same pieces as the library. While the driver
 * registers a window, a thread that queues a copy waits. So if `passes` is true, the thread that
 * registers also queues the copies of the other threads. With only one of the two kinds of
 * threads, this file measures each path's own limit in the same way. From the library it uses only
 * the table of driver functions.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"
#include "device/cuda_api.h"
#include "gpu.h"

#define THREADS 16u
#define SLOTS 8u	       /* Number of pieces of pinned memory of each reading thread. */
#define WINDOW_FIRST (8 * MIB) /* Length of the first and of the last windows. */
#define WINDOWS 4096u
#define WAIT_US 20 /* Pause between two queries of an event. */

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Available since Linux 5.14. */
#endif

/* Seconds that a thread has spent: in read or mmap calls, in the driver's calls, and waiting for
 * copies. */
struct spent {
	double read, driver, wait;
};

struct window {
	char *base;
	uint64_t len;
};

struct job {
	struct bench *b;
	struct gpu *g;
	int fd;
	uint64_t len;
	const struct mixed_way *way;
	_Atomic uint64_t next; /* Offset of the first byte that no thread has taken. */
	uint64_t windowed;     /* Number of bytes that workers[0] has copied from windows. */
	struct window *windows;
	unsigned window_count;
	/* If way->window is not 0, workers[0] registers windows. All other workers read pieces. */
	struct worker *workers;
	unsigned count;
};

struct worker {
	struct job *job;
	pthread_t thread;
	struct pst_cu_stream *stream;
	struct pst_cu_event *events[SLOTS];
	char *mem;
	struct {
		uint64_t at, len;
	} pieces[SLOTS]; /* Offset and length in the file of the piece in each slot. */
	/* Number of pieces that this thread has read, and number of these whose copies are
	 * queued. */
	_Atomic uint64_t filled, queued;
	_Atomic bool ended; /* The thread reads no more pieces, and all its copies are done. */
	struct spent spent;
	int ret;
};

static double seconds_since(uint64_t ns)
{
	return (double)(meter_ns() - ns) * 1e-9;
}

/* Queues a copy of `len` bytes at offset `at` of the range. */
static int piece_copy(struct worker *w, const char *from, uint64_t at, uint64_t len)
{
	return (int)w->job->g->api->cuMemcpyHtoDAsync((uintptr_t)w->job->b->gpu + at, from, len,
						      w->stream);
}

/* ---- the thread that registers windows ---- */

/* Takes the next window of the range, and returns its length. If other threads exist, it returns 0
 * when fewer than 4 * WINDOW_FIRST bytes are left, and the other threads read these bytes. Without
 * other threads, this thread takes all bytes. */
static uint64_t window_take(struct job *job, uint64_t *at)
{
	uint64_t n, rest;

	*at = atomic_load(&job->next);
	do {
		rest = job->len - *at;
		if (*at >= job->len || (job->way->threads && rest < 4 * WINDOW_FIRST))
			return 0;
		n = *at < rest / 4 ? *at : rest / 4;
		n = n / WINDOW_FIRST * WINDOW_FIRST;
		n = n < WINDOW_FIRST ? WINDOW_FIRST : n;
		n = n < job->way->window ? n : job->way->window;
		n = n < rest ? n : rest;
	} while (!atomic_compare_exchange_weak(&job->next, at, *at + n));
	return n;
}

static int window_copy(struct worker *w, uint64_t at, struct window *win)
{
	struct job *job = w->job;
	uint64_t began = meter_ns();
	int rc;

	win->base = mmap(NULL, win->len, PROT_READ, MAP_SHARED, job->fd, (off_t)at);
	if (win->base == MAP_FAILED || madvise(win->base, win->len, MADV_POPULATE_READ))
		return -errno;
	w->spent.read += seconds_since(began);
	began = meter_ns();
	rc = (int)job->g->api->cuMemHostRegister(win->base, win->len,
						 PST_CU_HOST_PORTABLE | PST_CU_HOST_READ_ONLY);
	if (!rc)
		rc = piece_copy(w, win->base, at, win->len);
	w->spent.driver += seconds_since(began);
	return gpu_bad("window", rc);
}

/* Queues the copies of all pieces that the worker has read, and an event after each of them. */
static int pieces_queue(struct worker *w)
{
	uint64_t n = atomic_load(&w->queued), filled = atomic_load(&w->filled);
	int rc = 0;

	for (; n < filled && !rc; n++) {
		unsigned slot = n % SLOTS;

		rc = piece_copy(w, w->mem + slot * w->job->way->piece, w->pieces[slot].at,
				w->pieces[slot].len);
		if (!rc)
			rc = (int)w->job->g->api->cuEventRecord(w->events[slot], w->stream);
		atomic_store(&w->queued, n + 1);
	}
	return rc;
}

/* Queues the copies of the pieces that the other threads have read. Sets *more to whether any of
 * these threads still runs. */
static int others_queue(struct job *job, bool *more)
{
	int rc = 0;

	*more = false;
	for (unsigned i = 1; i < job->count; i++) {
		int ret = pieces_queue(&job->workers[i]);

		rc = rc ? rc : ret;
		*more |= !atomic_load(&job->workers[i].ended);
	}
	return gpu_bad("passed pieces", rc);
}

static void *window_main(void *arg)
{
	struct worker *w = arg;
	struct job *job = w->job;
	uint64_t at, n;
	bool more = job->way->passes;

	job->g->api->cuCtxSetCurrent(job->g->ctx);
	while (!w->ret && job->window_count < WINDOWS && (n = window_take(job, &at))) {
		struct window *win = &job->windows[job->window_count++];

		win->len = n;
		w->ret = window_copy(w, at, win);
		job->windowed += n;
		if (!w->ret && job->way->passes)
			w->ret = others_queue(job, &more);
	}
	/* Continues to queue copies for the other threads until they have ended, even if this
	 * thread has failed. Without these copies, the other threads would wait forever. */
	while (more) {
		int ret = others_queue(job, &more);

		w->ret = w->ret ? w->ret : ret;
		usleep(WAIT_US);
	}
	if (!w->ret)
		w->ret = gpu_bad("windows", (int)job->g->api->cuStreamSynchronize(w->stream));
	return NULL;
}

static void windows_close(struct job *job)
{
	for (unsigned i = 0; i < job->window_count; i++) {
		if (!job->windows[i].base || job->windows[i].base == MAP_FAILED)
			continue;
		job->g->api->cuMemHostUnregister(job->windows[i].base);
		munmap(job->windows[i].base, job->windows[i].len);
	}
	free(job->windows);
}

/* ---- the threads that read ---- */

/* Waits until the copy of the worker's piece with index `n` is done. */
static int piece_await(struct worker *w, uint64_t n)
{
	uint64_t began = meter_ns();
	int rc;

	while (atomic_load(&w->queued) <= n)
		usleep(WAIT_US);
	while ((rc = (int)w->job->g->api->cuEventQuery(w->events[n % SLOTS])) == PST_CU_NOT_READY)
		usleep(WAIT_US);
	w->spent.wait += seconds_since(began);
	return rc;
}

static int piece_read(struct worker *w, unsigned slot, uint64_t at, uint64_t len)
{
	char *mem = w->mem + slot * w->job->way->piece;
	uint64_t began = meter_ns();
	int rc = 0;

	if (pread(w->job->fd, mem, len, (off_t)at) != (ssize_t)len)
		return -EIO;
	w->spent.read += seconds_since(began);
	w->pieces[slot].at = at;
	w->pieces[slot].len = len;
	atomic_fetch_add(&w->filled, 1);
	began = meter_ns();
	if (!w->job->way->passes)
		rc = pieces_queue(w);
	w->spent.driver += seconds_since(began);
	return rc;
}

static void *read_main(void *arg)
{
	struct worker *w = arg;
	struct job *job = w->job;
	uint64_t piece = job->way->piece;
	int rc = 0;

	job->g->api->cuCtxSetCurrent(job->g->ctx);
	for (uint64_t n = 0; !rc; n++) {
		uint64_t at = atomic_fetch_add(&job->next, piece);

		if (at >= job->len)
			break;
		if (n >= SLOTS)
			rc = piece_await(w, n - SLOTS);
		if (!rc)
			rc = piece_read(w, n % SLOTS, at,
					job->len - at < piece ? job->len - at : piece);
	}
	if (!rc && atomic_load(&w->filled))
		rc = piece_await(w, atomic_load(&w->filled) - 1);
	atomic_store(&w->ended, true);
	w->ret = gpu_bad("pieces", rc);
	return NULL;
}

/* ---- all threads ---- */

static int worker_open(struct worker *w, struct job *job, char *mem)
{
	const struct pst_cuda *api = job->g->api;
	int rc = (int)api->cuStreamCreateWithPriority(&w->stream, PST_CU_STREAM_NON_BLOCKING, 0);

	w->job = job;
	w->mem = mem;
	for (unsigned i = 0; i < SLOTS && !rc; i++)
		rc = (int)api->cuEventCreate(&w->events[i], PST_CU_EVENT_NO_TIMING);
	return gpu_bad("a thread's stream", rc);
}

static void worker_close(struct worker *w)
{
	const struct pst_cuda *api = gpu_get()->api;

	for (unsigned i = 0; i < SLOTS; i++)
		if (w->events[i])
			api->cuEventDestroy(w->events[i]);
	if (w->stream)
		api->cuStreamDestroy(w->stream);
}

/* Runs all threads. If way->window is not 0, workers[0] registers windows; all others read
 * pieces. */
static int workers_run(struct worker *workers, unsigned count)
{
	unsigned started = 0;
	int ret = 0;

	for (; started < count && !ret; started++) {
		struct worker *w = &workers[started];
		bool windows = !started && w->job->way->window;

		ret = -pthread_create(&w->thread, NULL, windows ? window_main : read_main, w);
	}
	for (unsigned i = 0; i < started - (ret != 0); i++) {
		pthread_join(workers[i].thread, NULL);
		ret = ret ? ret : workers[i].ret;
	}
	return ret;
}

/* Writes into the note how the threads spent their time: milliseconds of the thread that registers,
 * and the mean of the threads that read. */
static void spent_note(const struct job *job, const struct worker *workers, unsigned count,
		       struct sample *s)
{
	unsigned first = job->way->window ? 1 : 0;
	const struct spent *win = &workers[0].spent;
	struct spent sum = {0, 0, 0};
	size_t at = 0;

	for (unsigned i = first; i < count; i++) {
		sum.read += workers[i].spent.read * 1e3 / (count - first);
		sum.driver += workers[i].spent.driver * 1e3 / (count - first);
		sum.wait += workers[i].spent.wait * 1e3 / (count - first);
	}
	if (first)
		at = (size_t)snprintf(s->note, sizeof(s->note),
				      "windows %.2f map %.1f ms driver "
				      "%.1f ",
				      (double)job->windowed / (double)job->len, win->read * 1e3,
				      win->driver * 1e3);
	if (count > first)
		snprintf(s->note + at, sizeof(s->note) - at, "read %.1f driver %.1f wait %.1f",
			 sum.read, sum.driver, sum.wait);
}

int gpu_mixed_row(struct bench *b, const char *group, const char *name, unsigned rep, int fd,
		  uint64_t len, const struct mixed_way *way)
{
	unsigned count = way->threads + (way->window ? 1 : 0);
	struct worker workers[THREADS + 1];
	struct job job = {.b = b,
			  .g = gpu_get(),
			  .fd = fd,
			  .len = len,
			  .way = way,
			  .workers = workers,
			  .count = count};
	char *mem = gpu_pinned_mem(count * SLOTS * way->piece);
	struct sample s = {.bytes = len};
	struct meter m;
	int ret = 0;

	memset(workers, 0, sizeof(workers));
	job.windows = calloc(WINDOWS, sizeof(*job.windows));
	if (!mem || !job.windows || way->threads > THREADS)
		ret = -ENOMEM;
	for (unsigned i = 0; i < count && !ret; i++)
		ret = worker_open(&workers[i], &job, mem + i * SLOTS * way->piece);
	gpu_poison(b, len);
	meter_start(&m);
	if (!ret)
		ret = workers_run(workers, count);
	meter_stop(&m, &s);
	windows_close(&job);
	meter_settle(&m, &s);
	if (!ret)
		spent_note(&job, workers, count, &s);
	for (unsigned i = 0; i < count && i <= THREADS; i++)
		worker_close(&workers[i]);
	if (ret || !gpu_same(b, b->file, 0, len))
		return ret ? ret : -EIO;
	meter_row(b, group, name, rep, &s);
	return 0;
}
