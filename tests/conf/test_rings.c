/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests rings of pinned memory. A lane (a worker thread) pins the first piece of its ring when it
 * starts, and the second piece when it first needs it. Long reads from the page cache never need
 * the second piece. Many short reads need it, and so do reads from a drive. Every byte must arrive
 * before, during and after the pinning of the second piece, and also if the driver refuses to pin
 * it. The stand-in driver provides the device, makes its copies slow, and counts the pinned pieces
 * of rings.
 */
#include "copy.h"
#include "request.h"

#include <fcntl.h>
#include <stdbool.h>
#include <unistd.h>

#include "core/lane/pump.h"

#define MIB ((uint64_t)1 << 20)
#define LEN (24 * MIB)
#define SHORTS 300u
#define LANES 2

static unsigned char *bytes, *back;
static struct penstock_device *host, *gpu;
static struct penstock_storage *st;
static void *mem;
static char name[256];
static FILE *stderr_copy; /* standard error of the program, while stderr_capture redirects it */
static int stderr_saved;

static int setup(void **state)
{
	uint64_t seed = 17;
	int fd;

	(void)state;
	test_use_standin();
	setenv("PENSTOCK_STANDIN_DELAY_US", "3000", 1);
	setenv("PENSTOCK_STANDIN_LEAKS", "2", 1);
	setenv("PENSTOCK_STANDIN_VERBOSE", "1", 1);
	bytes = malloc(LEN);
	back = malloc(LEN);
	if (!bytes || !back)
		return -1;
	for (size_t i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)test_random(&seed);
	test_file_name(name, sizeof(name), "penstock-rings");
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || write(fd, bytes, LEN) != (ssize_t)LEN)
		return -1;
	return close(fd);
}

static int teardown(void **state)
{
	(void)state;
	free(bytes);
	free(back);
	return unlink(name);
}

static void *driver_symbol(const char *function)
{
	void *found = test_standin_symbol(function);

	if (!found)
		test_skip("the driver is the machine's own");
	return found;
}

static void set_driver_failures(const char *calls)
{
	int (*set)(const char *);

	*(void **)&set = driver_symbol("pst_standin_fail");
	assert_int_equal(set(calls), 0);
}

/* Returns how many pieces of their rings (pinned memory) all worker threads together have pinned
 * since the count started. If `again` is true, this call starts a new count. */
static unsigned long pinned_pieces(bool again)
{
	unsigned long (*calls)(const char *);
	static unsigned long before;

	*(void **)&calls = driver_symbol("pst_standin_calls");
	if (again)
		before = calls("cuMemHostRegister_v2");
	return calls("cuMemHostRegister_v2") - before;
}

/* Opens a device, and waits until all its worker threads run. */
static int open_and_start_lanes(void **state)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;

	(void)state;
	opts.lanes = LANES;
	if (penstock_device_open("host", NULL, &host) < 0 ||
	    penstock_device_open("cuda:0", &opts, &gpu) < 0 || penstock_open(name, NULL, &st) ||
	    penstock_alloc(gpu, LEN, &mem) || penstock_prepare(st, gpu, PENSTOCK_READ))
		return -1;
	for (unsigned i = 0; i < LANES; i++)
		while (!atomic_load(&atomic_load(&gpu->pump)->lanes[i].turns))
			usleep(1000);
	return 0;
}

/* Captures standard error, where the simulated driver reports each refused copy. */
static void stderr_capture(void)
{
	stderr_copy = tmpfile();
	assert_non_null(stderr_copy);
	fflush(stderr);
	stderr_saved = dup(STDERR_FILENO);
	assert_true(stderr_saved >= 0 && dup2(fileno(stderr_copy), STDERR_FILENO) >= 0);
}

/* Stops the capture, shows the captured text, and returns the number of refused copies in it. */
static unsigned stderr_count_refused(void)
{
	unsigned count = 0;
	char line[512];

	if (!stderr_copy)
		return 0;
	fflush(stderr);
	dup2(stderr_saved, STDERR_FILENO);
	close(stderr_saved);
	rewind(stderr_copy);
	while (fgets(line, sizeof(line), stderr_copy)) {
		fputs(line, stderr);
		count += strstr(line, "is not within one live") != NULL;
	}
	fclose(stderr_copy);
	stderr_copy = NULL;
	return count;
}

