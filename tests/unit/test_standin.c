/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests contexts, memory, registration and attributes of the stand-in CUDA driver. All cases,
 * except those with standin_only(), also pass on the real driver (with PENSTOCK_STANDIN=0).
 */
#include "../standin/check.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/statfs.h>

/* ---- contexts ---- */

static void calls_without_a_context(void **state)
{
	struct pst_cu_stream *s;
	struct pst_cu_event *e;
	struct pst_cu_ctx *c;
	static char page[8192];
	pst_cu_ptr dev;
	size_t left, total;
	void *host;

	(void)state;
	assert_int_equal(cu->cuCtxSetCurrent(NULL), PST_CU_OK);
	assert_int_equal(cu->cuCtxGetCurrent(&c), PST_CU_OK);
	assert_null(c);
	assert_int_equal(cu->cuMemAlloc(&dev, 4096), PST_CU_INVALID_CONTEXT);
	assert_int_equal(cu->cuMemGetInfo(&left, &total), PST_CU_INVALID_CONTEXT);
	assert_int_equal(cu->cuMemHostAlloc(&host, 4096, 0), PST_CU_INVALID_CONTEXT);
	assert_int_equal(cu->cuMemHostRegister(page, 4096, 0), PST_CU_INVALID_CONTEXT);
	assert_int_equal(cu->cuStreamCreateWithPriority(&s, 1, 0), PST_CU_INVALID_CONTEXT);
	assert_int_equal(cu->cuEventCreate(&e, 0), PST_CU_INVALID_CONTEXT);
	assert_int_equal(cu->cuStreamSynchronize(NULL), PST_CU_INVALID_CONTEXT);
	assert_int_equal(cu->cuCtxSynchronize(), PST_CU_INVALID_CONTEXT);
	assert_int_equal(cu->cuCtxPopCurrent(&c), PST_CU_INVALID_CONTEXT);
}

static void *alloc_in_thread(void *arg)
{
	pst_cu_ptr dev;

	*(enum pst_cu_result *)arg = cu->cuMemAlloc(&dev, 4096);
	return NULL;
}

static void current_context_is_per_thread(void **state)
{
	enum pst_cu_result rc = PST_CU_OK;
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, alloc_in_thread, &rc), 0);
	pthread_join(thread, NULL);
	assert_int_equal(rc, PST_CU_INVALID_CONTEXT);
}

static void primary_context_is_reference_counted(void **state)
{
	struct pst_cu_ctx *again, *popped;
	unsigned int flags;
	int active = 0;

	(void)state;
	assert_int_equal(cu->cuDevicePrimaryCtxRetain(&again, 0), PST_CU_OK);
	assert_ptr_equal(again, ctx);
	assert_int_equal(cu->cuDevicePrimaryCtxRelease(0), PST_CU_OK);
	assert_int_equal(cu->cuDevicePrimaryCtxGetState(0, &flags, &active), PST_CU_OK);
	assert_int_equal(active, 1);
	assert_int_equal(cu->cuCtxPushCurrent(ctx), PST_CU_OK);
	assert_int_equal(cu->cuCtxPopCurrent(&popped), PST_CU_OK);
	assert_ptr_equal(popped, ctx);
	assert_int_equal(cu->cuDevicePrimaryCtxRetain(&again, 99), PST_CU_INVALID_DEVICE);
	assert_int_equal(cu->cuDevicePrimaryCtxRelease(99), PST_CU_INVALID_DEVICE);
	assert_int_equal(cu->cuCtxEnablePeerAccess(ctx, 0), PST_CU_PEER_ACCESS_UNSUPPORTED);
}

