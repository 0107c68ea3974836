/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the bytes of stream-ordered requests. The requests are contiguous, pitched or scattered, at
 * unaligned offsets, and beyond the end of the file. They are so long that each uses its stage
 * (pinned memory) several times. Each request is made in several ways. In the first way, the copies
 * are queued at submit. In other ways, a GPU kernel copies: because the stream is busy, or because
 * the length and the offsets are late values, which the kernel reads when it runs. Reads are also
 * made with the flag PENSTOCK_R_EARLY. The bytes around each buffer must not change. With
 * PENSTOCK_STANDIN=0 the test runs against the machine's own driver.
 */
#include "streams.h"

#include <errno.h>
#include <stdbool.h>

#define LONG_LEN (40u << 20)
#define MEM_LEN (48u << 20)
#define GUARD 0x77
#define SEGS 40

enum way { QUEUED, BUSY, EARLY, EARLY_BUSY, LATE, WAYS };

static struct pst_cu_stream *stream;
static struct penstock_queue *queue;
static struct penstock_storage *file; /* a file that contains the LONG_LEN bytes of `want` */
static struct penstock_storage *out;  /* a file to write */
static char out_name[300];
static unsigned char *want, *back;
static char *mem;
static uint64_t *gate, gate_turn;

static unsigned random_to(unsigned limit)
{
	static uint64_t state = 20261122;

	state = state * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(state >> 33) % limit;
}

static int stage_setup(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_queue_opts queue_opts = PENSTOCK_QUEUE_OPTS_INIT;
	char name[300];
	void *ptr;
	int fd;

	if (setup(state))
		return -1;
	snprintf(name, sizeof(name), "%s-long", path);
	snprintf(out_name, sizeof(out_name), "%s-out", path);
	want = malloc(LONG_LEN);
	back = malloc(MEM_LEN);
	for (size_t i = 0; i < LONG_LEN; i++)
		want[i] = (unsigned char)((i * 2654435761u >> 11) ^ i >> 20);
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	for (size_t at = 0; at < LONG_LEN; at += 1u << 20)
		if (fd < 0 || write(fd, want + at, 1u << 20) != 1 << 20)
			return -1;
	close(fd);
	fd = open(out_name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || ftruncate(fd, LONG_LEN))
		return -1;
	close(fd);
	opts.flags = PENSTOCK_O_WRITE;
	queue_opts.segs_max = SEGS;
	if (penstock_open(name, NULL, &file) || penstock_open(out_name, &opts, &out) ||
	    unlink(name) || penstock_queue_open(&queue_opts, &queue) ||
	    penstock_alloc(gpu, MEM_LEN, &ptr) ||
	    api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0) ||
	    api->cuMemHostAlloc((void **)&gate, 4096, 2))
		return -1;
	mem = ptr;
	*gate = 0;
	return 0;
}

static int stage_teardown(void **state)
{
	penstock_queue_close(queue);
	penstock_close(file);
	penstock_close(out);
	penstock_free(gpu, mem);
	api->cuStreamDestroy(stream);
	api->cuMemFreeHost(gate);
	unlink(out_name);
	free(want);
	free(back);
	return teardown(state);
}

/* Submits a request and returns its result. `way` selects how the bytes are copied. The comment at
 * the top of the file lists the ways. */
