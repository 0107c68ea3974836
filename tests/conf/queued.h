/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the tests of queues: a queue over far_side.h's object, whose host memory goes by
 * one lane in pieces of 64 KiB, and counted callbacks. The storage holds every
 * transfer back until the test lets it go, so that "in flight" is a fact and not a
 * guess. Included by test_queue.c and test_close.c only.
 */
#ifndef QUEUED_H
#define QUEUED_H

#define LEN (20u << 20) /* more pieces than a lane may have in flight */
#include "far_side.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "core/lane/pump.h"

#define PIECE 65536u /* of host memory, see queue_devices() */
#define MAX 1024

static struct penstock_queue *q;
static struct penstock_storage *st;
static struct penstock_done done[MAX];
static unsigned fired[MAX]; /* callbacks by request */
static bool inside;	    /* a poll or a wait */
static pthread_t caller;

static inline uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline void begin_case(unsigned fail_one_in, unsigned requests_max)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;

	far_side(fail_one_in);
	st = open_it(0);
	opts.requests_max = requests_max;
	assert_int_equal(penstock_queue_open(&opts, &q), 0);
	memset(fired, 0, sizeof(fired));
	memset(back, 0xee, LEN);
	caller = pthread_self();
	inside = false;
}

static inline int end_queue(void **state)
{
	if (far)
		async_release(far);
	penstock_queue_close(q);
	penstock_close(st);
	q = NULL;
	st = NULL;
	return end_case(state);
}

static inline void fire(const struct penstock_done *one)
{
	assert_true(inside && pthread_equal(caller, pthread_self()));
	fired[(uintptr_t)one->user]++;
}

/* Request `i`: `len` bytes at `off`, which a callback counts. */
static inline struct penstock_req read_at(struct penstock_seg *seg, unsigned i, uint64_t off,
					  uint64_t len)
{
	struct penstock_req req = request(st, seg, 1, PENSTOCK_READ);

	*seg = (struct penstock_seg){.buf = back + off, .dev = host, .off = off, .row_len = len};
	req.user = (void *)(uintptr_t)i;
	req.done = fire;
	return req;
}

static inline uint64_t submit_read(unsigned i, uint64_t off, uint64_t len)
{
	struct penstock_seg seg;
	struct penstock_req req = read_at(&seg, i, off, len);
	uint64_t id;

	assert_int_equal(penstock_submit(q, &req, 1, &id), 1);
	return id;
}

static inline int poll_queue(unsigned max)
{
	int n;

	inside = true;
	n = penstock_poll(q, done, max);
	inside = false;
	return n;
}

static inline int wait_queue(unsigned min, unsigned max, int64_t timeout_ns)
{
	int n;

	inside = true;
	n = penstock_wait(q, done, min, max, timeout_ns);
	inside = false;
	return n;
}

/* The only lane of the host has as many chunks in flight as it may, and holds them. */
static inline uint64_t fill_lane(void)
{
	uint64_t id = submit_read(0, 0, LEN);

	assert_int_equal(async_await(far, PST_LANE_CHUNKS), 0);
	return id;
}

/* The lane has seen all that was submitted. */
static inline void seen_by_lane(void)
{
	struct pst_lane *lane = &atomic_load(&host->pump)->lanes[0];
	uint64_t until = now_ns() + 60000000000u;

	while (atomic_load(&lane->inbox) && now_ns() < until)
		sched_yield();
	assert_null(atomic_load(&lane->inbox));
}

/* The programs' main: options of the host device, then the cases. */
#define run_queues(tests) (queue_devices(), cmocka_run_group_tests(tests, setup, teardown))

static inline void queue_devices(void)
{
	static struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;

	opts.lanes = 1;
	opts.slot_bytes = PIECE; /* a chunk's length */
	host_opts = &opts;
	test_use_standin();
}

#endif
