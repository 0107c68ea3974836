/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests stream order: a request waits for the work queued before it on its stream, and work
 * queued after it waits for the request. The library reads late values (a length or offset that
 * the application sets after the submit) when the stream reaches the request. Many streams may
 * wait at the same time, and the GPU has few hardware queues for them. They must not block each
 * other's copies. With PENSTOCK_STANDIN=0 the tests run against the machine's own driver.
 */
#include "streams.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>

#include "core/ops.h"

#define STREAMS 64

/* Each of 64 streams waits for a gate (a word in memory), then for a read request, and then copies
 * the bytes back. The gate opens only after all is queued, so that all streams wait at once. Each
 * copy must contain the bytes that its request has read. */
static void many_streams_wait_at_once(void **state)
{
	struct pst_cu_stream *streams[STREAMS];
	struct penstock_queue *q;
	struct penstock_done done[STREAMS];
	unsigned char *back = NULL;
	uint64_t *gate = NULL;
	const size_t len = 65536;
	pst_cu_ptr gate_dev;
	void *mem;
	unsigned got = 0;

	(void)state;
	assert_int_equal(api->cuMemHostAlloc((void **)&back, STREAMS * len, 0), PST_CU_OK);
	assert_int_equal(api->cuMemHostAlloc((void **)&gate, 4096, 2), PST_CU_OK);
	assert_int_equal(api->cuMemHostGetDevicePointer(&gate_dev, gate, 0), PST_CU_OK);
	memset(back, 0, STREAMS * len);
	*gate = 0;
	assert_int_equal(penstock_alloc(gpu, STREAMS * len, &mem), 0);
	assert_int_equal(penstock_prepare(st, gpu, PENSTOCK_READ), 0);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	for (unsigned i = 0; i < STREAMS; i++)
		assert_int_equal(
			api->cuStreamCreateWithPriority(&streams[i], PST_CU_STREAM_NON_BLOCKING, 0),
			PST_CU_OK);
	for (unsigned i = 0; i < STREAMS; i++) {
		struct penstock_seg seg = {.buf = (char *)mem + i * len,
					   .dev = gpu,
					   .off = i * 4096,
					   .row_len = len,
					   .rows = 1};
		struct penstock_req req = request(&seg, streams[i]);

		assert_int_equal(api->cuMemsetD8Async((pst_cu_ptr)(uintptr_t)mem + i * len, 0xee, 1,
						      streams[i]),
				 PST_CU_OK);
		assert_int_equal(api->cuStreamWaitValue64(streams[i], gate_dev, 1, PST_CU_WAIT_GEQ),
				 PST_CU_OK);
		assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
		assert_int_equal(api->cuMemcpyDtoHAsync(back + i * len,
							(pst_cu_ptr)(uintptr_t)mem + i * len, len,
							streams[i]),
				 PST_CU_OK);
	}
	assert_int_equal(penstock_poll(q, done, STREAMS),
			 0); /* returns 0 because all streams wait for the gate */
	__atomic_store_n(gate, 1, __ATOMIC_RELEASE);
	while (got < STREAMS) {
		int n = penstock_wait(q, done, 1, STREAMS, 20000000000);

		assert_true(n > 0);
		for (int i = 0; i < n; i++)
			assert_int_equal(done[i].result, len);
		got += (unsigned)n;
	}
	for (unsigned i = 0; i < STREAMS; i++) {
		assert_int_equal(api->cuStreamSynchronize(streams[i]), PST_CU_OK);
		assert_memory_equal(back + i * len, bytes + i * 4096, len);
		api->cuStreamDestroy(streams[i]);
	}
	penstock_queue_close(q);
	penstock_free(gpu, mem);
	api->cuMemFreeHost(back);
	api->cuMemFreeHost(gate);
}

struct late_length_and_offset {
	uint64_t row_len, off;
};
static struct late_length_and_offset late_now;

static void set_late(void *arg)
{
	late_now = *(struct late_length_and_offset *)arg;
}

/* Work that is queued on the stream before the request sets the request's length and offset. The
 * request must read the range that this work has set, and not the range at the time of the
 * submit. */
