/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered buffers: what is accepted, the code for each thing that is not, and
 * how addresses inside, across and outside of registrations are understood.
 */
#include "shim_test.h"

#include <pthread.h>

#define LEN (1u << 20)

static int fd;
static void *fh;

static int setup(void **state)
{
	(void)state;
	if (!cu_load())
		return -1;
	fd = st_make("buffer", LEN, O_RDONLY);
	fh = st_register(fd, NULL);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	cuFileHandleDeregister(fh);
	close(fd);
	unlink(st_path);
	return 0;
}

static void wrong_ones(void **state)
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

static void inside_and_outside(void **state)
{
	char *dev = cu_alloc(LEN);

	(void)state;
	assert_ok(cuFileBufRegister(dev + 8192, 65536, 0));
	/* The base and an offset, an interior pointer, and both. */
	assert_int_equal(cuFileRead(fh, dev + 8192, 1000, 5, 4096), 1000);
	st_check(dev + 8192 + 4096, 5, 1000);
	assert_int_equal(cuFileRead(fh, dev + 8192 + 777, 1000, 9, 0), 1000);
	st_check(dev + 8192 + 777, 9, 1000);
	assert_int_equal(cuFileRead(fh, dev + 8192 + 777, 65536 - 1000, 11, 223), 65536 - 1000);
	st_check(dev + 8192 + 1000, 11, 65536 - 1000);
	/* One byte too far. */
	assert_int_equal(cuFileRead(fh, dev + 8192, 65537, 0, 0), -CUF_INVALID_MAPPING_RANGE);
	assert_int_equal(cuFileRead(fh, dev + 8192, 2, 0, 65535), -CUF_INVALID_MAPPING_RANGE);
	assert_int_equal(cuFileRead(fh, dev + 8192, 2, 0, 70000), -CUF_INVALID_MAPPING_RANGE);
	/* Beside it the memory is unregistered, which is as good. */
	assert_int_equal(cuFileRead(fh, dev, 8192, 3, 0), 8192);
	st_check(dev, 3, 8192);
	assert_int_equal(cuFileRead(fh, dev, 1, 0, (off_t)64 << 20), -CUF_CUDA_POINTER_RANGE_ERROR);
	assert_ok(cuFileBufDeregister(dev + 8192));
	assert_int_equal(cuFileRead(fh, dev + 8192, 65537, 0, 0), 65537);
	cu_free(dev);
}

/* Registrations that meet are one range to a transfer, those that overlap too. */
static void neighbours(void **state)
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

/* What an offset that comes late leads to in a stream: the same, and what lies beyond is
 * nobody's to touch. */
static ssize_t read_late(struct pst_cu_stream *stream, void *base, size_t len, off_t base_off)
{
	ssize_t bytes = -7;
	off_t zero = 0;

	assert_ok(cuFileReadAsync(fh, base, &len, &zero, &base_off, &bytes, stream));
	assert_cu(cu.cuStreamSynchronize(stream));
	return bytes;
}

static void late_offsets(void **state)
{
	enum { OWN = 65536 };
	char *dev = cu_alloc(OWN), *other = cu_alloc(OWN), *low = dev < other ? dev : other;
	char *high = dev < other ? other : dev, kept[100];
	struct pst_cu_stream *stream;

	(void)state;
	assert_cu(cu.cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0));
	assert_cu(cu.cuMemsetD8Async((uintptr_t)high, 0x77, OWN, stream));
	/* Not registered: up to the allocation's end. */
	assert_int_equal(read_late(stream, low, 1000, OWN - 1000), 1000);
	st_check(low + OWN - 1000, 0, 1000);
	assert_true(read_late(stream, low, 1000, OWN - 999) < 0);
	assert_true(read_late(stream, low, 1000, high - low) < 0);
	assert_true(read_late(stream, high, 1000, low - high) < 0);
	/* Registered: up to the end of that, and of what meets it. */
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

/* One range of addresses, put together from pieces, as allocators do. */
static void pieces(void **state)
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
	/* To the driver the range is all that was reserved; the hole in it is its to refuse. */
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

/* More than the list first has room for, in no order, against a plain model. */
static void many(void **state)
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

/* Threads that read through a registration while others come and go around it. */
struct reader {
	pthread_t thread;
	char *dev;
	_Atomic bool *stop;
	unsigned long wrong;
};

static void *read_on(void *arg)
{
	struct reader *r = arg;

	assert_cu(cu.cuCtxSetCurrent(cu_ctx));
	while (!atomic_load(r->stop))
		if (cuFileRead(fh, r->dev, 512, 0, 0) != 512 ||
		    cuFileRead(fh, r->dev, 513, 0, 0) != -CUF_INVALID_MAPPING_RANGE)
			r->wrong++;
	return NULL;
}

static void while_others_change(void **state)
{
	enum { READERS = 3, STEPS = 3000 };
	char *dev = cu_alloc(LEN);
	struct reader readers[READERS];
	_Atomic bool stop = false;

	(void)state;
	for (int i = 0; i < READERS; i++) {
		readers[i] = (struct reader){.dev = dev + 100000 * (i + 1), .stop = &stop};
		assert_ok(cuFileBufRegister(readers[i].dev, 512, 0));
		assert_int_equal(pthread_create(&readers[i].thread, NULL, read_on, &readers[i]), 0);
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
		cmocka_unit_test(wrong_ones),
		cmocka_unit_test(inside_and_outside),
		cmocka_unit_test(neighbours),
		cmocka_unit_test(late_offsets),
		cmocka_unit_test(pieces),
		cmocka_unit_test(many),
		cmocka_unit_test(while_others_change),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
