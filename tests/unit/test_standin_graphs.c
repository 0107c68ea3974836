/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the stand-in's graphs: launches, user objects, and captures of the operations that the
 * library queues. Also tests the library's GPU kernel pst_stream_count, which adds 1 to a word of
 * pinned memory each time it runs. Every case also passes on the real driver (with
 * PENSTOCK_STANDIN=0), unless it says otherwise.
 */
#include "../standin/hold.h"

#include "../graphs.h"

#include "device/stream_copy_image.h"
#include "device/stream_copy_ptx.h"

static struct pst_cu_module *module;
static struct pst_cu_function *counter;

static int graphs_open(void **state)
{
	if (hold_open(state) || graphs_load())
		return -1;
	if (cu->cuModuleLoadData(&module, pst_stream_copy_image) &&
	    cu->cuModuleLoadData(&module, pst_stream_copy_ptx))
		return -1;
	return cu->cuModuleGetFunction(&counter, module, "pst_stream_count");
}

static int graphs_close(void **state)
{
	cu->cuModuleUnload(module);
	return hold_close(state);
}

/* Launches pst_stream_count. The kernel sets semaphore `zero` to 0, and then adds 1 to semaphore
 * `i`. If `zero` is -1, it only adds. */
static void count(struct pst_cu_stream *s, int i, int zero)
{
	pst_cu_ptr at = semaphore_addr(i), zero_at = zero < 0 ? 0 : semaphore_addr(zero), none = 0;
	void *args[] = {&at, &zero_at, &none};

	assert_int_equal(cu->cuLaunchKernel(counter, 1, 1, 1, 1, 1, 1, 0, s, args, NULL),
			 PST_CU_OK);
}

static void begin(struct pst_cu_stream *s)
{
	assert_int_equal(graphs.begin(s, PST_CU_CAPTURE_GLOBAL), PST_CU_OK);
}

static struct pst_cu_graph *end(struct pst_cu_stream *s)
{
	struct pst_cu_graph *graph = NULL;

	assert_int_equal(graphs.end(s, &graph), PST_CU_OK);
	assert_non_null(graph);
	return graph;
}

static struct pst_cu_graph_exec *instantiate(struct pst_cu_graph *graph)
{
	struct pst_cu_graph_exec *exec;

	assert_int_equal(graphs.instantiate(&exec, graph, 0), PST_CU_OK);
	return exec;
}

static bool semaphore_becomes(int i, uint64_t value, long ms)
{
	long until = now_ms() + ms;

	while (semaphore_get(i) != value) {
		if (now_ms() > until)
			return false;
		usleep(100);
	}
	return true;
}

/* A graph waits for a word, copies, and stores words. A thread that calls no driver function sets
 * the word, in each of many launches. */
static void words_and_copies_are_replayed(void **state)
{
	enum { WAITED = 1, ARRIVED, PASSED };
	struct pst_cu_graph_exec *exec;
	struct pst_cu_graph *graph;
	size_t nodes = 0;

	(void)state;
	need_memops();
	begin(stream);
	assert_int_equal(cu->cuStreamWriteValue64(stream, semaphore_addr(PASSED), 0, 0), PST_CU_OK);
	assert_int_equal(cu->cuStreamWriteValue64(stream, semaphore_addr(ARRIVED), 1, 0),
			 PST_CU_OK);
	assert_int_equal(
		cu->cuStreamWaitValue64(stream, semaphore_addr(WAITED), 1, PST_CU_WAIT_GEQ),
		PST_CU_OK);
	assert_int_equal(cu->cuStreamWriteValue64(stream, semaphore_addr(WAITED), 0, 0), PST_CU_OK);
	assert_int_equal(cu->cuMemcpyHtoDAsync(big, pinned, MIB, stream), PST_CU_OK);
	assert_int_equal(cu->cuMemcpyDtoHAsync(pinned + MIB, big, MIB, stream), PST_CU_OK);
	assert_int_equal(cu->cuStreamWriteValue64(stream, semaphore_addr(PASSED), 1, 0), PST_CU_OK);
	graph = end(stream);
	assert_int_equal(graphs.nodes(graph, NULL, &nodes), PST_CU_OK);
	assert_int_equal(nodes, 7);
	exec = instantiate(graph);
	for (int i = 0; i < 200; i++) {
		semaphore_set(ARRIVED, 0);
		assert_int_equal(graphs.launch(exec, stream), PST_CU_OK);
		assert_true(semaphore_becomes(ARRIVED, 1, SOON_MS));
		assert_int_equal(semaphore_get(PASSED), 0);
		memset(pinned, i, MIB);
		semaphore_set(WAITED, 1);
		stream_sync(stream);
		assert_int_equal(semaphore_get(PASSED), 1);
		assert_int_equal(semaphore_get(WAITED), 0);
		assert_memory_equal(pinned, pinned + MIB, MIB);
	}
	graphs.exec_destroy(exec);
	graphs.destroy(graph);
}

