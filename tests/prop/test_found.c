/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests defects that the property tests have found. Each case makes the smallest request that
 * reproduces one of them. The cases use the host, one simulated GPU and a file on the disk.
 */
#include "copy.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>

#include "penstock.h"
#include "request.h"

#define LEN (24u << 20)

static struct penstock_device *host, *gpu;
static struct penstock_storage *st;
static unsigned char *bytes, *back;
static void *device_mem;
static char name[256];

static void open_devices(size_t host_slot, size_t gpu_slot)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;

	opts.lanes = 1;
	opts.slot_bytes = host_slot;
	assert_int_equal(penstock_device_open("host", &opts, &host), 0);
	opts.slot_bytes = gpu_slot;
	assert_int_equal(penstock_device_open("cuda:0", &opts, &gpu), 0);
	assert_int_equal(penstock_alloc(gpu, LEN, &device_mem), 0);
}

static void open_file(unsigned flags, uint64_t length)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;

	opts.flags = flags;
	opts.length = length;
	if (penstock_open(name, &opts, &st))
		fail_msg("%s: %s", name, penstock_errmsg());
}

static void make_file(uint64_t len)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, len), len);
	assert_int_equal(fsync(fd), 0);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
}

static void read_back(uint64_t len)
{
	int fd = open(name, O_RDONLY);

	memset(back, 0xee, LEN);
	assert_int_equal(pread(fd, back, LEN, 0), len);
	close(fd);
}

static void copy_from_gpu(void *to, const void *from, size_t len)
{
	test_copy(host, to, gpu, from, len);
}

static int setup_all(void **state)
{
	(void)state;
	test_use_standin();
	bytes = aligned_alloc(4096, LEN);
	back = aligned_alloc(4096, LEN);
	for (size_t i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)(i * 2654435761u >> 11);
	test_file_name(name, sizeof(name), "penstock-found");
	return 0;
}

static int teardown_all(void **state)
{
	(void)state;
	free(bytes);
	free(back);
	return 0;
}

static int setup(void **state)
{
	(void)state;
	host = gpu = NULL;
	st = NULL;
	device_mem = NULL;
	memset(back, 0xee, LEN);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	penstock_close(st);
	if (device_mem)
		penstock_free(gpu, device_mem);
	penstock_device_close(gpu);
	penstock_device_close(host);
	unlink(name);
	return 0;
}

static int64_t transfer(enum penstock_op op, const struct penstock_seg *segs, unsigned count,
			const char *path, struct penstock_report *report)
{
	struct penstock_req req = PENSTOCK_REQ_INIT;

	req.storage = st;
	req.op = op;
	req.segs = segs;
	req.seg_count = count;
	req.path = path;
	return penstock_transfer(&req, report);
}

static void expect_result(int64_t got, int64_t want)
{
	if (got != want)
		fail_msg("%lld, not %lld: %s", (long long)got, (long long)want,
			 got < 0 ? penstock_errmsg() : "");
}

/* A read has two segments far apart, so the library makes a span (a contiguous range) of each. The
 * first span ends 300 bytes after a block boundary. The bytes of both spans must arrive. */
static void short_end_before_another_span(void **state)
{
	struct penstock_seg segs[2] = {{.off = 0, .row_len = 4096 + 300}, {.off = 1u << 20}};

	(void)state;
	open_devices(0, 0);
	make_file(LEN);
	open_file(0, 0);
	segs[0].buf = back;
	segs[1].buf = back + 65536;
	segs[1].row_len = 100000;
	segs[0].dev = segs[1].dev = host;
	expect_result(transfer(PENSTOCK_READ, segs, 2, NULL, NULL), 4396 + 100000);
	assert_memory_equal(back, bytes, 4396);
	assert_memory_equal(back + 65536, bytes + (1u << 20), 100000);
}

/* An empty segment is between two others. The bytes of the last segment must arrive. */
static void empty_segment_between_others(void **state)
{
	struct penstock_seg segs[3] = {
		{.off = 0, .row_len = 5000}, {.off = 77}, {.off = 5000, .row_len = 5000}};

	(void)state;
	open_devices(0, 0);
	make_file(LEN);
	open_file(0, 0);
	for (unsigned i = 0; i < 3; i++) {
		segs[i].buf = back + 5000 * (i > 1);
		segs[i].dev = host;
	}
	expect_result(transfer(PENSTOCK_READ, segs, 3, NULL, NULL), 10000);
	assert_memory_equal(back, bytes, 10000);
}

