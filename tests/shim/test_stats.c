/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics: each counter against what was done, levels, start and stop, the
 * layout of the version that is told (a byte behind it stays what it was), and the
 * size of a GPU's window.
 */
#include "shim_test.h"

#include <pthread.h>
#include <sys/wait.h>

#define LEN ((size_t)1 << 20)

static char *dev;
static int fd;
static void *fh;

struct l3 {
	struct cuf_stats_l1 l1;
	struct cuf_stats_hist hist;
	struct cuf_stats_gpus gpus;
};
struct l3_of_119 {
	struct cuf_stats_l1 l1;
	struct cuf_stats_v vectors;
	struct cuf_stats_hist hist;
	struct cuf_stats_gpus gpus;
};

static int setup(void **state)
{
	(void)state;
	if (!cu_load())
		return -1;
	dev = cu_alloc(LEN);
	fd = st_make("stats", LEN, O_RDWR);
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

static struct l3 get(void)
{
	struct l3 s;

	memset(&s, 0xee, sizeof(s));
	assert_ok(cuFileGetStatsL3(&s));
	return s;
}

static void levels(void **state)
{
	struct l3 s;
	int level = -1;

	(void)state;
	assert_ok(cuFileGetStatsLevel(&level));
	assert_int_equal(level, 0);
	assert_code(cuFileGetStatsLevel(NULL), CUF_INVALID_VALUE);
	assert_code(cuFileSetStatsLevel(-1), CUF_INVALID_VALUE);
	assert_code(cuFileSetStatsLevel(4), CUF_INVALID_VALUE);
	assert_code(cuFileGetStatsL1(&s), CUF_INVALID_VALUE);
	for (int i = 0; i <= 3; i++) {
		assert_ok(cuFileSetStatsLevel(i));
		assert_ok(cuFileGetStatsLevel(&level));
		assert_int_equal(level, i);
		assert_code(cuFileGetStatsL1(&s), i >= 1 ? CUF_SUCCESS : CUF_INVALID_VALUE);
		assert_code(cuFileGetStatsL2(&s), i >= 2 ? CUF_SUCCESS : CUF_INVALID_VALUE);
		assert_code(cuFileGetStatsL3(&s), i >= 3 ? CUF_SUCCESS : CUF_INVALID_VALUE);
	}
	assert_code(cuFileGetStatsL1(NULL), CUF_INVALID_VALUE);
	/* Nothing is counted before it is started. */
	assert_int_equal(cuFileRead(fh, dev, 100, 0, 0), 100);
	s = get();
	assert_int_equal(s.l1.read_ops.ok, 0);
}

static void counted(void **state)
{
	struct l3 s;
	int more;
	void *again;

	(void)state;
	assert_ok(cuFileStatsStart());
	assert_ok(cuFileStatsReset());
	assert_int_equal(cuFileRead(fh, dev, 65536, 0, 0), 65536);
	assert_int_equal(cuFileRead(fh, dev, 1000, 7, 0), 1000);
	assert_int_equal(cuFileRead(fh, dev, 65536, (off_t)LEN - 100, 0), 100);
	assert_int_equal(cuFileWrite(fh, dev, 8192, 0, 0), 8192);
	assert_int_equal(cuFileRead(NULL, dev, 10, 0, 0), -CUF_HANDLE_NOT_REGISTERED);
	assert_int_equal(cuFileWrite(fh, NULL, 10, 0, 0), -CUF_INVALID_VALUE);
	more = dup(fd);
	again = st_register(more, NULL);
	cuFileHandleDeregister(again);
	cuFileHandleDeregister(again);
	close(more);
	assert_ok(cuFileBufRegister(dev, 4096, 0));
	assert_code(cuFileBufRegister(dev, 4096, 0), CUF_MEMORY_ALREADY_REGISTERED);
	s = get();
	assert_int_equal(s.l1.read_ops.ok, 3);
	assert_int_equal(s.l1.read_ops.err, 1);
	assert_int_equal(s.l1.write_ops.ok, 1);
	assert_int_equal(s.l1.write_ops.err, 1);
	assert_int_equal(s.l1.read_bytes, 66636);
	assert_int_equal(s.l1.write_bytes, 8192);
	assert_int_equal(s.l1.hdl_register_ops.ok, 1);
	assert_int_equal(s.l1.hdl_deregister_ops.ok, 1);
	assert_int_equal(s.l1.hdl_deregister_ops.err, 1);
	assert_int_equal(s.l1.buf_register_ops.ok, 1);
	assert_int_equal(s.l1.buf_register_ops.err, 1);
	assert_true(s.l1.read_bw_bytes_per_sec > 0 && s.l1.write_bw_bytes_per_sec > 0);
	assert_true(s.l1.read_lat_sum_us >= s.l1.read_lat_avg_us);
	/* By size: up to 4 KiB, to 8, to 16, ... */
	assert_int_equal(s.hist.read_size_kb[0], 1);
	assert_int_equal(s.hist.read_size_kb[4], 2);
	assert_int_equal(s.hist.write_size_kb[1], 1);
	assert_int_equal(s.gpus.num_gpus, 1);
	assert_int_equal(s.gpus.gpu[0].n_total_reads, 3);
	assert_int_equal(s.gpus.gpu[0].n_posix_reads, 3);
	assert_int_equal(s.gpus.gpu[0].n_p2p_reads, 0);
	assert_int_equal(s.gpus.gpu[0].n_nvfs_reads, 0);
	assert_int_equal(s.gpus.gpu[0].n_unaligned_reads, 2);
	assert_int_equal(s.gpus.gpu[0].read_bytes, 66636);
	assert_int_equal(s.gpus.gpu[0].n_total_writes, 1);
	assert_int_equal(s.gpus.gpu[0].n_unaligned_writes, 0);
	assert_int_equal(s.gpus.gpu[0].writes_bytes, 8192);
	assert_int_equal(s.gpus.gpu[0].n_mmap, 2);
	assert_int_equal(s.gpus.gpu[0].n_mmap_ok, 1);
	assert_int_equal(s.gpus.gpu[0].n_mmap_err, 1);
	assert_int_equal(s.gpus.gpu[0].reg_bytes, 4096);
	assert_ok(cuFileBufDeregister(dev));
	s = get();
	assert_int_equal(s.gpus.gpu[0].n_mmap_free, 1);
	assert_int_equal(s.gpus.gpu[0].reg_bytes, 0);
	assert_int_equal(s.l1.buf_deregister_ops.ok, 1);
	/* Stopped: it stays as it is, and can still be asked. */
	assert_ok(cuFileStatsStop());
	assert_int_equal(cuFileRead(fh, dev, 65536, 0, 0), 65536);
	s = get();
	assert_int_equal(s.l1.read_ops.ok, 3);
	assert_ok(cuFileStatsStart());
	assert_ok(cuFileStatsReset());
	s = get();
	assert_int_equal(s.l1.read_ops.ok, 0);
	assert_int_equal(s.gpus.gpu[0].read_bytes, 0);
}

static void batches(void **state)
{
	struct cuf_io_params params[4];
	struct cuf_io_event events[4];
	unsigned nr = 4;
	struct l3 s;
	void *batch;

	(void)state;
	assert_ok(cuFileStatsReset());
	for (unsigned i = 0; i < 4; i++) {
		params[i] = (struct cuf_io_params){
			.mode = CUF_BATCH, .fh = fh, .opcode = i == 3 ? CUF_WRITE : CUF_READ};
		params[i].u.batch.base = dev + i * 8192;
		params[i].u.batch.size = 5000;
		params[i].u.batch.file_offset = 10000;
	}
	assert_ok(cuFileBatchIOSetUp(&batch, 4));
	assert_ok(cuFileBatchIOSubmit(batch, 3, params, 0));
	assert_code(cuFileBatchIOSubmit(batch, 3, params, 0), CUF_BATCH_FULL);
	nr = 3;
	assert_ok(cuFileBatchIOGetStatus(batch, 3, &nr, events, NULL));
	assert_ok(cuFileBatchIOSubmit(batch, 1, params + 3, 0));
	nr = 4;
	assert_ok(cuFileBatchIOGetStatus(batch, 1, &nr, events, NULL));
	assert_ok(cuFileBatchIOCancel(batch));
	cuFileBatchIODestroy(batch);
	s = get();
	assert_int_equal(s.l1.batch_setup_ops.ok, 1);
	assert_int_equal(s.l1.batch_submit_ops.ok, 2);
	assert_int_equal(s.l1.batch_submit_ops.err, 1);
	assert_int_equal(s.l1.batch_complete_ops.ok, 2);
	assert_int_equal(s.l1.batch_cancel_ops.ok, 1);
	assert_int_equal(s.l1.batch_destroy_ops.ok, 1);
	assert_int_equal(s.l1.batch_enqueued_ops.ok, 4);
	assert_int_equal(s.l1.batch_processed_ops.ok, 4);
	assert_int_equal(s.l1.batch_posix_enqueued_ops.ok, 4);
	assert_int_equal(s.l1.batch_posix_processed_ops.ok, 4);
	assert_int_equal(s.l1.batch_read_bytes, 15000);
	assert_int_equal(s.l1.batch_write_bytes, 5000);
	assert_int_equal(s.l1.last_batch_read_bytes, 0);
	assert_int_equal(s.l1.last_batch_write_bytes, 5000);
	assert_int_equal(s.gpus.gpu[0].n_total_reads, 3);
}

/* What the core does not take is enqueued and processed like the others, with an error. */
static void refused_in_a_batch(void **state)
{
	int ro = open(st_path, O_RDONLY);
	void *readonly = st_register(ro, NULL), *batch;
	struct cuf_io_params param = {.mode = CUF_BATCH, .fh = readonly, .opcode = CUF_WRITE};
	struct cuf_io_event event;
	unsigned nr = 1;
	struct l3 s;

	(void)state;
	assert_ok(cuFileStatsReset());
	param.u.batch.base = dev;
	param.u.batch.size = 4096;
	assert_ok(cuFileBatchIOSetUp(&batch, 1));
	assert_ok(cuFileBatchIOSubmit(batch, 1, &param, 0));
	assert_ok(cuFileBatchIOGetStatus(batch, 1, &nr, &event, NULL));
	assert_int_equal(event.status, CUF_FAILED);
	s = get();
	assert_int_equal(s.l1.batch_enqueued_ops.ok, 1);
	assert_int_equal(s.l1.batch_processed_ops.err, 1);
	cuFileBatchIODestroy(batch);
	cuFileHandleDeregister(readonly);
	close(ro);
}

static uint64_t now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

/* Counted once it has been looked at, which asking does; it took no longer for being
 * looked at late. */
static struct l3 when_counted(uint64_t reads)
{
	struct l3 s = get();

	for (int i = 0; i < 10000 && s.l1.read_ops.ok < reads; i++) {
		usleep(1000);
		s = get();
	}
	assert_int_equal(s.l1.read_ops.ok, reads);
	return s;
}

static void of_a_stream(void **state)
{
	size_t len = 4096;
	off_t zero = 0, odd = 4097;
	ssize_t bytes;
	uint64_t before, took;
	struct l3 s;

	(void)state;
	assert_ok(cuFileStatsReset());
	before = now_us();
	assert_ok(cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes, (void *)1));
	assert_cu(cu.cuStreamSynchronize((void *)1));
	took = now_us() - before;
	usleep((useconds_t)took + 10000);
	s = when_counted(1);
	assert_int_equal(s.l1.read_bytes, 4096);
	assert_true(s.l1.read_lat_sum_us <= took + 1);
	assert_true(s.gpus.gpu[0].read_duration_us <= took + 1);
	assert_int_equal(s.gpus.gpu[0].n_unaligned_reads, 0);
	assert_ok(cuFileReadAsync(fh, dev, &len, &odd, &zero, &bytes, (void *)1));
	assert_cu(cu.cuStreamSynchronize((void *)1));
	s = when_counted(2);
	assert_int_equal(s.gpus.gpu[0].n_unaligned_reads, 1);
	assert_int_equal(s.gpus.gpu[0].read_bytes, 8192);
}

