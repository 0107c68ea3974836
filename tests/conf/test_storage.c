/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the library's core with a storage that has no descriptor (async_storage.h). This storage
 * completes its transfers on its own threads and not in the order of submission. Every byte must
 * arrive on every path that can carry it, on both devices and in all kinds of segments. This must
 * hold for requests that the caller's thread carries and for requests that a worker thread of the
 * device carries.
 */
#include "remote_object.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define STEP 3
#else
#define STEP 1
#endif
#define TIMES(count) (((count) + STEP - 1) / STEP)

static const uint64_t sizes[] = {1,    4097,	511,	 4096,	  65537,  0,
				 4095, 1000000, 2097153, 5242893, 4194304};
static const uint64_t offsets[] = {0, 1, 4096, 65535};
static const char *const open_paths[] = {NULL, "bounce", "fault:bounce?delay_us=40&seed=5"};

static void transfer(struct penstock_storage *st, struct penstock_device *dev, const char *path,
		     enum penstock_op op, void *mem, uint64_t off, uint64_t len, uint64_t want)
{
	struct penstock_seg seg = {.buf = mem, .dev = dev, .off = off, .row_len = len};
	struct penstock_req req = test_request(st, &seg, 1, op);
	struct penstock_report report = {.size = sizeof(report)};
	int64_t n;

	req.path = path;
	n = penstock_transfer(&req, &report);
	if (n != (int64_t)want)
		fail_msg("path %s off %llu len %llu: %lld, want %llu: %s", path ? path : "auto",
			 (unsigned long long)off, (unsigned long long)len, (long long)n,
			 (unsigned long long)want, n < 0 ? penstock_errmsg() : "");
	check_report(&report, dev, n, want);
}

static unsigned read_all_sizes(struct penstock_storage *st, struct penstock_device *dev,
			       const char *path, char *mem, unsigned shift)
{
	unsigned done = 0;

	for (unsigned i = 0; i < COUNT(sizes) * COUNT(offsets); i += STEP, done++) {
		uint64_t len = sizes[i / COUNT(offsets)], off = offsets[i % COUNT(offsets)];

		if (i % 5 == 4)
			/* These transfers go beyond the end of the object. */
			off += LEN - len / 2;
		memset(back, 0xee, len + 2 * GUARD);
		test_copy(dev, mem, host, back, len + 2 * GUARD);
		transfer(st, dev, path, PENSTOCK_READ, mem + GUARD + shift, off, len,
			 off >= LEN	   ? 0
			 : off + len > LEN ? LEN - off
					   : len);
		test_copy(host, back, dev, mem, len + 2 * GUARD);
		for (uint64_t b = 0; b < len + 2 * GUARD; b++) {
			uint64_t at = b - GUARD - shift;
			bool in = b >= GUARD + shift && at < len && off + at < LEN;

			if (back[b] != (in ? bytes[off + at] : 0xee))
				fail_msg("path %s off %llu len %llu: byte %lld is wrong",
					 path ? path : "auto", (unsigned long long)off,
					 (unsigned long long)len, (long long)at);
		}
	}
	return done;
}

static void check_reads(struct penstock_device *dev)
{
	struct penstock_storage *st;
	struct async_counts seen;
	void *mem;

	remote_create(0);
	st = open_object(0);
	assert_int_equal(penstock_storage_length(st), LEN);
	assert_int_equal(penstock_alloc(dev, LEN + 3 * GUARD, &mem), 0);
	for (unsigned p = 0; p < COUNT(open_paths); p++)
		assert_int_equal(read_all_sizes(st, dev, open_paths[p], mem, p ? 0 : 7),
				 TIMES(COUNT(sizes) * COUNT(offsets)));
	async_get_counts(remote, &seen);
	printf("# %u reads, %u overtook\n", seen.fills, seen.overtaken);
	assert_true(seen.overtaken > 10);
	assert_int_equal(seen.drains, 0);
	penstock_free(dev, mem);
	penstock_close(st);
}

static void reads_into_host_memory(void **state)
{
	(void)state;
	check_reads(host);
}

static void reads_into_gpu_memory(void **state)
{
	(void)state;
	check_reads(gpu);
}

/* Writes into a writer's own copy of the object. The commit then replaces the published object
 * by this copy. */
