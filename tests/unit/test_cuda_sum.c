/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests penstock_sum for memory of a GPU. With PENSTOCK_STANDIN=0, it tests the real kernel on a
 * GPU; the ranges are then longer, too. test_crc32c_kernel.c runs the kernel's source on the CPU.
 */
#include "cuda_device.h"

#include <errno.h>

#include "common/crc32c.h"
#include "core/base/device_sync.h"
#include "core/ops.h"
#include "s3/crc.h"

#define LEN (6 * MIB)
#define SHORT_MAX 300u
#define ALIGNS 16u

static struct penstock_device *gpu, *hostdev;
static unsigned char *bytes; /* LEN random bytes, which are also at `mem` */
static char *mem;

static struct penstock_sum_args range(struct penstock_device *of, const void *ptr, uint64_t len)
{
	return (struct penstock_sum_args){.size = sizeof(struct penstock_sum_args),
					  .dev = of,
					  .ptr = ptr,
					  .len = len,
					  .crc32c = 0xeeeeeeee};
}

static uint32_t crc32c(const void *at, size_t len)
{
	return pst_crc32c_finish(pst_crc32c_raw(0, at, len), len);
}

static void sum_all(struct penstock_sum_args *sums, unsigned count)
{
	if (penstock_sum(sums, count))
		fail_msg("%s", penstock_errmsg());
}

static void copy_in(void *dst, const void *src, size_t len)
{
	struct penstock_copy_args copy = {.size = sizeof(copy),
					  .dst_dev = gpu,
					  .dst = dst,
					  .src_dev = hostdev,
					  .src = src,
					  .row_len = len};

	assert_int_equal(penstock_copy(&copy, 1), 0);
}

/* ---- results ---- */

/* Computes the checksums of ranges of every short length and alignment. One call has more ranges
 * than one launch of the kernel can take. */
static void every_length_and_alignment(void **state)
{
	const unsigned count = ALIGNS * (SHORT_MAX + 1);
	struct penstock_sum_args *sums = calloc(count, sizeof(*sums));

	(void)state;
	for (unsigned i = 0; i < count; i++)
		sums[i] = range(gpu, mem + i % ALIGNS, i / ALIGNS);
	sum_all(sums, count);
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(sums[i].crc32c, crc32c(bytes + i % ALIGNS, i / ALIGNS));
	free(sums);
}

static void random_ranges(void **state)
{
	enum { COUNT = 60 };
	struct penstock_sum_args sums[COUNT];
	uint64_t seed = test_seed(22);

	(void)state;
	for (unsigned i = 0; i < COUNT; i++) {
		const uint64_t len = test_random(&seed) % (i % 3 ? 20000 : 400000);

		sums[i] = range(gpu, mem + test_random(&seed) % (LEN - len), len);
	}
	sums[0] = range(NULL, mem, LEN);
	sums[1] = range(NULL, mem + 1, LEN - 1);
	sums[2] = range(gpu, mem + 3, LEN - 5);
	sum_all(sums, COUNT);
	for (unsigned i = 0; i < COUNT; i++)
		assert_int_equal(sums[i].crc32c,
				 crc32c(bytes + ((const char *)sums[i].ptr - mem), sums[i].len));
}

/* The ranges are so long in total that the library must divide them into longer pieces than
 * usual. */
static void long_pieces(void **state)
{
	struct penstock_sum_args sums[48];

	(void)state;
	for (unsigned i = 0; i < 48; i++)
		sums[i] = range(gpu, mem + i, LEN - 2 * i);
	sum_all(sums, 48);
	for (unsigned i = 0; i < 48; i++)
		assert_int_equal(sums[i].crc32c, crc32c(bytes + i, LEN - 2 * i));
}

