/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests residency probes. The library uses them for files for which the kernel does not report
 * whether their bytes are cached. For such a probe, a thread of the library reads one chunk through
 * the page cache. The time that this read takes decides the path of the following chunks. The test
 * marks its file on TMPDIR as a file on an overlay, or as another user's file on a file system with
 * large folios. A delayed system call simulates a slow drive. Every byte must arrive, whatever the
 * probe finds.
 */
#include "fixture.h"
#include "request.h"

#include "calls.h"
#include "core/request/request.h"
#include "core/request/residency_probe.h"
#include "storage/file_state.h"

#define LEN (16u << 20)
/* maximum length of a chunk in bytes: a slot, which is a piece of the pinned memory */
#define CHUNK_MAX (1u << 20)
#define MAPPED_MIN (8u << 20) /* minimum length of a request that takes path "mapped" */

static struct penstock_device *dev, *host;
static struct penstock_storage *st;
static const char *name;
static unsigned char *want, *back;
static void *mem;

static void open_blind_file(const char *device, bool theirs)
{
	name = fixture_name("blind", false);
	fixture_make_file(name, LEN, 1);
	want = malloc(LEN);
	back = malloc(LEN);
	fixture_fill(want, LEN, 1);
	host = fixture_open_device("host", "auto", 0);
	dev = fixture_open_device(device, "auto", 0);
	assert_int_equal(penstock_alloc(dev, LEN, &mem), 0);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	((struct pst_file *)st->priv)->overlay = !theirs;
	((struct pst_file *)st->priv)->cachestat_error = theirs ? EPERM : 0;
	st->facts.mapped_quick = theirs;
	if (st->facts.fd_direct < 0)
		test_skip("no direct path to TMPDIR: %s", st->facts.why_direct.text);
	assert_int_equal(penstock_prepare(st, dev, PENSTOCK_READ), 0);
}

static int close_all(void **state)
{
	(void)state;
	calls_disarm();
	penstock_close(st);
	if (mem)
		penstock_free(dev, mem);
	penstock_device_close(dev);
	penstock_device_close(host);
	if (name)
		unlink(name);
	free(want);
	free(back);
	dev = host = NULL;
	st = NULL;
	name = NULL;
	want = back = NULL;
	mem = NULL;
	return 0;
}

static void read_and_compare(uint64_t len, struct penstock_report *report)
{
	struct penstock_seg seg = {.buf = mem, .dev = dev, .row_len = len};
	struct penstock_req req;

	req = test_request(st, &seg, 1, PENSTOCK_READ);
	if (penstock_transfer(&req, report) != (int64_t)len)
		fail_msg("%s", penstock_errmsg());
	test_copy(host, back, dev, mem, len);
	assert_memory_equal(back, want, len);
}

static uint64_t bytes_by(const struct penstock_report *report, const char *path)
{
	unsigned i = 0;

	while (strcmp(report->paths[i].name, path))
		assert_true(++i < report->path_count);
	return report->paths[i].bytes;
}

/* Reads the whole file. Returns how many bytes came through the page cache. */
static uint64_t read_all_and_count_cached(struct penstock_report *report)
{
	read_and_compare(LEN, report);
	return bytes_by(report, "bounce") + bytes_by(report, "mapped");
}

/* The residency probe (a timed read through the page cache) is slow. Only the probe's chunk comes
 * through the page cache. All other chunks of this request and all chunks of the next request come
 * from the drive. */
static void slow_probe(const char *device)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	uint64_t sum;

	open_blind_file(device, false);
	calls_arm_onwards(CALLS_FILL, 1, CALLS_LATE);
	sum = read_all_and_count_cached(&report);
	assert_in_range(sum, 1, CHUNK_MAX);
	assert_int_equal(atomic_load(&st->residency_probe), PST_PROBE_COLD);
	assert_int_equal(read_all_and_count_cached(&report), 0);
}

static void slow_probe_for_host_memory(void **state)
{
	(void)state;
	slow_probe("host");
}

static void slow_probe_for_gpu_memory(void **state)
{
	(void)state;
	slow_probe("cuda:0");
}

