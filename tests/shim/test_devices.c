/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two GPUs: memory of each is found by its address, vectors and batches may mix them,
 * statistics count each for itself, and a stream of the other GPU is refused.
 */
#include "shim_test.h"

#define LEN 65536

static struct pst_cu_ctx *second;
static char *near, *far;
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
		return 0; /* a machine with one */
	assert_cu(cu.cuDevicePrimaryCtxRetain(&second, 1));
	near = alloc_in(cu_ctx);
	far = alloc_in(second);
	fd = st_make("devices", LEN, O_RDWR);
	fh = st_register(fd, NULL);
	return 0;
}

static void need_two(void)
{
	if (!second)
		test_skip("this machine has one GPU");
}

static void check_far(const char *at, uint64_t off, size_t len)
{
	struct pst_cu_ctx *old;

	assert_cu(cu.cuCtxPushCurrent(second));
	st_check(at, off, len);
	assert_cu(cu.cuCtxPopCurrent(&old));
}

static void each_its_own(void **state)
{
	struct cuf_iovec iov[3] = {{near, 3000}, {far, 5000}, {near + 8192, 1000}};
	struct cuf_io_params params[2];
	struct cuf_io_event events[2];
	unsigned nr = 2;
	void *batch;

	(void)state;
	need_two();
	assert_int_equal(cuFileRead(fh, near, 10000, 1, 0), 10000);
	assert_int_equal(cuFileRead(fh, far, 10000, 2, 0), 10000);
	st_check(near, 1, 10000);
	check_far(far, 2, 10000);
	assert_ok(cuFileBufRegister(far, LEN, 0));
	assert_int_equal(cuFileRead(fh, far + 100, 10000, 3, 50), 10000);
	check_far(far + 150, 3, 10000);
	assert_ok(cuFileBufDeregister(far));
	assert_int_equal(cuFileReadv(fh, iov, 3, 77, 0), 9000);
	st_check(near, 77, 3000);
	check_far(far, 3077, 5000);
	st_check(near + 8192, 8077, 1000);
	for (unsigned i = 0; i < 2; i++) {
		params[i] = (struct cuf_io_params){.mode = CUF_BATCH, .fh = fh};
		params[i].u.batch.base = i ? far : near;
		params[i].u.batch.file_offset = 5 + (off_t)i;
		params[i].u.batch.size = 20000;
	}
	assert_ok(cuFileBatchIOSetUp(&batch, 2));
	assert_ok(cuFileBatchIOSubmit(batch, 2, params, 0));
	assert_ok(cuFileBatchIOGetStatus(batch, 2, &nr, events, NULL));
	assert_int_equal(nr, 2);
	st_check(near, 5, 20000);
	check_far(far, 6, 20000);
	cuFileBatchIODestroy(batch);
	assert_int_equal(cuFileWrite(fh, far, 20000, 6, 0), 20000);
}

static void streams(void **state)
{
	struct pst_cu_stream *stream;
	struct pst_cu_ctx *old;
	size_t len = 4000;
	off_t zero = 0;
	ssize_t bytes = -7;

	(void)state;
	need_two();
	assert_cu(cu.cuCtxPushCurrent(second));
	assert_cu(cu.cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0));
	assert_cu(cu.cuCtxPopCurrent(&old));
	assert_code(cuFileReadAsync(fh, near, &len, &zero, &zero, &bytes, stream),
		    CUF_INVALID_VALUE);
	assert_int_equal(bytes, -7);
	assert_ok(cuFileReadAsync(fh, far, &len, &zero, &zero, &bytes, stream));
	assert_cu(cu.cuStreamSynchronize(stream));
	assert_int_equal(bytes, 4000);
	check_far(far, 0, 4000);
	assert_cu(cu.cuStreamDestroy(stream));
}

static void counted(void **state)
{
	struct cuf_iovec iov[3] = {{near, 3000}, {far, 5000}, {near + 8192, 1000}};
	struct {
		struct cuf_stats_l1 l1;
		struct cuf_stats_hist hist;
		struct cuf_stats_gpus gpus;
	} s;

	(void)state;
	need_two();
	assert_ok(cuFileSetStatsLevel(3));
	assert_ok(cuFileStatsStart());
	assert_ok(cuFileStatsReset());
	assert_int_equal(cuFileRead(fh, near, 1000, 0, 0), 1000);
	assert_int_equal(cuFileRead(fh, far, 2000, 0, 0), 2000);
	assert_int_equal(cuFileRead(fh, far, 2000, 0, 0), 2000);
	assert_ok(cuFileGetStatsL3(&s));
	assert_true(s.gpus.num_gpus >= 2);
	assert_int_equal(s.gpus.gpu[0].n_total_reads, 1);
	assert_int_equal(s.gpus.gpu[0].read_bytes, 1000);
	assert_int_equal(s.gpus.gpu[1].n_total_reads, 2);
	assert_int_equal(s.gpus.gpu[1].read_bytes, 4000);
	/* Pieces on both: an operation of each, and bytes where they went, up to the end. */
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
		cmocka_unit_test(each_its_own),
		cmocka_unit_test(streams),
		cmocka_unit_test(counted),
	};
	int ret = cmocka_run_group_tests(tests, setup, NULL);

	if (fd)
		unlink(st_path);
	return ret;
}
