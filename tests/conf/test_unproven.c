/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The canary (a test read) could not prove a direct path, because the file had no written bytes.
 * Then bytes are written while threads read the file. One of the threads runs the canary and so
 * replaces the route (the prepared paths between file and device). The old route must remain valid
 * for the other requests in flight. The sanitizers detect most violations of this rule. The file is
 * on TMPDIR, marked as being on the library's allow-list for O_DIRECT.
 */
#include "explain.h"
#include "test.h"
#include "request.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>

#include "core/route/route.h"
#include "core/base/stats.h"

#define LEN (1u << 20)
#define READERS 3
#define ROUNDS 8
#define PATIENCE_MS 10000 /* time limit in ms, longer than any pause between two test reads */
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static struct penstock_device *host;
static struct penstock_storage *st;
static unsigned char *bytes;
static char name[256];
static _Atomic bool stop;
/* Number of threads that have read the whole file since it was written. */
static _Atomic unsigned readers_done;

static int setup(void **state)
{
	uint64_t seed = 5;

	(void)state;
	bytes = malloc(LEN);
	if (!bytes || penstock_device_open("host", NULL, &host) < 0)
		return -1;
	for (size_t i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)test_random(&seed);
	test_file_name(name, sizeof(name), "penstock-unproven");
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	unlink(name);
	free(bytes);
	penstock_device_close(host);
	return 0;
}

/* Reads until `stop` is true. All bytes that a read returns must be right, whichever path
 * carried it. */
static void *read_until_stopped(void *arg)
{
	unsigned char *back = aligned_alloc(4096, LEN);
	bool all = false;

	while (!stop) {
		struct penstock_report report = PENSTOCK_REPORT_INIT;
		struct penstock_seg seg = {.buf = back, .dev = host, .row_len = LEN};
		struct penstock_req req;
		int64_t n;

		req = test_request(st, &seg, 1, PENSTOCK_READ);
		n = penstock_transfer(&req, &report);
		if (n < 0 || memcmp(back, bytes, (size_t)n)) {
			fprintf(stderr, "%lld bytes: %s\n", (long long)n, penstock_errmsg());
			abort();
		}
		if (n == LEN && !all)
			readers_done++;
		all |= n == LEN;
	}
	free(back);
	return arg;
}

static struct penstock_explain_path explain_odirect(void)
{
	return test_explain_path(st, host, LEN, "odirect");
}

static uint64_t now_ms(void)
{
	return test_now_ns() / 1000000;
}

/* Waits until the canary (a test read) has proven path "odirect". After failed attempts the library
 * may wait up to a second before the next canary read. */
static int await_proven(void)
{
	uint64_t until = now_ms() + PATIENCE_MS;

	while (explain_odirect().proven != 1 && now_ms() < until)
		usleep(1000);
	return explain_odirect().proven;
}

static void open_empty(int *fd)
{
	*fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	assert_true(*fd >= 0);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	if (st->facts.fd_direct < 0)
		test_skip("no direct path to TMPDIR: %s", st->facts.why_direct.text);
	st->facts.listed = true;
	assert_int_equal(penstock_prepare(st, host, PENSTOCK_READ), 0);
	assert_string_equal(penstock_why_name(explain_odirect().why), "unproven");
}

/* Opens the file again and returns whether path "odirect" is proven: the canary (a test read) has
 * read the file's bytes correctly over this path. */
static bool file_can_be_proven(void)
{
	bool proven;

	assert_int_equal(penstock_open(name, NULL, &st), 0);
	st->facts.listed = true;
	proven = explain_odirect().proven == 1;
	penstock_close(st);
	return proven;
}

/* Checks that path "odirect" becomes proven: within PATIENCE_MS, a request must run the canary (a
 * test read), and the canary must succeed. Closes the storage and `fd`. */
static void check_proven(int fd)
{
	int proven = await_proven();

	penstock_close(st);
	close(fd);
	if (proven != 1 && !file_can_be_proven())
		test_skip("no direct path to TMPDIR: it does not report which extents are written");
	assert_int_equal(proven, 1);
}

static void canary_runs_while_others_read(void **state)
{
	pthread_t threads[READERS];

	(void)state;
	for (unsigned round = 0; round < ROUNDS; round++) {
		int fd;

		open_empty(&fd);
		stop = false;
		readers_done = 0;
		for (unsigned i = 0; i < READERS; i++)
			assert_int_equal(
				pthread_create(&threads[i], NULL, read_until_stopped, NULL), 0);
		assert_int_equal(pwrite(fd, bytes, LEN, 0), LEN);
		while (readers_done < READERS)
			usleep(100);
		stop = true;
		for (unsigned i = 0; i < READERS; i++)
			assert_int_equal(pthread_join(threads[i], NULL), 0);
		check_proven(fd);
	}
}

/* The texts in a report remain valid as long as the report, even if the library has replaced the
 * route (the prepared paths) to which the texts belong. */
static void report_texts_survive_a_new_route(void **state)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	unsigned char *back = aligned_alloc(4096, LEN), *other = aligned_alloc(4096, LEN);
	struct penstock_seg seg = {.buf = other, .dev = host, .row_len = LEN};
	struct penstock_req req;
	struct penstock_queue *q;
	struct penstock_done done;
	const char *text = "";
	int fd;

	(void)state;
	open_empty(&fd);
	assert_int_equal(penstock_queue_open(&opts, &q), 0);
	req = test_request(st, &seg, 1, PENSTOCK_READ);
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(pwrite(fd, bytes, LEN, 0), LEN);
	assert_int_equal(penstock_read(st, host, back, LEN, 0), LEN);
	penstock_close(st);
	assert_int_equal(penstock_wait(q, &done, 1, 1, -1), 1);
	for (unsigned i = 0; i < done.report->path_count; i++)
		if (!strcmp(done.report->paths[i].name, "odirect"))
			text = done.report->paths[i].text;
	assert_true(text[0]);
	penstock_queue_close(q);
	close(fd);
	free(back);
	free(other);
}

