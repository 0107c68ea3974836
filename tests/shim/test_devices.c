/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the drop-in (Penstock's libcufile) with two GPUs. The drop-in finds the GPU of a buffer by
 * the buffer's address. Vectors and batches may contain buffers of both GPUs. Statistics count each
 * GPU separately. A stream of the wrong GPU is refused.
 */
#include "shim_test.h"

#define LEN 65536

static struct pst_cu_ctx *second;
static char *first_mem, *second_mem;
static int fd;
static void *fh;

static char *alloc_in(struct pst_cu_ctx *ctx)
{
	struct pst_cu_ctx *old;
	void *mem;

	assert_cu(cu.cuCtxPushCurrent(ctx));
	mem = cu_alloc(LEN);
	assert_cu(cu.cuCtxPopCurrent(&old));
	return mem;
}

static int setup(void **state)
{
	int count = 0;

	(void)state;
	if (!cu_load() || cu.cuDeviceGetCount(&count) != PST_CU_OK)
		return -1;
	if (count < 2)
		return 0; /* the machine has one GPU, so the cases below are skipped */
	assert_cu(cu.cuDevicePrimaryCtxRetain(&second, 1));
	first_mem = alloc_in(cu_ctx);
	second_mem = alloc_in(second);
	fd = st_make("devices", LEN, O_RDWR);
	fh = st_register(fd, NULL);
	return 0;
}

static void need_two(void)
{
	if (!second)
		test_skip("this machine has one GPU");
}

static void check_second(const char *at, uint64_t off, size_t len)
{
	struct pst_cu_ctx *old;

	assert_cu(cu.cuCtxPushCurrent(second));
	st_check(at, off, len);
	assert_cu(cu.cuCtxPopCurrent(&old));
}

static void both_gpus(void **state)
{
	struct cuf_iovec iov[3] = {{first_mem, 3000}, {second_mem, 5000}, {first_mem + 8192, 1000}};
	struct cuf_io_params params[2];
	struct cuf_io_event events[2];
	unsigned nr = 2;
	void *batch;

	(void)state;
	need_two();
	assert_int_equal(cuFileRead(fh, first_mem, 10000, 1, 0), 10000);
	assert_int_equal(cuFileRead(fh, second_mem, 10000, 2, 0), 10000);
	st_check(first_mem, 1, 10000);
	check_second(second_mem, 2, 10000);
	assert_ok(cuFileBufRegister(second_mem, LEN, 0));
	assert_int_equal(cuFileRead(fh, second_mem + 100, 10000, 3, 50), 10000);
	check_second(second_mem + 150, 3, 10000);
	assert_ok(cuFileBufDeregister(second_mem));
	assert_int_equal(cuFileReadv(fh, iov, 3, 77, 0), 9000);
	st_check(first_mem, 77, 3000);
	check_second(second_mem, 3077, 5000);
	st_check(first_mem + 8192, 8077, 1000);
	for (unsigned i = 0; i < 2; i++)
		params[i] =
			st_op(fh, CUF_READ, i ? second_mem : first_mem, 20000, 5 + (off_t)i, 0, 0);
	assert_ok(cuFileBatchIOSetUp(&batch, 2));
	assert_ok(cuFileBatchIOSubmit(batch, 2, params, 0));
	assert_ok(cuFileBatchIOGetStatus(batch, 2, &nr, events, NULL));
	assert_int_equal(nr, 2);
	st_check(first_mem, 5, 20000);
	check_second(second_mem, 6, 20000);
	cuFileBatchIODestroy(batch);
	assert_int_equal(cuFileWrite(fh, second_mem, 20000, 6, 0), 20000);
}

static void stream_of_the_other_gpu(void **state)
{
	struct pst_cu_stream *stream;
	struct pst_cu_ctx *old;
	size_t len = 4000;
	off_t zero = 0;
	ssize_t bytes = -7;

	(void)state;
	need_two();
	assert_cu(cu.cuCtxPushCurrent(second));
	stream = cu_stream();
	assert_cu(cu.cuCtxPopCurrent(&old));
	assert_code(cuFileReadAsync(fh, first_mem, &len, &zero, &zero, &bytes, stream),
		    CUF_INVALID_VALUE);
	assert_int_equal(bytes, -7);
	assert_ok(cuFileReadAsync(fh, second_mem, &len, &zero, &zero, &bytes, stream));
	assert_cu(cu.cuStreamSynchronize(stream));
	assert_int_equal(bytes, 4000);
	check_second(second_mem, 0, 4000);
	assert_cu(cu.cuStreamDestroy(stream));
}

static void statistics(void **state)
{
	struct cuf_iovec iov[3] = {{first_mem, 3000}, {second_mem, 5000}, {first_mem + 8192, 1000}};
	struct st_l3 s;

	(void)state;
	need_two();
	assert_ok(cuFileSetStatsLevel(3));
	assert_ok(cuFileStatsStart());
	assert_ok(cuFileStatsReset());
	assert_int_equal(cuFileRead(fh, first_mem, 1000, 0, 0), 1000);
	assert_int_equal(cuFileRead(fh, second_mem, 2000, 0, 0), 2000);
	assert_int_equal(cuFileRead(fh, second_mem, 2000, 0, 0), 2000);
	assert_ok(cuFileGetStatsL3(&s));
	assert_true(s.gpus.num_gpus >= 2);
	assert_int_equal(s.gpus.gpu[0].n_total_reads, 1);
	assert_int_equal(s.gpus.gpu[0].read_bytes, 1000);
	assert_int_equal(s.gpus.gpu[1].n_total_reads, 2);
	assert_int_equal(s.gpus.gpu[1].read_bytes, 4000);
	/* A vector with buffers of GPUs 0 and 1 counts as one operation of each GPU, and the bytes
	 * count for the GPU that received them. The first vector is longer than the rest of the
	 * file, so fewer bytes are read. */
	assert_ok(cuFileStatsReset());
	assert_int_equal(cuFileReadv(fh, iov, 3, LEN - 7500, 0), 7500);
	assert_int_equal(cuFileReadv(fh, iov, 3, 0, 0), 9000);
	assert_ok(cuFileGetStatsL3(&s));
	assert_int_equal(s.gpus.gpu[0].n_total_reads, 2);
	assert_int_equal(s.gpus.gpu[0].read_bytes, 3000 + 4000);
	assert_int_equal(s.gpus.gpu[1].n_total_reads, 2);
	assert_int_equal(s.gpus.gpu[1].n_unaligned_reads, 2);
	assert_int_equal(s.gpus.gpu[1].read_bytes, 4500 + 5000);
	assert_memory_not_equal(s.gpus.gpu[0].uuid, s.gpus.gpu[1].uuid, 16);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(both_gpus),
		cmocka_unit_test(stream_of_the_other_gpu),
		cmocka_unit_test(statistics),
	};
	int ret = cmocka_run_group_tests(tests, setup, NULL);

	if (fd)
		unlink(st_path);
	return ret;
}
