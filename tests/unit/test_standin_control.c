/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the controls of the stand-in CUDA driver: injected failures, call counts and settings.
 * Also tests how the driver starts and exits, and how CUDA results become -errno. Cases without
 * standin_only() also pass on the real driver (with PENSTOCK_STANDIN=0). A process reads the
 * settings only once, so a case that needs other settings runs this program again as a child.
 */
#include "../standin/check.h"

#include <errno.h>
#include <sys/mman.h>

static struct {
	int (*fail_on)(const char *);
	unsigned long (*calls)(const char *);
	void (*live)(struct pst_standin_live *);
	unsigned char *(*peek)(pst_cu_ptr);
	void (*delay)(unsigned int, unsigned long);
	int (*capture)(struct pst_cu_stream *, int);
	int (*break_ctx)(int, enum pst_cu_result);
	const char *(*why)(void);
} control;

static int control_setup(void **state)
{
	if (check_open(state))
		return -1;
	if (!is_standin())
		return 0;
	*(void **)&control.fail_on = lib_symbol("pst_standin_fail");
	*(void **)&control.calls = lib_symbol("pst_standin_calls");
	*(void **)&control.live = lib_symbol("pst_standin_live");
	*(void **)&control.peek = lib_symbol("pst_standin_peek");
	*(void **)&control.delay = lib_symbol("pst_standin_delay");
	*(void **)&control.capture = lib_symbol("pst_standin_capture");
	*(void **)&control.break_ctx = lib_symbol("pst_standin_break");
	*(void **)&control.why = lib_symbol("pst_standin_why");
	return 0;
}

static int control_teardown(void **state)
{
	if (is_standin()) {
		control.fail_on(NULL);
		control.delay(0, 1);
	}
	return check_teardown(state);
}

/* ---- injected failures and counts ---- */

static void the_nth_call_fails(void **state)
{
	pst_cu_ptr dev[4] = {0};

	standin_only();
	(void)state;
	assert_int_equal(control.fail_on("cuMemAlloc_v2:2:2,cuMemFree_v2:1:999"), 0);
	assert_int_equal(cu->cuMemAlloc(&dev[0], 4096), PST_CU_OK);
	assert_int_equal(cu->cuMemAlloc(&dev[1], 4096), PST_CU_OUT_OF_MEMORY);
	assert_int_equal(cu->cuMemAlloc(&dev[2], 4096), PST_CU_OK);
	assert_int_equal(cu->cuMemFree(dev[0]), PST_CU_UNKNOWN);
	assert_int_equal(cu->cuMemFree(dev[0]), PST_CU_OK);
	assert_int_equal(cu->cuMemFree(dev[2]), PST_CU_OK);
	assert_int_equal(control.fail_on("cuMemAlloc_v2:2+:2"), 0);
	assert_int_equal(cu->cuMemAlloc(&dev[0], 4096), PST_CU_OK);
	assert_int_equal(cu->cuMemAlloc(&dev[1], 4096), PST_CU_OUT_OF_MEMORY);
	assert_int_equal(cu->cuMemAlloc(&dev[2], 4096), PST_CU_OUT_OF_MEMORY);
	assert_int_equal(control.fail_on("*:3:1"), 0);
	assert_int_equal(cu->cuMemFree(dev[0]), PST_CU_OK);
	assert_int_equal(cu->cuCtxSetCurrent(ctx), PST_CU_OK);
	assert_int_equal(cu->cuStreamQuery(stream), PST_CU_INVALID_VALUE);
	assert_non_null(strstr(control.why(), "injected failure"));
}

static void invalid_failure_specs(void **state)
{
	standin_only();
	(void)state;
	/* No function has the name cuMemAlloc; the symbol is cuMemAlloc_v2. */
	assert_int_equal(control.fail_on("cuMemAlloc:1:2"), -1);
	assert_int_equal(control.fail_on("cuMemAlloc_v2"), -1);
	assert_int_equal(control.fail_on("cuMemAlloc_v2:0:2"), -1);
	assert_int_equal(control.fail_on("cuMemAlloc_v2:1"), -1);
	assert_int_equal(control.fail_on("cuMemAlloc_v2:1:2x"), -1);
	assert_int_equal(control.fail_on("cuMemAlloc_v2:1:2,"), 0);
}

