/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests registered buffers: which memory can be registered, the cuFile code of each refusal, and
 * transfers inside, across and outside of registered ranges.
 */
#include "shim_test.h"

#include <pthread.h>

#define LEN (1u << 20)

static int fd;
static void *fh;

static int setup(void **state)
{
	(void)state;
	return st_setup("buffer", LEN, O_RDONLY, &fd, &fh, NULL);
}

static int teardown(void **state)
{
	(void)state;
	st_drop(fh, fd);
	return 0;
}

static void refusals(void **state)
{
	void *dev = cu_alloc(LEN);
	char host[64];

	(void)state;
	assert_code(cuFileBufRegister(NULL, 10, 0), CUF_INVALID_VALUE);
	assert_code(cuFileBufRegister(dev, 0, 0), CUF_INVALID_VALUE);
	assert_code(cuFileBufRegister(dev, LEN, 999), CUF_INVALID_VALUE);
	assert_code(cuFileBufRegister(dev, SIZE_MAX, 0), CUF_INVALID_VALUE);
	assert_code(cuFileBufRegister((void *)-2, 10, 0), CUF_INVALID_VALUE);
	assert_code(cuFileBufRegister(dev, (size_t)64 << 20, 0), CUF_CUDA_POINTER_RANGE_ERROR);
	assert_code(cuFileBufDeregister(NULL), CUF_INVALID_VALUE);
	assert_code(cuFileBufDeregister(dev), CUF_MEMORY_NOT_REGISTERED);
	assert_ok(cuFileBufRegister(dev, LEN, CUF_RDMA_REGISTER | CUF_RDMA_RELAXED_ORDERING));
	assert_code(cuFileBufRegister(dev, LEN, 0), CUF_MEMORY_ALREADY_REGISTERED);
	assert_code(cuFileBufRegister(dev, 4096, 0), CUF_MEMORY_ALREADY_REGISTERED);
	assert_code(cuFileBufDeregister((char *)dev + 4096), CUF_MEMORY_NOT_REGISTERED);
	assert_ok(cuFileBufDeregister(dev));
	assert_code(cuFileBufDeregister(dev), CUF_MEMORY_NOT_REGISTERED);
	assert_ok(cuFileBufRegister(host, sizeof(host), 0));
	assert_ok(cuFileBufDeregister(host));
	cu_free(dev);
}

static void offsets_and_limits(void **state)
{
	char *dev = cu_alloc(LEN);

	(void)state;
	assert_ok(cuFileBufRegister(dev + 8192, 65536, 0));
	/* Reads at an offset from the registered base, at a pointer inside of the range, and at
	 * an offset from such a pointer. */
	assert_int_equal(cuFileRead(fh, dev + 8192, 1000, 5, 4096), 1000);
	st_check(dev + 8192 + 4096, 5, 1000);
	assert_int_equal(cuFileRead(fh, dev + 8192 + 777, 1000, 9, 0), 1000);
	st_check(dev + 8192 + 777, 9, 1000);
	assert_int_equal(cuFileRead(fh, dev + 8192 + 777, 65536 - 1000, 11, 223), 65536 - 1000);
	st_check(dev + 8192 + 1000, 11, 65536 - 1000);
	/* These transfers would end past the end of the registered range. */
	assert_int_equal(cuFileRead(fh, dev + 8192, 65537, 0, 0), -CUF_INVALID_MAPPING_RANGE);
	assert_int_equal(cuFileRead(fh, dev + 8192, 2, 0, 65535), -CUF_INVALID_MAPPING_RANGE);
	assert_int_equal(cuFileRead(fh, dev + 8192, 2, 0, 70000), -CUF_INVALID_MAPPING_RANGE);
	/* Reads into an unregistered part of the same allocation. */
	assert_int_equal(cuFileRead(fh, dev, 8192, 3, 0), 8192);
	st_check(dev, 3, 8192);
	assert_int_equal(cuFileRead(fh, dev, 1, 0, (off_t)64 << 20), -CUF_CUDA_POINTER_RANGE_ERROR);
	assert_ok(cuFileBufDeregister(dev + 8192));
	assert_int_equal(cuFileRead(fh, dev + 8192, 65537, 0, 0), 65537);
	cu_free(dev);
}

