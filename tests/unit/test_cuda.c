/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests device cuda through its table of operations: names, properties, memory, registration, and
 * memory shared between processes and devices. Each failure of the CUDA driver must become the
 * right error. No call may change the current context, and opening the device must not create one.
 * test_cuda_copy.c and test_cuda_stream.c test copies and streams.
 */
#include "cuda_device.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define IMPORTS_MAX 4096 /* PST_CUDA_IMPORTS_MAX of cuda_context.h, which a test cannot include */

/* ---- opening ---- */

static void names_are_strict(void **state)
{
	static const char *const bad[] = {
		"cuda:",   "cuda:x",  "cuda:0x0", "cuda:1x", "cuda:-1",
		"cuda:+0", "cuda: 0", "cuda:00",  "cuda:0 ", "cuda:99999999999999999999"};

	(void)state;
	assert_true(ops->match("cuda:0"));
	assert_false(ops->match("cuda"));
	assert_false(ops->match("host"));
	assert_false(ops->match("xcuda:0"));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct penstock_device *dev = device_new(bad[i]);

		memset(&err, 0, sizeof(err));
		if (ops->open(dev, &err) != -EINVAL || !strstr(err.text, "cuda:N"))
			fail_msg("'%s' was opened, or failed with another message: %s", bad[i],
				 err.text);
		free(dev);
	}
}

static void missing_devices_are_refused(void **state)
{
	struct penstock_device *dev = device_new("cuda:63");

	(void)state;
	assert_int_equal(ops->open(dev, &err), -ENODEV);
	assert_int_equal(err.why, PENSTOCK_WHY_NO_DEVICE);
	free(dev);
	if (!is_standin())
		return;
	dev = device_new("cuda:0");
	FAILS_WITH("cuDeviceGet:1:101", -ENODEV, "CUDA_ERROR_INVALID_DEVICE", ops->open(dev, &err));
	free(dev);
}

/* Runs in a child: opening the device and classifying pointers must not create a context. A
 * context takes half a second and half a gigabyte of GPU memory. */
static int no_context(void)
{
	struct penstock_device *dev = device_open("cuda:0");
	struct pst_memory mem;
	unsigned flags;
	int here, active = 1;

	EXPECT_EQ(ops->classify(dev, &here, &mem), 0);
	EXPECT_EQ(ops->classify(dev, (void *)0x12345000, &mem), 0);
	EXPECT_EQ(ops->classify(dev, NULL, &mem), 0);
	if (is_standin()) {
		standin_fail("cuPointerGetAttributes:1:201");
		EXPECT_EQ(ops->classify(dev, &here, &mem), 0);
		EXPECT_EQ(standin_calls("cuDevicePrimaryCtxRetain"), 0);
	}
	device_close(dev);
	EXPECT_EQ(cu->cuDevicePrimaryCtxGetState(0, &flags, &active), PST_CU_OK);
	EXPECT_EQ(active, 0);
	return 0;
}

static void opening_creates_no_context(void **state)
{
	static const char *const none[] = {NULL};

	(void)state;
	assert_int_equal(run_self("no_context", none), 0);
}

/* Runs in a child: without a CUDA driver the device count is 0 and nothing is printed. The device
 * name "auto" makes the library count devices even on machines without a GPU. */
static int no_driver(void)
{
	struct penstock_device *dev = device_new("cuda:0");
	const char *file = getenv("CUDA_TEST_FILE");

	if (file)
		setenv("PENSTOCK_LIBCUDA", file, 1);
	EXPECT_EQ(ops->count(), 0);
	EXPECT_EQ(ops->open(dev, &err), -ENODEV);
	EXPECT_EQ(err.why, PENSTOCK_WHY_NO_DRIVER);
	EXPECT_EQ(strlen(err.text) > 10, 1);
	free(dev);
	return 0;
}

static int output_of_child(const char *what, const char *setting)
{
	const char *const with[] = {setting, NULL};
	int status, out = memfd_create("output", 0), kept[2] = {dup(1), dup(2)};
	struct stat st;

	fflush(stdout);
	dup2(out, 1);
	dup2(out, 2);
	status = run_self(what, with);
	dup2(kept[0], 1);
	dup2(kept[1], 2);
	fstat(out, &st);
	close(out);
	close(kept[0]);
	close(kept[1]);
	return status ? status : (int)st.st_size;
}