static void calls_are_counted(void **state)
{
	unsigned long one, all;

	standin_only();
	(void)state;
	one = control.calls("cuStreamQuery");
	all = control.calls("*");
	cu->cuStreamQuery(stream);
	cu->cuStreamQuery(stream);
	cu->cuMemFree(0);
	assert_int_equal(control.calls("cuStreamQuery") - one, 2);
	assert_int_equal(control.calls("*") - all, 3);
	assert_int_equal(control.calls("no such function"), 0);
}

static void live_objects_are_counted(void **state)
{
	struct pst_standin_live before, during, after;
	struct pst_cu_stream *s;
	struct pst_cu_event *e;
	static char *page;
	pst_cu_ptr dev;
	void *host;

	standin_only();
	(void)state;
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	control.live(&before);
	dev = alloc_dev(4 * MIB);
	host = alloc_host(4096);
	s = stream_new(0);
	assert_int_equal(cu->cuEventCreate(&e, 0), PST_CU_OK);
	assert_int_equal(cu->cuMemHostRegister(page, 4096, 0), PST_CU_OK);
	control.live(&during);
	assert_int_equal(during.allocs - before.allocs, 1);
	assert_int_equal(during.alloc_bytes - before.alloc_bytes, 4 * MIB);
	assert_int_equal(during.host_allocs - before.host_allocs, 1);
	assert_int_equal(during.streams - before.streams, 1);
	assert_int_equal(during.events - before.events, 1);
	assert_int_equal(during.registrations - before.registrations, 1);
	assert_int_equal(during.ctx_retains, 1);
	cu->cuMemHostUnregister(page);
	cu->cuEventDestroy(e);
	cu->cuStreamDestroy(s);
	cu->cuMemFreeHost(host);
	cu->cuMemFree(dev);
	control.live(&after);
	assert_memory_equal(&after, &before, sizeof(after));
	munmap(page, 4096);
}

static void delay_exposes_early_slot_reuse(void **state)
{
	pst_cu_ptr dev;
	char *slot;
	long start_ms;

	standin_only();
	(void)state;
	dev = alloc_dev(4096);
	slot = alloc_host(4096);
	memset(slot, 1, 4096);
	control.delay(10000, 7);
	start_ms = now_ms();
	for (int i = 0; i < 8; i++) {
		assert_int_equal(cu->cuMemcpyHtoDAsync(dev, slot, 4096, stream), PST_CU_OK);
		stream_sync(stream);
	}
	assert_true(now_ms() - start_ms >= 8); /* On average all delays together take 40 ms. */
	assert_int_equal(control.peek(dev)[0], 1);
	assert_int_equal(cu->cuMemcpyHtoDAsync(dev, slot, 4096, stream), PST_CU_OK);
	overwrite(slot, 2, 4096); /* The copy has not read the slot yet. */
	stream_sync(stream);
	assert_int_equal(control.peek(dev)[0], 2);
	cu->cuMemFree(dev);
	cu->cuMemFreeHost(slot);
}

static void stale_handles_are_refused(void **state)
{
	struct pst_cu_stream *s;
	struct pst_cu_event *e;

	standin_only();
	(void)state;
	s = stream_new(0);
	assert_int_equal(cu->cuEventCreate(&e, 0), PST_CU_OK);
	assert_int_equal(cu->cuStreamDestroy(s), PST_CU_OK);
	assert_int_equal(cu->cuEventDestroy(e), PST_CU_OK);
	assert_int_equal(cu->cuStreamDestroy(s), PST_CU_INVALID_HANDLE);
	assert_int_equal(cu->cuEventDestroy(e), PST_CU_INVALID_HANDLE);
	assert_int_equal(cu->cuStreamQuery(s), PST_CU_INVALID_HANDLE);
	assert_int_equal(cu->cuEventRecord(e, stream), PST_CU_INVALID_HANDLE);
}

