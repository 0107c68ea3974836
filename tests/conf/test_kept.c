/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests when path "mapped" keeps a registration of file pages and uses it again. The library may
 * keep it only for a storage that was opened as immutable, and only while the storage is open and
 * its file is unchanged. For other storages a kept registration would be wrong: after an overwrite
 * it still returns the old bytes, with the stand-in driver too. The device has one lane (worker
 * thread), so that the test knows which lane keeps a registration.
 */
#include "test.h"

#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "penstock.h"
#include "request.h"

/* longer than any read that the caller's thread carries itself, so the device's worker thread (its
 * lane) carries it */
#define LEN (4u << 20)

static unsigned long (*calls)(const char *name);
static struct penstock_device *host, *gpu;
static struct penstock_storage *st;
static unsigned char *bytes, *back;
static uint64_t seed = 11;
static void *mem;
static char name[256];

/* Overwrites the file with other bytes, and repeats this until the file's change time differs from
 * the one before. */
static void overwrite_file(void)
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

	(void)state;
	*(void **)&calls = test_standin_symbol("pst_standin_calls");
	bytes = malloc(LEN);
	back = malloc(LEN);
	test_file_name(name, sizeof(name), "penstock-kept");
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

static int close_storage(void **state)
{
	(void)state;
	penstock_close(st);
	st = NULL;
	return 0;
}

static void open_file(unsigned flags)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;

	if (!calls)
		test_skip("only the stand-in counts its calls");
	opts.flags = flags;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	assert_int_equal(penstock_prepare(st, gpu, PENSTOCK_READ), 0);
}

/* Reads a part of the file and compares it with the expected bytes. Returns how often the library
 * registered file pages with the CUDA driver for the read. */
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
	struct penstock_req req;
	unsigned long before = calls("cuMemHostRegister_v2"), after;

	req = test_request(st, &seg, 1, PENSTOCK_READ);
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

/* If the storage was not opened as immutable, each request makes a new registration, even when
 * nothing shows that the file has changed. */
static void nothing_kept_unless_immutable(void **state)
{
	(void)state;
	overwrite_file();
	open_file(0);
	for (unsigned i = 0; i < 3; i++) {
		assert_true(read_all() > 0);
		assert_true(read_all() > 0);
		/* changes the file's bytes; the next read must return the new bytes */
		overwrite_file();
	}
}

static void registration_is_used_again(void **state)
{
	(void)state;
	overwrite_file();
	open_file(PENSTOCK_O_IMMUTABLE);
	assert_true(read_all() > 0);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(read_all(), 0);
}

/* The file is overwritten although its storage was opened as immutable. Later reads must return the
 * new bytes. */
static void changed_file_is_registered_anew(void **state)
{
	(void)state;
	overwrite_file();
	open_file(PENSTOCK_O_IMMUTABLE);
	for (unsigned i = 0; i < 3; i++) {
		assert_true(read_all() > 0);
		assert_int_equal(read_all(), 0);
		overwrite_file();
	}
}

/* Each open storage has its own registrations, even if several storages have the same file. */
static void nothing_kept_after_close(void **state)
{
	overwrite_file();
	for (unsigned i = 0; i < 3; i++) {
		open_file(PENSTOCK_O_IMMUTABLE);
		assert_true(read_all() > 0);
		close_storage(state);
	}
}

/* A read within a registered range makes no new registration. A read that goes beyond the
 * registered range makes one. */
static void part_of_a_registration_is_enough(void **state)
{
	(void)state;
	overwrite_file();
	open_file(PENSTOCK_O_IMMUTABLE);
	assert_true(read_part(LEN / 4, 2u << 20) > 0);
	assert_int_equal(read_part(LEN / 4, 2u << 20), 0);
	assert_true(read_part(LEN / 4 + (1u << 20), 2u << 20) > 0);
	assert_int_equal(read_part(LEN / 4 + 4096, (2u << 20) - 8192), 0);
}

/* For a read of bytes that are not cached, the report's member dram_laid counts the bytes that fill
 * the page cache. For a read of cached bytes, dram_laid is 0. */
static void filling_the_page_cache_is_counted(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = LEN};
	struct penstock_explanation e = {.size = sizeof(e)};
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_req req;
	int fd;

	(void)state;
	/* Makes a new file, because pages of the old file may still be registered by earlier
	 * cases. The kernel could not drop such pages from the page cache. */
	unlink(name);
	overwrite_file();
	open_file(0);
	req = test_request(st, &seg, 1, PENSTOCK_READ);
	req.path = "mapped";
	for (unsigned warm = 0; warm < 2; warm++) {
		fd = open(name, O_RDONLY);
		assert_int_equal(fsync(fd), 0);
		if (!warm)
			posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		close(fd);
		assert_int_equal(penstock_explain(&req, &e), 0);
		if (e.resident != (int)warm)
			test_skip("no direct path to TMPDIR: the kernel does not report what is "
				  "cached");
		assert_int_equal(penstock_transfer(&req, &report), LEN);
		assert_int_equal(report.dram_laid, warm ? 0 : LEN);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(nothing_kept_unless_immutable, close_storage),
		cmocka_unit_test_teardown(registration_is_used_again, close_storage),
		cmocka_unit_test_teardown(changed_file_is_registered_anew, close_storage),
		cmocka_unit_test_teardown(nothing_kept_after_close, close_storage),
		cmocka_unit_test_teardown(part_of_a_registration_is_enough, close_storage),
		cmocka_unit_test_teardown(filling_the_page_cache_is_counted, close_storage),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, setup, teardown);
}
