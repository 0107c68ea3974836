/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks every byte of reads and writes with awkward lengths and offsets, for each combination of
 * storage, path and device. The guard bytes around the buffer must not change, and the byte counts
 * in the report must be consistent. The CUDA device is a simulated one of the stand-in driver,
 * unless PENSTOCK_STANDIN=0.
 */
#include "copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "penstock.h"
#include "request.h"

#define LEN (6u << 20)
#define GUARD 4096u
/* The program is slow with a sanitizer, so it tests only every fourth length. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define STEP 4
#else
#define STEP 1
#endif
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define READS ((COUNT(sizes) + STEP - 1) / STEP * COUNT(offsets))
#define WRITES ((COUNT(sizes) - 1 + STEP - 1) / STEP * COUNT(offsets))

static const uint64_t sizes[] = {0,    1,     511,   512,     513,     4095,	4096,
				 4097, 65535, 65537, 1000000, 2097151, 2097153, 5242893};
static const uint64_t offsets[] = {0, 1, 511, 4096, 4097, 65536};
static const char *const paths[] = {NULL, "bounce", "staged", "odirect", "mapped"};

static struct penstock_device *host;
static unsigned char *bytes, *back;

static const char *dir_of(bool memory)
{
	const char *tmp = getenv("TMPDIR");

	return memory ? "/dev/shm" : tmp ? tmp : "/tmp";
}

static void name_of(char *name, size_t len, bool memory)
{
	snprintf(name, len, "%s/penstock-bytes-%d", dir_of(memory), (int)getpid());
}

static int setup(void **state)
{
	(void)state;
	bytes = malloc(LEN);
	back = malloc(LEN + 3 * GUARD);
	for (size_t i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)(i * 2654435761u >> 11);
	return penstock_device_open("host", NULL, &host) < 0;
}

static int teardown(void **state)
{
	(void)state;
	penstock_device_close(host);
	free(bytes);
	free(back);
	return 0;
}

static void make_file(const char *name)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, LEN), LEN);
	assert_int_equal(fsync(fd), 0);
	close(fd);
}

static void check_report(const struct penstock_report *r, int64_t n)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < r->path_count; i++)
		sum += r->paths[i].bytes;
	assert_int_equal(sum, n);
	assert_int_equal(r->bytes, n);
	assert_int_equal(r->result, n);
	if (n)
		assert_string_not_equal(r->path, "none");
}

/* Makes one transfer. Returns 1 if it completed, or 0 if the path refused it with a reason. */
static int transfer(struct penstock_storage *st, struct penstock_device *dev, const char *path,
		    enum penstock_op op, void *mem, uint64_t off, uint64_t len, uint64_t want)
{
	struct penstock_seg seg = {.buf = mem, .dev = dev, .off = off, .row_len = len, .rows = 1};
	struct penstock_req req;
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	int64_t n;

	req = test_request(st, &seg, 1, op);
	req.path = path;
	n = penstock_transfer(&req, &report);
	if (n == -EOPNOTSUPP && path) {
		assert_true(strlen(penstock_errmsg()) > 10);
		return 0;
	}
	if (n != (int64_t)want)
		fail_msg("path %s off %llu len %llu: %lld, want %llu: %s", path ? path : "auto",
			 (unsigned long long)off, (unsigned long long)len, (long long)n,
			 (unsigned long long)want, n < 0 ? penstock_errmsg() : "");
	check_report(&report, n);
	return 1;
}

static uint64_t bytes_before_end(uint64_t off, uint64_t len)
{
	return off >= LEN ? 0 : off + len > LEN ? LEN - off : len;
}

static unsigned read_all_sizes(struct penstock_storage *st, struct penstock_device *dev,
			       const char *path, char *mem, unsigned shift)
{
	unsigned done = 0;

	for (unsigned s = 0; s < COUNT(sizes); s += STEP) {
		for (unsigned o = 0; o < COUNT(offsets); o++) {
			uint64_t len = sizes[s], off = offsets[o],
				 want = bytes_before_end(off, len);

			memset(back, 0xee, len + 2 * GUARD);
			test_copy(dev, mem, host, back, len + 2 * GUARD);
			if (!transfer(st, dev, path, PENSTOCK_READ, mem + GUARD + shift, off, len,
				      want))
				continue;
			test_copy(host, back, dev, mem, len + 2 * GUARD);
			done++;
			for (uint64_t i = 0; i < len + 2 * GUARD; i++) {
				uint64_t at = i - GUARD - shift;
				unsigned char right =
					i >= GUARD + shift && at < want ? bytes[off + at] : 0xee;

				if (back[i] != right)
					fail_msg("path %s off %llu len %llu: byte %lld is %02x, "
						 "not %02x",
						 path ? path : "auto", (unsigned long long)off,
						 (unsigned long long)len, (long long)at, back[i],
						 right);
			}
		}
	}
	return done;
}

