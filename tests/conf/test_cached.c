/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests residency queries (are bytes in the page cache?) that go beyond the end of a file. Readers
 * with a fixed buffer size request more bytes than the file has. The storage must answer for the
 * bytes that the file has, so that cached bytes come from the page cache and not from the drive. If
 * the kernel does not report residency, the program skips these checks.
 */
#include "test.h"
#include "page_cache.h"
#include "request.h"

#include <fcntl.h>
#include <stdbool.h>

#include "storage/file_state.h"

#define BUFFER_LEN (8u << 20)

static const uint64_t sizes[] = {0, 1, 4096, 5000, 100000, 1048576, 3000001};
#define COUNT (sizeof(sizes) / sizeof(sizes[0]))

static struct penstock_device *host;
static unsigned char *bytes, *back;
static char name[256];

static int setup(void **state)
{
	uint64_t seed = 5;

	(void)state;
	bytes = malloc(BUFFER_LEN);
	back = aligned_alloc(4096, BUFFER_LEN);
	for (size_t i = 0; i < BUFFER_LEN; i++)
		bytes[i] = (unsigned char)test_random(&seed);
	test_file_name(name, sizeof(name), "penstock-cached");
	return penstock_device_open("host", NULL, &host) < 0;
}

static int teardown(void **state)
{
	(void)state;
	penstock_device_close(host);
	free(bytes);
	free(back);
	return unlink(name);
}

/* Makes a file of `len` bytes that are in the page cache and on the drive. */
static void make_file(uint64_t len)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, len), len);
	assert_int_equal(fsync(fd), 0);
	assert_int_equal(pread(fd, back, len, 0), len);
	close(fd);
}

static enum pst_residency query_residency(struct penstock_storage *st, uint64_t off, uint64_t len)
{
	enum penstock_why why;

	return st->ops->residency(st, off, len, &why);
}

static bool residency_known(struct penstock_storage *st, uint64_t len)
{
	return len && query_residency(st, 0, len) == PST_WARM;
}

static void transfer(struct penstock_storage *st, uint64_t off, uint64_t len, const char *path,
		     int64_t want, struct penstock_report *report)
{
	struct penstock_seg seg = {.buf = back, .dev = host, .off = off, .row_len = len};
	struct penstock_req req;

	req = test_request(st, &seg, 1, PENSTOCK_READ);
	req.path = path;
	*report = (struct penstock_report)PENSTOCK_REPORT_INIT;
	assert_int_equal(penstock_transfer(&req, report), want);
	assert_memory_equal(back, bytes + off, want);
}

/* Reads `len` bytes at `off`. Returns how many bytes were carried by a path that reads from the
 * drive. */
static uint64_t bytes_from_drive(struct penstock_storage *st, uint64_t off, uint64_t len,
				 int64_t want)
{
	struct penstock_report report;
	uint64_t sum = 0;

	transfer(st, off, len, NULL, want, &report);
	for (unsigned i = 0; i < report.path_count; i++)
		if (strcmp(report.paths[i].name, "bounce") != 0)
			sum += report.paths[i].bytes;
	return sum;
}

static void read_beyond_the_end(void **state)
{
	struct penstock_storage *st;

	(void)state;
	for (unsigned i = 0; i < COUNT; i++) {
		uint64_t len = sizes[i], half = len / 2;
		struct test_held held;

		make_file(len);
		held = test_hold(name, len);
		assert_int_equal(penstock_open(name, NULL, &st), 0);
		if (residency_known(st, len)) {
			assert_int_equal(query_residency(st, 0, len + 1), PST_WARM);
			assert_int_equal(query_residency(st, 0, BUFFER_LEN), PST_WARM);
			assert_int_equal(query_residency(st, half, BUFFER_LEN), PST_WARM);
			assert_int_equal(query_residency(st, len, BUFFER_LEN),
					 PST_WARM); /* The range is empty, and an empty range counts
						     * as cached. */
			assert_int_equal(bytes_from_drive(st, 0, BUFFER_LEN, (int64_t)len), 0);
			assert_int_equal(bytes_from_drive(st, half, BUFFER_LEN - half,
							  (int64_t)(len - half)),
					 0);
		}
		assert_int_equal(bytes_from_drive(st, len + 7, 100, 0), 0);
		test_release(held);
		penstock_close(st);
	}
}

/* A residency query (are bytes cached?) uses the file's length at the time of the query, not at
 * the time of the open. */
