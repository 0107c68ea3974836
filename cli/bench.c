/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures one run of `penstock bench`. A run transfers blocks of one size between a storage and a
 * device for some seconds, with a constant number of requests in flight. The result has bytes,
 * requests, latency and CPU time. Called by bench_main.c. With --cold, a run must fail if bytes of
 * the file may have come from the page cache.
 */
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "page_cache.h"
#include "progress.h"
#include "stop.h"

/* Longest time in ns until the run notices a signal, and between two updates of the progress
 * line. */
#define WAIT_NS 200000000

struct bench_state {
	const struct bench_args *a;
	struct penstock_storage *st;
	struct penstock_device *dev;
	struct penstock_queue *q;
	char *mem;
	uint64_t length, next, random, step;
	/* whether a run with --cold uses a path that reads the file through the page cache */
	bool by_cache;
	bool once; /* whether the run ends when it has transferred each block once */
	double *begun; /* start time of the request in each slot (request in flight) */
	/* ids[i] is the ID of the request in slot i, or 0. The request has the address of ids[i] as
	 * its `user` value, which identifies the slot when the request completes. */
	uint64_t *ids;
	unsigned slots_busy;
	struct bench_result *out;
	double begun_s, until, shown;
	bool failed;
	/* whether to print the progress line. If false, the loop makes no extra system calls for
	 * it. */
	bool shows;
};

/* ---- latency ---- */

/* Number of buckets of the latency histogram between a power of two and the next. With 16, a bucket
 * is at most 6 % wide. */
#define SUB 16

static unsigned bucket_of(double us)
{
	uint64_t ns = (uint64_t)(us * 1e3);
	unsigned log;

	if (ns < SUB)
		return (unsigned)ns;
	log = 63 - (unsigned)__builtin_clzll(ns);
	return (log - 3) * SUB + (unsigned)((ns >> (log - 4)) & (SUB - 1));
}

static double bucket_us(unsigned bucket)
{
	if (bucket < SUB)
		return bucket / 1e3;
	return (double)((uint64_t)(SUB + bucket % SUB) << (bucket / SUB - 1)) / 1e3;
}

double bench_percentile(const struct bench_result *r, double share)
{
	uint64_t sum = 0;

	for (unsigned b = 0; b < BENCH_BUCKETS; b++) {
		sum += r->latency[b];
		if (sum && (double)sum >= share * (double)r->ops)
			return bucket_us(b);
	}
	return 0;
}

/* ---- page cache ---- */

/* Maximum number of attempts to bring all pages of the file into the page cache, or to drop all of
 * them. On a busy machine, another process can change the cache after an attempt. */
#define CACHE_TRIES 4

/* Drops the file's pages from the page cache. Returns whether the pages are proven to be gone. */
static bool pages_drop(int fd)
{
	char byte;

	/* overlayfs reports 0 cached pages for every file. So this code trusts cachestat(2) only
	 * if it reports the page of the byte that was just read. */
	if (pread(fd, &byte, 1, 0) != 1 || cached_pages(fd, 0) <= 0)
		return false;
	fdatasync(fd);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	return cached_pages(fd, 0) == 0;
}

/* Reads the file into the page cache. Returns true if the whole file is then cached, or if the
 * kernel cannot report whether it is cached. */
static bool pages_read(int fd, uint64_t length, char *buf, size_t step)
{
	int64_t pages;

	for (uint64_t off = 0; off < length; off += step)
		if (pread(fd, buf, step, (off_t)off) <= 0)
			break;
	pages = cached_pages(fd, length);
	return pages < 0 || (uint64_t)pages >= length / 4096;
}

int bench_make_cold(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool done = false;

	if (fd < 0)
		return -errno;
	for (unsigned i = 0; i < CACHE_TRIES && !done; i++)
		done = pages_drop(fd);
	close(fd);
	return done ? 0 : -EBUSY;
}

/* Returns whether the path reads from the page cache. */
static bool path_uses_cache(const char *path)
{
	return !strcmp(path, "bounce") || !strcmp(path, "mapped");
}

/*
 * Returns whether all bytes of a finished cold run came from the drive. On paths that bypass the
 * page cache, all bytes come from the drive. On other paths, each block must have been read only
 * once, and no other process may have cached it before. The run then leaves at least as many pages
 * in the page cache as it has read, which this function checks.
 */
