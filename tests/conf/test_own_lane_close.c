/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests closing objects while a queue has an inline lane, which works inside the owner's calls on
 * the queue. The tests close storages that the queue reads, other storages, devices, and the queue
 * itself with requests in flight.
 */
#include "own_lane.h"

#include <sched.h>
#include <time.h>

#define SECOND 1000000000ll

/* A request that the queue's inline lane carries has a segment on a second device. Once the
 * request's transfers are done, this device must be able to close, even if the queue's owner has
 * not yet taken the completed request. */
static void second_device_does_not_wait_for_owner(void **state)
{
	struct penstock_storage *st;
	struct penstock_done done[2];
	struct penstock_seg segs[2];
	struct penstock_req req;
	time_t until = time(NULL) + 60;
	char *mem;

	(void)state;
	remote_create(0);
	st = open_object(0);
	assert_int_equal(penstock_alloc(gpu, 5000, (void **)&mem), 0);
	open_queue(host);
	segs[1] = (struct penstock_seg){.buf = mem, .dev = gpu, .off = 5000, .row_len = 5000};
	read_req(st, &segs[0], host, back, 0, 5000);
	req = test_request(st, segs, 2, PENSTOCK_READ);
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

/* The thread that closes a storage also owns the inline lane (a worker without a thread) that
 * carries the storage's requests. penstock_close must drive these requests until they complete. */
static void storage_close_drives_own_requests(void **state)
{
	struct penstock_storage *st;
	struct penstock_done done[2];
	struct penstock_seg seg;
	struct penstock_req req;
	pthread_t thread;

	(void)state;
	remote_create(0);
	st = open_object(0);
	open_queue(host);
	async_hold(remote);
	req = read_req(st, &seg, host, back, 0, 100000);
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

static void *close_kept_storage(void *arg)
{
	penstock_close(kept);
	atomic_store(&closed, true);
	async_release(remote);
	return arg;
}

/* The queue's owner sleeps while it waits for a read of one storage. The queue's inline lane (a
 * worker without a thread) has kept a mapping of a second storage. Another thread closes the second
 * storage, and must not wait for the read of the first one. */
static void storage_close_while_owner_sleeps(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;
	struct penstock_done done[2];
	struct penstock_seg seg;
	struct penstock_req req;
	pthread_t thread;
	char *mem;

	(void)state;
	remote_create(0);
	st = open_object(0);
	opts.flags = PENSTOCK_O_IMMUTABLE;
	assert_int_equal(penstock_open(file, &opts, &kept), 0);
	assert_int_equal(penstock_alloc(gpu, MAX, (void **)&mem), 0);
	open_queue(gpu);
	req = read_req(kept, &seg, gpu, mem, 0, MAX);
	req.path = "mapped";
	submit(&req);
	assert_int_equal(penstock_wait(q, done, 1, 2, -1), 1);
	assert_int_equal(done[0].result, MAX);
	async_hold(remote);
	req = read_req(st, &seg, gpu, mem, 0, 100000);
	submit(&req);
	atomic_store(&closed, false);
	assert_int_equal(pthread_create(&thread, NULL, close_kept_storage, NULL), 0);
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
	req = read_req(st, &seg, gpu, mem, 0, MAX);
	req.path = "mapped";
	assert_int_equal(penstock_transfer(&req, NULL), MAX);
	return st;
}

static void *read_sleeping(void *mem)
{
	return (void *)(intptr_t)penstock_read(sleeping, gpu, mem, 4096, 0);
}

/* A thread sleeps inside penstock_read. It carries the read itself, with a borrowed lane (the
 * state of a worker). This lane kept a mapping of an earlier storage, which has closed since.
 * Closing a new storage must not wait for the sleeping thread. */
static void storage_close_beside_one_call_thread(void **state)
{
	pthread_t threads[2];
	uint64_t until;
	bool in_time;
	char *mem;
	void *n;

	(void)state;
	remote_create(0);
	sleeping = open_object(0);
	assert_int_equal(penstock_alloc(gpu, 2 * MAX, (void **)&mem), 0);
	penstock_close(open_kept(mem));
	async_hold(remote);
	assert_int_equal(pthread_create(&threads[0], NULL, read_sleeping, mem + MAX), 0);
	assert_int_equal(async_await(remote, 1), 0);
	/* This storage gets another entry of the library's table of storages than the storage
	 * `sleeping`. */
	kept = open_kept(mem);
	atomic_store(&closed, false);
	assert_int_equal(pthread_create(&threads[1], NULL, close_kept_storage, NULL), 0);
	until = pst_now_ns() + 20 * SECOND;
	while (!atomic_load(&closed) && pst_now_ns() < until)
		sched_yield();
	in_time = atomic_load(&closed);
	async_release(remote);
	assert_true(in_time);
	pthread_join(threads[1], NULL);
	pthread_join(threads[0], &n);
	assert_int_equal((intptr_t)n, 4096);
	penstock_free(gpu, mem);
	penstock_close(sleeping);
}

static void *open_and_close_repeatedly(void *mem)
{
	for (unsigned i = 0; i < 50; i++)
		penstock_close(open_kept(mem));
	atomic_store(&closed, true);
	return mem;
}

/* A thread that closes a storage does not wait for the owner of a queue. The owner drops its
 * mapping of the storage later. */
static void storages_close_while_owner_works(void **state)
{
	struct penstock_storage *st;
	struct penstock_done done[2];
	struct penstock_seg seg;
	struct penstock_req req;
	pthread_t thread;
	char *mem;

	(void)state;
	remote_create(0);
	st = open_object(0);
	assert_int_equal(penstock_alloc(gpu, 2 * MAX, (void **)&mem), 0);
	open_queue(gpu);
	atomic_store(&closed, false);
	assert_int_equal(pthread_create(&thread, NULL, open_and_close_repeatedly, mem + MAX), 0);
	while (!atomic_load(&closed)) {
		req = read_req(st, &seg, gpu, mem, 0, 4096);
		submit(&req);
		assert_int_equal(penstock_wait(q, done, 1, 2, -1), 1);
		assert_int_equal(done[0].result, 4096);
	}
	pthread_join(thread, NULL);
	penstock_free(gpu, mem);
	penstock_close(st);
}

/* Closing the queue completes its requests first, and runs no callback. The device stays open
 * until the queue is closed. */
static void queue_close_completes_requests(void **state)
{
	struct penstock_storage *st;
	struct penstock_device *dev;
	struct penstock_seg seg;
	struct penstock_req req;
	pthread_t thread;

	(void)state;
	if (penstock_device_open("cuda:1", NULL, &dev) < 0)
		test_skip("one GPU only");
	remote_create(0);
	st = open_object(0);
	open_queue(dev);
	penstock_device_close(dev); /* the queue still holds a reference to the device */
	async_hold(remote);
	/* a request that is too long for the inline lane, so the device's worker thread carries
	 * it */
	req = read_req(st, &seg, host, back, 0, 2 * MAX);
	submit(&req);
	assert_int_equal(pthread_create(&thread, NULL, release_later, NULL), 0);
	penstock_queue_close(q);
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&st->inflight), 0);
	/* penstock_device_open would return 1 if the device were still open. */
	assert_int_equal(penstock_device_open("cuda:1", NULL, &dev), 0);
	open_queue(dev);
	async_hold(remote);
	req = read_req(st, &seg, host, back, 0, 70000);
	submit(&req);
	async_release(remote);
	penstock_close(st);
	penstock_device_close(dev);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(second_device_does_not_wait_for_owner,
					  close_queue_and_remote),
		cmocka_unit_test_teardown(storage_close_drives_own_requests,
					  close_queue_and_remote),
		cmocka_unit_test_teardown(storage_close_while_owner_sleeps, close_queue_and_remote),
		cmocka_unit_test_teardown(storage_close_beside_one_call_thread,
					  close_queue_and_remote),
		cmocka_unit_test_teardown(storages_close_while_owner_works, close_queue_and_remote),
		cmocka_unit_test_teardown(queue_close_completes_requests, close_queue_and_remote),
	};

	set_device_options();
	return cmocka_run_group_tests(tests, make_file, remove_file);
}