static void late_length_and_offset(void **state)
{
	static struct late_length_and_offset want = {12345, 777};
	struct penstock_late late = {.size = sizeof(late)};
	struct pst_cu_stream *stream;
	struct penstock_queue *q;
	unsigned char back[20000];
	int64_t result = -1;
	void *mem;
	struct penstock_seg seg = {.dev = gpu, .row_len = 16384, .rows = 1};
	struct penstock_req req;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, sizeof(back), &mem), 0);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	assert_int_equal(api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0),
			 PST_CU_OK);
	late_now = (struct late_length_and_offset){1, 0};
	assert_int_equal(api->cuLaunchHostFunc(stream, set_late, &want), PST_CU_OK);
	seg.buf = mem;
	req = request(&seg, stream);
	late.row_len = &late_now.row_len;
	late.off = &late_now.off;
	late.result = &result;
	req.late = &late;
	req.flags = PENSTOCK_R_DETACHED;
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
	assert_int_equal(result, 12345);
	/* The request is detached, so the queue lists no completion. */
	assert_int_equal(penstock_wait(q, NULL, 1, 1, 0), 0);
	assert_int_equal(api->cuMemcpyDtoHAsync(back, (pst_cu_ptr)(uintptr_t)mem, 12345, stream),
			 PST_CU_OK);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
	assert_memory_equal(back, bytes + 777, 12345);

	/* If the late length is greater than the length that was submitted, the request fails.
	 * The stream continues. */
	want.row_len = 16385;
	assert_int_equal(api->cuLaunchHostFunc(stream, set_late, &want), PST_CU_OK);
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
	assert_int_equal(result, -EINVAL);
	api->cuStreamDestroy(stream);
	penstock_queue_close(q);
	penstock_free(gpu, mem);
}

/* A late length (which the stream supplies) shortens each row, even if the rows are contiguous. */
static void late_length_applies_to_each_row(void **state)
{
	static struct late_length_and_offset want = {300, 0};
	struct penstock_late late = {.size = sizeof(late), .row_len = &late_now.row_len};
	struct penstock_seg seg = {.dev = gpu, .row_len = 1000, .rows = 4};
	struct pst_cu_stream *stream;
	struct penstock_queue *q;
	unsigned char back[4000];
	int64_t result = -1;
	struct penstock_req req;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, sizeof(back), &seg.buf), 0);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	assert_int_equal(api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0),
			 PST_CU_OK);
	seg.pitch = seg.buf_pitch = seg.row_len;
	late.result = &result;
	req = request(&seg, stream);
	req.late = &late;
	req.flags = PENSTOCK_R_DETACHED;
	assert_int_equal(api->cuLaunchHostFunc(stream, set_late, &want), PST_CU_OK);
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
	assert_int_equal(result, 4 * 300);
	assert_int_equal(api->cuMemcpyDtoHAsync(back, (uintptr_t)seg.buf, sizeof(back), stream),
			 PST_CU_OK);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
	for (unsigned row = 0; row < 4; row++)
		assert_memory_equal(back + row * 1000, bytes + row * 1000, 300);
	want.row_len = 1001; /* a length between one row and all rows */
	assert_int_equal(api->cuLaunchHostFunc(stream, set_late, &want), PST_CU_OK);
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
	assert_int_equal(result, -EINVAL);
	api->cuStreamDestroy(stream);
	penstock_queue_close(q);
	penstock_free(gpu, seg.buf);
}

/* A late buffer offset (which the stream supplies) must stay within the allocation of the
 * segment. The next allocation in memory may belong to another user. */
