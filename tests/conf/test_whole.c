/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests what other threads of the library may do while a stream waits for a request. Some calls of
 * the CUDA driver wait until all streams are idle, and meanwhile block every copy. The library must
 * not make such a call while a stream waits for a request. Work that needs no such call continues;
 * work that needs one waits until no stream waits. In the simulated driver of this test, each
 * creation of a stream is such a call.
 */
#include "streams.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

/* A lane (a thread of the library) copies out of device memory for the first time, for a request
 * that a stream waits for. The lane must not create anything whose creation waits for all
 * streams. */
static void first_device_read_of_a_lane(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_seg seg = {.dev = gpu, .row_len = 100000};
	struct penstock_storage *mem;
	struct pst_cu_stream *stream;
	struct penstock_queue *q;
	struct penstock_done done;
	struct penstock_req req;

	(void)state;
	opts.flags = PENSTOCK_O_WRITE;
	assert_int_equal(penstock_open("mem:1MiB", &opts, &mem), 0);
	assert_int_equal(penstock_alloc(gpu, seg.row_len, &seg.buf), 0);
	assert_int_equal(penstock_prepare(mem, gpu, PENSTOCK_WRITE), 0);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	assert_int_equal(api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0),
			 PST_CU_OK);
	req = request(&seg, stream);
	req.storage = mem;
	req.op = PENSTOCK_WRITE;
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(penstock_wait(q, &done, 1, 1, 30000000000), 1);
	assert_int_equal(done.result, seg.row_len);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
	api->cuStreamDestroy(stream);
	penstock_queue_close(q);
	penstock_free(gpu, seg.buf);
	penstock_close(mem);
}

static void *read_short_and_long(void *arg)
{
	char *to = arg;

	for (unsigned i = 0; i < 50; i++) {
		if (penstock_read(st, gpu, to, 4096, i * 4096) != 4096 ||
		    penstock_read(st, gpu, to, 1 << 20, i * 4096) != 1 << 20)
			return arg;
	}
	return NULL;
}

/* Several threads read while a stream waits for a request that the test holds back. The library
 * must create no CUDA object for these threads. Otherwise the driver could wait for that stream
 * while it holds the lock that the stream's own copy needs. */
static void reads_while_a_stream_waits(void **state)
{
	struct penstock_seg seg = {.dev = gpu, .row_len = 65536, .rows = 1};
	struct pst_cu_stream *stream;
	struct penstock_queue *q;
	struct penstock_done done;
	struct penstock_req req;
	pthread_t threads[4];
	uint64_t *gate = NULL;
	pst_cu_ptr gate_dev;
	void *mem, *failed;

	(void)state;
	assert_int_equal(api->cuMemHostAlloc((void **)&gate, 4096, 2), PST_CU_OK);
	assert_int_equal(api->cuMemHostGetDevicePointer(&gate_dev, gate, 0), PST_CU_OK);
	*gate = 0;
	assert_int_equal(penstock_alloc(gpu, 5 << 20, &mem), 0);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	assert_int_equal(api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0),
			 PST_CU_OK);
	seg.buf = mem;
	req = request(&seg, stream);
	assert_int_equal(api->cuStreamWaitValue64(stream, gate_dev, 1, PST_CU_WAIT_GEQ), PST_CU_OK);
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, read_short_and_long,
						(char *)mem + (i + 1) * (1 << 20)),
				 0);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
	/* the stream still waits, because the test has not released it */
	assert_int_equal(penstock_poll(q, &done, 1), 0);
	__atomic_store_n(gate, 1, __ATOMIC_RELEASE);
	assert_int_equal(penstock_wait(q, &done, 1, 1, 30000000000), 1);
	assert_int_equal(done.result, 65536);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
	api->cuStreamDestroy(stream);
	penstock_queue_close(q);
	penstock_free(gpu, mem);
	api->cuMemFreeHost(gate);
}

