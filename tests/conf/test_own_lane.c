/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues with a lane of their own: the same bytes and reports as any queue's, work that
 * goes on inside its calls and without the device's lanes, and one thread.
 */
#include "own_lane.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#define N 200
#define SECOND 1000000000ll

/* ---- bytes ---- */

/* The file in pieces of random lengths, one in eight too long for the own lane, into their
 * places of an image of it; `path` NULL: the plan decides. */
static void pieces(struct penstock_device *dev, const char *path, uint64_t align)
{
	struct penstock_storage *st;
	struct penstock_done done[16];
	uint64_t seed = test_seed(5), lens[N], at = 0;
	unsigned count = 0, have = 0, most = 0;
	char *mem;

	assert_int_equal(penstock_open(file, NULL, &st), 0);
	assert_int_equal(penstock_alloc(dev, LEN, (void **)&mem), 0);
	open_queue(dev);
	memset(back, 0xee, LEN);
	test_copy(dev, mem, host, back, LEN);
	for (; at < LEN && count < N; count++) {
		struct penstock_seg seg;
		struct penstock_req req;
		uint64_t len = 1 + test_random(&seed) % (count % 8 ? 100000 : 3 * MAX);

		len = (len + align - 1) / align * align;
		lens[count] = len < LEN - at ? len : LEN - at;
		req = read_of(st, &seg, dev, mem + at, at, lens[count]);
		req.path = path;
		req.effort = count % 3 ? PENSTOCK_FAST : PENSTOCK_THRIFTY;
		req.user = (void *)(uintptr_t)count;
		at += lens[count];
		submit(&req);
	}
	while (have < count) {
		int n = penstock_wait(q, done, 1, 16, -1);

		assert_in_range(n, 1, 16);
		for (int k = 0; k < n; k++) {
			uintptr_t i = (uintptr_t)done[k].user;

			assert_int_equal(done[k].result, lens[i]);
			assert_int_equal(done[k].report->bytes, lens[i]);
			if (path)
				assert_string_equal(done[k].report->path, path);
			most += lens[i] > MAX;
		}
		have += (unsigned)n;
	}
	assert_in_range(most, 1, count - 1); /* both kinds were there */
	test_copy(host, back, dev, mem, LEN);
	assert_memory_equal(back, bytes, at);
	penstock_free(dev, mem);
	penstock_close(st);
	end_queue(NULL);
}

static void bytes_of_each_path(void **state)
{
	int fd;

	(void)state;
	pieces(host, NULL, 1);
	pieces(host, "bounce", 1);
	pieces(gpu, NULL, 1);
	pieces(gpu, "staged", 1);
	pieces(gpu, "bounce", 1);
	fd = open(file, O_RDONLY | O_DIRECT | O_CLOEXEC); /* not on every file system */
	if (fd >= 0)
		pieces(host, "odirect", 4096);
	close(fd);
}

/* Written in odd pieces, made durable, and read by others. */
static void writes(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;
	struct penstock_done done[64];
	char *mem;
	int fd;

	(void)state;
	opts.flags = PENSTOCK_O_WRITE;
	assert_int_equal(penstock_open(file, &opts, &st), 0);
	assert_int_equal(penstock_alloc(gpu, LEN, (void **)&mem), 0);
	test_copy(gpu, mem, host, bytes, LEN);
	open_queue(gpu);
	fd = open(file, O_RDWR | O_CLOEXEC);
	memset(back, 0, LEN);
	assert_int_equal(pwrite(fd, back, 3000000, 1000), 3000000);
	for (unsigned i = 0; i < 50; i++) {
		struct penstock_seg seg;
		struct penstock_req req =
			read_of(st, &seg, gpu, mem + 1000 + i * 60000, 1000 + i * 60000, 60000);

		req.op = PENSTOCK_WRITE;
		req.flags = i % 5 ? 0 : PENSTOCK_R_DURABLE;
		submit(&req);
	}
	assert_int_equal(penstock_wait(q, done, 50, 64, -1), 50);
	for (unsigned i = 0; i < 50; i++)
		assert_int_equal(done[i].result, 60000);
	assert_int_equal(pread(fd, back, LEN, 0), LEN);
	assert_memory_equal(back, bytes, LEN);
	close(fd);
	penstock_free(gpu, mem);
	penstock_close(st);
}

/* ---- completions ---- */

