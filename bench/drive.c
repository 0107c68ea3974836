/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drive's own limit, and the state of the page cache: moved by plain O_DIRECT
 * calls on threads or by rawring.c, dropped and filled as a section needs it, and
 * asked with cachestat(2). A run never trusts that a range is cold or warm: it asks.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench.h"

#define BUFFER (64u << 20) /* room for the deepest way */
#define WARM_THREADS 8
#define WARM_BLOCK (8u << 20)

#ifndef SYS_cachestat
#define SYS_cachestat 451 /* Linux 6.5 */
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
	snprintf(text, len, "%s %u x %zu KiB", way->engine, way->depth, way->block >> 10);
	return text;
}

/* One buffer for the process: pinning and first touch are not the drive's time. */
static char *buffer(void)
{
	static char *mem;

	if (mem)
		return mem;
	mem = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED)
		return mem = NULL;
	madvise(mem, BUFFER, MADV_HUGEPAGE);
	for (size_t i = 0; i < BUFFER; i += 8) /* no zeros: a drive may treat them kindly */
		*(uint64_t *)(mem + i) = i * 0x9e3779b97f4a7c15u + 1;
	return mem;
}

struct job {
	int fd;
	bool write;
	uint64_t off, count, stride;
	size_t block;
	char *buf;
	_Atomic unsigned slot;
	_Atomic uint64_t next;
	_Atomic int error;
};

static void *worker(void *arg)
{
	struct job *j = arg;
	char *mem = j->buf + atomic_fetch_add(&j->slot, 1) * j->block;
	uint64_t n;

	while ((n = atomic_fetch_add(&j->next, 1)) < j->count && !atomic_load(&j->error)) {
		off_t at = (off_t)(j->off + n * j->stride);
		ssize_t got = j->write ? pwrite(j->fd, mem, j->block, at)
				       : pread(j->fd, mem, j->block, at);

		if (got != (ssize_t)j->block)
			atomic_store(&j->error, got < 0 ? -errno : -EIO);
	}
	return NULL;
}

static int on_threads(struct job *j, unsigned count)
{
	pthread_t ids[64];
	unsigned made = 0;

	while (made < count && made < 64 && !pthread_create(&ids[made], NULL, worker, j))
		made++;
	for (unsigned i = 0; i < made; i++)
		pthread_join(ids[i], NULL);
	return made ? atomic_load(&j->error) : -EAGAIN;
}

int drive_move(int fd, bool write, uint64_t off, uint64_t count, uint64_t stride,
	       const struct drive_way *way)
{
	char *buf = buffer();
	struct job j = {.fd = fd,
			.write = write,
			.off = off,
			.count = count,
			.stride = stride,
			.block = way->block,
			.buf = buf};

	if (!buf || way->depth * way->block > BUFFER)
		return -ENOMEM;
	if (!strcmp(way->engine, "threads"))
		return on_threads(&j, way->depth);
	return rawring_move(fd, write, buf, off, count, stride, way);
}

int drive_best(struct bench *b, int fd, bool write, uint64_t off, uint64_t len, const char *group,
	       struct drive_way *best)
{
	static const struct drive_way ways[] = {
		{"uring", 4, 1 * MIB},	  {"uring", 16, 1 * MIB},   {"uring", 8, 2 * MIB},
		{"uring", 4, 4 * MIB},	  {"uring", 32, 256 * KIB}, {"threads", 4, 2 * MIB},
		{"threads", 16, 1 * MIB},
	};
	double best_rate = 0;

	if (write) /* the first pass over fresh extents is slower than the others */
		drive_move(fd, true, off, len / ways[0].block, ways[0].block, &ways[0]);
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
		usleep(20000); /* a mapping or a pin of the last run is just going */
	}
	return -EBUSY;
}

struct warming {
	int fd;
	uint64_t off, len;
	_Atomic uint64_t next;
};

static void *warm_worker(void *arg)
{
	struct warming *w = arg;
	char *buf =
		mmap(NULL, WARM_BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t at;

	if (buf == MAP_FAILED)
		return NULL;
	while ((at = atomic_fetch_add(&w->next, WARM_BLOCK)) < w->len)
		if (pread(w->fd, buf, WARM_BLOCK, (off_t)(w->off + at)) <= 0)
			break;
	munmap(buf, WARM_BLOCK);
	return NULL;
}

int cache_warm(int fd, uint64_t off, uint64_t len)
{
	struct warming w = {.fd = fd, .off = off, .len = len};
	pthread_t ids[WARM_THREADS];
	int64_t there = cache_bytes(fd, off, len);
	unsigned made = 0;

	if (there < 0 || (uint64_t)there >= len)
		return there < 0 ? (int)there : 0;
	while (made < WARM_THREADS && !pthread_create(&ids[made], NULL, warm_worker, &w))
		made++;
	for (unsigned i = 0; i < made; i++)
		pthread_join(ids[i], NULL);
	there = cache_bytes(fd, off, len);
	return there < 0 ? (int)there : (uint64_t)there >= len ? 0 : -EBUSY;
}