/* Captured operations do not run until the graph is launched. */
static void capture_runs_nothing(void **state)
{
	struct pst_cu_graph *graph;

	(void)state;
	semaphore_set(1, 0);
	begin(stream);
	count(stream, 1, -1);
	graph = end(stream);
	stream_sync(stream);
	assert_int_equal(semaphore_get(1), 0);
	graphs.destroy(graph);
}

/* No addition is lost if kernels on many streams add to one word of pinned memory. */
static void counter_counts_all(void **state)
{
	enum { STREAMS = 8, LAUNCHES = 500 };
	struct pst_cu_graph_exec *execs[STREAMS];
	struct pst_cu_stream *streams[STREAMS];
	struct pst_cu_graph *graph;

	(void)state;
	semaphore_set(1, 0);
	semaphore_set(2, 77);
	begin(stream);
	for (int i = 0; i < 4; i++)
		count(stream, 1, 2);
	graph = end(stream);
	for (int i = 0; i < STREAMS; i++) {
		streams[i] = stream_new(PST_CU_STREAM_NON_BLOCKING);
		execs[i] = instantiate(graph);
	}
	for (int k = 0; k < LAUNCHES; k++)
		for (int i = 0; i < STREAMS; i++)
			assert_int_equal(graphs.launch(execs[i], streams[i]), PST_CU_OK);
	for (int i = 0; i < STREAMS; i++) {
		stream_sync(streams[i]);
		cu->cuStreamDestroy(streams[i]);
		graphs.exec_destroy(execs[i]);
	}
	assert_int_equal(semaphore_get(1), 4 * STREAMS * LAUNCHES);
	assert_int_equal(semaphore_get(2), 0);
	graphs.destroy(graph);
}

/* Launches of one executable run one after the other, even on different streams. Launches of two
 * executables of one graph run at the same time. */
static void launches_overlap_only_between_executables(void **state)
{
	struct pst_cu_stream *other = stream_new(PST_CU_STREAM_NON_BLOCKING);
	struct pst_cu_graph_exec *a, *b;
	struct pst_cu_graph *graph;

	(void)state;
	need_memops();
	begin(stream);
	count(stream, 1, -1);
	assert_int_equal(cu->cuStreamWaitValue64(stream, semaphore_addr(0), 1, PST_CU_WAIT_GEQ),
			 PST_CU_OK);
	graph = end(stream);
	a = instantiate(graph);
	b = instantiate(graph);
	semaphore_set(0, 0);
	semaphore_set(1, 0);
	assert_int_equal(graphs.launch(a, stream), PST_CU_OK);
	assert_true(semaphore_becomes(1, 1, SOON_MS));
	assert_int_equal(graphs.launch(a, other), PST_CU_OK);
	assert_false(semaphore_becomes(1, 2, HELD_MS));
	stream_release();
	stream_sync(stream);
	stream_sync(other);
	assert_int_equal(semaphore_get(1), 2);
	semaphore_set(0, 0);
	assert_int_equal(graphs.launch(a, stream), PST_CU_OK);
	assert_true(semaphore_becomes(1, 3, SOON_MS));
	assert_int_equal(graphs.launch(b, other), PST_CU_OK);
	assert_true(semaphore_becomes(1, 4, SOON_MS));
	stream_release();
	stream_sync(stream);
	stream_sync(other);
	cu->cuStreamDestroy(other);
	graphs.exec_destroy(a);
	graphs.exec_destroy(b);
	graphs.destroy(graph);
}

