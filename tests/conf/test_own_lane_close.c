/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What closes around a queue with a lane of its own: storages that it reads and others,
 * devices, and the queue itself with requests in flight.
 */
#include "own_lane.h"

#include <sched.h>
#include <time.h>

#define SECOND 1000000000ll

/* Bytes for another device too: its close waits for them, not for the queue's owner. */
static void two_devices(void **state)
{
	struct penstock_storage *st;
	struct penstock_done done[2];
	struct penstock_seg segs[2];
	struct penstock_req req;
	time_t until = time(NULL) + 60;
	char *mem;

	(void)state;
	far_side(0);
	st = open_it(0);
	assert_int_equal(penstock_alloc(gpu, 5000, (void **)&mem), 0);
	open_queue(host);
	segs[1] = (struct penstock_seg){.buf = mem, .dev = gpu, .off = 5000, .row_len = 5000};
	read_of(st, &segs[0], host, back, 0, 5000);
	req = request(st, segs, 2, PENSTOCK_READ);
	submit(&req);
	while (atomic_load(&st->inflight) && time(NULL) < until)
		sched_yield();
	assert_int_equal(atomic_load(&gpu->guests), 0);
	assert_int_equal(penstock_wait(q, done, 1, 2, -1), 1);
	assert_int_equal(done[0].result, 10000);
	test_copy(host, back + 5000, gpu, mem, 5000);
	assert_memory_equal(back, bytes, 10000);
	penstock_free(gpu, mem);
	penstock_close(st);
}

/* Its own requests are in flight on the thread that closes: only it can end them. */
static void storage_closes(void **state)
{
	struct penstock_storage *st;
	struct penstock_done done[2];
	struct penstock_seg seg;
	struct penstock_req req;
	pthread_t thread;

	(void)state;
	far_side(0);
	st = open_it(0);
	open_queue(host);
	async_hold(far);
	req = read_of(st, &seg, host, back, 0, 100000);
	submit(&req);
	assert_int_equal(pthread_create(&thread, NULL, release_later, NULL), 0);
	penstock_close(st);
	pthread_join(thread, NULL);
	assert_int_equal(penstock_wait(q, done, 1, 2, -1), 1);
	assert_int_equal(done[0].result, 100000);
	assert_memory_equal(back, bytes, 100000);
}

static struct penstock_storage *kept, *sleeping;
static _Atomic bool closed;

static void *close_kept(void *arg)
{
	penstock_close(kept);
	atomic_store(&closed, true);
	async_release(far);
	return arg;
}

/* While the owner sleeps for one storage, another one closes of which his lane keeps
 * something, and that must not wait for the first. */
static void other_storage_closes(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;
	struct penstock_done done[2];
	struct penstock_seg seg;
	struct penstock_req req;
	pthread_t thread;
	char *mem;

	(void)state;
	far_side(0);
	st = open_it(0);
	opts.flags = PENSTOCK_O_IMMUTABLE;
	assert_int_equal(penstock_open(file, &opts, &kept), 0);
	assert_int_equal(penstock_alloc(gpu, MAX, (void **)&mem), 0);
	open_queue(gpu);
	req = read_of(kept, &seg, gpu, mem, 0, MAX);
	req.path = "mapped";
	submit(&req);
	assert_int_equal(penstock_wait(q, done, 1, 2, -1), 1);
	assert_int_equal(done[0].result, MAX);
	async_hold(far);
	req = read_of(st, &seg, gpu, mem, 0, 100000);
	submit(&req);
	atomic_store(&closed, false);
	assert_int_equal(pthread_create(&thread, NULL, close_kept, NULL), 0);
	assert_int_equal(penstock_wait(q, done, 1, 2, 60 * SECOND), 1);
	assert_true(atomic_load(&closed));
	pthread_join(thread, NULL);
	penstock_free(gpu, mem);
	penstock_close(st);
}

static struct penstock_storage *open_kept(char *mem)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;
	struct penstock_seg seg;
	struct penstock_req req;

	opts.flags = PENSTOCK_O_IMMUTABLE;
	assert_int_equal(penstock_open(file, &opts, &st), 0);
	req = read_of(st, &seg, gpu, mem, 0, MAX);
	req.path = "mapped";
	assert_int_equal(penstock_transfer(&req, NULL), MAX);
	return st;
}

