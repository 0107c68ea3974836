/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane begins with a part of its ring, and pins the rest when it has need of it: long reads
 * out of the page cache leave it at that, many short ones and reads from a drive get all of
 * it, every byte is right before, meanwhile and afterwards, and where the rest cannot be
 * pinned. The device is the stand-in's, whose copies are slow here and which counts what is
 * pinned.
 */
#include "copy.h"

#include <dlfcn.h>
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
static FILE *said; /* by the driver, while it is listened to */
static int spoken;

static int setup(void **state)
{
	const char *tmp = getenv("TMPDIR");
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

/* What the driver says of what it refuses is kept, and in the end shown. */
static void hear(void)
{
	said = tmpfile();
	assert_non_null(said);
	fflush(stderr);
	spoken = dup(STDERR_FILENO);
	assert_true(spoken >= 0 && dup2(fileno(said), STDERR_FILENO) >= 0);
}

/* How many copies it refused. */
static unsigned heard(void)
{
	unsigned count = 0;
	char line[512];

	if (!said)
		return 0;
	fflush(stderr);
	dup2(spoken, STDERR_FILENO);
	close(spoken);
	rewind(said);
	while (fgets(line, sizeof(line), said)) {
		fputs(line, stderr);
		count += strstr(line, "is not within one live") != NULL;
	}
	fclose(said);
	said = NULL;
	return count;
}

static int end(void **state)
{
	(void)state;
	heard();
	penstock_close(st);
	penstock_free(gpu, mem);
	penstock_device_close(gpu);
	penstock_device_close(host);
	return 0;
}

static void read_into(struct penstock_seg *segs, unsigned count, uint64_t len, bool drive)
{
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_report report = PENSTOCK_REPORT_INIT;

	memset(back, 0xa5, LEN);
	test_copy(gpu, mem, host, back, LEN);
	req.storage = st;
	req.segs = segs;
	req.seg_count = count;
	req.effort = PENSTOCK_FAST;
	req.path = drive ? "staged" : "bounce";
	assert_int_equal(penstock_transfer(&req, &report), len);
	test_copy(host, back, gpu, mem, LEN);
}

static void read_long(uint64_t len, bool drive)
{
	struct penstock_seg seg = {.dev = gpu, .buf = mem, .row_len = len};

	read_into(&seg, 1, len, drive);
	assert_memory_equal(back, bytes, len);
	for (uint64_t i = len; i < LEN && i < len + 4096; i++)
		assert_int_equal(back[i], 0xa5);
}

/* Each from its own place in the file to its own in memory, with a gap behind it. */
static void read_short(void)
{
	struct penstock_seg segs[SHORTS];

	for (unsigned i = 0; i < SHORTS; i++)
		segs[i] = (struct penstock_seg){.dev = gpu,
						.buf = (char *)mem + (size_t)8192 * i,
						.off = (size_t)12288 * i,
						.row_len = 4096};
	read_into(segs, SHORTS, SHORTS * 4096, false);
	for (unsigned i = 0; i < SHORTS; i++) {
		assert_memory_equal(back + (size_t)8192 * i, bytes + (size_t)12288 * i, 4096);
		assert_int_equal(back[(size_t)8192 * i + 4096], 0xa5);
	}
}

static void cached(void **state)
{
	enum penstock_why why;

	(void)state;
	if (st->ops->residency(st, 0, LEN, &why) != PST_WARM)
		test_skip("this kernel does not say what is cached");
	pieces(true);
	for (unsigned i = 0; i < 20; i++)
		read_long(4096 * i, false);
	read_long(LEN, false);
	assert_int_equal(pieces(false), 0);
}

static void many_short(void **state)
{
	(void)state;
	pieces(true);
	read_short();
	assert_in_range(pieces(false), 1, LANES);
	hear();
	for (unsigned i = 0; i < 3; i++) /* once each */
		read_short();
	assert_int_equal(heard(), 0); /* none was copied together with one of the other piece */
	assert_in_range(pieces(false), 1, LANES);
	read_long(LEN, false);
}

/* In calls that io_uring carries into either piece as registered. */
static void from_the_drive(void **state)
{
	(void)state;
	if (st->facts.why_direct.why)
		test_skip("no O_DIRECT here");
	pieces(true);
	read_long(LEN, true);
	assert_in_range(pieces(false), 1, LANES);
	read_long(LEN, true);
}

/* Slower, and nothing else: as where a ring cannot be pinned at all. */
static void the_rest_refused(void **state)
{
	(void)state;
	pieces(true);
	refuse("cuMemHostRegister_v2:1+:2");
	for (unsigned i = 0; i < 3; i++)
		read_short();
	refuse(NULL);
	assert_in_range(pieces(false), 1, LANES);
	read_long(LEN, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(cached, begin, end),
		cmocka_unit_test_setup_teardown(many_short, begin, end),
		cmocka_unit_test_setup_teardown(from_the_drive, begin, end),
		cmocka_unit_test_setup_teardown(the_rest_refused, begin, end),
	};

	return cmocka_run_group_tests_name("rings", tests, setup, teardown);
}
