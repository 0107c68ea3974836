/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures one side: a single read of the whole file, reads of 1 MiB by several threads, reads
 * of 4 KiB at random offsets by several threads, and batches. Before each measurement the file
 * is either completely cached or not cached at all. After the measurement the bytes are
 * compared. main.c calls the sections.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

#define THREADS 16u
#define TIMES_MAX 400000u
#define SMALL 4096u
#define BULK_PART (1 * MIB)
#define THREADED_LEN (2 * GIB)

static const char *cache_state(const struct shim_run *r)
{
	return r->cold ? "cold" : "warm";
}

static void work_row(struct shim_run *r, const char *what, unsigned rep, struct sample *s)
{
	char group[64];

	snprintf(group, sizeof(group), "%s %s", cache_state(r), what);
	meter_row(&r->b, group, r->side.name, rep, s);
}

static void bytes_check(struct shim_run *r, uint64_t buf_off, uint64_t off, size_t len)
{
	if (!shim_gpu_same(r, buf_off, off, len))
		bench_bad(&r->b, "%s: the bytes at %llu differ from the file", r->side.name,
			  (unsigned long long)off);
}

/* ---- one read ---- */

static int section_bulk(struct shim_run *r)
{
	for (unsigned rep = 0; rep < r->b.reps; rep++) {
		struct sample s = {.bytes = r->b.len};
		struct meter m;
		int64_t got;
		int ret = shim_cache(r);

		if (ret)
			return ret;
		meter_start(&m);
		got = r->side.ops->read(&r->side, r->side.gpu, r->b.len, 0, 0);
		meter_stop(&m, &s);
		meter_settle(&m, &s);
		if (got != (int64_t)r->b.len) {
			bench_bad(&r->b, "%s: a read returned %lld", r->side.name, (long long)got);
			return -EIO;
		}
		for (uint64_t at = 0; at < r->b.len; at += r->b.len / 16)
			bytes_check(r, at, at, SMALL);
		work_row(r, "file in one read", r->b.rep + rep, &s);
	}
	return 0;
}

/* ---- reads by threads ---- */

struct worker {
	struct shim_run *r;
	pthread_t thread;
	pthread_barrier_t *start;
	unsigned index, threads, count;
	size_t len;
	bool random;
	uint64_t seed, until_ns;
	uint32_t *ns; /* Duration of each call in nanoseconds. */
	struct piece last;
	int64_t error;
};

static uint64_t next_random(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	return *seed ^= *seed << 17;
}

static void worker_read(struct worker *w, uint64_t off, uint64_t buf_off)
{
	struct side *s = &w->r->side;
	uint64_t began = meter_ns(), took;
	int64_t got = s->ops->read(s, s->gpu, w->len, off, buf_off);

	took = meter_ns() - began;
	if (w->count < TIMES_MAX)
		w->ns[w->count++] = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
	if (got != (int64_t)w->len)
		w->error = got < 0 ? got : -EIO;
	w->last = (struct piece){off, buf_off, w->len};
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	uint64_t room = THREADED_LEN < w->r->b.len ? THREADED_LEN : w->r->b.len;

	shim_gpu_thread();
	pthread_barrier_wait(w->start);
	if (w->random) {
		uint64_t until = meter_ns() + w->until_ns;

		while (!w->error && w->count < TIMES_MAX && meter_ns() < until)
			worker_read(w, next_random(&w->seed) % (w->r->b.len / w->len) * w->len,
				    w->index * (uint64_t)MIB);
	} else {
		for (uint64_t at = w->index * w->len; !w->error && at + w->len <= room;
		     at += w->threads * w->len)
			worker_read(w, at, at);
	}
	return NULL;
}

static int threads_sum(struct shim_run *r, struct worker *w, unsigned threads, struct sample *s)
{
	uint32_t *all = malloc((size_t)threads * TIMES_MAX * sizeof(*all));
	int ret = all ? 0 : -ENOMEM;
	size_t count = 0;

	for (unsigned i = 0; !ret && i < threads; i++) {
		memcpy(all + count, w[i].ns, w[i].count * sizeof(*all));
		count += w[i].count;
		s->bytes += (uint64_t)w[i].count * w[i].len;
		if (w[i].error) {
			bench_bad(&r->b, "%s: a read returned %lld", r->side.name,
				  (long long)w[i].error);
			ret = -EIO;
		} else if (w[i].count) {
			bytes_check(r, w[i].last.buf_off, w[i].last.off, w[i].last.len);
		}
	}
	s->ops = count;
	if (!ret && count) {
		qsort(all, count, sizeof(*all), meter_compare_u32);
		s->p50_us = all[count / 2] * 1e-3;
		s->p99_us = all[count - 1 - count / 100] * 1e-3;
	}
	free(all);
	return ret;
}

/* Measures reads by `threads` threads at the same time. `first` is true if this process has not
 * used this number of threads before. The measurement then includes the time in which the library
 * creates the objects that it keeps for each thread. */