static void ranges_of_two_devices(void **state)
{
	struct penstock_sum_args sums[40];

	(void)state;
	for (unsigned i = 0; i < 40; i++) {
		const void *at =
			i % 3 ? (const void *)(mem + i * 100) : (const void *)(bytes + i * 100);

		sums[i] = range(i % 2 ? NULL : i % 3 ? gpu : hostdev, at, 1000 + i);
	}
	sums[7] = range(NULL, NULL, 0);
	sum_all(sums, 40);
	for (unsigned i = 0; i < 40; i++)
		assert_int_equal(sums[i].crc32c, i == 7 ? 0 : crc32c(bytes + i * 100, 1000 + i));
}

/* Compares the checksum of a long range with the join of the checksums of its parts. The range
 * has more than 4 GiB; with the stand-in, which is slow, it has 11 MiB. */
static void a_long_range(void **state)
{
	const uint64_t len = (is_standin() ? 8 * MIB : (uint64_t)4 << 30) + 3 * MIB + 123;
	struct penstock_sum_args whole;
	uint32_t want = 0;
	void *big;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, len, &big), 0);
	for (uint64_t at = 0; at < len; at += LEN) {
		const size_t n = len - at < LEN ? len - at : LEN;

		copy_in((char *)big + at, bytes, n);
		want = penstock_crc32c_join(want, crc32c(bytes, n), n);
	}
	whole = range(gpu, big, len);
	sum_all(&whole, 1);
	assert_int_equal(whole.crc32c, want);
	assert_int_equal(penstock_free(gpu, big), 0);
}

/* ---- CRC-64/NVME ---- */

static struct pst_sum piece(const char *at, uint64_t len)
{
	return (struct pst_sum){.ptr = at, .len = len, .raw = 0xeeeeeeee};
}

static void crc64_check(struct pst_sum *sums, unsigned count)
{
	struct pst_err why;

	if (gpu->ops->sum(gpu, PST_SUM_CRC64NVME, sums, count, false, &why))
		fail_msg("%s", why.text);
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(sums[i].raw,
				 pst_crc_raw(PST_CRC64NVME, 0,
					     bytes + ((const char *)sums[i].ptr - mem),
					     sums[i].len));
}

static void crc64_of_every_length_and_alignment(void **state)
{
	const unsigned count = ALIGNS * SHORT_MAX;
	struct pst_sum *sums = calloc(count, sizeof(*sums));

	(void)state;
	for (unsigned i = 0; i < count; i++)
		sums[i] = piece(mem + i % ALIGNS, i / ALIGNS + 1);
	crc64_check(sums, count);
	free(sums);
}

static void crc64_of_random_ranges(void **state)
{
	enum { COUNT = 60 };
	struct pst_sum sums[COUNT];
	uint64_t seed = test_seed(24);

	(void)state;
	for (unsigned i = 0; i < COUNT; i++) {
		const uint64_t len = 1 + test_random(&seed) % (i % 3 ? 20000 : 400000);

		sums[i] = piece(mem + test_random(&seed) % (LEN - len), len);
	}
	sums[0] = piece(mem, LEN);
	sums[1] = piece(mem + 1, LEN - 1);
	sums[2] = piece(mem + 3, LEN - 5);
	crc64_check(sums, COUNT);
}

/* While a stream waits for a request, a call with `unless_waiting` gets -EAGAIN instead of a
 * checksum. */