static int64_t run(struct penstock_req *req, enum way way)
{
	uint64_t row_len = req->segs[0].row_len, off = req->segs[0].off,
		 buf_off = req->segs[0].buf_off;
	struct penstock_seg segs[SEGS];
	struct penstock_late late = {.size = sizeof(late)};
	struct penstock_done done;
	int64_t result = -1;

	memcpy(segs, req->segs, req->seg_count * sizeof(segs[0]));
	req->segs = segs;
	req->stream = stream;
	late.result = &result;
	if (way == LATE) {
		late.row_len = &row_len;
		late.off = &off;
		late.buf_off = &buf_off;
		segs[0].off = segs[0].buf_off = 0;
	}
	req->late = &late;
	if (req->op == PENSTOCK_READ && (way == EARLY || way == EARLY_BUSY))
		req->flags |= PENSTOCK_R_EARLY;
	if (way == BUSY || way == EARLY_BUSY)
		assert_int_equal(api->cuStreamWaitValue64(stream, (uintptr_t)gate, ++gate_turn,
							  PST_CU_WAIT_GEQ),
				 PST_CU_OK);
	if (penstock_submit(queue, req, 1, NULL) != 1)
		fail_msg("submit: %s", penstock_errmsg());
	__atomic_store_n(gate, gate_turn, __ATOMIC_RELEASE);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
	assert_int_equal(penstock_wait(queue, &done, 1, 1, 60000000000), 1);
	if (done.result != result)
		fail_msg("the stream got result %lld, the completion has %lld", (long long)result,
			 (long long)done.result);
	if (done.result < 0)
		print_message("# %s\n", done.report->text);
	return done.result;
}

static void mem_fill(int byte, size_t len)
{
	assert_int_equal(api->cuMemsetD8Async((uintptr_t)mem, (unsigned char)byte, len, stream),
			 PST_CU_OK);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
}

static void mem_fetch(size_t len)
{
	assert_int_equal(api->cuMemcpyDtoHAsync(back, (uintptr_t)mem, len, stream), PST_CU_OK);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
}

/* Checks `len` bytes of `back` from index `at` on against the file's bytes from `off` on. The
 * byte before and the byte after them must be guards. */
static void check_row(uint64_t at, uint64_t off, uint64_t len, const char *what, enum way way)
{
	for (uint64_t i = 0; i < len; i++)
		if (back[at + i] != want[off + i])
			fail_msg("%s, way %d: byte %llu of %llu at offset %llu is wrong", what,
				 (int)way, (unsigned long long)i, (unsigned long long)len,
				 (unsigned long long)off);
	assert_int_equal(back[at + len], GUARD);
	if (at)
		assert_int_equal(back[at - 1], GUARD);
}

static struct penstock_req request_of(struct penstock_seg *segs, unsigned count)
{
	struct penstock_req req = request(segs, NULL);

	req.storage = file;
	req.seg_count = count;
	return req;
}

/* Number of calls of pread that this thread has made. */
static _Thread_local unsigned own_reads;

ssize_t __real_pread64(int fd, void *buf, size_t len, off_t off);
ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t off);

ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t off)
{
	own_reads++;
	return __real_pread64(fd, buf, len, off);
}

static void contiguous_reads(void **state)
{
	static const uint64_t lens[] = {1,	 2,	  4095,	   4096,     4097,
					24576,	 24577,	  300000,  1048576,  1048577,
					4000000, 4194304, 9000001, 16777216, 33554433};

	(void)state;
	for (unsigned i = 0; i < 4 * sizeof(lens) / sizeof(lens[0]); i++) {
		uint64_t len = lens[i / 4];
		uint64_t off = i % 4 == 0 ? 0 : i % 4 == 1 ? 4096 : random_to(5000000);
		struct penstock_seg seg = {.buf = mem,
					   .buf_off = i % 4 < 2 ? 4096 : 1 + random_to(9999),
					   .dev = gpu,
					   .off = off,
					   .row_len = len};

		for (unsigned way = 0; way < WAYS; way++) {
			struct penstock_req req = request_of(&seg, 1);

			mem_fill(GUARD, len + 20000);
			assert_int_equal(run(&req, (enum way)way), len);
			mem_fetch(len + 20000);
			check_row(seg.buf_off, off, len, "contiguous", (enum way)way);
		}
	}
}

