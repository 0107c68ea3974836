/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every test program includes: cmocka in the order that it wants, skips
 * with a reason, and the seed of random tests. tests/run counts the cases. It
 * must never hide a failure: nothing here retries or waits.
 */
#ifndef PENSTOCK_TEST_H
#define PENSTOCK_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Line by line also into a file: a crash loses no case that had ended. */
__attribute__((constructor)) static void test_line_buffered(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
}

/* Ends the case as skipped; tests/run prints the reason. */
#define test_skip(...)                          \
	do {                                    \
		printf("# skip: " __VA_ARGS__); \
		printf("\n");                   \
		fflush(stdout);                 \
		skip();                         \
	} while (0)

/* PENSTOCK_SEED or the fallback, printed so that a failure can be repeated. */
static inline uint64_t test_seed(uint64_t fallback)
{
	const char *text = getenv("PENSTOCK_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : fallback;

	printf("# seed: PENSTOCK_SEED=%llu\n", (unsigned long long)seed);
	fflush(stdout);
	return seed;
}

/* xorshift64*: the same numbers everywhere for one seed; *state is not 0. */
static inline uint64_t test_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dULL;
}

/* The stand-in CUDA driver beside this program, unless PENSTOCK_STANDIN=0 asks for the
 * machine's own. Before the library is first used. */
static inline void test_use_standin(void)
{
	const char *own = getenv("PENSTOCK_STANDIN");
	char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 64);

	if ((own && !strcmp(own, "0")) || n <= 0)
		return;
	path[n] = '\0';
	snprintf(strrchr(path, '/') + 1, 64, "standin/libcuda.so.1");
	setenv("PENSTOCK_LIBCUDA", path, 1);
}

#endif
