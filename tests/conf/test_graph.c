/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests requests that are captured into CUDA graphs. Each launch of the graph must move the bytes
 * that the storage has at that time, and store its own result. Late values are a length or offsets
 * in memory that the library reads when the stream reaches the request. Each launch must use the
 * late values of that time. Also tests what happens to the graph if a queue, a storage or a device
 * is closed. Everything must be freed when the graph is gone. With PENSTOCK_STANDIN=0 the tests use
 * the machine's own driver.
 */
#include "../graphs.h"
#include "streams.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/wait.h>

#include "core/ops.h"

#define REPLAYS 1000
#define LIMIT 20000000000LL /* timeout in ns; only a hang lasts that long */
#define ROW 70000u	    /* bytes of most requests; more than a page and not a multiple of one */

static struct pst_cu_stream *stream;
static struct penstock_queue *q;
static unsigned char *back; /* pinned memory for copies of device memory */
static void *mem;	    /* device memory of BUF_LEN bytes */
static int fd;		    /* the file that `st` reads */
#define BUF_LEN (4u << 20)

/* Late values (length and offsets, read when the stream reaches the request), and the result. */
static struct {
	uint64_t row_len, off, buf_off;
	int64_t result;
} late_now;

static int graph_setup(void **state)
{
	if (setup(state) || graphs_load() || penstock_queue_open(NULL, &q) < 0 ||
	    penstock_alloc(gpu, BUF_LEN, &mem))
		return -1;
	fd = open(path, O_RDWR);
	if (fd < 0 || api->cuMemHostAlloc((void **)&back, BUF_LEN, 0))
		return -1;
	return api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0);
}

static int graph_teardown(void **state)
{
	api->cuStreamDestroy(stream);
	api->cuMemFreeHost(back);
	penstock_free(gpu, mem);
	penstock_queue_close(q);
	close(fd);
	return teardown(state);
}

/* ---- functions that several cases use ---- */

/* A captured graph and one executable of it. */
struct graph {
	struct pst_cu_graph *graph;
	struct pst_cu_graph_exec *exec;
};

static void capture_begin(enum pst_cu_capture_mode mode)
{
	assert_int_equal(graphs.begin(stream, mode), PST_CU_OK);
}

static struct graph capture_end(void)
{
	struct graph g;

	assert_int_equal(graphs.end(stream, &g.graph), PST_CU_OK);
	assert_non_null(g.graph);
	assert_int_equal(graphs.instantiate(&g.exec, g.graph, 0), PST_CU_OK);
	return g;
}

static void graph_free(const struct graph *g)
{
	assert_int_equal(graphs.exec_destroy(g->exec), PST_CU_OK);
	assert_int_equal(graphs.destroy(g->graph), PST_CU_OK);
}

/* Launches the graph and waits. If a replay hangs, the program's time limit ends the program. */
static void replay(const struct graph *g)
{
	assert_int_equal(graphs.launch(g->exec, stream), PST_CU_OK);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
}

/* Submits the request inside a capture. A captured request must complete at once, with result 0. */
static void submit(const struct penstock_req *req)
{
	struct penstock_done done;

	if (penstock_submit(q, req, 1, NULL) != 1)
		fail_msg("%s", penstock_errmsg());
	assert_int_equal(penstock_wait(q, &done, 1, 1, LIMIT), 1);
	assert_int_equal(done.result, 0);
}

static struct graph capture(const struct penstock_req *req, enum pst_cu_capture_mode mode)
{
	capture_begin(mode);
	submit(req);
	return capture_end();
}

/* Fills device memory with a byte. */
static void mem_fill(unsigned char byte)
{
	assert_int_equal(api->cuMemsetD8Async((uintptr_t)mem, byte, BUF_LEN, stream), PST_CU_OK);
}

/* Copies device memory to `back`. */
static void mem_fetch(size_t len)
{
	assert_int_equal(api->cuMemcpyDtoHAsync(back, (uintptr_t)mem, len, stream), PST_CU_OK);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
}

