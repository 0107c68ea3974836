/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixtures of the tests of the drop-in (Penstock's libcufile): the CUDA driver, files of known
 * bytes, device memory, streams, batches, child processes and a gate. The gate is a word in memory
 * that blocks streams until the test opens it. The CUDA driver is a simulated one (the stand-in),
 * or the machine's driver if PENSTOCK_STANDIN is 0. Tests call the drop-in only through the
 * functions that it exports.
 */
#ifndef SHIM_TEST_H
#define SHIM_TEST_H

#include "test.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "abi/cufile_calls.h"
#include "device/cuda_api.h"

#define ST_UNUSED __attribute__((unused))

static struct pst_cuda cu;
static struct pst_cu_ctx *cu_ctx;
static char st_path[PATH_MAX]; /* path of the file that st_make created last */

#define assert_code(call, code) assert_int_equal((call).err, (code))
#define assert_ok(call) assert_code(call, CUF_SUCCESS)
#define assert_cu(call) assert_int_equal((call), PST_CU_OK)

/* ---- the CUDA driver ---- */

/* Loads the CUDA driver's functions from the same library that the drop-in libcufile uses. */
ST_UNUSED static bool cu_load(void)
{
	const char *name = getenv("PENSTOCK_LIBCUDA");
	void *lib;

	if (getenv("PENSTOCK_STANDIN") && !strcmp(getenv("PENSTOCK_STANDIN"), "0")) {
		unsetenv("PENSTOCK_LIBCUDA");
		name = NULL;
	}
	lib = dlopen(name ? name : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		return false;
#define LOAD(fn, symbol, params)                   \
	do {                                       \
		void *sym = dlsym(lib, #symbol);   \
		memcpy(&cu.fn, &sym, sizeof(sym)); \
	} while (0);
	PST_CU_FUNCS(LOAD, LOAD)
#undef LOAD
	return cu.cuInit(0) == PST_CU_OK && cu.cuDevicePrimaryCtxRetain(&cu_ctx, 0) == PST_CU_OK &&
	       cu.cuCtxSetCurrent(cu_ctx) == PST_CU_OK;
}

/* Looks up a function that only the simulated driver (the stand-in) has, and stores it in *fn.
 * Returns false if the tests run with a real driver. */
ST_UNUSED static bool cu_standin(const char *name, void *fn)
{
	void *lib = getenv("PENSTOCK_LIBCUDA")
			    ? dlopen(getenv("PENSTOCK_LIBCUDA"), RTLD_NOW | RTLD_NOLOAD)
			    : NULL;
	void *sym = lib ? dlsym(lib, name) : NULL;

	memcpy(fn, &sym, sizeof(sym));
	return sym != NULL;
}

ST_UNUSED static void *cu_alloc(size_t len)
{
	pst_cu_ptr ptr = 0;

	assert_cu(cu.cuMemAlloc(&ptr, len));
	return (void *)(uintptr_t)ptr;
}

ST_UNUSED static void cu_free(void *ptr)
{
	assert_cu(cu.cuMemFree((uintptr_t)ptr));
}

ST_UNUSED static void cu_get(void *to, const void *from, size_t len)
{
	assert_cu(cu.cuMemcpyDtoHAsync(to, (uintptr_t)from, len, NULL));
	assert_cu(cu.cuStreamSynchronize(NULL));
}

ST_UNUSED static void cu_put(void *to, const void *from, size_t len)
{
	assert_cu(cu.cuMemcpyHtoDAsync((uintptr_t)to, from, len, NULL));
	assert_cu(cu.cuStreamSynchronize(NULL));
}

ST_UNUSED static struct pst_cu_stream *cu_stream(void)
{
	struct pst_cu_stream *stream;

	assert_cu(cu.cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0));
	return stream;
}

/* ---- a gate: a word in memory for which streams wait until it is 1 ---- */

static uint64_t *st_gate;
static pst_cu_ptr st_gate_dev;

ST_UNUSED static void st_gate_shut(void)
{
	if (!st_gate) {
		assert_cu(cu.cuMemHostAlloc((void **)&st_gate, 4096, PST_CU_HOST_MAPPED));
		assert_cu(cu.cuMemHostGetDevicePointer(&st_gate_dev, st_gate, 0));
	}
	__atomic_store_n(st_gate, 0, __ATOMIC_RELEASE);
}

ST_UNUSED static void st_gate_open(void)
{
	__atomic_store_n(st_gate, 1, __ATOMIC_RELEASE);
}

/* Makes the stream wait for the gate, a word in memory that st_gate_open sets. Work that is queued
 * later runs only when the gate is open. */
ST_UNUSED static void st_gate_wait(struct pst_cu_stream *stream)
{
	assert_cu(cu.cuStreamWaitValue64(stream, st_gate_dev, 1, PST_CU_WAIT_GEQ));
}

/* ---- files of known bytes ---- */

/* Returns the byte at offset i of a test file. All test files have the same bytes. */
static inline unsigned char st_byte(uint64_t i)
{
	return (unsigned char)(i * 2654435761u >> 13);
}

ST_UNUSED static void st_fill(unsigned char *to, uint64_t from, size_t len)
{
	for (size_t i = 0; i < len; i++)
		to[i] = st_byte(from + i);
}

/* Creates a file in TMPDIR. Returns a descriptor, or -1 if the file system does not support the
 * open flags. */
ST_UNUSED static int st_make(const char *name, size_t len, int flags)
{
	const char *tmp = getenv("TMPDIR");
	unsigned char *bytes = malloc(len ? len : 1);
	int fd;

	snprintf(st_path, sizeof(st_path), "%s/%s-%d", tmp ? tmp : "/tmp", name, (int)getpid());
	fd = open(st_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	st_fill(bytes, 0, len);
	assert_int_equal(write(fd, bytes, len), len);
	assert_int_equal(fsync(fd), 0);
	free(bytes);
	if (flags == O_RDWR)
		return fd;
	close(fd);
	return open(st_path, flags | O_CLOEXEC);
}

/* Registers a descriptor and returns its handle. If the registration is refused, returns NULL
 * and stores the cuFile code in *code; if `code` is NULL, a refusal fails the test. */
ST_UNUSED static void *st_register(int fd, int *code)
{
	struct cuf_descr descr = {.type = CUF_FD, .handle = {.fd = fd}};
	void *fh = NULL;
	struct cuf_error err = cuFileHandleRegister(&fh, &descr);

	if (code)
		*code = err.err;
	else
		assert_int_equal(err.err, CUF_SUCCESS);
	return err.err ? NULL : fh;
}

/* Deregisters the handle, closes the descriptor, and removes the file that st_make created last. */
ST_UNUSED static void st_drop(void *fh, int fd)
{
	cuFileHandleDeregister(fh);
	close(fd);
	unlink(st_path);
}

/* The setup of most tests. Makes and registers a file of `len` bytes. Also allocates device
 * memory of the same length, unless `dev` is NULL. */
ST_UNUSED static int st_setup(const char *name, size_t len, int flags, int *fd, void **fh,
			      char **dev)
{
	if (!cu_load())
		return -1;
	if (dev)
		*dev = cu_alloc(len);
	*fd = st_make(name, len, flags);
	*fh = st_register(*fd, NULL);
	return 0;
}

/* Returns whether device memory contains the bytes of a test file from `off` on. Does not fail
 * the test itself, so that threads and child processes can call it. */
ST_UNUSED static bool st_holds(const void *dev, uint64_t off, size_t len)
{
	unsigned char *got = malloc(len), *want = malloc(len);
	bool same;

	st_fill(want, off, len);
	same = cu.cuMemcpyDtoHAsync(got, (uintptr_t)dev, len, NULL) == PST_CU_OK &&
	       cu.cuStreamSynchronize(NULL) == PST_CU_OK && !memcmp(got, want, len);
	free(got);
	free(want);
	return same;
}

/* Fails the test, and prints the differing bytes, unless device memory contains the bytes of a
 * test file from `off` on. */
ST_UNUSED static void st_check(const void *dev, uint64_t off, size_t len)
{
	unsigned char *got = malloc(len), *want = malloc(len);

	cu_get(got, dev, len);
	st_fill(want, off, len);
	assert_memory_equal(got, want, len);
	free(got);
	free(want);
}

/* ---- batches and statistics ---- */

/* Returns the parameters of one batch operation. */
ST_UNUSED static struct cuf_io_params st_op(void *fh, int opcode, void *base, size_t len, off_t off,
					    off_t base_off, size_t cookie)
{
	struct cuf_io_params p = {.mode = CUF_BATCH, .fh = fh, .opcode = opcode};

	p.u.batch.base = base;
	p.u.batch.base_offset = base_off;
	p.u.batch.file_offset = off;
	p.u.batch.size = len;
	p.cookie = (void *)cookie;
	return p;
}

/* The statistics of level 3 in the layout of version 1.15. */
struct st_l3 {
	struct cuf_stats_l1 l1;
	struct cuf_stats_hist hist;
	struct cuf_stats_gpus gpus;
};

/* ---- replaced functions of libc ---- */

/* Stores the C library's function `name` in *fn, because the test program defines a function of the
 * same name. Does nothing if *fn is already set. */
ST_UNUSED static void st_real(const char *name, void *fn)
{
	void *sym;

	memcpy(&sym, fn, sizeof(sym));
	if (sym)
		return;
	sym = dlsym(RTLD_NEXT, name);
	memcpy(fn, &sym, sizeof(sym));
}

static uintptr_t st_text_start, st_text_end; /* start and exclusive end of libcufile's code */

static inline int st_text_visit(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	(void)arg;
	if (!strstr(info->dlpi_name, "libcufile"))
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
			st_text_start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
			st_text_end = st_text_start + info->dlpi_phdr[i].p_memsz;
		}
	return 1;
}

/* Finds the address range of the code of the drop-in libcufile, which st_in_shim uses. */
ST_UNUSED static bool st_find_text(void)
{
	return dl_iterate_phdr(st_text_visit, NULL) == 1;
}

/* Returns whether a return address belongs to the drop-in libcufile, which means that this library
 * made the call. */
ST_UNUSED static bool st_in_shim(void *caller)
{
	return (uintptr_t)caller - st_text_start < st_text_end - st_text_start;
}

/* ---- child processes ---- */

/* Waits for a child process. Returns its exit status, or the negated number of the signal that
 * killed it. */
ST_UNUSED static int st_wait(pid_t pid)
{
	int status;

	assert_true(pid >= 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Runs this program again in a child process, with one argument. If `cuda` is not NULL, it is the
 * path of the CUDA driver that the child uses. Returns the result of st_wait. */
ST_UNUSED static int st_run_self(const char *arg, const char *cuda)
{
	char self[PATH_MAX] = "";
	pid_t pid;

	assert_true(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
	fflush(stdout);
	pid = fork();
	if (!pid) {
		if (cuda)
			setenv("PENSTOCK_LIBCUDA", cuda, 1);
		execl(self, self, arg, (char *)NULL);
		_exit(99);
	}
	return st_wait(pid);
}

#endif