static int threads_measure(struct shim_run *r, unsigned threads, size_t len, bool random,
			   bool first, unsigned rep)
{
	static struct worker w[THREADS];
	pthread_barrier_t start;
	struct sample s = {.bytes = 0};
	struct meter m;
	char what[48];
	int ret = shim_cache(r);

	if (ret)
		return ret;
	pthread_barrier_init(&start, NULL, threads + 1);
	for (unsigned i = 0; i < threads; i++) {
		w[i] = (struct worker){.r = r,
				       .start = &start,
				       .index = i,
				       .threads = threads,
				       .len = len,
				       .random = random,
				       .seed = 88172645463325252u + i * 7919 + r->b.rep + rep,
				       .until_ns = (uint64_t)(r->b.seconds * 1e9),
				       .ns = malloc(TIMES_MAX * sizeof(uint32_t))};
		if (!w[i].ns || pthread_create(&w[i].thread, NULL, worker_main, &w[i]))
			/* Ends the process, because the other threads would wait at the barrier for
			 * this thread forever. */
			exit(1);
	}
	meter_start(&m);
	pthread_barrier_wait(&start);
	for (unsigned i = 0; i < threads; i++)
		pthread_join(w[i].thread, NULL);
	meter_stop(&m, &s);
	meter_settle(&m, &s);
	ret = threads_sum(r, w, threads, &s);
	for (unsigned i = 0; i < threads; i++)
		free(w[i].ns);
	pthread_barrier_destroy(&start);
	snprintf(what, sizeof(what), "%s x %u%s", random ? "4 KiB random" : "1 MiB", threads,
		 first ? ", first calls" : "");
	if (!ret)
		work_row(r, what, r->b.rep + rep, &s);
	return ret;
}

static int threads_sweep(struct shim_run *r, size_t len, bool random)
{
	static const unsigned counts[] = {1, 4, 16};
	int ret = 0;

	for (unsigned rep = 0; rep < r->b.reps; rep++)
		for (unsigned i = 0; i < 3 && !ret; i++) {
			if (!rep && !random && !r->cold)
				ret = threads_measure(r, counts[i], len, random, true, rep);
			if (!ret)
				ret = threads_measure(r, counts[i], len, random, false, rep);
		}
	return ret;
}

static int section_mib(struct shim_run *r)
{
	return threads_sweep(r, BULK_PART, false);
}

static int section_small(struct shim_run *r)
{
	return threads_sweep(r, SMALL, true);
}

/* ---- batches ---- */

static int batches_measure(struct shim_run *r, size_t len, unsigned rounds, unsigned rep)
{
	struct sample s = {.bytes = (uint64_t)rounds * BATCH * len, .ops = rounds * BATCH};
	uint32_t *ns = calloc(rounds, sizeof(*ns));
	struct piece pieces[BATCH];
	uint64_t seed = 1234567 + rep;
	struct meter m;
	char what[48];
	int ret = ns ? shim_cache(r) : -ENOMEM;

	meter_start(&m);
	for (unsigned n = 0; n < rounds && !ret; n++) {
		uint64_t began;

		for (unsigned i = 0; i < BATCH; i++)
			pieces[i] = (struct piece){next_random(&seed) % (r->b.len / len) * len,
						   (uint64_t)i * len, len};
		began = meter_ns();
		ret = r->side.ops->batch(&r->side, pieces, BATCH);
		ns[n] = (uint32_t)(meter_ns() - began);
	}
	meter_stop(&m, &s);
	meter_settle(&m, &s);
	if (!ret) {
		for (unsigned i = 0; i < BATCH; i += BATCH / 8)
			bytes_check(r, pieces[i].buf_off, pieces[i].off, pieces[i].len);
		qsort(ns, rounds, sizeof(*ns), meter_compare_u32);
		s.p50_us = ns[rounds / 2] * 1e-3;
		s.p99_us = ns[rounds - 1 - rounds / 100] * 1e-3;
		snprintf(what, sizeof(what), "batch of %u x %zu KiB", BATCH, len >> 10);
		work_row(r, what, r->b.rep + rep, &s);
	}
	free(ns);
	return ret;
}

static int section_batch_small(struct shim_run *r)
{
	int ret = 0;

	for (unsigned rep = 0; rep < r->b.reps && !ret; rep++)
		ret = batches_measure(r, SMALL, r->cold ? 50 : 200, rep);
	return ret;
}

static int section_batch_mib(struct shim_run *r)
{
	int ret = 0;

	for (unsigned rep = 0; rep < r->b.reps && !ret; rep++)
		ret = batches_measure(r, 1 * MIB, r->cold ? 4 : 16, rep);
	return ret;
}

const struct shim_section shim_sections[] = {
	{"bulk", "the whole file in one read", section_bulk},
	{"mib", "1 MiB reads in order, by 1, 4 and 16 threads", section_mib},
	{"small", "4 KiB reads at random offsets, by 1, 4 and 16 threads", section_small},
	{"batch-small", "batches of 128 reads of 4 KiB at random offsets", section_batch_small},
	{"batch-mib", "batches of 128 reads of 1 MiB at random offsets", section_batch_mib},
	{"overhead", "calls of this side and of the core, alternating", shim_overhead},
	{NULL, NULL, NULL},
};
