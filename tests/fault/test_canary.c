/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests direct reads that report success although no byte, or not every byte, was delivered.
 * Before a path is used, a test read (the canary) checks it on each drive, on written extents only.
 * A path that the canary has not proven is refused. The file is on TMPDIR, marked as being on the
 * library's allow-list for O_DIRECT. A wrapped system call simulates a drive that reports success
 * and delivers nothing.
 */
#include "explain.h"
#include "fixture.h"
#include "request.h"

#include "calls.h"
#include "core/base/stats.h"
#include "memory.h"

#define LEN (1u << 20)
#define CANARY_LEN (64u << 10) /* length in bytes of one canary (test read): 8192 words */

static struct penstock_device *host;
static struct penstock_storage *st;
static const char *name;
static unsigned char *mem;

static void make_file_and_device(const char *engine)
{
	name = fixture_name("canary", false);
	fixture_make_file(name, LEN, 1);
	host = fixture_open_device("host", engine, 0);
	assert_int_equal(penstock_alloc(host, LEN, (void **)&mem), 0);
}

static int close_all(void **state)
{
	(void)state;
	calls_disarm();
	penstock_close(st);
	st = NULL;
	if (mem)
		penstock_free(host, mem);
	mem = NULL;
	penstock_device_close(host);
	host = NULL;
	if (name)
		unlink(name);
	name = NULL;
	return 0;
}

/* Opens the file as if its block stack (the layers between file and drives) were on the library's
 * allow-list for O_DIRECT. This block stack has `drives` drives, striped in units of `stripe`
 * bytes. */
static void open_listed(unsigned drives, uint64_t stripe)
{
	penstock_close(st);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	if (st->facts.fd_direct < 0)
		test_skip("no direct path to TMPDIR: %s", st->facts.why_direct.text);
	st->facts.listed = true;
	st->facts.drive_count = drives;
	st->facts.stripe_len = stripe;
}

/* Opens the route, the set of paths between the file and the device. For that, the library runs
 * the canary, a test read of each direct path. Meanwhile the n-th read reports success without
 * delivering its bytes; if `nth` is 0, every read delivers. Returns the number of reads. */
static unsigned make_route(unsigned nth, int how)
{
	unsigned hits;

	calls_arm(CALLS_FILL, nth, how);
	assert_int_equal(penstock_prepare(st, host, PENSTOCK_READ), 0);
	hits = calls_disarm();
	assert_int_equal(hits, nth ? 1 : 0);
	return calls_counted();
}

static int64_t transfer(enum penstock_class require, struct penstock_report *report)
{
	struct penstock_seg seg = {.buf = mem, .dev = host, .row_len = CANARY_LEN};
	struct penstock_req req;

	req = test_request(st, &seg, 1, PENSTOCK_READ);
	req.require = require;
	return penstock_transfer(&req, report);
}

/* Returns penstock_explain's entry for path "odirect", the direct path for host memory. */
static struct penstock_explain_path explain_odirect(void)
{
	return test_explain_path(st, host, CANARY_LEN, "odirect");
}

static void expect_usable(void)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_explain_path path = explain_odirect();

	if (!path.usable)
		fail_msg("path odirect is not usable: %s", path.text);
	assert_int_equal(path.proven, 1);
	assert_int_equal(path.meets, PENSTOCK_DIRECT);
	assert_int_equal(transfer(PENSTOCK_DIRECT, &report), CANARY_LEN);
	assert_string_equal(report.path, "odirect");
}

/* Checks that path "odirect" is refused and another path is used. A request that requires a direct
 * path (PENSTOCK_DIRECT) must fail before any byte moves. */
static void expect_refused(enum penstock_why why, const char *words)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_explain_path path = explain_odirect();

	assert_int_equal(path.usable, 0);
	assert_int_equal(path.proven, -1);
	assert_string_equal(penstock_why_name(path.why), penstock_why_name(why));
	if (!strstr(path.text, words))
		fail_msg("'%s' does not contain '%s'", path.text, words);
	memset(mem, 0xee, CANARY_LEN);
	assert_int_equal(transfer(PENSTOCK_DIRECT, NULL), -EOPNOTSUPP);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_REQUIRE);
	for (unsigned i = 0; i < CANARY_LEN; i++)
		assert_int_equal(mem[i], 0xee);
	assert_int_equal(transfer(PENSTOCK_ANY, &report), CANARY_LEN);
	assert_string_not_equal(report.path, "odirect");
}