/* Asserts that device memory has the first bytes of the file. */
static void mem_check(size_t len)
{
	mem_fetch(len);
	assert_memory_equal(back, bytes, len);
}

static bool mem_is_right(size_t len)
{
	mem_fetch(len);
	return !memcmp(back, bytes, len);
}

/* Writes bytes that depend on `turn` to the file. */
static void file_change(uint64_t off, size_t len, unsigned turn)
{
	for (size_t i = 0; i < len; i++)
		bytes[off + i] = (unsigned char)((off + i) * 2654435761u >> 13) ^ (turn * 37 + 11);
	assert_int_equal(pwrite(fd, bytes + off, len, (off_t)off), len);
}

/* Waits until the driver has reported all graphs as destroyed, and the library has freed what they
 * used. */
static void graphs_await_gone(void)
{
	uint64_t until = graphs_now_ns() + LIMIT;

	while (atomic_load(&gpu->graphs)) {
		assert_true(graphs_now_ns() < until);
		usleep(100);
	}
}

static struct penstock_late late_fixed(void)
{
	return (struct penstock_late){.size = sizeof(struct penstock_late),
				      .result = &late_now.result};
}

static struct penstock_late late_all(void)
{
	return (struct penstock_late){
		.size = sizeof(struct penstock_late),
		.row_len = &late_now.row_len,
		.off = &late_now.off,
		.buf_off = &late_now.buf_off,
		.result = &late_now.result,
		.buf_len = BUF_LEN,
	};
}

static struct penstock_req late_request(struct penstock_seg *seg, struct penstock_late *late)
{
	struct penstock_req req = request(seg, stream);

	req.late = late;
	return req;
}

/* ---- the bytes ---- */

/* The length and offsets are fixed. Each replay delivers what the file contains at that time. */
static void fixed_values(void **state)
{
	static const enum pst_cu_capture_mode modes[] = {
		PST_CU_CAPTURE_GLOBAL, PST_CU_CAPTURE_THREAD_LOCAL, PST_CU_CAPTURE_RELAXED};
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .off = 5000, .row_len = ROW};
	struct penstock_late late = late_fixed();
	struct penstock_req req = late_request(&seg, &late);

	(void)state;
	for (unsigned m = 0; m < 3; m++) {
		struct graph g = capture(&req, modes[m]);

		for (unsigned i = 0; i < REPLAYS / 3; i++) {
			late_now.result = -7;
			file_change(5000, ROW, i);
			replay(&g);
			assert_int_equal(late_now.result, ROW);
			mem_fetch(ROW);
			assert_memory_equal(back, bytes + 5000, ROW);
		}
		graph_free(&g);
	}
	graphs_await_gone();
}

/* Each replay reads late values (a length and offsets). Reads past the end of the file are short.
 * Values out of range make a replay fail, and the next replay succeeds again. */
static void late_values(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = ROW};
	struct penstock_late late = late_all();
	struct penstock_req req = late_request(&seg, &late);
	struct graph g = capture(&req, PST_CU_CAPTURE_GLOBAL);
	unsigned long x = 88172645463325252u;

	(void)state;
	for (unsigned i = 0; i < REPLAYS; i++) {
		int64_t want;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		late_now.row_len = x % (ROW + 2); /* at most one byte more than allowed */
		late_now.off = (x >> 20) % (FILE_LEN + ROW);
		late_now.buf_off = (x >> 40) % (BUF_LEN + 1000);
		want = (int64_t)late_now.row_len;
		if (late_now.off + late_now.row_len > FILE_LEN)
			want = late_now.off < FILE_LEN ? (int64_t)(FILE_LEN - late_now.off) : 0;
		if (late_now.row_len > ROW ||
		    (late_now.row_len && late_now.buf_off + late_now.row_len > BUF_LEN))
			want = -EINVAL;
		late_now.result = -7;
		if (want > 0)
			file_change(late_now.off, (size_t)want, i);
		mem_fill(0xee);
		replay(&g);
		assert_int_equal(late_now.result, want);
		mem_fetch(BUF_LEN);
		if (want > 0)
			assert_memory_equal(back + late_now.buf_off, bytes + late_now.off, want);
		/* No other byte has changed. */
		for (size_t at = 0; at < BUF_LEN; at += i % 50 ? 4093 : 1)
			if (want <= 0 || at < late_now.buf_off ||
			    at >= late_now.buf_off + (size_t)want)
				assert_int_equal(back[at], 0xee);
	}
	graph_free(&g);
	graphs_await_gone();
}