static void scattered_and_pitched_reads(void **state)
{
	(void)state;
	for (unsigned turn = 0; turn < 30; turn++) {
		struct penstock_seg segs[SEGS];
		unsigned count = 1 + random_to(SEGS);
		uint64_t at = 64, sum = 0;

		for (unsigned i = 0; i < count; i++) {
			uint64_t rows = random_to(3) ? 1 : 2 + random_to(5);
			uint64_t row_len = 1 + random_to(turn % 3 ? 5000 : 60000);
			uint64_t gap = random_to(2) ? random_to(300) : 5000 + random_to(70000);

			segs[i] = (struct penstock_seg){.buf = mem,
							.buf_off = at,
							.dev = gpu,
							.off = random_to(LONG_LEN / 2),
							.row_len = row_len,
							.rows = rows,
							.pitch = row_len + gap,
							.buf_pitch = row_len + 3};
			at += rows * (row_len + 3) + random_to(100) + 1;
			sum += rows * row_len;
		}
		for (unsigned way = 0; way < WAYS; way++) {
			struct penstock_req req = request_of(segs, count);

			mem_fill(GUARD, at + 64);
			assert_int_equal(run(&req, (enum way)way), sum);
			mem_fetch(at + 64);
			for (unsigned i = 0; i < count; i++)
				for (unsigned row = 0; row < segs[i].rows; row++)
					check_row(segs[i].buf_off + row * segs[i].buf_pitch,
						  segs[i].off + row * segs[i].pitch,
						  segs[i].row_len, "scattered", (enum way)way);
		}
	}
}

/* A read of more than 128 MiB has longer pieces than others, because a request has at most 128
 * rounds. Each MiB of the file begins with its number, and the other bytes are zeros. */
static void very_long_read(void **state)
{
	const uint64_t count = 131, len = count << 20;
	struct penstock_seg seg = {.dev = gpu, .row_len = len};
	struct penstock_storage *numbers;
	uint64_t number = 0;
	char name[300];
	int fd;

	(void)state;
	snprintf(name, sizeof(name), "%s-numbers", path);
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	assert_int_equal(ftruncate(fd, (off_t)len), 0);
	for (uint64_t i = 1; i <= count; i++)
		assert_int_equal(pwrite(fd, &i, sizeof(i), (off_t)((i - 1) << 20)), sizeof(i));
	assert_int_equal(penstock_open(name, NULL, &numbers), 0);
	assert_int_equal(penstock_alloc(gpu, len, &seg.buf), 0);
	for (unsigned way = QUEUED; way <= BUSY; way++) {
		struct penstock_req req = request_of(&seg, 1);

		req.storage = numbers;
		assert_int_equal(api->cuMemsetD8Async((uintptr_t)seg.buf, GUARD, len, stream),
				 PST_CU_OK);
		assert_int_equal(run(&req, (enum way)way), len);
		for (uint64_t at = 0; at < len; at += 32768) {
			api->cuMemcpyDtoHAsync(&number, (uintptr_t)seg.buf + at, sizeof(number),
					       stream);
			api->cuStreamSynchronize(stream);
			assert_int_equal(number, at % (1u << 20) ? 0 : (at >> 20) + 1);
		}
	}
	penstock_free(gpu, seg.buf);
	penstock_close(numbers);
	close(fd);
	unlink(name);
}

/* If a read goes past the end of the file, the rest of the buffer must stay unchanged. */
static void reads_beyond_the_end(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 12; i++) {
		uint64_t have = i % 4 ? 1 + random_to(i < 6 ? 9000 : 3000000) : 0;
		uint64_t len = have + 1 + random_to(i < 6 ? 9000 : 3000000);
		struct penstock_seg seg = {.buf = mem,
					   .buf_off = 4096,
					   .dev = gpu,
					   .off = LONG_LEN - have,
					   .row_len = len};

		for (unsigned way = 0; way < WAYS; way++) {
			struct penstock_req req = request_of(&seg, 1);

			mem_fill(GUARD, len + 8192);
			assert_int_equal(run(&req, (enum way)way), have);
			mem_fetch(len + 8192);
			check_row(seg.buf_off, seg.off, have, "beyond the end", (enum way)way);
			for (uint64_t k = have; k < len; k++)
				assert_int_equal(back[4096 + k], GUARD);
		}
	}
}

