/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct reads that report success and deliver nothing, or not all: before a path is
 * believed it is tried, on every drive beneath and on written extents only, and what has
 * not proven itself is refused like what cannot be. The drive is TMPDIR's, said to be on
 * the allow-list; what lies is the system call.
 */
#include "world.h"

#include "calls.h"
#include "core/base/objects.h"
#include "core/base/stats.h"
#include "memory.h"

#define LEN (1u << 20)
#define TRIAL (64u << 10) /* bytes of one trial: 8192 words */

static struct penstock_device *host;
static struct penstock_storage *st;
static const char *name;
static unsigned char *mem;

static void begin(const char *engine)
{
	name = world_name("canary", false);
	world_file(name, LEN, 1);
	host = world_device("host", engine, 0);
	assert_int_equal(penstock_alloc(host, LEN, (void **)&mem), 0);
}

static int end(void **state)
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

/* As if a listed stack lay beneath, of so many drives that take turns of `stripe`. */
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

/* Makes the route while the n-th read lies so (0: none does); how many reads there were. */
static unsigned meet(unsigned nth, int how)
{
	unsigned hits;

	calls_arm(CALLS_FILL, nth, how);
	assert_int_equal(penstock_prepare(st, host, PENSTOCK_READ), 0);
	hits = calls_disarm();
	assert_int_equal(hits, nth ? 1 : 0);
	return calls_seen();
}

static int64_t transfer(enum penstock_class require, struct penstock_report *report)
{
	struct penstock_seg seg = {.buf = mem, .dev = host, .row_len = TRIAL};
	struct penstock_req req = PENSTOCK_REQ_INIT;

	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.require = require;
	return penstock_transfer(&req, report);
}

/* What is said of the path odirect, which is the direct one of host memory. */
static struct penstock_explain_path said(void)
{
	struct penstock_explanation e = {.size = sizeof(e)};
	struct penstock_seg seg = {.dev = host, .row_len = TRIAL};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	unsigned i = 0;

	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	assert_int_equal(penstock_explain(&req, &e), 0);
	while (strcmp(e.paths[i].name, "odirect"))
		assert_true(++i < e.path_count);
	return e.paths[i];
}

static void expect_proven(void)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_explain_path path = said();

	if (!path.usable)
		fail_msg("it is shut: %s", path.text);
	assert_int_equal(path.proven, 1);
	assert_int_equal(path.meets, PENSTOCK_DIRECT);
	assert_int_equal(transfer(PENSTOCK_DIRECT, &report), TRIAL);
	assert_string_equal(report.path, "odirect");
}

/* The next path is taken; under a required class nothing is, and nothing moves. */
static void expect_refused(enum penstock_why why, const char *words)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_explain_path path = said();

	assert_int_equal(path.usable, 0);
	assert_int_equal(path.proven, -1);
	assert_string_equal(penstock_why_name(path.why), penstock_why_name(why));
	if (!strstr(path.text, words))
		fail_msg("'%s' says nothing of '%s'", path.text, words);
	memset(mem, 0xee, TRIAL);
	assert_int_equal(transfer(PENSTOCK_DIRECT, NULL), -EOPNOTSUPP);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_REQUIRE);
	for (unsigned i = 0; i < TRIAL; i++)
		assert_int_equal(mem[i], 0xee);
	assert_int_equal(transfer(PENSTOCK_ANY, &report), TRIAL);
	assert_string_not_equal(report.path, "odirect");
}

static bool bytes_right(void)
{
	unsigned char *want = malloc(TRIAL);
	bool same;

	world_fill(want, TRIAL, 1);
	same = !memcmp(mem, want, TRIAL);
	free(want);
	return same;
}

static void needs_extents(void)
{
	open_listed(1, 0);
	meet(0, 0);
	if (said().why == PENSTOCK_WHY_UNPROVEN)
		test_skip("no direct path to TMPDIR: it does not tell what is written");
}

/* ---- the cases ---- */

static void what_arrives_is_believed(void **state)
{
	(void)state;
	begin("threads");
	needs_extents();
	expect_proven();
	assert_true(bytes_right());
}

