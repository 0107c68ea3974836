/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures how long the GPU's copy engine takes for bytes that a CPU has just written. It
 * compares four cases. In the first case no CPU has just written the bytes. In the second case
 * a CPU wrote them by a read call. In the third case a CPU read into a small buffer and copied
 * from it by non-temporal stores. In the fourth case a CPU wrote them by non-temporal stores
 * alone. One thread, or eight threads at once, write the bytes, copy them and wait for the
 * copy. Because of the results, path `bounce` has two methods: a plain one and the L2 bounce of
 * path/bounce_l2.c. From the library this file uses only the table of driver functions.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "bench.h"
#include "device/cuda_api.h"
#include "gpu.h"

#define THREADS 8
#define ROUNDS 200
#define SHORT (128 * KIB)
#define LEN_MAX MIB

enum fill { UNTOUCHED, READ_CALL, READ_SHORT, STORES, FILLS };
static const char *const fills[FILLS] = {"untouched", "read call", "short read calls and stores",
					 "stores"};

struct filler {
	struct bench *b;
	enum fill fill;
	size_t len;
	int fd;
	const char *map; /* Address of the mapped file, whose pages are in the page cache. */
	char *mem, *buffer;
	unsigned index, threads;
	pthread_barrier_t *go;
	pthread_t thread;
	uint32_t *fill_ns, *copy_ns; /* Nanoseconds to write and to copy, one entry for each of the
				      * ROUNDS rounds. */
	int error;
};

static void store_nontemporal(char *dst, const char *src, size_t len)
{
#if defined(__x86_64__)
	for (size_t i = 0; i < len; i += sizeof(__m128i))
		_mm_stream_si128((__m128i *)(void *)(dst + i),
				 _mm_loadu_si128((const __m128i *)(const void *)(src + i)));
	_mm_sfence();
#else
	memcpy(dst, src, len);
#endif
}

static void slot_fill(const struct filler *f, uint64_t off)
{
	size_t at = 0;
	ssize_t n = 1;

	if (f->fill == STORES)
		store_nontemporal(f->mem, f->map + off, f->len);
	if (f->fill == READ_CALL)
		n = pread(f->fd, f->mem, f->len, (off_t)off);
	for (; f->fill == READ_SHORT && at < f->len && n > 0; at += (size_t)n) {
		size_t len = f->len - at < SHORT ? f->len - at : SHORT;

		n = pread(f->fd, f->buffer, len, (off_t)(off + at));
		if (n > 0)
			store_nontemporal(f->mem + at, f->buffer, (size_t)n);
	}
	if (n <= 0)
		bench_bad(f->b, "short read of %s", f->b->file);
}

static void *filler_main(void *arg)
{
	struct filler *f = arg;
	struct gpu *g = gpu_get();
	struct pst_cu_stream *stream = NULL;
	int rc;

	g->api->cuCtxSetCurrent(g->ctx);
	rc = (int)g->api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0);
	for (unsigned i = 0; i < ROUNDS; i++) {
		/* Each round reads other bytes, so that the source is in no CPU cache. */
		uint64_t off = ((uint64_t)i * f->threads + f->index) * f->len % (f->b->len / 2);
		uint64_t began, filled;

		pthread_barrier_wait(f->go);
		began = meter_ns();
		slot_fill(f, off);
		filled = meter_ns();
		if (!rc)
			rc = (int)g->api->cuMemcpyHtoDAsync(
				(uintptr_t)f->b->gpu + f->index * f->len, f->mem, f->len, stream);
		while (!rc && g->api->cuStreamQuery(stream) == PST_CU_NOT_READY)
			for (int pause = 0; pause < 20; pause++)
				__asm__ volatile("" ::: "memory");
		f->fill_ns[i] = (uint32_t)(filled - began);
		f->copy_ns[i] = (uint32_t)(meter_ns() - filled);
	}
	if (stream)
		g->api->cuStreamDestroy(stream);
	f->error = gpu_bad("copies of what was written", rc);
	return NULL;
}

static int written_row(struct bench *b, const struct filler *from, unsigned rep)
{
	unsigned threads = from->threads, all = threads * ROUNDS, made = 0;
	uint32_t *ns = calloc(2 * (size_t)all, sizeof(*ns));
	struct sample s = {.bytes = all * from->len, .ops = all};
	struct filler f[THREADS];
	pthread_barrier_t go;
	struct meter m;
	char name[64];
	int ret = ns ? 0 : -ENOMEM;

	pthread_barrier_init(&go, NULL, threads);
	meter_start(&m);
	for (; made < threads && !ret; made++) {
		f[made] = *from;
		f[made].index = made;
		f[made].go = &go;
		f[made].mem += made * LEN_MAX;
		f[made].buffer += made * SHORT;
		f[made].fill_ns = ns + made * ROUNDS;
		f[made].copy_ns = ns + all + made * ROUNDS;
		if (pthread_create(&f[made].thread, NULL, filler_main, &f[made]))
			/* Ends the process, because without this thread the other threads would
			 * wait at the barrier forever. */
			abort();
	}
	for (unsigned i = 0; i < made; i++) {
		pthread_join(f[i].thread, NULL);
		ret = f[i].error ? f[i].error : ret;
	}
	meter_stop(&m, &s);
	meter_settle(&m, &s);
	pthread_barrier_destroy(&go);
	if (!ret) {
		qsort(ns, all, sizeof(*ns), meter_compare_u32);
		qsort(ns + all, all, sizeof(*ns), meter_compare_u32);
		s.p50_us = ns[all + all / 2] * 1e-3;
		s.p99_us = ns[all + all / 100 * 99] * 1e-3;
		snprintf(s.note, sizeof(s.note), "fill %.1f us", ns[all / 2] * 1e-3);
		snprintf(name, sizeof(name), "%zu KiB by %u %s", from->len >> 10, threads,
			 fills[from->fill]);
		meter_row(b, "written", name, rep, &s);
	}
	free(ns);
	return ret;
}

int gpu_written(struct bench *b)
{
	struct filler f = {.b = b, .fd = open(b->file, O_RDONLY | O_CLOEXEC)};
	char *map = f.fd < 0 ? MAP_FAILED
			     : mmap(NULL, b->len, PROT_READ, MAP_SHARED | MAP_POPULATE, f.fd, 0);
	int ret = map == MAP_FAILED ? -errno : cache_warm(f.fd, 0, b->len);

	f.map = map;
	f.mem = gpu_pinned_mem(THREADS * LEN_MAX);
	f.buffer = aligned_alloc(4096, THREADS * SHORT);
	if (!ret && (!f.mem || !f.buffer))
		ret = -ENOMEM;
	for (unsigned rep = 0; rep < b->reps && !ret; rep++)
		for (f.len = 256 * KIB; f.len <= LEN_MAX && !ret; f.len *= 2)
			for (f.threads = 1; f.threads <= THREADS && !ret; f.threads *= THREADS)
				for (f.fill = 0; f.fill < FILLS && !ret; f.fill++)
					ret = written_row(b, &f, rep);
	free(f.buffer);
	if (map != MAP_FAILED)
		munmap(map, b->len);
	if (f.fd >= 0)
		close(f.fd);
	return ret;
}
