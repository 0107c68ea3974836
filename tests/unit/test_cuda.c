/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device cuda by its table: names, facts, memory, registration, memory between
 * processes and devices, what each failure of the driver becomes; and that no call
 * changes the current context or makes one on opening. Copies and streams are
 * test_cuda_copy.c's.
 */
#include "cuda_device.h"

#include <fcntl.h>
#include <sys/stat.h>

/* ---- opening ------------------------------------------------------------------ */

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
			fail_msg("'%s' was opened, or: %s", bad[i], err.text);
		free(dev);
	}
}

static void devices_that_are_not_there(void **state)
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

/* Opening, looking and asking about pointers must leave the GPU alone: a context costs
 * half a second and half a gigabyte. */
static int no_context(void)
{
	struct penstock_device *dev = device_open("cuda:0");
	struct pst_memory mem;
	unsigned flags;
	int here, active = 1;

	WANT(ops->classify(dev, &here, &mem), 0);
	WANT(ops->classify(dev, (void *)0x12345000, &mem), 0);
	WANT(ops->classify(dev, NULL, &mem), 0);
	if (is_standin()) {
		standin_fail("cuPointerGetAttributes:1:201");
		WANT(ops->classify(dev, &here, &mem), 0);
		WANT(standin_calls("cuDevicePrimaryCtxRetain"), 0);
	}
	device_close(dev);
	WANT(cu->cuDevicePrimaryCtxGetState(0, &flags, &active), PST_CU_OK);
	WANT(active, 0);
	return 0;
}

static void opening_makes_no_context(void **state)
{
	static const char *const none[] = {NULL};

	(void)state;
	assert_int_equal(run_self("no_context", none), 0);
}

/* Without a driver nothing is counted, and nothing printed: "auto" asks everywhere. */
static int no_driver(void)
{
	struct penstock_device *dev = device_new("cuda:0");
	const char *file = getenv("CUDA_TEST_FILE");

	if (file)
		setenv("PENSTOCK_LIBCUDA", file, 1);
	WANT(ops->count(), 0);
	WANT(ops->open(dev, &err), -ENODEV);
	WANT(err.why, PENSTOCK_WHY_NO_DRIVER);
	WANT(strlen(err.text) > 10, 1);
	free(dev);
	return 0;
}

static int run_quietly(const char *what, const char *setting)
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

static void without_a_driver(void **state)
{
	(void)state;
	assert_int_equal(run_quietly("no_driver", "CUDA_TEST_FILE=/nowhere/libcuda.so.1"), 0);
	if (is_standin())
		assert_int_equal(run_quietly("no_driver", "PENSTOCK_STANDIN_DEVICES=0"), 0);
}

/* ---- facts -------------------------------------------------------------------- */

static void put(const char *root, const char *name, const char *text)
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

static int numa_with(const char *root)
{
	struct penstock_device *dev = device_new("cuda:0");
	int numa;

	dev->opts.sys_root = root;
	assert_int_equal(ops->open(dev, &err), 0);
	numa = dev->facts.numa;
	device_close(dev);
	return numa;
}

static void the_node_is_read_beneath_the_root(void **state)
{
	const char *tmp = getenv("TMPDIR"), *file = "sys/bus/pci/devices/0000:40:00.0/numa_node";
	char root[256];

	(void)state;
	standin_only();
	snprintf(root, sizeof(root), "%s/cuda-XXXXXX", tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(root));
	assert_int_equal(numa_with(root), -1);
	put(root, file, "1\n");
	assert_int_equal(numa_with(root), 1);
	put(root, file, "-1\n");
	assert_int_equal(numa_with(root), -1);
	put(root, file, "many\n");
	assert_int_equal(numa_with(root), -1);
	put(root, file, "99999\n");
	assert_int_equal(numa_with(root), -1);
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

static int poor_device(void)
{
	struct penstock_device *dev = device_open("cuda:0");
	char *host = pages(MIB, PROT_READ | PROT_WRITE);
	struct penstock_export out;
	void *mem = device_alloc(dev, 4096), *got;

	WANT(strcmp(dev->facts.bdf, "0000:ab:00.0"), 0);
	WANT(strcmp(dev->facts.text, "Penstock stand-in, not a GPU, 64 MiB"), 0);
	WANT(dev->facts.reads_page_cache, 0);
	WANT(dev->facts.why_mapped.why, PENSTOCK_WHY_NO_READONLY_REG);
	WANT(dev->facts.stream_memops, 0);
	WANT(ops->host_register(dev, host, MIB, true, &err), -EOPNOTSUPP);
	WANT(ops->export_memory(dev, mem, 4096, &out, &err), -EOPNOTSUPP);
	WANT(ops->alloc(dev, 128 * MIB, &got, &err), -ENOMEM);
	WANT(err.why, PENSTOCK_WHY_NO_MEMORY);
	WANT(ops->free(dev, mem, &err), 0);
	device_close(dev);
	return 0;
}

static void facts_of_a_poor_device(void **state)
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
	assert_int_equal(run_self("poor_device", with), 0);
}