/* A transfer may extend over several registered ranges if they are adjacent or overlap. */
static void adjacent_ranges(void **state)
{
	char *dev = cu_alloc(LEN);

	(void)state;
	assert_ok(cuFileBufRegister(dev + 4096, 4096, 0));
	assert_ok(cuFileBufRegister(dev, 4096, 0));
	assert_ok(cuFileBufRegister(dev + 12288, 4096, 0));
	assert_int_equal(cuFileRead(fh, dev, 8192, 0, 0), 8192);
	st_check(dev, 0, 8192);
	assert_int_equal(cuFileRead(fh, dev, 8193, 0, 0), -CUF_INVALID_MAPPING_RANGE);
	assert_ok(cuFileBufRegister(dev + 6000, 8000, 0));
	assert_int_equal(cuFileRead(fh, dev, 16384, 1, 0), 16384);
	st_check(dev, 1, 16384);
	assert_ok(cuFileBufDeregister(dev + 4096));
	assert_int_equal(cuFileRead(fh, dev, 8192, 0, 0), -CUF_INVALID_MAPPING_RANGE);
	assert_ok(cuFileBufDeregister(dev));
	assert_ok(cuFileBufDeregister(dev + 6000));
	assert_ok(cuFileBufDeregister(dev + 12288));
	cu_free(dev);
}

/* Makes a stream-ordered read. Its buffer offset takes effect only when the stream reaches the
 * transfer. */
static ssize_t read_late(struct pst_cu_stream *stream, void *base, size_t len, off_t base_off)
{
	ssize_t bytes = -7;
	off_t zero = 0;

	assert_ok(cuFileReadAsync(fh, base, &len, &zero, &base_off, &bytes, stream));
	assert_cu(cu.cuStreamSynchronize(stream));
	return bytes;
}

/* A buffer offset that takes effect late has the same limits as the offset of a synchronous call.
 * Memory past the limits must not change. */
static void late_offsets(void **state)
{
	enum { OWN = 65536 };
	char *dev = cu_alloc(OWN), *other = cu_alloc(OWN), *low = dev < other ? dev : other;
	char *high = dev < other ? other : dev, kept[100];
	struct pst_cu_stream *stream = cu_stream();

	(void)state;
	assert_cu(cu.cuMemsetD8Async((uintptr_t)high, 0x77, OWN, stream));
	/* A transfer to unregistered memory may reach the end of the allocation. */
	assert_int_equal(read_late(stream, low, 1000, OWN - 1000), 1000);
	st_check(low + OWN - 1000, 0, 1000);
	assert_true(read_late(stream, low, 1000, OWN - 999) < 0);
	assert_true(read_late(stream, low, 1000, high - low) < 0);
	assert_true(read_late(stream, high, 1000, low - high) < 0);
	/* A transfer to a registered range may reach the end of that range, or the end of an
	 * adjacent registered range. */
	assert_ok(cuFileBufRegister(low, 4096, 0));
	assert_ok(cuFileBufRegister(low + 4096, 4096, 0));
	assert_int_equal(read_late(stream, low, 1000, 8192 - 1000), 1000);
	st_check(low + 8192 - 1000, 0, 1000);
	assert_int_equal(read_late(stream, low + 500, 1000, 8192 - 1500), 1000);
	assert_true(read_late(stream, low + 500, 1000, 8192 - 1499) < 0);
	assert_true(read_late(stream, low, 1000, 8192 - 999) < 0);
	assert_true(read_late(stream, low, 1000, 16384) < 0);
	assert_true(read_late(stream, low, 1000, high - low) < 0);
	assert_ok(cuFileBufDeregister(low + 4096));
	assert_true(read_late(stream, low, 1000, 4096) < 0);
	assert_ok(cuFileBufDeregister(low));
	cu_get(kept, high, sizeof(kept));
	for (unsigned i = 0; i < sizeof(kept); i++)
		assert_int_equal(kept[i], 0x77);
	assert_cu(cu.cuStreamDestroy(stream));
	cu_free(dev);
	cu_free(other);
}

/* Makes transfers to an address range that consists of several mapped allocations. Allocators of
 * CUDA frameworks create such ranges. Transfers inside the mapped allocations must succeed, and all
 * other transfers must fail. */