static void device_properties(void **state)
{
	char name[64], bdf[32];
	int dev = -1, value = -1;
	size_t total = 0;

	(void)state;
	assert_int_equal(cu->cuDeviceGet(&dev, 0), PST_CU_OK);
	assert_int_equal(cu->cuDeviceGet(&dev, 99), PST_CU_INVALID_DEVICE);
	assert_int_equal(cu->cuDeviceGetName(name, sizeof(name), 0), PST_CU_OK);
	assert_int_equal(cu->cuDeviceGetPCIBusId(bdf, sizeof(bdf), 0), PST_CU_OK);
	assert_int_equal(cu->cuDeviceGetPCIBusId(bdf, 4, 0), PST_CU_INVALID_VALUE);
	assert_int_equal(cu->cuDeviceGetPCIBusId(bdf, sizeof(bdf), 0), PST_CU_OK);
	assert_int_equal(cu->cuDeviceGetByPCIBusId(&value, bdf), PST_CU_OK);
	assert_int_equal(value, 0);
	assert_int_equal(cu->cuDeviceGetByPCIBusId(&value, "0000:ff:1f.0"), PST_CU_INVALID_DEVICE);
	assert_int_equal(cu->cuDeviceTotalMem(&total, 0), PST_CU_OK);
	assert_true(total > 0);
	assert_int_equal(cu->cuDeviceGetAttribute(&value, 9999, 0), PST_CU_INVALID_VALUE);
	assert_int_equal(cu->cuDeviceGetAttribute(&value, PST_CU_DEV_HOST_PTR_IS_DEV_PTR, 0),
			 PST_CU_OK);
	assert_int_equal(value, 1);
}

/* ---- memory ---- */

static void allocation_and_free(void **state)
{
	pst_cu_ptr dev, start = 0, zero = 0;
	size_t left, before, total, len = 0;

	(void)state;
	assert_int_equal(cu->cuMemAlloc(&zero, 0), PST_CU_INVALID_VALUE);
	assert_int_equal(cu->cuMemAlloc(&zero, (size_t)1 << 45), PST_CU_OUT_OF_MEMORY);
	assert_int_equal(cu->cuMemGetInfo(&before, &total), PST_CU_OK);
	dev = alloc_dev(8 * MIB);
	assert_int_equal(cu->cuMemGetInfo(&left, &total), PST_CU_OK);
	assert_int_equal(before - left, 8 * MIB);
	assert_int_equal(cu->cuMemGetAddressRange(&start, &len, dev + 5), PST_CU_OK);
	assert_int_equal(start, dev);
	assert_int_equal(len, 8 * MIB);
	assert_int_equal(cu->cuMemFree(dev + 4096), PST_CU_INVALID_VALUE);
	assert_int_equal(cu->cuMemFree(dev), PST_CU_OK);
	assert_int_equal(cu->cuMemFree(dev), PST_CU_INVALID_VALUE);
	assert_int_equal(cu->cuMemFree(0), PST_CU_OK);
	assert_int_equal(cu->cuMemGetAddressRange(&start, &len, dev), PST_CU_NOT_FOUND);
}

static void small_allocations_share_a_mapping(void **state)
{
	pst_cu_ptr a = alloc_dev(1000), b = alloc_dev(1000), map_a = 1, map_b = 2;
	size_t len = 0;

	(void)state;
	assert_int_equal(cu->cuPointerGetAttribute(&map_a, PST_CU_PTR_MAPPING_START, a), 0);
	assert_int_equal(cu->cuPointerGetAttribute(&map_b, PST_CU_PTR_MAPPING_START, b), 0);
	assert_int_equal(map_a, map_b);
	assert_int_equal(cu->cuPointerGetAttribute(&len, PST_CU_PTR_RANGE_SIZE, a), 0);
	assert_int_equal(len, 1000);
	cu->cuMemFree(a);
	cu->cuMemFree(b);
}

static void cpu_cannot_access_device_addresses(void **state)
{
	pst_cu_ptr dev = alloc_dev(4096);
	int fds[2];

	(void)state;
	assert_int_equal(pipe(fds), 0);
	assert_int_equal(write(fds[1], (void *)(uintptr_t)dev, 1), -1);
	assert_int_equal(errno, EFAULT);
	close(fds[0]);
	close(fds[1]);
	cu->cuMemFree(dev);
}