/* Copies between devices whose slots (pieces of the pinned staging memory) have the minimum
 * length. All bytes must arrive. */
static void copies_through_small_slots(void **state)
{
	(void)state;
	open_devices(64u << 10, 64u << 10);
	copy_from_gpu(back, device_mem, 300000);
}

/* Lanes (worker threads) of the first segment's device carry a request. The device of the second
 * segment has longer slots (pieces of pinned staging memory). Chunks must fit into the slots of the
 * carrying lanes, and all bytes must arrive. */
static void slots_of_two_lengths(void **state)
{
	static const char *const paths[] = {"bounce", "staged"};
	struct penstock_seg segs[2] = {{.off = 0, .row_len = 1000},
				       {.off = 1u << 20, .row_len = 5u << 20}};

	(void)state;
	open_devices(128u << 10, 4u << 20);
	make_file(LEN);
	open_file(PENSTOCK_O_WRITE, 0);
	segs[0].buf = back;
	segs[0].dev = host;
	segs[1].buf = device_mem;
	segs[1].dev = gpu;
	for (unsigned i = 0; i < 2; i++) {
		expect_result(transfer(PENSTOCK_READ, segs, 2, paths[i], NULL), 1000 + (5u << 20));
		copy_from_gpu(back, device_mem, 5u << 20);
		assert_memory_equal(back, bytes + (1u << 20), 5u << 20);
	}
	segs[0].buf = bytes;
	expect_result(transfer(PENSTOCK_WRITE, segs, 2, NULL, NULL), 1000 + (5u << 20));
	read_back(LEN);
	assert_memory_equal(back, bytes, LEN);
}

/* A lane (worker thread) of the host carries a request whose second segment is on the GPU and whose
 * bytes are cached. The path "mapped" then keeps its windows (registered pieces of the page cache)
 * on this lane of the host. All bytes must arrive. */
static void mapped_windows_on_a_host_lane(void **state)
{
	struct penstock_seg segs[2] = {{.off = 0, .row_len = 1000},
				       {.off = 1u << 20, .row_len = 16u << 20}};
	struct penstock_report report = PENSTOCK_REPORT_INIT;

	(void)state;
	open_devices(0, 0);
	make_file(LEN);
	read_back(LEN); /* reads the file back, which puts it into the page cache */
	open_file(0, 0);
	segs[0].buf = back;
	segs[0].dev = host;
	segs[1].buf = device_mem;
	segs[1].dev = gpu;
	expect_result(transfer(PENSTOCK_READ, segs, 2, NULL, &report), 1000 + (16u << 20));
	copy_from_gpu(back, device_mem, 16u << 20);
	assert_memory_equal(back, bytes + (1u << 20), 16u << 20);
	for (unsigned i = 0; i < report.path_count; i++)
		if (!strcmp(report.paths[i].name, "mapped"))
			printf("# mapped carried %llu bytes\n",
			       (unsigned long long)report.paths[i].bytes);
}

/* A read by the path "mapped" goes beyond the end of the file, where the file has no pages to map.
 * The read must deliver the bytes before the end and return their count. */
static void mapped_read_beyond_the_end(void **state)
{
	struct penstock_seg seg = {.off = 2802, .row_len = 775238};

	(void)state;
	open_devices(0, 0);
	make_file(7811);
	open_file(0, 0);
	seg.buf = device_mem;
	seg.dev = gpu;
	expect_result(transfer(PENSTOCK_READ, &seg, 1, "mapped", NULL), 7811 - 2802);
	copy_from_gpu(back, device_mem, 7811 - 2802);
	assert_memory_equal(back, bytes + 2802, 7811 - 2802);
}

/* A write must not change the bytes after its range, neither in memory nor in the file. Only a file
 * that is being created may have padding there. */
