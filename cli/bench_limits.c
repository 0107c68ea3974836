/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the limit that a benchmark run is compared with, on the same machine and within the
 * same minute. Threads of this file make the same reads and writes with pread(2) and pwrite(2).
 * Called by bench_main.c. It must never use the library.
 */
#include "bench_limits.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stop.h"
#include "thread.h"

#define THREADS 8

struct limit_job {
	int fd;
	bool write, random;
	bool once; /* whether to read each block once and then stop */
	uint64_t block, from, length;
	double until;
	_Atomic uint64_t next, bytes;
};

static void *job_thread(void *arg)
{
	struct limit_job *j = arg;
	uint64_t blocks = j->length / j->block;
	char *buf =
		mmap(NULL, j->block, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (buf == MAP_FAILED)
		return NULL;
	memset(buf, 0x5a, j->block);
	/* transfers at least one block, even if the thread starts after the end time */
	do {
		uint64_t n = atomic_fetch_add(&j->next, 1);
		ssize_t got;
		off_t off;

		if (j->once && n >= blocks)
			break;
		if (j->random)
			n = n * 0x9e3779b97f4a7c15u >> 17;
		n %= blocks;
		off = (off_t)(j->from + n * j->block);
		got = j->write ? pwrite(j->fd, buf, j->block, off)
			       : pread(j->fd, buf, j->block, off);
		if (got <= 0)
			break;
		atomic_fetch_add(&j->bytes, (uint64_t)got);
	} while (seconds() < j->until && !stop_signal);
	munmap(buf, j->block);
	return NULL;
}

/* Runs the job on `threads` threads. Returns GB/s, or NAN if no byte moved. */
static double job_measure(struct limit_job *j, unsigned threads, double runtime)
{
	pthread_t ids[THREADS * 4];
	unsigned made = 0;
	double begun = seconds(), took;

	j->until = begun + runtime;
	while (made < threads && !pst_thread_start(&ids[made], job_thread, j))
		made++;
	for (unsigned i = 0; i < made; i++)
		pthread_join(ids[i], NULL);
	if (j->write)
		fdatasync(j->fd);
	took = seconds() - begun;
	return atomic_load(&j->bytes) ? (double)atomic_load(&j->bytes) / took / 1e9 : NAN;
}

double bench_limit(const struct bench_args *a, uint64_t length, const char **what)
{
	struct limit_job j = {.write = a->write,
			      .random = a->random,
			      /* the run that is compared with this limit also reads each block
			       * once */
			      .once = a->cold && !a->random,
			      .block = a->block};
	unsigned threads = a->depth < THREADS ? a->depth : THREADS;
	int flags = a->write ? O_WRONLY : O_RDONLY;
	double rate;

	if (a->warm) {
		*what = "page cache to host memory by pread, 8 threads";
		threads = THREADS;
	} else {
		*what = a->write ? "O_DIRECT pwrite and fdatasync from host memory"
				 : "O_DIRECT pread into host memory";
		flags |= O_DIRECT;
		if (a->random)
			threads = a->depth < THREADS * 4 ? a->depth : THREADS * 4;
	}
	j.fd = open(storage_path(a->storage), flags | O_CLOEXEC);
	if (j.fd < 0)
		return NAN;
	j.length = length;
	rate = job_measure(&j, threads, a->runtime);
	close(j.fd);
	return rate;
}
