/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request in stream order cannot start: its stream waits for an event, the stream's context is
 * broken, or the library's thread (lane) that watches the stream hangs. Such a request can be
 * cancelled, reach its deadline, or complete when the queue closes. The stream continues once it is
 * released. No test waits for such a request without a limit.
 */
#include "fixture.h"
#include "request.h"

#include <pthread.h>
#include <sched.h>

#include "calls.h"
#include "core/lane/lane.h"
#include "core/lane/pump.h"
#include "device/cuda_api.h"

#define LEN (256u << 10)
#define WAIT_NS 20000000000LL /* timeout in ns; only a hang lasts that long */

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
	name = fixture_name("stuck", false);
	api = pst_cuda_get(NULL);
	if (!api)
		return -1;
	gpu = fixture_open_device_lanes("cuda:0", "auto", 256u << 10, 1);
	fixture_make_file(name, LEN, 1);
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

static void stream_hold(void)
{
	static uint64_t turn;

	assert_int_equal(api->cuStreamWaitValue64(stream, gate_dev, ++turn, PST_CU_WAIT_GEQ), 0);
}

static void stream_release(void)
{
	__atomic_fetch_add(gate, 1, __ATOMIC_RELEASE);
	assert_int_equal(api->cuStreamSynchronize(stream), 0);
}

static uint64_t submit(struct penstock_queue *q, uint64_t deadline_ns)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = LEN};
	struct penstock_req req;
	uint64_t id;

	req = test_request(st, &seg, 1, PENSTOCK_READ);
	req.stream = stream;
	req.deadline_ns = deadline_ns;
	if (penstock_submit(q, &req, 1, &id) != 1)
		fail_msg("submit: %s", penstock_errmsg());
	return id;
}

static void assert_completion(struct penstock_queue *q, int64_t result, enum penstock_why why)
{
	struct penstock_done done;

	assert_int_equal(penstock_wait(q, &done, 1, 1, WAIT_NS), 1);
	assert_int_equal(done.result, result);
	if (result >= 0)
		return;
	assert_int_equal(done.report->why, why);
	assert_int_equal(done.report->bytes, 0);
	assert_int_equal(done.report->stop_off, 0);
	assert_true(strlen(done.report->text) > 10);
}

static void cancel_while_stream_waits(void **state)
{
	struct penstock_queue *q;
	uint64_t id;

	(void)state;
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	stream_hold();
	id = submit(q, 0);
	assert_int_equal(penstock_cancel(q, id), 0);
	assert_completion(q, -ECANCELED, PENSTOCK_WHY_CANCELLED);
	stream_release(); /* the stream continues although its request was cancelled */
	submit(q, 0);
	assert_completion(q, LEN, PENSTOCK_WHY_NONE);
	penstock_queue_close(q);
}

static void deadline_while_stream_waits(void **state)
{
	struct penstock_queue *q;

	(void)state;
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	stream_hold();
	submit(q, test_now_ns() + 2000000);
	assert_completion(q, -ETIME, PENSTOCK_WHY_DEADLINE);
	stream_release();
	submit(q, test_now_ns() + WAIT_NS);
	assert_completion(q, LEN, PENSTOCK_WHY_NONE);
	penstock_queue_close(q);
}

/* The lane (worker thread) that carries stream-ordered requests hangs in one of them. A second
 * request waits for its stream, and a third request is still in the inbox of the lane. It must be
 * possible to cancel the second and the third request, and the stream must then continue. */
static void cancel_while_lane_hangs(void **state)
{
	struct pst_cu_stream *other;
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = LEN};
	struct penstock_req req;
	struct penstock_queue *q, *more;
	uint64_t ids[2];

	(void)state;
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	assert_int_equal(penstock_queue_open(NULL, &more), 0);
	assert_int_equal(api->cuStreamCreateWithPriority(&other, PST_CU_STREAM_NON_BLOCKING, 0), 0);
	fixture_set_cached(name, true);
	req = test_request(st, &seg, 1, PENSTOCK_READ);
	req.path = "bounce";
	req.stream = other;
	stream_hold();
	ids[0] = submit(q, 0);
	calls_arm(CALLS_FILL, 1, CALLS_HANG);
	assert_int_equal(penstock_submit(more, &req, 1, NULL), 1);
	assert_true(calls_await_hits(1));
	ids[1] = submit(q, 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(penstock_cancel(q, ids[i]), 0);
		assert_completion(q, -ECANCELED, PENSTOCK_WHY_CANCELLED);
	}
	submit(q, test_now_ns() + 2000000);
	assert_completion(q, -ETIME, PENSTOCK_WHY_DEADLINE);
	stream_release();
	stream_hold();
	submit(q, 0);
	penstock_queue_close(q);
	stream_release();
	calls_disarm();
	calls_release(1);
	assert_completion(more, LEN, PENSTOCK_WHY_NONE);
	penstock_queue_close(more);
	assert_int_equal(api->cuStreamSynchronize(other), 0);
	api->cuStreamDestroy(other);
}