/* The request is longer than its stage (pinned memory). Each replay fills the stage many times. */
static void many_rounds(void **state)
{
	struct penstock_late late = late_fixed();
	struct penstock_seg seg = {.dev = gpu, .off = 17, .row_len = FILE_LEN - 17};
	struct penstock_req req;
	unsigned char *all;
	struct graph g;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, FILE_LEN, &seg.buf), 0);
	assert_int_equal(api->cuMemHostAlloc((void **)&all, FILE_LEN, 0), PST_CU_OK);
	req = late_request(&seg, &late);
	g = capture(&req, PST_CU_CAPTURE_GLOBAL);
	for (unsigned i = 0; i < 20; i++) {
		file_change(i << 18, 1u << 18, i);
		replay(&g);
		assert_int_equal(late_now.result, FILE_LEN - 17);
		assert_int_equal(
			api->cuMemcpyDtoHAsync(all, (uintptr_t)seg.buf, FILE_LEN - 17, stream),
			PST_CU_OK);
		assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
		assert_memory_equal(all, bytes + 17, FILE_LEN - 17);
	}
	graph_free(&g);
	graphs_await_gone();
	api->cuMemFreeHost(all);
	penstock_free(gpu, seg.buf);
}

/* The test queues each launch before the replay of the previous launch has ended. */
static void launches_without_a_pause(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = 4096};
	struct penstock_late late = late_fixed();
	struct penstock_req req = late_request(&seg, &late);
	struct graph g = capture(&req, PST_CU_CAPTURE_GLOBAL);

	(void)state;
	for (unsigned i = 0; i < 50; i++) {
		file_change(0, 4096, i);
		for (unsigned k = 0; k < 20; k++)
			assert_int_equal(graphs.launch(g.exec, stream), PST_CU_OK);
		mem_fetch(4096);
		assert_int_equal(late_now.result, 4096);
		assert_memory_equal(back, bytes, 4096);
	}
	graph_free(&g);
	graphs_await_gone();
}

static void set_late(void *arg)
{
	late_now.off = *(const uint64_t *)arg;
}

/* One graph has two requests. Before each request, a host function sets its file offset. */
static void two_requests_in_one_graph(void **state)
{
	static uint64_t offs[2] = {4096, 123456};
	struct penstock_seg segs[2] = {{.buf = mem, .dev = gpu, .row_len = ROW},
				       {.buf = (char *)mem + ROW, .dev = gpu, .row_len = ROW}};
	int64_t results[2] = {-7, -7};
	struct penstock_late late[2];
	struct graph g;
	size_t nodes;

	(void)state;
	capture_begin(PST_CU_CAPTURE_GLOBAL);
	mem_fill(0xee);
	for (unsigned i = 0; i < 2; i++) {
		struct penstock_req req;

		late[i] = (struct penstock_late){
			.size = sizeof(late[i]), .off = &late_now.off, .result = &results[i]};
		req = late_request(&segs[i], &late[i]);
		req.flags = PENSTOCK_R_DETACHED;
		assert_int_equal(api->cuLaunchHostFunc(stream, set_late, &offs[i]), PST_CU_OK);
		assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	}
	assert_int_equal(api->cuMemcpyDtoHAsync(back, (uintptr_t)mem, 2 * ROW + 1, stream),
			 PST_CU_OK);
	g = capture_end();
	assert_int_equal(graphs.nodes(g.graph, NULL, &nodes), PST_CU_OK);
	/* 12 nodes: four for each of the two requests, two host functions, a memset, a copy. */
	assert_int_equal(nodes, 12);
	assert_int_equal(penstock_wait(q, NULL, 1, 1, 0), 0);
	for (unsigned i = 0; i < 100; i++) {
		offs[0] = i * 517;
		file_change(offs[0], ROW, i);
		file_change(offs[1], ROW, i + 3);
		replay(&g);
		assert_int_equal(results[0], ROW);
		assert_int_equal(results[1], ROW);
		assert_memory_equal(back, bytes + offs[0], ROW);
		assert_memory_equal(back + ROW, bytes + offs[1], ROW);
		assert_int_equal(back[2 * ROW], 0xee);
	}
	graph_free(&g);
	graphs_await_gone();
}