/* Writes into the middle of a file of known bytes. The bytes around the written range and the
 * file's length must not change. */
static unsigned write_all_sizes(const char *name, struct penstock_device *dev, const char *path,
				char *mem)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;
	unsigned done = 0;
	struct stat stat;
	int fd;

	opts.flags = PENSTOCK_O_WRITE;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	fd = open(name, O_RDONLY);
	for (unsigned s = 1; s < COUNT(sizes); s += STEP) {
		for (unsigned o = 0; o < COUNT(offsets); o++) {
			uint64_t len = sizes[s], off = offsets[o];

			for (uint64_t i = 0; i < len; i++)
				back[i] = (unsigned char)(bytes[off + i] ^ (0x5a + s + o));
			test_copy(dev, mem, host, back, len);
			if (!transfer(st, dev, path, PENSTOCK_WRITE, mem, off, len, len))
				continue;
			done++;
			memcpy(bytes + off, back, len);
			assert_int_equal(pread(fd, back, LEN, 0), LEN);
			if (memcmp(back, bytes, LEN))
				fail_msg("path %s off %llu len %llu: the file differs",
					 path ? path : "auto", (unsigned long long)off,
					 (unsigned long long)len);
			assert_int_equal(fstat(fd, &stat), 0);
			assert_int_equal(stat.st_size, LEN);
		}
	}
	close(fd);
	penstock_close(st);
	return done;
}

static void check_file(const char *device, const char *engine, bool memory)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	struct penstock_storage *st;
	struct penstock_device *dev;
	char name[256];
	void *mem;

	opts.engine = engine;
	name_of(name, sizeof(name), memory);
	make_file(name);
	if (penstock_device_open(device, &opts, &dev) < 0)
		fail_msg("%s: %s", device, penstock_errmsg());
	assert_int_equal(penstock_alloc(dev, LEN + 3 * GUARD, &mem), 0);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	for (unsigned p = 0; p < COUNT(paths); p++) {
		unsigned done = read_all_sizes(st, dev, paths[p], mem, p % 2 ? 0 : 7);

		printf("# %s %s %s read by %s: %u\n", memory ? "tmpfs" : "disk", device, engine,
		       paths[p] ? paths[p] : "auto", done);
		/* path "bounce" and the automatic choice of a path must carry a request of every
		 * length */
		if (p < 2)
			assert_int_equal(done, READS);
	}
	penstock_close(st);
	for (unsigned p = 0; p < 4; p++) {
		unsigned done = write_all_sizes(name, dev, paths[p], mem);

		printf("# %s %s %s written by %s: %u\n", memory ? "tmpfs" : "disk", device, engine,
		       paths[p] ? paths[p] : "auto", done);
		if (p < 2)
			assert_int_equal(done, WRITES);
	}
	penstock_free(dev, mem);
	penstock_device_close(dev);
	unlink(name);
}

/* Tests a storage without a descriptor. Paths that need a descriptor refuse its requests. All
 * other paths carry requests of every length. */