static bool bytes_right(void)
{
	unsigned char *want = malloc(CANARY_LEN);
	bool same;

	fixture_fill(want, CANARY_LEN, 1);
	same = !memcmp(mem, want, CANARY_LEN);
	free(want);
	return same;
}

static void require_extents(void)
{
	open_listed(1, 0);
	make_route(0, 0);
	if (explain_odirect().why == PENSTOCK_WHY_UNPROVEN)
		test_skip("no direct path to TMPDIR: it does not report which extents are written");
}

/* ---- the cases ---- */

static void proven_path_is_used(void **state)
{
	(void)state;
	make_file_and_device("threads");
	require_extents();
	expect_usable();
	assert_true(bytes_right());
}

/* With either engine, no byte of the canary (a test read) arrives. The library counts every word as
 * wrong. */
static void no_byte_arrives(void **state)
{
	static const char *const engines[] = {"threads", "auto"};
	struct pst_stats *stats = pst_stats_get();

	for (unsigned i = 0; i < 2; i++) {
		uint64_t failed;

		make_file_and_device(engines[i]);
		require_extents();
		failed = atomic_load(&stats->canaries_failed);
		open_listed(1, 0);
		/* The library makes two reads. The first is the reference read, which goes through
		 * host memory. The second is the canary (a test read on the direct path). */
		assert_int_equal(make_route(2, CALLS_LIE), 2);
		assert_int_equal(atomic_load(&stats->canaries_failed), failed + 1);
		expect_refused(PENSTOCK_WHY_CANARY, "8192 of 8192 words");
		assert_true(bytes_right());
		close_all(state);
	}
}

/* All words but the last one arrive. The library compares every word, so the canary (a test read)
 * detects the error. */
static void last_word_does_not_arrive(void **state)
{
	(void)state;
	make_file_and_device("threads");
	require_extents();
	open_listed(1, 0);
	make_route(2, CALLS_LIE_END);
	expect_refused(PENSTOCK_WHY_CANARY, " 1 of 8192 words");
}

/* If the reference read (through host memory) delivers nothing, the comparison with the canary
 * (the test read) fails, too.
 */
static void reference_read_lies(void **state)
{
	(void)state;
	make_file_and_device("threads");
	require_extents();
	open_listed(1, 0);
	make_route(1, CALLS_LIE);
	expect_refused(PENSTOCK_WHY_CANARY, "words");
}

/* One drive of a stripe does not deliver its bytes, as if its PCIe bridge blocked them. So the
 * canary (a test read) must test each drive. */
static void each_drive_is_tested(void **state)
{
	enum { DRIVES = 3 };

	(void)state;
	make_file_and_device("threads");
	require_extents();
	open_listed(DRIVES, CANARY_LEN);
	assert_int_equal(make_route(0, 0), 2 * DRIVES);
	expect_usable();
	for (unsigned i = 1; i <= DRIVES; i++) {
		open_listed(DRIVES, CANARY_LEN);
		make_route(2 * i, CALLS_LIE);
		expect_refused(PENSTOCK_WHY_CANARY, "words");
	}
	/* The file is so short that no part of it is on the last drive of the stripe. */
	open_listed(LEN / CANARY_LEN + 1, CANARY_LEN);
	make_route(0, 0);
	expect_refused(PENSTOCK_WHY_UNPROVEN, "16 of 17 drives");
}

/* The kernel returns zeros for holes and reserved blocks without a read from the drive, so reads
 * of them prove nothing about the path. */
