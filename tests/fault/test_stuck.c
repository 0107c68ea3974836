/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests in the order of a stream that does not come: it waits for somebody, its
 * context broke, or the lane that watches it hangs. They can be cancelled, run into their
 * deadline and are ended by closing the queue; the stream goes on by itself when it is let
 * go. No request of this kind is waited for without an end.
 */
#include "world.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "calls.h"
#include "core/lane/pump.h"
#include "device/cuda_api.h"

#define LEN (256u << 10)
#define LIMIT 20000000000LL /* nothing takes as long but a hang */

static const struct pst_cuda *api;
static struct pst_cu_ctx *ctx;
static struct pst_cu_stream *stream;
static struct penstock_device *gpu;
static struct penstock_storage *st;
static uint64_t *gate;
static pst_cu_ptr gate_dev;
static void *mem;
static const char *name;

static int setup(void **state)
{
	(void)state;
	name = world_name("stuck", false);
	api = pst_cuda_get(NULL);
	if (!api)
		return -1;
	gpu = world_device_of("cuda:0", "auto", 256u << 10, 1);
	world_file(name, LEN, 1);
	if (api->cuDevicePrimaryCtxRetain(&ctx, 0) || api->cuCtxSetCurrent(ctx) ||
	    api->cuMemHostAlloc((void **)&gate, 4096, 2) ||
	    api->cuMemHostGetDevicePointer(&gate_dev, gate, 0) ||
	    api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0))
		return -1;
	*gate = 0;
	return penstock_alloc(gpu, LEN, &mem) || penstock_open(name, NULL, &st) ||
	       penstock_prepare(st, gpu, PENSTOCK_READ);
}

static int teardown(void **state)
{
	(void)state;
	penstock_close(st);
	penstock_free(gpu, mem);
	api->cuStreamDestroy(stream);
	api->cuMemFreeHost(gate);
	api->cuCtxSetCurrent(NULL);
	api->cuDevicePrimaryCtxRelease(0);
	penstock_device_close(gpu);
	unlink(name);
	return 0;
}

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void hold(void)
{
	static uint64_t turn;

	assert_int_equal(api->cuStreamWaitValue64(stream, gate_dev, ++turn, PST_CU_WAIT_GEQ), 0);
}

static void let_go(void)
{
	__atomic_fetch_add(gate, 1, __ATOMIC_RELEASE);
	assert_int_equal(api->cuStreamSynchronize(stream), 0);
}

static uint64_t submit(struct penstock_queue *q, uint64_t deadline_ns)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = LEN};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	uint64_t id;

	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.stream = stream;
	req.deadline_ns = deadline_ns;
	if (penstock_submit(q, &req, 1, &id) != 1)
		fail_msg("submit: %s", penstock_errmsg());
	return id;
}

static void ends_with(struct penstock_queue *q, int64_t result, enum penstock_why why)
{
	struct penstock_done done;

	assert_int_equal(penstock_wait(q, &done, 1, 1, LIMIT), 1);
	assert_int_equal(done.result, result);
	if (result >= 0)
		return;
	assert_int_equal(done.report->why, why);
	assert_int_equal(done.report->bytes, 0);
	assert_int_equal(done.report->stop_off, 0);
	assert_true(strlen(done.report->text) > 10);
}

static void cancelled(void **state)
{
	struct penstock_queue *q;
	uint64_t id;

	(void)state;
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	hold();
	id = submit(q, 0);
	assert_int_equal(penstock_cancel(q, id), 0);
	ends_with(q, -ECANCELED, PENSTOCK_WHY_CANCELLED);
	let_go(); /* it goes on although nobody is there any more */
	submit(q, 0);
	ends_with(q, LEN, PENSTOCK_WHY_NONE);
	penstock_queue_close(q);
}

static void deadlines(void **state)
{
	struct penstock_queue *q;

	(void)state;
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	hold();
	submit(q, now_ns() + 2000000);
	ends_with(q, -ETIME, PENSTOCK_WHY_DEADLINE);
	let_go();
	submit(q, now_ns() + LIMIT);
	ends_with(q, LEN, PENSTOCK_WHY_NONE);
	penstock_queue_close(q);
}