static bool run_was_cold(const struct bench_state *r)
{
	const struct tally *t = &r->out->tally;
	uint64_t bytes = 0, page = (uint64_t)sysconf(_SC_PAGESIZE);
	int64_t pages;
	int fd;

	for (unsigned i = 0; i < t->path_count; i++)
		bytes += path_uses_cache(t->names[i]) ? t->path_bytes[i] : 0;
	if (!bytes)
		return true;
	if (!r->by_cache)
		return false;
	fd = open(storage_path(r->a->storage), O_RDONLY | O_CLOEXEC);
	pages = fd < 0 ? -1 : cached_pages(fd, 0);
	if (fd >= 0)
		close(fd);
	return pages >= 0 && (uint64_t)pages >= bytes / page;
}

int bench_make_warm(const char *path, uint64_t length)
{
	const size_t step = 4u << 20;
	char *buf = malloc(step);
	int fd = open(path, O_RDONLY | O_CLOEXEC), ret = -EBUSY;

	if (fd < 0 || !buf)
		ret = fd < 0 ? -errno : -ENOMEM;
	for (unsigned i = 0; fd >= 0 && buf && i < CACHE_TRIES && ret; i++)
		ret = pages_read(fd, length, buf, step) ? 0 : -EBUSY;
	free(buf);
	if (fd >= 0)
		close(fd);
	return ret;
}

/* ---- the run ---- */

static double cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* Returns the offset of the next request. */
static uint64_t next_offset(struct bench_state *r)
{
	uint64_t blocks = r->length / r->a->block, n;

	if (!r->a->random) {
		n = r->next++;
		/* With the increment r->step, the run visits every block once, and successive
		 * blocks are far apart. */
	} else if (r->by_cache) {
		r->next++;
		n = r->random = (r->random + r->step) % blocks;
	} else { /* xorshift64* */
		r->random ^= r->random >> 12;
		r->random ^= r->random << 25;
		r->random ^= r->random >> 27;
		n = r->random * 0x2545f4914f6cdd1du >> 11;
	}
	return n % blocks * r->a->block;
}

/* Returns whether to submit another request. The run ends when its time is over. It may also end
 * when every block has been transferred once: a second cold read through the page cache would find
 * the block there, and a block of an object is written once. */
static bool run_continues(const struct bench_state *r)
{
	if (r->failed || stop_signal || seconds() >= r->until)
		return false;
	return !(r->once && r->next >= r->length / r->a->block);
}

/* Returns whether `why` means that no path could meet the class that --require names. */
static bool class_is_refused(const struct bench_args *a, enum penstock_why why)
{
	return why == PENSTOCK_WHY_REQUIRE ||
	       (a->require > PENSTOCK_ANY &&
		(why == PENSTOCK_WHY_UNALIGNED || why == PENSTOCK_WHY_CANARY ||
		 why == PENSTOCK_WHY_NO_ROUTE));
}

static void slot_submit(struct bench_state *r, unsigned slot)
{
	struct penstock_seg seg = {.buf = r->mem + (uint64_t)slot * r->a->block,
				   .dev = r->dev,
				   .off = next_offset(r),
				   .row_len = r->a->block,
				   .rows = 1};
	struct penstock_req req = PENSTOCK_REQ_INIT;

	req.storage = r->st;
	req.op = r->a->write ? PENSTOCK_WRITE : PENSTOCK_READ;
	req.segs = &seg;
	req.seg_count = 1;
	req.require = r->a->require;
	req.effort = r->a->effort;
	req.path = r->a->path;
	/* if the file shrinks, a short read must fail */
	req.flags = PENSTOCK_R_EXACT;
	req.user = &r->ids[slot];
	r->begun[slot] = seconds();
	if (penstock_submit(r->q, &req, 1, &r->ids[slot]) == 1) {
		r->slots_busy++;
		return;
	}
	if (!r->failed)
		snprintf(r->out->error, sizeof(r->out->error), "%s%s", penstock_errmsg(),
			 advice_for(penstock_errwhy(), penstock_errmsg()));
	r->out->refused = class_is_refused(r->a, penstock_errwhy());
	r->failed = true;
}

static void slot_done(struct bench_state *r, const struct penstock_done *done)
{
	unsigned slot = (unsigned)((uint64_t *)done->user - r->ids);
	unsigned b = bucket_of((seconds() - r->begun[slot]) * 1e6);

	r->slots_busy--;
	r->ids[slot] = 0;
	if (done->result < 0) {
		if (!r->failed && !stop_signal) {
			snprintf(r->out->error, sizeof(r->out->error), "%s %s: %s%s",
				 r->a->write ? "writing" : "reading", r->a->storage,
				 done->report->text,
				 advice_for(done->report->why, done->report->text));
			r->out->refused = class_is_refused(r->a, done->report->why);
		}
		r->failed |= !stop_signal;
		return;
	}
	tally_add(&r->out->tally, done->report);
	r->out->ops++;
	r->out->latency[b < BENCH_BUCKETS ? b : BENCH_BUCKETS - 1]++;
	if (run_continues(r))
		slot_submit(r, slot);
}

