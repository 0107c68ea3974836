/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests captured requests in situations that a driver does not produce on demand. First, the test
 * itself stores the words in memory by which the device reports a replay's progress to the library,
 * so that replays overlap at a known point. Second, the driver lacks functions, as older drivers
 * do. Third, the device's context fails while a graph with a captured request exists, before,
 * during or after a replay. No thread hangs: the library drops the request, and everything can be
 * closed. Each of these cases is a process of its own, because a failed context never works again.
 */
#include "../graphs.h"
#include "streams.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/wait.h>

#include "core/queue/streams.h"

static struct pst_cu_stream *stream;
static struct pst_cu_graph_exec *exec;
static _Atomic bool stop;

/* ---- words stored by the test ---- */

/* Stores the words that the GPU stores when a replay of the graph begins. */
static void replay_arrive(struct pst_stage_words *words)
{
	__atomic_store_n(&words->released, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&words->passed, 0, __ATOMIC_RELEASE);
	__atomic_add_fetch(&words->arrived, 1, __ATOMIC_ACQ_REL);
}

static void replay_leave(struct pst_stage_words *words)
{
	__atomic_add_fetch(&words->left, 1, __ATOMIC_ACQ_REL);
}

static void released_await(const struct pst_stage_words *words, uint64_t value)
{
	while (__atomic_load_n(&words->released, __ATOMIC_ACQUIRE) < value)
		usleep(50);
}

/* The lane (a thread of the library) has moved the bytes of a replay, but this replay has not ended
 * on its stream when the next one begins. So the replays overlap: the lane must store -EBUSY, and
 * both replays must continue. The next replay succeeds. */
static void overlap_after_the_result(void **state)
{
	int64_t result = -7;
	struct penstock_late late = {.size = sizeof(late), .result = &result};
	struct penstock_seg seg = {.row_len = 4096};
	struct pst_stage_words *words = NULL;
	const struct pst_streams *streams;
	struct pst_cu_graph *graph;
	struct penstock_queue *q;
	struct penstock_req req;

	(void)state;
	assert_int_equal(setup(NULL), 0);
	assert_int_equal(graphs_load(), 0);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	assert_int_equal(penstock_alloc(gpu, FILE_LEN, &seg.buf), 0);
	seg.dev = gpu;
	assert_int_equal(api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0),
			 PST_CU_OK);
	req = request(&seg, stream);
	req.late = &late;
	assert_int_equal(graphs.begin(stream, PST_CU_CAPTURE_GLOBAL), PST_CU_OK);
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(graphs.end(stream, &graph), PST_CU_OK);
	streams = atomic_load(&atomic_load(&gpu->pump)->streams);
	for (unsigned i = 0; i < PST_STAGES_MAX && !words; i++)
		if (streams->stages[i].captured)
			words = streams->stages[i].words;
	assert_non_null(words);
	replay_arrive(words);
	released_await(words, 1);
	assert_int_equal(__atomic_load_n(&result, __ATOMIC_ACQUIRE), 4096);
	replay_arrive(words);
	released_await(words, 1);
	assert_int_equal(__atomic_load_n(&result, __ATOMIC_ACQUIRE), -EBUSY);
	/* A third replay begins, and sets `released` to 0 again. The library's thread must let all
	 * three replays continue. */
	replay_arrive(words);
	for (unsigned i = 0; i < 3; i++) {
		released_await(words, 1);
		replay_leave(words);
	}
	usleep(10000); /* Gives the lane time to detect that all three replays have ended. */
	replay_arrive(words);
	released_await(words, 1);
	assert_int_equal(__atomic_load_n(&result, __ATOMIC_ACQUIRE), 4096);
	replay_leave(words);
	graphs.destroy(graph);
	while (atomic_load(&gpu->graphs))
		usleep(100);
	api->cuStreamDestroy(stream);
	penstock_free(gpu, seg.buf);
	penstock_queue_close(q);
	teardown(NULL);
}

/* ---- drivers without functions ---- */

/* Captures a read and launches the graph. Returns the result that the library stored. If the
 * capture is refused, returns 0. */
static int64_t capture_and_replay(struct penstock_queue *q, void *mem)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .off = 31, .row_len = 70000};
	int64_t result = -7;
	struct penstock_late late = {.size = sizeof(late), .result = &result};
	struct penstock_req req = request(&seg, stream);
	struct pst_cu_graph *graph;
	struct penstock_done done;

	req.late = &late;
	assert_int_equal(graphs.begin(stream, PST_CU_CAPTURE_GLOBAL), PST_CU_OK);
	if (penstock_submit(q, &req, 1, NULL) < 0) {
		assert_int_equal(graphs.end(stream, &graph), PST_CU_OK);
		assert_int_equal(graphs.destroy(graph), PST_CU_OK);
		return 0;
	}
	assert_int_equal(penstock_wait(q, &done, 1, 1, -1), 1);
	assert_int_equal(graphs.end(stream, &graph), PST_CU_OK);
	assert_int_equal(graphs.instantiate(&exec, graph, 0), PST_CU_OK);
	assert_int_equal(graphs.launch(exec, stream), PST_CU_OK);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
	assert_int_equal(graphs.exec_destroy(exec), PST_CU_OK);
	assert_int_equal(graphs.destroy(graph), PST_CU_OK);
	while (atomic_load(&gpu->graphs))
		usleep(100);
	return result;
}