/* Each replay of a write stores what the device memory contains at that time. */
static void writes(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .off = 777, .row_len = 3u << 20};
	struct penstock_late late = late_all();
	struct penstock_req req = late_request(&seg, &late);
	struct penstock_storage *writable;
	unsigned char *got = malloc(seg.row_len);
	struct graph g;

	(void)state;
	opts.flags = PENSTOCK_O_WRITE;
	assert_int_equal(penstock_open(path, &opts, &writable), 0);
	req.storage = writable;
	req.op = PENSTOCK_WRITE;
	req.flags = PENSTOCK_R_DURABLE;
	g = capture(&req, PST_CU_CAPTURE_GLOBAL);
	for (unsigned i = 0; i < 100; i++) {
		late_now.row_len = i % 10 ? 1 + i * 311 : seg.row_len;
		late_now.off = i * 1234;
		late_now.buf_off = i;
		late_now.result = -7;
		memset(back, (int)i + 1, seg.row_len + i);
		assert_int_equal(
			api->cuMemcpyHtoDAsync((uintptr_t)mem, back, seg.row_len + i, stream),
			PST_CU_OK);
		replay(&g);
		assert_int_equal(late_now.result, late_now.row_len);
		assert_int_equal(pread(fd, got, late_now.row_len, (off_t)late_now.off),
				 late_now.row_len);
		assert_memory_equal(got, back, late_now.row_len);
	}
	graph_free(&g);
	graphs_await_gone();
	penstock_close(writable);
	free(got);
	assert_int_equal(pread(fd, bytes, FILE_LEN, 0), FILE_LEN);
}

/* ---- the life of graphs ---- */

/* The graph may be destroyed before its executable, and a copy of the graph may live longer than
 * both. As long as one of them exists, replays work. */
static void graph_destroyed_first(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = ROW};
	struct penstock_late late = late_fixed();
	struct penstock_req req = late_request(&seg, &late);
	struct graph g = capture(&req, PST_CU_CAPTURE_GLOBAL), copy;

	(void)state;
	assert_int_equal(graphs.clone(&copy.graph, g.graph), PST_CU_OK);
	assert_int_equal(graphs.destroy(g.graph), PST_CU_OK);
	for (unsigned i = 0; i < 10; i++) {
		file_change(0, ROW, i);
		replay(&g);
		assert_int_equal(late_now.result, ROW);
		mem_check(ROW);
	}
	assert_int_equal(graphs.exec_destroy(g.exec), PST_CU_OK);
	assert_int_equal(graphs.instantiate(&copy.exec, copy.graph, 0), PST_CU_OK);
	file_change(0, ROW, 77);
	replay(&copy);
	mem_check(ROW);
	assert_int_equal(atomic_load(&gpu->graphs), 1);
	graph_free(&copy);
	graphs_await_gone();
}

/* Makes more captures than there are stages (pinned buffers). A destroyed graph frees its stage. */
static void stages_are_freed(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = 4u << 20};
	struct penstock_late late = late_fixed();
	struct penstock_req req = late_request(&seg, &late);

	(void)state;
	for (unsigned i = 0; i < 1100; i++) {
		struct graph g = capture(&req, PST_CU_CAPTURE_RELAXED);

		graph_free(&g);
		if (i % 16 == 15)
			graphs_await_gone();
	}
	graphs_await_gone();
}

/* Captured requests may use half of the pinned memory. Further captured requests are refused with
 * -ENOMEM, because waiting (-EAGAIN) would not help. Requests outside of captures still succeed. */