static void late_buffer_offset_stays_in_allocation(void **state)
{
	enum { LEN = 65536, ROW = 1000, ROWS = 3, PITCH = 5000 };
	static const struct {
		uint64_t rows, buf_off, buf_len;
		bool good;
	} all[] = {
		{1, 0, 0, true},
		{1, LEN - ROW, 0, true},
		{1, LEN - ROW + 1, 0, false},
		{1, LEN, 0, false},
		{1, UINT64_MAX, 0, false},
		{1, 700, 700 + ROW, true},
		{1, 701, 700 + ROW, false},
		{ROWS, LEN - 2 * PITCH - ROW, 0, true},
		{ROWS, LEN - 2 * PITCH - ROW + 1, 0, false},
	};
	static uint64_t buf_off;
	int64_t result;
	struct penstock_late late = {.size = sizeof(late), .buf_off = &buf_off, .result = &result};
	struct pst_cu_stream *stream;
	struct penstock_queue *q;
	unsigned char back[ROW];
	void *mem, *other;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, LEN, &mem), 0);
	assert_int_equal(penstock_alloc(gpu, LEN, &other), 0);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	assert_int_equal(api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0),
			 PST_CU_OK);
	assert_int_equal(api->cuMemsetD8Async((uintptr_t)other, 0x77, LEN, stream), PST_CU_OK);
	for (unsigned i = 0; i <= sizeof(all) / sizeof(all[0]); i++) {
		bool last = i == sizeof(all) / sizeof(all[0]);
		uint64_t rows = last ? 1 : all[i].rows;
		struct penstock_seg seg = {
			.buf = mem, .dev = gpu, .off = 17, .row_len = ROW, .rows = rows};
		struct penstock_req req;

		seg.pitch = rows > 1 ? ROW : 0;
		seg.buf_pitch = rows > 1 ? PITCH : 0;
		buf_off = last ? (uintptr_t)other - (uintptr_t)mem : all[i].buf_off;
		late.buf_len = last ? 0 : all[i].buf_len;
		result = 7;
		req = request(&seg, stream);
		req.late = &late;
		req.flags = PENSTOCK_R_DETACHED;
		assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
		assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
		if (last || !all[i].good) {
			assert_int_equal(result, -EINVAL);
			continue;
		}
		assert_int_equal(result, rows * ROW);
		assert_int_equal(
			api->cuMemcpyDtoHAsync(back, (uintptr_t)mem + buf_off + (rows - 1) * PITCH,
					       ROW, stream),
			PST_CU_OK);
		assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
		assert_memory_equal(back, bytes + 17 + (rows - 1) * ROW, ROW);
	}
	assert_int_equal(api->cuMemcpyDtoHAsync(back, (uintptr_t)other, ROW, stream), PST_CU_OK);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
	for (unsigned i = 0; i < ROW; i++)
		assert_int_equal(back[i], 0x77);
	api->cuStreamDestroy(stream);
	penstock_queue_close(q);
	penstock_free(gpu, mem);
	penstock_free(gpu, other);
}

/* Requests of path "null", which is for measurements, also complete in stream order. */
static void null_path_in_stream_order(void **state)
{
	struct penstock_seg seg = {.dev = gpu, .row_len = 1000000};
	struct pst_cu_stream *stream;
	struct penstock_done done;
	struct penstock_queue *q;
	struct penstock_req req;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, seg.row_len, &seg.buf), 0);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	assert_int_equal(api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0),
			 PST_CU_OK);
	req = request(&seg, stream);
	req.path = "null";
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(penstock_wait(q, &done, 1, 1, 20000000000), 1);
	assert_int_equal(done.result, seg.row_len);
	assert_string_equal(done.report->path, "null");
	assert_int_equal(done.report->bytes, seg.row_len);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
	api->cuStreamDestroy(stream);
	penstock_queue_close(q);
	penstock_free(gpu, seg.buf);
}

static const struct pst_storage_ops *real_ops;
static unsigned sync_count;

static int count_sync(struct pst_io *io)
{
	sync_count++;
	return real_ops->sync(io);
}

/* A durable write in stream order is synced even if its path moves no bytes, because a thread of
 * the library carries the request and makes the sync. */
static void null_path_in_stream_order_syncs(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_seg seg = {.dev = gpu, .row_len = 1000000};
	struct penstock_storage *writable;
	struct pst_storage_ops counted;
	struct pst_cu_stream *stream;
	struct penstock_done done;
	struct penstock_queue *q;
	struct penstock_req req;

	(void)state;
	opts.flags = PENSTOCK_O_WRITE;
	assert_int_equal(penstock_open(path, &opts, &writable), 0);
	real_ops = writable->ops;
	counted = *real_ops;
	counted.sync = count_sync;
	writable->ops = &counted;
	assert_int_equal(penstock_alloc(gpu, seg.row_len, &seg.buf), 0);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	assert_int_equal(api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0),
			 PST_CU_OK);
	req = request(&seg, stream);
	req.storage = writable;
	req.op = PENSTOCK_WRITE;
	req.flags = PENSTOCK_R_DURABLE;
	req.path = "null";
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(penstock_wait(q, &done, 1, 1, 20000000000), 1);
	assert_int_equal(done.result, seg.row_len);
	assert_int_equal(sync_count, 1);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
	api->cuStreamDestroy(stream);
	penstock_queue_close(q);
	penstock_free(gpu, seg.buf);
	writable->ops = real_ops;
	penstock_close(writable);
}

