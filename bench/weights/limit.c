/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the limits of several GPUs of one host, by driver calls and without Penstock. In case 1,
 * one GPU copies from pinned memory over its link. In case 2, all GPUs do so at once. In case 3,
 * every GPU also copies the bytes from all other GPUs. Case 4 is like case 3, but threads first
 * copy the bytes from the page cache into pinned memory. The copies do not wait for each other.
 * Each rank is a process, as in group.c. The library is used only to export memory to the other
 * processes.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device/cuda_api.h"
#include "ranks.h"

#define SLOTS 4u
/* Largest number of bytes of a slot. Each rank has a window, a buffer of SLOTS slots on its GPU. */
#define SLOT_MAX (64u << 20)
#define PIECE (4u << 20) /* Number of bytes that a thread copies at a time. */
#define THREADS_MAX 16u

struct feeder {
	struct limit *l;
	pthread_t thread;
	struct pst_cu_stream *stream;
	struct pst_cu_event *done[2];
	char *mem;	   /* Pinned memory for two pieces. */
	uint64_t from, to; /* Start and end of this thread's range in the file. */
	int ret;
};

struct limit {
	const struct job *job;
	struct shared *s;
	const struct pst_cuda *api;
	struct pst_cu_ctx *ctx;
	struct penstock_device *dev;
	struct pst_cu_stream *in, *out[RANKS_MAX];
	char *pinned;
	void *own, *windows[RANKS_MAX], *place;
	unsigned rank, threads;
	uint64_t share; /* Number of bytes that each rank receives from pinned memory. */
	size_t slot;
	int fd;
};

static int fail_if(const struct limit *l, const char *what, int rc)
{
	if (rc)
		fprintf(stderr, "bench_weights: rank %u: %s: %s\n", l->rank, what,
			rc < 0 ? penstock_errmsg() : pst_cuda_name((enum pst_cu_result)rc));
	return rc ? 1 : 0;
}

/* ---- preparation ---- */

static int share_windows(struct limit *l)
{
	struct penstock_export *mine = &l->s->windows[l->rank];

	*mine = (struct penstock_export)PENSTOCK_EXPORT_INIT;
	if (fail_if(l, "window", penstock_alloc(l->dev, SLOTS * l->slot, &l->own)) ||
	    (l->job->ranks > 1 &&
	     fail_if(l, "export", penstock_export_memory(l->dev, l->own, SLOTS * l->slot, mine))))
		return 1;
	if (!ranks_barrier(l->s, 0, l->job->ranks))
		return 1;
	l->windows[l->rank] = l->own;
	for (unsigned i = 0; i < l->job->ranks; i++)
		if (i != l->rank &&
		    fail_if(l, "import",
			    penstock_import_memory(l->dev, &l->s->windows[i], &l->windows[i])))
			return 1;
	return 0;
}