static void only_written_extents_prove(void **state)
{
	const char *kinds[] = {"a hole", "reserved", "too short", "empty"};
	int fd;

	(void)state;
	make_file_and_device("threads");
	require_extents();
	for (unsigned i = 0; i < 4; i++) {
		fd = open(name, O_RDWR | O_TRUNC);
		assert_true(fd >= 0);
		if (i == 0)
			assert_int_equal(ftruncate(fd, LEN), 0);
		else if (i == 1 && fallocate(fd, 0, 0, LEN))
			kinds[i] = NULL; /* this file system has no reserved blocks */
		else if (i == 2)
			assert_int_equal(write(fd, mem, 4095), 4095);
		assert_int_equal(fsync(fd), 0);
		close(fd);
		if (!kinds[i])
			continue;
		open_listed(1, 0);
		printf("# %s: %u reads\n", kinds[i], make_route(0, 0));
		assert_int_equal(explain_odirect().usable, 0);
		assert_string_equal(penstock_why_name(explain_odirect().why), "unproven");
		if (i < 2)
			expect_refused(PENSTOCK_WHY_UNPROVEN, "written extent");
	}
	/* If only the last block of the file has been written, the canary can prove the path. */
	fd = open(name, O_RDWR | O_TRUNC);
	memset(mem, 0x5a, 4096);
	assert_int_equal(pwrite(fd, mem, 4096, LEN - 4096), 4096);
	assert_int_equal(fsync(fd), 0);
	close(fd);
	open_listed(1, 0);
	assert_int_equal(make_route(0, 0), 2);
	expect_usable();
}

/* The storage is created empty, and its bytes are written later. The canary (a test read) must use
 * these bytes to prove the direct path. */
static void file_written_after_open(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;

	(void)state;
	make_file_and_device("threads");
	require_extents();
	penstock_close(st);
	st = NULL;
	unlink(name);
	opts.flags = PENSTOCK_O_CREATE;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	st->facts.listed = true;
	fixture_fill(mem, LEN, 1);
	assert_int_equal(penstock_write(st, host, mem, LEN, 0), LEN);
	assert_int_equal(penstock_storage_length(st), LEN);
	expect_usable();
	assert_true(bytes_right());
}

static void truncate_file(void)
{
	int fd = open(name, O_RDWR | O_TRUNC);

	assert_true(fd >= 0);
	assert_int_equal(fsync(fd), 0);
	close(fd);
}

static void write_bytes(uint64_t len)
{
	unsigned char *bytes = malloc(len);
	int fd = open(name, O_RDWR);

	fixture_fill(bytes, len, 1);
	assert_int_equal(pwrite(fd, bytes, len, 0), len);
	close(fd);
	free(bytes);
}

/* Opens a file without written bytes, and makes its route (the set of paths to the device). The
 * canary cannot prove the direct path of this route, because the file has no bytes to read. */
static void open_unproven_route(void)
{
	make_file_and_device("threads");
	require_extents();
	truncate_file();
	open_listed(1, 0);
	make_route(0, 0);
}

/* The file has no written bytes when its route (the set of paths to the device) is made. The first
 * request after bytes were written runs the canary, even if the blocks of these bytes had been
 * reserved before. Later requests do not repeat the canary read. */
static void canary_runs_once_bytes_are_written(void **state)
{
	struct pst_stats *stats = pst_stats_get();
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	uint64_t canaries_before;

	(void)state;
	make_file_and_device("threads");
	require_extents();
	for (unsigned reserved = 0; reserved < 2; reserved++) {
		truncate_file();
		if (reserved) {
			int fd = open(name, O_RDWR);

			(void)!fallocate(fd, 0, 0, LEN);
			close(fd);
		}
		open_listed(1, 0);
		make_route(0, 0);
		assert_string_equal(penstock_why_name(explain_odirect().why), "unproven");
		assert_int_equal(transfer(PENSTOCK_DIRECT, NULL), -EOPNOTSUPP);
		write_bytes(LEN);
		canaries_before = atomic_load(&stats->canaries);
		assert_int_equal(transfer(PENSTOCK_DIRECT, &report), CANARY_LEN);
		assert_string_equal(report.path, "odirect");
		assert_true(bytes_right());
		assert_int_equal(atomic_load(&stats->canaries), canaries_before + 1);
		write_bytes(LEN);
		expect_usable();
		assert_int_equal(atomic_load(&stats->canaries), canaries_before + 1);
	}
}

