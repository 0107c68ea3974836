/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices that close while a storage stays open, and what the storage then does with
 * another device: nothing that it found out about the first may be used again, and
 * nothing that lanes keep for its sake may still name it. Freed memory is overwritten
 * before it is looked at, so that who reads it reads rubbish.
 */
#include "test.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>

#include "core/lane/pump.h"
#include "core/route/route.h"

#define LEN (32u << 20) /* two windows of 16 MiB, which go by their own path */

static unsigned char *bytes, *back;
static char name[256];

static int setup(void **state)
{
	const char *tmp = getenv("TMPDIR");
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
	snprintf(name, sizeof(name), "%s/penstock-reopen-%d", tmp ? tmp : "/tmp", (int)getpid());
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600); /* cached from here on */
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

static struct penstock_storage *open_it(unsigned flags)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;

	opts.flags = flags;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	return st;
}

static void spoil_heap(size_t size)
{
	void *volatile rubbish[8];

	for (unsigned i = 0; i < 8; i++) {
		rubbish[i] = malloc(size);
		memset(rubbish[i], 0x5a, size);
	}
	for (unsigned i = 0; i < 8; i++)
		free(rubbish[i]);
}

/* The last use of a device, with all that is freed then. */
static void close_device(struct penstock_device *dev)
{
	penstock_device_close(dev);
	spoil_heap(sizeof(struct penstock_device));
	spoil_heap(sizeof(struct pst_pump));
}

static void read_all(struct penstock_storage *st, struct penstock_device *dev, void *mem,
		     const char *never)
{
	struct penstock_seg seg = {.buf = mem, .dev = dev, .row_len = LEN, .rows = 1};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_report report = {.size = sizeof(report)};

	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	assert_int_equal(penstock_transfer(&req, &report), LEN);
	for (unsigned i = 0; never && i < report.path_count; i++)
		if (!strcmp(report.paths[i].name, never))
			assert_int_equal(report.paths[i].why, PENSTOCK_WHY_DEVICE_ONLY);
}

/* Another device has the place in the table that the first one had. */
static void place_taken(void **state)
{
	struct penstock_device *dev = open_device("cuda:0");
	struct penstock_storage *st = open_it(0);
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

/* Lanes of one device keep windows that they have registered with another. */
static void windows_kept(void **state)
{
	struct penstock_device *first = open_device("cuda:0"), *other = open_device("cuda:1");
	struct penstock_storage *st = open_it(PENSTOCK_O_IMMUTABLE);
	struct penstock_seg segs[2] = {{.dev = first, .row_len = LEN / 2 - 4096, .rows = 1},
				       {.dev = other, .row_len = LEN / 2, .rows = 1}};
	struct penstock_req req = PENSTOCK_REQ_INIT;

	(void)state;
	segs[1].off = LEN / 2;
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(penstock_alloc(segs[i].dev, LEN / 2, &segs[i].buf), 0);
	req.storage = st;
	req.segs = segs;
	req.seg_count = 2;
	req.path = "mapped";
	assert_int_equal(penstock_transfer(&req, NULL), LEN - 4096);
	assert_int_equal(penstock_free(other, segs[1].buf), 0);
	close_device(other);
	penstock_close(st);
	assert_int_equal(penstock_free(first, segs[0].buf), 0);
	penstock_device_close(first);
}

/* ---- while others are at it ---- */

#define ROUNDS 200

static _Atomic bool over;

static void *come_and_go(void *arg)
{
	for (unsigned i = 0; i < ROUNDS; i++)
		close_device(open_device("cuda:1"));
	over = true;
	return arg;
}

/* Whose a pointer is can be asked while another thread opens and closes devices. */
static void found_meanwhile(void **state)
{
	struct penstock_device *dev = open_device("host"), *found;
	pthread_t thread;

	(void)state;
	over = false;
	assert_int_equal(pthread_create(&thread, NULL, come_and_go, NULL), 0);
	while (!over) {
		assert_int_equal(penstock_device_of(back, &found), 0);
		assert_ptr_equal(found, dev); /* when all others have been asked */
	}
	assert_int_equal(pthread_join(thread, NULL), 0);
	penstock_device_close(dev);
}

static pthread_barrier_t barrier;
static struct penstock_device *again;
static struct penstock_storage *known;

static void *meet(void *arg)
{
	for (unsigned i = 0; i < ROUNDS; i++) {
		pthread_barrier_wait(&barrier);
		if (penstock_prepare(known, again, PENSTOCK_READ))
			abort();
		pthread_barrier_wait(&barrier);
	}
	return arg;
}

/* Two threads meet what took the place of a device that the storage had met: the one that
 * comes second finds the old route, the first frees it. Seen by the thread sanitizer. */
static void met_together(void **state)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	pthread_t threads[2];

	(void)state;
	opts.lanes = 1;
	opts.slot_bytes = 65536;
	known = open_it(0);
	assert_int_equal(pthread_barrier_init(&barrier, NULL, 3), 0);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, meet, NULL), 0);
	for (unsigned i = 0; i < ROUNDS; i++) {
		assert_true(penstock_device_open("host", &opts, &again) >= 0);
		pthread_barrier_wait(&barrier);
		pthread_barrier_wait(&barrier);
		close_device(again);
	}
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	pthread_barrier_destroy(&barrier);
	penstock_close(known);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(place_taken),
		cmocka_unit_test(windows_kept),
		cmocka_unit_test(found_meanwhile),
		cmocka_unit_test(met_together),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