static void bytes_after_a_write(void **state)
{
	static const char *const paths[] = {NULL, "staged", "odirect"};
	struct penstock_seg seg = {.row_len = 9000, .room = 4096};

	(void)state;
	open_devices(0, 0);
	for (unsigned i = 0; i < 6; i++) {
		bool ours = i % 2;

		if (!ours)
			make_file(20000);
		open_file(ours ? PENSTOCK_O_CREATE : PENSTOCK_O_WRITE, ours ? 20000 : 0);
		seg.dev = host;
		if (ours)
			expect_result(penstock_write(st, host, bytes + 9000, 11000, 9000), 11000);
		memcpy(back, bytes, 9000);
		memset(back + 9000, 0xdd, 4096);
		seg.buf = back;
		/* The path may refuse this write, so the test ignores the result. */
		transfer(PENSTOCK_WRITE, &seg, 1, paths[i / 2], NULL);
		assert_int_equal(penstock_commit(st, 0), 0);
		penstock_close(st);
		st = NULL;
		read_back(20000);
		if (!paths[i / 2])
			assert_memory_equal(back, bytes, 9000);
		assert_memory_equal(back + 9000, bytes + 9000, 11000);
		unlink(name);
	}
}

/* The library removes the padded tail of a created file even if the file is closed without a
 * commit. */
static void padded_tail_without_commit(void **state)
{
	struct penstock_seg seg = {.row_len = 20000, .room = 4096};

	(void)state;
	open_devices(0, 0);
	open_file(PENSTOCK_O_CREATE, 20000);
	seg.dev = host;
	seg.buf = back;
	memcpy(back, bytes, 20000);
	expect_result(transfer(PENSTOCK_WRITE, &seg, 1, NULL, NULL), 20000);
	penstock_close(st);
	st = NULL;
	read_back(20000);
	assert_memory_equal(back, bytes, 20000);
}

/* A request has segments on two devices. A path may carry its bytes only if the path meets the
 * required class on each of the two devices. */
static void class_on_two_devices(void **state)
{
	struct penstock_seg segs[2] = {{.off = 0, .row_len = 1u << 20},
				       {.off = 4096, .row_len = 65536}};
	struct penstock_req req;
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	int64_t n;

	(void)state;
	open_devices(0, 0);
	make_file(LEN);
	open_file(0, 0);
	segs[0].buf = device_mem;
	segs[0].dev = gpu;
	segs[1].buf = back;
	segs[1].dev = host;
	req = test_request(st, segs, 2, PENSTOCK_READ);
	for (unsigned c = PENSTOCK_NO_CPU_COPY; c <= PENSTOCK_DIRECT; c++) {
		req.require = (enum penstock_class)c;
		for (segs[1].off = 4096; segs[1].off <= 1u << 20;
		     segs[1].off += (1u << 20) - 4096) {
			n = penstock_transfer(&req, &report);
			if (n != -EOPNOTSUPP) {
				expect_result(n, (1u << 20) + 65536);
				assert_int_equal(report.cpu_copied, 0);
			}
			if (segs[1].off == 4096) /* both segments have the same range of the file */
				assert_int_equal(n, -EOPNOTSUPP);
		}
	}
}

/* A queue closes right after its last request completed. The library's thread must not touch the
 * queue after that. The thread sanitizer detects such an access, and so does an eventfd that is
 * signalled without reason. */
static void queue_closed_after_last_completion(void **state)
{
	struct penstock_seg seg = {.row_len = 4096};
	struct penstock_req req;
	struct penstock_queue *q;
	struct penstock_done done;

	(void)state;
	open_devices(0, 0);
	make_file(65536);
	open_file(0, 0);
	seg.buf = back;
	seg.dev = host;
	req = test_request(st, &seg, 1, PENSTOCK_READ);
	for (unsigned i = 0; i < 500; i++) {
		assert_int_equal(penstock_queue_open(NULL, &q), 0);
		assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
		assert_int_equal(penstock_wait(q, &done, 1, 1, -1), 1);
		assert_int_equal(done.result, 4096);
		penstock_queue_close(q);
	}
}

static void *copy_some(void *arg)
{
	struct penstock_copy_args args = {.size = sizeof(args), .row_len = 1u << 19};
	unsigned index = *(unsigned *)arg;

	args.dst_dev = gpu;
	args.dst = (char *)device_mem + index * args.row_len;
	args.src_dev = host;
	args.src = bytes + index * args.row_len;
	for (unsigned i = 0; i < 10; i++)
		if (penstock_copy(&args, 1))
			return strdup(penstock_errmsg());
	return NULL;
}

/* More threads copy at the same time than the devices have lanes (worker threads), so some of the
 * threads wait. Every copy must succeed. */