/* A canary (test read) that runs only after the first request also detects a read that delivers
 * nothing. */
static void later_canary_read_lies(void **state)
{
	(void)state;
	open_unproven_route();
	write_bytes(LEN);
	calls_arm(CALLS_FILL, 2, CALLS_LIE);
	assert_int_equal(transfer(PENSTOCK_DIRECT, NULL), -EOPNOTSUPP);
	assert_int_equal(calls_disarm(), 1);
	expect_refused(PENSTOCK_WHY_CANARY, "8192 of 8192 words");
	assert_true(bytes_right());
}

/* The library does not repeat the canary (a test read) while the file stays unchanged. */
static void unchanged_file_is_not_tried_again(void **state)
{
	struct pst_stats *stats = pst_stats_get();
	uint64_t canaries_before;

	(void)state;
	make_file_and_device("threads");
	require_extents();
	truncate_file();
	for (unsigned len = 100; len < 300; len += 100) {
		struct timespec then = {.tv_sec = 1000000000 + len};

		canaries_before = atomic_load(&stats->canaries);
		write_bytes(len);
		/* Writes all blocks to the drive, so that the kernel writes none later. */
		fixture_set_cached(name, false);
		assert_int_equal(utimensat(AT_FDCWD, name, (struct timespec[2]){then, then}, 0), 0);
		if (len == 100) {
			open_listed(1, 0);
			make_route(0, 0);
		}
		for (unsigned i = 0; i < 10; i++)
			assert_int_equal(transfer(PENSTOCK_ANY, NULL), len);
		assert_int_equal(atomic_load(&stats->canaries), canaries_before + 1);
		assert_string_equal(penstock_why_name(explain_odirect().why), "unproven");
	}
}

/* After a canary (test read) has succeeded, the library allocates a new route (the set of paths
 * between file and device). If there is no memory for the new route, the request uses the old
 * route, and the next request runs the canary. */
static void no_memory_for_a_new_route(void **state)
{
	struct pst_stats *stats = pst_stats_get();
	uint64_t canaries_before;
	unsigned hits;
	int64_t moved;

	(void)state;
	open_unproven_route();
	/* The first transfer makes allocations that later transfers do not make. They must come
	 * before the injected failure. */
	assert_int_equal(transfer(PENSTOCK_ANY, NULL), 0);
	write_bytes(LEN);
	canaries_before = atomic_load(&stats->canaries);
	memory_arm(1);
	moved = transfer(PENSTOCK_ANY, NULL);
	memory_disarm(&hits);
	assert_int_equal(moved, CANARY_LEN);
	assert_int_equal(hits, 1);
	assert_int_equal(atomic_load(&stats->canaries), canaries_before);
	expect_usable();
}

/* While a stream waits for a request of the library, the library runs no canary (test read),
 * because that would allocate and copy. */
static void no_canary_while_a_stream_waits(void **state)
{
	struct pst_stats *stats = pst_stats_get();
	uint64_t canaries_before;
	int64_t moved;

	(void)state;
	open_unproven_route();
	write_bytes(LEN);
	canaries_before = atomic_load(&stats->canaries);
	atomic_fetch_add(&host->streams_waiting, 1);
	moved = transfer(PENSTOCK_ANY, NULL);
	atomic_fetch_sub(&host->streams_waiting, 1);
	assert_int_equal(moved, CANARY_LEN);
	assert_int_equal(atomic_load(&stats->canaries), canaries_before);
	assert_int_equal(transfer(PENSTOCK_DIRECT, NULL), CANARY_LEN);
}

/* Opens the file for writing, as if it were on this many drives, with stripe units of the length
 * CANARY_LEN. */
static void open_for_writing(unsigned drives)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;

	make_file_and_device("threads");
	opts.flags = PENSTOCK_O_WRITE;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	if (st->facts.fd_direct < 0)
		test_skip("no direct path to TMPDIR: %s", st->facts.why_direct.text);
	st->facts.listed = true;
	st->facts.drive_count = drives;
	st->facts.stripe_len = drives > 1 ? CANARY_LEN : 0;
	assert_int_equal(penstock_prepare(st, host, PENSTOCK_WRITE), 0);
}