/* Good ones, such as fail and such as are cancelled: each once. */
static void exactly_once(void **state)
{
	struct penstock_storage *st;
	struct penstock_done done[64];
	uint64_t ids[N];
	unsigned have = 0, failed = 0;

	(void)state;
	far_side(4);
	st = open_it(0);
	open_queue(host);
	for (unsigned i = 0; i < N; i++) {
		struct penstock_seg seg;
		struct penstock_req req = read_of(st, &seg, host, back + i * 50000, i * 30000ull,
						  i % 5 ? 1 + i % 7 * 8000 : 0);

		req.user = (void *)(uintptr_t)i;
		assert_int_equal(penstock_submit(q, &req, 1, &ids[i]), 1);
		if (i % 11 == 3)
			assert_int_equal(penstock_cancel(q, ids[i]), 0);
	}
	while (have < N) {
		int n = have % 2 ? penstock_poll(q, done, 64) : penstock_wait(q, done, 1, 64, -1);

		for (int k = 0; k < n; k++) {
			uintptr_t i = (uintptr_t)done[k].user;

			assert_int_equal(done[k].id, ids[i]);
			ids[i] = UINT64_MAX; /* a second time would not be equal */
			failed += done[k].result == -EIO;
			assert_true(done[k].result == -EIO || done[k].result == -ECANCELED ||
				    done[k].result == (int64_t)(i % 5 ? 1 + i % 7 * 8000 : 0));
		}
		have += (unsigned)n;
	}
	assert_in_range(failed, 1, N - 1);
	assert_int_equal(penstock_wait(q, done, 1, 64, -1), 0); /* nothing is in flight */
	penstock_close(st);
}

/* The device's only lane is full and held; the queue's own needs neither it nor its
 * thread, and is woken by whatever ends its transfers. */
static void needs_no_lane(void **state)
{
	static unsigned char aside[70000]; /* the other read has `back` in hand */
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_queue *other;
	struct penstock_storage *st, *mem;
	struct penstock_done done[4];
	struct penstock_seg seg;
	struct penstock_req req;
	pthread_t thread;

	(void)state;
	far_side(0);
	st = open_it(0);
	assert_int_equal(penstock_queue_open(&opts, &other), 0);
	open_queue(host);
	async_hold(far);
	req = read_of(st, &seg, host, back, 0, LEN);
	req.path = "bounce";
	assert_int_equal(penstock_submit(other, &req, 1, NULL), 1);
	assert_int_equal(async_await(far, PST_LANE_CHUNKS), 0);
	assert_int_equal(penstock_open("mem:1M?seed=3", NULL, &mem), 0);
	for (unsigned i = 0; i < 50; i++) {
		req = read_of(mem, &seg, host, aside, i * 4096, 4096);
		submit(&req);
		assert_int_equal(penstock_wait(q, done, 1, 4, 60 * SECOND), 1);
		assert_int_equal(done[0].result, 4096);
	}
	assert_int_equal(penstock_poll(other, done, 4), 0);
	req = read_of(st, &seg, host, aside, 0, 70000);
	submit(&req);
	assert_int_equal(penstock_wait(q, done, 1, 4, 5000000), 0); /* held */
	assert_int_equal(pthread_create(&thread, NULL, release_later, NULL), 0);
	assert_int_equal(penstock_wait(q, done, 1, 4, 60 * SECOND), 1);
	assert_int_equal(done[0].result, 70000);
	pthread_join(thread, NULL);
	penstock_queue_close(other);
	penstock_close(mem);
	penstock_close(st);
}

/* Whoever asks again and again, and never waits, comes to the end as well. */
static void never_waits(void **state)
{
	struct penstock_storage *st;
	struct penstock_done done[2];
	struct penstock_seg seg;
	struct penstock_req req;

	(void)state;
	far_side(0);
	st = open_it(0);
	open_queue(host);
	for (unsigned min = 0; min < 2; min++) {
		time_t until = time(NULL) + 60;
		int n = 0;

		req = read_of(st, &seg, host, back, 0, 100000);
		submit(&req);
		while (!n && time(NULL) < until)
			n = penstock_wait(q, done, min, 2, min ? 0 : -1);
		assert_int_equal(n, 1);
		assert_int_equal(done[0].result, 100000);
	}
	penstock_close(st);
}

/* The last one in flight may have been one that nobody harvests, and have ended just
 * before its owner comes to sleep. */
