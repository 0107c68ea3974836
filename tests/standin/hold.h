/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixture for the tests of streams: semaphores in pinned memory, memory to copy from and to, and
 * functions that block a stream and release it. Only tests/unit/test_standin_streams.c and
 * test_standin_queues.c include it.
 */
#ifndef STANDIN_HOLD_H
#define STANDIN_HOLD_H

#include "check.h"

/* Semaphores in pinned memory; blocked streams wait for the first. */
static volatile uint64_t *semaphores;
static pst_cu_ptr big; /* Device memory that the tests copy from and to. */
static char *pinned;

static inline pst_cu_ptr semaphore_addr(int i)
{
	return (uintptr_t)(semaphores + i);
}

static inline void semaphore_set(int i, uint64_t value)
{
	__atomic_store_n(semaphores + i, value, __ATOMIC_RELEASE);
}

static inline uint64_t semaphore_get(int i)
{
	return __atomic_load_n(semaphores + i, __ATOMIC_ACQUIRE);
}

static inline bool has_memops(void)
{
	int can = 0;

	cu->cuDeviceGetAttribute(&can, PST_CU_DEV_MEMOPS_64, 0);
	return can && cu->cuStreamWaitValue64;
}

#define need_memops()                                                            \
	do {                                                                     \
		if (!has_memops())                                               \
			test_skip("the driver has no stream memory operations"); \
	} while (0)

/* Blocks the stream until stream_release(). Also blocks all streams that share the hardware
 * queue which this stream has used last. */
static inline void stream_hold_queue(struct pst_cu_stream *s)
{
	semaphore_set(0, 0);
	assert_int_equal(cu->cuStreamWaitValue64(s, semaphore_addr(0), 1, PST_CU_WAIT_EQ),
			 PST_CU_OK);
}

/* Blocks the stream. The memset makes the stream wait in its compute queue, so that the copies of
 * other streams continue. */
static inline void stream_hold(struct pst_cu_stream *s)
{
	assert_int_equal(cu->cuMemsetD8Async(big + 8 * MIB - 1, 0, 1, s), PST_CU_OK);
	stream_hold_queue(s);
}

static inline void stream_release(void)
{
	semaphore_set(0, 1);
}

static inline int hold_open(void **state)
{
	if (check_open(state))
		return -1;
	semaphores = alloc_host(4096);
	pinned = alloc_host(8 * MIB);
	big = alloc_dev(8 * MIB);
	return 0;
}

static inline int hold_close(void **state)
{
	cu->cuMemFreeHost((void *)(uintptr_t)semaphores);
	cu->cuMemFreeHost(pinned);
	cu->cuMemFree(big);
	return check_close(state);
}

static inline int hold_teardown(void **state)
{
	stream_release();
	return check_teardown(state);
}

#endif