/* ---- a stream waits for a request of the library, which waits for a gate ---- */

/* Number of streams that the test creates, so that the driver has no idle stream to reuse:
 * earlier cases have freed some streams. */
#define STREAM_POOL_LEN 8

struct held_stream {
	struct penstock_seg seg;
	struct penstock_queue *q;
	struct pst_cu_stream *stream, *pool[STREAM_POOL_LEN];
	uint64_t *gate;
};

static void stream_hold(struct held_stream *h)
{
	struct penstock_req req;
	pst_cu_ptr gate;

	*h = (struct held_stream){.seg = {.dev = gpu, .row_len = 65536}};
	assert_int_equal(api->cuMemHostAlloc((void **)&h->gate, 4096, 2), PST_CU_OK);
	assert_int_equal(api->cuMemHostGetDevicePointer(&gate, h->gate, 0), PST_CU_OK);
	*h->gate = 0;
	assert_int_equal(penstock_alloc(gpu, h->seg.row_len, &h->seg.buf), 0);
	assert_int_equal(penstock_queue_open(NULL, &h->q), 0);
	assert_int_equal(api->cuStreamCreateWithPriority(&h->stream, PST_CU_STREAM_NON_BLOCKING, 0),
			 PST_CU_OK);
	for (unsigned i = 0; i < STREAM_POOL_LEN; i++)
		assert_int_equal(
			api->cuStreamCreateWithPriority(&h->pool[i], PST_CU_STREAM_NON_BLOCKING, 0),
			PST_CU_OK);
	assert_int_equal(api->cuStreamWaitValue64(h->stream, gate, 1, PST_CU_WAIT_GEQ), PST_CU_OK);
	req = request(&h->seg, h->stream);
	assert_int_equal(penstock_submit(h->q, &req, 1, NULL), 1);
}

static void stream_release(struct held_stream *h)
{
	struct penstock_done done;

	__atomic_store_n(h->gate, 1, __ATOMIC_RELEASE);
	assert_int_equal(penstock_wait(h->q, &done, 1, 1, 30000000000), 1);
	assert_int_equal(done.result, h->seg.row_len);
	assert_int_equal(api->cuStreamSynchronize(h->stream), PST_CU_OK);
	api->cuStreamDestroy(h->stream);
	for (unsigned i = 0; i < STREAM_POOL_LEN; i++)
		api->cuStreamDestroy(h->pool[i]);
	penstock_queue_close(h->q);
	penstock_free(gpu, h->seg.buf);
	api->cuMemFreeHost(h->gate);
}

static struct penstock_device *copy_target;
static _Atomic bool stop;

/* Writes device memory to storage with penstock_write, and then copies device memory to the
 * host. */
static void *write_and_copy_out(void *mem)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	static char back[4096];
	struct penstock_copy_args args = {.size = sizeof(args),
					  .dst_dev = copy_target,
					  .dst = back,
					  .src_dev = gpu,
					  .src = mem,
					  .row_len = sizeof(back)};
	struct penstock_storage *to;

	opts.flags = PENSTOCK_O_WRITE;
	if (!penstock_open("mem:1MiB", &opts, &to) &&
	    penstock_write(to, gpu, mem, sizeof(back), 0) == sizeof(back) &&
	    !penstock_copy(&args, 1))
		atomic_store(&stop, true);
	penstock_close(to);
	return mem;
}

static void device_reads_while_a_stream_waits(void **state)
{
	pthread_t thread;
	struct held_stream h;
	bool in_time;
	void *mem;

	(void)state;
	assert_true(penstock_device_open("host", NULL, &copy_target) >= 0);
	assert_int_equal(penstock_alloc(gpu, 4096, &mem), 0);
	stream_hold(&h);
	atomic_store(&stop, false);
	assert_int_equal(pthread_create(&thread, NULL, write_and_copy_out, mem), 0);
	for (unsigned i = 0; i < 20000 && !atomic_load(&stop); i++)
		usleep(1000);
	in_time = atomic_load(&stop);
	stream_release(&h);
	pthread_join(thread, NULL);
	assert_true(in_time);
	penstock_free(gpu, mem);
	penstock_device_close(copy_target);
}