static unsigned long unregister_calls(void)
{
	unsigned long (*calls)(const char *);

	*(void **)&calls = test_standin_symbol("pst_standin_calls");
	/* a real driver does not count its calls, so the result is then 0 */
	return calls ? calls("cuMemHostUnregister") : 0;
}

/* Waits until the library's thread has unregistered the windows (mapped file ranges) of a closed
 * storage. Otherwise that thread could wait for a stream that the next test holds, and keep the
 * driver's lock meanwhile. */
static void await_unregistered(unsigned long before)
{
	uint64_t until = test_now_ns() + WAIT_NS;

	if (getenv("PENSTOCK_STANDIN") && !strcmp(getenv("PENSTOCK_STANDIN"), "0"))
		usleep(100000);
	else
		while (unregister_calls() == before && test_now_ns() < until)
			usleep(1000);
}

/* A lane (worker thread) hangs in a call for one storage and keeps a mapping of that storage.
 * Meanwhile another storage can close, and so can a device to which the lane has never copied. */
static void others_close_while_lane_hangs(void **state)
{
	struct pst_lane *lane = &atomic_load(&gpu->pump)->lanes[0];
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = LEN};
	struct penstock_req req = PENSTOCK_REQ_INIT, other;
	struct penstock_device *host;
	struct penstock_queue *q;
	unsigned long before;

	(void)state;
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	fixture_set_cached(name, true);
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.path = "mapped";
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_completion(q, LEN, PENSTOCK_WHY_NONE);
	assert_true(atomic_load(&lane->caches));
	other = req;
	assert_int_equal(penstock_open(name, NULL, &other.storage), 0);
	assert_true(penstock_device_open("host", NULL, &host) >= 0);
	assert_int_equal(penstock_prepare(other.storage, host, PENSTOCK_READ), 0);
	req.path = "bounce";
	calls_arm(CALLS_FILL, 1, CALLS_HANG);
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_true(calls_await_hits(1));
	calls_disarm();
	alarm(WAIT_NS / 1000000000);
	assert_int_equal(penstock_transfer(&other, NULL),
			 LEN); /* the calling thread carries a read of this length itself */
	assert_true(atomic_load(&other.storage->cached_by_lanes));
	before = unregister_calls();
	penstock_close(other.storage);
	penstock_device_close(host);
	alarm(0);
	calls_release(1);
	assert_completion(q, LEN, PENSTOCK_WHY_NONE);
	await_unregistered(before);
	penstock_queue_close(q);
}

static void queue_closes_while_stream_waits(void **state)
{
	struct penstock_queue *q;

	(void)state;
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	stream_hold();
	submit(q, 0);
	submit(q, 0);
	penstock_queue_close(q);
	stream_release();
}

/* More requests are cancelled than the library has stages. A stage is the pinned memory of a
 * stream-ordered request. It becomes free again only when the stream has passed the operations of
 * its request. */
static void cancelled_requests_free_their_stages(void **state)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_queue *q;

	(void)state;
	opts.requests_max = 8;
	opts.segs_max = 2;
	assert_int_equal(penstock_queue_open(&opts, &q), 0);
	for (unsigned round = 0; round < 14; round++) {
		stream_hold();
		/* 14 rounds of 80 requests are more than the 1,024 stages. One round cannot have
		 * many more than 80 requests: each of them has 4 operations, and the library
		 * refuses a request for a stream with more than 320 operations. */
		for (unsigned i = 0; i < 80; i++) {
			assert_int_equal(penstock_cancel(q, submit(q, 0)), 0);
			assert_completion(q, -ECANCELED, PENSTOCK_WHY_CANCELLED);
		}
		stream_release();
	}
	submit(q, 0);
	assert_completion(q, LEN, PENSTOCK_WHY_NONE);
	penstock_queue_close(q);
}

