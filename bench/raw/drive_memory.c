/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drive_memory FILE [ROUNDS]: measures plain O_DIRECT reads of a drive into memory that is used
 * again and again (8 or 32 MiB), and into memory of which each byte is used once (256 MiB). Both
 * kinds are memory in huge pages. If the CPUs of a physical host emulate the drive, they copy the
 * bytes, and a copy into memory that is in the CPU's cache is faster. FILE must have at least
 * 256 MiB. It is read in calls of 512 KiB, 16 or 64 of them in flight. Prints the GB/s of each
 * round.
 *
 *     cc -O2 -static bench/raw/drive_memory.c -luring -o drive_memory
 */
#define _GNU_SOURCE /* O_DIRECT */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define TOTAL ((size_t)256 << 20)
#define CALL ((size_t)512 << 10)
#define CALLS (TOTAL / CALL)
#define HUGE_PAGE ((size_t)2 << 20)
#define DEPTH_MAX 64u
/* The calls read ranges of 4 MiB, whose order readahead does not recognise. */
#define RANGE_CALLS (((size_t)4 << 20) / CALL)
#define RANGES (CALLS / RANGE_CALLS)

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static char *memory_map(void)
{
	char *mem = mmap(NULL, TOTAL + HUGE_PAGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (mem == MAP_FAILED)
		return NULL;
	mem += -(uintptr_t)mem % HUGE_PAGE;
	madvise(mem, TOTAL, MADV_HUGEPAGE);
	memset(mem, 1, TOTAL);
	return mem;
}

/* Reads all ranges with `depth` calls in flight. With `once`, each call has memory of its own, else
 * one of `depth` slots. Returns 0 or -errno. */
static int read_all(struct io_uring *ring, int fd, char *mem, unsigned depth, bool once)
{
	unsigned slots[DEPTH_MAX], slot_count = 0;
	size_t sent = 0, done = 0;

	while (slot_count < depth) {
		slots[slot_count] = slot_count;
		slot_count++;
	}
	while (done < CALLS) {
		struct io_uring_cqe *cqe;
		int ret;

		while (slot_count && sent < CALLS) {
			struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
			size_t range = sent / RANGE_CALLS * 37 % RANGES;
			unsigned slot = slots[--slot_count];

			io_uring_prep_read(sqe, fd, mem + (once ? sent : slot) * CALL, CALL,
					   (range * RANGE_CALLS + sent % RANGE_CALLS) * CALL);
			io_uring_sqe_set_data64(sqe, slot);
			ret = io_uring_submit(ring);
			if (ret < 0)
				return ret;
			sent++;
		}
		ret = io_uring_wait_cqe(ring, &cqe);
		if (ret)
			return ret;
		if (cqe->res != (int)CALL)
			return cqe->res < 0 ? cqe->res : -EIO;
		slots[slot_count++] = (unsigned)cqe->user_data;
		io_uring_cqe_seen(ring, cqe);
		done++;
	}
	return 0;
}

static int measure(int fd, char *mem, unsigned depth, bool once)
{
	struct io_uring ring;
	double start;
	int ret = io_uring_queue_init(2 * DEPTH_MAX, &ring, 0);

	if (ret)
		return ret;
	start = now_s();
	ret = read_all(&ring, fd, mem, depth, once);
	if (!ret)
		printf("depth %u, memory %s: %.2f GB/s\n", depth, once ? "used once" : "reused",
		       (double)TOTAL * 1e-9 / (now_s() - start));
	io_uring_queue_exit(&ring);
	return ret;
}

int main(int argc, char **argv)
{
	int fd = argc > 1 ? open(argv[1], O_RDONLY | O_DIRECT | O_CLOEXEC) : -1, ret = 0;
	int rounds = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 5;
	char *mem = memory_map();

	if (fd < 0 || !mem) {
		fprintf(stderr, "usage: drive_memory FILE [ROUNDS]: %s\n", strerror(errno));
		return 1;
	}
	for (int round = 0; round < rounds && !ret; round++)
		for (unsigned depth = 16; depth <= DEPTH_MAX && !ret; depth *= 4)
			for (int once = 0; once < 2 && !ret; once++)
				ret = measure(fd, mem, depth, once);
	if (ret)
		fprintf(stderr, "drive_memory: %s\n", strerror(-ret));
	return ret ? 1 : 0;
}