static void capturing_stream_refuses_operations(void **state)
{
	enum pst_cu_capture status;
	pst_cu_ptr dev;

	standin_only();
	(void)state;
	dev = alloc_dev(4096);
	assert_int_equal(control.capture(stream, 1), 0);
	assert_int_equal(cu->cuStreamIsCapturing(stream, &status), PST_CU_OK);
	assert_int_equal(status, PST_CU_CAPTURE_ACTIVE);
	assert_int_equal(cu->cuMemsetD8Async(dev, 0, 1, stream), PST_CU_CAPTURE_UNSUPPORTED);
	assert_int_equal(control.capture(stream, 0), 0);
	assert_int_equal(cu->cuMemsetD8Async(dev, 0, 1, stream), PST_CU_OK);
	cu->cuMemFree(dev);
}

static void strict_mode_needs_a_context(void **state)
{
	standin_only();
	(void)state;
	cu->cuCtxSetCurrent(NULL);
	assert_int_equal(cu->cuStreamQuery(stream), PST_CU_INVALID_CONTEXT);
}

/* ---- cases in a child process ---- */

static int broken_contexts(void)
{
	pst_cu_ptr dev = alloc_dev(4096);
	char *host = alloc_host(4096);
	struct pst_standin_live live;
	unsigned int type;

	EXPECT_EQ(control.fail_on("exec.cuMemcpyHtoDAsync_v2:1:700"), 0);
	EXPECT_EQ(cu->cuMemcpyHtoDAsync(dev, host, 4096, stream), PST_CU_OK);
	EXPECT_EQ(cu->cuStreamSynchronize(stream), PST_CU_ILLEGAL_ADDRESS);
	EXPECT_EQ(cu->cuMemcpyHtoDAsync(dev, host, 4096, stream), PST_CU_ILLEGAL_ADDRESS);
	EXPECT_EQ(cu->cuStreamQuery(stream), PST_CU_ILLEGAL_ADDRESS);
	EXPECT_EQ(cu->cuPointerGetAttribute(&type, PST_CU_PTR_MEMORY_TYPE, dev),
		  PST_CU_ILLEGAL_ADDRESS);
	/* Calls that free an object return the error of the broken context, but free it. */
	EXPECT_EQ(cu->cuMemFree(dev), PST_CU_ILLEGAL_ADDRESS);
	EXPECT_EQ(cu->cuMemFreeHost(host), PST_CU_ILLEGAL_ADDRESS);
	EXPECT_EQ(cu->cuStreamDestroy(stream), PST_CU_ILLEGAL_ADDRESS);
	control.live(&live);
	EXPECT_EQ(live.allocs, 0);
	EXPECT_EQ(live.host_allocs, 0);
	EXPECT_EQ(live.streams, 0);
	return 0;
}

static int breaking_ends_waits(void)
{
	uint64_t *word = alloc_host(4096);

	*word = 0;
	EXPECT_EQ(cu->cuStreamWaitValue64(stream, (uintptr_t)word, 1, PST_CU_WAIT_EQ), PST_CU_OK);
	EXPECT_EQ(control.break_ctx(0, PST_CU_ECC_UNCORRECTABLE), 0);
	EXPECT_EQ(cu->cuStreamSynchronize(stream), PST_CU_ECC_UNCORRECTABLE);
	return 0;
}

static int settings_are_effective(void)
{
	int value = -1;
	char bdf[16];
	size_t left, total;
	pst_cu_ptr dev;

	EXPECT_EQ(cu->device_count, 2);
	EXPECT_EQ(cu->cuMemGetInfo(&left, &total), PST_CU_OK);
	EXPECT_EQ(total, 64 * MIB);
	EXPECT_EQ(cu->cuMemAlloc(&dev, 63 * MIB), PST_CU_OK);
	EXPECT_EQ(cu->cuMemAlloc(&dev, 1), PST_CU_OUT_OF_MEMORY);
	EXPECT_EQ(cu->cuDeviceGetAttribute(&value, PST_CU_DEV_MEMOPS_64, 0), PST_CU_OK);
	EXPECT_EQ(value, 0);
	EXPECT_EQ(cu->cuStreamWriteValue64(stream, dev, 1, 0), PST_CU_NOT_SUPPORTED);
	EXPECT_EQ(cu->cuDeviceGetAttribute(&value, PST_CU_DEV_READ_ONLY_REGISTER, 0), PST_CU_OK);
	EXPECT_EQ(value, 0);
	EXPECT_EQ(cu->cuDeviceCanAccessPeer(&value, 0, 1), PST_CU_OK);
	EXPECT_EQ(value, 0);
	EXPECT_EQ(cu->cuIpcGetMemHandle(&(struct pst_cu_ipc_mem){0}, dev), PST_CU_NOT_SUPPORTED);
	EXPECT_EQ(cu->cuDeviceGetPCIBusId(bdf, sizeof(bdf), 1), PST_CU_OK);
	EXPECT_EQ(strcmp(bdf, "0000:05:00.0"), 0);
	cu->cuCtxSetCurrent(NULL);
	EXPECT_EQ(cu->cuStreamQuery(stream), PST_CU_OK);
	return 0;
}