static void file_that_grew(void **state)
{
	struct penstock_storage *st;
	struct test_held held;
	int fd;

	(void)state;
	make_file(4096);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	fd = open(name, O_RDWR);
	assert_int_equal(pwrite(fd, bytes + 4096, 1000000, 4096), 1000000);
	assert_int_equal(fsync(fd), 0);
	held = test_hold(name, 1004096);
	if (residency_known(st, 1004096)) {
		assert_int_equal(query_residency(st, 0, BUFFER_LEN), PST_WARM);
		assert_int_equal(bytes_from_drive(st, 0, BUFFER_LEN, 1004096), 0);
	}
	test_release(held);
	/* Bytes that are in the file but not in the page cache still count as not cached. */
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	if (query_residency(st, 0, 1004096) == PST_COLD) {
		assert_int_equal(query_residency(st, 0, BUFFER_LEN), PST_COLD);
		assert_int_equal(pread(fd, back, 4096, 0), 4096);
		assert_int_not_equal(query_residency(st, 0, BUFFER_LEN), PST_COLD);
	}
	close(fd);
	penstock_close(st);
}

/* Returns the reason in the report why a path carried no byte of the read. */
static const char *why_not(const struct penstock_report *report, const char *path)
{
	unsigned i = 0;

	while (strcmp(report->paths[i].name, path))
		assert_true(++i < report->path_count);
	assert_int_equal(report->paths[i].bytes, 0);
	assert_string_equal(report->paths[i].text, penstock_why_text(report->paths[i].why));
	return penstock_why_name(report->paths[i].why);
}

/* For each usable path that was not used, the report has a reason. The reason is "cached" or
 * "not-cached" if the residency (are the bytes cached?) decided the choice. The reason is
 * "not-needed" if the residency is unknown or the caller named a path. */
static void report_says_why_by_residency(void **state)
{
	const uint64_t len = 1u << 20;
	struct penstock_report report;
	struct penstock_storage *st;
	struct test_held held;
	int fd;

	(void)state;
	make_file(len);
	held = test_hold(name, len);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	if (st->facts.fd_direct < 0 || !residency_known(st, len)) {
		test_release(held);
		penstock_close(st);
		test_skip("O_DIRECT or residency queries are not available on TMPDIR");
	}
	transfer(st, 0, len, NULL, (int64_t)len, &report);
	assert_string_equal(report.path, "bounce");
	assert_string_equal(why_not(&report, "odirect"), "cached");
	assert_string_equal(why_not(&report, "staged"), "cached");
	transfer(st, 0, len, "staged", (int64_t)len, &report);
	assert_string_equal(why_not(&report, "odirect"), "not-needed");
	assert_string_equal(why_not(&report, "bounce"), "not-needed");
	test_release(held);
	fd = open(name, O_RDONLY);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
	if (query_residency(st, 0, len) == PST_COLD) {
		transfer(st, 0, len, NULL, (int64_t)len, &report);
		assert_string_equal(report.path, "odirect");
		assert_string_equal(why_not(&report, "staged"), "not-needed");
		assert_string_equal(why_not(&report, "bounce"), "not-cached");
	}
	/* For a file on an overlay, the storage cannot determine whether bytes are cached. */
	((struct pst_file *)st->priv)->overlay = true;
	transfer(st, 0, 4096, NULL, 4096, &report);
	assert_string_equal(report.path, "odirect");
	assert_string_equal(why_not(&report, "bounce"), "not-needed");
	penstock_close(st);
}

/* Makes a file of LONG_LEN bytes that are in the page cache and on the drive. */
#define LONG_LEN (6ull * BUFFER_LEN)
static void make_long_file(void)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);

	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(write(fd, bytes, BUFFER_LEN), BUFFER_LEN);
	assert_int_equal(fsync(fd), 0);
	close(fd);
}

/* Drops the bytes from `off` on from the page cache. Skips the case if that fails. */
static void drop_from(struct penstock_storage *st, uint64_t off)
{
	int fd = open(name, O_RDONLY);

	posix_fadvise(fd, (off_t)off, 0, POSIX_FADV_DONTNEED);
	close(fd);
	if ((off && query_residency(st, 0, off) != PST_WARM) ||
	    query_residency(st, off, LONG_LEN - off) != PST_COLD)
		test_skip("residency queries are not available on TMPDIR");
}

/* Reads the long file by path "bounce", in requests of `step` bytes. Returns how many of the bytes
 * the reports count as written to the page cache. */
static uint64_t bytes_filled(struct penstock_storage *st, uint64_t step)
{
	struct penstock_report report;
	uint64_t sum = 0;

	for (uint64_t off = 0; off < LONG_LEN; off += step) {
		struct penstock_seg seg = {.buf = back, .dev = host, .off = off, .row_len = step};
		struct penstock_req req = test_request(st, &seg, 1, PENSTOCK_READ);

		req.path = "bounce";
		report = (struct penstock_report)PENSTOCK_REPORT_INIT;
		assert_int_equal(penstock_transfer(&req, &report), step);
		sum += report.dram_laid;
	}
	return sum;
}

/* Holds the first `len` bytes of the file in the page cache. Skips the case if they are too many
 * for the user's pipes. */
static struct test_held hold_all(size_t len)
{
	struct test_held held = test_hold(name, len);