static void captures_leave_room(void **state)
{
	enum { MANY = 600 };
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = 4u << 20};
	struct penstock_late late = late_fixed();
	struct penstock_req req = late_request(&seg, &late);
	struct penstock_done done;
	unsigned taken = 0;
	int ret = 1;
	struct graph g;

	(void)state;
	capture_begin(PST_CU_CAPTURE_RELAXED);
	for (; ret == 1 && taken < MANY; taken++) {
		ret = penstock_submit(q, &req, 1, NULL);
		if (ret == 1)
			assert_int_equal(penstock_wait(q, &done, 1, 1, LIMIT), 1);
	}
	assert_int_equal(ret, -ENOMEM);
	assert_true(taken > 16);
	g = capture_end();
	req.late = NULL;
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(penstock_wait(q, &done, 1, 1, LIMIT), 1);
	assert_int_equal(done.result, seg.row_len);
	replay(&g);
	assert_int_equal(late_now.result, seg.row_len);
	graph_free(&g);
	graphs_await_gone();
}

/* The queue of a captured request is closed. Replays still work. */
static void queue_closed(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = ROW};
	struct penstock_late late = late_fixed();
	struct penstock_req req = late_request(&seg, &late);
	struct penstock_queue *other = q;
	struct graph g;

	(void)state;
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	g = capture(&req, PST_CU_CAPTURE_GLOBAL);
	penstock_queue_close(q);
	q = other;
	for (unsigned i = 0; i < 10; i++) {
		late_now.result = -7;
		file_change(0, ROW, i);
		replay(&g);
		assert_int_equal(late_now.result, ROW);
		mem_check(ROW);
	}
	graph_free(&g);
	graphs_await_gone();
}

/* The storage of a captured request is closed. Replays fail with -EBADF and change no byte. */
static void storage_closed(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = ROW};
	struct penstock_late late = late_fixed();
	struct penstock_req req = late_request(&seg, &late);
	struct penstock_storage *other;
	struct graph g;

	(void)state;
	assert_int_equal(penstock_open(path, NULL, &other), 0);
	req.storage = other;
	g = capture(&req, PST_CU_CAPTURE_GLOBAL);
	replay(&g);
	assert_int_equal(late_now.result, ROW);
	penstock_close(other);
	for (unsigned i = 0; i < 10; i++) {
		late_now.result = -7;
		mem_fill(0xee);
		replay(&g);
		assert_int_equal(late_now.result, -EBADF);
		mem_fetch(ROW);
		for (unsigned k = 0; k < ROW; k++)
			assert_int_equal(back[k], 0xee);
	}
	graph_free(&g);
	graphs_await_gone();
}

struct closing {
	struct penstock_storage *st;
	_Atomic bool started;
};

static void *close_storage(void *arg)
{
	struct closing *c = arg;

	while (!atomic_load(&c->started))
		;
	penstock_close(c->st);
	return NULL;
}

/* The storage is closed while replays run. Each replay delivers all bytes, or fails with -EBADF. */
static void storage_closed_meanwhile(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = ROW};
	struct penstock_late late = late_fixed();
	struct penstock_req req = late_request(&seg, &late);

	(void)state;
	for (unsigned i = 0; i < 40; i++) {
		struct closing c = {.started = false};
		bool closed = false;
		pthread_t thread;
		struct graph g;

		assert_int_equal(penstock_open(path, NULL, &c.st), 0);
		req.storage = c.st;
		g = capture(&req, PST_CU_CAPTURE_GLOBAL);
		assert_int_equal(pthread_create(&thread, NULL, close_storage, &c), 0);
		for (unsigned k = 0; !closed; k++) {
			if (k == i % 4)
				atomic_store(&c.started, true);
			late_now.result = -7;
			replay(&g);
			closed = late_now.result == -EBADF;
			if (closed)
				continue;
			assert_int_equal(late_now.result, ROW);
			mem_check(ROW);
		}
		pthread_join(thread, NULL);
		graph_free(&g);
	}
	graphs_await_gone();
}

