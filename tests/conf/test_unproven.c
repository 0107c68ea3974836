/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A direct path that had nothing to be tried on gets its bytes while threads read: one of
 * them tries it, and the route that the others' requests are on their way by stays what it
 * was. Most of it is seen by the sanitizers. The file is TMPDIR's, said to be on the
 * allow-list.
 */
#include "test.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "core/route/route.h"
#include "core/base/stats.h"

#define LEN (1u << 20)
#define READERS 3
#define ROUNDS 8
#define PATIENCE_MS 10000 /* longer than any rest between trials */
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static struct penstock_device *host;
static struct penstock_storage *st;
static unsigned char *bytes;
static char name[256];
static _Atomic bool over;
static _Atomic unsigned whole; /* readers that have read it all since it was there */

static int setup(void **state)
{
	const char *tmp = getenv("TMPDIR");
	uint64_t seed = 5;

	(void)state;
	bytes = malloc(LEN);
	if (!bytes || penstock_device_open("host", NULL, &host) < 0)
		return -1;
	for (size_t i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)test_random(&seed);
	snprintf(name, sizeof(name), "%s/penstock-unproven-%d", tmp ? tmp : "/tmp", (int)getpid());
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

/* Whatever is there is right, whichever way it came. */
static void *reader(void *arg)
{
	unsigned char *back = aligned_alloc(4096, LEN);
	bool all = false;

	while (!over) {
		struct penstock_report report = PENSTOCK_REPORT_INIT;
		struct penstock_seg seg = {.buf = back, .dev = host, .row_len = LEN};
		struct penstock_req req = PENSTOCK_REQ_INIT;
		int64_t n;

		req.storage = st;
		req.segs = &seg;
		req.seg_count = 1;
		n = penstock_transfer(&req, &report);
		if (n < 0 || memcmp(back, bytes, (size_t)n)) {
			fprintf(stderr, "%lld bytes: %s\n", (long long)n, penstock_errmsg());
			abort();
		}
		if (n == LEN && !all)
			whole++;
		all |= n == LEN;
	}
	free(back);
	return arg;
}

static struct penstock_explain_path odirect(void)
{
	struct penstock_explanation e = {.size = sizeof(e)};
	struct penstock_seg seg = {.dev = host, .row_len = LEN};
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

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* It may rest from trials in vain, for a second. */
static int await_proven(void)
{
	uint64_t until = now_ms() + PATIENCE_MS;

	while (odirect().proven != 1 && now_ms() < until)
		usleep(1000);
	return odirect().proven;
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
	assert_string_equal(penstock_why_name(odirect().why), "unproven");
}

/* Of the file as it is, opened anew. */
static bool tells(void)
{
	bool proven;

	assert_int_equal(penstock_open(name, NULL, &st), 0);
	st->facts.listed = true;
	proven = odirect().proven == 1;
	penstock_close(st);
	return proven;
}

/* There are bytes now: the path is open with one of the next requests. Closes both. */
static void is_proven(int fd)
{
	int proven = await_proven();

	penstock_close(st);
	close(fd);
	if (proven != 1 && !tells())
		test_skip("no direct path to TMPDIR: it does not tell what is written");
	assert_int_equal(proven, 1);
}

static void tried_while_others_read(void **state)
{
	pthread_t threads[READERS];

	(void)state;
	for (unsigned round = 0; round < ROUNDS; round++) {
		int fd;

		open_empty(&fd);
		over = false;
		whole = 0;
		for (unsigned i = 0; i < READERS; i++)
			assert_int_equal(pthread_create(&threads[i], NULL, reader, NULL), 0);
		assert_int_equal(pwrite(fd, bytes, LEN, 0), LEN);
		while (whole < READERS)
			usleep(100);
		over = true;
		for (unsigned i = 0; i < READERS; i++)
			assert_int_equal(pthread_join(threads[i], NULL), 0);
		is_proven(fd);
	}
}

/* What reports say lives as long as they do, also if the route was made anew meanwhile. */
static void reports_keep_their_words(void **state)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	unsigned char *back = aligned_alloc(4096, LEN), *other = aligned_alloc(4096, LEN);
	struct penstock_seg seg = {.buf = other, .dev = host, .row_len = LEN};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_queue *q;
	struct penstock_done done;
	const char *text = "";
	int fd;

	(void)state;
	open_empty(&fd);
	assert_int_equal(penstock_queue_open(&opts, &q), 0);
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
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

static uint64_t trials(void)
{
	return atomic_load(&pst_stats_get()->canaries);
}

/* A file that changes before every request, with nothing ever written: eight trials are
 * free, and each further one that finds nothing has the next one wait twice as long, from 1 ms
 * to 1 s. When there are bytes it is tried in time. */
static void not_with_every_request(void **state)
{
	unsigned char back[4096];
	uint64_t before, begun, took, some, most = 10, asked = 0;
	int fd;

	(void)state;
	before = trials();
	open_empty(&fd);
	some = trials() - before; /* at least one by each path that asks for it */
	assert_true(some > 0);
	before = trials();
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
	       (unsigned long long)(trials() - before), (unsigned long long)took,
	       (unsigned long long)(most * some));
	assert_in_range(trials() - before, 1, most * some);
	assert_int_equal(pwrite(fd, bytes, LEN, 0), LEN);
	is_proven(fd);
}

/* What is explained of some bytes, and what then becomes of them. */
static void explained(const struct penstock_req *req)
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
	if (e.taken >= 0 && (req->op || !e.resident)) /* else somebody tries where they are */
		assert_string_equal(report.path, e.paths[e.taken].name);
}

/* Direct paths carry whole blocks: what has none, or has ends, goes otherwise or not at all,
 * and is said to. */
static void what_has_no_block(void **state)
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
	if (odirect().proven != 1)
		test_skip("no direct path to TMPDIR: it does not tell what is written");
	for (unsigned i = 0; i < 4 * COUNT(pieces); i++) {
		struct penstock_seg seg = {.dev = host,
					   .off = pieces[i / 4].off,
					   .row_len = pieces[i / 4].len,
					   .room = pieces[i / 4].room};
		struct penstock_req req = PENSTOCK_REQ_INIT;

		seg.buf = back + seg.off % 4096;
		memcpy(seg.buf, bytes + seg.off, seg.row_len);
		req.storage = st;
		req.segs = &seg;
		req.seg_count = 1;
		req.op = i & 1 ? PENSTOCK_WRITE : PENSTOCK_READ;
		req.require = i & 2 ? PENSTOCK_NO_CPU_COPY : PENSTOCK_ANY;
		if (req.op && seg.room)
			continue; /* is for what is being created */
		assert_int_equal(fdatasync(fd), 0);
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		explained(&req);
	}
	penstock_close(st);
	close(fd);
	free(back);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tried_while_others_read),
		cmocka_unit_test(reports_keep_their_words),
		cmocka_unit_test(not_with_every_request),
		cmocka_unit_test(what_has_no_block),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
