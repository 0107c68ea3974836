/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures how fast a process can load a cached file for the first time without Penstock, by
 * system and driver calls alone. The process has a CUDA context and nothing else. The first
 * load allocates device memory, creates threads and streams, and pins a ring of pieces for each
 * thread. Then the threads read the file piece by piece and copy the pieces to the device. A
 * second load uses the memory, threads, streams and rings of the first load. weights.py runs
 * this program between its loads. No code of Penstock moves a byte here.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device/cuda_api.h"
#include "ranks.h"

#define THREADS 8u     /* Number of threads, as many as Penstock has on an H200 machine. */
#define RING (8 * MIB) /* Number of bytes of each thread's ring. */
#define PIECES_MAX 8u
/* Default length of a piece, the fastest of 1, 2 and 4 MiB on an H200. --window changes it. */
#define PIECE (4 * MIB)
#define HUGE_PAGE (2 * MIB)

struct mover {
	struct first *f;
	pthread_t thread;
	char *ring;
	struct pst_cu_stream *stream;
	struct pst_cu_event *done[PIECES_MAX];
	bool pinned;
	enum pst_cu_result rc; /* Result of the first driver call that failed. */
	bool short_file; /* Whether the file ended before the length that it had at the start. */
};

struct first {
	const struct pst_cuda *api;
	struct pst_cu_ctx *ctx;
	pst_cu_ptr memory;
	struct mover movers[THREADS];
	/* Barrier at which each thread waits until all threads have created their streams. No
	 * thread touches new memory before it has passed the barrier. */
	pthread_barrier_t streams;
	atomic_ullong next;
	uint64_t len, piece;
	unsigned pieces; /* Number of pieces in each ring. */
	int fd;
};

/* Creates a thread's stream, events and ring. Waits until all threads have created their
 * streams, because a thread that touches new pages delays the memory mappings of the others. */
static enum pst_cu_result mover_prepare(struct mover *m)
{
	const struct pst_cuda *api = m->f->api;
	enum pst_cu_result rc =
		api->cuStreamCreateWithPriority(&m->stream, PST_CU_STREAM_NON_BLOCKING, 0);

	for (unsigned i = 0; i < m->f->pieces && !rc; i++)
		rc = api->cuEventCreate(&m->done[i], PST_CU_EVENT_NO_TIMING);
	pthread_barrier_wait(&m->f->streams);
	for (size_t at = 0; at < RING; at += HUGE_PAGE)
		m->ring[at] = 1;
	if (!rc)
		rc = api->cuMemHostRegister(m->ring, RING, PST_CU_HOST_PORTABLE);
	m->pinned = true;
	return rc;
}

static void *mover_main(void *arg)
{
	struct mover *m = arg;
	struct first *f = m->f;
	uint64_t off;

	f->api->cuCtxSetCurrent(f->ctx);
	if (!m->pinned)
		m->rc = mover_prepare(m);
	for (uint64_t n = 0; !m->rc && (off = atomic_fetch_add(&f->next, f->piece)) < f->len; n++) {
		char *piece = m->ring + n % f->pieces * f->piece;
		uint64_t len = f->len - off < f->piece ? f->len - off : f->piece;

		if (n >= f->pieces)
			m->rc = f->api->cuEventSynchronize(m->done[n % f->pieces]);
		if (pread(f->fd, piece, len, (off_t)off) != (ssize_t)len) {
			m->short_file = true;
			break;
		}
		if (!m->rc)
			m->rc = f->api->cuMemcpyHtoDAsync(f->memory + off, piece, len, m->stream);
		if (!m->rc)
			m->rc = f->api->cuEventRecord(m->done[n % f->pieces], m->stream);
	}
	if (!m->rc)
		m->rc = f->api->cuStreamSynchronize(m->stream);
	return NULL;
}

static int map_rings(struct first *f)
{
	char *base = mmap(NULL, THREADS * RING + HUGE_PAGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (base == MAP_FAILED)
		return 1;
	base += -(uintptr_t)base % HUGE_PAGE;
	madvise(base, THREADS * RING, MADV_HUGEPAGE);
	for (unsigned i = 0; i < THREADS; i++)
		f->movers[i] = (struct mover){.f = f, .ring = base + i * RING};
	return 0;
}

/* Loads the file once. Prints an error and returns 1 after a failure, otherwise returns 0. */
static int load_once(struct first *f, const char *file, double *seconds, double *cpu)
{
	double begun = now(), cpu_begun = cpu_time();
	enum pst_cu_result rc = PST_CU_OK;
	unsigned made = 0;
	bool short_file = false;
	struct stat st;

	f->fd = open(file, O_RDONLY | O_CLOEXEC);
	if (f->fd < 0 || fstat(f->fd, &st) || (!f->movers[0].f && map_rings(f))) {
		perror(file);
		return 1;
	}
	f->len = (uint64_t)st.st_size;
	f->next = 0;
	if (!f->memory)
		rc = f->api->cuMemAlloc(&f->memory, f->len);
	while (!rc && made < THREADS &&
	       !pthread_create(&f->movers[made].thread, NULL, mover_main, &f->movers[made]))
		made++;
	for (unsigned i = 0; i < made; i++) {
		pthread_join(f->movers[i].thread, NULL);
		rc = rc ? rc : f->movers[i].rc;
		short_file |= f->movers[i].short_file;
	}
	*seconds = now() - begun;
	*cpu = cpu_time() - cpu_begun;
	close(f->fd);
	if (!rc && made == THREADS && !short_file)
		return 0;
	fprintf(stderr, "bench_weights: %s: %s\n", file,
		rc	     ? pst_cuda_name(rc)
		: short_file ? "the file became shorter"
			     : "a thread could not be started");
	return 1;
}

int first_bench(const struct job *job)
{
	double seconds[2] = {0}, cpu[2] = {0};
	struct first f = {.api = pst_cuda_get(NULL),
			  .piece = job->window && job->window < RING ? job->window : PIECE};
	enum pst_cu_result rc;

	if (!f.api || pthread_barrier_init(&f.streams, NULL, THREADS)) {
		fprintf(stderr, "bench_weights: the CUDA driver cannot be loaded\n");
		return 1;
	}
	f.pieces = (unsigned)(RING / f.piece);
	rc = f.api->cuDevicePrimaryCtxRetain(&f.ctx, 0);
	if (!rc)
		rc = f.api->cuCtxSetCurrent(f.ctx);
	if (rc) {
		fprintf(stderr, "bench_weights: %s\n", pst_cuda_name(rc));
		return 1;
	}
	for (unsigned i = 0; i < 2; i++)
		if (load_once(&f, job->file, &seconds[i], &cpu[i]))
			return 1;
	printf("{\"bytes\": %llu, \"seconds\": %.6f, \"cpu\": %.6f, \"again\": %.6f, "
	       "\"cpu_again\": %.6f}\n",
	       (unsigned long long)f.len, seconds[0], cpu[0], seconds[1], cpu[1]);
	return 0;
}
