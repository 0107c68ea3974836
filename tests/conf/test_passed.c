/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests penstock_stream_passed. A stream waits for a word in memory, the gate, so that it cannot
 * pass the requests behind the wait. The function must return 0 until the test opens the gate, also
 * if the requests have completed before, and 1 when the stream has passed them. With
 * PENSTOCK_STANDIN=0 the tests use the machine's own driver.
 */
#include "gate.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>

#define ROUNDS 200

/* Their addresses are the user pointers of requests. */
static char user_a, user_b;

/* Ends a test that has failed: opens the gate, and takes the completions that are left. */
static int case_teardown(void **state)
{
	(void)state;
	gate_open();
	while (penstock_wait(q, NULL, 1, 0, LIMIT) > 0)
		;
	return 0;
}

static bool passed(const void *user)
{
	int ret = penstock_stream_passed(gpu, user);

	assert_in_range(ret, 0, 1);
	return ret;
}

static struct penstock_req request_by(struct penstock_seg *seg, void *stream, void *user)
{
	struct penstock_req req = request(seg, stream);

	*seg = (struct penstock_seg){.buf = mem, .dev = gpu, .row_len = 4096};
	req.user = user;
	return req;
}

static uint64_t submit(const struct penstock_req *req)
{
	uint64_t id;

	if (penstock_submit(q, req, 1, &id) != 1)
		fail_msg("submit: %s", penstock_errmsg());
	return id;
}

/* A request that ends before its stream reaches it counts until the stream has passed it. */
static void ended_request(struct penstock_req *req, bool cancel)
{
	uint64_t id;

	req->deadline_ns = cancel ? 0 : test_now_ns() + 1000000;
	gate_shut(held);
	id = submit(req);
	assert_false(passed(&user_a));
	if (cancel)
		assert_int_equal(penstock_cancel(q, id), 0);
	await(cancel ? -ECANCELED : -ETIME);
	assert_false(passed(&user_a));
	assert_true(passed(&user_b));
	assert_true(passed(NULL));
	gate_open();
	assert_int_equal(api->cuStreamSynchronize(held), PST_CU_OK);
	assert_true(passed(&user_a));
}

static void ended_requests(void **state)
{
	struct penstock_seg seg;
	struct penstock_req req = request_by(&seg, held, &user_a);
	uint64_t len = 100;
	struct penstock_late late = {.size = sizeof(late), .row_len = &len};

	(void)state;
	ended_request(&req, true);
	ended_request(&req, false);
	req.flags = PENSTOCK_R_EARLY;
	ended_request(&req, true);
	req.flags = 0;
	seg.row_len = 4u << 20; /* several pieces, copied by a kernel */
	ended_request(&req, true);
	req.late = &late;
	ended_request(&req, true);
	req.late = NULL;
	seg.row_len = 0;
	ended_request(&req, true);
	seg.row_len = 4096;
	req.op = PENSTOCK_WRITE;
	req.storage = out;
	ended_request(&req, true);
}

/* When a request has completed normally, its stream has passed it. A completed request does not
 * hide the next request with the same user pointer, which has the same pinned memory. */
static void completed_requests(void **state)
{
	struct penstock_seg seg;
	struct penstock_req req = request_by(&seg, other, &user_a);

	(void)state;
	for (unsigned i = 0; i < ROUNDS; i++) {
		if (i % 10 == 0)
			gate_shut(other);
		submit(&req);
		if (i % 10 == 0) {
			assert_false(passed(&user_a));
			gate_open();
		}
		await(4096);
		assert_true(passed(&user_a));
	}
}

static void two_users(void **state)
{
	struct penstock_seg seg, seg_b;
	struct penstock_req req = request_by(&seg, held, &user_a);
	struct penstock_req req_b = request_by(&seg_b, other, &user_b);

	(void)state;
	seg_b.buf_off = 8192;
	gate_shut(held);
	penstock_cancel(q, submit(&req));
	await(-ECANCELED);
	submit(&req_b);
	await(4096);
	assert_false(passed(&user_a));
	assert_true(passed(&user_b));
	gate_open();
	assert_int_equal(api->cuStreamSynchronize(held), PST_CU_OK);
	assert_true(passed(&user_a));
}

/* Two streams have requests with the same user pointer, and only one of the streams has passed its
 * request. */
