/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the limit of one stream. A stream waits for a word in memory, and the program submits
 * requests to it until the library refuses one. The calls must not wait for space in a hardware
 * queue of the GPU, and another stream must execute requests meanwhile. With PENSTOCK_STANDIN=0 the
 * tests use the machine's own driver.
 */
#include "gate.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

#define OPS_MAX 320u /* see penstock_late */
#define MANY 200     /* more requests than a stream may have */

/* Submits the request, whose stream waits for the gate, until the library refuses it. Returns the
 * number of accepted requests. */
static unsigned stream_fill(struct penstock_req *req, uint64_t *ids)
{
	unsigned count = 0;
	int ret = 1;

	while (count < MANY && ret == 1) {
		ret = penstock_submit(q, req, 1, ids ? &ids[count] : NULL);
		count += ret == 1;
	}
	assert_int_equal(ret, -EAGAIN);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_FULL);
	assert_non_null(strstr(penstock_errmsg(), "320 operations"));
	return count;
}

/* Checks that the stream `other` executes a request. */
static void other_executes(void)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = 5000};
	struct penstock_req req = request(&seg, other);

	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	await(seg.row_len);
}

/* A stream gets requests until it has more than OPS_MAX operations, whatever the kind of request.
 * Each request that completes makes room. */
static void kind_fills(unsigned segs, uint64_t len, unsigned ops, enum penstock_op op,
		       uint32_t flags, bool late_len)
{
	struct penstock_seg list[SEGS];
	struct penstock_late late = {.size = sizeof(late), .row_len = late_len ? &len : NULL};
	struct penstock_req req = test_request(op == PENSTOCK_READ ? st : out, list, segs, op);
	unsigned count;

	for (unsigned i = 0; i < segs; i++)
		list[i] = (struct penstock_seg){.buf = mem + i * len,
						.dev = gpu,
						.off = (uint64_t)i * 8192,
						.row_len = len};
	req.stream = held;
	req.flags = flags;
	req.late = &late;
	gate_shut(held);
	count = stream_fill(&req, NULL);
	other_executes();
	assert_int_equal(penstock_submit(q, &req, 1, NULL), -EAGAIN);
	assert_true((count - 1) * ops <= OPS_MAX);
	assert_true(count * ops > OPS_MAX);
	gate_open();
	await((int64_t)(segs * len));
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	for (unsigned i = 0; i < count; i++)
		await((int64_t)(segs * len));
	assert_int_equal(api->cuStreamSynchronize(held), PST_CU_OK);
}

static void every_kind_fills(void **state)
{
	(void)state;
	/* store to `arrived`, wait, copy, store to `passed` */
	kind_fills(1, 4096, 4, PENSTOCK_READ, 0, false);
	kind_fills(1, 4096, 4, PENSTOCK_READ, PENSTOCK_R_EARLY, false);
	kind_fills(1, 4096, 4, PENSTOCK_READ, 0, true);
	kind_fills(SEGS, 100, 3 + SEGS, PENSTOCK_READ, 0, false);
	/* also a wait for the storage, and another store to `passed` */
	kind_fills(1, 4096, 6, PENSTOCK_WRITE, 0, false);
	/* pieces of 1 MiB */
	kind_fills(1, 4u << 20, 1 + 4 * 3, PENSTOCK_READ, 0, false);
	kind_fills(1, 8u << 20, 1 + 8 * 3, PENSTOCK_READ, 0, false);
}

/* The operations of a cancelled request stay on the stream, so they count until the stream has
 * passed them. */
static void cancelled_requests_count(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = 4096};
	struct penstock_req req = request(&seg, held);
	uint64_t ids[MANY];
	unsigned count;

	(void)state;
	gate_shut(held);
	count = stream_fill(&req, ids);
	for (unsigned i = 0; i < count; i++)
		penstock_cancel(q, ids[i]);
	for (unsigned i = 0; i < count; i++)
		await(-ECANCELED);
	assert_int_equal(penstock_submit(q, &req, 1, NULL), -EAGAIN);
	gate_open();
	assert_int_equal(api->cuStreamSynchronize(held), PST_CU_OK);
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	await(4096);
}

/* A capture queues nothing on the stream. So a full stream can be captured, and captured requests
 * do not fill the stream. */
static void captures_do_not_count(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = 4096};
	struct penstock_req req = request(&seg, held);
	int64_t result = -7;
	struct penstock_late late = {.size = sizeof(late), .result = &result};
	struct penstock_req captured = req;
	struct pst_cu_graph_exec *exec;
	struct pst_cu_graph *graph;
	unsigned count;

	(void)state;
	captured.late = &late;
	gate_shut(held);
	count = stream_fill(&req, NULL);
	assert_int_equal(graphs.begin(held, PST_CU_CAPTURE_RELAXED), PST_CU_OK);
	for (unsigned i = 0; i < 100; i++) {
		if (penstock_submit(q, &captured, 1, NULL) != 1)
			fail_msg("captured request %u: %s", i, penstock_errmsg());
		await(0);
	}
	assert_int_equal(graphs.end(held, &graph), PST_CU_OK);
	assert_int_equal(graphs.instantiate(&exec, graph, 0), PST_CU_OK);
	gate_open();
	for (unsigned i = 0; i < count; i++)
		await(4096);
	assert_int_equal(graphs.launch(exec, held), PST_CU_OK);
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	await(4096);
	assert_int_equal(api->cuStreamSynchronize(held), PST_CU_OK);
	assert_int_equal(result, 4096);
	assert_int_equal(graphs.exec_destroy(exec), PST_CU_OK);
	assert_int_equal(graphs.destroy(graph), PST_CU_OK);
}

static void *submit_on_own_stream(void *arg)
{
	struct penstock_req *req = arg;

	return penstock_submit(q, req, 1, NULL) == 1 ? arg : NULL;
}

/* The handle of the per-thread default stream names another stream in each thread, so each thread
 * has the limit for itself. With the stand-in, all threads share this stream, so the request of the
 * second thread completes only when the gate opens. */
static void threads_have_own_default_streams(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = 4096};
	struct penstock_req req = request(&seg, PST_CU_STREAM_PER_THREAD);
	pthread_t thread;
	unsigned count;
	void *accepted;

	(void)state;
	assert_int_equal(api->cuStreamWaitValue64(PST_CU_STREAM_PER_THREAD, (uintptr_t)gate,
						  ++gate_turn, PST_CU_WAIT_GEQ),
			 PST_CU_OK);
	count = stream_fill(&req, NULL);
	assert_int_equal(pthread_create(&thread, NULL, submit_on_own_stream, &req), 0);
	pthread_join(thread, &accepted);
	gate_open();
	assert_ptr_equal(accepted, &req);
	for (unsigned i = 0; i < count + 1; i++)
		await(4096);
	assert_int_equal(api->cuStreamSynchronize(PST_CU_STREAM_PER_THREAD), PST_CU_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_kind_fills),
		cmocka_unit_test(cancelled_requests_count),
		cmocka_unit_test(captures_do_not_count),
		cmocka_unit_test(threads_have_own_default_streams),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, gate_setup, gate_teardown);
}