static void check_writes(struct penstock_device *dev)
{
	unsigned char *model = malloc(LEN);
	struct penstock_storage *st;
	struct async_counts seen;
	uint64_t got;
	void *mem;

	remote_create(0);
	st = open_object(PENSTOCK_O_WRITE);
	memcpy(model, bytes, LEN);
	assert_int_equal(penstock_alloc(dev, LEN, &mem), 0);
	for (unsigned i = 0; i < COUNT(sizes) * COUNT(offsets) * COUNT(open_paths); i += STEP) {
		const char *path = open_paths[i % COUNT(open_paths)];
		uint64_t len = sizes[i / COUNT(open_paths) / COUNT(offsets)];
		uint64_t off = offsets[i / COUNT(open_paths) % COUNT(offsets)];

		for (uint64_t b = 0; b < len; b++)
			back[b] = (unsigned char)(bytes[b] ^ (0x31 + i));
		memcpy(model + off, back, len);
		test_copy(dev, mem, host, back, len);
		transfer(st, dev, path, PENSTOCK_WRITE, mem, off, len, len);
		assert_memory_equal(async_published(remote, &got), bytes, LEN);
		assert_int_equal(penstock_read(st, host, back, LEN, 0), LEN);
		if (memcmp(back, model, LEN))
			fail_msg("path %s off %llu len %llu: the object differs",
				 path ? path : "auto", (unsigned long long)off,
				 (unsigned long long)len);
	}
	async_get_counts(remote, &seen);
	printf("# %u writes, %u overtook\n", seen.drains, seen.overtaken);
	assert_int_equal(penstock_commit(st, 1), 0);
	assert_memory_equal(async_published(remote, &got), model, LEN);
	assert_int_equal(got, LEN);
	penstock_free(dev, mem);
	penstock_close(st);
	free(model);
}

static void writes_from_host_memory(void **state)
{
	(void)state;
	check_writes(host);
}

static void writes_from_gpu_memory(void **state)
{
	(void)state;
	check_writes(gpu);
}

/* ---- segments ---- */

/* Segments on the host and on the GPU, contiguous and in columns, read the same range. The storage
 * must fetch each byte only once. */
static void one_range_into_several_buffers(void **state)
{
	const uint64_t rows = 700, row = 3000, n = rows * row;
	struct penstock_seg segs[4];
	struct penstock_report report = {.size = sizeof(report)};
	struct penstock_storage *st;
	struct penstock_req req;
	unsigned char *parts[4];

	(void)state;
	remote_create(0);
	st = open_object(0);
	for (unsigned i = 0; i < 4; i++) {
		struct penstock_device *dev = i % 2 ? gpu : host;

		assert_int_equal(penstock_alloc(dev, n, (void **)&parts[i]), 0);
		segs[i] =
			(struct penstock_seg){.buf = parts[i], .dev = dev, .off = 3, .row_len = n};
		if (i < 2)
			continue;
		segs[i].off += (i - 2) * row / 2;
		segs[i].row_len = segs[i].buf_pitch = row / 2;
		segs[i].rows = rows;
		segs[i].pitch = row;
	}
	req = test_request(st, segs, 4, PENSTOCK_READ);
	assert_int_equal(penstock_transfer(&req, &report), 3 * n);
	assert_int_equal(report.bytes, n);
	for (unsigned i = 0; i < 4; i++) {
		test_copy(host, back, i % 2 ? gpu : host, parts[i], i < 2 ? n : n / 2);
		if (i < 2)
			assert_memory_equal(back, bytes + 3, n);
		for (uint64_t r = 0; r < rows && i >= 2; r++)
			assert_memory_equal(back + r * row / 2,
					    bytes + 3 + r * row + (i - 2) * row / 2, row / 2);
		penstock_free(i % 2 ? gpu : host, parts[i]);
	}
	penstock_close(st);
}

/* Reads rows with narrow or wide gaps into pitched memory, and then writes other bytes from this
 * memory to the same rows. */
static void check_pitched(struct penstock_device *dev, uint64_t row, uint64_t pitch, uint64_t rows)
{
	const uint64_t buf_pitch = row + 13, room = rows * buf_pitch;
	struct penstock_seg seg = {.dev = dev,
				   .off = 101,
				   .row_len = row,
				   .rows = rows,
				   .pitch = pitch,
				   .buf_pitch = buf_pitch};
	struct penstock_storage *st = open_object(PENSTOCK_O_WRITE);
	unsigned char *model = malloc(LEN);
	struct penstock_req req = test_request(st, &seg, 1, PENSTOCK_READ);
	struct penstock_report report = {.size = sizeof(report)};
	void *mem;

	assert_int_equal(penstock_alloc(dev, room, &mem), 0);
	memset(back, 0xee, room);
	test_copy(dev, mem, host, back, room);
	seg.buf = mem;
	assert_int_equal(penstock_transfer(&req, &report), rows * row);
	test_copy(host, back, dev, mem, room);
	for (uint64_t b = 0; b < room; b++) {
		uint64_t r = b / buf_pitch, c = b % buf_pitch;

		if (back[b] != (c < row ? bytes[101 + r * pitch + c] : 0xee))
			fail_msg("byte %llu of row %llu is wrong", (unsigned long long)c,
				 (unsigned long long)r);
	}
	memcpy(model, bytes, LEN);
	for (uint64_t b = 0; b < room; b++)
		back[b] = (unsigned char)(b * 7 + 1);
	test_copy(dev, mem, host, back, room);
	for (uint64_t r = 0; r < rows; r++)
		memcpy(model + 101 + r * pitch, back + r * buf_pitch, row);
	req.op = PENSTOCK_WRITE;
	assert_int_equal(penstock_transfer(&req, &report), rows * row);
	assert_int_equal(report.bytes, rows * row);
	assert_int_equal(penstock_read(st, host, back, LEN, 0), LEN);
	assert_memory_equal(back, model, LEN);
	penstock_free(dev, mem);
	penstock_close(st);
	free(model);
}