static void object_gone(void *arg)
{
	__atomic_store_n((uint64_t *)arg, 1, __ATOMIC_RELEASE);
}

/* Returns a graph that waits for semaphore 0, and that holds a user object. The destructor of
 * this object sets semaphore `semaphore`. */
static struct pst_cu_graph *graph_with_object(int semaphore)
{
	enum pst_cu_capture status = PST_CU_CAPTURE_NONE;
	struct pst_cu_user_object *object;
	struct pst_cu_graph *graph = NULL, *ended;

	semaphore_set(semaphore, 0);
	begin(stream);
	assert_int_equal(
		cu->cuStreamGetCaptureInfo(stream, &status, NULL, &graph, NULL, NULL, NULL),
		PST_CU_OK);
	assert_int_equal(status, PST_CU_CAPTURE_ACTIVE);
	assert_int_equal(cu->cuUserObjectCreate(&object, (void *)(uintptr_t)&semaphores[semaphore],
						object_gone, 1, PST_CU_USER_OBJECT_NO_SYNC),
			 PST_CU_OK);
	assert_int_equal(cu->cuGraphRetainUserObject(graph, object, 1, PST_CU_GRAPH_MOVE_REFS),
			 PST_CU_OK);
	count(stream, 1, -1);
	assert_int_equal(cu->cuStreamWaitValue64(stream, semaphore_addr(0), 1, PST_CU_WAIT_GEQ),
			 PST_CU_OK);
	ended = end(stream);
	assert_ptr_equal(ended, graph);
	return graph;
}

/* The destructor of a user object runs when the graph, its copies, its executables and their
 * launches are gone, in any order. */
static void user_objects_live_as_long_as_their_graphs(void **state)
{
	enum { GONE = 3 };
	struct pst_cu_graph *graph = graph_with_object(GONE), *copy;
	struct pst_cu_graph_exec *exec;

	(void)state;
	need_memops();
	assert_int_equal(graphs.destroy(graph), PST_CU_OK);
	assert_true(semaphore_becomes(GONE, 1, SOON_MS));

	graph = graph_with_object(GONE);
	exec = instantiate(graph);
	assert_int_equal(graphs.destroy(graph), PST_CU_OK);
	assert_false(semaphore_becomes(GONE, 1, HELD_MS));
	assert_int_equal(graphs.exec_destroy(exec), PST_CU_OK);
	assert_true(semaphore_becomes(GONE, 1, SOON_MS));

	graph = graph_with_object(GONE);
	exec = instantiate(graph);
	assert_int_equal(graphs.clone(&copy, graph), PST_CU_OK);
	assert_int_equal(graphs.exec_destroy(exec), PST_CU_OK);
	assert_int_equal(graphs.destroy(graph), PST_CU_OK);
	assert_false(semaphore_becomes(GONE, 1, HELD_MS));
	assert_int_equal(graphs.destroy(copy), PST_CU_OK);
	assert_true(semaphore_becomes(GONE, 1, SOON_MS));

	graph = graph_with_object(GONE);
	exec = instantiate(graph);
	semaphore_set(0, 0);
	semaphore_set(1, 0);
	assert_int_equal(graphs.launch(exec, stream), PST_CU_OK);
	assert_true(semaphore_becomes(1, 1, SOON_MS));
	assert_int_equal(graphs.destroy(graph), PST_CU_OK);
	assert_int_equal(graphs.exec_destroy(exec), PST_CU_OK);
	assert_false(semaphore_becomes(GONE, 1, HELD_MS));
	stream_release();
	stream_sync(stream);
	assert_true(semaphore_becomes(GONE, 1, SOON_MS));
}

/* A query of a stream that is being captured invalidates the capture, even in relaxed mode. */
static void query_invalidates_the_capture(void **state)
{
	enum pst_cu_capture status = PST_CU_CAPTURE_NONE;
	struct pst_cu_graph *graph = NULL;

	(void)state;
	assert_int_equal(graphs.begin(stream, PST_CU_CAPTURE_RELAXED), PST_CU_OK);
	count(stream, 1, -1);
	assert_int_equal(cu->cuStreamQuery(stream), PST_CU_CAPTURE_UNSUPPORTED);
	assert_int_equal(cu->cuStreamIsCapturing(stream, &status), PST_CU_OK);
	assert_int_equal(status, PST_CU_CAPTURE_BROKEN);
	assert_int_equal(graphs.end(stream, &graph), PST_CU_CAPTURE_INVALIDATED);
	assert_null(graph);
	assert_int_equal(cu->cuStreamIsCapturing(stream, &status), PST_CU_OK);
	assert_int_equal(status, PST_CU_CAPTURE_NONE);
}

