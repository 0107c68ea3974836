/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests queues with an inline lane, which the option own_lane selects. An inline lane is a worker
 * without a thread: it works only inside calls on its queue, and needs no worker thread (lane) of
 * the device. The bytes and reports are the same as with other queues. Only one thread may use such
 * a queue.
 */
#include "own_lane.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#define N 200
#define SECOND_NS 1000000000ll

/* ---- bytes ---- */

/* Reads the file in pieces of random lengths into memory, and compares the result with the file.
 * About one piece in twelve is too long for the queue's inline lane, so a worker thread of the
 * device reads it. If `path` is NULL, the library chooses the path. */
static void read_pieces(struct penstock_device *dev, const char *path, uint64_t align)
{
	struct penstock_storage *st;
	struct penstock_done done[16];
	uint64_t seed = test_seed(5), lens[N], at = 0;
	unsigned count = 0, have = 0, longer = 0;
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
		req = read_req(st, &seg, dev, mem + at, at, lens[count]);
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
			longer += lens[i] > MAX;
		}
		have += (unsigned)n;
	}
	/* Some pieces were longer than MAX, so the device's worker threads read them, and some
	 * were not longer. */
	assert_in_range(longer, 1, count - 1);
	test_copy(host, back, dev, mem, LEN);
	assert_memory_equal(back, bytes, at);
	penstock_free(dev, mem);
	penstock_close(st);
	close_queue_and_remote(NULL);
}

static void reads_by_each_path(void **state)
{
	int fd;

	(void)state;
	read_pieces(host, NULL, 1);
	read_pieces(host, "bounce", 1);
	read_pieces(gpu, NULL, 1);
	read_pieces(gpu, "staged", 1);
	read_pieces(gpu, "bounce", 1);
	/* Some file systems do not support O_DIRECT, so the open may fail. */
	fd = open(file, O_RDONLY | O_DIRECT | O_CLOEXEC);
	if (fd >= 0)
		read_pieces(host, "odirect", 4096);
	close(fd);
}

/* Writes pieces of odd lengths, some of them durable, and reads the file through another
 * descriptor. The file must contain the written bytes. */
static void writes_from_gpu_memory(void **state)
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
			read_req(st, &seg, gpu, mem + 1000 + i * 60000, 1000 + i * 60000, 60000);

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

/* Every request completes exactly once, whether it succeeds, fails or is cancelled. */
static void completes_exactly_once(void **state)
{
	struct penstock_storage *st;
	struct penstock_done done[64];
	uint64_t ids[N];
	unsigned have = 0, failed = 0;

	(void)state;
	remote_create(4);
	st = open_object(0);
	open_queue(host);
	for (unsigned i = 0; i < N; i++) {
		struct penstock_seg seg;
		struct penstock_req req = read_req(st, &seg, host, back + i * 50000, i * 30000ull,
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
			/* If this request completed a second time, the comparison above would
			 * fail. */
			ids[i] = UINT64_MAX;
			failed += done[k].result == -EIO;
			assert_true(done[k].result == -EIO || done[k].result == -ECANCELED ||
				    done[k].result == (int64_t)(i % 5 ? 1 + i % 7 * 8000 : 0));
		}
		have += (unsigned)n;
	}
	assert_in_range(failed, 1, N - 1);
	assert_int_equal(penstock_wait(q, done, 1, 64, -1),
			 0); /* returns 0 because no request is in flight */
	penstock_close(st);
}

/* The device's only lane (its worker thread) has the maximum number of chunks in flight, because
 * the store holds its transfers. The inline lane needs neither the device's lane nor the thread of
 * that lane. Completions from other threads wake the owner of the inline lane. */
static void works_while_device_lane_is_full(void **state)
{
	/* Destination of this read. The other read goes to `back`. */
	static unsigned char aside[70000];
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_queue *other;
	struct penstock_storage *st, *mem;
	struct penstock_done done[4];
	struct penstock_seg seg;
	struct penstock_req req;
	pthread_t thread;

	(void)state;
	remote_create(0);
	st = open_object(0);
	assert_int_equal(penstock_queue_open(&opts, &other), 0);
	open_queue(host);
	async_hold(remote);
	req = read_req(st, &seg, host, back, 0, LEN);
	req.path = "bounce";
	assert_int_equal(penstock_submit(other, &req, 1, NULL), 1);
	assert_int_equal(async_await(remote, PST_LANE_CHUNKS), 0);
	assert_int_equal(penstock_open("mem:1M?seed=3", NULL, &mem), 0);
	for (unsigned i = 0; i < 50; i++) {
		req = read_req(mem, &seg, host, aside, i * 4096, 4096);
		submit(&req);
		assert_int_equal(penstock_wait(q, done, 1, 4, 60 * SECOND_NS), 1);
		assert_int_equal(done[0].result, 4096);
	}
	assert_int_equal(penstock_poll(other, done, 4), 0);
	req = read_req(st, &seg, host, aside, 0, 70000);
	submit(&req);
	assert_int_equal(penstock_wait(q, done, 1, 4, 5000000),
			 0); /* returns 0 because the store holds the transfer */
	assert_int_equal(pthread_create(&thread, NULL, release_later, NULL), 0);
	assert_int_equal(penstock_wait(q, done, 1, 4, 60 * SECOND_NS), 1);
	assert_int_equal(done[0].result, 70000);
	pthread_join(thread, NULL);
	penstock_queue_close(other);
	penstock_close(mem);
	penstock_close(st);
}

