/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls keep failing with "try again". If io_uring_enter accepts no more entries, plain
 * calls carry the requests. A call that would always block, or is always interrupted, becomes an
 * error after a number of attempts. No thread waits without a limit, and every byte is right.
 * The storage works again as soon as the calls succeed again.
 */
#include "fixture.h"
#include "request.h"

#include "calls.h"

#define LEN (2u << 20)
#define SMALL (64u << 10)
#define ENTERS_MAX 200 /* maximum number of io_uring_enter calls before two threads give up */
#define CALLS_MAX 1200 /* maximum number of failed system calls before four chunks fail */
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* A file of `len` bytes, memory for it, and a transfer between the file and the memory. The
 * transfer names its path, so it cannot use another one: "odirect" if TMPDIR supports it, else
 * "bounce". */
struct scene {
	const char *name, *path;
	enum penstock_op op;
	uint64_t len;
	struct penstock_device *dev;
	struct penstock_storage *st;
	unsigned char *mem, *want;
	struct penstock_report report;
};

static int64_t transfer(struct scene *s)
{
	struct penstock_seg seg = {.buf = s->mem, .dev = s->dev, .row_len = s->len};
	struct penstock_req req;

	req = test_request(s->st, &seg, 1, s->op);
	req.path = s->path;
	req.flags = s->op ? PENSTOCK_R_DURABLE : 0;
	s->report = (struct penstock_report)PENSTOCK_REPORT_INIT;
	if (s->op == PENSTOCK_READ && !strcmp(penstock_device_name(s->dev), "host"))
		memset(s->mem, 0, s->len);
	return penstock_transfer(&req, &s->report);
}

static void scene_open(struct scene *s, const char *engine)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;

	s->name = fixture_name("data", false);
	s->dev = fixture_open_device("host", engine, 0);
	s->want = malloc(s->len);
	assert_non_null(s->want);
	assert_int_equal(penstock_alloc(s->dev, s->len, (void **)&s->mem), 0);
	fixture_make_file(s->name, s->len, 1);
	fixture_fill(s->want, s->len, s->op ? 2 : 1);
	if (s->op)
		memcpy(s->mem, s->want, s->len);
	fixture_set_cached(s->name, false);
	opts.flags = PENSTOCK_O_WRITE;
	assert_int_equal(penstock_open(s->name, &opts, &s->st), 0);
	assert_int_equal(penstock_prepare(s->st, s->dev, s->op), 0);
	s->path = "odirect";
	if (transfer(s) == -EOPNOTSUPP)
		s->path = "bounce";
}

static void scene_close(struct scene *s)
{
	penstock_close(s->st);
	penstock_free(s->dev, s->mem);
	penstock_device_close(s->dev);
	free(s->want);
	unlink(s->name);
}

static void transfer_and_compare(struct scene *s)
{
	unsigned char *back = s->mem;

	if (transfer(s) != (int64_t)s->len)
		fail_msg("%s, path %s: %s", s->op ? "write" : "read", s->path, s->report.text);
	if (s->op) {
		int fd = open(s->name, O_RDONLY);

		back = malloc(s->len);
		assert_non_null(back);
		assert_int_equal(pread(fd, back, s->len, 0), s->len);
		close(fd);
	}
	assert_memory_equal(back, s->want, s->len);
	if (s->op)
		free(back);
}

/* Makes a transfer while io_uring_enter fails from the n-th call on. */
static void transfer_with_failing_enter(enum penstock_op op, unsigned nth, int how)
{
	struct scene s = {.op = op, .len = LEN};

	scene_open(&s, "uring");
	calls_arm_onwards(CALLS_ENTER, nth, how);
	for (unsigned turn = 0; turn < 3; turn++) {
		transfer_and_compare(&s);
		/* the calls before the n-th one may have carried all bytes, so that no call fails
		 */
		if (nth > 1 && !turn)
			continue;
		assert_string_equal(s.report.engine, "threads");
		assert_int_equal(s.report.engine_why, PENSTOCK_WHY_NO_URING);
		assert_int_equal(s.report.retries, 0);
	}
	calls_disarm();
	assert_in_range(calls_counted(), nth, ENTERS_MAX);
	scene_close(&s);
}

static void failing_enter_falls_back_to_plain_calls(void **state)
{
	static const int hows[] = {EAGAIN, EBUSY, ENOMEM, EBADR, EPERM};

	(void)state;
	if (!fixture_has_uring())
		test_skip("io_uring is refused here");
	for (unsigned i = 0; i < COUNT(hows); i++) {
		transfer_with_failing_enter(PENSTOCK_READ, 1 + i % 3, hows[i]);
		transfer_with_failing_enter(PENSTOCK_WRITE, 1 + i % 2, hows[i]);
	}
}

