/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill_copy FILE [ROUNDS]: measures how fast cached bytes of a file reach a GPU through pinned
 * memory, without Penstock. Eight threads read pieces of FILE into slots of pinned memory, and each
 * thread queues the copies of its pieces on a stream of its own. FILE must have at least 1 GiB.
 *
 * A row has the GB/s and the CPU time of one transfer. The rows differ in how many bytes it moves,
 * in the length of a piece, in the number of slots, and in whether the program paused before it.
 * With few slots, each slot is used again and again, so it may stay in a cache of the CPU. The rows
 * also differ in the way to fill a slot: by a read call, by a read call after which the bytes leave
 * the L2 cache (demote), or by non-temporal stores from a small buffer. Two ways show limits: only
 * the read calls, and only the copies of memory that no CPU has just written.
 *
 *     cc -O2 -Wall -Wextra bench/raw/fill_copy.c -o fill_copy -lpthread -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define TOTAL_MAX ((size_t)1 << 30)
#define THREADS 8u
#define SLOTS_MAX 32u
#define BUFFER ((size_t)128 << 10)
#define MEMORY ((size_t)512 << 20)

enum way { READ_ONLY, COPY_ONLY, PLAIN, DEMOTE, NONTEMPORAL, WAYS };
static const char *const way_names[WAYS] = {"read only", "copy only", "read", "demote",
					    "nontemporal"};

/* ---- the driver's functions ---- */

static int (*cu_init)(unsigned), (*cu_device)(int *, int), (*cu_retain)(void **, int),
	(*cu_set)(void *), (*cu_alloc)(unsigned long long *, size_t),
	(*cu_host_alloc)(void **, size_t, unsigned), (*cu_stream)(void **, unsigned),
	(*cu_event)(void **, unsigned), (*cu_record)(void *, void *), (*cu_query)(void *),
	(*cu_copy)(unsigned long long, const void *, size_t, void *), (*cu_sync)(void *);

static bool driver_open(void)
{
	struct {
		void *to;
		const char *name;
	} names[] = {{&cu_init, "cuInit"},
		     {&cu_device, "cuDeviceGet"},
		     {&cu_retain, "cuDevicePrimaryCtxRetain"},
		     {&cu_set, "cuCtxSetCurrent"},
		     {&cu_alloc, "cuMemAlloc_v2"},
		     {&cu_host_alloc, "cuMemHostAlloc"},
		     {&cu_stream, "cuStreamCreate"},
		     {&cu_event, "cuEventCreate"},
		     {&cu_record, "cuEventRecord"},
		     {&cu_query, "cuEventQuery"},
		     {&cu_copy, "cuMemcpyHtoDAsync_v2"},
		     {&cu_sync, "cuStreamSynchronize"}};
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);

	for (size_t i = 0; lib && i < sizeof(names) / sizeof(names[0]); i++) {
		void *fn = dlsym(lib, names[i].name);

		if (!fn)
			return false;
		memcpy(names[i].to, &fn, sizeof(fn));
	}
	return lib;
}

/* ---- one measurement ---- */

static struct job {
	size_t total;
	int fd;
	void *ctx;
	char *mem;
	unsigned long long gpu;
	enum way way;
	size_t piece;
	unsigned slots; /* slots of each thread */
	_Atomic size_t next;
	_Atomic unsigned bad;
	pthread_barrier_t start, end;
} job;

static struct worker {
	unsigned index;
	void *stream, *events[SLOTS_MAX];
	char *buffer;
} workers[THREADS];

#if defined(__x86_64__)
/* Asks the CPU to move the bytes from its L2 cache to the L3 cache. A CPU without this instruction
 * does nothing. */
__attribute__((target("cldemote"))) static void demote(char *mem, size_t len)
{
	for (size_t at = 0; at < len; at += 64)
		_cldemote(mem + at);
}

static void nontemporal(char *dst, const char *src, size_t len)
{
	for (size_t at = 0; at < len; at += 16)
		_mm_stream_si128((__m128i *)(void *)(dst + at),
				 _mm_load_si128((const __m128i *)(const void *)(src + at)));
	_mm_sfence();
}
#else
static void demote(char *mem, size_t len)
{
	(void)mem;
	(void)len;
}

static void nontemporal(char *dst, const char *src, size_t len)
{
	memcpy(dst, src, len);
}
#endif

static bool fill(struct worker *w, char *mem, size_t at)
{
	if (job.way == COPY_ONLY)
		return true;
	if (job.way == NONTEMPORAL) {
		for (size_t done = 0; done < job.piece; done += BUFFER) {
			if (pread(job.fd, w->buffer, BUFFER, (off_t)(at + done)) != (ssize_t)BUFFER)
				return false;
			nontemporal(mem + done, w->buffer, BUFFER);
		}
		return true;
	}
	if (pread(job.fd, mem, job.piece, (off_t)at) != (ssize_t)job.piece)
		return false;
	if (job.way == DEMOTE)
		demote(mem, job.piece);
	return true;
}