static void waiting_streams_refuse_checksums(void **state)
{
	struct pst_sum sum = piece(mem, 1000);
	struct pst_err why;

	(void)state;
	for (unsigned kind = 0; kind < PST_SUM_KINDS; kind++) {
		/* a call without ranges only creates the kind's objects */
		assert_int_equal(gpu->ops->sum(gpu, kind, NULL, 0, false, &why), 0);
		pst_device_stream_enter(gpu);
		assert_int_equal(gpu->ops->sum(gpu, kind, &sum, 1, true, &why), -EAGAIN);
		assert_int_equal(why.why, PENSTOCK_WHY_STREAM_ORDER);
		assert_int_equal(sum.raw, 0xeeeeeeee);
		assert_int_equal(gpu->ops->sum(gpu, kind, &sum, 1, false, &why), 0);
		assert_int_not_equal(sum.raw, 0xeeeeeeee);
		pst_device_stream_leave(gpu);
		sum.raw = 0;
		assert_int_equal(gpu->ops->sum(gpu, kind, &sum, 1, true, &why), 0);
		assert_int_equal(sum.raw, kind == PST_SUM_CRC32C
						  ? pst_crc32c_raw(0, bytes, 1000)
						  : pst_crc_raw(PST_CRC64NVME, 0, bytes, 1000));
		sum.raw = 0xeeeeeeee;
	}
}

/* The kernel of one kind cannot be loaded. The other kind still works. */
static void one_kernel_fails(void **state)
{
	struct penstock_sum_args other;
	struct pst_sum sum = piece(mem, 1000);
	struct pst_err why;

	(void)state;
	standin_only();
	penstock_free(gpu, mem);
	penstock_device_close(gpu);
	assert_int_equal(penstock_device_open("cuda:0", NULL, &gpu), 0);
	assert_int_equal(penstock_alloc(gpu, LEN, (void **)&mem), 0);
	copy_in(mem, bytes, LEN);
	other = range(gpu, mem, 1000);
	sum_all(&other, 1);
	sum = piece(mem, 1000);
	standin_fail("cuModuleGetFunction:1:500");
	assert_true(gpu->ops->sum(gpu, PST_SUM_CRC64NVME, &sum, 1, false, &why) < 0);
	standin_fail(NULL);
	sum_all(&other, 1);
	assert_int_equal(other.crc32c, crc32c(bytes, 1000));
	crc64_check(&sum, 1);
}

/* ---- errors ---- */

static void expect_failure(struct penstock_sum_args *sums, unsigned count, int code)
{
	struct penstock_sum_args good = range(gpu, mem, 1000);

	assert_int_equal(penstock_sum(sums, count), code);
	assert_string_not_equal(penstock_errmsg(), "");
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(sums[i].crc32c, 0xeeeeeeee);
	/* The failed calls must not have broken the CUDA context, so the next call succeeds. */
	sum_all(&good, 1);
	assert_int_equal(good.crc32c, crc32c(bytes, 1000));
}

static void memory_of_no_gpu(void **state)
{
	struct penstock_sum_args sums[2] = {range(gpu, mem, 1000), range(gpu, bytes, 1000)};
	void *freed;

	(void)state;
	expect_failure(sums, 2, -EINVAL);
	sums[1] = range(gpu, mem, (uint64_t)1 << 40);
	expect_failure(sums, 2, -EINVAL);
	assert_int_equal(penstock_alloc(gpu, 64 * MIB, &freed), 0);
	assert_int_equal(penstock_free(gpu, freed), 0);
	sums[1] = range(gpu, freed, 1000);
	expect_failure(sums, 2, -EINVAL);
	sums[1] = range(hostdev, mem, 1000);
	expect_failure(sums, 2, -EFAULT);
}