/* The program closes the device. The library keeps it open for the graph, so replays still work. */
static void device_closed(void **state)
{
	struct penstock_late late = late_fixed();
	struct penstock_seg seg = {.row_len = ROW};
	struct penstock_device *other;
	struct penstock_req req;
	struct graph g;
	int count;

	(void)state;
	penstock_free(gpu, mem);
	penstock_device_close(gpu);
	assert_int_equal(penstock_device_open("cuda:0", NULL, &other), 0);
	assert_int_equal(api->cuMemAlloc((pst_cu_ptr *)&seg.buf, ROW), PST_CU_OK);
	seg.dev = other;
	req = late_request(&seg, &late);
	g = capture(&req, PST_CU_CAPTURE_GLOBAL);
	penstock_device_close(other);
	for (unsigned i = 0; i < 10; i++) {
		late_now.result = -7;
		file_change(0, ROW, i);
		replay(&g);
		assert_int_equal(late_now.result, ROW);
		assert_int_equal(api->cuMemcpyDtoHAsync(back, (uintptr_t)seg.buf, ROW, stream),
				 PST_CU_OK);
		assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
		assert_memory_equal(back, bytes, ROW);
	}
	/* While the graph exists, opening the device again returns the same device. */
	assert_int_equal(penstock_device_open("cuda:0", NULL, &gpu), 0);
	assert_ptr_equal(gpu, other);
	penstock_device_close(gpu);
	graph_free(&g);
	for (count = 1; count; usleep(100))
		count = (int)atomic_load(&other->graphs);
	/* Opening "host" closes devices that only a graph kept open. So cuda:0 is a new object. */
	assert_true(penstock_device_open("host", NULL, &other) >= 0);
	penstock_device_close(other);
	assert_int_equal(penstock_device_open("cuda:0", NULL, &gpu), 0);
	assert_int_equal(api->cuMemFree((uintptr_t)seg.buf), PST_CU_OK);
	assert_int_equal(penstock_alloc(gpu, BUF_LEN, &mem), 0);
}

/* The process forks. The child cannot use the graph. The parent's replays still work. */
static void process_forks(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = ROW};
	struct penstock_late late = late_fixed();
	struct penstock_req req = late_request(&seg, &late);
	struct graph g = capture(&req, PST_CU_CAPTURE_GLOBAL);
	int status;
	pid_t pid;

	(void)state;
	replay(&g);
	pid = fork();
	if (!pid) {
		struct penstock_storage *again;

		/* For inherited objects, these calls do nothing in a child. */
		penstock_close(st);
		penstock_device_close(gpu);
		/* The child can open objects of its own and close them. */
		if (penstock_open(path, NULL, &again))
			_exit(1);
		penstock_close(again);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	late_now.result = -7;
	file_change(0, ROW, 5);
	replay(&g);
	assert_int_equal(late_now.result, ROW);
	mem_check(ROW);
	graph_free(&g);
	graphs_await_gone();
}

/* A captured request completes at submit, so nothing is left to cancel. */
static void cancel_has_no_effect(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = ROW};
	struct penstock_late late = late_fixed();
	struct penstock_req req = late_request(&seg, &late);
	struct penstock_done done;
	struct graph g;
	uint64_t id;

	(void)state;
	capture_begin(PST_CU_CAPTURE_GLOBAL);
	assert_int_equal(penstock_submit(q, &req, 1, &id), 1);
	g = capture_end();
	assert_int_equal(penstock_cancel(q, id), 0);
	assert_int_equal(penstock_wait(q, &done, 1, 1, LIMIT), 1);
	assert_int_equal(done.id, id);
	assert_int_equal(done.result, 0);
	assert_int_equal(penstock_cancel(q, id), -ENOENT);
	late_now.result = -7;
	replay(&g);
	assert_int_equal(late_now.result, ROW);
	graph_free(&g);
	graphs_await_gone();
}

/* ---- faults ---- */

