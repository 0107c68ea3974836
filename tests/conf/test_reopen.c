/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A storage stays open while one device closes, and is then used with another device. The storage
 * must not reuse facts about the closed device, and worker threads must keep no reference to that
 * device. The test overwrites freed memory, so that a read after free finds garbage.
 */
#include "freed_memory.h"
#include "test.h"
#include "request.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>

#include "core/lane/pump.h"
#include "core/route/route.h"

/* Length of the file: two windows (mapped ranges) of 16 MiB. Path "mapped" registers each window
 * separately. */
#define LEN (32u << 20)

static unsigned char *bytes, *back;
static char name[256];

static int setup(void **state)
{
	uint64_t seed = 3;
	int fd;

	(void)state;
	setenv("PENSTOCK_STANDIN_DEVICES", "2", 1);
	test_use_standin();
	bytes = malloc(LEN);
	back = aligned_alloc(4096, LEN);
	if (!bytes || !back)
		return -1;
	for (size_t i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)test_random(&seed);
	test_file_name(name, sizeof(name), "penstock-reopen");
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC,
		  0600); /* the write also puts the file into the page cache */
	if (fd < 0 || write(fd, bytes, LEN) != LEN || fsync(fd))
		return -1;
	return close(fd);
}

static int teardown(void **state)
{
	(void)state;
	unlink(name);
	free(bytes);
	free(back);
	return 0;
}

static struct penstock_device *open_device(const char *which)
{
	struct penstock_device *dev;

	if (penstock_device_open(which, NULL, &dev))
		fail_msg("%s: %s", which, penstock_errmsg());
	return dev;
}

static struct penstock_storage *open_storage(unsigned flags)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;

	opts.flags = flags;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	return st;
}

/* Closes a device that has no other user, and overwrites the memory that the close freed. */
static void close_device(struct penstock_device *dev)
{
	penstock_device_close(dev);
	freed_memory_overwrite(sizeof(struct penstock_device));
	freed_memory_overwrite(sizeof(struct pst_pump));
}

static void read_all(struct penstock_storage *st, struct penstock_device *dev, void *mem,
		     const char *never)
{
	struct penstock_seg seg = {.buf = mem, .dev = dev, .row_len = LEN, .rows = 1};
	struct penstock_req req;
	struct penstock_report report = {.size = sizeof(report)};

	req = test_request(st, &seg, 1, PENSTOCK_READ);
	assert_int_equal(penstock_transfer(&req, &report), LEN);
	for (unsigned i = 0; never && i < report.path_count; i++)
		if (!strcmp(report.paths[i].name, never))
			assert_int_equal(report.paths[i].why, PENSTOCK_WHY_DEVICE_ONLY);
}

/* A new device gets the index that a closed device had in the table of devices. The storage has
 * prepared a route to the closed device, and must not use it for the new device: a read must
 * deliver all bytes. */
static void new_device_with_an_old_index(void **state)
{
	struct penstock_device *dev = open_device("cuda:0");
	struct penstock_storage *st = open_storage(0);
	unsigned index = dev->index;
	void *mem;

	(void)state;
	assert_int_equal(penstock_alloc(dev, LEN, &mem), 0);
	read_all(st, dev, mem, NULL);
	assert_int_equal(penstock_free(dev, mem), 0);
	close_device(dev);
	dev = open_device("host");
	assert_int_equal(dev->index, index);
	memset(back, 0, LEN);
	read_all(st, dev, back, "mapped");
	assert_memory_equal(back, bytes, LEN);
	penstock_close(st);
	penstock_device_close(dev);
}

/* Worker threads (lanes) of one device keep windows, which are mapped ranges of a file, that are
 * registered with a second device. The second device closes while the lanes still have these
 * windows. When the storage closes, the lanes drop the windows. They must not use the memory of the
 * closed device then. */
static void windows_registered_with_a_closed_device(void **state)
{
	struct penstock_device *first = open_device("cuda:0"), *other = open_device("cuda:1");
	struct penstock_storage *st = open_storage(PENSTOCK_O_IMMUTABLE);
	struct penstock_seg segs[2] = {{.dev = first, .row_len = LEN / 2 - 4096, .rows = 1},
				       {.dev = other, .row_len = LEN / 2, .rows = 1}};
	struct penstock_req req;

	(void)state;
	segs[1].off = LEN / 2;
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(penstock_alloc(segs[i].dev, LEN / 2, &segs[i].buf), 0);
	req = test_request(st, segs, 2, PENSTOCK_READ);
	req.path = "mapped";
	assert_int_equal(penstock_transfer(&req, NULL), LEN - 4096);
	assert_int_equal(penstock_free(other, segs[1].buf), 0);
	close_device(other);
	penstock_close(st);
	assert_int_equal(penstock_free(first, segs[0].buf), 0);
	penstock_device_close(first);
}

