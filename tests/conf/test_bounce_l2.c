/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the L2 bounce: path "bounce" copies a chunk in steps so short that their bytes stay in the
 * CPU's L2 cache. Only a single FAST request of medium length for cached bytes uses it; other
 * requests would become slower. Every byte must arrive for any offset, length and alignment, with
 * short, interrupted and failed reads. The report must count two CPU copies. The CUDA device is a
 * simulated one of the stand-in driver, unless PENSTOCK_STANDIN=0.
 */
#include "copy.h"
#include "page_cache.h"
#include "request.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>

#include "core/ops.h"

#define MIB ((uint64_t)1 << 20)
#define FILE_LEN (19 * MIB + 777)
#define GUARD 64

static struct penstock_device *host, *gpu;
static struct penstock_storage *st;
static unsigned char *bytes, *back;
static char *mem;
static char name[256];
static struct test_held held;

/* Selects the behaviour of the wrapped pread. PLAIN: it calls the kernel. SHORT: it returns fewer
 * bytes. INTERRUPTED: it fails with EINTR. REFUSED: it fails with EIO. */
static enum { PLAIN, SHORT, INTERRUPTED, REFUSED } reads;
static _Atomic unsigned calls;

ssize_t __real_pread64(int fd, void *buf, size_t len, off_t off);
ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t off);

ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t off)
{
	unsigned n = atomic_fetch_add(&calls, 1);

	if (reads == INTERRUPTED && n % 3 == 1) {
		errno = EINTR;
		return -1;
	}
	if (reads == REFUSED && n == 5) {
		errno = EIO;
		return -1;
	}
	if (reads == SHORT && len > 9000)
		len = 5000 + n % 4000;
	return __real_pread64(fd, buf, len, off);
}

static int setup(void **state)
{
	uint64_t seed = 11;
	void *p;
	int fd;

	(void)state;
	test_use_standin();
	bytes = malloc(FILE_LEN);
	back = malloc(FILE_LEN + 2 * GUARD);
	for (size_t i = 0; i < FILE_LEN; i++)
		bytes[i] = (unsigned char)test_random(&seed);
	test_file_name(name, sizeof(name), "penstock-past");
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || write(fd, bytes, FILE_LEN) != (ssize_t)FILE_LEN || fsync(fd))
		return -1;
	close(fd);
	held = test_hold(name, FILE_LEN);
	if (penstock_device_open("host", NULL, &host) < 0 || penstock_open(name, NULL, &st) ||
	    penstock_device_open("cuda:0", NULL, &gpu) < 0 ||
	    penstock_alloc(gpu, FILE_LEN + 2 * GUARD, &p))
		return -1;
	mem = p;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	penstock_free(gpu, mem);
	penstock_close(st);
	penstock_device_close(gpu);
	penstock_device_close(host);
	free(bytes);
	free(back);
	test_release(held);
	return unlink(name);
}

/* Reads a range of the cached file and compares its bytes. Returns how many times the CPU copied
 * each byte. */
static uint64_t read_and_count_copies(enum penstock_effort effort, uint64_t off, uint64_t len,
				      uint64_t into, struct penstock_report *report)
{
	struct penstock_seg seg = {.dev = gpu, .off = off, .row_len = len};
	struct penstock_req req;
	uint64_t want = off + len < FILE_LEN ? len : FILE_LEN - off;

	memset(back, 0xa5, FILE_LEN + 2 * GUARD);
	test_copy(gpu, mem, host, back, FILE_LEN + 2 * GUARD);
	seg.buf = mem + GUARD + into;
	req = test_request(st, &seg, 1, PENSTOCK_READ);
	req.path = "bounce";
	req.effort = effort;
	*report = (struct penstock_report)PENSTOCK_REPORT_INIT;
	atomic_store(&calls, 0);
	assert_int_equal(penstock_transfer(&req, report), want);
	test_copy(host, back, gpu, mem, FILE_LEN + 2 * GUARD);
	assert_memory_equal(back + GUARD + into, bytes + off, want);
	for (uint64_t i = 0; i < GUARD + into; i++)
		assert_int_equal(back[i], 0xa5);
	for (uint64_t i = 0; i < GUARD; i++)
		assert_int_equal(back[GUARD + into + want + i], 0xa5);
	assert_int_equal(report->dram_laid, want);
	assert_int_equal(report->cpu_copied % want, 0);
	return report->cpu_copied / want;
}