static void work(struct worker *w)
{
	char *mem = job.mem + w->index * job.slots * job.piece;
	size_t at;

	for (unsigned n = 0; (at = atomic_fetch_add(&job.next, job.piece)) < job.total; n++) {
		unsigned slot = n % job.slots;

		while (n >= job.slots && job.way != READ_ONLY && cu_query(w->events[slot]))
			sched_yield();
		if (!fill(w, mem + slot * job.piece, at))
			job.bad++;
		if (job.way == READ_ONLY)
			continue;
		if (cu_copy(job.gpu + at, mem + slot * job.piece, job.piece, w->stream) ||
		    cu_record(w->events[slot], w->stream))
			job.bad++;
	}
	if (job.way != READ_ONLY && cu_sync(w->stream))
		job.bad++;
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;

	cu_set(job.ctx);
	for (;;) {
		pthread_barrier_wait(&job.start);
		work(w);
		pthread_barrier_wait(&job.end);
	}
	return NULL;
}

static double now_s(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void measure(enum way way, size_t total, unsigned pause_ms, size_t piece, unsigned slots,
		    int round)
{
	double began, cpu;

	job.way = way;
	job.total = total;
	job.piece = piece;
	job.slots = slots;
	job.next = 0;
	usleep(pause_ms * 1000);
	cpu = now_s(CLOCK_PROCESS_CPUTIME_ID);
	began = now_s(CLOCK_MONOTONIC);
	pthread_barrier_wait(&job.start);
	pthread_barrier_wait(&job.end);
	began = now_s(CLOCK_MONOTONIC) - began;
	cpu = now_s(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	printf("%s,%zu,%u,%zu,%u,%zu,%d,%.2f,%.4f\n", way_names[way], total >> 20, pause_ms,
	       piece >> 10, slots, slots * piece * THREADS >> 20, round,
	       (double)total * 1e-9 / began, cpu / ((double)total * 1e-9));
}

/* Measures all ways for one total, one pause, one length of the pieces and one number of slots. */
static void measure_ways(size_t total, unsigned pause_ms, size_t piece, unsigned slots, int round)
{
	for (enum way way = 0; way < WAYS; way++)
		measure(way, total, pause_ms, piece, slots, round);
}

int main(int argc, char **argv)
{
	static const struct {
		size_t piece;
		unsigned slots;
	} shapes[] = {{(size_t)256 << 10, 8}, {(size_t)256 << 10, 32}, {(size_t)1 << 20, 2},
		      {(size_t)1 << 20, 8},   {(size_t)1 << 20, 16},   {(size_t)1 << 20, 32},
		      {(size_t)4 << 20, 2}};
	static const size_t totals[] = {(size_t)64 << 20, (size_t)256 << 20, TOTAL_MAX};
	int rounds = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 3, ordinal;
	bool ok = argc > 1 && driver_open() && !cu_init(0) && !cu_device(&ordinal, 0) &&
		  !cu_retain(&job.ctx, ordinal) && !cu_set(job.ctx) &&
		  !cu_alloc(&job.gpu, TOTAL_MAX) && !cu_host_alloc((void **)&job.mem, MEMORY, 3);

	if (ok)
		job.fd = open(argv[1], O_RDONLY | O_CLOEXEC);
	if (!ok || job.fd < 0) {
		fprintf(stderr, "usage: fill_copy FILE [ROUNDS], on a machine with a GPU\n");
		return 1;
	}
	pthread_barrier_init(&job.start, NULL, THREADS + 1);
	pthread_barrier_init(&job.end, NULL, THREADS + 1);
	memset(job.mem, 1, MEMORY);
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_t thread;

		workers[i].index = i;
		workers[i].buffer = aligned_alloc(4096, BUFFER);
		cu_stream(&workers[i].stream, 1);
		for (unsigned k = 0; k < SLOTS_MAX; k++)
			cu_event(&workers[i].events[k], 2);
		pthread_create(&thread, NULL, worker_main, &workers[i]);
	}
	for (unsigned i = 0; i < 2; i++) /* makes the file's pages cached and active */
		measure(READ_ONLY, TOTAL_MAX, 0, 1 << 20, 8, -1);
	printf("way,total MiB,pause ms,piece KiB,slots,memory MiB,round,GB/s,CPU-s/GB\n");
	for (int round = 0; round < rounds; round++)
		for (unsigned i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
			for (unsigned k = 0; k < sizeof(totals) / sizeof(totals[0]); k++)
				for (unsigned pause_ms = 0; pause_ms <= 50; pause_ms += 50)
					measure_ways(totals[k], pause_ms, shapes[i].piece,
						     shapes[i].slots, round);
	return job.bad ? 1 : 0;
}