struct ptr_attrs {
	struct pst_cu_ctx *owner;
	unsigned int type;
	pst_cu_ptr dev, start;
	void *host;
	unsigned long long id;
	int managed, ordinal, ipc, mapped;
	size_t len;
	unsigned int access;
};

static struct ptr_attrs ptr_attrs_query(pst_cu_ptr ptr)
{
	struct ptr_attrs s = {.len = 77, .start = 77};
	enum pst_cu_ptr_attr attrs[] = {
		PST_CU_PTR_CONTEXT,	   PST_CU_PTR_MEMORY_TYPE,    PST_CU_PTR_DEVICE_POINTER,
		PST_CU_PTR_HOST_POINTER,   PST_CU_PTR_BUFFER_ID,      PST_CU_PTR_IS_MANAGED,
		PST_CU_PTR_DEVICE_ORDINAL, PST_CU_PTR_IS_IPC_CAPABLE, PST_CU_PTR_MAPPED,
		PST_CU_PTR_RANGE_START,	   PST_CU_PTR_RANGE_SIZE,     PST_CU_PTR_ACCESS_FLAGS,
	};
	void *data[] = {&s.owner,   &s.type, &s.dev,	&s.host,  &s.id,  &s.managed,
			&s.ordinal, &s.ipc,  &s.mapped, &s.start, &s.len, &s.access};

	assert_int_equal(
		cu->cuPointerGetAttributes(sizeof(attrs) / sizeof(attrs[0]), attrs, data, ptr),
		PST_CU_OK);
	return s;
}

static void attributes_of_device_memory(void **state)
{
	pst_cu_ptr dev = alloc_dev(4 * MIB);
	struct ptr_attrs s = ptr_attrs_query(dev + 4095);

	(void)state;
	assert_ptr_equal(s.owner, ctx);
	assert_int_equal(s.type, PST_CU_MEMTYPE_DEVICE);
	assert_int_equal(s.dev, dev + 4095);
	assert_null(s.host);
	assert_true(s.id != 0);
	assert_int_equal(s.managed, 0);
	assert_int_equal(s.ordinal, 0);
	assert_int_equal(s.ipc, 1);
	assert_int_equal(s.mapped, 1);
	assert_int_equal(s.start, dev);
	assert_int_equal(s.len, 4 * MIB);
	assert_int_equal(s.access, 3);
	cu->cuMemFree(dev);
}

static void attributes_of_unknown_addresses(void **state)
{
	static char somewhere[64];
	pst_cu_ptr dev = alloc_dev(4 * MIB);
	unsigned int type;
	struct ptr_attrs s;

	(void)state;
	cu->cuMemFree(dev);
	for (int i = 0; i < 3; i++) {
		pst_cu_ptr ptr = i == 0 ? (uintptr_t)somewhere : i == 1 ? dev : 0;

		s = ptr_attrs_query(ptr);
		assert_null(s.owner);
		assert_int_equal(s.type, 0);
		assert_int_equal((uintptr_t)s.host, ptr);
		assert_int_equal(s.id, 0);
		assert_int_equal(s.ordinal, -2);
		assert_int_equal(s.mapped, 0);
		assert_int_equal(s.start, 77);
		assert_int_equal(s.len, 77);
		assert_int_equal(cu->cuPointerGetAttribute(&type, PST_CU_PTR_MEMORY_TYPE, ptr),
				 PST_CU_INVALID_VALUE);
	}
}

static void attributes_of_host_memory(void **state)
{
	char *host = alloc_host(8192);
	struct ptr_attrs s = ptr_attrs_query((uintptr_t)host + 8);

	(void)state;
	assert_ptr_equal(s.owner, ctx);
	assert_int_equal(s.type, PST_CU_MEMTYPE_HOST);
	assert_int_equal(s.dev, (uintptr_t)host + 8);
	assert_ptr_equal(s.host, host + 8);
	assert_int_equal(s.ipc, 0);
	assert_true(s.id != 0);
	cu->cuMemFreeHost(host);
	assert_int_equal(ptr_attrs_query((uintptr_t)host).type, 0);
}

