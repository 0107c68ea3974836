/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures several processes that load one model together, each into its own GPU. Each GPU gets
 * either the whole model or its shard for tensor parallelism. Measures the first load of the
 * processes and several later loads. The first load registers the model
 * file with the CUDA driver. If the group keeps registrations, the later loads reuse them. Compares
 * all loaded bytes with the file. With --dies one rank is killed during the load, and the errors of
 * the other ranks must name the killed rank.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device/cuda_api.h"
#include "ranks.h"

struct rank {
	const struct job *job;
	struct shared *s;
	struct penstock_device *dev, *host;
	struct penstock_weights *w;
	struct penstock_group *g;
	struct penstock_shard_opts so;
	void *place; /* Memory that is allocated for the model before the first load; used with
		      * --into. */
	size_t place_len;
	unsigned rank, reads;
};

static int fail_lib(const struct rank *r, const char *what)
{
	fprintf(stderr, "bench_weights: rank %u: %s: %s\n", r->rank, what, penstock_errmsg());
	return 1;
}

/* ---- memory for the model, with --into ---- */

static void *into_alloc(void *user, struct penstock_device *dev, size_t len, size_t align)
{
	struct rank *r = user;

	(void)align;
	if (!r->place && !penstock_alloc(dev, len, &r->place))
		r->place_len = len;
	return len <= r->place_len ? r->place : NULL;
}

static void into_free(void *user, struct penstock_device *dev, void *ptr, size_t len)
{
	(void)user;
	(void)dev;
	(void)ptr;
	(void)len;
}

static int on_request(void *user, unsigned file, const struct penstock_report *report)
{
	struct rank *r = user;

	(void)file;
	(void)report;
	if (r->job->dies == (int)r->rank && ++r->reads == 3) {
		r->s->killed = now();
		raise(SIGKILL);
	}
	return 0;
}

/* ---- comparing ---- */

#define COMPARE_BYTES (32u << 20)

static bool equal_bytes(struct rank *r, const char *at, const char *want, uint64_t len, char *mem)
{
	for (uint64_t off = 0; off < len; off += COMPARE_BYTES) {
		uint64_t n = len - off < COMPARE_BYTES ? len - off : COMPARE_BYTES;
		struct penstock_copy_args args = {.size = sizeof(args),
						  .dst_dev = r->host,
						  .dst = mem,
						  .src_dev = r->dev,
						  .src = at + off,
						  .row_len = n};

		if (penstock_copy(&args, 1) || memcmp(mem, want + off, n))
			return false;
	}
	return true;
}

/* Compares rows on the device with rows of the file. The rows start `pitch` bytes apart on the
 * device and `want_pitch` bytes apart in the file. */
static bool equal_rows(struct rank *r, const char *at, uint64_t pitch, const char *want,
		       uint64_t want_pitch, uint64_t len, uint64_t rows, char *mem)
{
	struct penstock_copy_args args = {.size = sizeof(args),
					  .dst_dev = r->host,
					  .dst = mem,
					  .src_dev = r->dev,
					  .src = at,
					  .row_len = (rows - 1) * pitch + len};

	if (penstock_copy(&args, 1))
		return false;
	for (uint64_t i = 0; i < rows; i++)
		if (memcmp(mem + i * pitch, want + i * want_pitch, len))
			return false;
	return true;
}

/* Compares this rank's part of a tensor with the file, piece by piece and row by row. */
static bool equal_pieces(struct rank *r, const struct penstock_tensor *t,
			 const struct penstock_shard *s, const char *at, const char *file,
			 char *mem)
{
	for (unsigned i = 0; i < s->piece_count; i++) {
		const struct penstock_piece *p = &s->pieces[i];
		uint64_t inner = penstock_dtype_bits(t->dtype) / 8, outer = 1;
		uint64_t extent = t->rank ? t->shape[p->dim] : 1, len, pitch;
		const char *want;
		bool equal = true;

		for (unsigned d = 0; d < p->dim; d++)
			outer *= t->shape[d];
		for (unsigned d = p->dim + 1; d < t->rank; d++)
			inner *= t->shape[d];
		outer = p->outer_count ? p->outer_count : outer - p->outer_first;
		len = (p->count ? p->count : extent - p->first) * inner;
		pitch = p->pitch ? p->pitch : len;
		want = file + t->off + (p->outer_first * extent + p->first) * inner;
		if (outer == 1)
			equal = equal_bytes(r, at + (uintptr_t)p->ptr, want, len, mem);
		for (uint64_t row = 0; row < outer && outer > 1 && equal;
		     row += COMPARE_BYTES / pitch) {
			uint64_t n = outer - row < COMPARE_BYTES / pitch ? outer - row
									 : COMPARE_BYTES / pitch;

			equal = equal_rows(r, at + (uintptr_t)p->ptr + row * pitch, pitch,
					   want + row * extent * inner, extent * inner, len, n,
					   mem);
		}
		if (!equal)
			return false;
	}
	return true;
}

