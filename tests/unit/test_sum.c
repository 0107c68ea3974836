/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests penstock_sum through the public API: results, errors, and that a failed call writes no
 * checksum. test_crc32c.c tests the arithmetic.
 */
#include "crc32c.h"
#include "test.h"

#include <errno.h>
#include <sys/mman.h>

#include "penstock.h"

#define LEN 70000u
#define PAGE 4096u

static struct penstock_device *host;
static unsigned char *bytes;

static struct penstock_sum_args range(struct penstock_device *dev, const void *ptr, uint64_t len)
{
	return (struct penstock_sum_args){.size = sizeof(struct penstock_sum_args),
					  .dev = dev,
					  .ptr = ptr,
					  .len = len,
					  .crc32c = 0xeeeeeeee};
}

/* Expects that the call fails with `code`, and writes no checksum. */
static void expect_failure(struct penstock_sum_args *sums, unsigned count, int code)
{
	assert_int_equal(penstock_sum(sums, count), code);
	assert_string_not_equal(penstock_errmsg(), "");
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(sums[i].crc32c, 0xeeeeeeee);
}

static void host_ranges(void **state)
{
	struct penstock_sum_args sums[4];

	(void)state;
	sums[0] = range(host, bytes, LEN);
	sums[1] = range(NULL, bytes + 3, 1);
	sums[2] = range(NULL, NULL, 0);
	sums[3] = range(host, bytes + 5, LEN - 5);
	assert_int_equal(penstock_sum(sums, 4), 0);
	assert_int_equal(sums[0].crc32c, test_crc32c(bytes, LEN));
	assert_int_equal(sums[1].crc32c, test_crc32c(bytes + 3, 1));
	assert_int_equal(sums[2].crc32c, 0);
	assert_int_equal(sums[3].crc32c, test_crc32c(bytes + 5, LEN - 5));
	assert_int_equal(penstock_sum(NULL, 0), 0);
}

/* The library reads a long range in pieces. */
static void a_range_of_several_pieces(void **state)
{
	const size_t len = ((size_t)64 << 20) + 12345;
	struct penstock_sum_args sums[3];
	unsigned char *mem = mmap(NULL, len, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	(void)state;
	assert_ptr_not_equal(mem, MAP_FAILED);
	for (size_t i = 0; i < len; i += 997)
		mem[i] = (unsigned char)(i >> 4);
	sums[0] = range(host, mem, len);
	sums[1] = range(host, mem, 54321);
	sums[2] = range(host, mem + 54321, len - 54321);
	assert_int_equal(penstock_sum(sums, 3), 0);
	assert_int_equal(sums[0].crc32c,
			 penstock_crc32c_join(sums[1].crc32c, sums[2].crc32c, sums[2].len));
	munmap(mem, len);
}

static void wrong_ranges(void **state)
{
	struct penstock_sum_args sums[2];
	unsigned char *mem =
		mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)state;
	assert_ptr_not_equal(mem, MAP_FAILED);
	munmap(mem + PAGE, PAGE);
	sums[0] = range(host, bytes, LEN);
	sums[1] = range(host, mem, PAGE + 1);
	expect_failure(sums, 2, -EFAULT);
	sums[1].dev = NULL;
	expect_failure(sums, 2, -EFAULT);
	sums[1].len = PAGE;
	sums[0].ptr = NULL;
	expect_failure(sums, 2, -EINVAL);
	sums[0].ptr = bytes;
	sums[1].len = UINT64_MAX - (uintptr_t)mem + 1;
	expect_failure(sums, 2, -EOVERFLOW);
	munmap(mem, PAGE);
}

static void sizes_of_the_struct(void **state)
{
	struct {
		struct penstock_sum_args s;
		unsigned char more[8];
	} large[2] = {{range(host, bytes, 9), {0}}, {range(host, bytes, 10), {0}}};
	struct penstock_sum_args small = range(host, bytes, 9);

	(void)state;
	small.size = offsetof(struct penstock_sum_args, crc32c);
	expect_failure(&small, 1, -EINVAL);
	small.size = 0;
	expect_failure(&small, 1, -EINVAL);
	large[0].s.size = large[1].s.size = sizeof(large[0]);
	assert_int_equal(penstock_sum(&large[0].s, 2), 0);
	assert_int_equal(large[1].s.crc32c, test_crc32c(bytes, 10));
	large[1].more[7] = 1;
	large[0].s.crc32c = 0xeeeeeeee;
	assert_int_equal(penstock_sum(&large[0].s, 2), -E2BIG);
	assert_int_equal(large[0].s.crc32c, 0xeeeeeeee);
}

static void no_open_device(void **state)
{
	struct penstock_sum_args sum = range(NULL, bytes, 9);

	(void)state;
	penstock_device_close(host);
	expect_failure(&sum, 1, -ENODEV);
	assert_int_equal(penstock_device_open("host", NULL, &host), 0);
}

static int group_setup(void **state)
{
	uint64_t seed = test_seed(20);

	(void)state;
	bytes = malloc(LEN);
	for (size_t i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)(test_random(&seed) >> 32);
	return penstock_device_open("host", NULL, &host);
}

static int group_teardown(void **state)
{
	(void)state;
	penstock_device_close(host);
	free(bytes);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(host_ranges),	  cmocka_unit_test(a_range_of_several_pieces),
		cmocka_unit_test(wrong_ranges),	  cmocka_unit_test(sizes_of_the_struct),
		cmocka_unit_test(no_open_device),
	};

	return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