static void attributes_need_no_context(void **state)
{
	pst_cu_ptr dev = alloc_dev(4096);
	unsigned int type = 0;

	(void)state;
	cu->cuCtxSetCurrent(NULL);
	assert_int_equal(cu->cuPointerGetAttribute(&type, PST_CU_PTR_MEMORY_TYPE, dev), PST_CU_OK);
	assert_int_equal(type, PST_CU_MEMTYPE_DEVICE);
	assert_int_equal(cu->cuMemFree(dev), PST_CU_OK);
}

/* A query of an attribute writes as many bytes as the attribute has, and not one byte more. */
static void attribute_widths(void **state)
{
	pst_cu_ptr dev = alloc_dev(4096);
	unsigned char bytes[16];

	(void)state;
	memset(bytes, 0xff, sizeof(bytes));
	assert_int_equal(cu->cuPointerGetAttribute(bytes, PST_CU_PTR_HANDLE_TYPES, dev), 0);
	assert_int_equal(bytes[7], 0);
	assert_int_equal(bytes[8], 0xff);
	memset(bytes, 0xff, sizeof(bytes));
	assert_int_equal(cu->cuPointerGetAttribute(bytes, PST_CU_PTR_ACCESS_FLAGS, dev), 0);
	assert_int_equal(bytes[3], 0);
	assert_int_equal(bytes[4], 0xff);
	cu->cuMemFree(dev);
}

static void buffer_ids_are_unique(void **state)
{
	pst_cu_ptr a = alloc_dev(8 * MIB), b;
	unsigned long long id = ptr_attrs_query(a).id;
	char *host = pages_map(4096, PROT_READ | PROT_WRITE);

	(void)state;
	cu->cuMemFree(a);
	b = alloc_dev(8 * MIB);
	assert_int_equal(b, a); /* The driver has reused the address. */
	assert_true(ptr_attrs_query(b).id != id);
	cu->cuMemFree(b);
	assert_int_equal(cu->cuMemHostRegister(host, 4096, 0), PST_CU_OK);
	id = ptr_attrs_query((uintptr_t)host).id;
	assert_int_equal(cu->cuMemHostUnregister(host), PST_CU_OK);
	assert_int_equal(cu->cuMemHostRegister(host, 4096, 0), PST_CU_OK);
	assert_true(ptr_attrs_query((uintptr_t)host).id != id);
	assert_int_equal(cu->cuMemHostUnregister(host), PST_CU_OK);
	munmap(host, 4096);
}

static void new_memory_is_not_zeroed(void **state)
{
	pst_cu_ptr dev;

	standin_only();
	(void)state;
	dev = alloc_dev(4096);
	assert_int_not_equal(byte_at(dev), 0);
	cu->cuMemFree(dev);
}

/* ---- registration ---- */

static void registration_lifecycle(void **state)
{
	char *host = pages_map(MIB, PROT_READ | PROT_WRITE);
	pst_cu_ptr dev = 0;
	struct ptr_attrs s;

	(void)state;
	assert_int_equal(cu->cuMemHostRegister(host + 100, 5000, 0), PST_CU_OK);
	s = ptr_attrs_query((uintptr_t)host + 100);
	assert_int_equal(s.type, PST_CU_MEMTYPE_HOST);
	assert_int_equal(s.start, (uintptr_t)host + 100);
	assert_int_equal(s.len, 5000);
	assert_int_equal(ptr_attrs_query((uintptr_t)host + 99).type, 0);
	assert_int_equal(ptr_attrs_query((uintptr_t)host + 5100).type, 0);
	assert_int_equal(cu->cuMemHostGetDevicePointer(&dev, host + 200, 0), PST_CU_OK);
	assert_int_equal(dev, (uintptr_t)host + 200);
	assert_int_equal(cu->cuMemHostRegister(host + 100, 5000, 0),
			 PST_CU_HOST_ALREADY_REGISTERED);
	assert_int_equal(cu->cuMemHostRegister(host, 101, 0), PST_CU_HOST_ALREADY_REGISTERED);
	assert_int_equal(cu->cuMemHostUnregister(host + 104), PST_CU_INVALID_VALUE);
	assert_int_equal(cu->cuMemHostUnregister(host + 64 * KIB), PST_CU_HOST_NOT_REGISTERED);
	assert_int_equal(cu->cuMemHostUnregister(host + 100), PST_CU_OK);
	assert_int_equal(cu->cuMemHostUnregister(host + 100), PST_CU_HOST_NOT_REGISTERED);
	munmap(host, MIB);
}

