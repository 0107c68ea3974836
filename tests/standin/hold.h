/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the tests of streams: pinned words, memory to copy to and from, and a way
 * to hold a stream up until it is let go. Included by
 * tests/unit/test_standin_streams.c and test_standin_queues.c only.
 */
#ifndef STANDIN_HOLD_H
#define STANDIN_HOLD_H

#include "check.h"

static volatile uint64_t *words; /* pinned; [0] is the one that streams wait for */
static pst_cu_ptr big;		 /* device memory to copy to and from */
static char *pinned;

static inline pst_cu_ptr word_addr(int i)
{
	return (uintptr_t)(words + i);
}

static inline void word_set(int i, uint64_t value)
{
	__atomic_store_n(words + i, value, __ATOMIC_RELEASE);
}

static inline uint64_t word_get(int i)
{
	return __atomic_load_n(words + i, __ATOMIC_ACQUIRE);
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

/* From here the stream does nothing until let_go(), and neither does what
 * shares the hardware queue that it used last.
 */
static inline void hold_queue(struct pst_cu_stream *s)
{
	word_set(0, 0);
	assert_int_equal(cu->cuStreamWaitValue64(s, word_addr(0), 1, PST_CU_WAIT_EQ), PST_CU_OK);
}

/* The same in the compute queue: copies of other streams go on. */
static inline void hold(struct pst_cu_stream *s)
{
	assert_int_equal(cu->cuMemsetD8Async(big + 8 * MIB - 1, 0, 1, s), PST_CU_OK);
	hold_queue(s);
}

static inline void let_go(void)
{
	word_set(0, 1);
}

static inline int hold_open(void **state)
{
	if (check_open(state))
		return -1;
	words = alloc_host(4096);
	pinned = alloc_host(8 * MIB);
	big = alloc_dev(8 * MIB);
	return 0;
}

static inline int hold_close(void **state)
{
	cu->cuMemFreeHost((void *)(uintptr_t)words);
	cu->cuMemFreeHost(pinned);
	cu->cuMemFree(big);
	return check_close(state);
}

static inline int hold_teardown(void **state)
{
	let_go();
	return check_teardown(state);
}

#endif