/* The lane hangs in a call for another, and has one that it watches and one that it has not
 * even seen. The stream goes on. */
static void lane_hangs(void **state)
{
	struct pst_lane *lane = &atomic_load(&gpu->pump)->lanes[0];
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = LEN};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_queue *q, *more;
	uint64_t ids[2];

	(void)state;
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	assert_int_equal(penstock_queue_open(NULL, &more), 0);
	world_cache(name, true);
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.path = "bounce";
	hold();
	ids[0] = submit(q, 0);
	while (atomic_load(&lane->inbox))
		sched_yield();
	calls_arm(CALLS_FILL, 1, CALLS_HANG);
	assert_int_equal(penstock_submit(more, &req, 1, NULL), 1);
	assert_true(calls_await(1));
	ids[1] = submit(q, 0);
	assert_non_null(atomic_load(&lane->inbox));
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(penstock_cancel(q, ids[i]), 0);
		ends_with(q, -ECANCELED, PENSTOCK_WHY_CANCELLED);
	}
	submit(q, now_ns() + 2000000);
	ends_with(q, -ETIME, PENSTOCK_WHY_DEADLINE);
	let_go();
	hold();
	submit(q, 0);
	penstock_queue_close(q);
	let_go();
	calls_disarm();
	calls_let(1);
	ends_with(more, LEN, PENSTOCK_WHY_NONE);
	penstock_queue_close(more);
}

/* The lane hangs in a call for one storage, and keeps something of it. Others close, and so
 * does a device that it never copied to. */
static void others_close(void **state)
{
	struct pst_lane *lane = &atomic_load(&gpu->pump)->lanes[0];
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = LEN};
	struct penstock_req req = PENSTOCK_REQ_INIT, other;
	struct penstock_device *host;
	struct penstock_queue *q;

	(void)state;
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	world_cache(name, true);
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.path = "mapped";
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	ends_with(q, LEN, PENSTOCK_WHY_NONE);
	assert_true(atomic_load(&lane->caches));
	other = req;
	assert_int_equal(penstock_open(name, NULL, &other.storage), 0);
	assert_true(penstock_device_open("host", NULL, &host) >= 0);
	assert_int_equal(penstock_prepare(other.storage, host, PENSTOCK_READ), 0);
	req.path = "bounce";
	calls_arm(CALLS_FILL, 1, CALLS_HANG);
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_true(calls_await(1));
	calls_disarm();
	alarm(LIMIT / 1000000000);
	assert_int_equal(penstock_transfer(&other, NULL), LEN); /* by this thread */
	assert_true(atomic_load(&other.storage->cached_by_lanes));
	penstock_close(other.storage);
	penstock_device_close(host);
	alarm(0);
	calls_let(1);
	ends_with(q, LEN, PENSTOCK_WHY_NONE);
	penstock_queue_close(q);
}

static void closed(void **state)
{
	struct penstock_queue *q;

	(void)state;
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	hold();
	submit(q, 0);
	submit(q, 0);
	penstock_queue_close(q);
	let_go();
}

/* More of them than there are places at once: what was given up comes back when the
 * stream has passed it, and not before. */
static void many(void **state)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_queue *q;

	(void)state;
	opts.requests_max = 8;
	opts.segs_max = 2;
	assert_int_equal(penstock_queue_open(&opts, &q), 0);
	for (unsigned round = 0; round < 5; round++) {
		hold();
		for (unsigned i = 0; i < 300; i++) {
			assert_int_equal(penstock_cancel(q, submit(q, 0)), 0);
			ends_with(q, -ECANCELED, PENSTOCK_WHY_CANCELLED);
		}
		let_go();
	}
	submit(q, 0);
	ends_with(q, LEN, PENSTOCK_WHY_NONE);
	penstock_queue_close(q);
}

/* Unregistering waits for the application's work, however long that takes, and holds up
 * the whole process meanwhile: reads by the path that registers, and those behind them,
 * must not do it. */
