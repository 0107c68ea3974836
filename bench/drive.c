/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the limit of the drive with plain O_DIRECT calls, by threads or by rawring.c. Also
 * drops a range from the page cache, reads it into the cache, and queries it with cachestat(2).
 * Sections use these functions to check that a range is cached or not, and never assume it.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench.h"

/* Length in bytes of the buffer that all threads share. Each call in flight uses one block of the
 * buffer. The length is enough for every struct drive_way that the benchmarks use. */
#define BUFFER (64u << 20)
#define THREADS_MAX 32
#define WARM_THREADS 8
#define WARM_BLOCK (8u << 20)

#ifndef SYS_cachestat
#define SYS_cachestat 451 /* Available since Linux 6.5. */
#endif

struct cachestat_range {
	uint64_t off, len;
};
struct cachestat {
	uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

int drive_open(const char *path, bool write)
{
	int flags = write ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY;
	int fd = open(path, flags | O_DIRECT | O_CLOEXEC, 0644);

	return fd < 0 ? -errno : fd;
}

const char *drive_way_text(const struct drive_way *way, char *text, size_t len)
{
	snprintf(text, len, "%s %u x %u x %zu KiB", way->engine, way->threads, way->depth,
		 way->block >> 10);
	return text;
}

/* Returns a buffer that is allocated once in a process. So its first touch and its pinning are
 * not part of each measurement. */
static char *buffer_get(void)
{
	static char *mem;

	if (mem)
		return mem;
	mem = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED)
		return mem = NULL;
	madvise(mem, BUFFER, MADV_HUGEPAGE);
	/* Writes bytes other than zero, because a drive may treat zeros specially. */
	for (size_t i = 0; i < BUFFER; i += 8)
		*(uint64_t *)(mem + i) = i * 0x9e3779b97f4a7c15u + 1;
	return mem;
}

/* The work of one thread: it moves the blocks `index`, `index + threads` and so on. */
struct job {
	const struct drive_way *way;
	int fd;
	bool write;
	unsigned index;
	uint64_t off, count, stride;
	char *buf;
	int error;
	pthread_t thread;
};

static int job_plain_calls(const struct job *j, uint64_t off, uint64_t count, uint64_t stride)
{
	for (uint64_t n = 0; n < count; n++, off += stride) {
		ssize_t got = j->write ? pwrite(j->fd, j->buf, j->way->block, (off_t)off)
				       : pread(j->fd, j->buf, j->way->block, (off_t)off);

		if (got != (ssize_t)j->way->block)
			return got < 0 ? -errno : -EIO;
	}
	return 0;
}

static void *job_main(void *arg)
{
	struct job *j = arg;
	unsigned threads = j->way->threads;
	uint64_t off = j->off + j->index * j->stride, stride = j->stride * threads;
	uint64_t count = (j->count - j->index + threads - 1) / threads;

	if (j->index >= j->count)
		j->error = 0;
	else if (!strcmp(j->way->engine, "threads"))
		j->error = job_plain_calls(j, off, count, stride);
	else
		j->error = rawring_move(&(struct raw_move){.fd = j->fd,
							   .write = j->write,
							   .buf = j->buf,
							   .off = off,
							   .count = count,
							   .stride = stride,
							   .way = j->way});
	return NULL;
}

int drive_move(int fd, bool write, uint64_t off, uint64_t count, uint64_t stride,
	       const struct drive_way *way)
{
	char *buf = buffer_get();
	size_t share = way->depth * way->block;
	struct job jobs[THREADS_MAX];
	unsigned made = 0;
	int ret = 0;

	if (!buf || way->threads * share > BUFFER || way->threads > THREADS_MAX)
		return -ENOMEM;
	for (; made < way->threads; made++) {
		struct job *j = &jobs[made];

		*j = (struct job){.way = way,
				  .fd = fd,
				  .write = write,
				  .index = made,
				  .off = off,
				  .count = count,
				  .stride = stride,
				  .buf = buf + made * share};
		if (pthread_create(&j->thread, NULL, job_main, j))
			break;
	}
	for (unsigned i = 0; i < made; i++) {
		pthread_join(jobs[i].thread, NULL);
		ret = jobs[i].error ? jobs[i].error : ret;
	}
	return made < way->threads ? -EAGAIN : ret;
}

