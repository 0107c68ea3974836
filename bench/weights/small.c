/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the time of each step of a load in one process. Also measures the time that each of
 * many small tensors costs in addition to the time for its bytes. The first load of a process
 * also starts the library's threads. The CUDA context exists before the first load.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ranks.h"

struct alloc_time {
	double seconds;
};

static void *timed_alloc(void *user, struct penstock_device *dev, size_t len, size_t align)
{
	struct alloc_time *t = user;
	double begun = now();
	void *ptr = NULL;

	(void)align;
	if (penstock_alloc(dev, len, &ptr))
		ptr = NULL;
	t->seconds += now() - begun;
	return ptr;
}

static void timed_free(void *user, struct penstock_device *dev, void *ptr, size_t len)
{
	(void)user;
	(void)len;
	penstock_free(dev, ptr);
}

static int fail_lib(const char *what)
{
	fprintf(stderr, "bench_weights: %s: %s\n", what, penstock_errmsg());
	return 1;
}

/* Opens the device and creates its CUDA context, but does not start the library's threads. */
static int open_device(const struct job *job, struct penstock_device **dev)
{
	char name[32];
	void *ptr;

	device_name(job, 0, name, sizeof(name));
	if (penstock_device_open(name, NULL, dev) < 0 || penstock_alloc(*dev, 4096, &ptr))
		return fail_lib(name);
	penstock_free(*dev, ptr);
	return 0;
}

struct steps {
	double open, alloc, move, ptrs, all, cpu, free;
	uint64_t bytes, tensors;
	char path[24];
};

/* Loads a model once. If `kept` is NULL, opens the model before the load and closes it
 * afterwards. Otherwise it uses the open model *kept, which the first call opens. */
static int load_once(const struct job *job, const char *file, struct penstock_device *dev,
		     struct penstock_weights **kept, struct steps *s)
{
	struct penstock_weights_opts wo = PENSTOCK_WEIGHTS_OPTS_INIT;
	struct penstock_load_opts lo = PENSTOCK_LOAD_OPTS_INIT;
	struct penstock_load_report r = {.size = sizeof(r)};
	struct alloc_time at = {0};
	struct penstock_loaded *loaded;
	struct penstock_weights *w = kept ? *kept : NULL;
	double t0 = now(), t1, t2, cpu = cpu_time();
	uintptr_t sum = 0;

	lo.effort = job->effort;
	lo.alloc = timed_alloc;
	lo.free = timed_free;
	lo.user = &at;
	wo.flags = kept ? PENSTOCK_WEIGHTS_IMMUTABLE : 0;
	if (!w && penstock_weights_open(file, &wo, &w))
		return fail_lib(file);
	t1 = now();
	if (penstock_weights_load(w, &dev, 1, &lo, &r, &loaded))
		return fail_lib(file);
	t2 = now();
	s->tensors = penstock_weights_count(w);
	for (uint64_t i = 0; i < s->tensors; i++)
		sum += (uintptr_t)penstock_loaded_ptr(loaded, 0, i);
	s->all = now() - t0;
	s->ptrs = s->all - (t2 - t0);
	s->open = t1 - t0;
	s->alloc = at.seconds;
	s->move = t2 - t1 - at.seconds;
	s->bytes = r.bytes;
	snprintf(s->path, sizeof(s->path), "%s", sum ? r.path : "none");
	/* After a load, other threads still unregister memory. The measurement includes their
	 * CPU time, because it ends only after this pause. */
	usleep(100000);
	s->cpu = cpu_time() - cpu;
	t2 = now();
	penstock_loaded_free(loaded);
	s->free = now() - t2;
	if (kept)
		*kept = w;
	else
		penstock_weights_close(w);
	return 0;
}

int load_bench(const struct job *job)
{
	const char *effort = effort_name(job);
	struct penstock_weights *w = NULL;
	struct penstock_device *dev;
	char what[32];

	if (open_device(job, &dev))
		return 1;
	snprintf(what, sizeof(what), "load %s%s", effort, job->kept ? " kept" : "");
	printf("%s, effort %s%s\n       GB/s    open us  alloc us   move us   ptrs us   free us  "
	       "CPU-s/GB  path\n",
	       job->file, effort, job->kept ? ", one model, registrations kept" : "");
	for (unsigned i = 0; i < job->reps; i++) {
		struct steps s;
		struct run r = {0};

		if (load_once(job, job->file, dev, job->kept ? &w : NULL, &s))
			return 1;
		printf("%s %7.2f %9.0f %9.0f %9.0f %9.0f %9.0f %9.4f  %s\n",
		       i ? "    " : "1st:", (double)s.bytes / s.all * 1e-9, s.open * 1e6,
		       s.alloc * 1e6, s.move * 1e6, s.ptrs * 1e6, s.free * 1e6,
		       s.cpu / (double)s.bytes * 1e9, s.path);
		r.end = s.all;
		r.cpu = s.cpu;
		r.read = r.bytes = s.bytes;
		snprintf(r.path, sizeof(r.path), "%s", s.path);
		csv_row(job, what, i, 0, &r);
	}
	penstock_weights_close(w);
	penstock_device_close(dev);
	return 0;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(double *list, unsigned n)
{
	qsort(list, n, sizeof(*list), by_value);
	return n % 2 ? list[n / 2] : (list[n / 2 - 1] + list[n / 2]) / 2;
}

int small_bench(const struct job *job, const char *many, const char *one)
{
	double time[2][REPS_MAX], cpu[2][REPS_MAX], open[2][REPS_MAX];
	const char *files[2] = {one, many};
	struct penstock_device *dev;
	struct steps s = {0};
	uint64_t tensors = 1;

	if (open_device(job, &dev))
		return 1;
	for (int i = -1; i < (int)job->reps; i++) {
		for (unsigned f = 0; f < 2; f++) {
			struct run r = {0};

			if (load_once(job, files[f], dev, NULL, &s))
				return 1;
			if (i < 0)
				continue;
			tensors = s.tensors;
			time[f][i] = s.all;
			cpu[f][i] = s.cpu;
			open[f][i] = s.open;
			r.end = s.all;
			r.cpu = s.cpu;
			r.read = r.bytes = s.bytes;
			csv_row(job, f ? "many in C" : "one in C", (unsigned)i, 0, &r);
		}
	}
	penstock_device_close(dev);
	for (unsigned f = 0; f < 2; f++) {
		time[f][0] = median(time[f], job->reps);
		cpu[f][0] = median(cpu[f], job->reps);
		open[f][0] = median(open[f], job->reps);
	}
	printf("in C, effort %s: %llu tensors over one of the same bytes, us a tensor: %.3f more "
	       "time (%.3f of it to open), %.3f more CPU time; %.2f GB/s, one %.2f\n",
	       effort_name(job), (unsigned long long)tensors,
	       (time[1][0] - time[0][0]) / (double)tensors * 1e6,
	       (open[1][0] - open[0][0]) / (double)tensors * 1e6,
	       (cpu[1][0] - cpu[0][0]) / (double)tensors * 1e6, (double)s.bytes / time[1][0] * 1e-9,
	       (double)s.bytes / time[0][0] * 1e-9);
	return 0;
}
