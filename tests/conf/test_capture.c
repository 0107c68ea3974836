/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The application captures a CUDA graph while the library works, as frameworks do at start-up.
 * The tests use every capture mode, and use the library on the capturing thread and on other
 * threads. The CUDA driver must refuse no call of the library, and the capture must stay valid.
 * With PENSTOCK_STANDIN=0 the tests run against the machine's own driver.
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

#define FILE_LEN (24u << 20) /* path "mapped" carries only requests of at least 8 MiB */
#define LIMIT 20000000000LL  /* timeout in ns; only a hang lasts that long */

static const struct pst_cuda *api;
static struct pst_cu_ctx *ctx;
static struct pst_cu_stream *captured;
static struct penstock_device *gpu;
static void *mem;
static char name[256];
/* CUDA driver functions that the test calls and the library never calls. */
static enum pst_cu_result (*capture_begin)(struct pst_cu_stream *, enum pst_cu_capture_mode);
static enum pst_cu_result (*capture_end)(struct pst_cu_stream *, void **graph);
static enum pst_cu_result (*graph_destroy)(void *graph);

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
	const char *lib = getenv("PENSTOCK_LIBCUDA");
	void *handle = dlopen(lib && *lib ? lib : "libcuda.so.1", RTLD_NOW);

	(void)state;
	api = pst_cuda_get(NULL);
	if (!api || !handle || penstock_device_open("cuda:0", NULL, &gpu) < 0)
		return -1;
	*(void **)&capture_begin = dlsym(handle, "cuStreamBeginCapture_v2");
	*(void **)&capture_end = dlsym(handle, "cuStreamEndCapture");
	*(void **)&graph_destroy = dlsym(handle, "cuGraphDestroy");
	test_file_name(name, sizeof(name), "capture");
	if (!capture_begin || !capture_end || write_file() || penstock_alloc(gpu, FILE_LEN, &mem))
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

/* Uses every part of the library that calls the CUDA driver. */
static void use_library(void)
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
	/* Also reads in stream order, on a stream that is not the captured one. */
	assert_int_equal(api->cuCtxSetCurrent(ctx), 0);
	assert_int_equal(api->cuStreamCreateWithPriority(&other, PST_CU_STREAM_NON_BLOCKING, 0), 0);
	transfer(PENSTOCK_READ, NULL, other);
	api->cuStreamDestroy(other);
}

static void *use_library_thread(void *arg)
{
	(void)arg;
	use_library();
	return NULL;
}

static void use_library_during_capture(enum pst_cu_capture_mode mode, bool same_thread)
{
	enum pst_cu_capture status;
	void *graph = NULL;
	pthread_t thread;

	assert_int_equal(capture_begin(captured, mode), 0);
	if (same_thread) {
		use_library();
	} else {
		assert_int_equal(pthread_create(&thread, NULL, use_library_thread, NULL), 0);
		pthread_join(thread, NULL);
	}
	assert_int_equal(api->cuStreamIsCapturing(captured, &status), 0);
	assert_int_equal(status, PST_CU_CAPTURE_ACTIVE);
	assert_int_equal(capture_end(captured, &graph), 0);
	if (graph)
		graph_destroy(graph);
}

static void work_on_other_threads_during_capture(void **state)
{
	(void)state;
	use_library_during_capture(PST_CU_CAPTURE_GLOBAL, false);
	use_library_during_capture(PST_CU_CAPTURE_THREAD_LOCAL, false);
	use_library_during_capture(PST_CU_CAPTURE_RELAXED, false);
}

static void work_on_the_capturing_thread(void **state)
{
	(void)state;
	use_library_during_capture(PST_CU_CAPTURE_GLOBAL, true);
	use_library_during_capture(PST_CU_CAPTURE_THREAD_LOCAL, true);
	use_library_during_capture(PST_CU_CAPTURE_RELAXED, true);
}

/* A device is opened during a capture, so the library creates the device's threads and their
 * pinned memory during the capture. A read to the device must succeed, and the capture must remain
 * valid. */
static void device_opens_during_capture(void **state)
{
	struct penstock_device *first = gpu;

	(void)state;
	assert_int_equal(capture_begin(captured, PST_CU_CAPTURE_GLOBAL), 0);
	penstock_free(first, mem);
	penstock_device_close(first);
	assert_true(penstock_device_open("cuda:0", NULL, &gpu) >= 0);
	assert_int_equal(penstock_alloc(gpu, FILE_LEN, &mem), 0);
	transfer(PENSTOCK_READ, NULL, NULL);
	assert_int_equal(capture_end(captured, &(void *){NULL}), 0);
}

/* When a library function returns, the calling thread has the same capture mode as before the
 * call. */
static void capture_mode_of_the_thread_is_restored(void **state)
{
	(void)state;
	for (enum pst_cu_capture_mode m = PST_CU_CAPTURE_GLOBAL; m <= PST_CU_CAPTURE_RELAXED; m++) {
		enum pst_cu_capture_mode now = m, after = PST_CU_CAPTURE_GLOBAL;

		assert_int_equal(api->cuThreadExchangeStreamCaptureMode(&now), 0);
		use_library();
		assert_int_equal(api->cuThreadExchangeStreamCaptureMode(&after), 0);
		assert_int_equal(after, m);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(device_opens_during_capture),
		cmocka_unit_test(work_on_other_threads_during_capture),
		cmocka_unit_test(work_on_the_capturing_thread),
		cmocka_unit_test(capture_mode_of_the_thread_is_restored),
	};

	test_use_standin();
	return cmocka_run_group_tests_name("capture", tests, setup, teardown);
}