static void one_user_on_two_streams(void **state)
{
	struct penstock_seg seg[2];
	struct penstock_req req[2] = {request_by(&seg[0], held, &user_a),
				      request_by(&seg[1], other, &user_a)};

	(void)state;
	seg[1].buf_off = 8192;
	for (unsigned first = 0; first < 2; first++) {
		gate_shut(other);
		gate_shut(held);
		penstock_cancel(q, submit(&req[first]));
		penstock_cancel(q, submit(&req[!first]));
		await(-ECANCELED);
		await(-ECANCELED);
		__atomic_store_n(gate, gate_turn - 1, __ATOMIC_RELEASE); /* opens it for `other` */
		assert_int_equal(api->cuStreamSynchronize(other), PST_CU_OK);
		assert_false(passed(&user_a));
		gate_open();
		assert_int_equal(api->cuStreamSynchronize(held), PST_CU_OK);
		assert_true(passed(&user_a));
	}
}

/* The function finds the request among many, in every stage of the device. */
static void many_users(void **state)
{
	enum { COUNT = 60 };
	static char users[COUNT];
	struct penstock_seg seg;
	struct penstock_req req = request_by(&seg, held, NULL);

	(void)state;
	gate_shut(held);
	for (unsigned i = 0; i < COUNT; i++) {
		assert_true(passed(&users[i]));
		req.user = &users[i];
		penstock_cancel(q, submit(&req));
		await(-ECANCELED);
	}
	for (unsigned i = 0; i < COUNT; i++)
		assert_false(passed(&users[i]));
	gate_open();
	assert_int_equal(api->cuStreamSynchronize(held), PST_CU_OK);
	for (unsigned i = 0; i < COUNT; i++)
		assert_true(passed(&users[i]));
}

/* A stream may be destroyed while it waits. Its queued work still runs, and its requests count
 * until then. */
static void destroyed_stream(void **state)
{
	uint64_t until = test_now_ns() + LIMIT;
	struct pst_cu_stream *lost;
	struct penstock_seg seg;
	struct penstock_req req;

	(void)state;
	assert_int_equal(api->cuStreamCreateWithPriority(&lost, PST_CU_STREAM_NON_BLOCKING, 0),
			 PST_CU_OK);
	req = request_by(&seg, lost, &user_a);
	gate_shut(lost);
	penstock_cancel(q, submit(&req));
	await(-ECANCELED);
	assert_int_equal(api->cuStreamDestroy(lost), PST_CU_OK);
	usleep(1000);
	assert_false(passed(&user_a));
	gate_open();
	while (!passed(&user_a) && test_now_ns() < until)
		usleep(100);
	assert_true(passed(&user_a));
}

/* Requests in graphs do not count. The function does not disturb a capture, even in the mode in
 * which unsafe driver calls of all threads invalidate the capture. */
static void captured_requests(void **state)
{
	struct penstock_seg seg, seg_b;
	struct penstock_req req = request_by(&seg, held, &user_a);
	struct penstock_req req_b = request_by(&seg_b, other, &user_b);
	int64_t result = -7;
	struct penstock_late late = {.size = sizeof(late), .result = &result};
	struct pst_cu_graph_exec *exec;
	struct pst_cu_graph *graph;

	(void)state;
	seg_b.buf_off = 8192;
	gate_shut(other);
	penstock_cancel(q, submit(&req_b));
	await(-ECANCELED);
	submit(&req); /* the captured request gets the stage of this request */
	await(4096);
	req.late = &late;
	assert_int_equal(graphs.begin(held, PST_CU_CAPTURE_GLOBAL), PST_CU_OK);
	submit(&req);
	assert_true(passed(&user_a));
	assert_false(passed(&user_b));
	await(0);
	assert_true(passed(&user_a));
	gate_open();
	while (!passed(&user_b))
		usleep(100);
	assert_int_equal(graphs.end(held, &graph), PST_CU_OK);
	assert_int_equal(graphs.instantiate(&exec, graph, 0), PST_CU_OK);
	gate_shut(held);
	assert_int_equal(graphs.launch(exec, held), PST_CU_OK);
	assert_true(passed(&user_a));
	gate_open();
	assert_int_equal(api->cuStreamSynchronize(held), PST_CU_OK);
	assert_int_equal(result, 4096);
	assert_int_equal(graphs.exec_destroy(exec), PST_CU_OK);
	assert_int_equal(graphs.destroy(graph), PST_CU_OK);
}

/* The round in which the gate is open, and the round in which another thread has seen that the
 * stream has passed the request. */
static _Atomic unsigned opened, seen;
/* The round whose request has been submitted. */
static _Atomic unsigned submitted;

/* Calls the function until it returns 1, in each round. Returns whether it returned 1 after the
 * submit and before the gate was opened. */