/* Times and what is made of them: none is before something took one, rates are over the
 * time that was collected, and stand still when nothing is. */
static void times(void **state)
{
	struct cuf_io_params param = {.mode = CUF_BATCH, .fh = fh, .opcode = CUF_READ};
	struct cuf_io_event event;
	uint64_t begin, inner;
	struct l3 s, later;
	unsigned nr;
	void *batch;

	(void)state;
	param.u.batch.base = dev;
	param.u.batch.size = LEN;
	assert_ok(cuFileBatchIOSetUp(&batch, 1));
	assert_ok(cuFileStatsReset());
	begin = now_us();
	do {
		assert_int_equal(cuFileRead(fh, dev, LEN, 0, 0), LEN);
		assert_int_equal(cuFileWrite(fh, dev, LEN, 0, 0), LEN);
		assert_ok(cuFileBatchIOSubmit(batch, 1, &param, 0));
		nr = 1;
		assert_ok(cuFileBatchIOGetStatus(batch, 1, &nr, &event, NULL));
		s = get();
		inner = now_us() - begin - 2; /* both may be cut by one */
	} while (inner < 20000000 &&
		 (inner < 10000 || !s.gpus.gpu[0].read_utilization ||
		  !s.gpus.gpu[0].write_utilization || !s.l1.batch_submit_lat_sum_us));
	assert_ok(cuFileStatsStop());
	s = get();
	assert_true(s.l1.read_lat_sum_us > 0 && s.l1.write_lat_sum_us > 0);
	assert_true(s.l1.batch_submit_lat_sum_us > 0 && s.l1.batch_completion_lat_sum_us > 0);
	/* The GPU had its part in all of them. */
	assert_true(s.gpus.gpu[0].read_duration_us >= s.l1.read_lat_sum_us);
	assert_true(s.gpus.gpu[0].write_duration_us >= s.l1.write_lat_sum_us);
	assert_in_range(s.gpus.gpu[0].read_utilization, 1, 100);
	assert_in_range(s.gpus.gpu[0].write_utilization, 1, 100);
	/* What was collected took no less than what is in it. */
	assert_in_range(s.l1.read_bw_bytes_per_sec, 1,
			(uint64_t)((double)s.l1.read_bytes * 1e6 / (double)inner) + 1);
	assert_in_range(s.l1.write_ops_per_sec, 0, s.l1.write_ops.ok * 1000000 / inner + 1);
	assert_int_equal(s.l1.read_lat_avg_us, s.l1.read_lat_sum_us / s.l1.read_ops.ok);
	usleep(2000);
	later = get();
	assert_memory_equal(&later, &s, sizeof(s));
	/* Registered while nothing was collected: not added, so not taken off. */
	assert_ok(cuFileBufRegister(dev, 4096, 0));
	assert_ok(cuFileStatsStart());
	assert_ok(cuFileStatsReset());
	assert_ok(cuFileBufDeregister(dev));
	s = get();
	assert_int_equal(s.gpus.gpu[0].reg_bytes, 0);
	assert_int_equal(s.gpus.gpu[0].n_mmap_free, 1);
	cuFileBatchIODestroy(batch);
}