static void nothing_in_flight(void **state)
{
	(void)state;
	open_queue(host);
	for (unsigned i = 0; i < 100000; i++) /* looks on for a moment, then would sleep */
		pst_inline_lane_turn(q->inline_lane, -1);
}

/* Opened where io_uring cannot be had any more: the report says so. */
static void engine_of_its_own(void **state)
{
	struct rlimit were, limit;
	struct penstock_storage *st;
	struct penstock_done done[2];
	struct penstock_seg seg;
	struct penstock_req req;
	int fds[3];

	(void)state;
	assert_int_equal(penstock_open(file, NULL, &st), 0);
	assert_int_equal(penstock_prepare(st, gpu, PENSTOCK_READ), 0);
	for (unsigned i = 0; i < COUNT(fds); i++)
		fds[i] = dup(0); /* the queue's, the lane's, and the one too many */
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &were), 0);
	limit = (struct rlimit){(rlim_t)fds[2], were.rlim_max};
	for (unsigned i = 0; i < COUNT(fds); i++)
		close(fds[i]);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	open_queue(gpu);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &were), 0);
	assert_int_equal(penstock_alloc(gpu, 100000, &seg.buf), 0);
	req = read_of(st, &seg, gpu, seg.buf, 0, 100000);
	submit(&req);
	assert_int_equal(penstock_wait(q, done, 1, 2, -1), 1);
	assert_int_equal(done[0].result, 100000);
	assert_string_equal(done[0].report->engine, "threads");
	assert_int_not_equal(done[0].report->engine_why, PENSTOCK_WHY_NONE);
	penstock_free(gpu, seg.buf);
	penstock_close(st);
}

/* ---- threads ---- */

static int answers[4];

static void *another(void *arg)
{
	struct penstock_done done;

	answers[0] = penstock_submit(q, arg, 1, NULL);
	answers[1] = penstock_poll(q, &done, 1);
	answers[2] = penstock_wait(q, &done, 1, 1, 0);
	answers[3] = penstock_cancel(q, *(uint64_t *)((struct penstock_req *)arg)->user);
	return NULL;
}

static void one_thread(void **state)
{
	struct penstock_storage *st;
	struct penstock_done done[2];
	struct penstock_seg seg;
	struct penstock_req req;
	uint64_t id = 0;
	pthread_t thread;

	(void)state;
	far_side(0);
	st = open_it(0);
	open_queue(host);
	assert_int_equal(penstock_queue_fd(q), -EOPNOTSUPP);
	async_hold(far);
	req = read_of(st, &seg, host, back, 0, 3 * 65536);
	req.user = &id;
	assert_int_equal(penstock_submit(q, &req, 1, &id), 1);
	assert_int_equal(pthread_create(&thread, NULL, another, &req), 0);
	pthread_join(thread, NULL);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(answers[i], -EPERM);
	assert_int_equal(answers[3], 0);
	async_release(far);
	assert_int_equal(penstock_wait(q, done, 1, 2, -1), 1);
	assert_true(done[0].result == 3 * 65536 || done[0].result == -ECANCELED);
	penstock_close(st);
}

/* The parent's device has no pump here, and the parent's lane no owner. */
static void in_a_child(void **state)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_queue *mine;
	int status;
	pid_t pid;

	(void)state;
	open_queue(host);
	opts.own_lane = host;
	pid = fork();
	if (!pid)
		_exit(penstock_queue_open(&opts, &mine) != -EOWNERDEAD ||
		      penstock_submit(q, NULL, 0, NULL) != -EOWNERDEAD ||
		      penstock_wait(q, NULL, 0, 0, 0) != -EOWNERDEAD);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_of_each_path),
		cmocka_unit_test_teardown(writes, end_queue),
		cmocka_unit_test_teardown(exactly_once, end_queue),
		cmocka_unit_test_teardown(needs_no_lane, end_queue),
		cmocka_unit_test_teardown(never_waits, end_queue),
		cmocka_unit_test_teardown(nothing_in_flight, end_queue),
		cmocka_unit_test_teardown(engine_of_its_own, end_queue),
		cmocka_unit_test_teardown(one_thread, end_queue),
		cmocka_unit_test_teardown(in_a_child, end_queue),
	};

	own_lane_devices();
	return cmocka_run_group_tests(tests, open_files, close_files);
}