/* A driver before CUDA 12.3 has only the older function that returns the graph of a capture. A
 * driver before CUDA 11.3 has none, so captures are refused. */
static void older_drivers(void **state)
{
	struct pst_cuda *table;
	struct pst_cuda saved;
	struct penstock_queue *q;
	void *mem;

	(void)state;
	assert_int_equal(setup(NULL), 0);
	assert_int_equal(graphs_load(), 0);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	assert_int_equal(penstock_alloc(gpu, 70000, &mem), 0);
	assert_int_equal(api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0),
			 PST_CU_OK);
	table = (struct pst_cuda *)(uintptr_t)api; /* the test removes functions from this table */
	saved = *table;
	assert_int_equal(capture_and_replay(q, mem), 70000);
	table->cuStreamGetCaptureInfo = NULL;
	assert_non_null(table->cuStreamGetCaptureInfoNoEdges);
	assert_int_equal(capture_and_replay(q, mem), 70000);
	table->cuStreamGetCaptureInfoNoEdges = NULL;
	assert_int_equal(capture_and_replay(q, mem), 0);
	assert_non_null(strstr(penstock_errmsg(), "older than CUDA 11.3"));
	*table = saved;
	api->cuStreamDestroy(stream);
	penstock_free(gpu, mem);
	penstock_queue_close(q);
	teardown(NULL);
}

/* ---- a context that fails ---- */

static void *launch_always(void *arg)
{
	(void)arg;
	api->cuCtxSetCurrent(ctx);
	while (!atomic_load(&stop))
		if (graphs.launch(exec, stream) || api->cuStreamSynchronize(stream))
			usleep(100);
	return NULL;
}

/* Runs replays for `delay_us` microseconds, and then breaks the context. If delay_us is 0, the
 * context breaks before the first replay. */
static int child(unsigned delay_us)
{
	struct penstock_seg seg = {.off = 99, .row_len = FILE_LEN - 99};
	int64_t result = -7;
	struct penstock_late late = {.size = sizeof(late), .result = &result};
	int (*break_ctx)(int dev, enum pst_cu_result rc) = NULL;
	struct pst_cu_graph *graph;
	struct penstock_queue *q;
	struct penstock_req req;
	pthread_t thread;

	*(void **)&break_ctx = test_standin_symbol("pst_standin_break");
	if (!break_ctx || setup(NULL) || graphs_load() || penstock_queue_open(NULL, &q) ||
	    penstock_alloc(gpu, FILE_LEN, &seg.buf) ||
	    api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0))
		return 2;
	seg.dev = gpu;
	req = request(&seg, stream);
	req.late = &late;
	if (graphs.begin(stream, PST_CU_CAPTURE_GLOBAL) || penstock_submit(q, &req, 1, NULL) != 1 ||
	    graphs.end(stream, &graph) || graphs.instantiate(&exec, graph, 0))
		return 3;
	if (delay_us && pthread_create(&thread, NULL, launch_always, NULL))
		return 4;
	usleep(delay_us);
	break_ctx(0, PST_CU_LAUNCH_FAILED);
	/* The library notices the failure, and drops the request although the graph exists. */
	while (atomic_load(&gpu->graphs))
		usleep(100);
	atomic_store(&stop, true);
	if (delay_us)
		pthread_join(thread, NULL);
	graphs.exec_destroy(exec);
	graphs.destroy(graph);
	penstock_queue_close(q);
	teardown(NULL);
	return 0;
}

static void context_fails(void **state)
{
	static const char *const delays[] = {"0", "300", "900", "2000", "3100", "7000", "20000"};

	(void)state;
	if (getenv("PENSTOCK_STANDIN") && !strcmp(getenv("PENSTOCK_STANDIN"), "0"))
		test_skip("only the stand-in driver fails on demand");
	for (unsigned i = 0; i < sizeof(delays) / sizeof(delays[0]); i++) {
		int status;
		pid_t pid;

		fflush(stdout);
		pid = fork();
		if (!pid) {
			execl("/proc/self/exe", "test_graph_broken", delays[i], (char *)NULL);
			_exit(99);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (status)
			fail_msg("after %s us: status %x", delays[i], status);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(overlap_after_the_result),
		cmocka_unit_test(older_drivers),
		cmocka_unit_test(context_fails),
	};

	test_use_standin();
	if (argc > 1)
		return child((unsigned)strtoul(argv[1], NULL, 10));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
