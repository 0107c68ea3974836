/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane begins with a part of its ring, and pins the rest when it is short of slots: what
 * needs little leaves it at that, what needs much gets all of it, every byte is right before,
 * meanwhile and afterwards, and where the rest cannot be pinned. The device is the
 * stand-in's, whose copies are slow here and which counts what is pinned.
 */
#include "copy.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <unistd.h>

#include "core/pump.h"

#define MIB ((uint64_t)1 << 20)
#define LEN (64 * MIB)
#define LANES 2

static unsigned char *bytes, *back;
static struct penstock_device *host, *gpu;
static struct penstock_storage *st;
static void *mem;
static char name[256];

static int setup(void **state)
{
	const char *tmp = getenv("TMPDIR");
	uint64_t seed = 17;
	int fd;

	(void)state;
	test_use_standin();
	setenv("PENSTOCK_STANDIN_DELAY_US", "3000", 1);
	setenv("PENSTOCK_STANDIN_LEAKS", "2", 1);
	bytes = malloc(LEN);
	back = malloc(LEN);
	if (!bytes || !back)
		return -1;
	for (size_t i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)test_random(&seed);
	snprintf(name, sizeof(name), "%s/penstock-rings-%d", tmp ? tmp : "/tmp", (int)getpid());
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

static void *driver(const char *function)
{
	const char *path = getenv("PENSTOCK_LIBCUDA");
	void *lib = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
	void *found = lib ? dlsym(lib, function) : NULL;

	if (!found)
		test_skip("the driver is the machine's own");
	return found;
}

static void refuse(const char *calls)
{
	int (*set)(const char *);

	*(void **)&set = driver("pst_standin_fail");
	assert_int_equal(set(calls), 0);
}

/* Of all lanes' rings, that were to be pinned since this was last told to begin again. */
static unsigned long pieces(bool again)
{
	unsigned long (*calls)(const char *);
	static unsigned long before;

	*(void **)&calls = driver("pst_standin_calls");
	if (again)
		before = calls("cuMemHostRegister_v2");
	return calls("cuMemHostRegister_v2") - before;
}

/* A device whose lanes have all begun. */
static int begin(void **state)
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

static int end(void **state)
{
	(void)state;
	penstock_close(st);
	penstock_free(gpu, mem);
	penstock_device_close(gpu);
	penstock_device_close(host);
	return 0;
}

static void read_all(uint64_t len, bool drive)
{
	struct penstock_seg seg = {.dev = gpu, .buf = mem, .row_len = len};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_report report = PENSTOCK_REPORT_INIT;

	memset(back, 0xa5, LEN);
	test_copy(gpu, mem, host, back, LEN);
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.effort = PENSTOCK_FAST;
	req.path = drive ? "staged" : "bounce";
	assert_int_equal(penstock_transfer(&req, &report), len);
	test_copy(host, back, gpu, mem, LEN);
	assert_memory_equal(back, bytes, len);
	for (uint64_t i = len; i < LEN && i < len + 4096; i++)
		assert_int_equal(back[i], 0xa5);
}

static void little(void **state)
{
	(void)state;
	pieces(true);
	for (unsigned i = 0; i < 50; i++)
		read_all(4096 * i, false);
	assert_int_equal(pieces(false), 0);
}

static void much(void **state)
{
	(void)state;
	pieces(true);
	read_all(LEN, false);
	assert_in_range(pieces(false), 1, LANES);
	for (unsigned i = 0; i < 3; i++) /* once each */
		read_all(LEN, false);
	assert_in_range(pieces(false), 1, LANES);
}

/* In calls of the drive, which io_uring carries into either piece as registered. */
static void much_from_the_drive(void **state)
{
	(void)state;
	if (st->facts.why_direct.why)
		test_skip("no O_DIRECT here");
	pieces(true);
	read_all(LEN, true);
	assert_in_range(pieces(false), 1, LANES);
	read_all(LEN, true);
}

/* Slower, and nothing else: as where a ring cannot be pinned at all. */
static void the_rest_refused(void **state)
{
	(void)state;
	pieces(true);
	refuse("cuMemHostRegister_v2:1+:2");
	for (unsigned i = 0; i < 3; i++)
		read_all(LEN, false);
	refuse(NULL);
	assert_in_range(pieces(false), 1, LANES);
	read_all(LEN, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(little, begin, end),
		cmocka_unit_test_setup_teardown(much, begin, end),
		cmocka_unit_test_setup_teardown(much_from_the_drive, begin, end),
		cmocka_unit_test_setup_teardown(the_rest_refused, begin, end),
	};

	return cmocka_run_group_tests_name("rings", tests, setup, teardown);
}