static void check_memory_storage(const char *device, const char *engine)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_device_opts dev_opts = PENSTOCK_DEVICE_OPTS_INIT;
	struct penstock_storage *st;
	struct penstock_device *dev;
	unsigned char *whole = malloc(LEN);
	char url[64];
	void *mem;

	snprintf(url, sizeof(url), "mem:%u?seed=3", LEN);
	opts.flags = PENSTOCK_O_WRITE;
	dev_opts.engine = engine;
	assert_true(penstock_device_open(device, &dev_opts, &dev) >= 0);
	assert_int_equal(penstock_alloc(dev, LEN + 3 * GUARD, &mem), 0);
	assert_int_equal(penstock_open(url, &opts, &st), 0);
	assert_int_equal(penstock_write(st, host, bytes, LEN, 0), LEN);
	/* The automatic choice and path "bounce" carry every read. The other paths need a
	 * descriptor, so they carry only the reads of length 0: one read for each offset. */
	for (unsigned p = 0; p < COUNT(paths); p++)
		assert_int_equal(read_all_sizes(st, dev, paths[p], mem, p % 2 ? 0 : 7),
				 p < 2 ? READS : COUNT(offsets));
	for (unsigned s = 1; s < COUNT(sizes); s += STEP)
		for (unsigned p = 0; p < 2; p++) {
			uint64_t len = sizes[s], off = offsets[s % COUNT(offsets)];

			for (uint64_t i = 0; i < len; i++)
				back[i] = (unsigned char)(bytes[off + i] ^ (0x3c + s + p));
			test_copy(dev, mem, host, back, len);
			assert_int_equal(
				transfer(st, dev, paths[p], PENSTOCK_WRITE, mem, off, len, len), 1);
			memcpy(bytes + off, back, len);
			assert_int_equal(penstock_read(st, host, whole, LEN, 0), LEN);
			assert_memory_equal(whole, bytes, LEN);
		}
	penstock_close(st);
	penstock_free(dev, mem);
	penstock_device_close(dev);
	free(whole);
}

static void memory_storage(void **state)
{
	(void)state;
	check_memory_storage("host", "auto");
	check_memory_storage("cuda:0", "threads");
}

/* Path "null" moves no bytes. Each of its requests still completes exactly once, and reports its
 * full length. */
static void path_null_completes_each_request_once(void **state)
{
	enum { COUNT_OF = 64 };
	struct penstock_done done[COUNT_OF];
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_seg seg = {.dev = host};
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	unsigned ended[COUNT_OF] = {0};
	uint64_t ids[COUNT_OF];
	struct penstock_queue *q;

	(void)state;
	opts.flags = PENSTOCK_O_WRITE;
	assert_int_equal(penstock_open("mem:1MiB", &opts, &req.storage), 0);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	memset(back, 0xee, LEN);
	seg.buf = back;
	req.segs = &seg;
	req.seg_count = 1;
	req.path = "null";
	for (unsigned i = 0; i < COUNT_OF; i++) {
		seg.row_len = i * 1000;
		req.op = i % 2 ? PENSTOCK_WRITE : PENSTOCK_READ;
		req.user = &ended[i];
		assert_int_equal(penstock_submit(q, &req, 1, &ids[i]), 1);
	}
	assert_int_equal(penstock_wait(q, done, COUNT_OF, COUNT_OF, -1), COUNT_OF);
	for (unsigned i = 0; i < COUNT_OF; i++) {
		unsigned at = (unsigned)((unsigned *)done[i].user - ended);

		assert_int_equal(done[i].id, ids[at]);
		assert_int_equal(done[i].result, at * 1000);
		assert_string_equal(done[i].report->path, at ? "null" : "none");
		ended[at]++;
	}
	assert_int_equal(penstock_wait(q, done, 1, COUNT_OF, -1), 0);
	for (unsigned i = 0; i < COUNT_OF; i++) {
		assert_int_equal(ended[i], 1);
		assert_int_equal(penstock_cancel(q, ids[i]), -ENOENT);
	}
	for (unsigned i = 0; i < LEN; i++)
		assert_int_equal(back[i], 0xee);
	penstock_queue_close(q);
	penstock_close(req.storage);
}

static void host_device_on_disk_by_threads(void **state)
{
	(void)state;
	check_file("host", "threads", false);
}

static void cuda_device_on_disk(void **state)
{
	(void)state;
	check_file("cuda:0", "auto", false);
}

static void cuda_device_on_disk_by_threads(void **state)
{
	(void)state;
	check_file("cuda:0", "threads", false);
}

static void cuda_device_on_tmpfs(void **state)
{
	(void)state;
	check_file("cuda:0", "auto", true);
}

static void host_device_on_disk(void **state)
{
	(void)state;
	check_file("host", "auto", false);
}

static void host_device_on_tmpfs(void **state)
{
	(void)state;
	check_file("host", "auto", true);
}

/* If a request requires a class, such as PENSTOCK_DIRECT, that no path between the storage and the
 * device meets, the library refuses the request before any byte moves. */