/* A replay whose transfer fails stores the error, and the next one succeeds. */
static void error_in_one_replay(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .off = 4096, .row_len = ROW};
	struct penstock_late late = late_fixed();
	struct penstock_req req = late_request(&seg, &late);
	struct graph g;

	(void)state;
	req.flags = PENSTOCK_R_EXACT;
	g = capture(&req, PST_CU_CAPTURE_GLOBAL);
	for (unsigned i = 0; i < 20; i++) {
		bool bad = i % 3 == 1;

		assert_int_equal(ftruncate(fd, bad ? 5000 : FILE_LEN), 0);
		file_change(0, bad ? 5000 : 4096 + ROW, i);
		late_now.result = -7;
		mem_fill(0xee);
		replay(&g);
		assert_int_equal(late_now.result, bad ? -ENODATA : (int64_t)ROW);
		mem_fetch(ROW);
		if (!bad)
			assert_memory_equal(back, bytes + 4096, ROW);
		else
			for (unsigned k = 5000 - 4096; k < ROW; k++)
				assert_int_equal(back[k], 0xee);
	}
	assert_int_equal(ftruncate(fd, FILE_LEN), 0);
	assert_int_equal(pwrite(fd, bytes, FILE_LEN, 0), FILE_LEN);
	graph_free(&g);
	graphs_await_gone();
}

/* result_set and result_get access the result atomically, because a thread of the library may
 * store it at the same time. */
static void result_set(int64_t value)
{
	__atomic_store_n(&late_now.result, value, __ATOMIC_RELEASE);
}

static int64_t result_get(void)
{
	return __atomic_load_n(&late_now.result, __ATOMIC_ACQUIRE);
}

/* Three executables of one graph run at the same time. No stream may hang. Each result is -EBUSY,
 * or the full length with the right bytes. Afterwards, replays work. */
static void overlapping_replays(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = 3u << 20};
	struct penstock_late late = late_fixed();
	struct penstock_req req = late_request(&seg, &late);
	struct pst_cu_stream *streams[3];
	struct pst_cu_graph_exec *execs[3];
	unsigned busy = 0;
	uint64_t until;
	int64_t ret;
	struct graph g;

	(void)state;
#ifdef __SANITIZE_THREAD__
	/* Uses path "null", so that the sanitizer reports no overlapping writes to `mem`. */
	req.path = "null";
#endif
	g = capture(&req, PST_CU_CAPTURE_GLOBAL);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(
			api->cuStreamCreateWithPriority(&streams[i], PST_CU_STREAM_NON_BLOCKING, 0),
			PST_CU_OK);
		assert_int_equal(graphs.instantiate(&execs[i], g.graph, 0), PST_CU_OK);
	}
	for (unsigned i = 0; i < 100; i++) {
		mem_fill(0xee);
		assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
		result_set(-7);
		for (unsigned k = 0; k < 6; k++)
			assert_int_equal(graphs.launch(execs[k % 3], streams[k % 3]), PST_CU_OK);
		for (unsigned k = 0; k < 3; k++)
			assert_int_equal(api->cuStreamSynchronize(streams[k]), PST_CU_OK);
		until = graphs_now_ns() + LIMIT;
		do { /* the library may store -EBUSY after the stream is idle */
			assert_true(graphs_now_ns() < until);
			usleep(300);
			ret = result_get();
		} while (ret != -EBUSY && !req.path && !mem_is_right(seg.row_len));
		busy += ret == -EBUSY;
		assert_true(ret == -EBUSY || ret == (int64_t)seg.row_len);
		for (unsigned k = 0; i % 10 == 9; k++) {
			result_set(-7);
			file_change(0, seg.row_len, i + k);
			replay(&g);
			if (result_get() == (int64_t)seg.row_len)
				break;
			/* The library has not seen the end of the overlap yet. */
			assert_true(graphs_now_ns() < until);
			usleep(1000);
		}
		if (i % 10 == 9 && !req.path)
			mem_check(seg.row_len);
	}
	assert_true(busy > 0);
	for (unsigned i = 0; i < 3; i++) {
		graphs.exec_destroy(execs[i]);
		api->cuStreamDestroy(streams[i]);
	}
	graph_free(&g);
	graphs_await_gone();
}