static int limit_prepare(struct limit *l)
{
	size_t pinned = SLOTS * l->slot + l->threads * 2 * (size_t)PIECE;
	char name[32];
	int rc, ordinal = 0;

	device_name(l->job, l->rank, name, sizeof(name));
	l->api = pst_cuda_get(NULL);
	if (!l->api || penstock_device_open(name, NULL, &l->dev) < 0)
		return fail_if(l, name, -ENODEV);
	l->fd = open(l->job->file, O_RDONLY | O_CLOEXEC);
	l->pinned = mmap(NULL, pinned, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (l->fd < 0 || l->pinned == MAP_FAILED)
		return fail_if(l, l->job->file, -errno);
	madvise(l->pinned, pinned, MADV_HUGEPAGE);
	memset(l->pinned, 0x5c, pinned);
	if (!strncmp(name, "cuda:", 5))
		ordinal = (int)strtol(name + 5, NULL, 10);
	rc = (int)l->api->cuDevicePrimaryCtxRetain(&l->ctx, ordinal);
	if (!rc)
		rc = (int)l->api->cuCtxSetCurrent(l->ctx);
	if (!rc)
		rc = (int)l->api->cuMemHostRegister(l->pinned, pinned, PST_CU_HOST_PORTABLE);
	if (!rc)
		rc = (int)l->api->cuStreamCreateWithPriority(&l->in, PST_CU_STREAM_NON_BLOCKING, 0);
	for (unsigned i = 0; i < l->job->ranks && !rc; i++)
		rc = (int)l->api->cuStreamCreateWithPriority(&l->out[i], PST_CU_STREAM_NON_BLOCKING,
							     0);
	if (fail_if(l, "preparing streams and pinned memory", rc) ||
	    fail_if(l, "memory", penstock_alloc(l->dev, SLOTS * l->slot, &l->place)))
		return 1;
	return share_windows(l);
}

/* ---- copies ---- */

static pst_cu_ptr slot_address(const struct limit *l, const void *base, uint64_t n)
{
	return (uintptr_t)base + n % SLOTS * l->slot;
}

/* Queues copies from the windows of all ranks (buffers that each rank fills). The copies do not
 * wait until the windows have been filled, because only the speed of the copies is measured. */
static int copy_windows(struct limit *l, uint64_t n)
{
	int rc = 0;

	for (unsigned i = 0; i < l->job->ranks && !rc; i++) {
		unsigned from = (l->rank + i) % l->job->ranks;

		rc = (int)l->api->cuMemcpyAsync(slot_address(l, l->place, n),
						slot_address(l, l->windows[from], n), l->slot,
						l->out[from]);
	}
	return rc;
}

static int copies_finish(struct limit *l)
{
	int rc = (int)l->api->cuStreamSynchronize(l->in);

	for (unsigned i = 0; i < l->job->ranks && !rc; i++)
		rc = (int)l->api->cuStreamSynchronize(l->out[i]);
	return rc;
}

static int copy_from_pinned(struct limit *l, bool out)
{
	int rc = 0;

	for (uint64_t n = 0; n < l->share / l->slot && !rc; n++) {
		rc = (int)l->api->cuMemcpyHtoDAsync(slot_address(l, l->own, n),
						    l->pinned + n % SLOTS * l->slot, l->slot,
						    l->in);
		if (!rc && out)
			rc = copy_windows(l, n);
	}
	return rc ? rc : copies_finish(l);
}

/* Main function of a thread: copies from the page cache to pinned memory, and from there to the
 * GPU. It fills one piece while the other piece is being copied. */
static void *feed_main(void *arg)
{
	struct feeder *f = arg;
	const struct pst_cuda *api = f->l->api;
	uint64_t n = 0;

	api->cuCtxSetCurrent(f->l->ctx);
	for (uint64_t off = f->from; off < f->to && !f->ret; off += PIECE, n++) {
		char *mem = f->mem + n % 2 * (size_t)PIECE;
		uint64_t len = f->to - off < PIECE ? f->to - off : PIECE;

		if (n > 1)
			f->ret = (int)api->cuEventSynchronize(f->done[n % 2]);
		if (!f->ret && pread(f->l->fd, mem, len, (off_t)off) != (ssize_t)len)
			f->ret = -EIO;
		if (!f->ret)
			f->ret = (int)api->cuMemcpyHtoDAsync((uintptr_t)f->l->own +
								     off % (SLOTS * f->l->slot / 2),
							     mem, len, f->stream);
		if (!f->ret)
			f->ret = (int)api->cuEventRecord(f->done[n % 2], f->stream);
	}
	if (!f->ret)
		f->ret = (int)api->cuStreamSynchronize(f->stream);
	return NULL;
}

static int copy_from_cache(struct limit *l, bool out)
{
	struct feeder f[THREADS_MAX];
	uint64_t part = l->share / l->threads / PIECE * PIECE;
	int rc = 0;

	memset(f, 0, sizeof(f));
	for (unsigned i = 0; i < l->threads && !rc; i++) {
		f[i].l = l;
		f[i].from = l->rank * l->share + i * part;
		f[i].to = f[i].from + part;
		f[i].mem = l->pinned + SLOTS * l->slot + i * 2 * (size_t)PIECE;
		rc = (int)l->api->cuStreamCreateWithPriority(&f[i].stream,
							     PST_CU_STREAM_NON_BLOCKING, 0);
		for (unsigned e = 0; e < 2 && !rc; e++)
			rc = (int)l->api->cuEventCreate(&f[i].done[e], PST_CU_EVENT_NO_TIMING);
	}
	if (!rc)
		rc = ranks_barrier(l->s, 10, l->job->ranks) ? 0 : -EPIPE;
	l->s->runs[l->rank][3].begin = now();
	for (unsigned i = 0; i < l->threads && !rc; i++)
		rc = pthread_create(&f[i].thread, NULL, feed_main, &f[i]) ? -EAGAIN : 0;
	for (uint64_t n = 0; n < l->share / l->slot && !rc && out; n++)
		rc = copy_windows(l, n);
	for (unsigned i = 0; i < l->threads; i++) {
		if (f[i].thread)
			pthread_join(f[i].thread, NULL);
		rc = rc ? rc : f[i].ret;
	}
	return rc ? rc : copies_finish(l);
}

/* ---- a rank ---- */

static const char *const names[] = {"one link", "all links", "all links and copies",
				    "page cache by threads and copies"};

static int run_rank(const struct job *job, struct shared *s, unsigned rank)
{
	struct limit l = {.job = job, .s = s, .rank = rank, .fd = -1};
	long cpus = sysconf(_SC_NPROCESSORS_ONLN) / job->ranks;
	struct stat st;
	int rc;

	/* At most 8 threads, because the library has at most 8 threads for a device by default. */
	l.threads = cpus < 1 ? 1 : cpus > 8 ? 8 : (unsigned)cpus;
	if (stat(job->file, &st))
		return fail_if(&l, job->file, -errno);
	for (l.slot = SLOT_MAX; l.slot > PIECE; l.slot /= 2)
		if ((uint64_t)st.st_size / job->ranks >= 8 * l.slot)
			break;
	l.share = (uint64_t)st.st_size / job->ranks / l.slot * l.slot;
	rc = limit_prepare(&l);
	for (unsigned i = 0; i < 4 && !rc; i++) {
		struct run *r = &s->runs[rank][i];
		double cpu;

		if (!ranks_barrier(s, 1 + i, job->ranks))
			return 1;
		if (!i && rank)
			continue;
		cpu = cpu_time();
		r->begin = now();
		rc = i == 3 ? copy_from_cache(&l, true) : copy_from_pinned(&l, i == 2);
		r->end = now();
		r->cpu = cpu_time() - cpu;
		r->read = l.share;
		r->bytes = i < 2 ? l.share : l.share * job->ranks;
		snprintf(r->path, sizeof(r->path), "limit");
		rc = fail_if(&l, names[i], rc);
	}
	if (!ranks_barrier(s, 8, job->ranks)) /* Waits for all ranks, because the other ranks may
					       * still copy from this rank's window. */
		return 1;
	return rc;
}

int limit_bench(const struct job *job, double *link, double *in)
{
	struct shared *s = shared_new();
	unsigned wrong = run_ranks(job, s, run_rank);

	for (unsigned what = 0; what < 4 && !wrong; what++) {
		double begin = 1e300, end = 0;
		uint64_t read = 0, bytes = 0;

		for (unsigned i = 0; i < (what ? job->ranks : 1); i++) {
			const struct run *r = &s->runs[i][what];

			begin = r->begin < begin ? r->begin : begin;
			end = r->end > end ? r->end : end;
			read += r->read;
			bytes += r->bytes;
			csv_row(job, names[what], 0, i, r);
		}
		printf("limit, %-34s in %7.2f GB/s, delivered %8.2f GB/s\n", names[what],
		       (double)read / (end - begin) * 1e-9, (double)bytes / (end - begin) * 1e-9);
		if (!what)
			*link = (double)read / (end - begin) * 1e-9;
		*in = (double)read / (end - begin) * 1e-9;
	}
	return wrong ? 1 : 0;
}