/* Writes from one segment or from several segments must reach the file unchanged. */
static void writes(void **state)
{
	int fd = open(out_name, O_RDONLY);

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(penstock_read(file, gpu, mem, LONG_LEN, 0), LONG_LEN);
	for (unsigned turn = 0; turn < 12; turn++) {
		struct penstock_seg segs[SEGS];
		unsigned count = turn % 3 ? 1 : 1 + random_to(SEGS);
		uint64_t off = random_to(10000), from = off;

		for (unsigned i = 0; i < count; i++) {
			uint64_t len = count > 1 ? 1 + random_to(40000)
						 : 1 + random_to(turn % 2 ? 100000 : 20000000);

			segs[i] = (struct penstock_seg){.buf = mem,
							.buf_off = random_to(5000000),
							.dev = gpu,
							.off = off,
							.row_len = len};
			off += len;
		}
		for (unsigned way = 0; way < WAYS; way++) {
			struct penstock_req req = request_of(segs, count);

			req.storage = out;
			req.op = PENSTOCK_WRITE;
			assert_int_equal(ftruncate(open(out_name, O_RDWR), 0), 0);
			assert_int_equal(run(&req, (enum way)way), off - from);
			for (unsigned i = 0; i < count; i++) {
				assert_int_equal(
					pread(fd, back, segs[i].row_len, (off_t)segs[i].off),
					segs[i].row_len);
				assert_memory_equal(back, want + segs[i].buf_off, segs[i].row_len);
			}
		}
	}
	close(fd);
}

/* A request that needs more pinned memory than is free is refused until earlier requests complete.
 * The requests are on several streams, because one stream may have only 320 operations in flight,
 * and each request needs 13. */
static void too_many_requests(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = 4u << 20};
	struct penstock_req req = request_of(&seg, 1);
	struct pst_cu_stream *streams[8];
	struct penstock_done done;
	unsigned inflight = 0;
	int ret = 1;

	(void)state;
	gate_turn++;
	for (unsigned i = 0; i < 8; i++) {
		assert_int_equal(
			api->cuStreamCreateWithPriority(&streams[i], PST_CU_STREAM_NON_BLOCKING, 0),
			PST_CU_OK);
		assert_int_equal(api->cuStreamWaitValue64(streams[i], (uintptr_t)gate, gate_turn,
							  PST_CU_WAIT_GEQ),
				 PST_CU_OK);
	}
	while (inflight < 200 && ret == 1) {
		req.stream = streams[inflight % 8];
		seg.buf_off = inflight % 8 * seg.row_len; /* each stream fills its own part */
		ret = penstock_submit(queue, &req, 1, NULL);
		inflight += ret == 1;
	}
	assert_int_equal(ret, -EAGAIN);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_FULL);
	assert_true(inflight >= 64);
	__atomic_store_n(gate, gate_turn, __ATOMIC_RELEASE);
	for (unsigned i = 0; i < inflight; i++) {
		assert_int_equal(penstock_wait(queue, &done, 1, 1, 60000000000), 1);
		assert_int_equal(done.result, seg.row_len);
	}
	assert_int_equal(penstock_submit(queue, &req, 1, NULL), 1);
	assert_int_equal(penstock_wait(queue, &done, 1, 1, 60000000000), 1);
	assert_int_equal(done.result, seg.row_len);
	for (unsigned i = 0; i < 8; i++) {
		assert_int_equal(api->cuStreamSynchronize(streams[i]), PST_CU_OK);
		api->cuStreamDestroy(streams[i]);
	}
}

/* Submits a read with flag PENSTOCK_R_EARLY to a stream that waits for the word *gate in memory,
 * and waits until the library has stored the result. */
