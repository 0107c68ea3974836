/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests statistics: each counter, the levels, starting and stopping the counters, and the layout of
 * the statistics in each cuFile version. cuFileGetStatsL1, L2 and L3 must write no byte beyond this
 * layout. Also tests cuFileGetBARSizeInKB.
 */
#include "shim_test.h"

#include <pthread.h>

#define LEN ((size_t)1 << 20)

static char *dev;
static int fd;
static void *fh;

/* The statistics of level 3 in the layout of cuFile 1.19. */
struct l3_1_19 {
	struct cuf_stats_l1 l1;
	struct cuf_stats_v vectors;
	struct cuf_stats_hist hist;
	struct cuf_stats_gpus gpus;
};

static int setup(void **state)
{
	(void)state;
	return st_setup("stats", LEN, O_RDWR, &fd, &fh, &dev);
}

static int teardown(void **state)
{
	(void)state;
	st_drop(fh, fd);
	return 0;
}

static struct st_l3 stats_get(void)
{
	struct st_l3 s;

	memset(&s, 0xee, sizeof(s));
	assert_ok(cuFileGetStatsL3(&s));
	return s;
}

static void levels(void **state)
{
	struct st_l3 s;
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
	/* Nothing is counted before cuFileStatsStart. */
	assert_int_equal(cuFileRead(fh, dev, 100, 0, 0), 100);
	s = stats_get();
	assert_int_equal(s.l1.read_ops.ok, 0);
}

static void counters(void **state)
{
	struct st_l3 s;
	int more, gpus;
	void *again;

	(void)state;
	assert_cu(cu.cuDeviceGetCount(&gpus));
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
	s = stats_get();
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
	/* The histogram has a bin for reads of up to 4 KiB, one for up to 8 KiB, one for up to 16
	 * KiB, and so on. */
	assert_int_equal(s.hist.read_size_kb[0], 1);
	assert_int_equal(s.hist.read_size_kb[4], 2);
	assert_int_equal(s.hist.write_size_kb[1], 1);
	assert_int_equal(s.gpus.num_gpus, gpus);
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
	s = stats_get();
	assert_int_equal(s.gpus.gpu[0].n_mmap_free, 1);
	assert_int_equal(s.gpus.gpu[0].reg_bytes, 0);
	assert_int_equal(s.l1.buf_deregister_ops.ok, 1);
	/* After cuFileStatsStop the counters do not change any more, but can still be read. */
	assert_ok(cuFileStatsStop());
	assert_int_equal(cuFileRead(fh, dev, 65536, 0, 0), 65536);
	s = stats_get();
	assert_int_equal(s.l1.read_ops.ok, 3);
	assert_ok(cuFileStatsStart());
	assert_ok(cuFileStatsReset());
	s = stats_get();
	assert_int_equal(s.l1.read_ops.ok, 0);
	assert_int_equal(s.gpus.gpu[0].read_bytes, 0);
}

