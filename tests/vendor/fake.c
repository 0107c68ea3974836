/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fake vendor libraries for the test of path "vendor", one for each right or wrong behaviour.
 * tests/meson.build builds each library with one FAKE_* macro. Each reads with pread(2) and copies
 * the bytes into device memory with the CUDA driver, in the current context. Its statistics count
 * the reads as the macro demands. The libraries share no code with NVIDIA's library, which works
 * only with its kernel module nvidia-fs. The macros:
 *
 *	GOOD	peer-to-peer, compat mode off; cuFileRead calls its own cuFileUseCount
 *	SILENT	reads by posix calls without reporting an error
 *	BOTH	counts each read both as peer-to-peer and as posix
 *	FEW	counts only one byte of each read
 *	NONE	moves the bytes but counts no read
 *	COMPAT	reports that compat mode is on, even if it was switched off
 *	LIAR	counts a peer-to-peer read but moves no bytes
 *	SHUT	refuses to register any handle
 *	MARKED	exports the drop-in's marker symbol
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi/cufile_abi.h"

#define API __attribute__((visibility("default")))
#define OK ((struct cuf_error){0, 0})

typedef int copy_in_fn(unsigned long long dst, const void *src, size_t len);
typedef int copy_out_fn(void *dst, unsigned long long src, size_t len);

static struct cuf_gpu_stats gpu;
static int fds[64];
static bool compat = true;

#ifdef FAKE_MARKED
API const char penstock_cufile_marker[] = "drop-in";
#endif

API long cuFileUseCount(void);
API long cuFileUseCount(void)
{
	return 1;
}

API struct cuf_error cuFileSetParameterBool(int param, bool value);
API struct cuf_error cuFileSetParameterBool(int param, bool value)
{
	if (param == CUF_PARAM_ALLOW_COMPAT_MODE)
		compat = value;
	return OK;
}

API struct cuf_error cuFileDriverOpen(void);
API struct cuf_error cuFileDriverOpen(void)
{
	return OK;
}

API struct cuf_error cuFileDriverGetProperties(struct cuf_props *props);
API struct cuf_error cuFileDriverGetProperties(struct cuf_props *props)
{
	memset(props, 0, sizeof(*props));
#ifdef FAKE_COMPAT
	compat = true;
#endif
	props->nvfs.dcontrolflags = compat ? 1u << CUF_ALLOW_COMPAT_MODE : 0;
	return OK;
}

API struct cuf_error cuFileSetStatsLevel(int level);
API struct cuf_error cuFileSetStatsLevel(int level)
{
	(void)level;
	return OK;
}

API struct cuf_error cuFileStatsStart(void);
API struct cuf_error cuFileStatsStart(void)
{
	return OK;
}

API struct cuf_error cuFileGetStatsL3(void *stats);
API struct cuf_error cuFileGetStatsL3(void *stats)
{
	struct cuf_stats_gpus gpus = {.num_gpus = 1};

	gpus.gpu[0] = gpu;
	memcpy((char *)stats + sizeof(struct cuf_stats_l1) + sizeof(struct cuf_stats_hist), &gpus,
	       sizeof(gpus));
	return OK;
}

API struct cuf_error cuFileHandleRegister(void **fh, struct cuf_descr *descr);
API struct cuf_error cuFileHandleRegister(void **fh, struct cuf_descr *descr)
{
#ifdef FAKE_SHUT
	(void)fh;
	(void)descr;
	return (struct cuf_error){5027, 0};
#endif
	for (int i = 1; i < 64; i++) {
		if (fds[i])
			continue;
		fds[i] = descr->handle.fd + 1;
		*fh = &fds[i];
		return OK;
	}
	return (struct cuf_error){5043, 0};
}

API void cuFileHandleDeregister(void *fh);
API void cuFileHandleDeregister(void *fh)
{
	*(int *)fh = 0;
}

/* Returns the number of registered handles. Only the test calls this function. */
API int fake_handles(void);
API int fake_handles(void)
{
	int n = 0;

	for (int i = 1; i < 64; i++)
		n += fds[i] != 0;
	return n;
}

static void *driver_symbol(const char *name)
{
	const char *file = getenv("PENSTOCK_LIBCUDA");
	void *lib = dlopen(file ? file : "libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

	return lib ? dlsym(lib, name) : NULL;
}

static void count_read(ssize_t n)
{
#ifdef FAKE_FEW
	n = 1;
#endif
	gpu.read_bytes += (uint64_t)n;
	gpu.n_total_reads++;
#if defined(FAKE_SILENT) || defined(FAKE_BOTH)
	gpu.n_posix_reads++;
#endif
#if !defined(FAKE_SILENT) && !defined(FAKE_NONE)
	gpu.n_p2p_reads++;
#endif
}

API ssize_t cuFileRead(void *fh, void *base, size_t len, off_t file_off, off_t base_off);
API ssize_t cuFileRead(void *fh, void *base, size_t len, off_t file_off, off_t base_off)
{
	copy_in_fn *copy_in = NULL;
	void *symbol = driver_symbol("cuMemcpyHtoD_v2"), *buf;
	ssize_t n;

	memcpy(&copy_in, &symbol, sizeof(copy_in));
	if (cuFileUseCount() != 1 || !copy_in)
		return -5001; /* the call reached another library's cuFileUseCount */
	if (posix_memalign(&buf, 4096, len))
		return -5043;
	n = pread(*(int *)fh - 1, buf, len, file_off);
#ifdef FAKE_LIAR
	(void)base;
	(void)base_off;
#else
	if (n > 0 && copy_in((uintptr_t)base + (size_t)base_off, buf, (size_t)n))
		n = -5011;
#endif
	free(buf);
	if (n > 0)
		count_read(n);
	return n;
}

API ssize_t cuFileWrite(void *fh, const void *base, size_t len, off_t file_off, off_t base_off);
API ssize_t cuFileWrite(void *fh, const void *base, size_t len, off_t file_off, off_t base_off)
{
	copy_out_fn *copy_out = NULL;
	void *symbol = driver_symbol("cuMemcpyDtoH_v2"), *buf;
	ssize_t n = -5011;

	memcpy(&copy_out, &symbol, sizeof(copy_out));
	if (!copy_out || posix_memalign(&buf, 4096, len))
		return -5043;
	if (!copy_out(buf, (uintptr_t)base + (size_t)base_off, len))
		n = pwrite(*(int *)fh - 1, buf, len, file_off);
	free(buf);
	return n;
}
