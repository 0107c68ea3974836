/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What else is done while a stream waits for a request of ours. Some calls of the driver
 * wait until all streams are idle, and hold up the copies of every request meanwhile: none
 * is made then, whoever can do without one goes on, the others wait and come to their turn.
 * In the stand-in each stream that is made is such a call here.
 */
#include "streams.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

/* The first bytes that a lane takes out of the device are those of a request for which a
 * stream waits: nothing may be made for them that waits for all streams. */
static void first_write(void **state)
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

static void *reads(void *arg)
{
	char *to = arg;

	for (unsigned i = 0; i < 50; i++) {
		if (penstock_read(st, gpu, to, 4096, i * 4096) != 4096 ||
		    penstock_read(st, gpu, to, 1 << 20, i * 4096) != 1 << 20)
			return arg;
	}
	return NULL;
}

/* Reads of several threads while a stream is held back: what they would make for a thread
 * more might wait for that stream, with the lock that its own copy wants. */
static void readers_beside_a_stream(void **state)
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
		assert_int_equal(
			pthread_create(&threads[i], NULL, reads, (char *)mem + (i + 1) * (1 << 20)),
			0);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
	assert_int_equal(penstock_poll(q, &done, 1), 0); /* still held back */
	__atomic_store_n(gate, 1, __ATOMIC_RELEASE);
	assert_int_equal(penstock_wait(q, &done, 1, 1, 30000000000), 1);
	assert_int_equal(done.result, 65536);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
	api->cuStreamDestroy(stream);
	penstock_queue_close(q);
	penstock_free(gpu, mem);
	api->cuMemFreeHost(gate);
}

/* ---- a stream that waits for a request of ours, and that for a gate ---- */

#define FULL 8 /* streams that leave no room for one more: earlier cases have freed some */

struct held {
	struct penstock_seg seg;
	struct penstock_queue *q;
	struct pst_cu_stream *stream, *full[FULL];
	uint64_t *gate;
};

static void hold(struct held *h)
{
	struct penstock_req req;
	pst_cu_ptr gate;

	*h = (struct held){.seg = {.dev = gpu, .row_len = 65536}};
	assert_int_equal(api->cuMemHostAlloc((void **)&h->gate, 4096, 2), PST_CU_OK);
	assert_int_equal(api->cuMemHostGetDevicePointer(&gate, h->gate, 0), PST_CU_OK);
	*h->gate = 0;
	assert_int_equal(penstock_alloc(gpu, h->seg.row_len, &h->seg.buf), 0);
	assert_int_equal(penstock_queue_open(NULL, &h->q), 0);
	assert_int_equal(api->cuStreamCreateWithPriority(&h->stream, PST_CU_STREAM_NON_BLOCKING, 0),
			 PST_CU_OK);
	for (unsigned i = 0; i < FULL; i++)
		assert_int_equal(
			api->cuStreamCreateWithPriority(&h->full[i], PST_CU_STREAM_NON_BLOCKING, 0),
			PST_CU_OK);
	assert_int_equal(api->cuStreamWaitValue64(h->stream, gate, 1, PST_CU_WAIT_GEQ), PST_CU_OK);
	req = request(&h->seg, h->stream);
	assert_int_equal(penstock_submit(h->q, &req, 1, NULL), 1);
}

static void let_go(struct held *h)
{
	struct penstock_done done;

	__atomic_store_n(h->gate, 1, __ATOMIC_RELEASE);
	assert_int_equal(penstock_wait(h->q, &done, 1, 1, 30000000000), 1);
	assert_int_equal(done.result, h->seg.row_len);
	assert_int_equal(api->cuStreamSynchronize(h->stream), PST_CU_OK);
	api->cuStreamDestroy(h->stream);
	for (unsigned i = 0; i < FULL; i++)
		api->cuStreamDestroy(h->full[i]);
	penstock_queue_close(h->q);
	penstock_free(gpu, h->seg.buf);
	api->cuMemFreeHost(h->gate);
}

static struct penstock_device *into;
static _Atomic bool over;