static void batches(void **state)
{
	struct cuf_io_params params[4];
	struct cuf_io_event events[4];
	unsigned nr = 4;
	struct st_l3 s;
	void *batch;

	(void)state;
	assert_ok(cuFileStatsReset());
	for (unsigned i = 0; i < 4; i++)
		params[i] =
			st_op(fh, i == 3 ? CUF_WRITE : CUF_READ, dev + i * 8192, 5000, 10000, 0, i);
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
	s = stats_get();
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

/* A batch operation that the library refuses counts as enqueued, and as processed with an error. */
static void refused_in_a_batch(void **state)
{
	int ro = open(st_path, O_RDONLY);
	void *readonly = st_register(ro, NULL), *batch;
	struct cuf_io_params param = st_op(readonly, CUF_WRITE, dev, 4096, 0, 0, 0);
	struct cuf_io_event event;
	unsigned nr = 1;
	struct st_l3 s;

	(void)state;
	assert_ok(cuFileStatsReset());
	assert_ok(cuFileBatchIOSetUp(&batch, 1));
	assert_ok(cuFileBatchIOSubmit(batch, 1, &param, 0));
	assert_ok(cuFileBatchIOGetStatus(batch, 1, &nr, &event, NULL));
	assert_int_equal(event.status, CUF_FAILED);
	s = stats_get();
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

/* Waits until `reads` stream-ordered reads are counted. The drop-in counts a completed read only
 * when cuFileGetStatsL3 is called. The time from the completion to that call does not count as
 * latency. */
static struct st_l3 wait_counted(uint64_t reads)
{
	struct st_l3 s = stats_get();

	for (int i = 0; i < 10000 && s.l1.read_ops.ok < reads; i++) {
		usleep(1000);
		s = stats_get();
	}
	assert_int_equal(s.l1.read_ops.ok, reads);
	return s;
}

static void stream_reads(void **state)
{
	size_t len = 4096;
	off_t zero = 0, odd = 4097;
	ssize_t bytes;
	uint64_t before, took;
	struct st_l3 s;

	(void)state;
	assert_ok(cuFileStatsReset());
	before = now_us();
	assert_ok(cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes, (void *)1));
	assert_cu(cu.cuStreamSynchronize((void *)1));
	took = now_us() - before;
	usleep((useconds_t)took + 10000);
	s = wait_counted(1);
	assert_int_equal(s.l1.read_bytes, 4096);
	/* A thread of the library may notice the completion a little after cuStreamSynchronize. */
	assert_true(s.l1.read_lat_sum_us <= took + 5000);
	assert_true(s.gpus.gpu[0].read_duration_us <= took + 5000);
	assert_int_equal(s.gpus.gpu[0].n_unaligned_reads, 0);
	assert_ok(cuFileReadAsync(fh, dev, &len, &odd, &zero, &bytes, (void *)1));
	assert_cu(cu.cuStreamSynchronize((void *)1));
	s = wait_counted(2);
	assert_int_equal(s.gpus.gpu[0].n_unaligned_reads, 1);
	assert_int_equal(s.gpus.gpu[0].read_bytes, 8192);
}

/* Latencies are counted for every kind of transfer. Rates are averages over the time during
 * which statistics are collected, so they do not change after cuFileStatsStop. */
static void latencies_and_rates(void **state)
{
	struct cuf_io_params param = st_op(fh, CUF_READ, dev, LEN, 0, 0, 0);
	struct cuf_io_event event;
	uint64_t begin, elapsed;
	struct st_l3 s, later;
	unsigned nr;
	void *batch;

	(void)state;
	assert_ok(cuFileBatchIOSetUp(&batch, 1));
	assert_ok(cuFileStatsReset());
	begin = now_us();
	do {
		assert_int_equal(cuFileRead(fh, dev, LEN, 0, 0), LEN);
		assert_int_equal(cuFileWrite(fh, dev, LEN, 0, 0), LEN);
		assert_ok(cuFileBatchIOSubmit(batch, 1, &param, 0));
		nr = 1;
		assert_ok(cuFileBatchIOGetStatus(batch, 1, &nr, &event, NULL));
		s = stats_get();
		/* subtracts 2 us, because each of the two times may be rounded by 1 us */
		elapsed = now_us() - begin - 2;
	} while (elapsed < 20000000 &&
		 (elapsed < 10000 || !s.gpus.gpu[0].read_utilization ||
		  !s.gpus.gpu[0].write_utilization || !s.l1.batch_submit_lat_sum_us));
	assert_ok(cuFileStatsStop());
	s = stats_get();
	assert_true(s.l1.read_lat_sum_us > 0 && s.l1.write_lat_sum_us > 0);
	assert_true(s.l1.batch_submit_lat_sum_us > 0 && s.l1.batch_completion_lat_sum_us > 0);
	/* The GPU took part in every read and write. So read_duration_us is at least the sum of all
	 * read latencies, and write_duration_us at least that of all write latencies. */
	assert_true(s.gpus.gpu[0].read_duration_us >= s.l1.read_lat_sum_us);
	assert_true(s.gpus.gpu[0].write_duration_us >= s.l1.write_lat_sum_us);
	assert_in_range(s.gpus.gpu[0].read_utilization, 1, 100);
	assert_in_range(s.gpus.gpu[0].write_utilization, 1, 100);
	/* The rates are averages over a time at least as long as `elapsed`. */
	assert_in_range(s.l1.read_bw_bytes_per_sec, 1,
			(uint64_t)((double)s.l1.read_bytes * 1e6 / (double)elapsed) + 1);
	assert_in_range(s.l1.write_ops_per_sec, 0, s.l1.write_ops.ok * 1000000 / elapsed + 1);
	assert_int_equal(s.l1.read_lat_avg_us, s.l1.read_lat_sum_us / s.l1.read_ops.ok);
	usleep(2000);
	later = stats_get();
	assert_memory_equal(&later, &s, sizeof(s));
	/* If a buffer was registered while statistics were off, its deregistration does not
	 * reduce reg_bytes. */
	assert_ok(cuFileBufRegister(dev, 4096, 0));
	assert_ok(cuFileStatsStart());
	assert_ok(cuFileStatsReset());
	assert_ok(cuFileBufDeregister(dev));
	s = stats_get();
	assert_int_equal(s.gpus.gpu[0].reg_bytes, 0);
	assert_int_equal(s.gpus.gpu[0].n_mmap_free, 1);
	cuFileBatchIODestroy(batch);
}

static void *read_loop(void *arg)
{
	if (cu.cuCtxSetCurrent(cu_ctx) == PST_CU_OK)
		for (int i = 0; i < 500; i++)
			if (cuFileRead(fh, dev, 512, i, (intptr_t)arg * 4096) != 512)
				return (void *)1;
	return NULL;
}

static void several_threads(void **state)
{
	pthread_t threads[4];
	struct st_l3 s;

	(void)state;
	assert_ok(cuFileStatsReset());
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, read_loop, (void *)(intptr_t)i),
				 0);
	for (int i = 0; i < 4; i++) {
		void *wrong;

		s = stats_get();
		pthread_join(threads[i], &wrong);
		assert_null(wrong);
	}
	s = stats_get();
	assert_int_equal(s.l1.read_ops.ok, 2000);
	assert_int_equal(s.gpus.gpu[0].n_total_reads, 2000);
}