static void missing_driver_is_silent(void **state)
{
	(void)state;
	assert_int_equal(output_of_child("no_driver", "CUDA_TEST_FILE=/nowhere/libcuda.so.1"), 0);
	if (is_standin())
		assert_int_equal(output_of_child("no_driver", "PENSTOCK_STANDIN_DEVICES=0"), 0);
}

/* Runs in a child: the stand-in's driver fails to start. The count prints one warning, although the
 * program calls it twice. */
static int broken_driver(void)
{
	EXPECT_EQ(ops->count(), 0);
	EXPECT_EQ(ops->count(), 0);
	return 0;
}

static void broken_driver_warns_once(void **state)
{
	static const char line[] = "penstock warn cuda: device auto is no GPU, because the driver "
				   "fails: cuDeviceGetCount: CUDA_ERROR_UNKNOWN (999)\n";

	(void)state;
	standin_only();
	assert_int_equal(
		output_of_child("broken_driver", "PENSTOCK_STANDIN_FAIL=cuDeviceGetCount:1:999"),
		sizeof(line) - 1);
}

/* Runs in a child: the driver cannot be loaded while the process has too many open files. The next
 * open of a device loads it. */
static int too_many_files(void)
{
	struct penstock_device *dev = device_new("cuda:0");
	struct rlimit limit, none;

	EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
	none = limit;
	none.rlim_cur = 0;
	EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
	EXPECT_EQ(ops->count(), 0);
	EXPECT_EQ(ops->open(dev, &err), -EMFILE);
	EXPECT_EQ(err.why, PENSTOCK_WHY_NO_FILES);
	EXPECT_EQ(strstr(err.text, "this process has too many open files") != NULL, 1);
	EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
	EXPECT_EQ(ops->open(dev, &err), 0);
	EXPECT_EQ(ops->count() > 0, 1);
	device_close(dev);
	return 0;
}

static void load_is_repeated(void **state)
{
	static const char *const none[] = {NULL};

	(void)state;
	assert_int_equal(run_self("too_many_files", none), 0);
}

/* ---- facts ---- */