/* When the library unregisters memory, the CUDA driver waits for all streams of the application
 * and meanwhile blocks every memory copy that this process makes. While a stream waits, neither
 * reads by path "mapped" nor later reads may unregister memory. */
static void mapped_reads_do_not_unregister(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = LEN};
	struct penstock_req req;
	struct penstock_queue *q;
	struct penstock_done done;

	(void)state;
	req = test_request(st, &seg, 1, PENSTOCK_READ);
	req.path = "mapped";
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	stream_hold();
	for (unsigned i = 0; i < 20; i++) {
		if (penstock_submit(q, &req, 1, NULL) != 1)
			fail_msg("submit: %s", penstock_errmsg());
		assert_int_equal(penstock_wait(q, &done, 1, 1, WAIT_NS), 1);
		assert_int_equal(done.result, LEN);
		usleep(1000); /* lets the library's worker thread do its idle work */
	}
	stream_release();
	penstock_queue_close(q);
}

static void *free_thread(void *arg)
{
	return (void *)(intptr_t)penstock_free(gpu, arg);
}

/* When memory is freed, the CUDA driver blocks all copies, too. So penstock_free first waits for
 * the streams that wait for requests of the library, and only then calls the driver. */
static void free_waits_for_the_stream(void **state)
{
	struct penstock_queue *q;
	pthread_t thread;
	void *more, *ret;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, LEN, &more), 0);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	stream_hold();
	submit(q, 0);
	assert_int_equal(pthread_create(&thread, NULL, free_thread, more), 0);
	usleep(20000); /* gives the other thread enough time to start waiting */
	__atomic_fetch_add(gate, 1, __ATOMIC_RELEASE);
	assert_completion(q, LEN, PENSTOCK_WHY_NONE);
	assert_int_equal(pthread_join(thread, &ret), 0);
	assert_int_equal((intptr_t)ret, 0);
	penstock_queue_close(q);
}

/* Memory that any thread of the library registered for a storage is unregistered when the storage
 * closes, and not before. */
static void unregistered_when_the_storage_closes(void **state)
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
	before = unregister_calls();
	for (unsigned i = 0; i < 10; i++) {
		assert_int_equal(penstock_transfer(&req, NULL), LEN);
		assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
		assert_int_equal(penstock_wait(q, &done, 1, 1, WAIT_NS), 1);
		assert_int_equal(done.result, LEN);
		assert_int_equal(penstock_submit(own, &req, 1, NULL), 1);
		assert_int_equal(penstock_wait(own, &done, 1, 1, WAIT_NS), 1);
		assert_int_equal(done.result, LEN);
		usleep(1000); /* lets the library's threads do their idle work */
	}
	assert_int_equal(unregister_calls(), before);
	penstock_close(req.storage);
	until = test_now_ns() + WAIT_NS;
	while (unregister_calls() < before + 30 && test_now_ns() < until)
		usleep(1000);
	assert_int_equal(unregister_calls(), before + 30);
	penstock_queue_close(own);
	penstock_queue_close(q);
}

/* Closing another device must not wait for the stream that the test holds. */
static void other_device_closes_while_stream_waits(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = LEN};
	struct penstock_req req;
	struct penstock_device *host;

	(void)state;
	req = test_request(st, &seg, 1, PENSTOCK_READ);
	req.path = "mapped";
	stream_hold();
	for (unsigned i = 0; i < 20; i++) {
		assert_int_equal(penstock_transfer(&req, NULL), LEN);
		usleep(1000); /* lets the library's worker thread do its idle work */
		assert_true(penstock_device_open("host", NULL, &host) >= 0);
		alarm(WAIT_NS / 1000000000);
		penstock_device_close(host);
		alarm(0);
	}
	stream_release();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cancel_while_stream_waits),
		cmocka_unit_test(deadline_while_stream_waits),
		cmocka_unit_test(cancel_while_lane_hangs),
		cmocka_unit_test(others_close_while_lane_hangs),
		cmocka_unit_test(queue_closes_while_stream_waits),
		cmocka_unit_test(cancelled_requests_free_their_stages),
		cmocka_unit_test(mapped_reads_do_not_unregister),
		cmocka_unit_test(free_waits_for_the_stream),
		cmocka_unit_test(unregistered_when_the_storage_closes),
		cmocka_unit_test(other_device_closes_while_stream_waits),
	};

	fixture_use_standin();
	return cmocka_run_group_tests_name("stuck", tests, setup, teardown);
}
