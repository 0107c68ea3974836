/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failures on demand, counts and settings of the stand-in CUDA driver, how it
 * begins and ends, and how its results become -errno. The cases without
 * standin_only() also hold for the real driver (PENSTOCK_STANDIN=0). Settings
 * are read once by a process, so a case that needs others runs this program
 * again.
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

static int open_all(void **state)
{
	if (check_open(state))
		return -1;
	if (!is_standin())
		return 0;
	*(void **)&control.fail_on = symbol("pst_standin_fail");
	*(void **)&control.calls = symbol("pst_standin_calls");
	*(void **)&control.live = symbol("pst_standin_live");
	*(void **)&control.peek = symbol("pst_standin_peek");
	*(void **)&control.delay = symbol("pst_standin_delay");
	*(void **)&control.capture = symbol("pst_standin_capture");
	*(void **)&control.break_ctx = symbol("pst_standin_break");
	*(void **)&control.why = symbol("pst_standin_why");
	return 0;
}

static int teardown(void **state)
{
	if (is_standin()) {
		control.fail_on(NULL);
		control.delay(0, 1);
	}
	return check_teardown(state);
}

/* --- on demand ----------------------------------------------------------- */

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
	assert_non_null(strstr(control.why(), "on demand"));
}

static void failures_that_cannot_be_read(void **state)
{
	standin_only();
	(void)state;
	assert_int_equal(control.fail_on("cuMemAlloc:1:2"), -1); /* no such symbol */
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

static void what_is_left_is_counted(void **state)
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
	s = make_stream(0);
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

static void delays_show_a_slot_used_too_early(void **state)
{
	pst_cu_ptr dev;
	char *slot;
	long began;

	standin_only();
	(void)state;
	dev = alloc_dev(4096);
	slot = alloc_host(4096);
	memset(slot, 1, 4096);
	control.delay(10000, 7);
	began = now_ms();
	for (int i = 0; i < 8; i++) {
		assert_int_equal(cu->cuMemcpyHtoDAsync(dev, slot, 4096, stream), PST_CU_OK);
		settle(stream);
	}
	assert_true(now_ms() - began >= 8); /* 40 expected */
	assert_int_equal(control.peek(dev)[0], 1);
	assert_int_equal(cu->cuMemcpyHtoDAsync(dev, slot, 4096, stream), PST_CU_OK);
	overwrite(slot, 2, 4096); /* nobody has waited for the copy */
	settle(stream);
	assert_int_equal(control.peek(dev)[0], 2);
	cu->cuMemFree(dev);
	cu->cuMemFreeHost(slot);
}

static void handles_that_are_gone(void **state)
{
	struct pst_cu_stream *s;
	struct pst_cu_event *e;

	standin_only();
	(void)state;
	s = make_stream(0);
	assert_int_equal(cu->cuEventCreate(&e, 0), PST_CU_OK);
	assert_int_equal(cu->cuStreamDestroy(s), PST_CU_OK);
	assert_int_equal(cu->cuEventDestroy(e), PST_CU_OK);
	assert_int_equal(cu->cuStreamDestroy(s), PST_CU_INVALID_HANDLE);
	assert_int_equal(cu->cuEventDestroy(e), PST_CU_INVALID_HANDLE);
	assert_int_equal(cu->cuStreamQuery(s), PST_CU_INVALID_HANDLE);
	assert_int_equal(cu->cuEventRecord(e, stream), PST_CU_INVALID_HANDLE);
}

static void capturing_streams_take_nothing(void **state)
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

static void strict_about_contexts(void **state)
{
	standin_only();
	(void)state;
	cu->cuCtxSetCurrent(NULL);
	assert_int_equal(cu->cuStreamQuery(stream), PST_CU_INVALID_CONTEXT);
}

/* --- in a process of its own --------------------------------------------- */

static int broken_contexts(void)
{
	pst_cu_ptr dev = alloc_dev(4096);
	char *host = alloc_host(4096);
	struct pst_standin_live live;
	unsigned int type;

	WANT(control.fail_on("exec.cuMemcpyHtoDAsync_v2:1:700"), 0);
	WANT(cu->cuMemcpyHtoDAsync(dev, host, 4096, stream), PST_CU_OK);
	WANT(cu->cuStreamSynchronize(stream), PST_CU_ILLEGAL_ADDRESS);
	WANT(cu->cuMemcpyHtoDAsync(dev, host, 4096, stream), PST_CU_ILLEGAL_ADDRESS);
	WANT(cu->cuStreamQuery(stream), PST_CU_ILLEGAL_ADDRESS);
	WANT(cu->cuPointerGetAttribute(&type, PST_CU_PTR_MEMORY_TYPE, dev), PST_CU_ILLEGAL_ADDRESS);
	/* Giving back says so too, and is done. */
	WANT(cu->cuMemFree(dev), PST_CU_ILLEGAL_ADDRESS);
	WANT(cu->cuMemFreeHost(host), PST_CU_ILLEGAL_ADDRESS);
	WANT(cu->cuStreamDestroy(stream), PST_CU_ILLEGAL_ADDRESS);
	control.live(&live);
	WANT(live.allocs, 0);
	WANT(live.host_allocs, 0);
	WANT(live.streams, 0);
	return 0;
}

static int breaking_lets_waits_go(void)
{
	uint64_t *word = alloc_host(4096);

	*word = 0;
	WANT(cu->cuStreamWaitValue64(stream, (uintptr_t)word, 1, PST_CU_WAIT_EQ), PST_CU_OK);
	WANT(control.break_ctx(0, PST_CU_ECC_UNCORRECTABLE), 0);
	WANT(cu->cuStreamSynchronize(stream), PST_CU_ECC_UNCORRECTABLE);
	return 0;
}

static int settings_say(void)
{
	int value = -1;
	char bdf[16];
	size_t left, total;
	pst_cu_ptr dev;

	WANT(cu->device_count, 2);
	WANT(cu->cuMemGetInfo(&left, &total), PST_CU_OK);
	WANT(total, 64 * MIB);
	WANT(cu->cuMemAlloc(&dev, 63 * MIB), PST_CU_OK);
	WANT(cu->cuMemAlloc(&dev, 1), PST_CU_OUT_OF_MEMORY);
	WANT(cu->cuDeviceGetAttribute(&value, PST_CU_DEV_MEMOPS_64, 0), PST_CU_OK);
	WANT(value, 0);
	WANT(cu->cuStreamWriteValue64(stream, dev, 1, 0), PST_CU_NOT_SUPPORTED);
	WANT(cu->cuDeviceGetAttribute(&value, PST_CU_DEV_READ_ONLY_REGISTER, 0), PST_CU_OK);
	WANT(value, 0);
	WANT(cu->cuDeviceCanAccessPeer(&value, 0, 1), PST_CU_OK);
	WANT(value, 0);
	WANT(cu->cuIpcGetMemHandle(&(struct pst_cu_ipc_mem){0}, dev), PST_CU_NOT_SUPPORTED);
	WANT(cu->cuDeviceGetPCIBusId(bdf, sizeof(bdf), 1), PST_CU_OK);
	WANT(strcmp(bdf, "0000:05:00.0"), 0);
	cu->cuCtxSetCurrent(NULL);
	WANT(cu->cuStreamQuery(stream), PST_CU_OK);
	return 0;
}

static int last_release(void)
{
	struct pst_standin_live live;
	struct pst_cu_ctx *current;
	pst_cu_ptr dev = alloc_dev(4096);
	unsigned int type;

	WANT(cu->cuDevicePrimaryCtxRelease(0), PST_CU_OK);
	WANT(cu->cuDevicePrimaryCtxRelease(0), PST_CU_INVALID_CONTEXT);
	WANT(cu->cuCtxGetCurrent(&current), PST_CU_OK);
	WANT(current == ctx, 1);
	WANT(cu->cuMemAlloc(&dev, 4096), PST_CU_CONTEXT_IS_DESTROYED);
	WANT(cu->cuPointerGetAttribute(&type, PST_CU_PTR_MEMORY_TYPE, dev), PST_CU_INVALID_VALUE);
	if (is_standin()) {
		control.live(&live);
		WANT(live.lost, 2); /* the memory and the stream */
		WANT(live.allocs, 0);
	}
	return 0;
}

static void *release_thread(void *arg)
{
	usleep(1000);
	__atomic_store_n((uint64_t *)arg, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* The end of the process finds streams at work and must not trip over them. */
static int exit_at_work(void)
{
	uint64_t *word = alloc_host(4096);
	pthread_t thread;

	*word = 0;
	WANT(cu->cuStreamWaitValue64(stream, (uintptr_t)word, 1, PST_CU_WAIT_EQ), PST_CU_OK);
	WANT(pthread_create(&thread, NULL, release_thread, word), 0);
	pthread_detach(thread);
	return 0;
}

static int no_library(void)
{
	const char *why = "";

	WANT(pst_cuda_get(&why) == NULL, 1);
	WANT(strstr(why, "/no/such/library") != NULL, 1);
	WANT(pst_cuda_get(&why) == NULL, 1);
	return 0;
}

static int no_device(void)
{
	const char *why = "";

	WANT(pst_cuda_get(&why) == NULL, 1);
	WANT(strstr(why, "CUDA_ERROR_NO_DEVICE") != NULL, 1);
	return 0;
}

static const struct alone alone[] = {
	{"broken_contexts", broken_contexts, false},
	{"breaking_lets_waits_go", breaking_lets_waits_go, false},
	{"settings_say", settings_say, false},
	{"last_release", last_release, false},
	{"exit_at_work", exit_at_work, false},
	{"no_library", no_library, true},
	{"no_device", no_device, true},
};

static const char *const no_settings[] = {NULL};

static void a_broken_context_stays_broken(void **state)
{
	standin_only();
	(void)state;
	assert_int_equal(run_self("broken_contexts", no_settings), 0);
	assert_int_equal(run_self("breaking_lets_waits_go", no_settings), 0);
}

static void settings(void **state)
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
	assert_int_equal(run_self("settings_say", all), 0);
	assert_true(WIFSIGNALED(run_self("settings_say", wrong)));
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
	assert_int_equal(run_self("exit_at_work", no_settings), 0);
}

static void no_driver_is_an_answer(void **state)
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

#define CASE(f) cmocka_unit_test_setup_teardown(f, check_setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(the_nth_call_fails),
		CASE(failures_that_cannot_be_read),
		CASE(calls_are_counted),
		CASE(what_is_left_is_counted),
		CASE(delays_show_a_slot_used_too_early),
		CASE(handles_that_are_gone),
		CASE(capturing_streams_take_nothing),
		CASE(strict_about_contexts),
		CASE(a_broken_context_stays_broken),
		CASE(settings),
		CASE(leaks_fail_the_process),
		CASE(the_last_release_ends_the_context),
		CASE(exit_is_clean),
		CASE(no_driver_is_an_answer),
		CASE(results_become_errno),
	};

	check_choose();
	if (argc > 1)
		return run_alone(alone, sizeof(alone) / sizeof(alone[0]), argv[1], open_all);
	return cmocka_run_group_tests_name("standin_control", tests, open_all, check_close);
}