/* Writes `count` pieces of CANARY_LEN bytes through the direct path, starting with the piece with
 * index `from`. Sets *reads to the number of reads by which the library read the pieces back. If
 * `lie` is true, the first of these reads delivers nothing. */
static int64_t write_direct(unsigned from, unsigned count, bool lie, unsigned *reads)
{
	struct penstock_seg seg = {.buf = mem, .dev = host};
	struct penstock_req req;
	int64_t n;

	seg.off = from * CANARY_LEN;
	seg.row_len = count * CANARY_LEN;
	req = test_request(st, &seg, 1, PENSTOCK_WRITE);
	req.require = PENSTOCK_DIRECT;
	calls_arm(CALLS_FILL, lie ? 1 : 0, CALLS_LIE);
	n = penstock_transfer(&req, NULL);
	calls_disarm();
	*reads = calls_counted();
	return n;
}

/* The library reads back the first direct write from a device to a file, to prove that its bytes
 * arrived. It does not read back later writes. */
static void first_write_is_read_back(void **state)
{
	unsigned reads;

	(void)state;
	open_for_writing(1);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(write_direct(i, 1, false, &reads), CANARY_LEN);
		assert_int_equal(reads, i ? 0 : 1);
	}
}

/* Each drive of a stripe may fail on its own. So the library reads back the first write on each
 * drive. */
static void first_write_on_each_drive_is_read_back(void **state)
{
	unsigned reads;

	(void)state;
	open_for_writing(4);
	assert_int_equal(write_direct(0, 1, false, &reads), CANARY_LEN);
	assert_int_equal(reads, 1);
	/* This piece is on the first drive again, which has passed its test. */
	assert_int_equal(write_direct(4, 1, false, &reads), CANARY_LEN);
	assert_int_equal(reads, 0);
	assert_int_equal(write_direct(1, 2, false, &reads), 2 * CANARY_LEN);
	assert_int_equal(reads, 1);
	assert_int_equal(write_direct(5, 2, false, &reads), 2 * CANARY_LEN);
	assert_int_equal(reads, 0);
	assert_int_equal(write_direct(3, 1, true, &reads), -EIO);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_CANARY);
}

/* After a direct write whose bytes did not arrive, the library reads back every later write on
 * this path. */
static void writes_after_a_failed_proof_are_read_back(void **state)
{
	unsigned reads;

	(void)state;
	open_for_writing(1);
	assert_int_equal(write_direct(0, 1, true, &reads), -EIO);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_CANARY);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(write_direct(i, 1, false, &reads), CANARY_LEN);
		assert_int_equal(reads, 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(proven_path_is_used, close_all),
		cmocka_unit_test_teardown(no_byte_arrives, close_all),
		cmocka_unit_test_teardown(last_word_does_not_arrive, close_all),
		cmocka_unit_test_teardown(reference_read_lies, close_all),
		cmocka_unit_test_teardown(each_drive_is_tested, close_all),
		cmocka_unit_test_teardown(only_written_extents_prove, close_all),
		cmocka_unit_test_teardown(first_write_is_read_back, close_all),
		cmocka_unit_test_teardown(first_write_on_each_drive_is_read_back, close_all),
		cmocka_unit_test_teardown(writes_after_a_failed_proof_are_read_back, close_all),
		cmocka_unit_test_teardown(file_written_after_open, close_all),
		cmocka_unit_test_teardown(canary_runs_once_bytes_are_written, close_all),
		cmocka_unit_test_teardown(later_canary_read_lies, close_all),
		cmocka_unit_test_teardown(unchanged_file_is_not_tried_again, close_all),
		cmocka_unit_test_teardown(no_memory_for_a_new_route, close_all),
		cmocka_unit_test_teardown(no_canary_while_a_stream_waits, close_all),
	};

	fixture_use_standin();
	return cmocka_run_group_tests_name("canary", tests, NULL, NULL);
}
