/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixture of tests in which a stream waits for the test: that of streams.h, and two streams, a
 * queue, memory of the GPU, and a word in memory, the gate. A stream that waits for the gate
 * executes nothing until the test opens the gate.
 */
#ifndef GATE_H
#define GATE_H

#include "../graphs.h"
#include "streams.h"

#define LIMIT 20000000000LL /* timeout in ns; only a hang lasts that long */
#define SEGS 40u	    /* maximum number of segments of a request */

static struct pst_cu_stream *held, *other;
static struct penstock_queue *q;
static struct penstock_storage *out; /* the file of `st`, opened for writing */
static char *mem;
static uint64_t *gate, gate_turn;

static inline int gate_setup(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_queue_opts queue_opts = PENSTOCK_QUEUE_OPTS_INIT;
	void *ptr;

	opts.flags = PENSTOCK_O_WRITE;
	queue_opts.segs_max = SEGS;
	if (setup(state) || graphs_load() || penstock_open(path, &opts, &out) ||
	    penstock_queue_open(&queue_opts, &q) || penstock_alloc(gpu, FILE_LEN, &ptr) ||
	    penstock_prepare(st, gpu, PENSTOCK_READ) ||
	    api->cuMemHostAlloc((void **)&gate, 4096, 2))
		return -1;
	mem = ptr;
	*gate = 0;
	/* Two streams that are created one after the other use different hardware queues. */
	return api->cuStreamCreateWithPriority(&held, PST_CU_STREAM_NON_BLOCKING, 0) ||
	       api->cuStreamCreateWithPriority(&other, PST_CU_STREAM_NON_BLOCKING, 0);
}

static inline int gate_teardown(void **state)
{
	api->cuStreamDestroy(held);
	api->cuStreamDestroy(other);
	penstock_queue_close(q);
	penstock_close(out);
	penstock_free(gpu, mem);
	api->cuMemFreeHost(gate);
	return teardown(state);
}

/* Lets a stream wait until the gate is opened. */
static inline void gate_shut(struct pst_cu_stream *stream)
{
	assert_int_equal(
		api->cuStreamWaitValue64(stream, (uintptr_t)gate, ++gate_turn, PST_CU_WAIT_GEQ),
		PST_CU_OK);
}

static inline void gate_open(void)
{
	__atomic_store_n(gate, gate_turn, __ATOMIC_RELEASE);
}

/* Takes a completion, which must have this result. */
static inline void await(int64_t result)
{
	struct penstock_done done;

	assert_int_equal(penstock_wait(q, &done, 1, 1, LIMIT), 1);
	assert_int_equal(done.result, result);
}

#endif