static void class_that_cannot_be_met_is_refused(void **state)
{
	struct penstock_seg seg = {.buf = back, .dev = host, .row_len = 4096, .rows = 1};
	struct penstock_req req;
	struct penstock_storage *st;
	char name[256];

	(void)state;
	name_of(name, sizeof(name), true);
	make_file(name);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	memset(back, 0xee, 4096);
	req = test_request(st, &seg, 1, PENSTOCK_READ);
	for (int c = PENSTOCK_NO_CPU_COPY; c <= PENSTOCK_DIRECT; c++) {
		req.require = (enum penstock_class)c;
		assert_int_equal(penstock_transfer(&req, NULL), -EOPNOTSUPP);
		assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_REQUIRE);
	}
	for (unsigned i = 0; i < 4096; i++)
		assert_int_equal(back[i], 0xee);
	penstock_close(st);
	unlink(name);
}

/* The request requires PENSTOCK_DIRECT, and one of the paths to the device is direct. For each
 * other path, the report says that the required class forbids this path. */
static void report_names_paths_that_the_class_forbids(void **state)
{
	struct penstock_seg seg = {.dev = host, .row_len = 65536};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	char name[256];
	int64_t n;

	(void)state;
	name_of(name, sizeof(name), false);
	make_file(name);
	assert_int_equal(penstock_open(name, NULL, &req.storage), 0);
	assert_int_equal(penstock_alloc(host, seg.row_len, &seg.buf), 0);
	req.segs = &seg;
	req.seg_count = 1;
	req.require = PENSTOCK_DIRECT;
	n = penstock_transfer(&req, &report);
	penstock_free(host, seg.buf);
	penstock_close(req.storage);
	unlink(name);
	if (n == -EOPNOTSUPP)
		test_skip("no direct path to TMPDIR: %s", penstock_errmsg());
	assert_int_equal(n, 65536);
	assert_string_equal(report.path, "odirect");
	for (unsigned i = 0; i < report.path_count; i++) {
		const struct penstock_report_path *row = &report.paths[i];

		if (!strcmp(row->name, "staged") || !strcmp(row->name, "bounce"))
			assert_int_equal(row->why, PENSTOCK_WHY_REQUIRE);
		assert_true(row->bytes || row->text[0]); /* Every unused path has a reason. */
	}
}

/* Two buffers and the columns of a matrix are read from one range. The library must read each byte
 * of the storage only once. */
static void one_range_into_several_buffers(void **state)
{
	struct penstock_seg segs[4];
	struct penstock_req req;
	struct penstock_storage *st;
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	const uint64_t rows = 300, row = 1000, n = rows * row;
	unsigned char *a = malloc(n), *b = malloc(n), *left = malloc(n / 2), *right = malloc(n / 2);
	char name[256];

	(void)state;
	name_of(name, sizeof(name), false);
	make_file(name);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	segs[0] = (struct penstock_seg){.buf = a, .dev = host, .off = 3, .row_len = n, .rows = 1};
	segs[1] = (struct penstock_seg){.buf = b, .dev = host, .off = 3, .row_len = n, .rows = 1};
	segs[2] = (struct penstock_seg){.buf = left,
					.dev = host,
					.off = 3,
					.row_len = row / 2,
					.rows = rows,
					.pitch = row,
					.buf_pitch = row / 2};
	segs[3] = segs[2];
	segs[3].buf = right;
	segs[3].off += row / 2;
	req = test_request(st, segs, 4, PENSTOCK_READ);
	assert_int_equal(penstock_transfer(&req, &report), 3 * n);
	assert_int_equal(report.bytes, n);
	assert_memory_equal(a, bytes + 3, n);
	assert_memory_equal(b, bytes + 3, n);
	for (uint64_t r = 0; r < rows; r++) {
		assert_memory_equal(left + r * row / 2, bytes + 3 + r * row, row / 2);
		assert_memory_equal(right + r * row / 2, bytes + 3 + r * row + row / 2, row / 2);
	}
	penstock_close(st);
	unlink(name);
	free(a);
	free(b);
	free(left);
	free(right);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(host_device_on_disk),
		cmocka_unit_test(host_device_on_tmpfs),
		cmocka_unit_test(host_device_on_disk_by_threads),
		cmocka_unit_test(memory_storage),
		cmocka_unit_test(path_null_completes_each_request_once),
		cmocka_unit_test(cuda_device_on_disk),
		cmocka_unit_test(cuda_device_on_disk_by_threads),
		cmocka_unit_test(cuda_device_on_tmpfs),
		cmocka_unit_test(class_that_cannot_be_met_is_refused),
		cmocka_unit_test(report_names_paths_that_the_class_forbids),
		cmocka_unit_test(one_range_into_several_buffers),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, setup, teardown);
}
