/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixture for the tests that compare the stand-in with the real CUDA driver. It loads one of the
 * two drivers in the same way as the library, and creates a context and a stream. By default it
 * loads the stand-in from the test program's build folder. With PENSTOCK_STANDIN=0 it loads the
 * machine's own libcuda. Only tests/unit/test_standin*.c and, through cuda_device.h,
 * tests/unit/test_cuda*.c include this file. Each case must pass with both drivers, unless it
 * begins with standin_only().
 */
#ifndef STANDIN_CHECK_H
#define STANDIN_CHECK_H

#include "../test.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "device/cuda_api.h"
#include "pst_standin.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

/* Time after which a test concludes that an operation is blocked. */
#define HELD_MS 60
/* Time limit for an operation that must complete. */
#define SOON_MS 5000

static const struct pst_cuda *cu;
static struct pst_cu_ctx *ctx;
static struct pst_cu_stream *stream;
static void *lib; /* The driver's library, for symbols that cuda_api.h does not list. */

static inline bool is_standin(void)
{
	const char *text = getenv("PENSTOCK_STANDIN");

	return !text || strcmp(text, "0");
}

#define standin_only()                                                  \
	do {                                                            \
		if (!is_standin())                                      \
			test_skip("this case tests the stand-in only"); \
	} while (0)

static inline void *lib_symbol(const char *name)
{
	void *at = dlsym(lib, name);

	if (!at)
		fail_msg("the library has no symbol %s", name);
	return at;
}

/* Selects the driver before pst_cuda_get loads it. Makes the selected driver use one hardware queue
 * of each kind, so that streams share a queue in every run. */
static inline void check_choose(void)
{
	char path[4096];
	ssize_t len = readlink("/proc/self/exe", path, sizeof(path) - 1);

	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
	setenv("PENSTOCK_STANDIN_HW_QUEUES", "1", 0);
	if (!is_standin()) {
		unsetenv("PENSTOCK_LIBCUDA");
		return;
	}
	if (getenv("PENSTOCK_LIBCUDA") || len < 0)
		return;
	path[len] = '\0';
	*strrchr(path, '/') = '\0';
	strncat(path, "/standin/libcuda.so.1", sizeof(path) - strlen(path) - 1);
	setenv("PENSTOCK_LIBCUDA", path, 1);
}

static inline int check_open(void **state)
{
	const char *why = "", *file = getenv("PENSTOCK_LIBCUDA");

	(void)state;
	cu = pst_cuda_get(&why);
	if (!cu) {
		print_error("cannot load the CUDA driver: %s\n", why);
		return -1;
	}
	lib = dlopen(file ? file : "libcuda.so.1", RTLD_NOW);
	if (!lib || cu->cuDevicePrimaryCtxRetain(&ctx, 0) || cu->cuCtxSetCurrent(ctx) ||
	    cu->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0))
		return -1;
	return 0;
}

static inline int check_close(void **state)
{
	(void)state;
	if (cu->cuStreamDestroy(stream))
		return -1;
	return cu->cuDevicePrimaryCtxRelease(0) ? -1 : 0;
}

/* Makes the context current. Runs before each case. */
static inline int check_setup(void **state)
{
	(void)state;
	return cu->cuCtxSetCurrent(ctx) ? -1 : 0;
}

static inline int check_teardown(void **state)
{
	(void)state;
	cu->cuCtxSetCurrent(ctx);
	return cu->cuCtxSynchronize() ? -1 : 0;
}

static inline pst_cu_ptr alloc_dev(size_t len)
{
	pst_cu_ptr dev = 0;

	assert_int_equal(cu->cuMemAlloc(&dev, len), PST_CU_OK);
	return dev;
}

static inline void *alloc_host(size_t len)
{
	void *host = NULL;

	assert_int_equal(cu->cuMemHostAlloc(&host, len, PST_CU_HOST_PORTABLE), PST_CU_OK);
	return host;
}

static inline struct pst_cu_stream *stream_new(unsigned int flags)
{
	struct pst_cu_stream *s = NULL;

	assert_int_equal(cu->cuStreamCreateWithPriority(&s, flags, 0), PST_CU_OK);
	return s;
}

static inline void stream_sync(struct pst_cu_stream *s)
{
	assert_int_equal(cu->cuStreamSynchronize(s), PST_CU_OK);
}

/* Maps anonymous memory. It starts and ends on page boundaries. */
static inline char *pages_map(size_t len, int prot)
{
	char *at = mmap(NULL, len, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(at, MAP_FAILED);
	return at;
}

/* Returns the byte at a device address, copied through pinned memory. */
static inline int byte_at(pst_cu_ptr dev)
{
	unsigned char *host = alloc_host(4096);
	int byte;

	assert_int_equal(cu->cuMemcpyDtoHAsync(host, dev, 1, stream), PST_CU_OK);
	stream_sync(stream);
	byte = host[0];
	cu->cuMemFreeHost(host);
	return byte;
}

/* Overwrites memory while a copy may be reading it. This race is intended, so ThreadSanitizer is
 * disabled in this function. */
__attribute__((no_sanitize("thread"))) static inline void overwrite(char *at, char byte, size_t len)
{
	for (volatile char *p = at; p < at + len; p++)
		*p = byte;
}

static inline long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Returns whether the stream becomes idle within `ms` milliseconds. */
static inline bool idle_within(struct pst_cu_stream *s, long ms)
{
	long until = now_ms() + ms;

	while (cu->cuStreamQuery(s) == PST_CU_NOT_READY) {
		if (now_ms() > until)
			return false;
		usleep(100);
	}
	return true;
}

/* Runs this program again in a child process, which executes the case `what`. `settings` are
 * environment variables "NAME=VALUE", and NULL at the end. Returns the child's wait status. */
static inline int run_self(const char *what, const char *const *settings)
{
	pid_t pid;
	int status;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		for (; *settings; settings++)
			putenv((char *)(uintptr_t)*settings);
		execl("/proc/self/exe", "test_standin", what, (char *)NULL);
		_exit(99);
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

/* --- cases in a child process: they return 0, or print the difference and return 1 --- */

#define EXPECT_EQ(ours, theirs)                                                                   \
	do {                                                                                      \
		long long got_ = (long long)(ours), want_ = (long long)(theirs);                  \
		if (got_ != want_) {                                                              \
			fprintf(stderr, "line %d: %s is %lld, not %lld\n", __LINE__, #ours, got_, \
				want_);                                                           \
			return 1;                                                                 \
		}                                                                                 \
	} while (0)

struct child_case {
	const char *name;
	int (*run)(void);
	bool without_driver; /* The case loads the driver itself or needs no driver. */
};

/* Runs the case whose name main got as its argument. Returns the exit status for the child
 * process. */
static inline int child_case_run(const struct child_case *cases, size_t count, const char *name,
				 int (*open)(void **))
{
	for (size_t i = 0; i < count; i++) {
		if (strcmp(cases[i].name, name))
			continue;
		if (!cases[i].without_driver && open(NULL))
			return 98;
		return cases[i].run();
	}
	return 97;
}

#endif