/* A write by one call, and a copy to the host. */
static void *takes_out(void *mem)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	static char back[4096];
	struct penstock_copy_args args = {.size = sizeof(args),
					  .dst_dev = into,
					  .dst = back,
					  .src_dev = gpu,
					  .src = mem,
					  .row_len = sizeof(back)};
	struct penstock_storage *to;

	opts.flags = PENSTOCK_O_WRITE;
	if (!penstock_open("mem:1MiB", &opts, &to) &&
	    penstock_write(to, gpu, mem, sizeof(back), 0) == sizeof(back) &&
	    !penstock_copy(&args, 1))
		atomic_store(&over, true);
	penstock_close(to);
	return mem;
}

static void bytes_out_beside_a_stream(void **state)
{
	pthread_t thread;
	struct held h;
	bool in_time;
	void *mem;

	(void)state;
	assert_true(penstock_device_open("host", NULL, &into) >= 0);
	assert_int_equal(penstock_alloc(gpu, 4096, &mem), 0);
	hold(&h);
	atomic_store(&over, false);
	assert_int_equal(pthread_create(&thread, NULL, takes_out, mem), 0);
	for (unsigned i = 0; i < 20000 && !atomic_load(&over); i++)
		usleep(1000);
	in_time = atomic_load(&over);
	let_go(&h);
	pthread_join(thread, NULL);
	assert_true(in_time);
	penstock_free(gpu, mem);
	penstock_device_close(into);
}

static void *closes(void *q)
{
	penstock_queue_close(q);
	return NULL;
}

static void *copies(void *mem)
{
	struct penstock_copy_args args = {.size = sizeof(args),
					  .dst_dev = gpu,
					  .dst = mem,
					  .src_dev = gpu,
					  .src = (char *)mem + 4096,
					  .row_len = 4096};

	return penstock_copy(&args, 1) ? mem : NULL;
}

/* A queue's own lane gives back its ring and what it has mapped, and the first copy between
 * GPUs has a stream made: those wait for the stream, whose own copies do not wait for
 * them. */
static void others_wait_for_a_stream(void **state)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_seg seg = {.dev = gpu, .row_len = 8192};
	struct penstock_queue *q;
	struct penstock_done done;
	struct penstock_req req;
	pthread_t threads[2];
	void *mem, *failed;
	struct held h;

	(void)state;
	opts.own_lane = gpu;
	assert_int_equal(penstock_queue_open(&opts, &q), 0);
	assert_int_equal(penstock_alloc(gpu, 8192, &mem), 0);
	seg.buf = mem;
	req = request(&seg, NULL);
	req.path = "mapped"; /* which stays registered */
	if (penstock_submit(q, &req, 1, NULL) == 1)
		assert_int_equal(penstock_wait(q, &done, 1, 1, -1), 1);
	hold(&h);
	assert_int_equal(pthread_create(&threads[0], NULL, closes, q), 0);
	assert_int_equal(pthread_create(&threads[1], NULL, copies, mem), 0);
	usleep(30000); /* so that they are at it; if not, nothing is lost */
	let_go(&h);
	for (unsigned i = 0; i < 2; i++) {
		pthread_join(threads[i], &failed);
		assert_null(failed);
	}
	penstock_free(gpu, mem);
}

/* One byte would go where the stream waits, and what comes after it would stand behind it. Nor
 * is one left over from what is longer. */
static void a_byte_beside_a_stream(void **state)
{
	struct penstock_seg seg = {.dev = gpu, .row_len = 1};
	struct penstock_done done;
	struct penstock_req req;
	void *mem;
	struct held h;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, 2u << 20, &mem), 0);
	seg.buf = mem;
	hold(&h);
	assert_int_equal(penstock_read(st, gpu, mem, 1, 0), -EBUSY);
	req = request(&seg, h.stream); /* and for itself */
	assert_int_equal(penstock_submit(h.q, &req, 1, NULL), 1);
	for (unsigned i = 16; i <= 20; i++)
		assert_int_equal(penstock_read(st, gpu, mem, (1u << i) + 1, 0), (1u << i) + 1);
	__atomic_store_n(h.gate, 1, __ATOMIC_RELEASE);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(penstock_wait(h.q, &done, 1, 1, 30000000000), 1);
		assert_int_equal(done.result, i ? -EBUSY : (int64_t)h.seg.row_len);
		if (!i)
			continue;
		assert_int_equal(api->cuStreamSynchronize(h.stream), PST_CU_OK);
		req = request(&h.seg, h.stream); /* that let_go waits for */
		assert_int_equal(penstock_submit(h.q, &req, 1, NULL), 1);
	}
	let_go(&h);
	assert_int_equal(penstock_read(st, gpu, mem, 1, 0), 1);
	penstock_free(gpu, mem);
}