/* The driver refuses to add a graph node. penstock_submit fails and names the node. The nodes
 * before it stay in the graph: if the graph is launched, the stream does not hang. */
static void refused_nodes(void **state)
{
	static const struct {
		const char *fail, *text;
		unsigned nodes;
	} all[] = {
		{"cuStreamGetCaptureInfo_v3:1:900", "finding the graph", 0},
		{"cuUserObjectCreate:1:2", "creating a user object", 0},
		{"cuGraphRetainUserObject:1:900", "adding a user object", 0},
		{"cuLaunchKernel:1:900", "launching a counter as a node of a graph", 0},
		{"cuStreamWaitValue64_v2:1:900", "waiting for a word as a node of a graph", 1},
		{"cuLaunchKernel:2:900", "launching a copy as a node of a graph", 2},
		{"cuStreamWriteValue64_v2:1:900", "storing a word as a node of a graph", 3},
		{"cuLaunchKernel:4:900", "launching a counter as a node of a graph", 6},
	};
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = 2u << 20};
	struct penstock_late late = late_fixed();
	struct penstock_req req = late_request(&seg, &late);

	(void)state;
	driver_fail(NULL);
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct graph g;
		size_t nodes;

		capture_begin(PST_CU_CAPTURE_GLOBAL);
		driver_fail(all[i].fail);
		assert_true(penstock_submit(q, &req, 1, NULL) < 0);
		if (!strstr(penstock_errmsg(), all[i].text))
			fail_msg("%s: %s", all[i].fail, penstock_errmsg());
		driver_fail(NULL);
		g = capture_end();
		assert_int_equal(graphs.nodes(g.graph, NULL, &nodes), PST_CU_OK);
		assert_int_equal(nodes, all[i].nodes);
		late_now.result = -7;
		replay(&g);
		replay(&g);
		assert_int_equal(late_now.result, -7);
		graph_free(&g);
	}
	graphs_await_gone();
}

/* penstock_submit refuses captured requests with a deadline, or without a result variable. */
static void invalid_captures_are_refused(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = ROW};
	struct penstock_late late = {.size = sizeof(late)};
	struct penstock_req req = late_request(&seg, &late);
	struct pst_cu_graph *graph;

	(void)state;
	capture_begin(PST_CU_CAPTURE_GLOBAL);
	assert_int_equal(penstock_submit(q, &req, 1, NULL), -EINVAL);
	assert_non_null(strstr(penstock_errmsg(), "late->result"));
	req.late = NULL;
	assert_int_equal(penstock_submit(q, &req, 1, NULL), -EINVAL);
	late.result = &late_now.result;
	req.late = &late;
	req.deadline_ns = graphs_now_ns() + 1000000000u;
	assert_int_equal(penstock_submit(q, &req, 1, NULL), -EINVAL);
	assert_non_null(strstr(penstock_errmsg(), "deadline"));
	assert_int_equal(graphs.end(stream, &graph), PST_CU_OK);
	graphs.destroy(graph);
	graphs_await_gone();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fixed_values),
		cmocka_unit_test(late_values),
		cmocka_unit_test(many_rounds),
		cmocka_unit_test(launches_without_a_pause),
		cmocka_unit_test(two_requests_in_one_graph),
		cmocka_unit_test(writes),
		cmocka_unit_test(graph_destroyed_first),
		cmocka_unit_test(stages_are_freed),
		cmocka_unit_test(captures_leave_room),
		cmocka_unit_test(queue_closed),
		cmocka_unit_test(storage_closed),
		cmocka_unit_test(storage_closed_meanwhile),
		cmocka_unit_test(device_closed),
		cmocka_unit_test(process_forks),
		cmocka_unit_test(cancel_has_no_effect),
		cmocka_unit_test(error_in_one_replay),
		cmocka_unit_test(overlapping_replays),
		cmocka_unit_test(refused_nodes),
		cmocka_unit_test(invalid_captures_are_refused),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, graph_setup, graph_teardown);
}
