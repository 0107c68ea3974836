/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests mixed paths: with PENSTOCK_FAST and PENSTOCK_BALANCED, one lane (a worker thread) carries
 * chunks of a long cached read on path "mapped", while other lanes carry other chunks on path
 * "bounce". All bytes must arrive, and the report must show mapped and bounce. A chunk that fails
 * on mapped must be retried on bounce, and the reverse. The test wraps pread and madvise: path
 * "bounce" reads by pread, and path "mapped" populates each window, a mapped range of the file, by
 * madvise. The CUDA device is a simulated one of the stand-in driver, unless PENSTOCK_STANDIN=0.
 */
#include "copy.h"
#include "page_cache.h"
#include "request.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "core/ops.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#define MIB ((uint64_t)1 << 20)
#define FILE_LEN (72 * MIB + 777)
#define GUARD 64
#define LANES 4
#define REQUESTS 3

static struct penstock_device *host, *gpu;
static struct penstock_storage *st;
static unsigned char *bytes, *back;
static char *mem;
static char name[256];
static struct test_held held;

/* True during the read whose calls the test counts and delays. */
static _Atomic bool observed;
/* Each pread waits until path "mapped" has begun this number of windows (mapped ranges of the
 * file). So the read does not end before path "mapped" has carried bytes. */
static _Atomic unsigned windows_min;
static _Atomic unsigned windows, preads;
/* Number of the window (mapped range) that waits for SLOW_READS calls of pread, counted from 1; 0:
 * none. */
static _Atomic unsigned slow_window;
#define SLOW_READS 6
/* Number of copies that were queued with the driver while the registration of window number
 * `slow_window` was held back. */
static _Atomic unsigned long slow_copies;
static unsigned long (*driver_calls)(const char *name);
/* Number of windows (mapped ranges) that path "mapped" can populate, and of pread calls that
 * succeed. All later windows and calls fail. */
static _Atomic unsigned windows_max = UINT32_MAX, preads_max = UINT32_MAX;

ssize_t __real_pread64(int fd, void *buf, size_t len, off_t off);
ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t off);
int __real_madvise(void *addr, size_t len, int advice);
int __wrap_madvise(void *addr, size_t len, int advice);

ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t off)
{
	uint64_t give_up = test_now_ns() + 20000000000u;

	/* Without io_uring, reads from the drive are pread calls, too. They use O_DIRECT, and the
	 * wrapper passes them to the kernel. */
	if (!atomic_load(&observed) || fcntl(fd, F_GETFL) & O_DIRECT)
		return __real_pread64(fd, buf, len, off);
	while (atomic_load(&windows) < atomic_load(&windows_min) && test_now_ns() < give_up)
		sched_yield();
	if (atomic_fetch_add(&preads, 1) >= atomic_load(&preads_max)) {
		errno = EIO;
		return -1;
	}
	return __real_pread64(fd, buf, len, off);
}

/* Called when path "mapped" populates window (mapped range) number `slow_window`. Waits until the
 * threads of path "bounce" have made SLOW_READS pread calls. Stores in `slow_copies` how many
 * copies to the GPU (cuMemcpyHtoDAsync) are queued with the driver meanwhile. */
static void wait_for_reads(void)
{
	uint64_t give_up = test_now_ns() + 20000000000u;
	unsigned long copies = driver_calls("cuMemcpyHtoDAsync_v2");

	while (atomic_load(&preads) < SLOW_READS && test_now_ns() < give_up)
		sched_yield();
	atomic_store(&slow_copies, driver_calls("cuMemcpyHtoDAsync_v2") - copies);
}

int __wrap_madvise(void *addr, size_t len, int advice)
{
	if (atomic_load(&observed) && advice == MADV_POPULATE_READ) {
		unsigned n = atomic_fetch_add(&windows, 1);

		if (n >= atomic_load(&windows_max)) {
			errno = EFAULT;
			return -1;
		}
		if (n + 1 == atomic_load(&slow_window))
			wait_for_reads();
	}
	return __real_madvise(addr, len, advice);
}