static uint64_t canary_reads(void)
{
	return atomic_load(&pst_stats_get()->canaries);
}

/* The file grows before every request, but no bytes are written to it, so the canary (a test read)
 * cannot succeed. The library may run the first eight canary reads without a pause. After that,
 * each canary read that finds no written bytes must double the pause before the next canary read,
 * from 1 ms to 1 s. When bytes are written at the end, path "odirect" must become proven. */
static void canary_pauses_after_failures(void **state)
{
	unsigned char back[4096];
	uint64_t before, begun, took, some, most = 10, asked = 0;
	int fd;

	(void)state;
	before = canary_reads();
	open_empty(&fd);
	/* The open has run a canary (a test read) for each direct path. */
	some = canary_reads() - before;
	assert_true(some > 0);
	before = canary_reads();
	begun = now_ms();
	while (asked < 400 || now_ms() < begun + 20) {
		assert_int_equal(ftruncate(fd, (off_t)(++asked * 4096)), 0);
		assert_int_equal(penstock_read(st, host, back, sizeof(back), 0), sizeof(back));
	}
	took = now_ms() - begun + 1;
	for (uint64_t rest = 1, sum = 1; sum <= took; sum += rest) {
		rest = rest < 1000 ? 2 * rest : 1000;
		most++;
	}
	printf("# %llu requests, %llu trials in %llu ms, at most %llu\n", (unsigned long long)asked,
	       (unsigned long long)(canary_reads() - before), (unsigned long long)took,
	       (unsigned long long)(most * some));
	assert_in_range(canary_reads() - before, 1, most * some);
	assert_int_equal(pwrite(fd, bytes, LEN, 0), LEN);
	check_proven(fd);
}

/* Checks that the path which penstock_explain names carries the request. */
static void check_explained(const struct penstock_req *req)
{
	struct penstock_explanation e = {.size = sizeof(e)};
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	const struct penstock_seg *seg = req->segs;
	int64_t n;

	assert_int_equal(penstock_explain(req, &e), 0);
	n = penstock_transfer(req, &report);
	printf("# %s of %llu at %llu, class %d: %s, %s\n", req->op ? "write" : "read",
	       (unsigned long long)seg->row_len, (unsigned long long)seg->off, req->require,
	       e.taken < 0 ? "none" : e.paths[e.taken].name, n < 0 ? "none" : report.path);
	if (e.taken < 0)
		assert_int_equal(n, -EOPNOTSUPP);
	else
		assert_int_equal(n, seg->row_len);
	/* If it is unknown whether the bytes are cached, a chunk that tests this (the residency
	 * probe) may use another path. */
	if (e.taken >= 0 && (req->op || !e.resident))
		assert_string_equal(report.path, e.paths[e.taken].name);
}

/* Direct paths carry only whole blocks. A request that contains no whole block, or that has
 * unaligned ends, uses another path or is refused. penstock_explain must predict which of these
 * happens. */
static void requests_without_whole_blocks(void **state)
{
	static const struct {
		uint64_t off, len, room;
	} pieces[] = {{0, 4096, 0},	  {100, 100, 0}, {100, 200000, 0}, {0, 100, 0},
		      {0, 100, 4096},	  {0, 5000, 0},	 {4096, 8192, 0},  {1, 4095, 0},
		      {8192, 9000, 4096}, {0, LEN, 0}};
	unsigned char *back = aligned_alloc(4096, 2 * LEN);
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	int fd;

	(void)state;
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	assert_int_equal(pwrite(fd, bytes, LEN, 0), LEN);
	assert_int_equal(fdatasync(fd), 0);
	opts.flags = PENSTOCK_O_WRITE;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	if (st->facts.fd_direct < 0)
		test_skip("no direct path to TMPDIR: %s", st->facts.why_direct.text);
	st->facts.listed = true;
	if (explain_odirect().proven != 1)
		test_skip("no direct path to TMPDIR: it does not report which extents are written");
	for (unsigned i = 0; i < 4 * COUNT(pieces); i++) {
		struct penstock_seg seg = {.dev = host,
					   .off = pieces[i / 4].off,
					   .row_len = pieces[i / 4].len,
					   .room = pieces[i / 4].room};
		struct penstock_req req;

		seg.buf = back + seg.off % 4096;
		memcpy(seg.buf, bytes + seg.off, seg.row_len);
		req = test_request(st, &seg, 1, i & 1 ? PENSTOCK_WRITE : PENSTOCK_READ);
		req.require = i & 2 ? PENSTOCK_NO_CPU_COPY : PENSTOCK_ANY;
		if (req.op && seg.room)
			/* Padding is allowed only for writes to a file that is being created. */
			continue;
		assert_int_equal(fdatasync(fd), 0);
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		check_explained(&req);
	}
	penstock_close(st);
	close(fd);
	free(back);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(canary_runs_while_others_read),
		cmocka_unit_test(report_texts_survive_a_new_route),
		cmocka_unit_test(canary_pauses_after_failures),
		cmocka_unit_test(requests_without_whole_blocks),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