/* ---- while other threads work ---- */

#define ROUNDS 200

static _Atomic bool stop;

static void *open_and_close_devices(void *arg)
{
	for (unsigned i = 0; i < ROUNDS; i++)
		close_device(open_device("cuda:1"));
	stop = true;
	return arg;
}

/* Looks up the device of a pointer while another thread opens and closes other devices. Each lookup
 * must find the pointer's device. */
static void pointer_lookup_while_devices_change(void **state)
{
	struct penstock_device *dev = open_device("host"), *found;
	pthread_t thread;

	(void)state;
	stop = false;
	assert_int_equal(pthread_create(&thread, NULL, open_and_close_devices, NULL), 0);
	while (!stop) {
		assert_int_equal(penstock_device_of(back, &found), 0);
		/* The lookup finds `dev` only after it has checked all other devices. */
		assert_ptr_equal(found, dev);
	}
	assert_int_equal(pthread_join(thread, NULL), 0);
	penstock_device_close(dev);
}

static pthread_barrier_t barrier;
static struct penstock_device *reopened;
static struct penstock_storage *storage;

static void *prepare_repeatedly(void *arg)
{
	for (unsigned i = 0; i < ROUNDS; i++) {
		pthread_barrier_wait(&barrier);
		if (penstock_prepare(storage, reopened, PENSTOCK_READ))
			abort();
		pthread_barrier_wait(&barrier);
	}
	return arg;
}

/* Two threads call penstock_prepare for a device that has the index of a closed one. The second
 * thread finds the route to the closed device while the first thread frees it. The thread sanitizer
 * detects errors in this case. */
static void two_threads_replace_an_old_route(void **state)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	pthread_t threads[2];

	(void)state;
	opts.lanes = 1;
	opts.slot_bytes = 65536;
	storage = open_storage(0);
	assert_int_equal(pthread_barrier_init(&barrier, NULL, 3), 0);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, prepare_repeatedly, NULL), 0);
	for (unsigned i = 0; i < ROUNDS; i++) {
		assert_true(penstock_device_open("host", &opts, &reopened) >= 0);
		pthread_barrier_wait(&barrier);
		pthread_barrier_wait(&barrier);
		close_device(reopened);
	}
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	pthread_barrier_destroy(&barrier);
	penstock_close(storage);
}

/* When penstock_prepare has returned, with a storage or without one, the lanes have loaded and run
 * the kernels for requests in stream order, and make no further call of the driver. The number of
 * calls is known only with the stand-in. */
static void prepared_lanes_do_not_call_the_driver(void **state)
{
	static const char *const symbols[] = {"cuModuleLoadData", "cuLaunchKernel",
					      "cuMemHostRegister_v2"};
	const char *path = getenv("PENSTOCK_LIBCUDA"); /* of the stand-in */
	unsigned long (*calls)(const char *symbol) = NULL;

	(void)state;
	*(void **)&calls = test_standin_symbol("pst_standin_calls");
	for (unsigned i = 0; i < 20; i++) {
		struct penstock_device *dev = open_device("cuda:0");
		struct penstock_storage *st = open_storage(0);
		unsigned long before[3], ready[3];

		assert_true(calls || !path);
		for (unsigned k = 0; calls && k < 3; k++)
			before[k] = calls(symbols[k]);
		assert_int_equal(penstock_prepare(i & 1 ? st : NULL, dev, PENSTOCK_READ), 0);
		for (unsigned k = 0; calls && k < 3; k++)
			ready[k] = calls(symbols[k]);
		usleep(5000);
		for (unsigned k = 0; calls && k < 3; k++) {
			assert_true(ready[k] > before[k]);
			assert_int_equal(calls(symbols[k]), ready[k]);
		}
		penstock_close(st);
		close_device(dev);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(new_device_with_an_old_index),
		cmocka_unit_test(windows_registered_with_a_closed_device),
		cmocka_unit_test(pointer_lookup_while_devices_change),
		cmocka_unit_test(two_threads_replace_an_old_route),
		cmocka_unit_test(prepared_lanes_do_not_call_the_driver),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