/* If residency probes (timed reads through the page cache) are quick, the library assumes that the
 * file is cached, and all chunks come through the page cache. On a busy machine it is possible that
 * no chunk is quick enough. */
static void quick_probe_reads_through_cache(void **state)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	uint64_t sum;

	(void)state;
	open_blind_file("host", false);
	fixture_set_cached(name, true);
	for (unsigned i = 0; i < 20; i++) {
		atomic_store(&st->residency_probe, PST_PROBE_NONE);
		sum = read_all_and_count_cached(&report);
		assert_true(sum > 0);
		if (atomic_load(&st->residency_probe) == PST_PROBE_WARM && sum == LEN)
			return; /* every chunk was quick and came through the page cache */
	}
	printf("# no time was short enough: %llu bytes by the cache\n", (unsigned long long)sum);
}

/* The library has assumed that the file is cached. If reads then become slow, the remaining chunks
 * must come from the drive. */
static void cached_reads_end_at_a_slow_chunk(void **state)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	uint64_t sum;

	(void)state;
	open_blind_file("cuda:0", false);
	atomic_store(&st->residency_probe, PST_PROBE_WARM);
	calls_arm_onwards(CALLS_FILL, 1, CALLS_LATE);
	sum = read_all_and_count_cached(&report);
	/* before the library detects the slow chunk, each of its threads may have two chunks of
	 * CHUNK_MAX bytes in flight */
	assert_in_range(sum, 1, LEN / 2);
	assert_int_equal(atomic_load(&st->residency_probe), PST_PROBE_COLD);
}

/* If the read of a residency probe fails, the library reads the same bytes on another path, and
 * draws no conclusion from the probe. */
static void failed_probe_finds_nothing(void **state)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;

	(void)state;
	open_blind_file("cuda:0", false);
	for (unsigned i = 0; i < 2; i++) {
		atomic_store(&st->residency_probe,
			     /* the library assumes that the file is cached, so it tries the page
			      * cache first */
			     PST_PROBE_WARM);
		calls_arm(CALLS_FILL, 1, EIO);
		read_all_and_count_cached(&report);
		assert_int_equal(calls_disarm(), 1);
		assert_int_equal(report.retries, 1);
	}
}

/* A residency probe has found that a range is cached. The path "mapped" carries such a range as
 * long as reads of this range are quick. */
static void cached_range_by_path_mapped(void **state)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;

	(void)state;
	open_blind_file("cuda:0", true);
	atomic_store(&st->residency_probe, PST_PROBE_WARM);
	read_and_compare(MAPPED_MIN, &report);
	assert_int_equal(bytes_by(&report, "mapped"), MAPPED_MIN);
	atomic_store(&st->residency_probe, PST_PROBE_WARM);
	calls_arm_onwards(CALLS_MADVISE, 1, CALLS_LATE);
	read_and_compare(MAPPED_MIN, &report);
	assert_true(calls_disarm() > 0);
	assert_int_equal(bytes_by(&report, "mapped"), MAPPED_MIN);
	/* The report counts that the bytes were written to host memory once to fill the page cache.
	 */
	assert_true(report.dram_laid >= MAPPED_MIN);
	/* After a long chunk was slow, the next probe reads only a short chunk. */
	assert_int_equal(atomic_load(&st->residency_probe), PST_PROBE_SLOW);
	read_and_compare(MAPPED_MIN, &report);
	assert_true(bytes_by(&report, "bounce") > 0);
	assert_int_equal(bytes_by(&report, "mapped"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(slow_probe_for_host_memory, close_all),
		cmocka_unit_test_teardown(slow_probe_for_gpu_memory, close_all),
		cmocka_unit_test_teardown(quick_probe_reads_through_cache, close_all),
		cmocka_unit_test_teardown(cached_reads_end_at_a_slow_chunk, close_all),
		cmocka_unit_test_teardown(failed_probe_finds_nothing, close_all),
		cmocka_unit_test_teardown(cached_range_by_path_mapped, close_all),
	};

	fixture_use_standin();
	return cmocka_run_group_tests_name("blind", tests, NULL, NULL);
}