/* Shows how much of the run is done. A run with `once` ends when its time is over or when it has
 * transferred all blocks, whichever is earlier. */
static void run_progress(struct bench_state *r)
{
	double took = seconds() - r->begun_s, done = took / r->a->runtime, moved;
	char rate[32];

	if (!r->shows || !progress_due(false, false, &r->shown))
		return;
	moved = (double)r->next * (double)r->a->block / (double)r->length;
	if (r->once && moved > done)
		done = moved;
	progress(false, "round %u of %u: %3.0f %%  %s/s", r->a->round, r->a->rounds,
		 100 * (done < 1 ? done : 1),
		 human((double)r->out->tally.bytes / (took + 1e-9), rate, sizeof(rate)));
}

/* Commits the storage that the run has written. */
static void run_commit(struct bench_state *r)
{
	struct penstock_end_opts opts = PENSTOCK_END_OPTS_INIT;

	opts.durable = 1;
	opts.stop = &stop_signal;
	if (!penstock_commit_with(r->st, &opts)) {
		parts_get(&r->out->parts, r->st, r->dev);
		return;
	}
	r->failed = true;
	if (stop_signal && penstock_errwhy() == PENSTOCK_WHY_CANCELLED)
		r->out->stopped = stop_text(r->out->error, sizeof(r->out->error));
	else
		snprintf(r->out->error, sizeof(r->out->error), "%s%s", penstock_errmsg(),
			 advice_for(penstock_errwhy(), penstock_errmsg()));
}

/* Cancels all requests. A request to a server may otherwise take minutes to end. */
static void slots_cancel(struct bench_state *r)
{
	for (unsigned i = 0; i < r->a->depth; i++)
		if (r->ids[i])
			penstock_cancel(r->q, r->ids[i]);
}