/* Nothing at all arrives, by either engine. */
static void nothing_arrives(void **state)
{
	static const char *const engines[] = {"threads", "auto"};
	struct pst_stats *stats = pst_stats_get();

	for (unsigned i = 0; i < 2; i++) {
		uint64_t failed;

		begin(engines[i]);
		needs_extents();
		failed = atomic_load(&stats->canaries_failed);
		open_listed(1, 0);
		assert_int_equal(meet(2, CALLS_LIE), 2); /* behind the reference */
		assert_int_equal(atomic_load(&stats->canaries_failed), failed + 1);
		expect_refused(PENSTOCK_WHY_CANARY, "8192 of 8192 words");
		assert_true(bytes_right());
		end(state);
	}
}

/* Every word is looked at. */
static void a_word_does_not_arrive(void **state)
{
	(void)state;
	begin("threads");
	needs_extents();
	open_listed(1, 0);
	meet(2, CALLS_LIE_END);
	expect_refused(PENSTOCK_WHY_CANARY, " 1 of 8192 words");
}

/* What is taken for the truth must have arrived, too. */
static void the_reference_does_not_arrive(void **state)
{
	(void)state;
	begin("threads");
	needs_extents();
	open_listed(1, 0);
	meet(1, CALLS_LIE);
	expect_refused(PENSTOCK_WHY_CANARY, "words");
}

/* One drive of a stripe behind another bridge. */
static void each_drive_for_itself(void **state)
{
	enum { DRIVES = 3 };

	(void)state;
	begin("threads");
	needs_extents();
	open_listed(DRIVES, TRIAL);
	assert_int_equal(meet(0, 0), 2 * DRIVES);
	expect_proven();
	for (unsigned i = 1; i <= DRIVES; i++) {
		open_listed(DRIVES, TRIAL);
		meet(2 * i, CALLS_LIE);
		expect_refused(PENSTOCK_WHY_CANARY, "words");
	}
	/* The file ends before the last drive's turn. */
	open_listed(LEN / TRIAL + 1, TRIAL);
	meet(0, 0);
	expect_refused(PENSTOCK_WHY_UNPROVEN, "16 of 17 drives");
}

/* Holes and what is only reserved are zeros without a drive: they prove nothing. */
static void only_what_is_written(void **state)
{
	const char *kinds[] = {"a hole", "reserved", "too short", "empty"};
	int fd;

	(void)state;
	begin("threads");
	needs_extents();
	for (unsigned i = 0; i < 4; i++) {
		fd = open(name, O_RDWR | O_TRUNC);
		assert_true(fd >= 0);
		if (i == 0)
			assert_int_equal(ftruncate(fd, LEN), 0);
		else if (i == 1 && fallocate(fd, 0, 0, LEN))
			kinds[i] = NULL; /* none of that here */
		else if (i == 2)
			assert_int_equal(write(fd, mem, 4095), 4095);
		assert_int_equal(fsync(fd), 0);
		close(fd);
		if (!kinds[i])
			continue;
		open_listed(1, 0);
		printf("# %s: %u reads\n", kinds[i], meet(0, 0));
		assert_int_equal(said().usable, 0);
		assert_string_equal(penstock_why_name(said().why), "unproven");
		if (i < 2)
			expect_refused(PENSTOCK_WHY_UNPROVEN, "written extent");
	}
	/* One written block behind it all is enough. */
	fd = open(name, O_RDWR | O_TRUNC);
	memset(mem, 0x5a, 4096);
	assert_int_equal(pwrite(fd, mem, 4096, LEN - 4096), 4096);
	assert_int_equal(fsync(fd), 0);
	close(fd);
	open_listed(1, 0);
	assert_int_equal(meet(0, 0), 2);
	expect_proven();
}

/* What was written since it was opened is there to be tried on. */
static void a_file_that_grew(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;

	(void)state;
	begin("threads");
	needs_extents();
	penstock_close(st);
	st = NULL;
	unlink(name);
	opts.flags = PENSTOCK_O_CREATE;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	st->facts.listed = true;
	world_fill(mem, LEN, 1);
	assert_int_equal(penstock_write(st, host, mem, LEN, 0), LEN);
	assert_int_equal(penstock_storage_length(st), LEN);
	expect_proven();
	assert_true(bytes_right());
}

static void make_empty(void)
{
	int fd = open(name, O_RDWR | O_TRUNC);

	assert_true(fd >= 0);
	assert_int_equal(fsync(fd), 0);
	close(fd);
}

