/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the tests that hold the stand-in against the real driver: one of the
 * two, loaded as the library loads it, with a context and a stream. By default
 * it is the stand-in beside the test program; PENSTOCK_STANDIN=0 takes the
 * machine's own libcuda. Included by tests/unit/test_standin*.c only; each
 * case must hold for both, unless it begins with standin_only().
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

/* How long something must fail to happen until it counts as held up. */
#define HELD_MS 60
/* How long something may take that must happen. */
#define SOON_MS 5000

static const struct pst_cuda *cu;
static struct pst_cu_ctx *ctx;
static struct pst_cu_stream *stream;
static void *lib; /* the same library, for what cuda_api.h does not list */

static inline bool is_standin(void)
{
	const char *text = getenv("PENSTOCK_STANDIN");

	return !text || strcmp(text, "0");
}

#define standin_only()                                                        \
	do {                                                                  \
		if (!is_standin())                                            \
			test_skip("about the stand-in, not the real driver"); \
	} while (0)

static inline void *symbol(const char *name)
{
	void *at = dlsym(lib, name);

	if (!at)
		fail_msg("no %s", name);
	return at;
}

/* Names the library before pst_cuda_get looks, and makes both drivers have one
 * hardware queue of each kind, so that what shares a queue is no accident.
 */
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
		print_error("no driver: %s\n", why);
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

/* Every case starts with the context current and ends with nothing running. */
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

static inline struct pst_cu_stream *make_stream(unsigned int flags)
{
	struct pst_cu_stream *s = NULL;

	assert_int_equal(cu->cuStreamCreateWithPriority(&s, flags, 0), PST_CU_OK);
	return s;
}

static inline void settle(struct pst_cu_stream *s)
{
	assert_int_equal(cu->cuStreamSynchronize(s), PST_CU_OK);
}

/* Anonymous memory on pages of its own. */
static inline char *pages(size_t len, int prot)
{
	char *at = mmap(NULL, len, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(at, MAP_FAILED);
	return at;
}

/* The first byte at a device address, by way of pinned memory. */
static inline int byte_at(pst_cu_ptr dev)
{
	unsigned char *host = alloc_host(4096);
	int byte;

	assert_int_equal(cu->cuMemcpyDtoHAsync(host, dev, 1, stream), PST_CU_OK);
	settle(stream);
	byte = host[0];
	cu->cuMemFreeHost(host);
	return byte;
}

/* Overwrites what a copy may be reading: the race is the point of the case, so
 * the thread sanitizer does not look.
 */
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

/* Whether a stream becomes idle within the time. */
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

/* Runs this program again for one case in a process of its own, with settings
 * "NAME=VALUE", NULL at the end; its wait status.
 */
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

/* --- cases in a process of their own: they end with 0 or the complaint ------ */

#define WANT(ours, theirs)                                                                        \
	do {                                                                                      \
		long long got_ = (long long)(ours), want_ = (long long)(theirs);                  \
		if (got_ != want_) {                                                              \
			fprintf(stderr, "line %d: %s is %lld, not %lld\n", __LINE__, #ours, got_, \
				want_);                                                           \
			return 1;                                                                 \
		}                                                                                 \
	} while (0)

struct alone {
	const char *name;
	int (*run)(void);
	bool closed; /* loads the library itself, or wants none */
};

/* What main does with an argument: the exit status. */
static inline int run_alone(const struct alone *cases, size_t count, const char *name,
			    int (*open)(void **))
{
	for (size_t i = 0; i < count; i++) {
		if (strcmp(cases[i].name, name))
			continue;
		if (!cases[i].closed && open(NULL))
			return 98;
		return cases[i].run();
	}
	return 97;
}

#endif
