/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What path mapped keeps registered, and when it is used again: for a storage that the
 * caller calls immutable, as long as it is open and the file is what it was; for any other
 * never, for a kept registration gives the bytes of yesterday (the stand-in's does, too).
 * One lane, so that it is known who keeps what.
 */
#include "test.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "penstock.h"

#define LEN (4u << 20) /* more than the caller's thread does itself */

static unsigned long (*calls)(const char *name);
static struct penstock_device *host, *gpu;
static struct penstock_storage *st;
static unsigned char *bytes, *back;
static uint64_t seed = 11;
static void *mem;
static char name[256];

/* Other bytes in the same place; the file system's clock has gone on when it returns. */
static void write_anew(void)
{
	struct stat was, now;
	int fd = open(name, O_RDWR | O_CREAT, 0600);

	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &was), 0);
	for (size_t i = 0; i < LEN; i += sizeof(uint64_t)) {
		uint64_t word = test_random(&seed);

		memcpy(bytes + i, &word, sizeof(word));
	}
	do {
		assert_int_equal(pwrite(fd, bytes, LEN, 0), LEN);
		assert_int_equal(fstat(fd, &now), 0);
	} while (was.st_ctim.tv_sec == now.st_ctim.tv_sec &&
		 was.st_ctim.tv_nsec == now.st_ctim.tv_nsec);
	close(fd);
}

static int setup(void **state)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	const char *tmp = getenv("TMPDIR"), *lib = getenv("PENSTOCK_LIBCUDA");
	void *handle = lib ? dlopen(lib, RTLD_NOW) : NULL;

	(void)state;
	if (handle)
		*(void **)&calls = dlsym(handle, "pst_standin_calls");
	bytes = malloc(LEN);
	back = malloc(LEN);
	snprintf(name, sizeof(name), "%s/penstock-kept-%d", tmp ? tmp : "/tmp", (int)getpid());
	opts.lanes = 1;
	return !bytes || !back || penstock_device_open("host", NULL, &host) < 0 ||
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

static int close_it(void **state)
{
	(void)state;
	penstock_close(st);
	st = NULL;
	return 0;
}

static void open_it(unsigned flags)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;

	if (!calls)
		test_skip("only the stand-in counts its calls");
	opts.flags = flags;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	assert_int_equal(penstock_prepare(st, gpu, PENSTOCK_READ), 0);
}

/* Reads a part; the bytes are those of the file. How often something was registered. */
static unsigned long read_part(uint64_t off, uint64_t len)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .off = off, .row_len = len};
	struct penstock_copy_args args = {.size = sizeof(args),
					  .dst_dev = host,
					  .dst = back,
					  .src_dev = gpu,
					  .src = mem,
					  .row_len = len};
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_req req = PENSTOCK_REQ_INIT;
	unsigned long before = calls("cuMemHostRegister_v2"), after;

	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.path = "mapped";
	if (penstock_transfer(&req, &report) != (int64_t)len)
		fail_msg("%s", penstock_errmsg());
	assert_string_equal(report.path, "mapped");
	after = calls("cuMemHostRegister_v2");
	assert_int_equal(penstock_copy(&args, 1), 0);
	for (uint64_t i = 0; i < len; i++)
		if (back[i] != bytes[off + i])
			fail_msg("byte %llu is %02x, not %02x", (unsigned long long)(off + i),
				 back[i], bytes[off + i]);
	return after - before;
}

static unsigned long read_all(void)
{
	return read_part(0, LEN);
}

/* Nobody promised anything: each request registers for itself, also where nothing shows
 * that the file has changed. */
static void not_unless_promised(void **state)
{
	(void)state;
	write_anew();
	open_it(0);
	for (unsigned i = 0; i < 3; i++) {
		assert_true(read_all() > 0);
		assert_true(read_all() > 0);
		write_anew(); /* and reads what is there by now */
	}
}

static void used_again(void **state)
{
	(void)state;
	write_anew();
	open_it(PENSTOCK_O_IMMUTABLE);
	assert_true(read_all() > 0);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(read_all(), 0);
}

/* A file that changes all the same, in place: from then on it is what it became. */
static void not_once_it_changed(void **state)
{
	(void)state;
	write_anew();
	open_it(PENSTOCK_O_IMMUTABLE);
	for (unsigned i = 0; i < 3; i++) {
		assert_true(read_all() > 0);
		assert_int_equal(read_all(), 0);
		write_anew();
	}
}

/* Another open of the same file has its own. */
static void not_behind_the_close(void **state)
{
	write_anew();
	for (unsigned i = 0; i < 3; i++) {
		open_it(PENSTOCK_O_IMMUTABLE);
		assert_true(read_all() > 0);
		close_it(state);
	}
}

/* A part of what is registered needs nothing more, what lies outside of it does. */
static void a_part_of_it(void **state)
{
	(void)state;
	write_anew();
	open_it(PENSTOCK_O_IMMUTABLE);
	assert_true(read_part(LEN / 4, 2u << 20) > 0);
	assert_int_equal(read_part(LEN / 4, 2u << 20), 0);
	assert_true(read_part(LEN / 4 + (1u << 20), 2u << 20) > 0);
	assert_int_equal(read_part(LEN / 4 + 4096, (2u << 20) - 8192), 0);
}

/* What it fills the page cache with is laid down there on the way, what it finds is not. */
static void cold_bytes_are_laid_down(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = LEN};
	struct penstock_explanation e = {.size = sizeof(e)};
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_req req = PENSTOCK_REQ_INIT;
	int fd;

	(void)state;
	unlink(name); /* of the other one pages may be registered still, and so stay */
	write_anew();
	open_it(0);
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.path = "mapped";
	for (unsigned warm = 0; warm < 2; warm++) {
		fd = open(name, O_RDONLY);
		assert_int_equal(fsync(fd), 0);
		if (!warm)
			posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		close(fd);
		assert_int_equal(penstock_explain(&req, &e), 0);
		if (e.resident != (int)warm)
			test_skip("no direct path to TMPDIR: cached or not, nobody tells");
		assert_int_equal(penstock_transfer(&req, &report), LEN);
		assert_int_equal(report.dram_laid, warm ? 0 : LEN);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(not_unless_promised, close_it),
		cmocka_unit_test_teardown(used_again, close_it),
		cmocka_unit_test_teardown(not_once_it_changed, close_it),
		cmocka_unit_test_teardown(not_behind_the_close, close_it),
		cmocka_unit_test_teardown(a_part_of_it, close_it),
		cmocka_unit_test_teardown(cold_bytes_are_laid_down, close_it),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, setup, teardown);
}