static int setup(void **state)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	uint64_t seed = 11;
	void *p;
	int fd;

	(void)state;
	test_use_standin();
	*(void **)&driver_calls = test_standin_symbol("pst_standin_calls");
	bytes = malloc(FILE_LEN);
	back = malloc(FILE_LEN + 2 * GUARD);
	for (size_t i = 0; i + 8 <= FILE_LEN; i += 8) {
		uint64_t word = test_random(&seed);

		memcpy(bytes + i, &word, sizeof(word));
	}
	bytes[FILE_LEN - 1] = 0x17;
	test_file_name(name, sizeof(name), "penstock-mixed");
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || write(fd, bytes, FILE_LEN) != (ssize_t)FILE_LEN || fsync(fd))
		return -1;
	close(fd);
	held = test_hold(name, FILE_LEN);
	opts.lanes = LANES;
	if (penstock_device_open("host", NULL, &host) < 0 || penstock_open(name, NULL, &st) ||
	    penstock_device_open("cuda:0", &opts, &gpu) < 0 ||
	    penstock_alloc(gpu, FILE_LEN + 2 * GUARD, &p) ||
	    penstock_prepare(st, gpu, PENSTOCK_READ))
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

/* Reads the file into the page cache again. Some kernels drop pages within seconds after their last
 * use, and a dropped folio can have 2 MiB. So each read that must find the whole file cached calls
 * this function first. */
static void warm(void)
{
	int fd = open(name, O_RDONLY);

	for (uint64_t at = 0; at < FILE_LEN; at += MIB)
		assert_true(pread(fd, back, MIB, (off_t)at) > 0);
	close(fd);
}

/* Skips the case unless path "mapped" is open and the kernel reports the file as cached. */
static void require_mix(struct penstock_storage *storage)
{
	struct penstock_explanation explained = {.size = sizeof(explained)};
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = FILE_LEN};
	struct penstock_req req = test_request(storage, &seg, 1, PENSTOCK_READ);

	warm();
	assert_int_equal(penstock_explain(&req, &explained), 0);
	if (explained.resident != 1)
		test_skip("this kernel does not say what is cached");
	if (strcmp(explained.paths[explained.taken].name, "mapped") != 0)
		test_skip("path mapped is not quick for this file");
}

static void faults_reset(unsigned await)
{
	atomic_store(&windows, 0);
	atomic_store(&preads, 0);
	atomic_store(&windows_max, UINT32_MAX);
	atomic_store(&preads_max, UINT32_MAX);
	atomic_store(&windows_min, await);
}

static const struct penstock_report_path *row(const struct penstock_report *report,
					      const char *path)
{
	unsigned i = 0;

	while (strcmp(report->paths[i].name, path) != 0)
		assert_true(++i < report->path_count);
	return &report->paths[i];
}

static void fill_guards(void)
{
	memset(back, 0xa5, FILE_LEN + 2 * GUARD);
	test_copy(gpu, mem, host, back, FILE_LEN + 2 * GUARD);
}

/* Compares the memory with the range of the file, and the bytes around it with the guard bytes. */
static void compare(uint64_t off, uint64_t len)
{
	test_copy(host, back, gpu, mem, FILE_LEN + 2 * GUARD);
	assert_memory_equal(back + GUARD, bytes + off, len);
	for (uint64_t i = 0; i < GUARD; i++) {
		assert_int_equal(back[i], 0xa5);
		assert_int_equal(back[GUARD + len + i], 0xa5);
	}
}