/* Returns the name of the first tensor that differs from its file, or NULL if no tensor does. */
static const char *first_difference(struct rank *r, const struct penstock_loaded *loaded)
{
	struct penstock_weights_file f = {.size = sizeof(f)};
	const char *wrong = NULL, *map = NULL;
	unsigned mapped = UINT32_MAX;
	char *mem = malloc(COMPARE_BYTES);

	for (uint64_t i = 0; i < penstock_weights_count(r->w) && !wrong; i++) {
		struct penstock_shard s = {.size = sizeof(s)};
		struct penstock_tensor t = {.size = sizeof(t)};
		const char *at = penstock_loaded_ptr(loaded, 0, i);

		penstock_weights_get(r->w, i, &t);
		if (t.file != mapped) {
			int fd;

			if (map)
				munmap((void *)(uintptr_t)map, f.length);
			penstock_weights_get_file(r->w, t.file, &f);
			fd = open(f.path, O_RDONLY | O_CLOEXEC);
			map = mmap(NULL, f.length, PROT_READ, MAP_SHARED, fd, 0);
			close(fd);
			mapped = t.file;
		}
		if (map == MAP_FAILED || penstock_weights_shard(r->w, i, &r->so, &s) ||
		    (at && !equal_pieces(r, &t, &s, at, map, mem)))
			wrong = t.name;
	}
	if (map && map != MAP_FAILED)
		munmap((void *)(uintptr_t)map, f.length);
	free(mem);
	return wrong;
}

/* Checks that the process has a context on its own GPU and on no other. */
static void check_contexts(struct rank *r)
{
	const struct pst_cuda *api = strcmp(r->job->device, "cuda") ? NULL : pst_cuda_get(NULL);
	char *out = r->s->contexts[r->rank];

	for (int i = 0; api && i < api->device_count; i++) {
		unsigned flags;
		int active = 0;

		api->cuDevicePrimaryCtxGetState(i, &flags, &active);
		if (active != (i == (int)r->rank))
			snprintf(out, sizeof(r->s->contexts[0]), "a context %s on cuda:%d",
				 active ? "also" : "missing", i);
	}
}

/* ---- a rank ---- */

static int rank_open(struct rank *r)
{
	struct penstock_weights_opts wo = PENSTOCK_WEIGHTS_OPTS_INIT;
	struct penstock_group_opts go = PENSTOCK_GROUP_OPTS_INIT;
	char name[32];
	void *ptr;

	device_name(r->job, r->rank, name, sizeof(name));
	wo.flags = r->job->kept ? PENSTOCK_WEIGHTS_IMMUTABLE : 0;
	go.window = r->job->window;
	go.windows = r->job->windows;
	go.timeout_ms = 60000;
	r->so = (struct penstock_shard_opts)PENSTOCK_SHARD_OPTS_INIT;
	if (r->job->shard) {
		r->so.rank = r->rank;
		r->so.ranks = r->job->ranks;
	}
	/* The allocation creates the CUDA context before the loads. */
	if (penstock_device_open("host", NULL, &r->host) < 0 ||
	    penstock_device_open(name, NULL, &r->dev) < 0 || penstock_alloc(r->dev, 4096, &ptr))
		return fail_lib(r, name);
	penstock_free(r->dev, ptr);
	snprintf(name, sizeof(name), "bench-%d", (int)getppid());
	if (penstock_weights_open(r->job->file, &wo, &r->w) ||
	    penstock_group_open(name, r->rank, r->job->ranks, &go, &r->g))
		return fail_lib(r, r->job->file);
	return 0;
}

static int rank_load(struct rank *r, unsigned rep, struct penstock_loaded **loaded)
{
	struct penstock_load_opts lo = PENSTOCK_LOAD_OPTS_INIT;
	struct penstock_load_report report = {.size = sizeof(report)};
	struct run *run = &r->s->runs[r->rank][rep];
	double cpu = cpu_time();

	lo.effort = r->job->effort;
	lo.shard = r->job->shard ? &r->so : NULL;
	lo.each = on_request;
	lo.user = r;
	if (r->job->into) {
		lo.alloc = into_alloc;
		lo.free = into_free;
	}
	run->begin = now();
	run->ret = penstock_group_load(r->g, r->w, &r->dev, 1, &lo, &report, loaded);
	run->end = now();
	run->cpu = cpu_time() - cpu;
	run->read = report.read;
	run->bytes = report.bytes;
	run->cpu_copied = report.cpu_copied;
	snprintf(run->path, sizeof(run->path), "%s", run->ret ? "none" : report.path);
	if (run->ret)
		snprintf(run->text, sizeof(run->text), "%s", penstock_errmsg());
	return run->ret;
}