/* penstock_sum reports each failed driver call, and succeeds when it is called again. */
static void failed_calls(void **state)
{
	static const char *const first[] = {
		"cuModuleGetFunction:1:999", "cuMemHostAlloc:1:2", "cuStreamCreateWithPriority:1:2",
		"cuEventCreate:1:2",	     "cuLaunchKernel:1:2", "cuStreamSynchronize:1:999",
		"cuLaunchKernel:2:2",	     "cuEventRecord:1:999"};
	struct penstock_sum_args sum = range(gpu, mem, 1000);
	unsigned taken = 0;

	(void)state;
	standin_only();
	for (unsigned i = 0; i < sizeof(first) / sizeof(first[0]); i++) {
		/* Opens the device again, so that it has loaded no kernel. */
		penstock_free(gpu, mem);
		penstock_device_close(gpu);
		assert_int_equal(penstock_device_open("cuda:0", NULL, &gpu), 0);
		assert_int_equal(penstock_alloc(gpu, LEN, (void **)&mem), 0);
		copy_in(mem, bytes, LEN);
		sum = range(gpu, mem, 1000);
		standin_fail(first[i]);
		if (penstock_sum(&sum, 1) >= 0) {
			/* A thread of the library, which has just started, may have made the call
			 * that fails. The case is then repeated. */
			standin_fail(NULL);
			print_message("# the failure %s was not reported\n", first[i]);
			if (++taken > 4)
				fail_msg("%u failures were not reported", taken);
			i--;
			continue;
		}
		assert_int_equal(sum.crc32c, 0xeeeeeeee);
		standin_fail(NULL);
		sum_all(&sum, 1);
		assert_int_equal(sum.crc32c, crc32c(bytes, 1000));
	}
}

/* The driver refuses the machine code for this GPU. The library must load the PTX instead. */
static void an_unknown_kind_of_gpu(void **state)
{
	struct penstock_sum_args sum;

	(void)state;
	standin_only();
	penstock_free(gpu, mem);
	penstock_device_close(gpu);
	assert_int_equal(penstock_device_open("cuda:0", NULL, &gpu), 0);
	assert_int_equal(penstock_alloc(gpu, LEN, (void **)&mem), 0);
	copy_in(mem, bytes, LEN);
	standin_fail("cuModuleLoadData:1:209");
	sum = range(gpu, mem, 1000);
	sum_all(&sum, 1);
	standin_fail(NULL);
	assert_int_equal(sum.crc32c, crc32c(bytes, 1000));
}

/* ---- threads ---- */

static void *thread_sum(void *arg)
{
	for (unsigned i = 0; i < 20; i++) {
		const size_t at = (uintptr_t)arg * 1000 + i;
		struct penstock_sum_args sum = range(gpu, mem + at, 5000);

		if (penstock_sum(&sum, 1) || sum.crc32c != crc32c(bytes + at, 5000))
			return "wrong";
	}
	return NULL;
}

static void several_threads(void **state)
{
	pthread_t threads[4];
	void *wrong;

	(void)state;
	for (uintptr_t i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, thread_sum, (void *)i), 0);
	for (unsigned i = 0; i < 4; i++) {
		pthread_join(threads[i], &wrong);
		assert_null(wrong);
	}
}

static int group_open(void **state)
{
	uint64_t seed = test_seed(23);

	(void)state;
	check_choose();
	bytes = malloc(LEN);
	for (size_t i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)(test_random(&seed) >> 32);
	if (check_open(state) || penstock_device_open("host", NULL, &hostdev) ||
	    penstock_device_open("cuda:0", NULL, &gpu) || penstock_alloc(gpu, LEN, (void **)&mem))
		return -1;
	copy_in(mem, bytes, LEN);
	return 0;
}

static int group_close(void **state)
{
	penstock_free(gpu, mem);
	penstock_device_close(gpu);
	penstock_device_close(hostdev);
	free(bytes);
	return check_close(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_length_and_alignment),
		cmocka_unit_test(random_ranges),
		cmocka_unit_test(long_pieces),
		cmocka_unit_test(ranges_of_two_devices),
		cmocka_unit_test(a_long_range),
		cmocka_unit_test(crc64_of_every_length_and_alignment),
		cmocka_unit_test(crc64_of_random_ranges),
		cmocka_unit_test(waiting_streams_refuse_checksums),
		cmocka_unit_test(one_kernel_fails),
		cmocka_unit_test(memory_of_no_gpu),
		cmocka_unit_test(failed_calls),
		cmocka_unit_test(an_unknown_kind_of_gpu),
		cmocka_unit_test(several_threads),
	};

	return cmocka_run_group_tests(tests, group_open, group_close);
}