static void *read_some(void *arg)
{
	if (cu.cuCtxSetCurrent(cu_ctx) == PST_CU_OK)
		for (int i = 0; i < 500; i++)
			if (cuFileRead(fh, dev, 512, i, (intptr_t)arg * 4096) != 512)
				return (void *)1;
	return NULL;
}

static void from_threads(void **state)
{
	pthread_t threads[4];
	struct l3 s;

	(void)state;
	assert_ok(cuFileStatsReset());
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, read_some, (void *)(intptr_t)i),
				 0);
	for (int i = 0; i < 4; i++) {
		void *wrong;

		s = get();
		pthread_join(threads[i], &wrong);
		assert_null(wrong);
	}
	s = get();
	assert_int_equal(s.l1.read_ops.ok, 2000);
	assert_int_equal(s.gpus.gpu[0].n_total_reads, 2000);
}

/* In a child, which sees the version anew. */
static int in_child(const char *version, int told, bool vectors)
{
	union {
		struct l3 old;
		struct l3_of_119 new;
		unsigned char bytes[sizeof(struct l3_of_119) + 64];
	} s;
	static const size_t ends[2][3] = {
		{sizeof(struct cuf_stats_l1), offsetof(struct l3, gpus), sizeof(struct l3)},
		{offsetof(struct l3_of_119, hist), offsetof(struct l3_of_119, gpus),
		 sizeof(struct l3_of_119)},
	};
	struct cuf_error (*getters[])(void *) = {cuFileGetStatsL1, cuFileGetStatsL2,
						 cuFileGetStatsL3};
	char host[100];
	struct cuf_iovec iov = {host, sizeof(host)}, none = {NULL, 1};
	int seen = 0, code;
	void *own;

	(void)version;
	if (cuFileGetVersion(&seen).err || seen != told)
		return 2;
	if (cuFileDriverOpen().err || cuFileSetStatsLevel(3).err || cuFileStatsStart().err ||
	    cuFileStatsReset().err)
		return 3;
	own = st_register(fd, &code);
	if (code || cuFileRead(own, host, 100, 0, 0) != 100 ||
	    cuFileReadv(own, &iov, 1, 0, 0) != 100 ||
	    cuFileReadv(own, &none, 1, 0, 0) != -CUF_INVALID_VALUE ||
	    cuFileReadv(own, NULL, 1, 0, 0) != -CUF_INVALID_VALUE ||
	    cuFileReadv(NULL, &iov, 1, 0, 0) != -CUF_HANDLE_NOT_REGISTERED)
		return 4;
	for (int i = 0; i < 3; i++) {
		memset(&s, 0xee, sizeof(s));
		if (getters[i](&s).err)
			return 5;
		if (s.bytes[ends[vectors][i] - 1] == 0xee || s.bytes[ends[vectors][i]] != 0xee)
			return 6 + i;
		if (s.old.l1.read_ops.ok != 1 || s.old.l1.read_ops.err ||
		    (vectors && s.new.vectors.readv_ops.ok != 1) ||
		    (vectors && s.new.vectors.readv_ops.err != 3))
			return 10 + i;
	}
	return 0;
}

