/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads the CUDA driver library, looks up the functions listed in cuda_api.h, initialises the
 * driver and translates its result codes. Device cuda calls these functions, and so does code that
 * only needs to know whether the machine has a GPU. They must never create a context. If no driver
 * is installed, which is normal, they must return an error and never end the process.
 */
#include "device/cuda_api.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/fork.h"

struct func_entry {
	const char *symbol;
	size_t member_offset;
	bool required;
};

struct result_entry {
	enum pst_cu_result rc;
	int err;
	const char *name;
};

/* The loaded driver's functions, and whether loading succeeded. driver_load writes these variables
 * until the state is `decided`; they are read-only afterwards. */
static struct pst_cuda table;
static bool loaded;
static char why_text[256];
/* Whether the machine has a driver that this file could not start. */
static bool broken;
/* Whether the driver is loaded, or cannot be loaded in this process. */
static atomic_bool decided;
/* Held while the driver is loaded. The lock's holder may take locks of the driver only. */
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;

static void load_lock_reset(void)
{
	pthread_mutex_init(&load_lock, NULL);
}

/* Lets the child of a fork load the driver even if a thread of its parent was loading it. */
__attribute__((constructor)) static void load_hook_fork(void)
{
	pst_fork_hook(load_lock_reset);
}

/* clang-format off */
#define REQUIRED(name, symbol, params) \
	{ #symbol, offsetof(struct pst_cuda, name), true },
#define OPTIONAL(name, symbol, params) \
	{ #symbol, offsetof(struct pst_cuda, name), false },
static const struct func_entry funcs[] = { PST_CU_FUNCS(REQUIRED, OPTIONAL) };
#undef REQUIRED
#undef OPTIONAL

/* Translates the driver's result codes to errno values. A result that is not in this table becomes
 * EIO, a fault of the device or the driver. */
static const struct result_entry results[] = {
	{ PST_CU_OK, 0, "CUDA_SUCCESS" },
	{ PST_CU_INVALID_VALUE, EINVAL, "CUDA_ERROR_INVALID_VALUE" },
	{ PST_CU_OUT_OF_MEMORY, ENOMEM, "CUDA_ERROR_OUT_OF_MEMORY" },
	{ PST_CU_NOT_INITIALIZED, ENODEV, "CUDA_ERROR_NOT_INITIALIZED" },
	/* The driver returns this code after its exit handlers have run, which may be before those
	 * of this library. */
	{ PST_CU_DEINITIALIZED, ESHUTDOWN, "CUDA_ERROR_DEINITIALIZED" },
	{ PST_CU_STUB_LIBRARY, ENODEV, "CUDA_ERROR_STUB_LIBRARY" },
	{ PST_CU_NEWER_DRIVER_NEEDED, EOPNOTSUPP, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER" },
	{ PST_CU_DEVICE_UNAVAILABLE, EBUSY, "CUDA_ERROR_DEVICE_UNAVAILABLE" },
	{ PST_CU_NO_DEVICE, ENODEV, "CUDA_ERROR_NO_DEVICE" },
	{ PST_CU_INVALID_DEVICE, ENODEV, "CUDA_ERROR_INVALID_DEVICE" },
	{ PST_CU_INVALID_CONTEXT, ENXIO, "CUDA_ERROR_INVALID_CONTEXT" },
	{ PST_CU_MAP_FAILED, ENOMEM, "CUDA_ERROR_MAP_FAILED" },
	{ PST_CU_UNMAP_FAILED, EIO, "CUDA_ERROR_UNMAP_FAILED" },
	{ PST_CU_ALREADY_MAPPED, EEXIST, "CUDA_ERROR_ALREADY_MAPPED" },
	{ PST_CU_ECC_UNCORRECTABLE, EIO, "CUDA_ERROR_ECC_UNCORRECTABLE" },
	{ PST_CU_PEER_ACCESS_UNSUPPORTED, EOPNOTSUPP, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" },
	{ PST_CU_NVLINK_UNCORRECTABLE, EIO, "CUDA_ERROR_NVLINK_UNCORRECTABLE" },
	{ PST_CU_OPERATING_SYSTEM, EIO, "CUDA_ERROR_OPERATING_SYSTEM" },
	{ PST_CU_INVALID_HANDLE, EBADF, "CUDA_ERROR_INVALID_HANDLE" },
	{ PST_CU_ILLEGAL_STATE, EBUSY, "CUDA_ERROR_ILLEGAL_STATE" },
	{ PST_CU_NOT_FOUND, ENOENT, "CUDA_ERROR_NOT_FOUND" },
	{ PST_CU_NOT_READY, EAGAIN, "CUDA_ERROR_NOT_READY" },
	{ PST_CU_ILLEGAL_ADDRESS, EFAULT, "CUDA_ERROR_ILLEGAL_ADDRESS" },
	{ PST_CU_LAUNCH_OUT_OF_RESOURCES, ENOMEM, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" },
	{ PST_CU_LAUNCH_TIMEOUT, ETIMEDOUT, "CUDA_ERROR_LAUNCH_TIMEOUT" },
	{ PST_CU_PEER_ACCESS_ALREADY_ENABLED, EALREADY,
	  "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED" },
	{ PST_CU_PEER_ACCESS_NOT_ENABLED, EACCES, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED" },
	{ PST_CU_CONTEXT_IS_DESTROYED, ESTALE, "CUDA_ERROR_CONTEXT_IS_DESTROYED" },
	{ PST_CU_TOO_MANY_PEERS, ENOSPC, "CUDA_ERROR_TOO_MANY_PEERS" },
	{ PST_CU_HOST_ALREADY_REGISTERED, EEXIST, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" },
	{ PST_CU_HOST_NOT_REGISTERED, ENOENT, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED" },
	{ PST_CU_MISALIGNED_ADDRESS, EFAULT, "CUDA_ERROR_MISALIGNED_ADDRESS" },
	{ PST_CU_LAUNCH_FAILED, EIO, "CUDA_ERROR_LAUNCH_FAILED" },
	{ PST_CU_NOT_PERMITTED, EPERM, "CUDA_ERROR_NOT_PERMITTED" },
	{ PST_CU_NOT_SUPPORTED, EOPNOTSUPP, "CUDA_ERROR_NOT_SUPPORTED" },
	{ PST_CU_SYSTEM_NOT_READY, EBUSY, "CUDA_ERROR_SYSTEM_NOT_READY" },
	{ PST_CU_SYSTEM_DRIVER_MISMATCH, ENODEV, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" },
	{ PST_CU_COMPAT_NOT_SUPPORTED, ENODEV, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE" },
	{ PST_CU_CAPTURE_UNSUPPORTED, EOPNOTSUPP, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" },
	{ PST_CU_CAPTURE_INVALIDATED, EOPNOTSUPP, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" },
	{ PST_CU_CAPTURE_IMPLICIT, EOPNOTSUPP, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT" },
	{ PST_CU_TIMEOUT, ETIMEDOUT, "CUDA_ERROR_TIMEOUT" },
	{ PST_CU_UNKNOWN, EIO, "CUDA_ERROR_UNKNOWN" },
};
/* clang-format on */

static const struct result_entry *result_find(enum pst_cu_result rc)
{
	for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++)
		if (results[i].rc == rc)
			return &results[i];
	return NULL;
}

int pst_cuda_errno(enum pst_cu_result rc)
{
	const struct result_entry *r = result_find(rc);

	return r ? -r->err : -EIO;
}

const char *pst_cuda_name(enum pst_cu_result rc)
{
	const struct result_entry *r = result_find(rc);
	const char *name = NULL;

	if (r)
		return r->name;
	/* The code is not in the table `results`, but the driver may know its name. */
	if (loaded && table.cuGetErrorName(rc, &name) == PST_CU_OK && name)
		return name;
	return "an unlisted CUDA error";
}

__attribute__((format(printf, 1, 2))) static void load_refuse(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why_text, sizeof(why_text), fmt, ap);
	va_end(ap);
}

/* Looks up all functions of the driver. Copies the bytes of each address that dlsym returns,
 * because ISO C does not permit a cast from object to function pointer. POSIX guarantees that both
 * have the same size. */
static int funcs_look_up(void *lib, const char *file)
{
	for (size_t i = 0; i < sizeof(funcs) / sizeof(funcs[0]); i++) {
		void *sym = dlsym(lib, funcs[i].symbol);
		char *member = (char *)&table + funcs[i].member_offset;

		if (!sym && funcs[i].required) {
			broken = true;
			load_refuse("%s has no %s: the driver is too old", file, funcs[i].symbol);
			return -ENOSYS;
		}
		__builtin_memcpy(member, &sym, sizeof(sym));
	}
	return 0;
}

static int driver_start(const char *file)
{
	enum pst_cu_result rc = table.cuInit(0);

	if (rc == PST_CU_STUB_LIBRARY) {
		load_refuse("%s is the toolkit's link-time stub, not a driver", file);
		return -ENODEV;
	}
	if (rc != PST_CU_OK) {
		broken = rc != PST_CU_NO_DEVICE;
		load_refuse("cuInit: %s (%d)", pst_cuda_name(rc), (int)rc);
		return pst_cuda_errno(rc);
	}
	rc = table.cuDriverGetVersion(&table.driver_version);
	if (rc == PST_CU_OK)
		rc = table.cuDeviceGetCount(&table.device_count);
	if (rc != PST_CU_OK) {
		broken = rc != PST_CU_NO_DEVICE;
		load_refuse("cuDeviceGetCount: %s (%d)", pst_cuda_name(rc), (int)rc);
		return pst_cuda_errno(rc);
	}
	if (table.device_count < 1) {
		load_refuse("the CUDA driver sees no GPU");
		return -ENODEV;
	}
	return 0;
}

/* Returns the errno of a failed dlopen that may succeed later, or 0. dlopen sets no errno, but its
 * message ends with the text of one. */
static int temporary_errno(const char *text)
{
	/* The text of EMFILE is the beginning of that of ENFILE. */
	static const int codes[] = {ENFILE, EMFILE, ENOMEM};

	for (size_t i = 0; text && i < sizeof(codes) / sizeof(codes[0]); i++)
		if (strstr(text, strerror(codes[i])))
			return codes[i];
	return 0;
}

/* Loads the driver library. The library is never unloaded, because it starts its own threads, and
 * its exit handlers run later than any code that could unload it. Returns 0 if the state is
 * decided, or the errno of a temporary failure. */
static int driver_load(void)
{
	const char *file = getenv("PENSTOCK_LIBCUDA");
	void *lib;

	if (!file || !*file)
		file = "libcuda.so.1";
	lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		const char *text = dlerror();
		int code = temporary_errno(text);

		if (code)
			return code;
		/* A missing file is a missing driver. */
		broken = text && !strstr(text, strerror(ENOENT));
		load_refuse("%s", text ? text : file);
		return 0;
	}
	loaded = funcs_look_up(lib, file) >= 0 && driver_start(file) >= 0;
	return 0;
}

/* Returns the reason of a temporary failure. A later call must not change the text that an earlier
 * one has returned, so each text is constant. */
static const char *temporary_text(int code)
{
	return code == ENOMEM ? "no memory to load the CUDA driver"
	       : code == EMFILE
		       ? "the CUDA driver cannot be loaded: this process has too many open files"
		       : "the CUDA driver cannot be loaded: the machine has too many open files";
}

const struct pst_cuda *pst_cuda_load(const char **why, int *temporary)
{
	int code = 0;

	if (!atomic_load_explicit(&decided, memory_order_acquire)) {
		pthread_mutex_lock(&load_lock);
		if (!atomic_load_explicit(&decided, memory_order_relaxed))
			code = driver_load();
		if (!code)
			atomic_store_explicit(&decided, true, memory_order_release);
		pthread_mutex_unlock(&load_lock);
	}
	*temporary = code;
	if (!code && loaded)
		return &table;
	*why = code ? temporary_text(code) : why_text;
	return NULL;
}

const struct pst_cuda *pst_cuda_get(const char **why)
{
	const char *text;
	int temporary;

	return pst_cuda_load(why ? why : &text, &temporary);
}

bool pst_cuda_broken(void)
{
	return atomic_load_explicit(&decided, memory_order_acquire) && broken;
}