static void put_bytes(uint64_t len)
{
	unsigned char *bytes = malloc(len);
	int fd = open(name, O_RDWR);

	world_fill(bytes, len, 1);
	assert_int_equal(pwrite(fd, bytes, len, 0), len);
	close(fd);
	free(bytes);
}

/* A route that had nothing to be tried on is tried by the first request that finds some,
 * also where the room was there before; and no more after that. */
static void tried_when_there_is_something(void **state)
{
	struct pst_stats *stats = pst_stats_get();
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	uint64_t tried;

	(void)state;
	begin("threads");
	needs_extents();
	for (unsigned reserved = 0; reserved < 2; reserved++) {
		make_empty();
		if (reserved) {
			int fd = open(name, O_RDWR);

			(void)!fallocate(fd, 0, 0, LEN);
			close(fd);
		}
		open_listed(1, 0);
		meet(0, 0);
		assert_string_equal(penstock_why_name(said().why), "unproven");
		assert_int_equal(transfer(PENSTOCK_DIRECT, NULL), -EOPNOTSUPP);
		put_bytes(LEN);
		tried = atomic_load(&stats->canaries);
		assert_int_equal(transfer(PENSTOCK_DIRECT, &report), TRIAL);
		assert_string_equal(report.path, "odirect");
		assert_true(bytes_right());
		assert_int_equal(atomic_load(&stats->canaries), tried + 1);
		put_bytes(LEN);
		expect_proven();
		assert_int_equal(atomic_load(&stats->canaries), tried + 1);
	}
}

/* What lies then is caught then. */
static void lies_when_there_is_something(void **state)
{
	(void)state;
	begin("threads");
	needs_extents();
	make_empty();
	open_listed(1, 0);
	meet(0, 0);
	put_bytes(LEN);
	calls_arm(CALLS_FILL, 2, CALLS_LIE);
	assert_int_equal(transfer(PENSTOCK_DIRECT, NULL), -EOPNOTSUPP);
	assert_int_equal(calls_disarm(), 1);
	expect_refused(PENSTOCK_WHY_CANARY, "8192 of 8192 words");
	assert_true(bytes_right());
}

/* A file that stays as it is is not tried again and again. */
static void nothing_new_is_not_tried(void **state)
{
	struct pst_stats *stats = pst_stats_get();
	uint64_t tried;

	(void)state;
	begin("threads");
	needs_extents();
	make_empty();
	for (unsigned len = 100; len < 300; len += 100) {
		struct timespec then = {.tv_sec = 1000000000 + len};

		tried = atomic_load(&stats->canaries);
		put_bytes(len);
		world_cache(name, false); /* no block of it comes to be later */
		assert_int_equal(utimensat(AT_FDCWD, name, (struct timespec[2]){then, then}, 0), 0);
		if (len == 100) {
			open_listed(1, 0);
			meet(0, 0);
		}
		for (unsigned i = 0; i < 10; i++)
			assert_int_equal(transfer(PENSTOCK_ANY, NULL), len);
		assert_int_equal(atomic_load(&stats->canaries), tried + 1);
		assert_string_equal(penstock_why_name(said().why), "unproven");
	}
}

/* Without memory for another route the request goes as it would have, and the next one tries. */
static void no_memory_to_try_with(void **state)
{
	struct pst_stats *stats = pst_stats_get();
	uint64_t tried;
	unsigned hits;
	int64_t moved;

	(void)state;
	begin("threads");
	needs_extents();
	make_empty();
	open_listed(1, 0);
	meet(0, 0);
	assert_int_equal(transfer(PENSTOCK_ANY, NULL), 0); /* nothing of this is made any more */
	put_bytes(LEN);
	tried = atomic_load(&stats->canaries);
	memory_arm(1);
	moved = transfer(PENSTOCK_ANY, NULL);
	memory_disarm(&hits);
	assert_int_equal(moved, TRIAL);
	assert_int_equal(hits, 1);
	assert_int_equal(atomic_load(&stats->canaries), tried);
	expect_proven();
}