static int run_rank(const struct job *job, struct shared *s, unsigned rank)
{
	struct rank r = {.job = job, .s = s, .rank = rank};
	int ret = rank_open(&r);

	if (!ret && job->into) { /* With --into, the memory must exist before the first load. */
		struct penstock_weights_file f = {.size = sizeof(f)};
		uint64_t room = 64 * MIB;

		for (unsigned i = 0; i < penstock_weights_file_count(r.w); i++)
			room += penstock_weights_get_file(r.w, i, &f) ? 0 : f.length;
		if (!into_alloc(&r, r.dev, room, 4096))
			ret = fail_lib(&r, "memory for the model");
	}
	for (unsigned rep = 0; rep < job->reps && !ret; rep++) {
		struct penstock_loaded *loaded = NULL;
		const char *wrong;

		if (!ranks_barrier(s, rep, job->ranks))
			return 1;
		ret = rank_load(&r, rep, &loaded);
		if (!ret && job->verify && rep + 1 == job->reps) {
			wrong = first_difference(&r, loaded);
			if (wrong)
				fprintf(stderr,
					"bench_weights: rank %u: %s has other bytes than "
					"the file\n",
					rank, wrong);
			ret = wrong ? 1 : 0;
		}
		penstock_loaded_free(loaded);
	}
	check_contexts(&r);
	penstock_group_close(r.g);
	penstock_weights_close(r.w);
	penstock_device_close(r.dev);
	penstock_device_close(r.host);
	return job->dies >= 0 ? 0 : ret;
}

/* ---- all ranks ---- */

static int print_death(const struct job *job, const struct shared *s)
{
	char name[32];
	int ret = 0;

	snprintf(name, sizeof(name), "rank %d", job->dies);
	for (unsigned i = 0; i < job->ranks; i++) {
		const struct run *r = &s->runs[i][0];

		if ((int)i == job->dies)
			continue;
		printf("rank %u, %.1f ms after rank %d was killed: %d, %s\n", i,
		       (r->end - s->killed) * 1e3, job->dies, r->ret, r->text);
		if (!r->ret || !strstr(r->text, name) || r->end - s->killed > 10)
			ret = 1;
	}
	printf("%s\n", ret ? "FAILED: a rank does not name it within 10 s"
			   : "every other rank names it within 10 s");
	return ret;
}

static void print_runs(const struct job *job, const struct shared *s)
{
	printf("%s by %u processes, %s, windows %u of %llu MiB%s%s (0: the library's own)\n",
	       job->shard ? "shards" : "replicas", job->ranks, job->device, job->windows,
	       (unsigned long long)(job->window / MIB), job->kept ? ", registrations kept" : "",
	       job->into ? ", into allocated memory" : "");
	for (unsigned rep = 0; rep < job->reps; rep++) {
		double begin = 1e300, end = 0, cpu = 0;
		uint64_t read = 0, bytes = 0;

		for (unsigned i = 0; i < job->ranks; i++) {
			const struct run *r = &s->runs[i][rep];

			begin = r->begin < begin ? r->begin : begin;
			end = r->end > end ? r->end : end;
			cpu += r->cpu;
			read += r->read;
			bytes += r->bytes;
			csv_row(job,
				job->kept    ? job->shard ? "group shard kept" : "group kept"
				: job->shard ? "group shard"
					     : "group",
				rep, i, r);
		}
		printf("  load %u: %7.3f s, in %7.2f GB/s, delivered %8.2f GB/s, %.4f CPU-s/GB in, "
		       "by %s%s\n",
		       rep + 1, end - begin, (double)read / (end - begin) * 1e-9,
		       (double)bytes / (end - begin) * 1e-9, cpu / (double)read * 1e9,
		       s->runs[0][rep].path, rep ? "" : " (first of these processes)");
	}
	for (unsigned i = 0; i < job->ranks; i++)
		if (*s->contexts[i])
			printf("  rank %u: %s\n", i, s->contexts[i]);
	if (job->verify)
		printf("  every byte on every rank equals the file\n");
}

int group_bench(const struct job *job)
{
	struct shared *s = shared_new();
	unsigned wrong = run_ranks(job, s, run_rank);

	if (job->dies >= 0)
		return wrong ? 1 : print_death(job, s);
	for (unsigned i = 0; i < job->ranks && wrong; i++)
		for (unsigned rep = 0; rep < job->reps; rep++)
			if (s->runs[i][rep].ret)
				printf("rank %u, load %u: %s\n", i, rep + 1, s->runs[i][rep].text);
	if (!wrong)
		print_runs(job, s);
	return wrong ? 1 : 0;
}
