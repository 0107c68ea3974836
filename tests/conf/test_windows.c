/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the limit of windows, which are ranges of files that a lane (a worker thread) maps and
 * registers with the driver for path "mapped". When a lane may register no further window, its
 * reads must use path "bounce" at once: a chunk that first fails on path "mapped" is then copied by
 * one lane only. Storages that are not immutable never use a window again, so they must leave some
 * windows to immutable ones. A kept window must serve reads even if the lane may register no
 * further one. The device has one lane, so that all windows belong to this lane.
 */
#include "test.h"

#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>

#include "penstock.h"
#include "request.h"

/* The library prefers path "mapped" for chunks of at least 8 MiB. This read has two such chunks. */
#define LEN (16u << 20)
#define PIECE 4096u
/* Segments of one request. Together they are longer than any read that the caller's thread carries
 * itself. Each is a chunk of its own, because bytes lie between them. */
#define PIECES 1024u
#define WINDOWS_MAX 2048u

static unsigned long (*calls)(const char *name);
static struct penstock_device *host, *gpu;
static struct penstock_storage *first, *second, *third;
static unsigned char *bytes, *back;
static void *mem;
static char name[256];
/* Number of driver registrations that are not windows: those of the threads' staging memory. */
static unsigned long registered_otherwise;

static int setup(void **state)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	uint64_t seed = 23;
	int fd;

	(void)state;
	*(void **)&calls = test_standin_symbol("pst_standin_calls");
	bytes = malloc(LEN);
	back = malloc(LEN);
	if (!bytes || !back)
		return -1;
	for (size_t i = 0; i < LEN; i += sizeof(uint64_t)) {
		uint64_t word = test_random(&seed);

		memcpy(bytes + i, &word, sizeof(word));
	}
	test_file_name(name, sizeof(name), "penstock-windows");
	fd = open(name, O_RDWR | O_CREAT, 0600);
	if (fd < 0 || pwrite(fd, bytes, LEN, 0) != LEN || close(fd))
		return -1;
	opts.lanes = 1;
	return penstock_device_open("host", NULL, &host) < 0 ||
	       penstock_device_open("cuda:0", &opts, &gpu) < 0 || penstock_alloc(gpu, LEN, &mem);
}

static int teardown(void **state)
{
	(void)state;
	penstock_free(gpu, mem);
	penstock_device_close(gpu);
	penstock_device_close(host);
	unlink(name);
	free(bytes);
	free(back);
	return 0;
}

/* Waits until the library has unregistered all windows. The caller has closed all storages. */
static void await_unregistered(void)
{
	uint64_t until = test_now_ns() + 10 * 1000000000ull;
	unsigned long made = calls("cuMemHostRegister_v2") - registered_otherwise, ended;

	while ((ended = calls("cuMemHostUnregister")) < made) {
		if (test_now_ns() > until)
			fail_msg("%lu of %lu windows were unregistered", ended, made);
		sched_yield();
	}
}

static int close_storages(void **state)
{
	(void)state;
	penstock_close(first);
	penstock_close(second);
	penstock_close(third);
	first = second = third = NULL;
	if (calls)
		await_unregistered();
	return 0;
}

static struct penstock_storage *open_file(unsigned flags)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;

	if (!calls)
		test_skip("only the stand-in counts its calls");
	opts.flags = flags;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	assert_int_equal(penstock_prepare(st, gpu, PENSTOCK_READ), 0);
	if (!registered_otherwise)
		registered_otherwise = calls("cuMemHostRegister_v2");
	return st;
}

/* Registers windows (mapped file ranges) of one page each, until the library refuses one. Returns
 * their number. */