/* ---- memory ------------------------------------------------------------------- */

static void memory_is_aligned(void **state)
{
	struct penstock_device *dev = device_open("cuda:0");
	void *first = device_alloc(dev, 1), *mem[8], *none = &mem;
	struct pst_cu_ctx *was;
	pst_cu_ptr odd[8];

	(void)state;
	assert_int_equal(cu->cuDevicePrimaryCtxRetain(&was, 0), PST_CU_OK);
	for (int i = 0; i < 8; i++) { /* the driver's next is on 512 bytes */
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
	assert_non_null(strstr(err.text, "cuMemFree: CUDA_ERROR_INVALID_VALUE"));
	assert_int_equal(cu->cuCtxPopCurrent(&was), PST_CU_OK);
	assert_int_equal(cu->cuDevicePrimaryCtxRelease(0), PST_CU_OK);
	device_close(dev);
}

static void pointers_are_told_apart(void **state)
{
	struct penstock_device *dev = device_open("cuda:0");
	char *host = pages(MIB, PROT_READ | PROT_WRITE);
	enum pst_cu_result (*managed_alloc)(pst_cu_ptr *, size_t, unsigned);
	struct pst_memory got, again;
	struct pst_cu_ctx *prim;
	pst_cu_ptr managed = 0;
	char *mem = device_alloc(dev, 2 * MIB);

	(void)state;
	*(void **)&managed_alloc = symbol("cuMemAllocManaged");
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
	cu->cuCtxPopCurrent(&prim);
	assert_int_equal(ops->classify(dev, (void *)(uintptr_t)managed, &got), 1);
	assert_true(got.managed);
	assert_int_equal(ops->free(dev, (void *)(uintptr_t)managed, &err), 0);
	if (is_standin()) { /* older drivers ask for a context: one that is there is used */
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
	char *host = pages(MIB, PROT_READ | PROT_WRITE);

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

/* ---- every failure ------------------------------------------------------------ */

static void failures_are_named(void **state)
{
	struct penstock_device *dev = device_open("cuda:0");
	char *host = pages(MIB, PROT_READ | PROT_WRITE);
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

/* ---- between processes -------------------------------------------------------- */

#define SHARED (3 * MIB)
#define PIECE 4096u

/* The export comes by the environment. */
static void take_export(struct penstock_export *in)
{
	const char *text = getenv("CUDA_TEST_EXPORT");

	*in = (struct penstock_export)PENSTOCK_EXPORT_INIT;
	for (size_t i = 0; i < sizeof(in->bytes); i++)
		sscanf(text + 2 * i, "%2hhx", &in->bytes[i]);
}

/* The importing side. */
static int importer(void)
{
	struct penstock_device *dev = device_open("cuda:0");
	struct penstock_export in, bad;
	enum pst_cu_result (*to_host)(void *, pst_cu_ptr, size_t);
	void *mem = NULL, *more[PST_DEVICES_MAX * 4], *none = &in;
	struct pst_cu_ctx *prim;
	struct pst_memory got;
	unsigned char byte = 0;

	*(void **)&to_host = symbol("cuMemcpyDtoH_v2");
	take_export(&in);
	bad = in;
	bad.bytes[0] ^= 1; /* the magic number */
	WANT(ops->import_memory(dev, &bad, &none, &err), -EINVAL);
	bad = in;
	bad.bytes[20] ^= 1; /* the GPU's identity */
	WANT(ops->import_memory(dev, &bad, &none, &err), -EXDEV);
	bad = in;
	bad.bytes[38] ^= 0x80; /* the offset: 8 MiB more */
	WANT(ops->import_memory(dev, &bad, &none, &err), -EINVAL);
	WANT(none == &in, 1);
	WANT(ops->import_memory(dev, &in, &mem, &err), 0);
	WANT(current_ctx() == NULL, 1);
	WANT(ops->classify(dev, mem, &got), 1);
	WANT((uintptr_t)mem - got.base, PIECE);
	WANT(cu->cuDevicePrimaryCtxRetain(&prim, 0), PST_CU_OK);
	WANT(cu->cuCtxPushCurrent(prim), PST_CU_OK);
	WANT(to_host(&byte, (uintptr_t)mem, 1), PST_CU_OK);
	WANT(byte, 0xcd);
	WANT(cu->cuMemsetD8Async((uintptr_t)mem, 0x77, 1, NULL), PST_CU_OK);
	WANT(cu->cuStreamSynchronize(NULL), PST_CU_OK);
	WANT(cu->cuCtxPopCurrent(&prim), PST_CU_OK);
	WANT(cu->cuDevicePrimaryCtxRelease(0), PST_CU_OK);
	WANT(ops->export_memory(dev, mem, 1, &bad, &err), -EOPNOTSUPP);
	for (int i = 0; i < 255; i++)
		WANT(ops->import_memory(dev, &in, &more[i], &err), 0);
	WANT(ops->import_memory(dev, &in, &none, &err), -EAGAIN);
	WANT(err.why, PENSTOCK_WHY_FULL);
	WANT(ops->free(dev, mem, &err), 0);
	WANT(ops->import_memory(dev, &in, &mem, &err), 0);
	for (int i = 0; i < 255; i++)
		WANT(ops->free(dev, more[i], &err), 0);
	if (is_standin()) {
		FAILS_WITH("cuIpcOpenMemHandle_v2:1:2", -ENOMEM, "cuIpcOpenMemHandle: CUDA_ERROR",
			   ops->import_memory(dev, &in, &none, &err));
		FAILS_WITH("cuMemGetAddressRange_v2:1:1", -EINVAL, "CUDA_ERROR",
			   ops->import_memory(dev, &in, &none, &err));
		FAILS_WITH("cuCtxPushCurrent_v2:1:201", -ENXIO, "CUDA_ERROR",
			   ops->import_memory(dev, &in, &none, &err));
		standin_fail("cuIpcCloseMemHandle:1:1");
		WANT(ops->import_memory(dev, &in, &none, &err), 0);
		WANT(ops->free(dev, none, &err), -EINVAL);
		standin_fail(NULL);
		cu->cuIpcCloseMemHandle(got.base);
	}
	device_close(dev); /* with one import still open */
	return 0;
}

/* A GPU imports memory of another that it reaches, without a context there. */
static int across(void)
{
	const char *peer = getenv("PENSTOCK_STANDIN_PEER");
	bool reached = !peer || strcmp(peer, "0") != 0;
	struct penstock_device *dev = device_open("cuda:1");
	struct penstock_export in;
	struct pst_memory got;
	void *mem = NULL;
	unsigned flags;
	int active = 1;

	take_export(&in);
	WANT(ops->import_memory(dev, &in, &mem, &err), reached ? 0 : -EXDEV);
	if (!reached)
		WANT(strstr(err.text, "does not reach") != NULL, 1);
	WANT(cu->cuDevicePrimaryCtxGetState(0, &flags, &active), PST_CU_OK);
	WANT(active, 0);
	if (reached) {
		WANT(ops->classify(dev, mem, &got), 1);
		WANT(ops->free(dev, mem, &err), 0);
		WANT(ops->classify(dev, mem, &got), 0);
	}
	device_close(dev);
	return 0;
}

static void memory_between_processes(void **state)
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
	*(void **)&pool_alloc = symbol("cuMemAllocAsync");
	*(void **)&pool_free = symbol("cuMemFreeAsync");
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
		assert_int_equal(run_self("across", two), 0);
		assert_int_equal(run_self("across", apart), 0);
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

/* ---- main --------------------------------------------------------------------- */

static const struct alone alone[] = {
	{"no_context", no_context, false},   {"no_driver", no_driver, true},
	{"poor_device", poor_device, false}, {"importer", importer, false},
	{"across", across, false},
};

#define CASE(f) cmocka_unit_test_setup_teardown(f, NULL, case_end)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(names_are_strict),
		CASE(devices_that_are_not_there),
		CASE(opening_makes_no_context),
		CASE(without_a_driver),
		CASE(the_node_is_read_beneath_the_root),
		CASE(facts_of_the_device),
		CASE(facts_of_a_poor_device),
		CASE(memory_is_aligned),
		CASE(pointers_are_told_apart),
		CASE(registration),
		CASE(failures_are_named),
		CASE(memory_between_processes),
	};

	check_choose();
	if (argc > 1)
		return run_alone(alone, sizeof(alone) / sizeof(alone[0]), argv[1], driver_open);
	return cmocka_run_group_tests_name("cuda", tests, driver_open, NULL);
}