static void root_file_write(const char *root, const char *name, const char *text)
{
	char path[512];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", root, name);
	for (char *at = path + strlen(root); (at = strchr(at + 1, '/'));) {
		*at = '\0';
		mkdir(path, 0700);
		*at = '/';
	}
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

static int numa_below_root(const char *root)
{
	struct penstock_device *dev = device_new("cuda:0");
	int numa;

	dev->opts.sys_root = root;
	assert_int_equal(ops->open(dev, &err), 0);
	numa = dev->facts.numa;
	device_close(dev);
	return numa;
}

static void numa_node_is_read_below_sys_root(void **state)
{
	const char *tmp = getenv("TMPDIR"), *file = "sys/bus/pci/devices/0000:40:00.0/numa_node";
	char root[256];

	(void)state;
	standin_only();
	snprintf(root, sizeof(root), "%s/cuda-XXXXXX", tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(root));
	assert_int_equal(numa_below_root(root), -1);
	root_file_write(root, file, "1\n");
	assert_int_equal(numa_below_root(root), 1);
	root_file_write(root, file, "-1\n");
	assert_int_equal(numa_below_root(root), -1);
	root_file_write(root, file, "many\n");
	assert_int_equal(numa_below_root(root), -1);
	root_file_write(root, file, "99999\n");
	assert_int_equal(numa_below_root(root), -1);
	for (char *at; strcmp(file, ""); file = "") {
		char path[512];

		snprintf(path, sizeof(path), "%s/%s", root, file);
		unlink(path);
		while ((at = strrchr(path, '/')) && at > path + strlen(root)) {
			*at = '\0';
			rmdir(path);
		}
	}
	assert_int_equal(rmdir(root), 0);
}

static void facts_of_the_device(void **state)
{
	struct penstock_device *dev = device_open("cuda:0");
	const struct pst_device_facts *facts = &dev->facts;

	(void)state;
	assert_true(ops->count() >= 1);
	assert_true(ops->numbered);
	assert_int_equal(facts->lanes_best, 8);
	assert_false(facts->cpu_addressable);
	assert_false(facts->is_host);
	assert_false(facts->peer_pages);
	assert_int_equal(facts->why_peer.why, PENSTOCK_WHY_NO_PEER_PAGES);
	assert_non_null(strstr(facts->why_peer.text, "nvidia-fs"));
	assert_int_equal(strlen(facts->bdf), 12);
	for (const char *at = facts->bdf; *at; at++)
		assert_false(*at >= 'A' && *at <= 'F');
	if (is_standin()) {
		assert_string_equal(facts->text, "Penstock stand-in, not a GPU, 1 GiB");
		assert_string_equal(facts->bdf, "0000:40:00.0");
		assert_true(facts->reads_page_cache);
		assert_true(facts->stream_memops);
	}
	printf("# %s, %s, node %d\n", facts->text, facts->bdf, facts->numa);
	device_close(dev);
}

static int limited_device(void)
{
	struct penstock_device *dev = device_open("cuda:0");
	char *host = pages_map(MIB, PROT_READ | PROT_WRITE);
	struct penstock_export out;
	void *mem = device_alloc(dev, 4096), *got;
	uint64_t off;
	int fd = -1;

	EXPECT_EQ(strcmp(dev->facts.bdf, "0000:ab:00.0"), 0);
	EXPECT_EQ(strcmp(dev->facts.text, "Penstock stand-in, not a GPU, 64 MiB"), 0);
	EXPECT_EQ(dev->facts.reads_page_cache, 0);
	EXPECT_EQ(dev->facts.why_mapped.why, PENSTOCK_WHY_NO_READONLY_REG);
	EXPECT_EQ(dev->facts.stream_memops, 0);
	EXPECT_EQ(ops->host_register(dev, host, MIB, true, &err), -EOPNOTSUPP);
	EXPECT_EQ(ops->export_memory(dev, mem, 4096, &out, &err), -EOPNOTSUPP);
	EXPECT_EQ(ops->dma_buf(dev, mem, 4096, &fd, &off, &err), -EOPNOTSUPP);
	EXPECT_EQ(fd, -1);
	EXPECT_EQ(ops->alloc(dev, 128 * MIB, &got, &err), -ENOMEM);
	EXPECT_EQ(err.why, PENSTOCK_WHY_NO_MEMORY);
	EXPECT_EQ(ops->free(dev, mem, &err), 0);
	device_close(dev);
	return 0;
}

static void facts_of_a_limited_device(void **state)
{
	static const char *const with[] = {"PENSTOCK_STANDIN_PCI_BUS=0xAB",
					   "PENSTOCK_STANDIN_NO_READ_ONLY=1",
					   "PENSTOCK_STANDIN_NO_MEMOPS=1",
					   "PENSTOCK_STANDIN_NO_IPC=1",
					   "PENSTOCK_STANDIN_MEM=64MiB",
					   "PENSTOCK_STANDIN_LEAKS=2",
					   NULL};

	(void)state;
	standin_only();
	assert_int_equal(run_self("limited_device", with), 0);
}

/* ---- memory ---- */

static void memory_is_aligned(void **state)
{
	struct penstock_device *dev = device_open("cuda:0");
	void *first = device_alloc(dev, 1), *mem[8], *none = &mem;
	struct pst_cu_ctx *was;
	pst_cu_ptr odd[8];

	(void)state;
	assert_int_equal(cu->cuDevicePrimaryCtxRetain(&was, 0), PST_CU_OK);
	/* After these allocations the driver aligns the next small allocation to only 512 bytes. */
	for (int i = 0; i < 8; i++) {
		assert_int_equal(cu->cuCtxPushCurrent(was), PST_CU_OK);
		assert_int_equal(cu->cuMemAlloc(&odd[i], 512), PST_CU_OK);
		assert_int_equal(cu->cuCtxPopCurrent(&was), PST_CU_OK);
		mem[i] = device_alloc(dev, 4096u << i);
		assert_int_equal((uintptr_t)mem[i] % 4096, 0);
	}
	assert_int_equal(ops->alloc(dev, SIZE_MAX, &none, &err), -ENOMEM);
	assert_int_equal(ops->alloc(dev, SIZE_MAX - 4096, &none, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "CUDA_ERROR_OUT_OF_MEMORY"));
	assert_int_equal(err.why, PENSTOCK_WHY_NO_MEMORY);
	assert_ptr_equal(none, &mem);
	assert_int_equal(cu->cuCtxPushCurrent(was), PST_CU_OK);
	for (int i = 0; i < 8; i++) {
		assert_int_equal(ops->free(dev, mem[i], &err), 0);
		assert_int_equal(cu->cuMemFree(odd[i]), PST_CU_OK);
	}
	assert_int_equal(ops->free(dev, first, &err), 0);
	assert_int_equal(ops->free(dev, (void *)0x12345000, &err), -EINVAL);
	assert_non_null(strstr(err.text, "0x12345000 is not memory that penstock_alloc"));
	assert_int_equal(cu->cuCtxPopCurrent(&was), PST_CU_OK);
	assert_int_equal(cu->cuDevicePrimaryCtxRelease(0), PST_CU_OK);
	device_close(dev);
}

/* Device cuda refuses to free memory that it has not allocated, and the memory stays allocated. */
static void foreign_memory_is_kept(void **state)
{
	struct penstock_device *dev = device_open("cuda:0");
	char *mem = device_alloc(dev, MIB);
	struct pst_cu_ctx *prim;
	pst_cu_ptr foreign;

	(void)state;
	assert_int_equal(cu->cuDevicePrimaryCtxRetain(&prim, 0), PST_CU_OK);
	assert_int_equal(cu->cuCtxPushCurrent(prim), PST_CU_OK);
	assert_int_equal(cu->cuMemAlloc(&foreign, MIB), PST_CU_OK);
	assert_int_equal(ops->free(dev, (void *)(uintptr_t)foreign, &err), -EINVAL);
	assert_int_equal(err.why, PENSTOCK_WHY_BAD_ARGUMENT);
	assert_int_equal(cu->cuMemFree(foreign), PST_CU_OK);
	assert_int_equal(ops->free(dev, mem + 4096, &err), -EINVAL);
	assert_int_equal(ops->free(dev, mem, &err), 0);
	/* The driver may give the application an address that the device has freed. */
	for (int i = 0; i < 4; i++) {
		assert_int_equal(cu->cuMemAlloc(&foreign, MIB), PST_CU_OK);
		assert_int_equal(ops->free(dev, mem, &err), -EINVAL);
		assert_int_equal(cu->cuMemFree(foreign), PST_CU_OK);
	}
	/* If the application frees the device's memory itself, the driver may give the address to
	 * the device again. */
	mem = device_alloc(dev, MIB);
	assert_int_equal(cu->cuMemFree((uintptr_t)mem), PST_CU_OK);
	mem = device_alloc(dev, MIB);
	assert_int_equal(ops->free(dev, mem, &err), 0);
	assert_int_equal(cu->cuCtxPopCurrent(&prim), PST_CU_OK);
	assert_int_equal(cu->cuDevicePrimaryCtxRelease(0), PST_CU_OK);
	device_close(dev);
}

static void *alloc_repeatedly(void *arg)
{
	struct pst_err why;
	void *mem[4];

	for (int i = 0; i < 500; i++) {
		for (int k = 0; k < 4; k++)
			if (ops->alloc(arg, 4096, &mem[k], &why))
				return "alloc failed";
		for (int k = 0; k < 4; k++)
			if (ops->free(arg, mem[k], &why))
				return "free failed";
	}
	return NULL;
}

/* The driver gives memory that one thread has just freed to another thread. Each thread must then
 * be able to free the memory that it got. */
static void threads_allocate_the_same_addresses(void **state)
{
	struct penstock_device *dev = device_open("cuda:0");
	pthread_t ids[4];
	void *wrong;

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&ids[i], NULL, alloc_repeatedly, dev), 0);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(ids[i], &wrong), 0);
		assert_null(wrong);
	}
	device_close(dev);
}