static void submit_early(struct penstock_req *req, int64_t *result, uint64_t *id)
{
	uint64_t until = test_now_ns() + 20000000000u;

	__atomic_store_n(result, -7, __ATOMIC_RELEASE);
	assert_int_equal(
		api->cuStreamWaitValue64(stream, (uintptr_t)gate, ++gate_turn, PST_CU_WAIT_GEQ),
		PST_CU_OK);
	if (penstock_submit(queue, req, 1, id) != 1)
		fail_msg("submit: %s", penstock_errmsg());
	while (__atomic_load_n(result, __ATOMIC_ACQUIRE) == -7) {
		if (test_now_ns() > until) {
			__atomic_store_n(gate, gate_turn, __ATOMIC_RELEASE);
			fail_msg("the storage was not read before the stream reached the read");
		}
		usleep(100);
	}
	assert_int_equal(*result, req->segs[0].row_len);
}

/* The library reads the bytes before the stream reaches the request, so a later change of the file
 * has no effect. The buffer changes only when the stream reaches the request. */
static void early_read_does_not_wait_for_the_stream(uint64_t off, uint64_t len)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .off = off, .row_len = len};
	struct penstock_req req = request(&seg, stream);
	int64_t result;
	struct penstock_late late = {.size = sizeof(late), .result = &result};
	struct pst_cu_stream *other;
	struct penstock_storage *changes;
	struct penstock_done done;
	char name[300];
	int fd;

	snprintf(name, sizeof(name), "%s-changes", path);
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	assert_int_equal(pwrite(fd, want, len, (off_t)off), len);
	assert_int_equal(penstock_open(name, NULL, &changes), 0);
	assert_int_equal(api->cuStreamCreateWithPriority(&other, PST_CU_STREAM_NON_BLOCKING, 0),
			 PST_CU_OK);
	req.storage = changes;
	req.flags = PENSTOCK_R_EARLY;
	req.late = &late;
	mem_fill(GUARD, seg.row_len);
	submit_early(&req, &result, NULL);
	assert_int_equal(pwrite(fd, want + len, len, (off_t)off), len);
	assert_int_equal(penstock_wait(queue, &done, 1, 1, 0), 0);
	assert_int_equal(api->cuMemcpyDtoHAsync(back, (uintptr_t)mem, seg.row_len, other),
			 PST_CU_OK);
	assert_int_equal(api->cuStreamSynchronize(other), PST_CU_OK);
	for (size_t i = 0; i < seg.row_len; i++)
		assert_int_equal(back[i], GUARD);
	__atomic_store_n(gate, gate_turn, __ATOMIC_RELEASE);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
	assert_int_equal(penstock_wait(queue, &done, 1, 1, 60000000000), 1);
	assert_int_equal(done.result, seg.row_len);
	mem_fetch(seg.row_len);
	assert_memory_equal(back, want, seg.row_len);
	api->cuStreamDestroy(other);
	penstock_close(changes);
	close(fd);
	unlink(name);
}

static void early_reads_do_not_wait_for_the_stream(void **state)
{
	(void)state;
	early_read_does_not_wait_for_the_stream(0, 16u << 20);
	early_read_does_not_wait_for_the_stream(777, 16u << 20);
	early_read_does_not_wait_for_the_stream(777, 8u << 20);
	early_read_does_not_wait_for_the_stream(0, 4u << 20);
	early_read_does_not_wait_for_the_stream(0, 5000);
}

static unsigned long calls_of(const char *symbol)
{
	unsigned long (*calls)(const char *);

	*(void **)&calls = test_standin_symbol("pst_standin_calls");
	return calls ? calls(symbol) : 0;
}

/* Makes short reads of cached bytes, and checks their bytes. The submitting thread shall read the
 * bytes of reads of up to `filled` bytes. Then it queues only two operations on the stream: the
 * copy, and the store of a word. An early read of up to 16 KiB does not query the stream. The
 * number of driver calls is known only with the stand-in. */
