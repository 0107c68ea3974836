/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the limit of a benchmark run: the speed at which plain system calls make the same
 * reads or writes, with memory of the same kind and size. The limit is measured on the same
 * machine and within a minute of the run. First threads make the calls with pread(2) and
 * pwrite(2), then threads make them through io_uring. The faster of the two is the limit. Called
 * by bench_main.c. It must never use the library.
 */
#include "bench_limits.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ring.h"
#include "stop.h"
#include "thread.h"

#define THREADS_MAX 32
#define HUGE_PAGE (2u << 20)

/* A way to make the calls: `threads` threads with `depth` calls in flight each, through io_uring
 * if `uring` is set, else by pread(2) and pwrite(2). */
struct limit_way {
	bool uring;
	unsigned threads, depth;
};

struct limit_job {
	const struct limit_way *way;
	int fd;
	bool write, random;
	bool once; /* whether to read each block once and then stop */
	uint64_t block, length;
	char *mem; /* memory with one block for each call in flight */
	double until;
	_Atomic uint64_t next, bytes;
	_Atomic unsigned started; /* number of threads that have taken their part of `mem` */
};

/* Takes the next block. Returns false if the job is over. */
static bool block_take(struct limit_job *j, uint64_t *off)
{
	uint64_t blocks = j->length / j->block, n = atomic_fetch_add(&j->next, 1);

	/* The first block (n is 0) is transferred even if the threads start after the end time, so
	 * that the job moves at least one block. */
	if (stop_signal || (n && seconds() >= j->until) || (j->once && n >= blocks))
		return false;
	if (j->random)
		n = n * 0x9e3779b97f4a7c15u >> 17;
	*off = n % blocks * j->block;
	return true;
}

static void job_by_calls(struct limit_job *j, char *mem)
{
	uint64_t off;

	while (block_take(j, &off)) {
		ssize_t got = j->write ? pwrite(j->fd, mem, j->block, (off_t)off)
				       : pread(j->fd, mem, j->block, (off_t)off);

		if (got <= 0)
			return;
		atomic_fetch_add(&j->bytes, (uint64_t)got);
	}
}

/* Submits a call for the next block, with slot number `slot` of the buffer `mem`. Each call is
 * submitted alone, because the block layer merges adjacent calls into long ones, which some drives
 * serve slower. Returns false if there is no further block. */
static bool ring_submit(struct limit_job *j, struct ring *ring, char *mem, uint64_t slot,
			bool fixed)
{
	struct ring_io io = {.fd = j->fd,
			     .write = j->write,
			     .fixed = fixed,
			     .mem = mem + slot * j->block,
			     .len = j->block,
			     .tag = slot};

	if (!block_take(j, &io.off))
		return false;
	ring_queue(ring, &io);
	return !ring_enter(ring, 1, 0);
}

static void job_by_ring(struct limit_job *j, char *mem)
{
	unsigned busy = 0;
	struct ring ring;
	uint64_t slot;
	bool fixed;

	if (ring_open(&ring, j->way->depth))
		return;
	/* ring_register() fails if the user may lock too little memory. The calls then use an
	 * unregistered buffer. */
	fixed = !ring_register(&ring, mem, j->way->depth * j->block);
	for (slot = 0; slot < j->way->depth; slot++)
		busy += ring_submit(j, &ring, mem, slot, fixed);
	while (busy && (ring_has_completion(&ring) || !ring_enter(&ring, 0, 1))) {
		int got = ring_take(&ring, &slot);

		busy--;
		if (got <= 0)
			break;
		atomic_fetch_add(&j->bytes, (uint64_t)got);
		busy += ring_submit(j, &ring, mem, slot, fixed);
	}
	ring_close(&ring);
}

static void *job_thread(void *arg)
{
	struct limit_job *j = arg;
	char *mem = j->mem + atomic_fetch_add(&j->started, 1) * j->way->depth * j->block;

	if (j->way->uring)
		job_by_ring(j, mem);
	else
		job_by_calls(j, mem);
	return NULL;
}