static void *close_queue(void *q)
{
	penstock_queue_close(q);
	return NULL;
}

static void *copy_on_gpu(void *mem)
{
	struct penstock_copy_args args = {.size = sizeof(args),
					  .dst_dev = gpu,
					  .dst = mem,
					  .src_dev = gpu,
					  .src = (char *)mem + 4096,
					  .row_len = 4096};

	return penstock_copy(&args, 1) ? mem : NULL;
}

/* While a stream waits, one thread closes a queue with an inline lane (a worker inside the
 * caller's calls), which frees pinned memory and mappings. Another thread makes the first copy
 * between two GPUs, which creates a stream. Both threads wait for the waiting stream. The copies
 * that this stream waits for must not wait for these threads. */
static void lane_close_and_peer_copy_wait_for_stream(void **state)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_seg seg = {.dev = gpu, .row_len = 8192};
	struct penstock_queue *q;
	struct penstock_done done;
	struct penstock_req req;
	pthread_t threads[2];
	void *mem, *failed;
	struct held_stream h;

	(void)state;
	opts.own_lane = gpu;
	assert_int_equal(penstock_queue_open(&opts, &q), 0);
	assert_int_equal(penstock_alloc(gpu, 8192, &mem), 0);
	seg.buf = mem;
	req = request(&seg, NULL);
	/* reads by path "mapped", so that the worker keeps the mapping registered */
	req.path = "mapped";
	if (penstock_submit(q, &req, 1, NULL) == 1)
		assert_int_equal(penstock_wait(q, &done, 1, 1, -1), 1);
	stream_hold(&h);
	assert_int_equal(pthread_create(&threads[0], NULL, close_queue, q), 0);
	assert_int_equal(pthread_create(&threads[1], NULL, copy_on_gpu, mem), 0);
	/* After this pause the threads have probably started. If they have not, the test still
	 * passes. */
	usleep(30000);
	stream_release(&h);
	for (unsigned i = 0; i < 2; i++) {
		pthread_join(threads[i], &failed);
		assert_null(failed);
	}
	penstock_free(gpu, mem);
}

static void *read_one_byte(void *mem)
{
	return (void *)(intptr_t)penstock_read(st, gpu, mem, 1, 0);
}

/* The driver copies a single byte through a compute queue, which the waiting stream may block. So
 * a read of one byte may have to wait until the stream continues, and then succeeds. Longer reads
 * do not wait. A read of one byte in stream order succeeds, too. */
static void one_byte_while_a_stream_waits(void **state)
{
	struct penstock_seg seg = {.dev = gpu, .row_len = 1};
	struct penstock_done done;
	struct penstock_req req;
	pthread_t thread;
	void *mem, *ret;
	struct held_stream h;
	char byte[2] = {0};

	(void)state;
	assert_int_equal(penstock_alloc(gpu, 2u << 20, &mem), 0);
	seg.buf = (char *)mem + 4096;
	stream_hold(&h);
	/* A request for one byte in stream order, on the stream that waits. */
	req = request(&seg, h.stream);
	assert_int_equal(penstock_submit(h.q, &req, 1, NULL), 1);
	for (unsigned i = 16; i <= 20; i++)
		assert_int_equal(penstock_read(st, gpu, mem, (1u << i) + 1, 0), (1u << i) + 1);
	pthread_create(&thread, NULL, read_one_byte, mem);
	__atomic_store_n(h.gate, 1, __ATOMIC_RELEASE);
	assert_int_equal(pthread_join(thread, &ret), 0);
	assert_int_equal((intptr_t)ret, 1);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(penstock_wait(h.q, &done, 1, 1, 30000000000), 1);
		assert_int_equal(done.result, i ? 1 : (int64_t)h.seg.row_len);
	}
	assert_int_equal(api->cuStreamSynchronize(h.stream), PST_CU_OK);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(
			api->cuMemcpyDtoHAsync(&byte[i], (uintptr_t)mem + i * 4096, 1, h.stream),
			PST_CU_OK);
	assert_int_equal(api->cuStreamSynchronize(h.stream), PST_CU_OK);
	assert_int_equal((unsigned char)byte[0], bytes[0]);
	assert_int_equal((unsigned char)byte[1], bytes[0]);
	/* stream_release waits for this request to complete. */
	req = request(&h.seg, h.stream);
	assert_int_equal(penstock_submit(h.q, &req, 1, NULL), 1);
	stream_release(&h);
	penstock_free(gpu, mem);
}

