/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the parts of the stand-in CUDA driver that need a second process or device: shared memory,
 * fork and access to memory of another GPU. Also tests memory that is mapped in pieces. Every case
 * also passes on the real driver (with PENSTOCK_STANDIN=0).
 */
#include "../standin/check.h"

static int calls_after_fork(void)
{
	pst_cu_ptr dev;
	pid_t pid = fork();
	int status = -1;

	if (!pid)
		_exit(cu->cuMemAlloc(&dev, 4096) == PST_CU_NOT_INITIALIZED &&
				      cu->cuInit(0) == PST_CU_NOT_INITIALIZED
			      ? 0
			      : 1);
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
	return 0;
}

/* Runs in a child: opens the IPC handle in the environment variable STANDIN_TEST_HANDLE. */
static int ipc_open(void)
{
	const char *text = getenv("STANDIN_TEST_HANDLE");
	struct pst_cu_ipc_mem handle;
	enum pst_cu_result (*to_host)(void *, pst_cu_ptr, size_t);
	unsigned char bytes[16] = {0};
	pst_cu_ptr a = 0, b = 1, start;
	size_t len = 0;
	int capable = 1;

	*(void **)&to_host = lib_symbol("cuMemcpyDtoH_v2");
	for (size_t i = 0; i < sizeof(handle); i++)
		sscanf(text + 2 * i, "%2hhx", (unsigned char *)&handle.reserved[i]);
	EXPECT_EQ(cu->cuIpcOpenMemHandle(&a, handle, 0), PST_CU_INVALID_VALUE);
	EXPECT_EQ(cu->cuIpcOpenMemHandle(&a, handle, PST_CU_IPC_LAZY_PEER), PST_CU_OK);
	EXPECT_EQ(cu->cuIpcOpenMemHandle(&b, handle, PST_CU_IPC_LAZY_PEER), PST_CU_OK);
	EXPECT_EQ(a, b);
	EXPECT_EQ(cu->cuMemGetAddressRange(&start, &len, a), PST_CU_OK);
	EXPECT_EQ(start, a);
	EXPECT_EQ(len, 4096);
	EXPECT_EQ(to_host(bytes, a + 4080, 16), PST_CU_OK);
	EXPECT_EQ(bytes[15], 0xab);
	EXPECT_EQ(cu->cuMemcpyHtoDAsync(a, "0123456789abcdef", 16, stream), PST_CU_OK);
	EXPECT_EQ(cu->cuStreamSynchronize(stream), PST_CU_OK);
	EXPECT_EQ(cu->cuPointerGetAttribute(&capable, PST_CU_PTR_IS_IPC_CAPABLE, a), PST_CU_OK);
	EXPECT_EQ(capable, 0);
	EXPECT_EQ(cu->cuIpcGetMemHandle(&handle, a), PST_CU_INVALID_VALUE);
	EXPECT_EQ(cu->cuMemFree(a), PST_CU_INVALID_VALUE);
	EXPECT_EQ(cu->cuIpcCloseMemHandle(a), PST_CU_OK);
	EXPECT_EQ(to_host(bytes, a, 16), PST_CU_OK);
	EXPECT_EQ(cu->cuIpcCloseMemHandle(a), PST_CU_OK);
	EXPECT_EQ(cu->cuIpcCloseMemHandle(a), PST_CU_INVALID_VALUE);
	return 0;
}

static int two_devices(void)
{
	struct pst_cu_ctx *ctx1;
	struct pst_cu_stream *stream1;
	pst_cu_ptr mine = alloc_dev(4096), theirs = 0, seen = 1;
	int can = 0, ordinal = -1;

	EXPECT_EQ(cu->cuDeviceCanAccessPeer(&can, 0, 1), PST_CU_OK);
	if (!can)
		return 77;
	EXPECT_EQ(cu->cuDevicePrimaryCtxRetain(&ctx1, 1), PST_CU_OK);
	EXPECT_EQ(cu->cuCtxSetCurrent(ctx1), PST_CU_OK);
	EXPECT_EQ(cu->cuMemAlloc(&theirs, 4096), PST_CU_OK);
	EXPECT_EQ(cu->cuStreamCreateWithPriority(&stream1, 1, 0), PST_CU_OK);
	EXPECT_EQ(cu->cuCtxSetCurrent(ctx), PST_CU_OK);
	EXPECT_EQ(cu->cuPointerGetAttribute(&ordinal, PST_CU_PTR_DEVICE_ORDINAL, theirs),
		  PST_CU_OK);
	EXPECT_EQ(ordinal, 1);
	EXPECT_EQ(cu->cuMemcpyDtoDAsync(mine, theirs, 4096, stream), PST_CU_OK);
	EXPECT_EQ(cu->cuStreamSynchronize(stream), PST_CU_OK);
	EXPECT_EQ(cu->cuMemcpyPeerAsync(theirs, ctx1, mine, ctx, 4096, stream1), PST_CU_OK);
	EXPECT_EQ(cu->cuStreamSynchronize(stream1), PST_CU_OK);
	EXPECT_EQ(cu->cuMemsetD8Async(theirs, 5, 16, stream), PST_CU_INVALID_VALUE);
	EXPECT_EQ(cu->cuPointerGetAttribute(&seen, PST_CU_PTR_DEVICE_POINTER, theirs),
		  PST_CU_INVALID_VALUE);
	EXPECT_EQ(cu->cuCtxEnablePeerAccess(ctx1, 1), PST_CU_INVALID_VALUE);
	EXPECT_EQ(cu->cuCtxEnablePeerAccess(ctx1, 0), PST_CU_OK);
	EXPECT_EQ(cu->cuCtxEnablePeerAccess(ctx1, 0), PST_CU_PEER_ACCESS_ALREADY_ENABLED);
	EXPECT_EQ(cu->cuMemsetD8Async(theirs, 5, 16, stream), PST_CU_OK);
	EXPECT_EQ(cu->cuPointerGetAttribute(&seen, PST_CU_PTR_DEVICE_POINTER, theirs), PST_CU_OK);
	EXPECT_EQ(seen, theirs);
	EXPECT_EQ(cu->cuStreamSynchronize(stream), PST_CU_OK);
	EXPECT_EQ(byte_at(theirs), 5);
	return 0;
}