static int last_release(void)
{
	struct pst_standin_live live;
	struct pst_cu_ctx *current;
	pst_cu_ptr dev = alloc_dev(4096);
	unsigned int type;

	EXPECT_EQ(cu->cuDevicePrimaryCtxRelease(0), PST_CU_OK);
	EXPECT_EQ(cu->cuDevicePrimaryCtxRelease(0), PST_CU_INVALID_CONTEXT);
	EXPECT_EQ(cu->cuCtxGetCurrent(&current), PST_CU_OK);
	EXPECT_EQ(current == ctx, 1);
	EXPECT_EQ(cu->cuMemAlloc(&dev, 4096), PST_CU_CONTEXT_IS_DESTROYED);
	EXPECT_EQ(cu->cuPointerGetAttribute(&type, PST_CU_PTR_MEMORY_TYPE, dev),
		  PST_CU_INVALID_VALUE);
	if (is_standin()) {
		control.live(&live);
		EXPECT_EQ(live.lost, 2); /* The two lost objects are the memory and the stream. */
		EXPECT_EQ(live.allocs, 0);
	}
	return 0;
}

static void *semaphore_set_later(void *arg)
{
	usleep(1000);
	__atomic_store_n((uint64_t *)arg, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* The process exits while a stream has work. The exit must not crash or hang. */
static int exit_with_pending_work(void)
{
	uint64_t *word = alloc_host(4096);
	pthread_t thread;

	*word = 0;
	EXPECT_EQ(cu->cuStreamWaitValue64(stream, (uintptr_t)word, 1, PST_CU_WAIT_EQ), PST_CU_OK);
	EXPECT_EQ(pthread_create(&thread, NULL, semaphore_set_later, word), 0);
	pthread_detach(thread);
	return 0;
}

static int no_library(void)
{
	const char *why = "";

	EXPECT_EQ(pst_cuda_get(&why) == NULL, 1);
	EXPECT_EQ(strstr(why, "/no/such/library") != NULL, 1);
	EXPECT_EQ(pst_cuda_get(&why) == NULL, 1);
	return 0;
}

static int no_device(void)
{
	const char *why = "";

	EXPECT_EQ(pst_cuda_get(&why) == NULL, 1);
	EXPECT_EQ(strstr(why, "CUDA_ERROR_NO_DEVICE") != NULL, 1);
	return 0;
}

static const struct child_case child_cases[] = {
	{"broken_contexts", broken_contexts, false},
	{"breaking_ends_waits", breaking_ends_waits, false},
	{"settings_are_effective", settings_are_effective, false},
	{"last_release", last_release, false},
	{"exit_with_pending_work", exit_with_pending_work, false},
	{"no_library", no_library, true},
	{"no_device", no_device, true},
};

static const char *const no_settings[] = {NULL};

static void a_broken_context_stays_broken(void **state)
{
	standin_only();
	(void)state;
	assert_int_equal(run_self("broken_contexts", no_settings), 0);
	assert_int_equal(run_self("breaking_ends_waits", no_settings), 0);
}

static void settings_from_environment(void **state)
{
	static const char *const all[] = {"PENSTOCK_STANDIN_DEVICES=2",
					  "PENSTOCK_STANDIN_MEM=64MiB",
					  "PENSTOCK_STANDIN_NO_MEMOPS=1",
					  "PENSTOCK_STANDIN_NO_READ_ONLY=1",
					  "PENSTOCK_STANDIN_NO_IPC=1",
					  "PENSTOCK_STANDIN_PEER=0",
					  "PENSTOCK_STANDIN_STRICT=0",
					  "PENSTOCK_STANDIN_PCI_BUS=4",
					  NULL};
	static const char *const wrong[] = {"PENSTOCK_STANDIN_FAIL=nonsense", NULL};

	standin_only();
	(void)state;
	assert_int_equal(run_self("settings_are_effective", all), 0);
	assert_true(WIFSIGNALED(run_self("settings_are_effective", wrong)));
}

static void leaks_fail_the_process(void **state)
{
	static const char *const leaks[] = {"PENSTOCK_STANDIN_LEAKS=2", NULL};
	int status;

	standin_only();
	(void)state;
	status = run_self("last_release", leaks);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 97);
}

static void the_last_release_ends_the_context(void **state)
{
	(void)state;
	assert_int_equal(run_self("last_release", no_settings), 0);
}

static void exit_is_clean(void **state)
{
	(void)state;
	assert_int_equal(run_self("exit_with_pending_work", no_settings), 0);
}

static void missing_driver_is_reported(void **state)
{
	static const char *const none[] = {"PENSTOCK_LIBCUDA=/no/such/library", NULL};
	static const char *const empty[] = {"PENSTOCK_STANDIN_DEVICES=0", NULL};

	standin_only();
	(void)state;
	assert_int_equal(run_self("no_library", none), 0);
	assert_int_equal(run_self("no_device", empty), 0);
}

static void results_become_errno(void **state)
{
	const char *name = NULL;

	(void)state;
	assert_int_equal(pst_cuda_errno(PST_CU_OK), 0);
	assert_int_equal(pst_cuda_errno(PST_CU_INVALID_VALUE), -EINVAL);
	assert_int_equal(pst_cuda_errno(PST_CU_OUT_OF_MEMORY), -ENOMEM);
	assert_int_equal(pst_cuda_errno(PST_CU_NOT_READY), -EAGAIN);
	assert_int_equal(pst_cuda_errno(PST_CU_INVALID_CONTEXT), -ENXIO);
	assert_int_equal(pst_cuda_errno(PST_CU_ILLEGAL_ADDRESS), -EFAULT);
	assert_int_equal(pst_cuda_errno(PST_CU_HOST_ALREADY_REGISTERED), -EEXIST);
	assert_int_equal(pst_cuda_errno(PST_CU_NOT_SUPPORTED), -EOPNOTSUPP);
	assert_int_equal(pst_cuda_errno((enum pst_cu_result)12345), -EIO);
	assert_string_equal(pst_cuda_name(PST_CU_NO_DEVICE), "CUDA_ERROR_NO_DEVICE");
	assert_string_equal(pst_cuda_name((enum pst_cu_result)12345), "an unlisted CUDA error");
	assert_int_equal(cu->cuGetErrorName(PST_CU_INVALID_CONTEXT, &name), PST_CU_OK);
	assert_string_equal(name, pst_cuda_name(PST_CU_INVALID_CONTEXT));
	assert_int_equal(cu->cuGetErrorName((enum pst_cu_result)12345, &name),
			 PST_CU_INVALID_VALUE);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, check_setup, control_teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(the_nth_call_fails),
		CASE(invalid_failure_specs),
		CASE(calls_are_counted),
		CASE(live_objects_are_counted),
		CASE(delay_exposes_early_slot_reuse),
		CASE(stale_handles_are_refused),
		CASE(capturing_stream_refuses_operations),
		CASE(strict_mode_needs_a_context),
		CASE(a_broken_context_stays_broken),
		CASE(settings_from_environment),
		CASE(leaks_fail_the_process),
		CASE(the_last_release_ends_the_context),
		CASE(exit_is_clean),
		CASE(missing_driver_is_reported),
		CASE(results_become_errno),
	};

	check_choose();
	if (argc > 1)
		return child_case_run(child_cases, sizeof(child_cases) / sizeof(child_cases[0]),
				      argv[1], control_setup);
	return cmocka_run_group_tests_name("standin_control", tests, control_setup, check_close);
}