static void short_reads(void *on, unsigned flags, uint64_t filled)
{
	static const char *const symbols[] = {"cuMemcpyHtoDAsync_v2", "cuStreamWriteValue64_v2",
					      "cuStreamBatchMemOp_v2", "cuMemsetD8Async"};
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .off = 777, .row_len = 4096};
	struct penstock_req req = request(&seg, on);
	const bool known = calls_of("cuStreamWriteValue64_v2") > 0;
	struct penstock_done done;

	req.storage = file;
	req.flags = flags;
	for (seg.row_len = 1; seg.row_len <= 64u << 10; seg.row_len = seg.row_len * 3 + 1) {
		const unsigned long expected[] = {1, 1, seg.row_len > filled, 0};
		unsigned long before[4], after[4], queries;

		mem_fill(GUARD, seg.row_len + 1);
		for (unsigned i = 0; i < 4; i++)
			before[i] = calls_of(symbols[i]);
		queries = calls_of("cuStreamQuery");
		assert_int_equal(penstock_submit(queue, &req, 1, NULL), 1);
		if (flags & PENSTOCK_R_EARLY && seg.row_len <= 16u << 10)
			assert_int_equal(calls_of("cuStreamQuery"), queries);
		for (unsigned i = 0; i < 4; i++)
			after[i] = calls_of(symbols[i]);
		assert_int_equal(penstock_wait(queue, &done, 1, 1, 60000000000), 1);
		assert_int_equal(done.result, seg.row_len);
		assert_string_equal(done.report->path, "bounce");
		assert_int_equal(done.report->cpu_copied, seg.row_len);
		for (unsigned i = 0; i < 4 && known; i++)
			assert_int_equal(after[i] - before[i], expected[i]);
		mem_fetch(seg.row_len + 1);
		assert_memory_equal(back, want + seg.off, seg.row_len);
		assert_int_equal(back[seg.row_len], GUARD);
	}
}

/* The submitting thread reads the bytes of a short read if the read may start at once: because it
 * is early, or because its stream is idle. An idle blocking stream may have to wait for the default
 * stream, so its reads are left to the library's threads. */
static void short_reads_start_at_submit(void **state)
{
	struct pst_cu_stream *blocking;

	(void)state;
	assert_int_equal(api->cuStreamCreateWithPriority(&blocking, PST_CU_STREAM_DEFAULT, 0),
			 PST_CU_OK);
	short_reads(stream, PENSTOCK_R_EARLY, 64u << 10);
	short_reads(stream, 0, 64u << 10);
	short_reads(blocking, PENSTOCK_R_EARLY, 64u << 10);
	short_reads(blocking, 0, 0);
	api->cuStreamDestroy(blocking);
}

/* While another request is in flight, early reads of more than 16 KiB are left to the library's
 * threads. The first read is alone. */
static void bursts_are_left_to_lanes(void **state)
{
	enum { READS = 6 };
	static const uint64_t lens[READS] = {20000, 1, 4096, 16384, 16385, 20000};
	unsigned own[READS];
	struct penstock_done done[READS];
	struct penstock_seg segs[READS];
	uint64_t at = 0;
	unsigned taken = 0;

	(void)state;
	mem_fill(GUARD, LONG_LEN);
	assert_int_equal(
		api->cuStreamWaitValue64(stream, (uintptr_t)gate, ++gate_turn, PST_CU_WAIT_GEQ),
		PST_CU_OK);
	for (unsigned i = 0; i < READS; i++) {
		struct penstock_req req = request_of(&segs[i], 1);

		segs[i] = (struct penstock_seg){.buf = mem + at, .dev = gpu, .off = at,
						.row_len = lens[i]};
		at += lens[i] + GUARD;
		req.stream = stream;
		req.flags = PENSTOCK_R_EARLY;
		own_reads = 0;
		taken += penstock_submit(queue, &req, 1, NULL) == 1;
		own[i] = own_reads;
	}
	/* Lets the stream continue before the checks, so that a failed check leaves no waiting
	 * stream. */
	__atomic_store_n(gate, gate_turn, __ATOMIC_RELEASE);
	assert_int_equal(taken, READS);
	for (unsigned i = 0; i < READS; i++) {
		assert_int_equal(own[i], !i || lens[i] <= 16384);
		assert_int_equal(penstock_wait(queue, &done[i], 1, 1, 60000000000), 1);
		assert_true(done[i].result > 0);
	}
	mem_fetch(at);
	for (unsigned i = 0; i < READS; i++) {
		assert_memory_equal(back + segs[i].off, want + segs[i].off, lens[i]);
		assert_int_equal(back[segs[i].off + lens[i]], GUARD);
	}
}