static void registration_refusals(void **state)
{
	char *none = pages_map(MIB, PROT_NONE), *fixed = pages_map(MIB, PROT_READ);
	char *hole = pages_map(4 * MIB, PROT_READ | PROT_WRITE), *pinned = alloc_host(4096);
	pst_cu_ptr dev = alloc_dev(4096);
	const enum pst_cu_result bad = PST_CU_INVALID_VALUE;

	(void)state;
	munmap(hole + MIB, MIB);
	assert_int_equal(cu->cuMemHostRegister(hole, 0, 0), bad);
	assert_int_equal(cu->cuMemHostRegister(NULL, 4096, 0), bad);
	assert_int_equal(cu->cuMemHostRegister(hole, 4096, 0x80), bad);
	assert_int_equal(cu->cuMemHostRegister((void *)(uintptr_t)dev, 4096, 0), bad);
	assert_int_equal(cu->cuMemHostRegister(none, MIB, 0), bad);
	assert_int_equal(cu->cuMemHostRegister(fixed, MIB, 0), bad);
	assert_int_equal(cu->cuMemHostRegister(hole, 4 * MIB, 0), bad);
	assert_int_equal(cu->cuMemHostRegister(pinned, 4096, 0), bad);
	assert_int_equal(cu->cuMemHostUnregister(pinned), bad);
	assert_int_equal(cu->cuMemFreeHost(hole), bad);
	cu->cuMemFree(dev);
	cu->cuMemFreeHost(pinned);
	munmap(none, MIB);
	munmap(fixed, MIB);
	munmap(hole, 4 * MIB);
}

/* Creates an unlinked file of `len` bytes with the value `byte`, in $TMPDIR. */
static int test_file_new(size_t len, int byte)
{
	const char *dir = getenv("TMPDIR");
	char path[512];
	char *bytes = malloc(len);
	int fd;

	snprintf(path, sizeof(path), "%s/standinXXXXXX", dir ? dir : "/tmp");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	unlink(path);
	memset(bytes, byte, len);
	assert_int_equal(write(fd, bytes, len), (ssize_t)len);
	free(bytes);
	return fd;
}

static void files_are_pinned_read_only(void **state)
{
	pst_cu_ptr dev = alloc_dev(MIB);
	struct statfs fs;
	char *at;
	int fd;

	(void)state;
	fd = test_file_new(MIB, 0x5a);
	assert_int_equal(fstatfs(fd, &fs), 0);
	at = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(at, MAP_FAILED);
	if (fs.f_type != 0x01021994) /* tmpfs files can be registered for writing. */
		assert_int_equal(cu->cuMemHostRegister(at, MIB, 0), PST_CU_INVALID_VALUE);
	assert_int_equal(cu->cuMemHostRegister(at, MIB, PST_CU_HOST_READ_ONLY), PST_CU_OK);
	assert_int_equal(ptr_attrs_query((uintptr_t)at).access, 1);
	assert_int_equal(cu->cuMemcpyDtoHAsync(at, dev, 4096, stream), PST_CU_INVALID_VALUE);
	assert_int_equal(cu->cuMemcpyHtoDAsync(dev, at, MIB, stream), PST_CU_OK);
	assert_int_equal(byte_at(dev + 4096), 0x5a);
	/* When a file is truncated and written again, it gets other pages in memory. */
	assert_int_equal(ftruncate(fd, 0), 0);
	assert_int_equal(ftruncate(fd, MIB), 0);
	assert_int_equal(pwrite(fd, "new", 3, 4096), 3);
	assert_int_equal(cu->cuMemcpyHtoDAsync(dev, at, MIB, stream), PST_CU_OK);
	assert_int_equal(byte_at(dev + 4096), 0x5a);
	assert_int_equal(cu->cuMemHostUnregister(at), PST_CU_OK);
	assert_int_equal(ftruncate(fd, 4096), 0);
	assert_int_equal(cu->cuMemHostRegister(at, MIB, PST_CU_HOST_READ_ONLY),
			 PST_CU_INVALID_VALUE);
	munmap(at, MIB);
	close(fd);
	cu->cuMemFree(dev);
}