/* No trial while a stream waits for a request of ours: it takes memory and copies. */
static void not_while_a_stream_waits(void **state)
{
	struct pst_stats *stats = pst_stats_get();
	uint64_t tried;
	int64_t moved;

	(void)state;
	begin("threads");
	needs_extents();
	make_empty();
	open_listed(1, 0);
	meet(0, 0);
	put_bytes(LEN);
	tried = atomic_load(&stats->canaries);
	atomic_fetch_add(&host->streams_waiting, 1);
	moved = transfer(PENSTOCK_ANY, NULL);
	atomic_fetch_sub(&host->streams_waiting, 1);
	assert_int_equal(moved, TRIAL);
	assert_int_equal(atomic_load(&stats->canaries), tried);
	assert_int_equal(transfer(PENSTOCK_DIRECT, NULL), TRIAL);
}

/* For writing, of so many drives that take turns of a trial. */
static void begin_writing(unsigned drives)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;

	begin("threads");
	opts.flags = PENSTOCK_O_WRITE;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	if (st->facts.fd_direct < 0)
		test_skip("no direct path to TMPDIR: %s", st->facts.why_direct.text);
	st->facts.listed = true;
	st->facts.drive_count = drives;
	st->facts.stripe_len = drives > 1 ? TRIAL : 0;
	assert_int_equal(penstock_prepare(st, host, PENSTOCK_WRITE), 0);
}

/* Writes directly, so many trials long from this one on; in *reads how often it was read
 * back, the first time lying if it is to. */
static int64_t put(unsigned from, unsigned count, bool lie, unsigned *reads)
{
	struct penstock_seg seg = {.buf = mem, .dev = host};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	int64_t n;

	seg.off = from * TRIAL;
	seg.row_len = count * TRIAL;
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.op = PENSTOCK_WRITE;
	req.require = PENSTOCK_DIRECT;
	calls_arm(CALLS_FILL, lie ? 1 : 0, CALLS_LIE);
	n = penstock_transfer(&req, NULL);
	calls_disarm();
	*reads = calls_seen();
	return n;
}

/* The first direct write of a route is read back; those that follow cost no reading. */
static void a_write_is_proven_once(void **state)
{
	unsigned reads;

	(void)state;
	begin_writing(1);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(put(i, 1, false, &reads), TRIAL);
		assert_int_equal(reads, i ? 0 : 1);
	}
}

/* One drive's bytes prove nothing of another's. */
static void a_write_is_proven_on_each_drive(void **state)
{
	unsigned reads;

	(void)state;
	begin_writing(4);
	assert_int_equal(put(0, 1, false, &reads), TRIAL);
	assert_int_equal(reads, 1);
	assert_int_equal(put(4, 1, false, &reads), TRIAL); /* the first one's turn again */
	assert_int_equal(reads, 0);
	assert_int_equal(put(1, 2, false, &reads), 2 * TRIAL);
	assert_int_equal(reads, 1);
	assert_int_equal(put(5, 2, false, &reads), 2 * TRIAL);
	assert_int_equal(reads, 0);
	assert_int_equal(put(3, 1, true, &reads), -EIO);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_CANARY);
}

/* A path that has lied once is not believed because another chunk arrives. */
static void a_write_that_did_not_arrive(void **state)
{
	unsigned reads;

	(void)state;
	begin_writing(1);
	assert_int_equal(put(0, 1, true, &reads), -EIO);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_CANARY);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(put(i, 1, false, &reads), TRIAL);
		assert_int_equal(reads, 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(what_arrives_is_believed, end),
		cmocka_unit_test_teardown(nothing_arrives, end),
		cmocka_unit_test_teardown(a_word_does_not_arrive, end),
		cmocka_unit_test_teardown(the_reference_does_not_arrive, end),
		cmocka_unit_test_teardown(each_drive_for_itself, end),
		cmocka_unit_test_teardown(only_what_is_written, end),
		cmocka_unit_test_teardown(a_write_is_proven_once, end),
		cmocka_unit_test_teardown(a_write_is_proven_on_each_drive, end),
		cmocka_unit_test_teardown(a_write_that_did_not_arrive, end),
		cmocka_unit_test_teardown(a_file_that_grew, end),
		cmocka_unit_test_teardown(tried_when_there_is_something, end),
		cmocka_unit_test_teardown(lies_when_there_is_something, end),
		cmocka_unit_test_teardown(nothing_new_is_not_tried, end),
		cmocka_unit_test_teardown(no_memory_to_try_with, end),
		cmocka_unit_test_teardown(not_while_a_stream_waits, end),
	};

	world_use_standin();
	return cmocka_run_group_tests_name("canary", tests, NULL, NULL);
}