/* A cancelled early read (flag PENSTOCK_R_EARLY) completes although its stream does not reach it.
 * Its result is an error, because its bytes are not in the buffer. */
static void early_reads_can_be_cancelled(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu};
	struct penstock_req req = request_of(&seg, 1);
	int64_t result;
	struct penstock_late late = {.size = sizeof(late), .result = &result};
	struct penstock_done done;
	uint64_t id;

	(void)state;
	req.stream = stream;
	req.flags = PENSTOCK_R_EARLY;
	req.late = &late;
	for (unsigned i = 0; i < 30; i++) {
		int n;

		seg.row_len = i % 2 ? 1u << 20 : 5000;
		submit_early(&req, &result, &id);
		assert_int_equal(penstock_cancel(queue, id), 0);
		n = penstock_wait(queue, &done, 1, 1, 20000000000);
		/* Lets the stream continue before the checks, so that a failed check leaves no
		 * waiting stream. */
		__atomic_store_n(gate, gate_turn, __ATOMIC_RELEASE);
		assert_int_equal(n, 1);
		assert_int_equal(done.result, -ECANCELED);
		assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
	}
}

/* An early read beyond the file's end, which a kernel copies. Its last operation on the stream, a
 * store, fails. Then the library must store a word on the stream, behind the kernel, before it may
 * use the stage again. On some tries, a lane has read the bytes before the operations are queued,
 * so that the kernel is the first operation. */
static void early_kernels_are_retracted(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .off = LONG_LEN - 100, .row_len = 4096};
	struct penstock_req req = request_of(&seg, 1);
	unsigned first = 0;

	(void)state;
	driver_fail(NULL);
	req.stream = stream;
	req.flags = PENSTOCK_R_EARLY;
	for (unsigned i = 0; i < 300; i++) {
		unsigned long waits, kernels, stores;
		int ret;

		assert_int_equal(api->cuStreamWaitValue64(stream, (uintptr_t)gate, ++gate_turn,
							  PST_CU_WAIT_GEQ),
				 PST_CU_OK);
		waits = calls_of("cuStreamWaitValue64_v2");
		kernels = calls_of("cuLaunchKernel");
		stores = calls_of("cuStreamWriteValue64_v2");
		driver_fail("cuStreamWriteValue64_v2:1:999");
		ret = penstock_submit(queue, &req, 1, NULL);
		driver_fail(NULL);
		waits = calls_of("cuStreamWaitValue64_v2") - waits;
		kernels = calls_of("cuLaunchKernel") - kernels;
		stores = calls_of("cuStreamWriteValue64_v2") - stores;
		__atomic_store_n(gate, gate_turn, __ATOMIC_RELEASE);
		assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
		assert_true(ret < 0);
		assert_int_equal(kernels, 1);
		assert_int_equal(stores, 2);
		first += !waits;
	}
	print_message("# the kernel was the first operation of %u reads\n", first);
}