/* Reads through a ring (staging memory) that the library registers with io_uring. If the
 * registration is refused, the report must say why. */
static void read_through_registered_ring(int refusal)
{
	struct scene s = {.len = LEN};
	struct penstock_device *host = fixture_open_device("host", "uring", 0);
	struct penstock_explanation why = {.size = sizeof(why)};
	struct penstock_seg seg = {.row_len = LEN};
	struct penstock_req req;
	unsigned char *back = malloc(LEN);

	s.name = fixture_name("data", false);
	fixture_make_file(s.name, LEN, 1);
	fixture_set_cached(s.name, false);
	calls_arm_onwards(CALLS_REGISTER, refusal ? 1 : 0, refusal);
	s.dev = fixture_open_device("cuda:0", "uring", 0);
	assert_int_equal(penstock_alloc(s.dev, LEN, (void **)&s.mem), 0);
	assert_int_equal(penstock_open(s.name, NULL, &s.st), 0);
	seg.dev = s.dev;
	req = test_request(s.st, &seg, 1, PENSTOCK_READ);
	assert_int_equal(penstock_explain(&req, &why), 0);
	assert_string_equal(why.engine, "uring");
	s.path = "staged";
	if (transfer(&s) == -EOPNOTSUPP) {
		s.path = "bounce";
		assert_int_equal(transfer(&s), LEN);
	}
	calls_disarm();
	test_copy(host, back, s.dev, s.mem, LEN);
	for (unsigned i = 0; i < LEN; i++)
		assert_int_equal(back[i], fixture_byte(i, 1));
	assert_int_equal(s.report.engine_why, why.engine_why);
	if (refusal)
		assert_int_equal(why.engine_why,
				 refusal == ENOMEM ? PENSTOCK_WHY_MEMLOCK : PENSTOCK_WHY_NO_FIXED);
	if (why.engine_why || !strcmp(s.path, "staged"))
		assert_int_equal(calls_fixed_count() > 0, why.engine_why == PENSTOCK_WHY_NONE);
	free(back);
	penstock_close(s.st);
	penstock_free(s.dev, s.mem);
	penstock_device_close(s.dev);
	penstock_device_close(host);
	unlink(s.name);
}

static void reads_use_the_registered_ring(void **state)
{
	(void)state;
	if (!fixture_has_uring())
		test_skip("io_uring is refused here");
	read_through_registered_ring(0);
	read_through_registered_ring(ENOMEM);
	read_through_registered_ring(EOPNOTSUPP);
}

static void transfer_with_failing_call(enum calls_kind kind, const char *engine, uint64_t len,
				       int how)
{
	struct scene s = {.op = kind == CALLS_FILL ? PENSTOCK_READ : PENSTOCK_WRITE, .len = len};
	unsigned hits;

	scene_open(&s, engine);
	calls_arm_onwards(kind, 1, how);
	assert_int_equal(transfer(&s), -how);
	hits = calls_disarm();
	assert_in_range(hits, 2, CALLS_MAX);
	assert_int_equal(s.report.why, PENSTOCK_WHY_IO_ERROR);
	assert_non_null(strstr(s.report.text, strerror(how)));
	assert_int_equal(s.report.bytes, kind == CALLS_SYNC ? len : 0);
	transfer_and_compare(&s);
	scene_close(&s);
}

static void endless_retries_become_errors(void **state)
{
	static const char *const engines[] = {"auto", "threads"};
	static const enum calls_kind kinds[] = {CALLS_FILL, CALLS_DRAIN, CALLS_SYNC};

	(void)state;
	for (unsigned k = 0; k < COUNT(kinds); k++)
		for (unsigned e = 0; e < COUNT(engines); e++) {
			transfer_with_failing_call(kinds[k], engines[e], LEN, EAGAIN);
			transfer_with_failing_call(kinds[k], engines[e], LEN, EINTR);
			/* Repeats the transfer with a short request, which the caller's own
			 * thread carries. */
			transfer_with_failing_call(kinds[k], engines[e], SMALL, e ? EAGAIN : EINTR);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(failing_enter_falls_back_to_plain_calls),
		cmocka_unit_test(reads_use_the_registered_ring),
		cmocka_unit_test(endless_retries_become_errors),
	};

	fixture_use_standin();
	return cmocka_run_group_tests_name("lasting", tests, NULL, NULL);
}