/* Counts the lines of a file that contain `text`. */
static int lines_with(const char *name, const char *text)
{
	char line[1024];
	FILE *f = fopen(name, "re");
	int count = 0;

	while (f && fgets(line, sizeof(line), f))
		count += strstr(line, text) != NULL;
	if (f)
		fclose(f);
	return count;
}

/* Checks how many bytes the statistics of levels 1, 2 and 3 have if PENSTOCK_CUFILE_VERSION selects
 * the cuFile version `version`. `vectors` is true if this version also counts vector operations.
 * Returns 0, or the number of the check that failed. Runs in a child process, because the drop-in
 * reads PENSTOCK_CUFILE_VERSION only once. */
static int child_layouts(int version, bool vectors)
{
	union {
		struct st_l3 old;
		struct l3_1_19 new;
		unsigned char bytes[sizeof(struct l3_1_19) + 64];
	} s;
	static const size_t ends[2][3] = {
		{sizeof(struct cuf_stats_l1), offsetof(struct st_l3, gpus), sizeof(struct st_l3)},
		{offsetof(struct l3_1_19, hist), offsetof(struct l3_1_19, gpus),
		 sizeof(struct l3_1_19)},
	};
	struct cuf_error (*getters[])(void *) = {cuFileGetStatsL1, cuFileGetStatsL2,
						 cuFileGetStatsL3};
	char host[100];
	struct cuf_iovec iov = {host, sizeof(host)}, none = {NULL, 1};
	char log[PATH_MAX + 8];
	int seen = 0, code;
	void *own;

	snprintf(log, sizeof(log), "%s.log", st_path);
	unlink(log);
	setenv("CUFILE_LOGFILE_PATH", log, 1);
	if (cuFileGetVersion(&seen).err || seen != version)
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
	/* The log says once that the statistics are longer than those of version 1.18, and that
	 * older programs have no memory for the additional bytes. */
	code = lines_with(log, "112 bytes longer than those of version 1.18") == vectors ? 0 : 20;
	unlink(log);
	return code;
}

static void layouts(void **state)
{
	static const struct {
		const char *text;
		int version;
		bool vectors;
	} rows[] = {{"", 1150, false},	   {"1.15", 1150, false}, {"1.18", 1180, false},
		    {"1.19", 1190, true},  {"1.20", 1200, true},  {"2.0", 1150, false},
		    {"1.19x", 1150, false}};

	(void)state;
	fd = st_make("layouts", LEN, O_RDWR);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		pid_t pid = fork();

		if (!pid) {
			setenv("PENSTOCK_CUFILE_VERSION", rows[i].text, 1);
			_exit(child_layouts(rows[i].version, rows[i].vectors));
		}
		assert_int_equal(st_wait(pid), 0);
	}
	close(fd);
	unlink(st_path);
}

static void bar_size(void **state)
{
	size_t kb = 7;
	void *fn;
	int code;

	(void)state;
	assert_code(cuFileGetBARSizeInKB(0, NULL), CUF_INVALID_VALUE);
	assert_code(cuFileGetBARSizeInKB(-1, &kb), CUF_INVALID_VALUE);
	assert_code(cuFileGetBARSizeInKB(15, &kb), CUF_INVALID_VALUE);
	code = cuFileGetBARSizeInKB(0, &kb).err;
	/* The machine may have no device at the PCI address of the simulated GPU. The call then
	 * fails. */
	if (cu_standin("pst_standin_why", &fn))
		assert_true(code == CUF_INTERNAL_ERROR || (!code && kb > 0));
	else
		assert_true(!code && kb >= 1024);
}

static void driver_closed(void **state)
{
	static char host[100];
	struct st_l3 s;
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
	/* The last close has cleared the counters and removed the registrations. */
	assert_ok(cuFileGetStatsL3(&s));
	assert_int_equal(s.l1.read_ops.ok + s.l1.read_bytes, 0);
	assert_int_equal(s.gpus.gpu[0].reg_bytes, 0);
	assert_int_equal(s.l1.hdl_register_ops.ok, 1);
}

int main(void)
{
	const struct CMUnitTest forking[] = {
		/* Runs before the cases that start threads, because a forked child does not have
		 * the parent's threads. */
		cmocka_unit_test(layouts),
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(levels),	   cmocka_unit_test(counters),
		cmocka_unit_test(batches),	   cmocka_unit_test(refused_in_a_batch),
		cmocka_unit_test(stream_reads),	   cmocka_unit_test(latencies_and_rates),
		cmocka_unit_test(several_threads), cmocka_unit_test(bar_size),
		cmocka_unit_test(driver_closed),
	};

	if (cmocka_run_group_tests(forking, NULL, NULL))
		return 1;
	return cmocka_run_group_tests(tests, setup, teardown);
}
