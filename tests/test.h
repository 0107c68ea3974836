/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every test program includes this file. It includes cmocka after the headers that cmocka
 * requires. It provides skips with a reason, the seed of random tests, a clock, and a function
 * that makes the library load the stand-in CUDA driver. Another one finds functions of this driver
 * that control it. tests/run counts the cases from a program's output. Nothing here may hide a
 * failure by retrying or waiting.
 * ARCHITECTURE.md, section Words, explains the project's words.
 */
#ifndef PENSTOCK_TEST_H
#define PENSTOCK_TEST_H

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* Makes stdout line-buffered even if it is a file, so that a crash loses no result of a case
 * that has finished. */
__attribute__((constructor)) static void test_line_buffered(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
}

/* Ends the test case as skipped. tests/run prints the reason. */
#define test_skip(...)                          \
	do {                                    \
		printf("# skip: " __VA_ARGS__); \
		printf("\n");                   \
		fflush(stdout);                 \
		skip();                         \
	} while (0)

/* Returns the seed for random tests: the number in PENSTOCK_SEED, or `fallback` if it is not set.
 * Prints the seed, so that a failure can be repeated. */
static inline uint64_t test_seed(uint64_t fallback)
{
	const char *text = getenv("PENSTOCK_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : fallback;

	printf("# seed: PENSTOCK_SEED=%llu\n", (unsigned long long)seed);
	fflush(stdout);
	return seed;
}

/* Returns the next random number of the generator xorshift64*, which gives the same numbers on
 * every machine. *state must not be 0. */
static inline uint64_t test_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dULL;
}

/* Sets `out` to the name of a file in TMPDIR that belongs to this process. */
static inline void test_file_name(char *out, size_t len, const char *what)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(out, len, "%s/%s-%d", tmp ? tmp : "/tmp", what, (int)getpid());
}

/* Returns the time of the monotonic clock in ns. */
static inline uint64_t test_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Makes the library load the stand-in CUDA driver at `path`, relative to this program's folder. If
 * PENSTOCK_STANDIN=0, the library loads the machine's own driver instead. The test must call this
 * function before any function of the library. */
static inline void test_use_standin_at(const char *path)
{
	const char *own = getenv("PENSTOCK_STANDIN");
	char program[4096];
	ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 64);

	if ((own && !strcmp(own, "0")) || n <= 0)
		return;
	program[n] = '\0';
	snprintf(strrchr(program, '/') + 1, 64, "%s", path);
	setenv("PENSTOCK_LIBCUDA", program, 1);
}

static inline void test_use_standin(void)
{
	test_use_standin_at("standin/libcuda.so.1");
}

/* Returns a function of the stand-in driver that real drivers do not have. Returns NULL if the
 * library loads the machine's own driver. */
static inline void *test_standin_symbol(const char *name)
{
	const char *path = getenv("PENSTOCK_LIBCUDA");
	void *lib = path ? dlopen(path, RTLD_NOW) : NULL;

	return lib ? dlsym(lib, name) : NULL;
}

#endif
