/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of which nobody says what the page cache holds: a chunk is tried through it, and
 * what its time showed is what happens to the rest. The file is TMPDIR's, said to be on an
 * overlay, or another user's on a file system with large folios; what comes slowly through
 * the cache is slow because the system call is. Every byte is right whatever is found out.
 */
#include "world.h"

#include "calls.h"
#include "core/base/objects.h"
#include "core/request/request.h"
#include "storage/file.h"

#define LEN (16u << 20)
#define ONE (1u << 20)	  /* a chunk, at most: a slot */
#define WINDOW (8u << 20) /* the shortest that goes by mapped */

static struct penstock_device *dev, *host;
static struct penstock_storage *st;
static const char *name;
static unsigned char *want, *back;
static void *mem;

static void begin(const char *device, bool theirs)
{
	name = world_name("blind", false);
	world_file(name, LEN, 1);
	want = malloc(LEN);
	back = malloc(LEN);
	world_fill(want, LEN, 1);
	host = world_device("host", "auto", 0);
	dev = world_device(device, "auto", 0);
	assert_int_equal(penstock_alloc(dev, LEN, &mem), 0);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	((struct pst_file *)st->priv)->overlay = !theirs;
	((struct pst_file *)st->priv)->cachestat_error = theirs ? EPERM : 0;
	st->facts.mapped_quick = theirs;
	if (st->facts.fd_direct < 0)
		test_skip("no direct path to TMPDIR: %s", st->facts.why_direct.text);
	assert_int_equal(penstock_prepare(st, dev, PENSTOCK_READ), 0);
}

static int end(void **state)
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

static void read_it(uint64_t len, struct penstock_report *report)
{
	struct penstock_seg seg = {.buf = mem, .dev = dev, .row_len = len};
	struct penstock_req req = PENSTOCK_REQ_INIT;

	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
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

/* Reads all of it; the bytes that went through the page cache. */
static uint64_t by_cache(struct penstock_report *report)
{
	read_it(LEN, report);
	return bytes_by(report, "bounce") + bytes_by(report, "mapped");
}

/* One chunk shows it, the rest is read from the drive; and so is all of the next request. */
static void slow_is_the_drive(const char *device)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	uint64_t sum;

	begin(device, false);
	calls_arm_onwards(CALLS_FILL, 1, CALLS_LATE);
	sum = by_cache(&report);
	assert_in_range(sum, 1, ONE);
	assert_int_equal(atomic_load(&st->residency_probe), PST_PROBE_COLD);
	assert_int_equal(by_cache(&report), 0);
}

static void slow_for_host(void **state)
{
	(void)state;
	slow_is_the_drive("host");
}

static void slow_for_cuda(void **state)
{
	(void)state;
	slow_is_the_drive("cuda:0");
}

/* As long as it is quick it is taken for cached; on a busy machine that may not be long. */
static void quick_is_the_cache(void **state)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	uint64_t sum;

	(void)state;
	begin("host", false);
	world_cache(name, true);
	for (unsigned i = 0; i < 20; i++) {
		atomic_store(&st->residency_probe, PST_PROBE_NONE);
		sum = by_cache(&report);
		assert_true(sum > 0);
		if (atomic_load(&st->residency_probe) == PST_PROBE_WARM && sum == LEN)
			return; /* every chunk was quick */
	}
	printf("# no time was short enough: %llu bytes by the cache\n", (unsigned long long)sum);
}

/* What was cached at its head is not behind it. */
static void it_ends_where_it_is_slow(void **state)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	uint64_t sum;

	(void)state;
	begin("cuda:0", false);
	atomic_store(&st->residency_probe, PST_PROBE_WARM);
	calls_arm_onwards(CALLS_FILL, 1, CALLS_LATE);
	sum = by_cache(&report);
	assert_in_range(sum, 1, LEN / 2); /* two lanes, two chunks each, at their longest */
	assert_int_equal(atomic_load(&st->residency_probe), PST_PROBE_COLD);
}

/* The trial fails: its bytes come by the next path, and nothing was found out. */
static void a_trial_that_fails(void **state)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;

	(void)state;
	begin("cuda:0", false);
	for (unsigned i = 0; i < 2; i++) {
		atomic_store(&st->residency_probe, PST_PROBE_WARM); /* the cache comes first */
		calls_arm(CALLS_FILL, 1, EIO);
		by_cache(&report);
		assert_int_equal(calls_disarm(), 1);
		assert_int_equal(report.retries, 1);
	}
}

/* What was found to be cached is read where it lies, as long as that is quick. */
static void cached_where_it_lies(void **state)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;

	(void)state;
	begin("cuda:0", true);
	atomic_store(&st->residency_probe, PST_PROBE_WARM);
	read_it(WINDOW, &report);
	assert_int_equal(bytes_by(&report, "mapped"), WINDOW);
	atomic_store(&st->residency_probe, PST_PROBE_WARM);
	calls_arm_onwards(CALLS_MADVISE, 1, CALLS_LATE);
	read_it(WINDOW, &report);
	assert_true(calls_disarm() > 0);
	assert_int_equal(bytes_by(&report, "mapped"), WINDOW);
	assert_true(report.dram_laid >= WINDOW); /* somebody has laid it there */
	/* In doubt a short call tells, not another long one. */
	assert_int_equal(atomic_load(&st->residency_probe), PST_PROBE_SLOW);
	read_it(WINDOW, &report);
	assert_true(bytes_by(&report, "bounce") > 0);
	assert_int_equal(bytes_by(&report, "mapped"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(slow_for_host, end),
		cmocka_unit_test_teardown(slow_for_cuda, end),
		cmocka_unit_test_teardown(quick_is_the_cache, end),
		cmocka_unit_test_teardown(it_ends_where_it_is_slow, end),
		cmocka_unit_test_teardown(a_trial_that_fails, end),
		cmocka_unit_test_teardown(cached_where_it_lies, end),
	};

	world_use_standin();
	return cmocka_run_group_tests_name("blind", tests, NULL, NULL);
}
