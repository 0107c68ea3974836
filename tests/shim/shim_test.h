/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the drop-in's tests share: the CUDA driver (the stand-in, or the machine's
 * with PENSTOCK_STANDIN=0), a file of known bytes, device memory that can be looked
 * at. The library under test is reached by its exported functions only.
 */
#ifndef SHIM_TEST_H
#define SHIM_TEST_H

#include "test.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>

#include "cufile_calls.h"
#include "device/cuda_api.h"

static struct pst_cuda cu;
static struct pst_cu_ctx *cu_ctx;
static char st_path[PATH_MAX]; /* of the file of this test program */

#define assert_code(call, code) assert_int_equal((call).err, (code))
#define assert_ok(call) assert_code(call, CUF_SUCCESS)
#define assert_cu(call) assert_int_equal((call), PST_CU_OK)

/* The driver's functions, from the library that the drop-in uses too. */
__attribute__((unused)) static bool cu_load(void)
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

/* A function of the stand-in alone, or NULL on a real driver. */
__attribute__((unused)) static void *cu_standin(const char *name)
{
	void *lib = getenv("PENSTOCK_LIBCUDA")
			    ? dlopen(getenv("PENSTOCK_LIBCUDA"), RTLD_NOW | RTLD_NOLOAD)
			    : NULL;

	return lib ? dlsym(lib, name) : NULL;
}

/* Byte i of every file here. */
static inline unsigned char st_byte(uint64_t i)
{
	return (unsigned char)(i * 2654435761u >> 13);
}

__attribute__((unused)) static void st_fill(unsigned char *to, uint64_t from, size_t len)
{
	for (size_t i = 0; i < len; i++)
		to[i] = st_byte(from + i);
}

/* A file of known bytes; its descriptor. */
__attribute__((unused)) static int st_make(const char *name, size_t len, int flags)
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

/* Registers a descriptor; NULL and the code in *code if that is refused. */
__attribute__((unused)) static void *st_register(int fd, int *code)
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

__attribute__((unused)) static void *cu_alloc(size_t len)
{
	pst_cu_ptr ptr = 0;

	assert_cu(cu.cuMemAlloc(&ptr, len));
	return (void *)(uintptr_t)ptr;
}

__attribute__((unused)) static void cu_free(void *ptr)
{
	assert_cu(cu.cuMemFree((uintptr_t)ptr));
}

__attribute__((unused)) static void cu_get(void *to, const void *from, size_t len)
{
	assert_cu(cu.cuMemcpyDtoHAsync(to, (uintptr_t)from, len, NULL));
	assert_cu(cu.cuStreamSynchronize(NULL));
}

__attribute__((unused)) static void cu_put(void *to, const void *from, size_t len)
{
	assert_cu(cu.cuMemcpyHtoDAsync((uintptr_t)to, from, len, NULL));
	assert_cu(cu.cuStreamSynchronize(NULL));
}

/* Device memory holds the file's bytes from `off` on. */
__attribute__((unused)) static void st_check(const void *dev, uint64_t off, size_t len)
{
	unsigned char *got = malloc(len), *want = malloc(len);

	cu_get(got, dev, len);
	st_fill(want, off, len);
	assert_memory_equal(got, want, len);
	free(got);
	free(want);
}

#endif