static const struct child_case child_cases[] = {
	{"calls_after_fork", calls_after_fork, false},
	{"ipc_open", ipc_open, false},
	{"two_devices", two_devices, false},
};

static const char *const no_settings[] = {NULL};

static void driver_refuses_a_forked_child(void **state)
{
	(void)state;
	assert_int_equal(run_self("calls_after_fork", no_settings), 0);
}

static void memory_is_shared_between_processes(void **state)
{
	char text[sizeof("STANDIN_TEST_HANDLE=") + 128] = "STANDIN_TEST_HANDLE=";
	const char *const with[] = {text, NULL};
	struct pst_cu_ipc_mem handle;
	pst_cu_ptr dev = alloc_dev(4096), opened;

	(void)state;
	assert_int_equal(cu->cuMemsetD8Async(dev, 0xab, 4096, stream), PST_CU_OK);
	stream_sync(stream);
	assert_int_equal(cu->cuIpcGetMemHandle(&handle, 0x12345000), PST_CU_INVALID_VALUE);
	assert_int_equal(cu->cuIpcGetMemHandle(&handle, dev), PST_CU_OK);
	assert_int_equal(cu->cuIpcOpenMemHandle(&opened, handle, PST_CU_IPC_LAZY_PEER),
			 PST_CU_INVALID_CONTEXT);
	for (size_t i = 0; i < sizeof(handle); i++)
		snprintf(text + strlen(text), 3, "%02x", (unsigned char)handle.reserved[i]);
	assert_int_equal(run_self("ipc_open", with), 0);
	assert_int_equal(byte_at(dev + 15), 'f');
	cu->cuMemFree(dev);
}

static void peer_access_between_devices(void **state)
{
	static const char *const two[] = {"PENSTOCK_STANDIN_DEVICES=2", NULL};
	int status;

	(void)state;
	if (!is_standin() && cu->device_count < 2)
		test_skip("one GPU only");
	status = run_self("two_devices", two);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		test_skip("the two GPUs cannot reach each other");
	assert_int_equal(status, 0);
}

