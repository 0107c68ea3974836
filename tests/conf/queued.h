/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixture of the tests of queues: a queue for requests to the object of remote_object.h, and
 * callbacks that are counted. One lane (a worker thread of the device) carries the requests for
 * host memory, in chunks of 64 KiB. The store holds every transfer until the test releases it, so
 * the test knows which transfers are in flight. Only test_cancel.c, test_close.c, test_costs.c and
 * test_queue.c include this file.
 */
#ifndef QUEUED_H
#define QUEUED_H

/* Length of the object in bytes. The chunks that a lane (a worker thread) may have in flight
 * together hold fewer bytes, so a lane is full before it has read the whole object. */
#define LEN (20u << 20)
#include "remote_object.h"

#include <pthread.h>
#include <sched.h>

#include "core/lane/chunk.h"
#include "core/lane/lane.h"
#include "core/lane/pump.h"

#define PIECE 65536u /* length of a chunk for host memory, see set_device_options */
#define MAX 1024

static struct penstock_queue *q;
static struct penstock_storage *st;
static struct penstock_done done[MAX];
static unsigned fired[MAX]; /* number of times that each request's callback ran */
static bool inside;	    /* true while the test is inside penstock_poll or penstock_wait */
static pthread_t caller;

static inline void begin_case(unsigned fail_one_in, unsigned requests_max)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;

	remote_create(fail_one_in);
	st = open_object(0);
	opts.requests_max = requests_max;
	assert_int_equal(penstock_queue_open(&opts, &q), 0);
	memset(fired, 0, sizeof(fired));
	memset(back, 0xee, LEN);
	caller = pthread_self();
	inside = false;
}

static inline int close_queue_and_remote(void **state)
{
	if (remote)
		async_release(remote);
	penstock_queue_close(q);
	penstock_close(st);
	q = NULL;
	st = NULL;
	return remote_destroy(state);
}

static inline void count_callback(const struct penstock_done *one)
{
	assert_true(inside && pthread_equal(caller, pthread_self()));
	fired[(uintptr_t)one->user]++;
}

/* Makes request `i`, which reads `len` bytes at `off`. Its callback counts its calls in
 * fired[i]. */
static inline struct penstock_req read_req(struct penstock_seg *seg, unsigned i, uint64_t off,
					   uint64_t len)
{
	struct penstock_req req = test_request(st, seg, 1, PENSTOCK_READ);

	*seg = (struct penstock_seg){.buf = back + off, .dev = host, .off = off, .row_len = len};
	req.user = (void *)(uintptr_t)i;
	req.done = count_callback;
	return req;
}

static inline uint64_t submit_read(unsigned i, uint64_t off, uint64_t len)
{
	struct penstock_seg seg;
	struct penstock_req req = read_req(&seg, i, off, len);
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

/* Submits a long read, and waits until the host device's only lane (its worker thread) has its
 * maximum number of chunks in flight. The store holds all these chunks. Returns the request's
 * ID. */
static inline uint64_t fill_lane(void)
{
	uint64_t id = submit_read(0, 0, LEN);

	assert_int_equal(async_await(remote, PST_LANE_CHUNKS), 0);
	return id;
}

/* Waits until the host device's worker thread, its lane, has taken every submitted request from its
 * inbox. */
static inline void await_empty_inbox(void)
{
	struct pst_lane *lane = &atomic_load(&host->pump)->lanes[0];
	uint64_t until = test_now_ns() + 60000000000u;

	while (atomic_load(&lane->inbox) && test_now_ns() < until)
		sched_yield();
	assert_null(atomic_load(&lane->inbox));
}

/* The main function of the test programs: sets the options of the host device and runs the
 * cases. */
#define run_queues(tests) (set_device_options(), cmocka_run_group_tests(tests, setup, teardown))

static inline void set_device_options(void)
{
	static struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;

	opts.lanes = 1;
	opts.slot_bytes = PIECE; /* this option also sets the length of a chunk */
	host_opts = &opts;
	test_use_standin();
}

#endif