/* The driver fails one of a request's operations, and accepts those before it. penstock_submit must
 * refuse the request, the stream must not hang at the operations that it has, and the library must
 * free the request's stage (its pinned memory). The test does this more often than there are
 * stages. Afterwards, valid requests must succeed, each only after the earlier work on its stream.
 */
static void refused_requests_free_their_stages(void **state)
{
	static const char *const specs[3] = {
		"cuStreamBatchMemOp_v2:1+:1",
		"cuStreamBatchMemOp_v2:1+:801,cuStreamWaitValue64_v2:1+:1",
		"cuMemcpyHtoDAsync_v2:1+:1",
	};
	struct penstock_seg seg = {.dev = gpu, .row_len = 4096};
	struct pst_cu_stream *stream;
	struct penstock_done done;
	struct penstock_queue *q;
	struct penstock_req req;
	uint64_t *gate = NULL;
	pst_cu_ptr gate_dev;

	(void)state;
	driver_fail(NULL);
	assert_int_equal(penstock_alloc(gpu, seg.row_len, &seg.buf), 0);
	assert_int_equal(api->cuMemHostAlloc((void **)&gate, 4096, 2), PST_CU_OK);
	assert_int_equal(api->cuMemHostGetDevicePointer(&gate_dev, gate, 0), PST_CU_OK);
	*gate = 0;
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	/* With a blocking stream, the library starts no read before the stream reaches it. */
	assert_int_equal(api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_DEFAULT, 0),
			 PST_CU_OK);
	req = request(&seg, stream);
	for (unsigned i = 0; i < 3; i++) {
		driver_fail(specs[i]);
		for (unsigned turn = 0; turn < 1100; turn++) {
			int ret;

			/* The operations of refused requests count until the stream has passed
			 * them, and their limit may be reached. */
			while ((ret = penstock_submit(q, &req, 1, NULL)) == -EAGAIN)
				sched_yield();
			assert_int_equal(ret, -EINVAL);
		}
		driver_fail(NULL);
		assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
	}
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(api->cuStreamWaitValue64(stream, gate_dev, i + 1, PST_CU_WAIT_GEQ),
				 PST_CU_OK);
		assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
		assert_int_equal(penstock_wait(q, &done, 1, 1, 10000000), 0);
		__atomic_store_n(gate, i + 1, __ATOMIC_RELEASE);
		assert_int_equal(penstock_wait(q, &done, 1, 1, 20000000000), 1);
		assert_int_equal(done.result, seg.row_len);
	}
	api->cuStreamDestroy(stream);
	penstock_queue_close(q);
	penstock_free(gpu, seg.buf);
	api->cuMemFreeHost(gate);
}

static void invalid_stream_requests_are_refused(void **state)
{
	struct penstock_seg seg = {.buf = bytes, .row_len = 10, .rows = 1};
	struct penstock_req req = request(&seg, NULL);
	struct penstock_late late = {.size = sizeof(late)};
	struct penstock_device *host;
	struct penstock_queue *q;

	(void)state;
	assert_true(penstock_device_open("host", NULL, &host) >= 0);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	seg.dev = host;
	req.late = &late;
	assert_int_equal(penstock_submit(q, &req, 1, NULL), -EINVAL);
	req.stream = (void *)0x1;
	/* The host device has no streams, so it refuses the request. */
	assert_int_equal(penstock_submit(q, &req, 1, NULL), -EOPNOTSUPP);
	assert_non_null(strstr(penstock_errmsg(), "streams"));
	assert_int_equal(penstock_transfer(&req, NULL), -EINVAL);
	penstock_queue_close(q);
	penstock_device_close(host);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(many_streams_wait_at_once),
		cmocka_unit_test(late_length_and_offset),
		cmocka_unit_test(late_length_applies_to_each_row),
		cmocka_unit_test(late_buffer_offset_stays_in_allocation),
		cmocka_unit_test(null_path_in_stream_order),
		cmocka_unit_test(null_path_in_stream_order_syncs),
		cmocka_unit_test(refused_requests_free_their_stages),
		cmocka_unit_test(invalid_stream_requests_are_refused),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, setup, teardown);
}