static int private_file_mapping(void)
{
	int fd = test_file_new(4096, 1);
	void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);

	return (int)cu->cuMemHostRegister(at, 4096, 0);
}

static const struct child_case child_cases[] = {
	{"private_file_mapping", private_file_mapping, false},
};

static void private_file_mapping_aborts(void **state)
{
	static const char *const none[] = {NULL};
	int status;

	standin_only();
	(void)state;
	status = run_self("private_file_mapping", none);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGABRT);
}

/* ---- other contexts ---- */

static void second_context_of_a_device(void **state)
{
	enum pst_cu_result (*create)(struct pst_cu_ctx **, unsigned int, int);
	enum pst_cu_result (*destroy)(struct pst_cu_ctx *);
	pst_cu_ptr mine = alloc_dev(4096), theirs;
	struct pst_cu_ctx *other;
	struct pst_cu_stream *s;
	struct pst_cu_event *e;

	(void)state;
	*(void **)&create = lib_symbol("cuCtxCreate_v2");
	*(void **)&destroy = lib_symbol("cuCtxDestroy_v2");
	assert_int_equal(cu->cuEventCreate(&e, 0), PST_CU_OK);
	assert_int_equal(create(&other, 0, 0), PST_CU_OK);
	theirs = alloc_dev(4096);
	s = stream_new(PST_CU_STREAM_NON_BLOCKING);
	assert_ptr_equal(ptr_attrs_query(theirs).owner, other);
	assert_int_equal(cu->cuEventRecord(e, s), PST_CU_INVALID_HANDLE);
	assert_int_equal(cu->cuCtxSetCurrent(ctx), PST_CU_OK);
	assert_ptr_equal(ptr_attrs_query(theirs).owner, other);
	assert_int_equal(cu->cuMemcpyDtoDAsync(theirs, mine, 4096, stream), PST_CU_OK);
	assert_int_equal(cu->cuMemcpyDtoDAsync(theirs, mine, 4096, s), PST_CU_OK);
	stream_sync(stream);
	stream_sync(s);
	assert_int_equal(cu->cuStreamDestroy(s), PST_CU_OK);
	assert_int_equal(cu->cuMemFree(theirs), PST_CU_OK);
	assert_int_equal(destroy(other), PST_CU_OK);
	cu->cuCtxSetCurrent(ctx);
	assert_int_equal(cu->cuEventDestroy(e), PST_CU_OK);
	cu->cuMemFree(mine);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, check_setup, check_teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(calls_without_a_context),
		CASE(current_context_is_per_thread),
		CASE(primary_context_is_reference_counted),
		CASE(device_properties),
		CASE(allocation_and_free),
		CASE(small_allocations_share_a_mapping),
		CASE(cpu_cannot_access_device_addresses),
		CASE(attributes_of_device_memory),
		CASE(attributes_of_unknown_addresses),
		CASE(attributes_of_host_memory),
		CASE(attributes_need_no_context),
		CASE(attribute_widths),
		CASE(buffer_ids_are_unique),
		CASE(new_memory_is_not_zeroed),
		CASE(registration_lifecycle),
		CASE(registration_refusals),
		CASE(files_are_pinned_read_only),
		CASE(private_file_mapping_aborts),
		CASE(second_context_of_a_device),
	};

	check_choose();
	if (argc > 1)
		return child_case_run(child_cases, sizeof(child_cases) / sizeof(child_cases[0]),
				      argv[1], check_open);
	return cmocka_run_group_tests_name("standin", tests, check_open, check_close);
}