static void mapped_pieces(void **state)
{
	struct pst_cu_alloc_prop prop = {.type = PST_CU_ALLOC_PINNED,
					 .location = {PST_CU_LOCATION_DEVICE, 0}};
	struct pst_cu_access_desc access = {{PST_CU_LOCATION_DEVICE, 0}, PST_CU_ACCESS_READWRITE};
	unsigned long long handle[2];
	size_t piece = 0;
	pst_cu_ptr at;
	char *base;

	(void)state;
	assert_cu(cu.cuMemGetAllocationGranularity(&piece, &prop, PST_CU_GRANULARITY_MIN));
	assert_cu(cu.cuMemAddressReserve(&at, 3 * piece, 0, 0, 0));
	base = (char *)(uintptr_t)at;
	for (unsigned i = 0; i < 2; i++) {
		assert_cu(cu.cuMemCreate(&handle[i], piece, &prop, 0));
		assert_cu(cu.cuMemMap(at + i * piece, piece, 0, handle[i], 0));
	}
	assert_cu(cu.cuMemSetAccess(at, 2 * piece, &access, 1));
	assert_int_equal(cuFileRead(fh, base + piece - 5000, 10000, 3, 0), 10000);
	st_check(base + piece - 5000, 3, 10000);
	assert_int_equal(cuFileRead(fh, base, 1000, 3, (off_t)piece), 1000);
	/* The read would continue into an address range without memory. The drop-in libcufile does
	 * not detect that, because the CUDA driver reports the size of the whole reserved range.
	 * The CUDA driver then refuses the copy. */
	assert_true(cuFileRead(fh, base + 2 * piece - 1000, 1001, 3, 0) < 0);
	assert_int_equal(cuFileRead(fh, base + 2 * piece, 10, 3, 0), -CUF_CUDA_POINTER_INVALID);
	assert_int_equal(cuFileRead(fh, base, 1001, 3, (off_t)piece * 3 - 1000),
			 -CUF_CUDA_POINTER_RANGE_ERROR);
	assert_ok(cuFileBufRegister(base, 2 * piece, 0));
	assert_int_equal(cuFileRead(fh, base, 10000, 3, (off_t)piece - 5000), 10000);
	st_check(base + piece - 5000, 3, 10000);
	assert_int_equal(cuFileRead(fh, base, 10000, 3, (off_t)piece * 2 - 5000),
			 -CUF_INVALID_MAPPING_RANGE);
	assert_ok(cuFileBufDeregister(base));
	assert_code(cuFileBufRegister(base, 4 * piece, 0), CUF_CUDA_POINTER_RANGE_ERROR);
	assert_cu(cu.cuMemUnmap(at, 2 * piece));
	for (unsigned i = 0; i < 2; i++)
		assert_cu(cu.cuMemRelease(handle[i]));
	assert_cu(cu.cuMemAddressFree(at, 3 * piece));
}

/* Registers more ranges than the list can hold at first, in random order. Compares the results with
 * those of a simple model. */
static void many_ranges(void **state)
{
	enum { SLOTS = 256, STEPS = 4000 };
	uint64_t seed = test_seed(1);
	char *dev = cu_alloc(SLOTS * 512);
	bool in[SLOTS] = {false};

	(void)state;
	for (int step = 0; step < STEPS; step++) {
		unsigned i = (unsigned)(test_random(&seed) % SLOTS);
		char *at = dev + i * 512;

		if (in[i])
			assert_ok(cuFileBufDeregister(at));
		else
			assert_ok(cuFileBufRegister(at, 256, 0));
		in[i] = !in[i];
		i = (unsigned)(test_random(&seed) % SLOTS);
		assert_int_equal(cuFileRead(fh, dev + i * 512, 300, 0, 0),
				 in[i] ? -CUF_INVALID_MAPPING_RANGE : 300);
	}
	for (int i = 0; i < SLOTS; i++)
		if (in[i])
			assert_ok(cuFileBufDeregister(dev + i * 512));
	cu_free(dev);
}

/* A thread that reads into its registered range while other ranges are added and removed. */
struct reader {
	pthread_t thread;
	char *dev;
	_Atomic bool *stop;
	unsigned long wrong;
};

static void *read_loop(void *arg)
{
	struct reader *r = arg;

	assert_cu(cu.cuCtxSetCurrent(cu_ctx));
	while (!atomic_load(r->stop))
		if (cuFileRead(fh, r->dev, 512, 0, 0) != 512 ||
		    cuFileRead(fh, r->dev, 513, 0, 0) != -CUF_INVALID_MAPPING_RANGE)
			r->wrong++;
	return NULL;
}

static void reads_during_changes(void **state)
{
	enum { READERS = 3, STEPS = 3000 };
	char *dev = cu_alloc(LEN);
	struct reader readers[READERS];
	_Atomic bool stop = false;

	(void)state;
	for (int i = 0; i < READERS; i++) {
		readers[i] = (struct reader){.dev = dev + 100000 * (i + 1), .stop = &stop};
		assert_ok(cuFileBufRegister(readers[i].dev, 512, 0));
		assert_int_equal(pthread_create(&readers[i].thread, NULL, read_loop, &readers[i]),
				 0);
	}
	for (int i = 0; i < STEPS; i++) {
		char *at = dev + (size_t)(i * 7919) % 90 * 1024;

		assert_ok(cuFileBufRegister(at, 512, 0));
		assert_ok(cuFileBufDeregister(at));
	}
	atomic_store(&stop, true);
	for (int i = 0; i < READERS; i++) {
		pthread_join(readers[i].thread, NULL);
		assert_int_equal(readers[i].wrong, 0);
		assert_ok(cuFileBufDeregister(readers[i].dev));
	}
	cu_free(dev);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refusals),
		cmocka_unit_test(offsets_and_limits),
		cmocka_unit_test(adjacent_ranges),
		cmocka_unit_test(late_offsets),
		cmocka_unit_test(mapped_pieces),
		cmocka_unit_test(many_ranges),
		cmocka_unit_test(reads_during_changes),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