/* Reads a range of the file, which this function caches first, and compares its bytes. */
static void read_range(struct penstock_storage *storage, enum penstock_effort effort, uint64_t off,
		       uint64_t len, struct penstock_report *report)
{
	struct penstock_seg seg = {.buf = mem + GUARD, .dev = gpu, .off = off, .row_len = len};
	struct penstock_req req = test_request(storage, &seg, 1, PENSTOCK_READ);
	int64_t got;

	req.effort = effort;
	*report = (struct penstock_report)PENSTOCK_REPORT_INIT;
	fill_guards();
	warm();
	atomic_store(&observed, true);
	got = penstock_transfer(&req, report);
	atomic_store(&observed, false);
	if (got != (int64_t)len)
		fail_msg("%lld: %s", (long long)got, penstock_errmsg());
	compare(off, len);
	assert_int_equal(report->bytes, len);
}

static void one_read_uses_both_paths(void **state)
{
	struct penstock_report report;
	uint64_t mapped, bounce;

	(void)state;
	require_mix(st);
	for (unsigned turn = 0; turn < 6; turn++) {
		uint64_t off = turn / 2 * 4099, len = FILE_LEN - 3 * off;

		faults_reset(1);
		read_range(st, turn % 2 ? PENSTOCK_FAST : PENSTOCK_BALANCED, off, len, &report);
		mapped = row(&report, "mapped")->bytes;
		bounce = row(&report, "bounce")->bytes;
		assert_int_equal(mapped + bounce, len);
		/* Path "mapped" carries at least one window (mapped range of the file), and the
		 * shortest window has 8 MiB. The CPU always copies the first chunk of the request,
		 * on path "bounce". */
		assert_true(mapped >= 8 * MIB);
		assert_true(bounce > 0);
		assert_int_equal(report.cpu_copied, bounce);
		assert_string_equal(report.path, mapped > bounce ? "mapped" : "bounce");
		assert_int_equal(report.retries, 0);
	}
}

/* While one lane (worker thread) registers pages of the page cache with the driver, the driver
 * would block copies by other lanes. So the other lanes must pass their copies to the registering
 * lane, and go on reading. */
static void copies_are_passed_to_the_lane_that_registers(void **state)
{
	struct penstock_report report;

	(void)state;
	require_mix(st);
	if (!driver_calls)
		test_skip("only the stand-in counts its calls");
	for (unsigned turn = 0; turn < 4; turn++) {
		faults_reset(2);
		atomic_store(&slow_copies, 1000);
		atomic_store(&slow_window, 2);
		read_range(st, PENSTOCK_FAST, turn, 70 * MIB, &report);
		atomic_store(&slow_window, 0);
		assert_int_equal(atomic_load(&slow_copies), 0);
		assert_int_equal(report.retries, 0);
	}
}

/* Returns the explanation of a read of the first `len` bytes. */
static const struct penstock_explanation *explain(enum penstock_effort effort, uint64_t len)
{
	static struct penstock_explanation explained;
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = len};
	struct penstock_req req = test_request(st, &seg, 1, PENSTOCK_READ);

	explained = (struct penstock_explanation){.size = sizeof(explained)};
	req.effort = effort;
	assert_int_equal(penstock_explain(&req, &explained), 0);
	return &explained;
}

/* Compares the names of the paths that would carry the bytes, such as "mapped bounce", and the
 * reasons of paths "mapped" and "bounce". */
static void expect_explained(const struct penstock_explanation *e, const char *want)
{
	char text[256];
	const char *whys[2] = {"", ""};

	for (unsigned i = 0; i < e->path_count; i++)
		for (unsigned k = 0; k < 2; k++)
			if (!strcmp(e->paths[i].name, k ? "bounce" : "mapped"))
				whys[k] = penstock_why_name(e->paths[i].why);
	snprintf(text, sizeof(text), "%s %s, mapped %s, bounce %s", e->paths[e->taken].name,
		 e->mixed < 0 ? "-" : e->paths[e->mixed].name, whys[0], whys[1]);
	assert_string_equal(text, want);
}