static void more_copies_than_lanes(void **state)
{
	unsigned indices[40];
	pthread_t threads[40];
	char *why = NULL;
	void *text;

	(void)state;
	open_devices(0, 0);
	for (unsigned i = 0; i < 40; i++) {
		indices[i] = i;
		assert_int_equal(pthread_create(&threads[i], NULL, copy_some, &indices[i]), 0);
	}
	for (unsigned i = 0; i < 40; i++) {
		pthread_join(threads[i], &text);
		why = text ? text : why;
	}
	if (why)
		fail_msg("%s", why);
	copy_from_gpu(back, device_mem, 40u << 19);
	assert_memory_equal(back, bytes, 40u << 19);
}

/* With a write-only descriptor, the library cannot read direct writes back. It must detect this
 * only once, and not make each later write twice. */
static void write_only_descriptor(void **state)
{
	struct penstock_seg seg = {.row_len = 8u << 20};
	struct penstock_req req;
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	int fd;

	(void)state;
	open_devices(0, 0);
	make_file(0);
	fd = open(name, O_WRONLY);
	assert_int_equal(penstock_open_fd(fd, NULL, &st), 0);
	seg.dev = host;
	assert_int_equal(penstock_alloc(host, seg.row_len, &seg.buf), 0);
	memcpy(seg.buf, bytes, seg.row_len);
	req = test_request(st, &seg, 1, PENSTOCK_WRITE);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(penstock_transfer(&req, &report), seg.row_len);
		read_back(seg.row_len);
		assert_memory_equal(back, bytes, seg.row_len);
	}
	assert_int_equal(report.retries, 0);
	penstock_free(host, seg.buf);
	close(fd);
}

/* A file with a name of the maximum length can be replaced. */
static void name_of_maximum_length(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	char longest[600];
	int n = snprintf(longest, sizeof(longest), "%.300s", name);

	(void)state;
	while (longest[n - 1] != '/')
		n--;
	memset(longest + n, 'n', 255);
	longest[n + 255] = '\0';
	opts.flags = PENSTOCK_O_REPLACE;
	if (penstock_open(longest, &opts, &st))
		fail_msg("%s", penstock_errmsg());
	assert_int_equal(penstock_commit(st, 0), 0);
	assert_int_equal(unlink(longest), 0);
}

/* A relative name refers to the working directory at the time of the open, even after a chdir. */
static void working_directory_changes(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	char here[4096], dir[300];
	const char *base = strrchr(name, '/') + 1;

	(void)state;
	assert_non_null(getcwd(here, sizeof(here)));
	snprintf(dir, sizeof(dir), "%.*s", (int)(base - name), name);
	for (unsigned i = 0; i < 4; i++) {
		bool commit = i % 2;

		opts.flags = i / 2 ? PENSTOCK_O_REPLACE : PENSTOCK_O_CREATE | PENSTOCK_O_WRITE;
		assert_int_equal(chdir(dir), 0);
		assert_int_equal(penstock_open(base, &opts, &st), 0);
		assert_int_equal(chdir("/"), 0);
		if (commit ? penstock_commit(st, 1) : penstock_abort(st))
			fail_msg("%u: %s", i, penstock_errmsg());
		penstock_close(st);
		st = NULL;
		assert_int_equal(!access(name, F_OK), commit);
		unlink(name);
	}
	assert_int_equal(chdir(here), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(short_end_before_another_span, setup, teardown),
		cmocka_unit_test_setup_teardown(empty_segment_between_others, setup, teardown),
		cmocka_unit_test_setup_teardown(copies_through_small_slots, setup, teardown),
		cmocka_unit_test_setup_teardown(slots_of_two_lengths, setup, teardown),
		cmocka_unit_test_setup_teardown(mapped_windows_on_a_host_lane, setup, teardown),
		cmocka_unit_test_setup_teardown(mapped_read_beyond_the_end, setup, teardown),
		cmocka_unit_test_setup_teardown(class_on_two_devices, setup, teardown),
		cmocka_unit_test_setup_teardown(queue_closed_after_last_completion, setup,
						teardown),
		cmocka_unit_test_setup_teardown(more_copies_than_lanes, setup, teardown),
		cmocka_unit_test_setup_teardown(bytes_after_a_write, setup, teardown),
		cmocka_unit_test_setup_teardown(padded_tail_without_commit, setup, teardown),
		cmocka_unit_test_setup_teardown(write_only_descriptor, setup, teardown),
		cmocka_unit_test_setup_teardown(name_of_maximum_length, setup, teardown),
		cmocka_unit_test_setup_teardown(working_directory_changes, setup, teardown),
	};

	return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