static void layouts(void **state)
{
	static const struct {
		const char *version;
		int told;
		bool vectors;
	} rows[] = {{"", 1150, false},	   {"1.15", 1150, false}, {"1.18", 1180, false},
		    {"1.19", 1190, true},  {"1.20", 1200, true},  {"2.0", 1150, false},
		    {"1.19x", 1150, false}};

	(void)state;
	fd = st_make("layouts", LEN, O_RDWR);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int status;
		pid_t pid = fork();

		assert_true(pid >= 0);
		if (!pid) {
			setenv("PENSTOCK_CUFILE_VERSION", rows[i].version, 1);
			_exit(in_child(rows[i].version, rows[i].told, rows[i].vectors));
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
	close(fd);
	unlink(st_path);
}

static void window(void **state)
{
	size_t kb = 7;
	int code;

	(void)state;
	assert_code(cuFileGetBARSizeInKB(0, NULL), CUF_INVALID_VALUE);
	assert_code(cuFileGetBARSizeInKB(-1, &kb), CUF_INVALID_VALUE);
	assert_code(cuFileGetBARSizeInKB(15, &kb), CUF_INVALID_VALUE);
	code = cuFileGetBARSizeInKB(0, &kb).err;
	if (cu_standin("pst_standin_why"))
		assert_true(code == CUF_INTERNAL_ERROR || (!code && kb > 0)); /* no such card */
	else
		assert_true(!code && kb >= 1024);
}

static void needs_the_driver(void **state)
{
	static char host[100];
	struct l3 s;
	size_t kb;

	(void)state;
	assert_ok(cuFileSetStatsLevel(3));
	assert_ok(cuFileStatsStart());
	assert_ok(cuFileBufRegister(dev, 4096, 0));
	assert_int_equal(cuFileRead(fh, host, sizeof(host), 0, 0), sizeof(host));
	cuFileHandleDeregister(fh);
	while (cuFileUseCount())
		assert_ok(cuFileDriverClose());
	assert_code(cuFileStatsStart(), CUF_DRIVER_NOT_INITIALIZED);
	assert_code(cuFileStatsStop(), CUF_DRIVER_NOT_INITIALIZED);
	assert_code(cuFileStatsReset(), CUF_DRIVER_NOT_INITIALIZED);
	assert_code(cuFileGetStatsL1(&s), CUF_DRIVER_NOT_INITIALIZED);
	assert_code(cuFileGetBARSizeInKB(0, &kb), CUF_DRIVER_NOT_INITIALIZED);
	fh = st_register(fd, NULL);
	/* What was counted ended with it, as what was registered did. */
	assert_ok(cuFileGetStatsL3(&s));
	assert_int_equal(s.l1.read_ops.ok + s.l1.read_bytes, 0);
	assert_int_equal(s.gpus.gpu[0].reg_bytes, 0);
	assert_int_equal(s.l1.hdl_register_ops.ok, 1);
}

int main(void)
{
	const struct CMUnitTest alone[] = {
		cmocka_unit_test(layouts), /* before there are threads that a fork would lose */
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(levels),	    cmocka_unit_test(counted),
		cmocka_unit_test(batches),	    cmocka_unit_test(refused_in_a_batch),
		cmocka_unit_test(of_a_stream),	    cmocka_unit_test(times),
		cmocka_unit_test(from_threads),	    cmocka_unit_test(window),
		cmocka_unit_test(needs_the_driver),
	};

	if (cmocka_run_group_tests(alone, NULL, NULL))
		return 1;
	return cmocka_run_group_tests(tests, setup, teardown);
}
