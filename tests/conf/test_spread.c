/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests how many lanes (worker threads of the device) a request wakes. Each wake-up takes time of
 * the lane that first got the request, so a request must not wake more lanes than it has pieces. A
 * lane that sleeps makes no turn of its loop, so the test counts the lanes that have made a turn.
 */
#include "test.h"

#include <fcntl.h>
#include <sched.h>

#include "core/lane/lane.h"
#include "core/lane/pump.h"
#include "penstock.h"
#include "request.h"

#define LANES 8u
#define KIB 1024u
#define LEN (4096 * KIB)
/* Length of the pieces in which path "bounce" carries a short request */
#define PIECE (256 * KIB)

static struct penstock_device *host;
static struct penstock_storage *st;
static struct penstock_queue *q;
static unsigned char *bytes, *back;
static char name[256];

static int setup(void **state)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	uint64_t seed = 31;
	int fd;

	(void)state;
	bytes = malloc(LEN);
	back = malloc(LEN);
	if (!bytes || !back)
		return -1;
	for (size_t i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)test_random(&seed);
	test_file_name(name, sizeof(name), "penstock-spread");
	fd = open(name, O_RDWR | O_CREAT, 0600);
	if (fd < 0 || pwrite(fd, bytes, LEN, 0) != LEN || close(fd))
		return -1;
	opts.lanes = LANES;
	return penstock_device_open("host", &opts, &host) < 0 || penstock_open(name, NULL, &st) ||
	       penstock_prepare(st, host, PENSTOCK_READ) || penstock_queue_open(NULL, &q);
}

static int teardown(void **state)
{
	(void)state;
	penstock_queue_close(q);
	penstock_close(st);
	penstock_device_close(host);
	unlink(name);
	free(bytes);
	free(back);
	return 0;
}

/* Waits until all lanes sleep, and stores how many iterations of its loop each has made. */
static void lanes_await_sleep(unsigned turns[LANES])
{
	struct pst_pump *pump = atomic_load(&host->pump);

	assert_int_equal(pump->lane_count, LANES);
	for (unsigned i = 0; i < LANES; i++) {
		struct pst_lane *lane = &pump->lanes[i];

		/* A worker thread (lane) whose inbox is not empty has been woken, but may not run
		 * yet. */
		while (atomic_load(&lane->inbox) || !atomic_load(&lane->asleep) ||
		       !atomic_load(&lane->turns))
			sched_yield();
		turns[i] = atomic_load(&lane->turns);
	}
}

/* Reads `len` bytes by a queue. Returns the number of lanes that have woken and made an iteration
 * of their loop meanwhile. */
static unsigned lanes_for_read(uint64_t len)
{
	struct penstock_seg seg = {.buf = back, .dev = host, .row_len = len};
	struct penstock_req req = test_request(st, &seg, 1, PENSTOCK_READ);
	struct penstock_done done;
	unsigned before[LANES], after[LANES], woken = 0;

	req.path = "bounce";
	memset(back, 0, LEN);
	lanes_await_sleep(before);
	if (penstock_submit(q, &req, 1, NULL) != 1)
		fail_msg("%s", penstock_errmsg());
	assert_int_equal(penstock_wait(q, &done, 1, 1, -1), 1);
	assert_int_equal(done.result, len);
	lanes_await_sleep(after);
	for (unsigned i = 0; i < LANES; i++)
		woken += before[i] != after[i];
	assert_memory_equal(back, bytes, len);
	return woken;
}

static void short_request_wakes_a_lane_for_each_piece(void **state)
{
	(void)state;
	for (unsigned pieces = 1; pieces < LANES; pieces++)
		for (unsigned round = 0; round < 8; round++) {
			unsigned woken = lanes_for_read(pieces * PIECE);

			if (woken > pieces)
				fail_msg("%u pieces: %u lanes were woken", pieces, woken);
		}
}

static void long_request_wakes_all_lanes(void **state)
{
	(void)state;
	assert_int_equal(lanes_for_read(LEN), LANES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(short_request_wakes_a_lane_for_each_piece),
		cmocka_unit_test(long_request_wakes_all_lanes),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
