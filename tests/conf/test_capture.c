/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The application captures a graph while we work, as frameworks do at their start: in
 * every mode of the capture, by other threads and by the one that captures, nothing of
 * ours is refused and the capture is whole at its end. Runs against the real driver
 * where PENSTOCK_STANDIN=0.
 */
#include "test.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/cuda_api.h"
#include "penstock.h"

#define FILE_LEN (24u << 20) /* mapped takes no less than 8 MiB at once */
#define LIMIT 20000000000LL  /* nothing takes as long but a hang */

static const struct pst_cuda *api;
static struct pst_cu_ctx *ctx;
static struct pst_cu_stream *captured;
static struct penstock_device *gpu;
static void *mem;
static char name[256];
/* What the library never calls. */
static enum pst_cu_result (*begin)(struct pst_cu_stream *, enum pst_cu_capture_mode);
static enum pst_cu_result (*end)(struct pst_cu_stream *, void **graph);
static enum pst_cu_result (*destroy)(void *graph);

static int write_file(void)
{
	unsigned char *bytes = malloc(FILE_LEN);
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600), ok;

	memset(bytes, 0x5a, FILE_LEN);
	ok = fd >= 0 && write(fd, bytes, FILE_LEN) == FILE_LEN;
	close(fd);
	free(bytes);
	return ok ? 0 : -1;
}

static int setup(void **state)
{
	const char *tmp = getenv("TMPDIR"), *lib = getenv("PENSTOCK_LIBCUDA");
	void *handle = dlopen(lib && *lib ? lib : "libcuda.so.1", RTLD_NOW);

	(void)state;
	api = pst_cuda_get(NULL);
	if (!api || !handle || penstock_device_open("cuda:0", NULL, &gpu) < 0)
		return -1;
	*(void **)&begin = dlsym(handle, "cuStreamBeginCapture_v2");
	*(void **)&end = dlsym(handle, "cuStreamEndCapture");
	*(void **)&destroy = dlsym(handle, "cuGraphDestroy"); /* the stand-in has no graphs */
	snprintf(name, sizeof(name), "%s/capture-%d", tmp ? tmp : "/tmp", (int)getpid());
	if (!begin || !end || write_file() || penstock_alloc(gpu, FILE_LEN, &mem))
		return -1;
	if (api->cuDevicePrimaryCtxRetain(&ctx, 0) || api->cuCtxSetCurrent(ctx))
		return -1;
	return api->cuStreamCreateWithPriority(&captured, PST_CU_STREAM_NON_BLOCKING, 0);
}

static int teardown(void **state)
{
	(void)state;
	api->cuStreamDestroy(captured);
	api->cuDevicePrimaryCtxRelease(0);
	penstock_free(gpu, mem);
	penstock_device_close(gpu);
	unlink(name);
	return 0;
}

static void transfer(enum penstock_op op, const char *path, struct pst_cu_stream *stream)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = FILE_LEN};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_queue *q;
	struct penstock_done done;

	opts.flags = op == PENSTOCK_WRITE ? PENSTOCK_O_WRITE : 0;
	if (penstock_open(name, &opts, &req.storage))
		fail_msg("%s", penstock_errmsg());
	req.op = op;
	req.segs = &seg;
	req.seg_count = 1;
	req.path = path;
	req.stream = stream;
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	if (penstock_submit(q, &req, 1, NULL) != 1)
		fail_msg("%s: %s", path ? path : "any path", penstock_errmsg());
	assert_int_equal(penstock_wait(q, &done, 1, 1, LIMIT), 1);
	if (done.result != FILE_LEN)
		fail_msg("%s: %lld: %s", path ? path : "any path", (long long)done.result,
			 done.report->text);
	penstock_queue_close(q);
	penstock_close(req.storage);
}