/* Skips the case unless the kernel reports to the library which bytes of the file are cached. */
static void require_known_residency(void)
{
	enum penstock_why why;
	int fd;

#if !defined(__x86_64__)
	test_skip("there are no stores past the cache here");
#endif
	/* The kernel may have dropped pages of the file since the last case. */
	fd = open(name, O_RDONLY);
	assert_int_equal(pread(fd, back, FILE_LEN, 0), FILE_LEN);
	close(fd);
	if (st->ops->residency(st, 0, FILE_LEN, &why) != PST_WARM)
		test_skip("this kernel does not say what is cached");
}

static void only_medium_fast_requests_use_it(void **state)
{
	struct penstock_report report;

	(void)state;
	require_known_residency();
	assert_int_equal(read_and_count_copies(PENSTOCK_FAST, 0, 4 * MIB, 0, &report), 2);
	assert_int_equal(read_and_count_copies(PENSTOCK_FAST, 0, 2 * MIB, 0, &report), 2);
	assert_int_equal(read_and_count_copies(PENSTOCK_FAST, 4097, 16 * MIB, 0, &report), 2);
	/* In these three reads, the CPU copies each byte only once. The caller's thread carries the
	 * first read itself. The second read is too long for the double copy through the L2 cache,
	 * and the third read does not have effort FAST. */
	assert_int_equal(read_and_count_copies(PENSTOCK_FAST, 0, MIB, 0, &report), 1);
	assert_int_equal(read_and_count_copies(PENSTOCK_FAST, 0, FILE_LEN, 0, &report), 1);
	assert_int_equal(read_and_count_copies(PENSTOCK_THRIFTY, 0, 4 * MIB, 0, &report), 1);
}

static void bytes_at_any_offset_and_length(void **state)
{
	static const uint64_t lengths[] = {2 * MIB, 2 * MIB + 1, 4 * MIB - 1, 5 * MIB + 12345};
	struct penstock_report report;

	(void)state;
	for (uint64_t k = 0; k < 24; k++)
		read_and_count_copies(PENSTOCK_FAST, k * 524287 % (8 * MIB), lengths[k % 4], k % 17,
				      &report);
	/* This read goes beyond the end of the file. */
	read_and_count_copies(PENSTOCK_FAST, FILE_LEN - 3 * MIB, 5 * MIB, 3, &report);
}

static void short_and_interrupted_reads(void **state)
{
	struct penstock_report report;

	(void)state;
	require_known_residency();
	for (reads = SHORT; reads <= INTERRUPTED; reads++)
		assert_int_equal(read_and_count_copies(PENSTOCK_FAST, 333, 3 * MIB + 5, 1, &report),
				 2);
	reads = PLAIN;
}

/* If the request may use no path but bounce, a failed system call fails the request. The message
 * names the file. */
static void failed_read_fails_the_request(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = 4 * MIB};
	struct penstock_req req;
	struct penstock_report report = PENSTOCK_REPORT_INIT;

	(void)state;
	req = test_request(st, &seg, 1, PENSTOCK_READ);
	req.effort = PENSTOCK_FAST;
	req.path = "bounce";
	reads = REFUSED;
	atomic_store(&calls, 0);
	assert_int_equal(penstock_transfer(&req, &report), -EIO);
	assert_non_null(strstr(penstock_errmsg(), name + strlen(name) - 4));
	reads = PLAIN;
	assert_true(read_and_count_copies(PENSTOCK_FAST, 0, 4 * MIB, 0, &report) <= 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_medium_fast_requests_use_it),
		cmocka_unit_test(bytes_at_any_offset_and_length),
		cmocka_unit_test(short_and_interrupted_reads),
		cmocka_unit_test(failed_read_fails_the_request),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
