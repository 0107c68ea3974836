/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests copies of the stand-in CUDA driver: all bytes arrive, and a copy that exceeds the
 * allocation of its source or destination is refused. Every case also passes on the real driver
 * (with PENSTOCK_STANDIN=0).
 */
#include "../standin/check.h"

static void copies_arrive(void **state)
{
	pst_cu_ptr a = alloc_dev(MIB), b = alloc_dev(MIB);
	unsigned char *host = alloc_host(3 * MIB);

	(void)state;
	for (size_t i = 0; i < MIB; i++)
		host[i] = (unsigned char)(i * 7 + i / 251);
	memset(host + MIB, 0, 2 * MIB);
	assert_int_equal(cu->cuMemcpyHtoDAsync(a, host, MIB, stream), PST_CU_OK);
	assert_int_equal(cu->cuMemcpyDtoDAsync(b, a, MIB, stream), PST_CU_OK);
	assert_int_equal(cu->cuMemcpyDtoHAsync(host + MIB, b, MIB, stream), PST_CU_OK);
	assert_int_equal(cu->cuMemcpyAsync((uintptr_t)(host + 2 * MIB), b + 1, MIB - 1, stream), 0);
	stream_sync(stream);
	assert_memory_equal(host, host + MIB, MIB);
	assert_memory_equal(host + 1, host + 2 * MIB, MIB - 1);
	assert_int_equal(cu->cuMemcpyPeerAsync(a, ctx, b, ctx, MIB, stream), PST_CU_OK);
	assert_int_equal(cu->cuMemsetD8Async(a + 10, 0x3c, 20, stream), PST_CU_OK);
	assert_int_equal(byte_at(a + 9), host[9]);
	assert_int_equal(byte_at(a + 10), 0x3c);
	assert_int_equal(byte_at(a + 30), host[30]);
	cu->cuMemFree(a);
	cu->cuMemFree(b);
	cu->cuMemFreeHost(host);
}

static void copies_stay_inside(void **state)
{
	pst_cu_ptr dev = alloc_dev(1000), gone = alloc_dev(4 * MIB);
	char *host = alloc_host(2 * MIB), *pageable = pages_map(64 * KIB, PROT_READ | PROT_WRITE);
	const enum pst_cu_result bad = PST_CU_INVALID_VALUE;

	(void)state;
	cu->cuMemFree(gone);
	assert_int_equal(cu->cuMemcpyHtoDAsync(dev, host, 1000, stream), PST_CU_OK);
	assert_int_equal(cu->cuMemcpyHtoDAsync(dev, host, 1001, stream), bad);
	assert_int_equal(cu->cuMemcpyHtoDAsync(dev + 1, host, 1000, stream), bad);
	assert_int_equal(cu->cuMemcpyDtoHAsync(host, dev, 1001, stream), bad);
	assert_int_equal(cu->cuMemcpyHtoDAsync(gone, host, 16, stream), bad);
	assert_int_equal(cu->cuMemcpyDtoHAsync(host, gone, 16, stream), bad);
	assert_int_equal(cu->cuMemcpyHtoDAsync(0, host, 16, stream), bad);
	assert_int_equal(cu->cuMemcpyHtoDAsync(dev, NULL, 16, stream), bad);
	assert_int_equal(cu->cuMemcpyHtoDAsync(0, NULL, 0, stream), PST_CU_OK);
	assert_int_equal(cu->cuMemcpyHtoDAsync((uintptr_t)pageable, host, 16, stream), bad);
	assert_int_equal(cu->cuMemcpyDtoHAsync(host, (uintptr_t)pageable, 16, stream), bad);
	assert_int_equal(cu->cuMemcpyDtoDAsync(dev, (uintptr_t)pageable, 16, stream), bad);
	assert_int_equal(cu->cuMemsetD8Async(dev + 990, 0, 11, stream), bad);
	assert_int_equal(cu->cuMemsetD8Async((uintptr_t)pageable, 0, 11, stream), bad);
	/* A copy may not span two adjacent registrations. */
	assert_int_equal(cu->cuMemHostRegister(pageable, 4096, 0), PST_CU_OK);
	assert_int_equal(cu->cuMemcpyHtoDAsync(dev, pageable + 3600, 600, stream), bad);
	assert_int_equal(cu->cuMemHostRegister(pageable + 4096, 4096, 0), PST_CU_OK);
	assert_int_equal(cu->cuMemcpyHtoDAsync(dev, pageable + 3600, 600, stream), bad);
	assert_int_equal(cu->cuMemHostUnregister(pageable), PST_CU_OK);
	assert_int_equal(cu->cuMemHostUnregister(pageable + 4096), PST_CU_OK);
	cu->cuMemFree(dev);
	cu->cuMemFreeHost(host);
	munmap(pageable, 64 * KIB);
}

static void pitched_copies(void **state)
{
	pst_cu_ptr dev = alloc_dev(4096);
	unsigned char *host = alloc_host(4096);
	struct pst_cu_memcpy2d c = {.src_type = PST_CU_MEMTYPE_HOST,
				    .src_host = host,
				    .src_pitch = 16,
				    .src_x_bytes = 2,
				    .src_y = 1,
				    .dst_type = PST_CU_MEMTYPE_DEVICE,
				    .dst_dev = dev,
				    .dst_pitch = 100,
				    .dst_x_bytes = 3,
				    .width_bytes = 10,
				    .height = 5};

	(void)state;
	for (int i = 0; i < 4096; i++)
		host[i] = (unsigned char)i;
	assert_int_equal(cu->cuMemsetD8Async(dev, 0xee, 4096, stream), PST_CU_OK);
	assert_int_equal(cu->cuMemcpy2DAsync(&c, stream), PST_CU_OK);
	assert_int_equal(cu->cuMemcpyDtoHAsync(host + 2048, dev, 2048, stream), PST_CU_OK);
	stream_sync(stream);
	for (size_t row = 0; row < 5; row++) {
		assert_int_equal(host[2048 + row * 100 + 2], 0xee);
		assert_memory_equal(host + 2048 + row * 100 + 3, host + (row + 1) * 16 + 2, 10);
		assert_int_equal(host[2048 + row * 100 + 13], 0xee);
	}
	c.width_bytes = 15; /* A row would exceed the pitch: 2 + 15 > 16. */
	assert_int_equal(cu->cuMemcpy2DAsync(&c, stream), PST_CU_INVALID_VALUE);
	c.width_bytes = 10;
	c.dst_pitch = 1100; /* The fifth row would be beyond the end of the allocation. */
	assert_int_equal(cu->cuMemcpy2DAsync(&c, stream), PST_CU_INVALID_VALUE);
	c.height = 0;
	assert_int_equal(cu->cuMemcpy2DAsync(&c, stream), PST_CU_OK);
	c.height = 1;
	c.src_type = 0;
	assert_int_equal(cu->cuMemcpy2DAsync(&c, stream), PST_CU_INVALID_VALUE);
	stream_sync(stream);
	cu->cuMemFree(dev);
	cu->cuMemFreeHost(host);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, check_setup, check_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(copies_arrive),
		CASE(copies_stay_inside),
		CASE(pitched_copies),
	};

	check_choose();
	return cmocka_run_group_tests_name("standin_copy", tests, check_open, check_close);
}