static int close_all(void **state)
{
	(void)state;
	stderr_count_refused();
	penstock_close(st);
	penstock_free(gpu, mem);
	penstock_device_close(gpu);
	penstock_device_close(host);
	return 0;
}

static void read_segments(struct penstock_seg *segs, unsigned count, uint64_t len, bool drive)
{
	struct penstock_req req;
	struct penstock_report report = PENSTOCK_REPORT_INIT;

	memset(back, 0xa5, LEN);
	test_copy(gpu, mem, host, back, LEN);
	req = test_request(st, segs, count, PENSTOCK_READ);
	req.effort = PENSTOCK_FAST;
	req.path = drive ? "staged" : "bounce";
	assert_int_equal(penstock_transfer(&req, &report), len);
	test_copy(host, back, gpu, mem, LEN);
}

static void read_long(uint64_t len, bool drive)
{
	struct penstock_seg seg = {.dev = gpu, .buf = mem, .row_len = len};

	read_segments(&seg, 1, len, drive);
	assert_memory_equal(back, bytes, len);
	for (uint64_t i = len; i < LEN && i < len + 4096; i++)
		assert_int_equal(back[i], 0xa5);
}

/* Reads many short segments. After each segment there is a gap in the file and in memory. */
static void read_short(void)
{
	struct penstock_seg segs[SHORTS];

	for (unsigned i = 0; i < SHORTS; i++)
		segs[i] = (struct penstock_seg){.dev = gpu,
						.buf = (char *)mem + (size_t)8192 * i,
						.off = (size_t)12288 * i,
						.row_len = 4096};
	read_segments(segs, SHORTS, SHORTS * 4096, false);
	for (unsigned i = 0; i < SHORTS; i++) {
		assert_memory_equal(back + (size_t)8192 * i, bytes + (size_t)12288 * i, 4096);
		assert_int_equal(back[(size_t)8192 * i + 4096], 0xa5);
	}
}

static void cached_reads_pin_nothing_more(void **state)
{
	enum penstock_why why;

	(void)state;
	if (st->ops->residency(st, 0, LEN, &why) != PST_WARM)
		test_skip("this kernel does not report what is cached");
	pinned_pieces(true);
	for (unsigned i = 0; i < 20; i++)
		read_long(4096 * i, false);
	read_long(LEN, false);
	assert_int_equal(pinned_pieces(false), 0);
}

static void short_reads_pin_the_rest(void **state)
{
	(void)state;
	pinned_pieces(true);
	read_short();
	assert_in_range(pinned_pieces(false), 1, LANES);
	stderr_capture();
	/* The worker threads pin the second pieces of their rings (staging memory) once, not once
	 * for each read. */
	for (unsigned i = 0; i < 3; i++)
		read_short();
	assert_int_equal(stderr_count_refused(),
			 /* no copy may span both pinned pieces of a ring, because the driver would
			  * refuse such a copy */
			 0);
	assert_in_range(pinned_pieces(false), 1, LANES);
	read_long(LEN, false);
}

/* A worker thread registers its ring (pinned memory) with io_uring in two pieces. Reads from the
 * drive must pin and register the second piece, and deliver all bytes. */
static void drive_reads_pin_the_rest(void **state)
{
	(void)state;
	if (st->facts.why_direct.why)
		test_skip("no O_DIRECT here");
	pinned_pieces(true);
	read_long(LEN, true);
	assert_in_range(pinned_pieces(false), 1, LANES);
	read_long(LEN, true);
}

/* The driver refuses to pin the second piece of a thread's ring (staging memory). Reads continue,
 * but more slowly. */
static void pinning_the_rest_is_refused(void **state)
{
	(void)state;
	pinned_pieces(true);
	set_driver_failures("cuMemHostRegister_v2:1+:2");
	for (unsigned i = 0; i < 3; i++)
		read_short();
	set_driver_failures(NULL);
	assert_in_range(pinned_pieces(false), 1, LANES);
	read_long(LEN, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(cached_reads_pin_nothing_more, open_and_start_lanes,
						close_all),
		cmocka_unit_test_setup_teardown(short_reads_pin_the_rest, open_and_start_lanes,
						close_all),
		cmocka_unit_test_setup_teardown(drive_reads_pin_the_rest, open_and_start_lanes,
						close_all),
		cmocka_unit_test_setup_teardown(pinning_the_rest_is_refused, open_and_start_lanes,
						close_all),
	};

	return cmocka_run_group_tests_name("rings", tests, setup, teardown);
}