	if (held.len < len) {
		test_release(held);
		test_skip("this user's pipes hold too few bytes");
	}
	return held;
}

/* The kernel reads ahead while a request reads uncached bytes, so later requests find their bytes
 * cached. The reports must still count each of these bytes once, as a byte that a read has brought
 * into the page cache. */
static void readahead_counts_as_filled(void **state)
{
	static const uint64_t steps[] = {64u << 10, 1u << 20, 4u << 20};
	const uint64_t least = LONG_LEN / 100 * 95;
	struct penstock_storage *st;
	struct test_held held;

	(void)state;
	make_long_file();
	for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		assert_int_equal(penstock_open(name, NULL, &st), 0);
		drop_from(st, 0);
		assert_in_range(bytes_filled(st, steps[i]), least, LONG_LEN);
		held = hold_all(LONG_LEN);
		assert_int_equal(bytes_filled(st, steps[i]), 0);
		penstock_close(st);
		/* Bytes that were in the page cache before penstock_open do not count. */
		assert_int_equal(penstock_open(name, NULL, &st), 0);
		assert_int_equal(bytes_filled(st, steps[i]), 0);
		test_release(held);
		held = hold_all(LONG_LEN / 2);
		drop_from(st, LONG_LEN / 2);
		assert_in_range(bytes_filled(st, steps[i]), least / 2, LONG_LEN / 2);
		test_release(held);
		penstock_close(st);
	}
	/* The kernel has dropped bytes that the storage had read before. When they are read again,
	 * they must count again. */
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	for (unsigned i = 0; i < 3; i++) {
		drop_from(st, 0);
		assert_in_range(bytes_filled(st, 1u << 20), least, LONG_LEN);
	}
	penstock_close(st);
}

/* Bytes that a write has brought into the page cache do not count when they are read. */
static void written_bytes_do_not_count(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_seg seg = {.buf = back, .dev = host, .row_len = 1u << 20};
	struct penstock_storage *st;
	struct penstock_req req;
	struct test_held held = {.count = 0};

	(void)state;
	make_long_file();
	opts.flags = PENSTOCK_O_WRITE;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	drop_from(st, 0);
	req = test_request(st, &seg, 1, PENSTOCK_READ);
	req.path = "bounce";
	assert_int_equal(penstock_transfer(&req, &report), seg.row_len);
	assert_int_equal(report.dram_laid, seg.row_len);
	seg.off = LONG_LEN / 2;
	for (unsigned i = 0; i < 2; i++) {
		req.op = i ? PENSTOCK_READ : PENSTOCK_WRITE;
		report = (struct penstock_report)PENSTOCK_REPORT_INIT;
		assert_int_equal(penstock_transfer(&req, &report), seg.row_len);
		assert_int_equal(report.dram_laid, i ? 0 : seg.row_len);
		if (i == 0)
			held = hold_all(seg.off + seg.row_len);
	}
	test_release(held);
	penstock_close(st);
}

/* Two paths of one request use different engines: the GPU maps the bytes that are cached, and
 * system calls read the others. Each row of the report names the path's own engine. */
static void report_names_the_engine_of_each_path(void **state)
{
	const uint64_t len = LONG_LEN; /* long enough for path "mapped" */
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_seg seg = {.row_len = len};
	struct penstock_storage *st;
	struct penstock_device *gpu;
	struct test_held held;
	struct penstock_req req;
	unsigned engines = 0;

	(void)state;
	make_long_file();
	held = test_hold(name, len / 2);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	drop_from(st, len / 2);
	assert_int_equal(penstock_device_open("cuda:0", NULL, &gpu), 0);
	assert_int_equal(penstock_alloc(gpu, len, &seg.buf), 0);
	seg.dev = gpu;
	req = test_request(st, &seg, 1, PENSTOCK_READ);
	assert_int_equal(penstock_transfer(&req, &report), len);
	for (unsigned i = 0; i < report.path_count; i++) {
		const struct penstock_report_path *row = &report.paths[i];
		bool mapped = !strcmp(row->name, "mapped");

		if (!row->bytes) {
			assert_string_equal(row->engine, "none");
			continue;
		}
		engines |= mapped ? 1 : 2;
		assert_int_equal(!strcmp(row->engine, "mmap"), mapped);
		assert_string_not_equal(row->engine, "none");
		if (!strcmp(row->name, report.path))
			assert_string_equal(report.engine, row->engine);
	}
	assert_int_equal(engines, 3);
	test_release(held);
	penstock_free(gpu, seg.buf);
	penstock_device_close(gpu);
	penstock_close(st);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(report_says_why_by_residency),
		cmocka_unit_test(read_beyond_the_end),
		cmocka_unit_test(file_that_grew),
		cmocka_unit_test(report_names_the_engine_of_each_path),
		cmocka_unit_test(readahead_counts_as_filled),
		cmocka_unit_test(written_bytes_do_not_count),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, setup, teardown);
}