static void refused_requests(void **state)
{
	struct penstock_seg segs[2] = {{.buf = mem, .dev = gpu, .row_len = 4096}};
	struct penstock_device *host;
	struct penstock_req req = request_of(segs, 1);
	uint64_t row_len = 1;
	struct penstock_late late = {.size = sizeof(late), .row_len = &row_len};

	(void)state;
	req.stream = stream;
	req.require = PENSTOCK_DIRECT;
	assert_int_equal(penstock_submit(queue, &req, 1, NULL), -EOPNOTSUPP);
	req.require = PENSTOCK_ANY;
	req.path = "mapped";
	assert_int_equal(penstock_submit(queue, &req, 1, NULL), -EOPNOTSUPP);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_STREAM_ORDER);
	req.path = NULL;
	segs[0].row_len = ((uint64_t)1 << 30) + 1;
	assert_int_equal(penstock_submit(queue, &req, 1, NULL), -E2BIG);
	segs[0] = (struct penstock_seg){.buf = mem, .dev = gpu, .row_len = 1, .rows = 200000};
	segs[0].pitch = segs[0].buf_pitch = 2;
	req.late = &late;
	assert_int_equal(penstock_submit(queue, &req, 1, NULL), -E2BIG);
	segs[0] = (struct penstock_seg){.buf = mem, .dev = gpu, .row_len = 4096};
	req.flags = PENSTOCK_R_EARLY;
	assert_int_equal(penstock_submit(queue, &req, 1, NULL), -EINVAL);
	req.late = NULL;
	req.stream = NULL;
	assert_int_equal(penstock_submit(queue, &req, 1, NULL), -EINVAL);
	req.stream = stream;
	req.op = PENSTOCK_WRITE;
	assert_int_equal(penstock_submit(queue, &req, 1, NULL), -EINVAL);
	req.op = PENSTOCK_READ;
	req.flags = 0;
	assert_true(penstock_device_open("host", NULL, &host) >= 0);
	segs[1] = (struct penstock_seg){.buf = back, .dev = host, .off = 4096, .row_len = 4096};
	req.seg_count = 2;
	assert_int_equal(penstock_submit(queue, &req, 1, NULL), -EOPNOTSUPP);
	assert_non_null(strstr(penstock_errmsg(), "several devices"));
	penstock_device_close(host);
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
}

/* A file becomes shorter after the submit. The read must have a short result, and no byte of
 * another request may reach the buffer. */
static void file_shrinks_after_submit(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = 3u << 20};
	struct penstock_req req = request(&seg, stream);
	char name[300];
	struct penstock_storage *shrinks;
	struct penstock_done done;

	(void)state;
	snprintf(name, sizeof(name), "%s-shrinks", path);
	for (unsigned way = QUEUED; way <= BUSY; way++) {
		int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);

		assert_int_equal(write(fd, want, seg.row_len), seg.row_len);
		assert_int_equal(penstock_open(name, NULL, &shrinks), 0);
		req.storage = shrinks;
		mem_fill(0, seg.row_len);
		if (way == BUSY)
			assert_int_equal(api->cuStreamWaitValue64(stream, (uintptr_t)gate,
								  ++gate_turn, PST_CU_WAIT_GEQ),
					 PST_CU_OK);
		else
			assert_int_equal(ftruncate(fd, 1u << 20), 0);
		assert_int_equal(penstock_submit(queue, &req, 1, NULL), 1);
		assert_int_equal(ftruncate(fd, 1u << 20), 0);
		__atomic_store_n(gate, gate_turn, __ATOMIC_RELEASE);
		assert_int_equal(penstock_wait(queue, &done, 1, 1, 60000000000), 1);
		assert_int_equal(done.result, 1 << 20);
		assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
		mem_fetch(seg.row_len);
		assert_memory_equal(back, want, 1 << 20);
		for (size_t i = 1u << 20; i < seg.row_len; i++)
			assert_int_equal(back[i], 0);
		penstock_close(shrinks);
		close(fd);
	}
	unlink(name);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(contiguous_reads),
		cmocka_unit_test(scattered_and_pitched_reads),
		cmocka_unit_test(very_long_read),
		cmocka_unit_test(reads_beyond_the_end),
		cmocka_unit_test(writes),
		cmocka_unit_test(too_many_requests),
		cmocka_unit_test(early_reads_do_not_wait_for_the_stream),
		cmocka_unit_test(short_reads_start_at_submit),
		cmocka_unit_test(bursts_are_left_to_lanes),
		cmocka_unit_test(early_reads_can_be_cancelled),
		cmocka_unit_test(early_kernels_are_retracted),
		cmocka_unit_test(refused_requests),
		cmocka_unit_test(file_shrinks_after_submit),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, stage_setup, stage_teardown);
}