#define CHUNK (256u << 10) /* the first of a read */

/* Pieces that are read as one, which a chunk's end would cut next to one of theirs. */
static unsigned cut_pieces(struct penstock_seg segs[3], void *mem, unsigned i)
{
	static const uint64_t lens[][2] = {
		{CHUNK + 1, CHUNK}, {CHUNK - 1, CHUNK},	{CHUNK - 2, 3},
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

/* Nor of one piece of several, of a row that is read with what lies between, or of what a
 * file has, wherever chunks end. */
static void pieces_beside_a_stream(void **state)
{
	struct penstock_seg segs[3];
	struct penstock_done done;
	struct penstock_req req;
	struct held h;
	void *mem;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, FILE_LEN, &mem), 0);
	hold(&h);
	for (unsigned i = 0; i < 12; i++) {
		unsigned len = cut_pieces(segs, mem, i);

		req = request(segs, NULL);
		req.seg_count = 3;
		req.path = i < 6 ? "bounce" : NULL;
		assert_int_equal(penstock_transfer(&req, NULL), len);
		req.stream = h.stream; /* and for themselves */
		assert_int_equal(penstock_submit(h.q, &req, 1, NULL), 1);
	}
	for (unsigned i = 0; i < 2; i++) { /* the last byte of row 200, the first of row 189 */
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
	req = request(&h.seg, h.stream); /* that let_go waits for */
	assert_int_equal(penstock_submit(h.q, &req, 1, NULL), 1);
	let_go(&h);
	penstock_free(gpu, mem);
}

/* So is what a file has, where more was asked for. */
static void end_beside_a_stream(void **state)
{
	struct penstock_storage *whole = st;
	char name[sizeof(path) + 8];
	struct held h;
	void *mem;
	int fd;

	(void)state;
	snprintf(name, sizeof(name), "%s-odd", path);
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	assert_int_equal(write(fd, bytes, CHUNK + 1), CHUNK + 1);
	close(fd);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	assert_int_equal(penstock_alloc(gpu, 8 * CHUNK, &mem), 0);
	hold(&h);
	assert_int_equal(penstock_read(st, gpu, mem, 8 * CHUNK, 0), CHUNK + 1);
	let_go(&h);
	penstock_free(gpu, mem);
	penstock_close(st);
	st = whole;
	unlink(name);
}

#define LONG_READ (1u << 20)

/* Always some requests for which a stream waits, until there are no more. */
static void *never_idle(void *mem)
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
	while (n >= 0 && (!atomic_load(&over) || inflight)) {
		while (inflight < 8 && !atomic_load(&over) &&
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

/* Who frees memory comes to his turn among them. */
static void frees_among_streams(void **state)
{
	pthread_t threads[BUSY];
	struct timespec from, now;
	void *mem, *more, *failed;
	unsigned freed = 0;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, BUSY * LONG_READ, &mem), 0);
	atomic_store(&over, false);
	for (unsigned i = 0; i < BUSY; i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, never_idle, (char *)mem + i * LONG_READ),
			0);
	clock_gettime(CLOCK_MONOTONIC, &from);
	do {
		assert_int_equal(penstock_alloc(gpu, 4096, &more), 0);
		assert_int_equal(penstock_free(gpu, more), 0);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (++freed < 50 && now.tv_sec - from.tv_sec < 40);
	atomic_store(&over, true);
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
		cmocka_unit_test(first_write),
		cmocka_unit_test(readers_beside_a_stream),
		cmocka_unit_test(bytes_out_beside_a_stream),
		cmocka_unit_test(others_wait_for_a_stream),
		cmocka_unit_test(a_byte_beside_a_stream),
		cmocka_unit_test(pieces_beside_a_stream),
		cmocka_unit_test(end_beside_a_stream),
		cmocka_unit_test(frees_among_streams),
	};

	test_use_standin();
	setenv("PENSTOCK_STANDIN_STREAM_POOL", "1", 0); /* each one that is made waits for all */
	return cmocka_run_group_tests(tests, setup, teardown);
}