/* If a second stream waits for an event of the captured stream, the capture also records the
 * second stream's operations, until the capture ends. */
static void events_extend_the_capture(void **state)
{
	struct pst_cu_stream *other = stream_new(PST_CU_STREAM_NON_BLOCKING);
	enum pst_cu_capture status = PST_CU_CAPTURE_NONE;
	struct pst_cu_event *fork, *join;
	struct pst_cu_graph_exec *exec;
	struct pst_cu_graph *graph;

	(void)state;
	assert_int_equal(cu->cuEventCreate(&fork, PST_CU_EVENT_NO_TIMING), PST_CU_OK);
	assert_int_equal(cu->cuEventCreate(&join, PST_CU_EVENT_NO_TIMING), PST_CU_OK);
	semaphore_set(1, 0);
	begin(stream);
	count(stream, 1, -1);
	assert_int_equal(cu->cuEventRecord(fork, stream), PST_CU_OK);
	assert_int_equal(cu->cuStreamWaitEvent(other, fork, 0), PST_CU_OK);
	assert_int_equal(cu->cuStreamIsCapturing(other, &status), PST_CU_OK);
	assert_int_equal(status, PST_CU_CAPTURE_ACTIVE);
	count(other, 1, -1);
	assert_int_equal(cu->cuEventRecord(join, other), PST_CU_OK);
	assert_int_equal(cu->cuStreamWaitEvent(stream, join, 0), PST_CU_OK);
	count(stream, 1, -1);
	graph = end(stream);
	assert_int_equal(cu->cuStreamIsCapturing(other, &status), PST_CU_OK);
	assert_int_equal(status, PST_CU_CAPTURE_NONE);
	assert_int_equal(semaphore_get(1), 0);
	exec = instantiate(graph);
	assert_int_equal(graphs.launch(exec, stream), PST_CU_OK);
	stream_sync(stream);
	assert_int_equal(semaphore_get(1), 3);
	graphs.exec_destroy(exec);
	graphs.destroy(graph);
	cu->cuEventDestroy(fork);
	cu->cuEventDestroy(join);
	cu->cuStreamDestroy(other);
}

static enum pst_cu_result from_destructor;

static void call_driver(void *arg)
{
	pst_cu_ptr dev;

	from_destructor = cu->cuMemAlloc(&dev, 4096);
	object_gone(arg);
}

/* The destructor of a user object may not call the driver. NVIDIA's documentation forbids it, and
 * does not say what such a call does. */
static void destructors_may_not_call_the_driver(void **state)
{
	struct pst_cu_user_object *object;

	(void)state;
	standin_only();
	semaphore_set(3, 0);
	assert_int_equal(cu->cuUserObjectCreate(&object, (void *)(uintptr_t)&semaphores[3],
						call_driver, 1, PST_CU_USER_OBJECT_NO_SYNC),
			 PST_CU_OK);
	assert_int_equal(cu->cuUserObjectRelease(object, 1), PST_CU_OK);
	assert_true(semaphore_becomes(3, 1, SOON_MS));
	assert_int_equal(from_destructor, PST_CU_NOT_PERMITTED);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, check_setup, hold_teardown)
	const struct CMUnitTest tests[] = {
		CASE(words_and_copies_are_replayed),
		CASE(capture_runs_nothing),
		CASE(counter_counts_all),
		CASE(launches_overlap_only_between_executables),
		CASE(user_objects_live_as_long_as_their_graphs),
		CASE(query_invalidates_the_capture),
		CASE(events_extend_the_capture),
		CASE(destructors_may_not_call_the_driver),
	};

	check_choose();
	/* With several hardware queues, a launch does not wait behind another stream in the same
	 * queue. */
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", 1);
	setenv("PENSTOCK_STANDIN_HW_QUEUES", "8", 1);
	return cmocka_run_group_tests(tests, graphs_open, graphs_close);
}