#define CHUNK (256u << 10) /* length in bytes of the first chunk of a read */

/* Makes three segments that are contiguous in the file. In the file, a chunk boundary is one
 * byte away from a boundary between two segments. Returns the total length of the segments. */
static unsigned make_cut_segments(struct penstock_seg segs[3], void *mem, unsigned i)
{
	static const uint64_t lens[][2] = {
		{CHUNK + 1, CHUNK}, {CHUNK - 1, CHUNK}, {CHUNK - 2, 3},
		{CHUNK - 1, 3},	    {CHUNK - 1, 2},	{CHUNK - 4, 5},
	};
	uint64_t at = 0;

	i %= sizeof(lens) / sizeof(lens[0]);
	for (unsigned k = 0; k < 3; k++) {
		segs[k] = (struct penstock_seg){.dev = gpu, .buf = mem, .buf_off = at, .off = at};
		segs[k].row_len = k < 2 ? lens[i][k] : 3 * CHUNK;
		at += segs[k].row_len;
	}
	return (unsigned)at;
}

/* A request must never be split so that a single byte is left for the next chunk: neither at the
 * end of a segment, nor of a file, nor of a row that is read together with the gap after it. */
static void no_chunk_leaves_a_single_byte(void **state)
{
	struct penstock_seg segs[3];
	struct penstock_done done;
	struct penstock_req req;
	struct held_stream h;
	void *mem;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, FILE_LEN, &mem), 0);
	stream_hold(&h);
	for (unsigned i = 0; i < 12; i++) {
		unsigned len = make_cut_segments(segs, mem, i);

		req = request(segs, NULL);
		req.seg_count = 3;
		req.path = i < 6 ? "bounce" : NULL;
		assert_int_equal(penstock_transfer(&req, NULL), len);
		req.stream = h.stream; /* the same read, in the order of the stream that waits */
		assert_int_equal(penstock_submit(h.q, &req, 1, NULL), 1);
	}
	/* A first chunk of CHUNK bytes would end one byte before the end of row 200, or one byte
	 * after the start of row 189. */
	for (unsigned i = 0; i < 2; i++) {
		segs[0] = (struct penstock_seg){.dev = gpu, .buf = mem, .rows = 1000};
		segs[0].pitch = i ? 1387 : 1310;
		segs[0].row_len = i ? 700 : CHUNK - 200 * 1310 + 1;
		segs[0].buf_pitch = 2000;
		req = request(segs, NULL);
		req.path = "bounce";
		assert_int_equal(penstock_transfer(&req, NULL), 1000 * segs[0].row_len);
	}
	__atomic_store_n(h.gate, 1, __ATOMIC_RELEASE);
	for (unsigned i = 0; i < 13; i++) {
		assert_int_equal(penstock_wait(h.q, &done, 1, 1, 30000000000), 1);
		assert_true(done.result > 0);
	}
	assert_int_equal(api->cuStreamSynchronize(h.stream), PST_CU_OK);
	/* stream_release waits for this request to complete. */
	req = request(&h.seg, h.stream);
	assert_int_equal(penstock_submit(h.q, &req, 1, NULL), 1);
	stream_release(&h);
	penstock_free(gpu, mem);
}

