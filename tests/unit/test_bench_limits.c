/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests how `penstock bench --limits` makes the plain calls of a limit: cached bytes by eight
 * threads, and into memory for which it has requested huge pages. Without one of them, the limit
 * would be too low and still look right. The test observes the system calls and measures no time.
 */
/* before cmocka, which defines a macro with the name of the function fail() */
#include "../../cli/bench_limits.h"

#include "test.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define HUGE_PAGE (2 * MIB)

static char *advised; /* range for which the last madvise has requested huge pages */
static size_t advised_len;
static _Atomic unsigned reads, reads_outside, threads;

int __real_madvise(void *mem, size_t len, int advice);
int __wrap_madvise(void *mem, size_t len, int advice);
int __wrap_madvise(void *mem, size_t len, int advice)
{
	if (advice == MADV_HUGEPAGE) {
		advised = mem;
		advised_len = len;
	}
	return __real_madvise(mem, len, advice);
}

ssize_t __real_pread64(int fd, void *mem, size_t len, off_t off);
ssize_t __wrap_pread64(int fd, void *mem, size_t len, off_t off);
ssize_t __wrap_pread64(int fd, void *mem, size_t len, off_t off)
{
	char *at = mem;

	reads++;
	if (!advised || at < advised || at + len > advised + advised_len)
		reads_outside++;
	return __real_pread64(fd, mem, len, off);
}

int __real_pthread_create(pthread_t *id, const pthread_attr_t *attr, void *(*run)(void *),
			  void *arg);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attr, void *(*run)(void *),
			  void *arg);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attr, void *(*run)(void *),
			  void *arg)
{
	threads++;
	return __real_pthread_create(id, attr, run, arg);
}

static void cached_bytes_are_read_by_threads_into_huge_pages(void **state)
{
	struct bench_args args = {.block = MIB, .depth = 4, .runtime = 0.01, .warm = true};
	char name[256], what[BENCH_LIMIT_TEXT];
	cpu_set_t one;
	int fd;

	(void)state;
	/* On one CPU, the ways are eight threads that call pread, and one thread with io_uring. */
	assert_int_equal(sched_getaffinity(0, sizeof(one), &one), 0);
	for (int cpu = 0, found = 0; cpu < CPU_SETSIZE; cpu++) {
		if (CPU_ISSET(cpu, &one) && found++)
			CPU_CLR(cpu, &one);
	}
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	test_file_name(name, sizeof(name), "penstock-limits");
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	assert_true(fd >= 0 && !ftruncate(fd, 8 * MIB) && !close(fd));
	args.storage = name;
	assert_false(isnan(bench_limit(&args, 8 * MIB, what, sizeof(what))));
	unlink(name);
	assert_int_equal(threads, 8 + 1);
	assert_int_not_equal(reads, 0);
	assert_int_equal(reads_outside, 0);
	assert_int_equal((uintptr_t)advised % HUGE_PAGE, 0);
	assert_int_equal(advised_len, 8 * MIB);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cached_bytes_are_read_by_threads_into_huge_pages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