static void memory_mapped_in_pieces(void **state)
{
	struct pst_cu_alloc_prop prop = {.type = PST_CU_ALLOC_PINNED,
					 .handle_types = PST_CU_HANDLE_FD,
					 .location = {PST_CU_LOCATION_DEVICE, 0}};
	struct pst_cu_access_desc both = {{PST_CU_LOCATION_DEVICE, 0}, PST_CU_ACCESS_READWRITE};
	unsigned long long handle[2], mask = 0;
	struct pst_cu_ipc_mem ipc;
	char *host = alloc_host(8192);
	struct pst_cu_ctx *owner = ctx;
	pst_cu_ptr at, start = 0;
	size_t g = 0, len = 0;

	(void)state;
	assert_int_equal(cu->cuMemGetAllocationGranularity(&g, &prop, PST_CU_GRANULARITY_MIN), 0);
	assert_int_equal(cu->cuMemCreate(&handle[0], g + 1, &prop, 0), PST_CU_INVALID_VALUE);
	assert_int_equal(cu->cuMemCreate(&handle[0], g, &prop, 0), PST_CU_OK);
	assert_int_equal(cu->cuMemCreate(&handle[1], g, &prop, 0), PST_CU_OK);
	assert_int_equal(cu->cuMemAddressReserve(&at, 4 * g, 0, 0, 0), PST_CU_OK);
	assert_int_equal(cu->cuMemMap(at, g, 0, handle[0], 0), PST_CU_OK);
	assert_int_equal(cu->cuMemMap(at + g, g, 0, handle[1], 0), PST_CU_OK);
	assert_int_equal(cu->cuMemcpyHtoDAsync(at, host, 16, stream), PST_CU_INVALID_VALUE);
	assert_int_equal(cu->cuMemSetAccess(at, 2 * g, &both, 1), PST_CU_OK);
	memset(host, 0x42, 8192);
	assert_int_equal(cu->cuMemcpyHtoDAsync(at + g - 4096, host, 8192, stream), PST_CU_OK);
	assert_int_equal(byte_at(at + g + 4095), 0x42);
	assert_int_equal(cu->cuMemcpyHtoDAsync(at + 2 * g - 4096, host, 8192, stream),
			 PST_CU_INVALID_VALUE);
	assert_int_equal(cu->cuPointerGetAttribute(&owner, PST_CU_PTR_CONTEXT, at), PST_CU_OK);
	assert_null(owner);
	assert_int_equal(cu->cuPointerGetAttribute(&start, PST_CU_PTR_RANGE_START, at + g), 0);
	assert_int_equal(start, at);
	assert_int_equal(cu->cuPointerGetAttribute(&len, PST_CU_PTR_RANGE_SIZE, at + g), 0);
	assert_int_equal(len, 4 * g);
	assert_int_equal(cu->cuPointerGetAttribute(&mask, PST_CU_PTR_HANDLE_TYPES, at), 0);
	assert_int_equal(mask, PST_CU_HANDLE_FD);
	assert_int_equal(cu->cuIpcGetMemHandle(&ipc, at), PST_CU_INVALID_VALUE);
	assert_int_equal(cu->cuMemFree(at), PST_CU_INVALID_VALUE);
	assert_int_equal(cu->cuMemRelease(handle[0]), PST_CU_OK);
	assert_int_equal(cu->cuMemRelease(handle[1]), PST_CU_OK);
	stream_sync(stream);
	assert_int_equal(cu->cuMemUnmap(at, g / 2), PST_CU_INVALID_VALUE);
	assert_int_equal(cu->cuMemAddressFree(at, g), PST_CU_INVALID_VALUE);
	assert_int_equal(cu->cuMemUnmap(at, 2 * g), PST_CU_OK);
	assert_int_equal(cu->cuMemAddressFree(at, 4 * g), PST_CU_OK);
	cu->cuMemFreeHost(host);
}

static void memory_shared_by_descriptor(void **state)
{
	struct pst_cu_alloc_prop prop = {.type = PST_CU_ALLOC_PINNED,
					 .handle_types = PST_CU_HANDLE_FD,
					 .location = {PST_CU_LOCATION_DEVICE, 0}};
	struct pst_cu_access_desc both = {{PST_CU_LOCATION_DEVICE, 0}, PST_CU_ACCESS_READWRITE};
	unsigned long long ours, theirs;
	pst_cu_ptr a, b;
	size_t g;
	int fd = -1;

	(void)state;
	assert_int_equal(cu->cuMemGetAllocationGranularity(&g, &prop, PST_CU_GRANULARITY_MIN), 0);
	assert_int_equal(cu->cuMemCreate(&ours, g, &prop, 0), PST_CU_OK);
	assert_int_equal(cu->cuMemExportToShareableHandle(&fd, ours, PST_CU_HANDLE_FD, 0), 0);
	assert_true(fd >= 0);
	assert_int_equal(
		cu->cuMemImportFromShareableHandle(&theirs, (void *)(intptr_t)fd, PST_CU_HANDLE_FD),
		PST_CU_OK);
	close(fd);
	assert_int_equal(cu->cuMemAddressReserve(&a, g, 0, 0, 0), PST_CU_OK);
	assert_int_equal(cu->cuMemAddressReserve(&b, g, 0, 0, 0), PST_CU_OK);
	assert_int_equal(cu->cuMemMap(a, g, 0, ours, 0), PST_CU_OK);
	assert_int_equal(cu->cuMemMap(b, g, 0, theirs, 0), PST_CU_OK);
	assert_int_equal(cu->cuMemSetAccess(a, g, &both, 1), PST_CU_OK);
	assert_int_equal(cu->cuMemSetAccess(b, g, &both, 1), PST_CU_OK);
	assert_int_equal(cu->cuMemsetD8Async(a + 100, 0x24, 1, stream), PST_CU_OK);
	assert_int_equal(byte_at(b + 100), 0x24);
	assert_int_equal(cu->cuMemUnmap(a, g), PST_CU_OK);
	assert_int_equal(cu->cuMemUnmap(b, g), PST_CU_OK);
	assert_int_equal(cu->cuMemAddressFree(a, g), PST_CU_OK);
	assert_int_equal(cu->cuMemAddressFree(b, g), PST_CU_OK);
	assert_int_equal(cu->cuMemRelease(ours), PST_CU_OK);
	assert_int_equal(cu->cuMemRelease(theirs), PST_CU_OK);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, check_setup, check_teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(driver_refuses_a_forked_child), CASE(memory_is_shared_between_processes),
		CASE(peer_access_between_devices),   CASE(memory_mapped_in_pieces),
		CASE(memory_shared_by_descriptor),
	};

	check_choose();
	if (argc > 1)
		return child_case_run(child_cases, sizeof(child_cases) / sizeof(child_cases[0]),
				      argv[1], check_open);
	return cmocka_run_group_tests_name("standin_share", tests, check_open, check_close);
}
