/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the page cache has of a file is said of the bytes that the file has: who asks for
 * more, as readers with a buffer of their own size do, gets cached bytes from the cache
 * and not from the drive. Where nobody says what is cached there is nothing to see.
 */
#include "test.h"

#include <fcntl.h>
#include <stdbool.h>

#include "storage/file_state.h"

#define ROOM (8u << 20)

static const uint64_t sizes[] = {0, 1, 4096, 5000, 100000, 1048576, 3000001};
#define COUNT (sizeof(sizes) / sizeof(sizes[0]))

static struct penstock_device *host;
static unsigned char *bytes, *back;
static char name[256];

static int setup(void **state)
{
	const char *tmp = getenv("TMPDIR");
	uint64_t seed = 5;

	(void)state;
	bytes = malloc(ROOM);
	back = aligned_alloc(4096, ROOM);
	for (size_t i = 0; i < ROOM; i++)
		bytes[i] = (unsigned char)test_random(&seed);
	snprintf(name, sizeof(name), "%s/penstock-cached-%d", tmp ? tmp : "/tmp", (int)getpid());
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

/* A file of `len` bytes, all of them cached and on the drive. */
static void make_file(uint64_t len)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, len), len);
	assert_int_equal(fsync(fd), 0);
	assert_int_equal(pread(fd, back, len, 0), len);
	close(fd);
}

static enum pst_residency ask(struct penstock_storage *st, uint64_t off, uint64_t len)
{
	enum penstock_why why;

	return st->ops->residency(st, off, len, &why);
}

static bool is_told(struct penstock_storage *st, uint64_t len)
{
	return len && ask(st, 0, len) == PST_WARM;
}

static void transfer(struct penstock_storage *st, uint64_t off, uint64_t len, const char *path,
		     int64_t want, struct penstock_report *report)
{
	struct penstock_seg seg = {.buf = back, .dev = host, .off = off, .row_len = len};
	struct penstock_req req = PENSTOCK_REQ_INIT;

	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.path = path;
	*report = (struct penstock_report)PENSTOCK_REPORT_INIT;
	assert_int_equal(penstock_transfer(&req, report), want);
	assert_memory_equal(back, bytes + off, want);
}

/* Reads `len` bytes at `off`; how many came by a path that asks the drive. */
static uint64_t from_drive(struct penstock_storage *st, uint64_t off, uint64_t len, int64_t want)
{
	struct penstock_report report;
	uint64_t sum = 0;

	transfer(st, off, len, NULL, want, &report);
	for (unsigned i = 0; i < report.path_count; i++)
		if (strcmp(report.paths[i].name, "bounce") != 0)
			sum += report.paths[i].bytes;
	return sum;
}

static void behind_the_end(void **state)
{
	struct penstock_storage *st;

	(void)state;
	for (unsigned i = 0; i < COUNT; i++) {
		uint64_t len = sizes[i], half = len / 2;

		make_file(len);
		assert_int_equal(penstock_open(name, NULL, &st), 0);
		if (is_told(st, len)) {
			assert_int_equal(ask(st, 0, len + 1), PST_WARM);
			assert_int_equal(ask(st, 0, ROOM), PST_WARM);
			assert_int_equal(ask(st, half, ROOM), PST_WARM);
			assert_int_equal(ask(st, len, ROOM), PST_WARM); /* there is nothing */
			assert_int_equal(from_drive(st, 0, ROOM, (int64_t)len), 0);
			assert_int_equal(from_drive(st, half, ROOM - half, (int64_t)(len - half)),
					 0);
		}
		assert_int_equal(from_drive(st, len + 7, 100, 0), 0);
		penstock_close(st);
	}
}

/* The file is what it is when asked, and not when it was opened. */
static void grown(void **state)
{
	struct penstock_storage *st;
	int fd;

	(void)state;
	make_file(4096);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	fd = open(name, O_RDWR);
	assert_int_equal(pwrite(fd, bytes + 4096, 1000000, 4096), 1000000);
	assert_int_equal(fsync(fd), 0);
	if (is_told(st, 1004096)) {
		assert_int_equal(ask(st, 0, ROOM), PST_WARM);
		assert_int_equal(from_drive(st, 0, ROOM, 1004096), 0);
	}
	/* What is missing of it is missed. */
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	if (ask(st, 0, 1004096) == PST_COLD) {
		assert_int_equal(ask(st, 0, ROOM), PST_COLD);
		assert_int_equal(pread(fd, back, 4096, 0), 4096);
		assert_int_not_equal(ask(st, 0, ROOM), PST_COLD);
	}
	close(fd);
	penstock_close(st);
}

/* Why a path has carried nothing of a read. */
static const char *why_not(const struct penstock_report *report, const char *path)
{
	unsigned i = 0;

	while (strcmp(report->paths[i].name, path))
		assert_true(++i < report->path_count);
	assert_int_equal(report->paths[i].bytes, 0);
	assert_string_equal(report->paths[i].text, penstock_why_text(report->paths[i].why));
	return penstock_why_name(report->paths[i].why);
}

/* Of the paths that are open a report says which were not taken for where the bytes were;
 * and nothing of that where nobody knows, or a path was named. */
static void reasons(void **state)
{
	const uint64_t len = 1u << 20;
	struct penstock_report report;
	struct penstock_storage *st;
	int fd;

	(void)state;
	make_file(len);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	if (st->facts.fd_direct < 0 || !is_told(st, len)) {
		penstock_close(st);
		test_skip("O_DIRECT, or asking what is cached, is not to be had on TMPDIR");
	}
	transfer(st, 0, len, NULL, (int64_t)len, &report);
	assert_string_equal(report.path, "bounce");
	assert_string_equal(why_not(&report, "odirect"), "cached");
	assert_string_equal(why_not(&report, "staged"), "cached");
	transfer(st, 0, len, "staged", (int64_t)len, &report);
	assert_string_equal(why_not(&report, "odirect"), "not-needed");
	assert_string_equal(why_not(&report, "bounce"), "not-needed");
	fd = open(name, O_RDONLY);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
	if (ask(st, 0, len) == PST_COLD) {
		transfer(st, 0, len, NULL, (int64_t)len, &report);
		assert_string_equal(report.path, "odirect");
		assert_string_equal(why_not(&report, "staged"), "not-needed");
		assert_string_equal(why_not(&report, "bounce"), "not-cached");
	}
	((struct pst_file *)st->priv)->overlay = true; /* nobody says */
	transfer(st, 0, 4096, NULL, 4096, &report);
	assert_string_equal(report.path, "odirect");
	assert_string_equal(why_not(&report, "bounce"), "not-needed");
	penstock_close(st);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reasons),
		cmocka_unit_test(behind_the_end),
		cmocka_unit_test(grown),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