static void busy(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = LEN};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_queue *q;
	struct penstock_done done;

	(void)state;
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.path = "mapped";
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	hold();
	for (unsigned i = 0; i < 20; i++) {
		if (penstock_submit(q, &req, 1, NULL) != 1)
			fail_msg("submit: %s", penstock_errmsg());
		assert_int_equal(penstock_wait(q, &done, 1, 1, LIMIT), 1);
		assert_int_equal(done.result, LEN);
		usleep(1000); /* the lane tidies up */
	}
	let_go();
	penstock_queue_close(q);
}

static void *free_main(void *arg)
{
	return (void *)(intptr_t)penstock_free(gpu, arg);
}

/* To free memory is such a call, too: it waits for the streams that wait for us before the
 * driver would, which lets nobody copy meanwhile. */
static void freed_meanwhile(void **state)
{
	struct penstock_queue *q;
	pthread_t thread;
	void *more, *ret;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, LEN, &more), 0);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	hold();
	submit(q, 0);
	assert_int_equal(pthread_create(&thread, NULL, free_main, more), 0);
	usleep(20000); /* it is at it */
	__atomic_fetch_add(gate, 1, __ATOMIC_RELEASE);
	ends_with(q, LEN, PENSTOCK_WHY_NONE);
	assert_int_equal(pthread_join(thread, &ret), 0);
	assert_int_equal((intptr_t)ret, 0);
	penstock_queue_close(q);
}

static unsigned long unregistered(void)
{
	unsigned long (*calls)(const char *);
	void *lib = dlopen(getenv("PENSTOCK_LIBCUDA"), RTLD_NOW);

	*(void **)&calls = dlsym(lib, "pst_standin_calls");
	return calls("cuMemHostUnregister");
}

/* What a storage had registered goes when it closes, by whichever lane it came, and not
 * before. */
static void until_it_closes(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = LEN};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_queue *q, *own;
	struct penstock_done done;
	unsigned long before;
	uint64_t until;

	(void)state;
	if (getenv("PENSTOCK_STANDIN") && !strcmp(getenv("PENSTOCK_STANDIN"), "0"))
		test_skip("the stand-in counts the calls");
	req.segs = &seg;
	req.seg_count = 1;
	req.path = "mapped";
	assert_int_equal(penstock_open(name, NULL, &req.storage), 0);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	opts.own_lane = gpu;
	assert_int_equal(penstock_queue_open(&opts, &own), 0);
	before = unregistered();
	for (unsigned i = 0; i < 10; i++) {
		assert_int_equal(penstock_transfer(&req, NULL), LEN);
		assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
		assert_int_equal(penstock_wait(q, &done, 1, 1, LIMIT), 1);
		assert_int_equal(done.result, LEN);
		assert_int_equal(penstock_submit(own, &req, 1, NULL), 1);
		assert_int_equal(penstock_wait(own, &done, 1, 1, LIMIT), 1);
		assert_int_equal(done.result, LEN);
		usleep(1000); /* lanes tidy up */
	}
	assert_int_equal(unregistered(), before);
	penstock_close(req.storage);
	until = now_ns() + LIMIT;
	while (unregistered() < before + 30 && now_ns() < until)
		usleep(1000);
	assert_int_equal(unregistered(), before + 30);
	penstock_queue_close(own);
	penstock_queue_close(q);
}

/* Nor must the close of another device wait for it. */
static void other_closes(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = LEN};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_device *host;

	(void)state;
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.path = "mapped";
	hold();
	for (unsigned i = 0; i < 20; i++) {
		assert_int_equal(penstock_transfer(&req, NULL), LEN);
		usleep(1000); /* the lane tidies up */
		assert_true(penstock_device_open("host", NULL, &host) >= 0);
		alarm(LIMIT / 1000000000);
		penstock_device_close(host);
		alarm(0);
	}
	let_go();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cancelled),
		cmocka_unit_test(deadlines),
		cmocka_unit_test(lane_hangs),
		cmocka_unit_test(others_close),
		cmocka_unit_test(closed),
		cmocka_unit_test(many),
		cmocka_unit_test(busy),
		cmocka_unit_test(freed_meanwhile),
		cmocka_unit_test(until_it_closes),
		cmocka_unit_test(other_closes),
	};

	world_use_standin();
	return cmocka_run_group_tests_name("stuck", tests, setup, teardown);
}