static unsigned long use_up_windows(struct penstock_storage *st)
{
	static struct penstock_seg segs[PIECES];
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_req req = test_request(st, segs, PIECES, PENSTOCK_READ);
	unsigned long before = calls("cuMemHostRegister_v2");

	req.path = "mapped";
	for (unsigned round = 0; round <= WINDOWS_MAX / PIECES; round++) {
		/* The second round begins at other pages, so that no window kept from the first
		 * round covers them. */
		for (unsigned i = 0; i < PIECES; i++)
			segs[i] = (struct penstock_seg){.buf = (char *)mem + i * PIECE,
							.dev = gpu,
							.off = (2 * i + round % 2) * PIECE +
							       (round / 2 * (LEN / 2)),
							.row_len = PIECE};
		if (penstock_transfer(&req, &report) < 0) {
			assert_int_equal(report.why, PENSTOCK_WHY_HELD);
			return calls("cuMemHostRegister_v2") - before;
		}
	}
	fail_msg("%u requests of %u windows were all served", WINDOWS_MAX / PIECES + 1, PIECES);
	return 0;
}

/* Reads the file and compares the bytes. `path` names the path, or is NULL for any path. Fails if
 * a chunk failed on a path. Returns the number of windows (mapped ranges) that the library
 * registered for the read. */
static unsigned long read_by(struct penstock_storage *st, const char *path)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = LEN};
	struct penstock_copy_args args = {.size = sizeof(args),
					  .dst_dev = host,
					  .dst = back,
					  .src_dev = gpu,
					  .src = mem,
					  .row_len = LEN};
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_req req = test_request(st, &seg, 1, PENSTOCK_READ);
	unsigned long before = calls("cuMemHostRegister_v2"), after;

	if (penstock_transfer(&req, &report) != (int64_t)LEN)
		fail_msg("%s", penstock_errmsg());
	after = calls("cuMemHostRegister_v2");
	assert_string_equal(report.path, path);
	assert_int_equal(report.retries, 0);
	for (unsigned i = 0; i < report.path_count; i++) {
		if (!strcmp(report.paths[i].name, path))
			assert_int_equal(report.paths[i].bytes, LEN);
		else if (!strcmp(report.paths[i].name, "mapped"))
			assert_int_equal(report.paths[i].why, PENSTOCK_WHY_HELD);
	}
	assert_int_equal(penstock_copy(&args, 1), 0);
	assert_memory_equal(back, bytes, LEN);
	return after - before;
}

static void no_chunk_fails_when_windows_are_used_up(void **state)
{
	(void)state;
	first = open_file(0);
	assert_int_equal(read_by(first, "mapped"), 2);
	use_up_windows(first);
	assert_int_equal(read_by(first, "bounce"), 0);
	second = open_file(0);
	assert_int_equal(read_by(second, "bounce"), 0);
	/* When a storage closes, its windows (registered ranges) become available to other
	 * storages. */
	penstock_close(first);
	first = NULL;
	await_unregistered();
	assert_int_equal(read_by(second, "mapped"), 2);
}

static void immutable_storages_find_windows(void **state)
{
	unsigned long used;

	(void)state;
	first = open_file(0);
	used = use_up_windows(first);
	if (used > WINDOWS_MAX * 3 / 4)
		fail_msg("%lu windows of a storage that is not immutable", used);
	second = open_file(PENSTOCK_O_IMMUTABLE);
	assert_int_equal(read_by(second, "mapped"), 2);
	assert_int_equal(read_by(second, "mapped"), 0);
}

static void kept_windows_serve_a_full_lane(void **state)
{
	(void)state;
	first = open_file(PENSTOCK_O_IMMUTABLE);
	assert_int_equal(read_by(first, "mapped"), 2);
	second = open_file(PENSTOCK_O_IMMUTABLE);
	assert_int_equal(use_up_windows(second), WINDOWS_MAX - 2);
	assert_int_equal(read_by(first, "mapped"), 0);
	third = open_file(PENSTOCK_O_IMMUTABLE);
	assert_int_equal(read_by(third, "bounce"), 0);
	assert_int_equal(read_by(first, "mapped"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(no_chunk_fails_when_windows_are_used_up, close_storages),
		cmocka_unit_test_teardown(immutable_storages_find_windows, close_storages),
		cmocka_unit_test_teardown(kept_windows_serve_a_full_lane, close_storages),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, setup, teardown);
}