static void *read_held(void *mem)
{
	return (void *)(intptr_t)penstock_read(sleeping, gpu, mem, 4096, 0);
}

/* The same of a caller's thread in a lane's place, which kept something once and has
 * forgotten it. */
static void other_storage_closes_beside_a_caller(void **state)
{
	pthread_t threads[2];
	uint64_t until;
	bool in_time;
	char *mem;
	void *n;

	(void)state;
	far_side(0);
	sleeping = open_it(0);
	assert_int_equal(penstock_alloc(gpu, 2 * MAX, (void **)&mem), 0);
	penstock_close(open_kept(mem));
	async_hold(far);
	assert_int_equal(pthread_create(&threads[0], NULL, read_held, mem + MAX), 0);
	assert_int_equal(async_await(far, 1), 0);
	kept = open_kept(mem); /* in another place */
	atomic_store(&closed, false);
	assert_int_equal(pthread_create(&threads[1], NULL, close_kept, NULL), 0);
	until = pst_now_ns() + 20 * SECOND;
	while (!atomic_load(&closed) && pst_now_ns() < until)
		sched_yield();
	in_time = atomic_load(&closed);
	async_release(far);
	assert_true(in_time);
	pthread_join(threads[1], NULL);
	pthread_join(threads[0], &n);
	assert_int_equal((intptr_t)n, 4096);
	penstock_free(gpu, mem);
	penstock_close(sleeping);
}

static void *keep_and_close(void *mem)
{
	for (unsigned i = 0; i < 50; i++)
		penstock_close(open_kept(mem));
	atomic_store(&closed, true);
	return mem;
}

/* Nobody who closes waits for the owner, who takes note of it at his leisure. */
static void others_close_while_it_turns(void **state)
{
	struct penstock_storage *st;
	struct penstock_done done[2];
	struct penstock_seg seg;
	struct penstock_req req;
	pthread_t thread;
	char *mem;

	(void)state;
	far_side(0);
	st = open_it(0);
	assert_int_equal(penstock_alloc(gpu, 2 * MAX, (void **)&mem), 0);
	open_queue(gpu);
	atomic_store(&closed, false);
	assert_int_equal(pthread_create(&thread, NULL, keep_and_close, mem + MAX), 0);
	while (!atomic_load(&closed)) {
		req = read_of(st, &seg, gpu, mem, 0, 4096);
		submit(&req);
		assert_int_equal(penstock_wait(q, done, 1, 2, -1), 1);
		assert_int_equal(done[0].result, 4096);
	}
	pthread_join(thread, NULL);
	penstock_free(gpu, mem);
	penstock_close(st);
}

/* What is in flight ends first, and nothing fires; the device waits for its queue. */
static void queue_closes(void **state)
{
	struct penstock_storage *st;
	struct penstock_device *dev;
	struct penstock_seg seg;
	struct penstock_req req;
	pthread_t thread;

	(void)state;
	if (penstock_device_open("cuda:1", NULL, &dev) < 0)
		test_skip("one GPU only");
	far_side(0);
	st = open_it(0);
	open_queue(dev);
	penstock_device_close(dev); /* the queue has it open still */
	async_hold(far);
	req = read_of(st, &seg, host, back, 0, 2 * MAX); /* not for its own lane */
	submit(&req);
	assert_int_equal(pthread_create(&thread, NULL, release_later, NULL), 0);
	penstock_queue_close(q);
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&st->inflight), 0);
	assert_int_equal(penstock_device_open("cuda:1", NULL, &dev), 0); /* 1: still open */
	open_queue(dev);
	async_hold(far);
	req = read_of(st, &seg, host, back, 0, 70000);
	submit(&req);
	async_release(far);
	penstock_close(st);
	penstock_device_close(dev);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(two_devices, end_queue),
		cmocka_unit_test_teardown(storage_closes, end_queue),
		cmocka_unit_test_teardown(other_storage_closes, end_queue),
		cmocka_unit_test_teardown(other_storage_closes_beside_a_caller, end_queue),
		cmocka_unit_test_teardown(others_close_while_it_turns, end_queue),
		cmocka_unit_test_teardown(queue_closes, end_queue),
	};

	own_lane_devices();
	return cmocka_run_group_tests(tests, open_files, close_files);
}