static void explanations_name_both_paths(void **state)
{
	(void)state;
	require_mix(st);
	expect_explained(explain(PENSTOCK_THRIFTY, 64 * MIB),
			 "mapped -, mapped none, bounce not-needed");
	expect_explained(explain(PENSTOCK_FAST, 64 * MIB),
			 "mapped bounce, mapped none, bounce none");
	expect_explained(explain(PENSTOCK_BALANCED, 8 * MIB),
			 "mapped bounce, mapped none, bounce none");
	expect_explained(explain(PENSTOCK_FAST, 8 * MIB),
			 "bounce -, mapped slow-here, bounce none");
}

static void thrifty_reads_use_one_path(void **state)
{
	struct penstock_report report;

	(void)state;
	require_mix(st);
	faults_reset(0);
	read_range(st, PENSTOCK_THRIFTY, 0, 64 * MIB, &report);
	assert_int_equal(row(&report, "mapped")->bytes, 64 * MIB);
	assert_string_equal(penstock_why_name(row(&report, "bounce")->why), "not-needed");
}

/* With PENSTOCK_FAST, a window (mapped range) of path "mapped" that starts late in a read may still
 * be in transfer when all other chunks have completed, and so delay the read. So a read of less
 * than 32 MiB must start no such window: path "bounce" must carry all its bytes. */
static void short_reads_use_one_path(void **state)
{
	struct penstock_report report;

	(void)state;
	require_mix(st);
	faults_reset(0);
	read_range(st, PENSTOCK_FAST, 5, 32 * MIB - 1, &report);
	assert_int_equal(row(&report, "bounce")->bytes, 32 * MIB - 1);
	assert_int_equal(atomic_load(&windows), 0);
}

/* The storage is opened as immutable, so the library keeps its registrations of file pages. A
 * later read is quickest if path "mapped" has registered all pages. So path "mapped" must carry all
 * bytes of the first read. */
static void kept_registrations_are_not_mixed(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_report report;
	struct penstock_storage *kept;

	(void)state;
	opts.flags = PENSTOCK_O_IMMUTABLE;
	assert_int_equal(penstock_open(name, &opts, &kept), 0);
	require_mix(kept);
	faults_reset(0);
	read_range(kept, PENSTOCK_BALANCED, 0, FILE_LEN, &report);
	assert_int_equal(row(&report, "mapped")->bytes, FILE_LEN);
	read_range(kept, PENSTOCK_FAST, 0, FILE_LEN, &report);
	assert_int_equal(row(&report, "bounce")->bytes, FILE_LEN);
	penstock_close(kept);
}

static void failed_windows_go_on_by_bounce(void **state)
{
	struct penstock_report report;

	(void)state;
	require_mix(st);
	for (unsigned good = 0; good < 2; good++) {
		faults_reset(good + 1);
		atomic_store(&windows_max, good);
		read_range(st, PENSTOCK_FAST, 33, 64 * MIB, &report);
		assert_true(report.retries > 0);
		assert_string_equal(penstock_why_name(row(&report, "mapped")->why), "file-shrank");
		assert_true((row(&report, "mapped")->bytes > 0) == (good > 0));
	}
}

static void failed_copies_go_on_by_mapped(void **state)
{
	struct penstock_report report;

	(void)state;
	require_mix(st);
	faults_reset(1);
	atomic_store(&preads_max, 2);
	read_range(st, PENSTOCK_FAST, 0, 64 * MIB, &report);
	assert_true(report.retries > 0);
	assert_string_equal(penstock_why_name(row(&report, "bounce")->why), "io-error");
	assert_true(row(&report, "mapped")->bytes >= 62 * MIB);
	assert_int_equal(row(&report, "mapped")->bytes + row(&report, "bounce")->bytes, 64 * MIB);
}

/* A cached read is mixed from paths "mapped" and "bounce". If mapped and bounce both fail, path
 * "staged" must read the bytes from the drive. */
static void both_paths_fail(void **state)
{
	struct penstock_report report;

	(void)state;
	require_mix(st);
	if (st->facts.fd_direct < 0)
		test_skip("O_DIRECT is not available on TMPDIR");
	faults_reset(0);
	atomic_store(&windows_max, 1);
	atomic_store(&preads_max, 0);
	read_range(st, PENSTOCK_BALANCED, 0, 48 * MIB, &report);
	assert_true(report.retries > 0);
	assert_true(row(&report, "staged")->bytes > 0);
}