/* A read requests more bytes than the file has. The last chunk before the end of the file must be
 * longer than one byte, too. */
static void file_end_leaves_no_single_byte(void **state)
{
	struct penstock_storage *whole = st;
	char name[sizeof(path) + 8];
	struct held_stream h;
	void *mem;
	int fd;

	(void)state;
	snprintf(name, sizeof(name), "%s-odd", path);
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	assert_int_equal(write(fd, bytes, CHUNK + 1), CHUNK + 1);
	close(fd);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	assert_int_equal(penstock_alloc(gpu, 8 * CHUNK, &mem), 0);
	stream_hold(&h);
	assert_int_equal(penstock_read(st, gpu, mem, 8 * CHUNK, 0), CHUNK + 1);
	stream_release(&h);
	penstock_free(gpu, mem);
	penstock_close(st);
	st = whole;
	unlink(name);
}

#define LONG_READ (1u << 20)

/* Submits reads to a stream in a loop, so that the stream always waits for requests, until `stop`
 * is true. */
static void *keep_streams_waiting(void *mem)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = LONG_READ};
	struct pst_cu_stream *stream = NULL;
	struct penstock_queue *q = NULL;
	struct penstock_done done[8];
	struct penstock_req req;
	unsigned inflight = 0;
	int n = 0;

	if (api->cuCtxSetCurrent(ctx) || penstock_queue_open(NULL, &q) ||
	    api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0))
		return mem;
	req = request(&seg, stream);
	while (n >= 0 && (!atomic_load(&stop) || inflight)) {
		while (inflight < 8 && !atomic_load(&stop) &&
		       penstock_submit(q, &req, 1, NULL) == 1)
			inflight++;
		n = penstock_wait(q, done, 1, 4, -1);
		inflight -= n > 0 ? (unsigned)n : 0;
	}
	penstock_queue_close(q);
	api->cuStreamSynchronize(stream);
	api->cuStreamDestroy(stream);
	return NULL;
}

#define BUSY 6

/* A thread that frees memory can do so although other threads always keep streams waiting. */
static void free_gets_its_turn_among_streams(void **state)
{
	pthread_t threads[BUSY];
	struct timespec from, now;
	void *mem, *more, *failed;
	unsigned freed = 0;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, BUSY * LONG_READ, &mem), 0);
	atomic_store(&stop, false);
	for (unsigned i = 0; i < BUSY; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, keep_streams_waiting,
						(char *)mem + i * LONG_READ),
				 0);
	clock_gettime(CLOCK_MONOTONIC, &from);
	do {
		assert_int_equal(penstock_alloc(gpu, 4096, &more), 0);
		assert_int_equal(penstock_free(gpu, more), 0);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (++freed < 50 && now.tv_sec - from.tv_sec < 40);
	atomic_store(&stop, true);
	for (unsigned i = 0; i < BUSY; i++) {
		pthread_join(threads[i], &failed);
		assert_null(failed);
	}
	assert_int_equal(freed, 50);
	penstock_free(gpu, mem);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(first_device_read_of_a_lane),
		cmocka_unit_test(reads_while_a_stream_waits),
		cmocka_unit_test(device_reads_while_a_stream_waits),
		cmocka_unit_test(lane_close_and_peer_copy_wait_for_stream),
		cmocka_unit_test(one_byte_while_a_stream_waits),
		cmocka_unit_test(no_chunk_leaves_a_single_byte),
		cmocka_unit_test(file_end_leaves_no_single_byte),
		cmocka_unit_test(free_gets_its_turn_among_streams),
	};

	test_use_standin();
	/* In the simulated driver, each creation of a stream waits for all streams. */
	setenv("PENSTOCK_STANDIN_STREAM_POOL", "1", 0);
	return cmocka_run_group_tests(tests, setup, teardown);
}
