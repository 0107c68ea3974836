/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixture for the tests of copiers. A copier queues the copies of one worker thread on a device.
 * Each case gets a new copier of device cuda:0, with host memory and device memory. The fixture can
 * also create a stream that blocks one hardware queue. Included by test_cuda_copy.c and
 * test_cuda_batch.c only.
 */
#ifndef PENSTOCK_CUDA_COPIER_H
#define PENSTOCK_CUDA_COPIER_H

#include "cuda_device.h"

static struct penstock_device *dev;
static struct pst_copier *cp;
static struct pst_cu_ctx *prim;
/* Registered host memory and device memory, HOST bytes each. */
static char *host, *mem;
static uint64_t *words;
#define HOST (4 * MIB)
/* Copies of this size to or from the device use the hardware queue for their direction, not the
 * compute queue. */
#define BIG (MIB / 2)

static inline int copier_setup(void **state)
{
	(void)state;
	dev = device_open("cuda:0");
	host = pages_map(HOST, PROT_READ | PROT_WRITE);
	mem = device_alloc(dev, HOST);
	assert_int_equal(ops->host_register(dev, host, HOST, false, &err), 0);
	assert_int_equal(ops->copier_open(dev, 9, &cp, &err), 0);
	words = words_alloc(dev, 64);
	assert_non_null(words);
	assert_int_equal(cu->cuDevicePrimaryCtxRetain(&prim, 0), PST_CU_OK);
	return 0;
}

static inline int copier_teardown(void **state)
{
	if (is_standin())
		standin_fail(NULL);
	ops->copier_close(cp);
	words_free(dev, words, 64);
	ops->host_unregister(dev, host, &err);
	ops->free(dev, mem, &err);
	cu->cuDevicePrimaryCtxRelease(0);
	device_close(dev);
	munmap(host, HOST);
	return case_end(state);
}

static inline void ctx_enter(void)
{
	assert_int_equal(cu->cuCtxPushCurrent(prim), PST_CU_OK);
}

static inline void ctx_leave(void)
{
	struct pst_cu_ctx *was;

	assert_int_equal(cu->cuCtxPopCurrent(&was), PST_CU_OK);
}

static inline struct pst_rect flat_rect(void *dst, const void *src, uint64_t len)
{
	return (struct pst_rect){dst, src, len, len, len, 1};
}

static inline int queue_in(void *dst, const void *src, uint64_t len)
{
	struct pst_rect r = flat_rect(dst, src, len);

	return ops->copy_in(cp, &r);
}

static inline int queue_out(void *dst, const void *src, uint64_t len)
{
	struct pst_rect r = flat_rect(dst, src, len);

	return ops->copy_out(cp, &r);
}

static uint64_t ticket_record(void)
{
	uint64_t ticket = UINT64_MAX;

	assert_int_equal(ops->record(cp, &ticket), 0);
	return ticket;
}

static inline void copies_wait(void)
{
	assert_int_equal(ops->wait(cp, ticket_record()), 0);
}

/* Creates a stream that waits for words[63]. The stream first uses hardware queue `first`, so
 * that its wait blocks this queue. */
enum held_queue { COMPUTE, TO_DEVICE, TO_HOST };

static inline struct pst_cu_stream *stream_hold(enum held_queue first)
{
	pst_cu_ptr at, spare = (uintptr_t)mem + 3 * MIB;
	struct pst_cu_stream *s;

	ctx_enter();
	assert_int_equal(cu->cuStreamCreateWithPriority(&s, PST_CU_STREAM_NON_BLOCKING, 0), 0);
	assert_int_equal(cu->cuMemHostGetDevicePointer(&at, &words[63], 0), PST_CU_OK);
	if (first == TO_DEVICE)
		assert_int_equal(cu->cuMemcpyHtoDAsync(spare, host + 3 * MIB, BIG, s), 0);
	if (first == TO_HOST)
		assert_int_equal(cu->cuMemcpyDtoHAsync(host + 3 * MIB, spare, BIG, s), 0);
	if (first == COMPUTE)
		assert_int_equal(cu->cuMemsetD8Async(spare, 0, 1, s), 0);
	assert_int_equal(cu->cuStreamWaitValue64(s, at, 1, PST_CU_WAIT_GEQ), PST_CU_OK);
	ctx_leave();
	return s;
}

static inline void stream_release(struct pst_cu_stream *s)
{
	__atomic_store_n(&words[63], 1, __ATOMIC_RELEASE);
	ctx_enter();
	assert_int_equal(cu->cuStreamSynchronize(s), PST_CU_OK);
	assert_int_equal(cu->cuStreamDestroy(s), PST_CU_OK);
	ctx_leave();
}

static inline bool ticket_done_within(uint64_t ticket, long ms)
{
	long until = now_ms() + ms;
	int ret;

	while (!(ret = ops->query(cp, ticket)) && now_ms() < until)
		usleep(200);
	assert_true(ret >= 0);
	return ret;
}

static inline void random_fill(char *at, size_t len, uint64_t *random)
{
	for (size_t i = 0; i < len; i++)
		at[i] = (char)(test_random(random) >> 56);
}

#endif