static void run_requests(struct bench_state *r)
{
	struct penstock_done *done = calloc(r->a->depth, sizeof(*done));
	double cpu = cpu_seconds(), begun = seconds();
	bool cancelled = false;

	r->shows = !r->a->quiet && isatty(STDERR_FILENO);
	r->begun_s = begun;
	r->until = begun + r->a->runtime;
	for (unsigned i = 0; i < r->a->depth && (!i || run_continues(r)); i++)
		slot_submit(r, i);
	while (r->slots_busy) {
		int n = penstock_wait(r->q, done, 1, r->a->depth, WAIT_NS);

		for (int i = 0; i < n; i++)
			slot_done(r, &done[i]);
		if (stop_signal && !cancelled) {
			cancelled = true;
			slots_cancel(r);
		}
		run_progress(r);
	}
	if (stop_signal && !r->failed) {
		r->out->stopped = stop_text(r->out->error, sizeof(r->out->error));
		r->failed = true;
	}
	if (r->a->write && !r->failed)
		run_commit(r);
	r->out->seconds = seconds() - begun;
	r->out->cpu_seconds = cpu_seconds() - cpu;
	if (r->a->cold && !r->failed && !run_was_cold(r))
		snprintf(r->out->error, sizeof(r->out->error),
			 "%s: some bytes came from the page cache, perhaps because another "
			 "process reads the file, so no figure is valid: leave out --cold",
			 r->a->storage);
	free(done);
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
	while (b) {
		uint64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

/* Finds out whether the path of a cold run reads uncached bytes through the page cache, and sets
 * r->by_cache. If so, also sets r->step, with which the run visits every block once. Returns 0, or
 * -1 with the library's message. */
static int cold_path_find(struct bench_state *r)
{
	struct penstock_explanation e = {.size = sizeof(e)};
	struct penstock_seg seg = {.dev = r->dev, .row_len = r->a->block};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	const char *path = r->a->path;
	uint64_t blocks = r->length / r->a->block;
	char inner[32] = "";

	req.storage = r->st;
	req.segs = &seg;
	req.seg_count = 1;
	req.require = r->a->require;
	req.effort = r->a->effort;
	if (penstock_explain(&req, &e))
		return -1;
	/* The path "fault:PATH" injects failures into PATH, so PATH decides whether the page cache
	 * is used. */
	if (path && !strncmp(path, "fault", 5)) {
		path = path[5] == ':' ? inner : NULL;
		if (path)
			snprintf(inner, sizeof(inner), "%.*s", (int)strcspn(r->a->path + 6, "?"),
				 r->a->path + 6);
	}
	if (!path && e.cold >= 0)
		path = e.paths[e.cold].name;
	r->by_cache = path && path_uses_cache(path);
	/* With a step that has no common divisor with the number of blocks, the run visits
	 * every block once. With a step near the golden ratio of the number of blocks,
	 * successive blocks are far apart. */
	r->step = (uint64_t)((double)blocks * 0.6180339887498949);
	while (blocks > 1 && gcd(r->step, blocks) != 1)
		r->step++;
	r->random = r->by_cache ? 0 : r->random;
	return 0;
}

/* Opens the storage of the run and finds the number of bytes to transfer. The open of an object to
 * write gets no length, because the time of the run may end before --size bytes are written. */
static int run_open_storage(struct bench_state *r)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	bool upload = r->a->write && storage_is_object(r->a->storage);
	int64_t length;
	int ret;

	if (upload) {
		opts.flags = r->a->overwrite ? PENSTOCK_O_REPLACE : PENSTOCK_O_CREATE;
	} else if (r->a->write) {
		opts.flags = PENSTOCK_O_CREATE;
		opts.length = r->a->size ? r->a->size : 1u << 30;
	}
	ret = penstock_open(r->a->storage, &opts, &r->st);
	if (ret == -EEXIST)
		snprintf(r->out->error, sizeof(r->out->error),
			 "%s exists: add --overwrite to replace it", r->a->storage);
	if (ret)
		return -1;
	if (upload)
		/* Not before the open, which may wait for the server for minutes. The open of an
		 * object stores nothing, so a signal may end the process meanwhile. */
		catch_signals();
	length = upload ? INT64_MAX : penstock_storage_length(r->st);
	r->length = length < 0 ? 0 : (uint64_t)length;
	if (r->a->size && r->a->size < r->length)
		r->length = r->a->size;
	r->once = upload;
	return 0;
}

static int run_open(struct bench_state *r)
{
	struct penstock_device_opts dopts = PENSTOCK_DEVICE_OPTS_INIT;
	struct penstock_queue_opts qopts = PENSTOCK_QUEUE_OPTS_INIT;
	void *mem;

	dopts.engine = r->a->engine;
	dopts.lanes = r->a->lanes;
	if (run_open_storage(r))
		return -1;
	qopts.requests_max = r->a->depth;
	qopts.segs_max = 1;
	if (penstock_device_open(r->a->device, &dopts, &r->dev) < 0) {
		r->out->refused = code_without_device(r->a->require) == EXIT_REFUSED;
		return -1;
	}
	r->out->on_host = !strcmp(penstock_device_name(r->dev), "host");
	qopts.own_lane = r->a->own_lane ? r->dev : NULL;
	if (penstock_alloc(r->dev, (size_t)(r->a->block * r->a->depth), &mem) ||
	    penstock_queue_open(&qopts, &r->q))
		return -1;
	r->mem = mem;
	if (r->a->cold && r->length >= r->a->block && cold_path_find(r))
		return -1;
	r->once |= r->a->cold && (!r->a->random || r->by_cache);
	return penstock_prepare(r->st, r->dev, r->a->write ? PENSTOCK_WRITE : PENSTOCK_READ);
}

int bench_run(const struct bench_args *a, struct bench_result *out)
{
	struct bench_state r = {.a = a, .out = out, .random = 88172645463325252u};
	int ret;

	memset(out, 0, sizeof(*out));
	r.begun = calloc(a->depth, sizeof(*r.begun));
	r.ids = calloc(a->depth, sizeof(*r.ids));
	ret = r.begun && r.ids ? run_open(&r) : -1;
	if (ret && !out->error[0])
		snprintf(out->error, sizeof(out->error), "%s%s", penstock_errmsg(),
			 advice_for(penstock_errwhy(), penstock_errmsg()));
	else if (!ret && r.length < a->block)
		snprintf(out->error, sizeof(out->error),
			 "%s is shorter than a block of %llu bytes: give a smaller --block",
			 a->storage, (unsigned long long)a->block);
	else if (!ret)
		run_requests(&r);
	out->length = r.length;
	penstock_queue_close(r.q);
	if (a->write && out->error[0])
		abort_storage(r.st); /* removes the file, but only if this run created it */
	if (r.mem)
		penstock_free(r.dev, r.mem);
	penstock_close(r.st);
	penstock_device_close(r.dev);
	free(r.begun);
	free(r.ids);
	if (!out->error[0])
		return 0;
	return out->stopped ? out->stopped : out->refused ? EXIT_REFUSED : EXIT_FAILED;
}