/* A bit of everything that calls the driver. */
static void work(void)
{
	static const char *const paths[] = {"bounce", "mapped", "staged", NULL};
	struct penstock_copy_args copy = {.size = sizeof(copy), .row_len = 4096};
	struct penstock_device *again;
	struct pst_cu_stream *other;
	void *more;

	for (unsigned i = 0; i < 4; i++)
		transfer(PENSTOCK_READ, paths[i], NULL);
	transfer(PENSTOCK_WRITE, NULL, NULL);
	assert_true(penstock_device_open("cuda:0", NULL, &again) >= 0);
	assert_int_equal(penstock_alloc(again, FILE_LEN, &more), 0);
	copy.dst_dev = again;
	copy.dst = more;
	copy.src_dev = gpu;
	copy.src = mem;
	assert_int_equal(penstock_copy(&copy, 1), 0);
	assert_int_equal(penstock_free(again, more), 0);
	penstock_device_close(again);
	/* In the order of another stream. */
	assert_int_equal(api->cuCtxSetCurrent(ctx), 0);
	assert_int_equal(api->cuStreamCreateWithPriority(&other, PST_CU_STREAM_NON_BLOCKING, 0), 0);
	transfer(PENSTOCK_READ, NULL, other);
	api->cuStreamDestroy(other);
}

static void *work_main(void *arg)
{
	(void)arg;
	work();
	return NULL;
}

static void beside(enum pst_cu_capture_mode mode, bool same_thread)
{
	enum pst_cu_capture status;
	void *graph = NULL;
	pthread_t thread;

	assert_int_equal(begin(captured, mode), 0);
	if (same_thread) {
		work();
	} else {
		assert_int_equal(pthread_create(&thread, NULL, work_main, NULL), 0);
		pthread_join(thread, NULL);
	}
	assert_int_equal(api->cuStreamIsCapturing(captured, &status), 0);
	assert_int_equal(status, PST_CU_CAPTURE_ACTIVE);
	assert_int_equal(end(captured, &graph), 0);
	if (graph)
		destroy(graph);
}

static void by_other_threads(void **state)
{
	(void)state;
	beside(PST_CU_CAPTURE_GLOBAL, false);
	beside(PST_CU_CAPTURE_THREAD_LOCAL, false);
	beside(PST_CU_CAPTURE_RELAXED, false);
}

static void by_the_thread_that_captures(void **state)
{
	(void)state;
	beside(PST_CU_CAPTURE_GLOBAL, true);
	beside(PST_CU_CAPTURE_THREAD_LOCAL, true);
	beside(PST_CU_CAPTURE_RELAXED, true);
}

/* The first of all: the device's threads and rings are made during a capture. */
static void the_first(void **state)
{
	struct penstock_device *first = gpu;

	(void)state;
	assert_int_equal(begin(captured, PST_CU_CAPTURE_GLOBAL), 0);
	penstock_free(first, mem);
	penstock_device_close(first);
	assert_true(penstock_device_open("cuda:0", NULL, &gpu) >= 0);
	assert_int_equal(penstock_alloc(gpu, FILE_LEN, &mem), 0);
	transfer(PENSTOCK_READ, NULL, NULL);
	assert_int_equal(end(captured, &(void *){NULL}), 0);
}

/* The mode that a thread had is its own again. */
static void the_mode_stays(void **state)
{
	(void)state;
	for (enum pst_cu_capture_mode m = PST_CU_CAPTURE_GLOBAL; m <= PST_CU_CAPTURE_RELAXED; m++) {
		enum pst_cu_capture_mode now = m, after = PST_CU_CAPTURE_GLOBAL;

		assert_int_equal(api->cuThreadExchangeStreamCaptureMode(&now), 0);
		work();
		assert_int_equal(api->cuThreadExchangeStreamCaptureMode(&after), 0);
		assert_int_equal(after, m);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_first),
		cmocka_unit_test(by_other_threads),
		cmocka_unit_test(by_the_thread_that_captures),
		cmocka_unit_test(the_mode_stays),
	};

	test_use_standin();
	return cmocka_run_group_tests_name("capture", tests, setup, teardown);
}