static void *watch(void *arg)
{
	bool early = false;

	for (unsigned round = 1; round <= ROUNDS; round++) {
		while (atomic_load(&submitted) != round)
			penstock_stream_passed(gpu, &user_a);
		while (!penstock_stream_passed(gpu, &user_a))
			sched_yield();
		early |= atomic_load(&opened) != round;
		atomic_store(&seen, round);
	}
	return early ? arg : NULL;
}

/* A thread calls the function while another thread submits and cancels requests, and while lanes
 * free the pinned memory of requests. */
static void another_thread(void **state)
{
	struct penstock_seg seg, seg_b;
	struct penstock_req req = request_by(&seg, held, &user_a);
	struct penstock_req req_b = request_by(&seg_b, other, &user_b);
	pthread_t thread;
	void *early;

	(void)state;
	seg_b.buf_off = 8192;
	assert_int_equal(pthread_create(&thread, NULL, watch, &user_a), 0);
	for (unsigned round = 1; round <= ROUNDS; round++) {
		uint64_t id;

		gate_shut(held);
		id = submit(&req);
		atomic_store(&submitted, round);
		penstock_cancel(q, id);
		await(-ECANCELED);
		for (unsigned i = 0; i < 3; i++) {
			submit(&req_b);
			await(4096);
		}
		atomic_store(&opened, round);
		gate_open();
		while (atomic_load(&seen) != round)
			sched_yield();
	}
	pthread_join(thread, &early);
	assert_null(early);
}

/* If the driver fails while a submit queues the operations, the operations that were queued still
 * run, so the refused request counts. */
static void refused_request(void **state)
{
	struct penstock_seg seg;
	struct penstock_req req = request_by(&seg, held, &user_a);

	(void)state;
	driver_fail(NULL);
	gate_shut(held);
	/* The store after the copy fails. */
	driver_fail("cuStreamWriteValue64_v2:1:999");
	req.flags = PENSTOCK_R_EARLY;
	assert_true(penstock_submit(q, &req, 1, NULL) < 0);
	driver_fail(NULL);
	assert_false(passed(&user_a));
	gate_open();
	assert_int_equal(api->cuStreamSynchronize(held), PST_CU_OK);
	assert_true(passed(&user_a));
}

static void child_of_fork(void **state)
{
	int status;
	pid_t child;

	(void)state;
	child = fork();
	if (!child)
		_exit(penstock_stream_passed(gpu, &user_a) != -EOWNERDEAD);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

/* A device has no requests after it has been closed and opened again. The close waits until the
 * streams have passed all requests. A device of host memory never has any. */
static void reopened_device(void **state)
{
	struct penstock_device *host;
	struct penstock_seg seg;
	struct penstock_req req = request_by(&seg, held, &user_a);
	void *ptr;

	(void)state;
	assert_int_equal(penstock_device_open("host", NULL, &host), 0);
	gate_shut(held);
	penstock_cancel(q, submit(&req));
	await(-ECANCELED);
	assert_false(passed(&user_a));
	assert_int_equal(penstock_stream_passed(host, &user_a), 1);
	penstock_device_close(host);
	gate_open();
	assert_int_equal(api->cuStreamSynchronize(held), PST_CU_OK);
	assert_int_equal(penstock_free(gpu, mem), 0);
	penstock_device_close(gpu);
	assert_int_equal(penstock_device_open("cuda:0", NULL, &gpu), 0);
	assert_int_equal(penstock_alloc(gpu, FILE_LEN, &ptr), 0);
	mem = ptr;
	assert_true(passed(&user_a));
	assert_int_equal(penstock_prepare(st, gpu, PENSTOCK_READ), 0);
	assert_true(passed(&user_a));
	req = request_by(&seg, held, &user_a);
	ended_request(&req, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(ended_requests, case_teardown),
		cmocka_unit_test_teardown(completed_requests, case_teardown),
		cmocka_unit_test_teardown(two_users, case_teardown),
		cmocka_unit_test_teardown(one_user_on_two_streams, case_teardown),
		cmocka_unit_test_teardown(many_users, case_teardown),
		cmocka_unit_test_teardown(destroyed_stream, case_teardown),
		cmocka_unit_test_teardown(captured_requests, case_teardown),
		cmocka_unit_test_teardown(another_thread, case_teardown),
		cmocka_unit_test_teardown(refused_request, case_teardown),
		cmocka_unit_test_teardown(child_of_fork, case_teardown),
		cmocka_unit_test_teardown(reopened_device, case_teardown),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, gate_setup, gate_teardown);
}