static void pointers_are_classified(void **state)
{
	struct penstock_device *dev = device_open("cuda:0");
	char *host = pages_map(MIB, PROT_READ | PROT_WRITE);
	enum pst_cu_result (*managed_alloc)(pst_cu_ptr *, size_t, unsigned);
	struct pst_memory got, again;
	struct pst_cu_ctx *prim;
	pst_cu_ptr managed = 0;
	char *mem = device_alloc(dev, 2 * MIB);

	(void)state;
	*(void **)&managed_alloc = lib_symbol("cuMemAllocManaged");
	assert_int_equal(ops->classify(dev, mem + 5, &got), 1);
	assert_int_equal(got.base, (uintptr_t)mem);
	assert_int_equal(got.len, 2 * MIB);
	assert_int_not_equal(got.id, 0);
	assert_false(got.managed);
	assert_int_equal(ops->classify(dev, mem + 2 * MIB - 1, &again), 1);
	assert_int_equal(again.id, got.id);
	assert_int_equal(ops->free(dev, mem, &err), 0);
	mem = device_alloc(dev, 2 * MIB);
	assert_int_equal(ops->classify(dev, mem, &again), 1);
	assert_int_not_equal(again.id, got.id);
	assert_int_equal(ops->host_register(dev, host, MIB, false, &err), 0);
	assert_int_equal(ops->classify(dev, host, &got), 0);
	assert_int_equal(got.len, 0);
	assert_int_equal(ops->host_unregister(dev, host, &err), 0);
	assert_int_equal(ops->classify(dev, host, &got), 0);
	cu->cuDevicePrimaryCtxRetain(&prim, 0);
	cu->cuCtxPushCurrent(prim);
	assert_int_equal(managed_alloc(&managed, MIB, 1), PST_CU_OK);
	assert_int_equal(ops->classify(dev, (void *)(uintptr_t)managed, &got), 1);
	assert_true(got.managed);
	assert_int_equal(cu->cuMemFree(managed), PST_CU_OK);
	cu->cuCtxPopCurrent(&prim);
	/* Older drivers need a current context for cuPointerGetAttributes. The library then uses an
	 * existing context. */
	if (is_standin()) {
		standin_fail("cuPointerGetAttributes:1:201");
		assert_int_equal(ops->classify(dev, mem, &got), 1);
		assert_int_equal(got.base, (uintptr_t)mem);
		standin_fail("cuPointerGetAttributes:1+:999");
		assert_int_equal(ops->classify(dev, mem, &got), 0);
		standin_fail(NULL);
	}
	assert_int_equal(ops->free(dev, mem, &err), 0);
	cu->cuDevicePrimaryCtxRelease(0);
	munmap(host, MIB);
	device_close(dev);
}