/* Runs the job with the threads and the calls of `way`. Returns GB/s, or NAN if no byte moved. */
static double way_measure(struct limit_job *j, const struct limit_way *way, double runtime)
{
	pthread_t ids[THREADS_MAX];
	unsigned made = 0;
	double begun = seconds(), took;

	j->way = way;
	j->next = j->bytes = j->started = 0;
	j->until = begun + runtime;
	while (made < way->threads && !pst_thread_start(&ids[made], job_thread, j))
		made++;
	for (unsigned i = 0; i < made; i++)
		pthread_join(ids[i], NULL);
	if (j->write)
		fdatasync(j->fd);
	took = seconds() - begun;
	return atomic_load(&j->bytes) ? (double)atomic_load(&j->bytes) / took / 1e9 : NAN;
}

static unsigned least(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

/* Lists the ways to measure, and returns their count. With `warm`, the CPU copies the bytes in each
 * call, so one thread cannot reach the limit. In that case eight threads make the calls, even if
 * the run has a smaller depth. */
static unsigned ways_list(const struct bench_args *a, struct limit_way *ways)
{
	unsigned cpus = 1, count = 0, threads;
	cpu_set_t set;

	if (!sched_getaffinity(0, sizeof(set), &set))
		cpus = (unsigned)CPU_COUNT(&set);
	threads = a->warm ? 8 : least(a->depth, a->random ? THREADS_MAX : 8);
	ways[count++] = (struct limit_way){false, threads, 1};
	ways[count++] = (struct limit_way){true, 1, a->depth};
	threads = least(least(cpus, 8), a->depth);
	if (threads > 1)
		ways[count++] = (struct limit_way){true, threads, a->depth / threads};
	return count;
}

/* Allocates memory as penstock_alloc does for host memory: with huge pages, if the kernel has
 * them. Returns its address, and stores the whole mapping in *map and *len. */
static char *memory_map(uint64_t bytes, void **map, size_t *len)
{
	char *mem;

	*len = (size_t)bytes + HUGE_PAGE;
	*map = mmap(NULL, *len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (*map == MAP_FAILED)
		return NULL;
	mem = (char *)(((uintptr_t)*map + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
	if (bytes >= HUGE_PAGE)
		madvise(mem, (size_t)bytes, MADV_HUGEPAGE);
	memset(mem, 0x5a, (size_t)bytes);
	return mem;
}

/* Describes what the plain calls do. */
static const char *limit_text(const struct bench_args *a)
{
	if (a->write)
		return a->warm ? "cached writes and fdatasync from host memory"
			       : "O_DIRECT writes and fdatasync from host memory";
	return a->warm ? "page cache to host memory" : "O_DIRECT reads into host memory";
}

double bench_limit(const struct bench_args *a, uint64_t length, char *what, size_t len)
{
	struct limit_job j = {.write = a->write,
			      .random = a->random,
			      /* the run that is compared with this limit also reads each block
			       * once */
			      .once = a->cold && !a->random,
			      .block = a->block,
			      .length = length};
	struct limit_way ways[3];
	unsigned count = ways_list(a, ways), calls = 1;
	double best = NAN;
	size_t map_len;
	void *map;

	snprintf(what, len, "plain calls");
	j.fd = open(storage_path(a->storage),
		    (a->write ? O_WRONLY : O_RDONLY) | (a->warm ? 0 : O_DIRECT) | O_CLOEXEC);
	for (unsigned i = 0; i < count; i++)
		calls = ways[i].threads * ways[i].depth > calls ? ways[i].threads * ways[i].depth
								: calls;
	j.mem = memory_map(a->block * calls, &map, &map_len);
	for (unsigned i = 0; j.fd >= 0 && j.mem && i < count && !stop_signal; i++) {
		double rate = way_measure(&j, &ways[i], a->runtime);

		if (isnan(rate) || rate <= best)
			continue;
		best = rate;
		snprintf(what, len, "%s, the best of %u ways: %s, %u thread%s x %u in flight",
			 limit_text(a),
			 count,
			 ways[i].uring ? "io_uring"
			 : a->write    ? "pwrite"
				       : "pread",
			 ways[i].threads, ways[i].threads == 1 ? "" : "s", ways[i].depth);
	}
	if (j.mem)
		munmap(map, map_len);
	if (j.fd >= 0)
		close(j.fd);
	return best;
}