static void pitched_rows(void **state)
{
	(void)state;
	remote_create(0);
	for (unsigned i = 0; i < 2; i++) {
		check_pitched(i ? gpu : host, 1000, 1500,
			      /* rows with gaps so narrow that the library reads the gaps as well */
			      600);
		check_pitched(i ? gpu : host, 5000, 40000, 100); /* read row by row */
		/* rows so long that each is moved as several chunks */
		check_pitched(i ? gpu : host, 300000, 400000, 9);
	}
}

/* ---- many requests in one submit, carried by lanes ---- */

static void many_requests_by_lanes(void **state)
{
	enum { N = 120 };
	static struct penstock_seg segs[N];
	static struct penstock_req reqs[N];
	static struct penstock_done done[N];
	struct penstock_queue *q;
	struct penstock_storage *st;
	bool ended[N] = {false};
	char *mem;

	(void)state;
	remote_create(0);
	st = open_object(0);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	assert_int_equal(penstock_alloc(gpu, LEN, (void **)&mem), 0);
	for (unsigned i = 0; i < N; i++) {
		uint64_t off = (uint64_t)i * (LEN / N);

		segs[i] = (struct penstock_seg){
			.buf = mem + off, .dev = gpu, .off = off, .row_len = LEN / N};
		reqs[i] = test_request(st, &segs[i], 1, PENSTOCK_READ);
		reqs[i].user = &ended[i];
	}
	assert_int_equal(penstock_submit(q, reqs, N, NULL), N);
	for (unsigned have = 0; have < N;) {
		int n = penstock_wait(q, done, 1, N, -1);

		assert_true(n > 0);
		for (int i = 0; i < n; i++, have++) {
			assert_int_equal(done[i].result, LEN / N);
			assert_false(*(bool *)done[i].user);
			*(bool *)done[i].user = true;
			check_report(done[i].report, gpu, LEN / N, LEN / N);
		}
	}
	test_copy(host, back, gpu, mem, LEN / N * N);
	assert_memory_equal(back, bytes, LEN / N * N);
	penstock_free(gpu, mem);
	penstock_queue_close(q);
	penstock_close(st);
}

/* A durable request with no bytes, on a storage that has nothing to sync, succeeds. */
static void durable_request_without_bytes(void **state)
{
	struct penstock_seg seg = {.dev = gpu, .rows = 1};
	struct penstock_storage *mem;
	struct penstock_req req;

	(void)state;
	assert_int_equal(penstock_open("mem:4KiB", NULL, &mem), 0);
	assert_int_equal(penstock_alloc(gpu, 4096, &seg.buf), 0);
	assert_int_equal(penstock_prepare(mem, gpu, PENSTOCK_READ), 0);
	req = test_request(mem, &seg, 1, PENSTOCK_READ);
	req.flags = PENSTOCK_R_DURABLE;
	assert_int_equal(penstock_transfer(&req, NULL), 0);
	penstock_free(gpu, seg.buf);
	penstock_close(mem);
}

/* A memory storage accepts durable writes and commits, as penstock_open documents, although its
 * bytes are lost at the close. Its bytes are private: another storage of the same name has the
 * bytes that its seed generates. */
static void durable_write_to_memory_storage(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *mem, *other;
	unsigned char ours[4096], seen[4096];
	struct penstock_seg seg = {.buf = ours, .dev = host, .row_len = sizeof(ours)};
	struct penstock_req req;

	(void)state;
	memset(ours, 0x6b, sizeof(ours));
	opts.flags = PENSTOCK_O_WRITE;
	assert_int_equal(penstock_open("mem:4KiB?seed=3", &opts, &mem), 0);
	req = test_request(mem, &seg, 1, PENSTOCK_WRITE);
	req.flags = PENSTOCK_R_DURABLE;
	assert_int_equal(penstock_transfer(&req, NULL), sizeof(ours));
	assert_int_equal(penstock_commit(mem, 1), 0);
	assert_int_equal(penstock_read(mem, host, seen, sizeof(seen), 0), sizeof(seen));
	assert_memory_equal(seen, ours, sizeof(seen));
	assert_int_equal(penstock_open("mem:4KiB?seed=3", NULL, &other), 0);
	assert_int_equal(penstock_read(other, host, seen, sizeof(seen), 0), sizeof(seen));
	assert_memory_not_equal(seen, ours, sizeof(seen));
	penstock_close(other);
	penstock_close(mem);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(reads_into_host_memory, remote_destroy),
		cmocka_unit_test_teardown(reads_into_gpu_memory, remote_destroy),
		cmocka_unit_test_teardown(writes_from_host_memory, remote_destroy),
		cmocka_unit_test_teardown(writes_from_gpu_memory, remote_destroy),
		cmocka_unit_test_teardown(one_range_into_several_buffers, remote_destroy),
		cmocka_unit_test_teardown(pitched_rows, remote_destroy),
		cmocka_unit_test_teardown(many_requests_by_lanes, remote_destroy),
		cmocka_unit_test(durable_request_without_bytes),
		cmocka_unit_test(durable_write_to_memory_storage),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, setup, teardown);
}