/* The owner of an inline lane (a worker without a thread) calls penstock_wait repeatedly, but no
 * call sleeps: either the minimum number of completions or the timeout is 0. The owner must get its
 * completions, although the lane works only during these short calls. */
static void polling_without_sleeping(void **state)
{
	struct penstock_storage *st;
	struct penstock_done done[2];
	struct penstock_seg seg;
	struct penstock_req req;

	(void)state;
	remote_create(0);
	st = open_object(0);
	open_queue(host);
	for (unsigned min = 0; min < 2; min++) {
		time_t until = time(NULL) + 60;
		int n = 0;

		req = read_req(st, &seg, host, back, 0, 100000);
		submit(&req);
		while (!n && time(NULL) < until)
			n = penstock_wait(q, done, min, 2, min ? 0 : -1);
		assert_int_equal(n, 1);
		assert_int_equal(done[0].result, 100000);
	}
	penstock_close(st);
}

/* The last request in flight may be detached and may complete just before the queue's owner
 * sleeps. Then the owner must not sleep, because nothing would wake it. */
static void turn_without_requests_does_not_hang(void **state)
{
	(void)state;
	open_queue(host);
	/* Each call polls briefly. It must not sleep afterwards, because nothing would wake the
	 * thread. */
	for (unsigned i = 0; i < 100000; i++)
		pst_inline_lane_turn(q->inline_lane, -1);
}

/* If the process has no descriptor left for io_uring, a queue with an inline lane (a worker
 * without a thread) still opens. This lane uses engine "threads", and the report has the reason. */
static void falls_back_to_engine_threads(void **state)
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
		/* Finds the limit of open files that leaves descriptors for the queue and its
		 * inline lane, but none for io_uring. */
		fds[i] = dup(0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &were), 0);
	limit = (struct rlimit){(rlim_t)fds[2], were.rlim_max};
	for (unsigned i = 0; i < COUNT(fds); i++)
		close(fds[i]);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	open_queue(gpu);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &were), 0);
	assert_int_equal(penstock_alloc(gpu, 100000, &seg.buf), 0);
	req = read_req(st, &seg, gpu, seg.buf, 0, 100000);
	submit(&req);
	assert_int_equal(penstock_wait(q, done, 1, 2, -1), 1);
	assert_int_equal(done[0].result, 100000);
	assert_string_equal(done[0].report->engine, "threads");
	assert_int_not_equal(done[0].report->engine_why, PENSTOCK_WHY_NONE);
	penstock_free(gpu, seg.buf);
	penstock_close(st);
}

/* ---- threads ---- */

static int other_thread_results[4];

static void *call_from_other_thread(void *arg)
{
	struct penstock_done done;

	other_thread_results[0] = penstock_submit(q, arg, 1, NULL);
	other_thread_results[1] = penstock_poll(q, &done, 1);
	other_thread_results[2] = penstock_wait(q, &done, 1, 1, 0);
	other_thread_results[3] =
		penstock_cancel(q, *(uint64_t *)((struct penstock_req *)arg)->user);
	return NULL;
}

static void other_threads_are_refused(void **state)
{
	struct penstock_storage *st;
	struct penstock_done done[2];
	struct penstock_seg seg;
	struct penstock_req req;
	uint64_t id = 0;
	pthread_t thread;

	(void)state;
	remote_create(0);
	st = open_object(0);
	open_queue(host);
	assert_int_equal(penstock_queue_fd(q), -EOPNOTSUPP);
	async_hold(remote);
	req = read_req(st, &seg, host, back, 0, 3 * 65536);
	req.user = &id;
	assert_int_equal(penstock_submit(q, &req, 1, &id), 1);
	assert_int_equal(pthread_create(&thread, NULL, call_from_other_thread, &req), 0);
	pthread_join(thread, NULL);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(other_thread_results[i], -EPERM);
	assert_int_equal(other_thread_results[3], 0);
	async_release(remote);
	assert_int_equal(penstock_wait(q, done, 1, 2, -1), 1);
	assert_true(done[0].result == 3 * 65536 || done[0].result == -ECANCELED);
	penstock_close(st);
}

/* After a fork the child process cannot use the queue, because the device's worker threads do not
 * run in the child. */
static void child_process_is_refused(void **state)
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
		cmocka_unit_test(reads_by_each_path),
		cmocka_unit_test_teardown(writes_from_gpu_memory, close_queue_and_remote),
		cmocka_unit_test_teardown(completes_exactly_once, close_queue_and_remote),
		cmocka_unit_test_teardown(works_while_device_lane_is_full, close_queue_and_remote),
		cmocka_unit_test_teardown(polling_without_sleeping, close_queue_and_remote),
		cmocka_unit_test_teardown(turn_without_requests_does_not_hang,
					  close_queue_and_remote),
		cmocka_unit_test_teardown(falls_back_to_engine_threads, close_queue_and_remote),
		cmocka_unit_test_teardown(other_threads_are_refused, close_queue_and_remote),
		cmocka_unit_test_teardown(child_process_is_refused, close_queue_and_remote),
	};

	set_device_options();
	return cmocka_run_group_tests(tests, make_file, remove_file);
}