int drive_best(struct bench *b, int fd, bool write, uint64_t off, uint64_t len, const char *group,
	       struct drive_way *best)
{
	static const struct drive_way ways[] = {
		{"uring", 1, 8, 2 * MIB},    {"uring", 1, 8, 1 * MIB},
		{"uring", 1, 16, 1 * MIB},   {"uring", 1, 16, 512 * KIB},
		{"uring", 1, 32, 256 * KIB}, {"uring", 2, 4, 1 * MIB},
		{"uring", 2, 8, 512 * KIB},  {"uring", 4, 4, 1 * MIB},
		{"uring", 4, 8, 256 * KIB},  {"threads", 8, 1, 1 * MIB},
		{"threads", 16, 1, 1 * MIB},
	};
	double best_rate = 0;

	/* This pass is not measured, because the first pass over a range is slower than later
	 * passes. */
	drive_move(fd, write, off, len / ways[0].block, ways[0].block, &ways[0]);
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		struct sample s = {.bytes = len / ways[i].block * ways[i].block};
		struct meter m;
		int ret;

		meter_start(&m);
		ret = drive_move(fd, write, off, len / ways[i].block, ways[i].block, &ways[i]);
		if (!ret && write)
			ret = fdatasync(fd) ? -errno : 0;
		meter_stop(&m, &s);
		meter_settle(&m, &s);
		if (ret || !s.bytes)
			continue;
		drive_way_text(&ways[i], s.note, sizeof(s.note));
		meter_row(b, group, "limit-search", 0, &s);
		if ((double)s.bytes / s.seconds > best_rate) {
			best_rate = (double)s.bytes / s.seconds;
			*best = ways[i];
		}
	}
	return best_rate > 0 ? 0 : -EIO;
}

/* ---- the page cache ---- */

int64_t cache_bytes(int fd, uint64_t off, uint64_t len)
{
	struct cachestat_range range = {off, len};
	struct cachestat found = {0};

	if (syscall(SYS_cachestat, fd, &range, &found, 0))
		return -errno;
	return (int64_t)(found.cached * 4096);
}

int cache_drop(int fd, uint64_t off, uint64_t len)
{
	for (int i = 0; i < 10; i++) {
		int64_t left;

		if (fdatasync(fd) && errno != EBADF && errno != EINVAL)
			return -errno;
		posix_fadvise(fd, (off_t)off, (off_t)len, POSIX_FADV_DONTNEED);
		left = cache_bytes(fd, off, len);
		if (left <= 0)
			return (int)left;
		/* Waits because the CUDA driver may keep pages of the previous run mapped or
		 * pinned for a moment. */
		usleep(20000);
	}
	return -EBUSY;
}

/* Part of the file that one thread reads in order through its own descriptor. So the kernel's
 * readahead works as for any program that reads a file. */
struct warming {
	int fd;
	uint64_t off, end;
	pthread_t thread;
};

static void *warming_main(void *arg)
{
	struct warming *w = arg;
	char *buf =
		mmap(NULL, WARM_BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char name[64];
	int fd;

	snprintf(name, sizeof(name), "/proc/self/fd/%d", w->fd);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	while (fd >= 0 && buf != MAP_FAILED && w->off < w->end) {
		uint64_t n = w->end - w->off < WARM_BLOCK ? w->end - w->off : WARM_BLOCK;
		ssize_t got = pread(fd, buf, n, (off_t)w->off);

		if (got <= 0)
			break;
		w->off += (uint64_t)got;
	}
	if (fd >= 0)
		close(fd);
	if (buf != MAP_FAILED)
		munmap(buf, WARM_BLOCK);
	return NULL;
}

int cache_warm(int fd, uint64_t off, uint64_t len)
{
	struct warming w[WARM_THREADS];
	uint64_t share = (len / WARM_THREADS + 4095) / 4096 * 4096, at = off;
	int64_t there = cache_bytes(fd, off, len);
	unsigned made = 0;

	if (there < 0 || (uint64_t)there >= len)
		return there < 0 ? (int)there : 0;
	for (; made < WARM_THREADS && at < off + len; made++, at += share) {
		uint64_t end = at + share < off + len ? at + share : off + len;

		w[made] = (struct warming){fd, at, end, 0};
		if (pthread_create(&w[made].thread, NULL, warming_main, &w[made]))
			break;
	}
	for (unsigned i = 0; i < made; i++)
		pthread_join(w[i].thread, NULL);
	there = cache_bytes(fd, off, len);
	return there < 0 ? (int)there : (uint64_t)there >= len ? 0 : -EBUSY;
}