/* Several reads at once share the device's worker threads. All bytes of each read must arrive, and
 * the reads together must use paths "mapped" and "bounce". */
static void reads_at_once(void **state)
{
	struct penstock_seg segs[REQUESTS];
	struct penstock_done done;
	struct penstock_queue *q;
	uint64_t mapped = 0, bounce = 0;

	(void)state;
	require_mix(st);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	fill_guards();
	warm();
	faults_reset(1);
	atomic_store(&observed, true);
	for (unsigned i = 0; i < REQUESTS; i++) {
		struct penstock_req req = test_request(st, &segs[i], 1, PENSTOCK_READ);

		segs[i] = (struct penstock_seg){.buf = mem + GUARD + i * 24 * MIB,
						.dev = gpu,
						.off = i * 24 * MIB,
						.row_len = 24 * MIB};
		req.effort = i ? PENSTOCK_FAST : PENSTOCK_BALANCED;
		assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	}
	for (unsigned i = 0; i < REQUESTS; i++) {
		assert_int_equal(penstock_wait(q, &done, 1, 1, -1), 1);
		assert_int_equal(done.result, 24 * MIB);
		mapped += row(done.report, "mapped")->bytes;
		bounce += row(done.report, "bounce")->bytes;
	}
	atomic_store(&observed, false);
	compare(0, REQUESTS * 24 * MIB);
	assert_true(mapped >= 8 * MIB && bounce > 0);
	penstock_queue_close(q);
}

/* A mixed read is cancelled at different moments, for example while a lane (worker thread) has
 * copies that another lane passed to it. The read must end. A later read must use paths "mapped"
 * and bounce again. */
static void cancelled_reads_end(void **state)
{
	struct penstock_seg seg = {.buf = mem + GUARD, .dev = gpu, .row_len = 64 * MIB};
	struct penstock_req req = test_request(st, &seg, 1, PENSTOCK_READ);
	struct penstock_report report;
	struct penstock_done done;
	struct penstock_queue *q;
	unsigned cancelled = 0;
	uint64_t id;

	(void)state;
	require_mix(st);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	req.effort = PENSTOCK_FAST;
	for (unsigned turn = 0; turn < 24; turn++) {
		faults_reset(0);
		warm();
		atomic_store(&observed, true);
		assert_int_equal(penstock_submit(q, &req, 1, &id), 1);
		/* The number of pread and madvise calls that the lanes have made determines when
		 * the test cancels the read. */
		while (atomic_load(&preads) + 4 * atomic_load(&windows) < turn)
			sched_yield();
		penstock_cancel(q, id);
		assert_int_equal(penstock_wait(q, &done, 1, 1, 60000000000), 1);
		atomic_store(&observed, false);
		assert_true(done.result == -ECANCELED || done.result == (int64_t)seg.row_len);
		cancelled += done.result == -ECANCELED;
	}
	assert_true(cancelled > 0);
	penstock_queue_close(q);
	faults_reset(1);
	read_range(st, PENSTOCK_FAST, 0, FILE_LEN, &report);
	assert_true(row(&report, "mapped")->bytes > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_read_uses_both_paths),
		cmocka_unit_test(copies_are_passed_to_the_lane_that_registers),
		cmocka_unit_test(explanations_name_both_paths),
		cmocka_unit_test(thrifty_reads_use_one_path),
		cmocka_unit_test(short_reads_use_one_path),
		cmocka_unit_test(kept_registrations_are_not_mixed),
		cmocka_unit_test(failed_windows_go_on_by_bounce),
		cmocka_unit_test(failed_copies_go_on_by_mapped),
		cmocka_unit_test(both_paths_fail),
		cmocka_unit_test(reads_at_once),
		cmocka_unit_test(cancelled_reads_end),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