static void registration(void **state)
{
	struct penstock_device *dev = device_open("cuda:0");
	char *host = pages_map(MIB, PROT_READ | PROT_WRITE);

	(void)state;
	assert_int_equal(ops->host_register(dev, host, MIB, false, &err), 0);
	assert_int_equal(ops->host_register(dev, host, MIB, false, &err), -EEXIST);
	assert_non_null(strstr(err.text, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"));
	assert_int_equal(ops->host_unregister(dev, host, &err), 0);
	assert_int_equal(ops->host_unregister(dev, host, &err), -ENOENT);
	munmap(host, MIB);
	assert_true(ops->host_register(dev, host, MIB, false, &err) < 0);
	device_close(dev);
}

/* ---- failures ---- */

static void failures_name_the_driver_call(void **state)
{
	struct penstock_device *dev = device_open("cuda:0");
	char *host = pages_map(MIB, PROT_READ | PROT_WRITE);
	struct penstock_export out;
	void *mem;

	(void)state;
	standin_only();
	FAILS_WITH("cuDevicePrimaryCtxRetain:1:2", -ENOMEM, "cuDevicePrimaryCtxRetain: CUDA_ERROR",
		   ops->alloc(dev, 4096, &mem, &err));
	mem = device_alloc(dev, 4096);
	FAILS_WITH("cuCtxPushCurrent_v2:1:709", -ESTALE, "CUDA_ERROR_CONTEXT_IS_DESTROYED",
		   ops->alloc(dev, 4096, &mem, &err));
	FAILS_WITH("cuMemAlloc_v2:1:2", -ENOMEM, "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY",
		   ops->alloc(dev, 4096, &mem, &err));
	FAILS_WITH("cuMemFree_v2:1:999", -EIO, "cuMemFree: CUDA_ERROR_UNKNOWN",
		   ops->free(dev, mem, &err));
	FAILS_WITH("cuCtxPushCurrent_v2:1:201", -ENXIO, "CUDA_ERROR", ops->free(dev, mem, &err));
	FAILS_WITH("cuMemHostRegister_v2:1:2", -ENOMEM, "cuMemHostRegister: CUDA_ERROR",
		   ops->host_register(dev, host, MIB, false, &err));
	FAILS_WITH("cuCtxPushCurrent_v2:1:201", -ENXIO, "CUDA_ERROR",
		   ops->host_register(dev, host, MIB, false, &err));
	FAILS_WITH("cuMemHostUnregister:1:713", -ENOENT, "cuMemHostUnregister: CUDA_ERROR",
		   ops->host_unregister(dev, host, &err));
	FAILS_WITH("cuMemGetAddressRange_v2:1:1", -EINVAL, "CUDA_ERROR",
		   ops->export_memory(dev, mem, 1, &out, &err));
	FAILS_WITH("cuIpcGetMemHandle:1:2", -ENOMEM, "cuIpcGetMemHandle: CUDA_ERROR",
		   ops->export_memory(dev, mem, 1, &out, &err));
	FAILS_WITH("cuFlushGPUDirectRDMAWrites:1:801", -EOPNOTSUPP, "CUDA_ERROR_NOT_SUPPORTED",
		   ops->order_writes(dev, &err));
	assert_int_equal(ops->order_writes(dev, &err), 0);
	assert_int_equal(ops->free(dev, mem, &err), 0);
	device_close(dev);
	munmap(host, MIB);
}

/* ---- memory between processes ---- */

#define SHARED (3 * MIB)
#define PIECE 4096u

/* Reads the export struct from the environment variable CUDA_TEST_EXPORT. */
static void export_from_env(struct penstock_export *in)
{
	const char *text = getenv("CUDA_TEST_EXPORT");

	*in = (struct penstock_export)PENSTOCK_EXPORT_INIT;
	for (size_t i = 0; i < sizeof(in->bytes); i++)
		sscanf(text + 2 * i, "%2hhx", &in->bytes[i]);
}

/* Runs in a child: imports memory that the parent exported. */
static int importer(void)
{
	struct penstock_device *dev = device_open("cuda:0");
	struct penstock_export in, bad;
	enum pst_cu_result (*to_host)(void *, pst_cu_ptr, size_t);
	void *mem = NULL, *more[IMPORTS_MAX - 1], *none = &in;
	struct pst_cu_ctx *prim;
	struct pst_memory got;
	unsigned char byte = 0;

	*(void **)&to_host = lib_symbol("cuMemcpyDtoH_v2");
	export_from_env(&in);
	bad = in;
	bad.bytes[0] ^= 1; /* damages the magic number of the export */
	EXPECT_EQ(ops->import_memory(dev, &bad, &none, &err), -EINVAL);
	bad = in;
	bad.bytes[20] ^= 1; /* changes the identity of the GPU in the export */
	EXPECT_EQ(ops->import_memory(dev, &bad, &none, &err), -EXDEV);
	bad = in;
	bad.bytes[38] ^= 0x80; /* makes the offset in the export 8 MiB too high */
	EXPECT_EQ(ops->import_memory(dev, &bad, &none, &err), -EINVAL);
	EXPECT_EQ(none == &in, 1);
	EXPECT_EQ(ops->import_memory(dev, &in, &mem, &err), 0);
	EXPECT_EQ(current_ctx() == NULL, 1);
	EXPECT_EQ(ops->classify(dev, mem, &got), 1);
	EXPECT_EQ((uintptr_t)mem - got.base, PIECE);
	EXPECT_EQ(cu->cuDevicePrimaryCtxRetain(&prim, 0), PST_CU_OK);
	EXPECT_EQ(cu->cuCtxPushCurrent(prim), PST_CU_OK);
	EXPECT_EQ(to_host(&byte, (uintptr_t)mem, 1), PST_CU_OK);
	EXPECT_EQ(byte, 0xcd);
	EXPECT_EQ(cu->cuMemsetD8Async((uintptr_t)mem, 0x77, 1, NULL), PST_CU_OK);
	EXPECT_EQ(cu->cuStreamSynchronize(NULL), PST_CU_OK);
	EXPECT_EQ(cu->cuCtxPopCurrent(&prim), PST_CU_OK);
	EXPECT_EQ(cu->cuDevicePrimaryCtxRelease(0), PST_CU_OK);
	EXPECT_EQ(ops->export_memory(dev, mem, 1, &bad, &err), -EOPNOTSUPP);
	for (int i = 0; i < IMPORTS_MAX - 1; i++)
		EXPECT_EQ(ops->import_memory(dev, &in, &more[i], &err), 0);
	EXPECT_EQ(ops->import_memory(dev, &in, &none, &err), -EAGAIN);
	EXPECT_EQ(err.why, PENSTOCK_WHY_FULL);
	EXPECT_EQ(ops->free(dev, mem, &err), 0);
	EXPECT_EQ(ops->import_memory(dev, &in, &mem, &err), 0);
	for (int i = 0; i < IMPORTS_MAX - 1; i++)
		EXPECT_EQ(ops->free(dev, more[i], &err), 0);
	if (is_standin()) {
		FAILS_WITH("cuIpcOpenMemHandle_v2:1:2", -ENOMEM, "cuIpcOpenMemHandle: CUDA_ERROR",
			   ops->import_memory(dev, &in, &none, &err));
		FAILS_WITH("cuMemGetAddressRange_v2:1:1", -EINVAL, "CUDA_ERROR",
			   ops->import_memory(dev, &in, &none, &err));
		FAILS_WITH("cuCtxPushCurrent_v2:1:201", -ENXIO, "CUDA_ERROR",
			   ops->import_memory(dev, &in, &none, &err));
		standin_fail("cuIpcCloseMemHandle:1:1");
		EXPECT_EQ(ops->import_memory(dev, &in, &none, &err), 0);
		EXPECT_EQ(ops->free(dev, none, &err), -EINVAL);
		standin_fail(NULL);
		cu->cuIpcCloseMemHandle(got.base);
	}
	device_close(dev); /* closes the device while one import is open */
	return 0;
}

/* Runs in a child: a GPU imports memory of another GPU that it can access. The import creates no
 * context on that other GPU. */
static int import_across_devices(void)
{
	const char *peer = getenv("PENSTOCK_STANDIN_PEER");
	bool reached = !peer || strcmp(peer, "0") != 0;
	struct penstock_device *dev = device_open("cuda:1");
	struct penstock_export in;
	struct pst_memory got;
	void *mem = NULL;
	unsigned flags;
	int active = 1;

	export_from_env(&in);
	EXPECT_EQ(ops->import_memory(dev, &in, &mem, &err), reached ? 0 : -EXDEV);
	if (!reached)
		EXPECT_EQ(strstr(err.text, "does not reach") != NULL, 1);
	EXPECT_EQ(cu->cuDevicePrimaryCtxGetState(0, &flags, &active), PST_CU_OK);
	EXPECT_EQ(active, 0);
	if (reached) {
		EXPECT_EQ(ops->classify(dev, mem, &got), 1);
		EXPECT_EQ(ops->free(dev, mem, &err), 0);
		EXPECT_EQ(ops->classify(dev, mem, &got), 0);
	}
	device_close(dev);
	return 0;
}

static void export_and_import(void **state)
{
	static const char name[] = "CUDA_TEST_EXPORT=";
	struct penstock_device *dev = device_open("cuda:0");
	struct penstock_export out = PENSTOCK_EXPORT_INIT;
	char text[sizeof(name) + 2 * sizeof(out.bytes)], *mem = device_alloc(dev, SHARED);
	const char *const with[] = {text, "PENSTOCK_STANDIN_LEAKS=2", NULL};
	const char *const two[] = {text, "PENSTOCK_STANDIN_LEAKS=2", "PENSTOCK_STANDIN_DEVICES=2",
				   NULL};
	const char *const apart[] = {text, "PENSTOCK_STANDIN_PEER=0", "PENSTOCK_STANDIN_DEVICES=2",
				     NULL};
	enum pst_cu_result (*pool_alloc)(pst_cu_ptr *, size_t, struct pst_cu_stream *);
	enum pst_cu_result (*pool_free)(pst_cu_ptr, struct pst_cu_stream *);
	struct pst_cu_ctx *prim;
	pst_cu_ptr pooled;
	void *none;

	(void)state;
	*(void **)&pool_alloc = lib_symbol("cuMemAllocAsync");
	*(void **)&pool_free = lib_symbol("cuMemFreeAsync");
	assert_int_equal(ops->export_memory(dev, mem, SHARED + 4096, &out, &err), -EINVAL);
	assert_int_equal(ops->export_memory(dev, mem + 1, SHARED, &out, &err), -EINVAL);
	assert_true(ops->export_memory(dev, &prim, 1, &out, &err) < 0);
	assert_non_null(strstr(err.text, "cuMemGetAddressRange: CUDA_ERROR"));
	assert_int_equal(ops->export_memory(dev, mem + PIECE, PIECE, &out, &err), 0);
	assert_int_equal(ops->import_memory(dev, &out, &none, &err), -EINVAL);
	assert_non_null(strstr(err.text, "this process"));
	cu->cuDevicePrimaryCtxRetain(&prim, 0);
	cu->cuCtxPushCurrent(prim);
	assert_int_equal(cu->cuMemsetD8Async((uintptr_t)mem, 0xcd, SHARED, NULL), PST_CU_OK);
	assert_int_equal(cu->cuStreamSynchronize(NULL), PST_CU_OK);
	memcpy(text, name, sizeof(name));
	for (size_t i = 0; i < sizeof(out.bytes); i++)
		snprintf(text + sizeof(name) - 1 + 2 * i, 3, "%02x", out.bytes[i]);
	assert_int_equal(run_self("importer", with), 0);
	if (is_standin()) {
		assert_int_equal(run_self("import_across_devices", two), 0);
		assert_int_equal(run_self("import_across_devices", apart), 0);
	}
	assert_int_equal(pool_alloc(&pooled, MIB, NULL), PST_CU_OK);
	assert_int_equal(ops->export_memory(dev, (void *)(uintptr_t)pooled, 1, &out, &err),
			 -EOPNOTSUPP);
	assert_int_equal(pool_free(pooled, NULL), PST_CU_OK);
	assert_int_equal(cu->cuStreamSynchronize(NULL), PST_CU_OK);
	cu->cuCtxPopCurrent(&prim);
	cu->cuDevicePrimaryCtxRelease(0);
	assert_int_equal(ops->free(dev, mem, &err), 0);
	device_close(dev);
}

/* Runs in a child, with a driver that supports dma-buf: the library must also export a range that
 * does not begin or end at a page border. */
static int dma_buf(void)
{
	struct penstock_device *dev = device_open("cuda:0");
	char *mem = device_alloc(dev, 16384);
	uint64_t off = 1;
	int fd = -1;

	EXPECT_EQ(ops->dma_buf(dev, mem, 16384, &fd, &off, &err), 0);
	EXPECT_EQ(off, 0);
	EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
	EXPECT_EQ(close(fd), 0);
	EXPECT_EQ(ops->dma_buf(dev, mem + 4100, 5000, &fd, &off, &err), 0);
	EXPECT_EQ(off, 4);
	EXPECT_EQ(close(fd), 0);
	EXPECT_EQ(ops->dma_buf(dev, mem, 1 << 30, &fd, &off, &err), -EINVAL);
	EXPECT_EQ(strstr(err.text, "cuMemGetHandleForAddressRange") != NULL, 1);
	EXPECT_EQ(ops->free(dev, mem, &err), 0);
	device_close(dev);
	return 0;
}

static void memory_as_dma_buf(void **state)
{
	static const char *const with[] = {"PENSTOCK_STANDIN_DMABUF=1", NULL};

	(void)state;
	standin_only();
	assert_int_equal(run_self("dma_buf", with), 0);
}

/* ---- main ---- */

static const struct child_case child_cases[] = {
	{"no_context", no_context, false},
	{"no_driver", no_driver, true},
	{"broken_driver", broken_driver, true},
	{"too_many_files", too_many_files, true},
	{"limited_device", limited_device, false},
	{"dma_buf", dma_buf, false},
	{"importer", importer, false},
	{"import_across_devices", import_across_devices, false},
};

#define CASE(f) cmocka_unit_test_setup_teardown(f, NULL, case_end)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(names_are_strict),
		CASE(missing_devices_are_refused),
		CASE(opening_creates_no_context),
		CASE(missing_driver_is_silent),
		CASE(broken_driver_warns_once),
		CASE(load_is_repeated),
		CASE(numa_node_is_read_below_sys_root),
		CASE(facts_of_the_device),
		CASE(facts_of_a_limited_device),
		CASE(memory_is_aligned),
		CASE(foreign_memory_is_kept),
		CASE(threads_allocate_the_same_addresses),
		CASE(pointers_are_classified),
		CASE(registration),
		CASE(failures_name_the_driver_call),
		CASE(export_and_import),
		CASE(memory_as_dma_buf),
	};

	check_choose();
	if (argc > 1)
		return child_case_run(child_cases, sizeof(child_cases) / sizeof(child_cases[0]),
				      argv[1], driver_open);
	return cmocka_run_group_tests_name("cuda", tests, driver_open, NULL);
}
