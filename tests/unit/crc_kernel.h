/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a kernel of src/device/crc_sum.cuh on the CPU, and compares its results with those of the
 * library's own CRC. A POSIX thread takes the place of each thread of a GPU block. Some pieces
 * start or end beside pages that cannot be read, so a kernel that reads beyond its piece crashes.
 *
 * A test program defines SOURCE, the kernel's file, and raw_crc, which returns the raw CRC of `len`
 * bytes followed by `after` zero bytes. Then it includes this file, which has all cases.
 */
#ifndef TESTS_CRC_KERNEL_H
#define TESTS_CRC_KERNEL_H

#include "test.h"

#include <pthread.h>
#include <sys/mman.h>

/* ---- what the kernel uses of CUDA ---- */

#define __constant__
#define __device__
#define __forceinline__ inline
#define __global__ static
#define __launch_bounds__(threads, blocks)
#define __shared__ static
#define __ldcs(at) (*(at))
#define __ldcv(at) (*(at))
#define __shfl_down_sync(mask, value, delta) (crc) shuffle_down(value, delta)
#define __syncthreads() barrier_wait()

static _Thread_local struct {
	unsigned int x;
} threadIdx, blockIdx;
static pthread_barrier_t barrier;
static unsigned long long shuffled[1024];

static void barrier_wait(void)
{
	pthread_barrier_wait(&barrier);
}

/* Replaces the GPU instruction that passes values between threads. All threads of the block must
 * call this function together. */
static unsigned long long shuffle_down(unsigned long long value, unsigned int delta)
{
	const unsigned int lane = threadIdx.x % 32;
	unsigned long long out;

	shuffled[threadIdx.x] = value;
	barrier_wait();
	out = shuffled[threadIdx.x + (lane + delta < 32 ? delta : 0)];
	barrier_wait();
	return out;
}

#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#include SOURCE

static struct piece *launched;
static unsigned launched_count;

static void *thread_run(void *arg)
{
	threadIdx.x = (unsigned)(uintptr_t)arg;
	for (unsigned i = 0; i < launched_count; i++) {
		blockIdx.x = i;
		KERNEL(launched);
		barrier_wait();
	}
	return NULL;
}

static void launch(struct piece *pieces, unsigned count)
{
	pthread_t threads[THREADS];

	launched = pieces;
	launched_count = count;
	pthread_barrier_init(&barrier, NULL, THREADS);
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, thread_run, (void *)(uintptr_t)i), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&barrier);
}

/* ---- the cases ---- */

#define PAGE 4096u
#define LEN (40u * PAGE)

static unsigned char *mem; /* LEN bytes, between two pages that cannot be read */

static int mem_open(void **state)
{
	uint64_t seed = test_seed(21);

	(void)state;
	mem = mmap(NULL, LEN + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED)
		return -1;
	mem += PAGE;
	if (mprotect(mem, LEN, PROT_READ | PROT_WRITE))
		return -1;
	for (size_t i = 0; i < LEN; i++)
		mem[i] = (unsigned char)(test_random(&seed) >> 32);
	return 0;
}

static int mem_close(void **state)
{
	(void)state;
	return munmap(mem - PAGE, LEN + 2 * PAGE);
}

/* Runs the kernel twice for each length: for a piece that starts `gap` bytes after an unreadable
 * page, and for one that ends `gap` bytes before such a page. `after` is the number of bytes that
 * follow the piece in its range. */
static void check(const unsigned *lens, unsigned count, unsigned gap, uint64_t after)
{
	struct piece pieces[2 * 16];

	for (unsigned i = 0; i < 2 * count; i++) {
		const unsigned len = lens[i / 2];
		const unsigned char *at = i % 2 ? mem + LEN - len - gap : mem + gap;

		pieces[i] = (struct piece){(uintptr_t)at, len, after, 0xeeeeeeeeeeeeeeee};
	}
	launch(pieces, 2 * count);
	for (unsigned i = 0; i < 2 * count; i++)
		assert_int_equal(
			pieces[i].raw,
			raw_crc((const void *)(uintptr_t)pieces[i].begin, lens[i / 2], after));
}

static void short_pieces(void **state)
{
	static const unsigned lens[] = {0, 1, 2, 3, 4, 5, 7, 8, 131, 511, 512, 513};

	(void)state;
	for (unsigned gap = 0; gap < 9; gap++)
		check(lens, sizeof(lens) / sizeof(lens[0]), gap, 0);
}

static void pieces_of_tiles(void **state)
{
	static const unsigned lens[] = {TILE - 1,     TILE,	    TILE + 1,	      TILE + 4,
					TILE + 512,   2 * TILE - 3, 2 * TILE,	      3 * TILE + 77,
					4 * TILE - 4, 4 * TILE,	    4 * TILE + 12345, LEN - 7};

	(void)state;
	check(lens, sizeof(lens) / sizeof(lens[0]), 0, 0);
	check(lens, sizeof(lens) / sizeof(lens[0]), 5, 0);
}

static void bytes_after_the_piece(void **state)
{
	static const unsigned lens[] = {5, TILE};
	static const uint64_t afters[] = {1,
					  3,
					  65536,
					  0x7fffffff,
					  0x80000000,
					  (uint64_t)1 << 32,
					  12345678901,
					  UINT64_MAX / 2,
					  (uint64_t)1 << 62,
					  (uint64_t)1 << 63};

	(void)state;
	for (unsigned i = 0; i < sizeof(afters) / sizeof(afters[0]); i++)
		check(lens, 2, 0, afters[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(short_pieces),
		cmocka_unit_test(pieces_of_tiles),
		cmocka_unit_test(bytes_after_the_piece),
	};

	return cmocka_run_group_tests(tests, mem_open, mem_close);
}

#endif
