/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests stream-ordered requests during driver calls that wait until a device is idle. Eight threads
 * read and write: by single calls, by a queue, in stream order, with fixed and with late values.
 * Meanwhile other threads make the driver calls of disturb.h. Many of these calls hold the driver's
 * lock until every stream is idle. So while a stream waits for a request, no thread of the library
 * may need the driver to carry out this request. The test must end, and all bytes and results must
 * be right.
 *
 * PENSTOCK_STORM_SECONDS sets the duration. With PENSTOCK_STANDIN=0 the test runs against the
 * machine's own driver.
 */
#include "streams.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#include "disturb.h"

#define MOVERS 8
#define LEN (1u << 20)
#define LIMIT_S 100 /* the test fails if it takes this many seconds longer than its duration */

static _Atomic bool stop;
static _Atomic unsigned long moved[4];

/* State of one thread that moves bytes. */
struct mover {
	unsigned index;
	struct penstock_queue *q;
	struct penstock_storage *own; /* file that only this thread writes */
	struct pst_cu_stream *stream;
	char *mem;
	unsigned char *back;
	uint64_t random;
	char wrong[400]; /* first wrong result */
};

static uint64_t next(struct mover *m)
{
	m->random = m->random * 6364136223846793005u + 1442695040888963407u;
	return m->random >> 33;
}

#define WRONG(m, ...)                                                          \
	do {                                                                   \
		if (!(m)->wrong[0])                                            \
			snprintf((m)->wrong, sizeof((m)->wrong), __VA_ARGS__); \
	} while (0)

/* Copies `len` bytes out of the thread's device memory with the driver, in stream order. */
static bool fetch(struct mover *m, size_t len)
{
	return !api->cuMemcpyDtoHAsync(m->back, (uintptr_t)m->mem, len, m->stream) &&
	       !api->cuStreamSynchronize(m->stream);
}

static void check(struct mover *m, uint64_t off, size_t len, const char *what)
{
	if (!fetch(m, len))
		WRONG(m, "%s: the driver failed", what);
	else if (memcmp(m->back, bytes + off, len))
		WRONG(m, "%s of %zu bytes at %llu: wrong bytes", what, len,
		      (unsigned long long)off);
}

static void read_now(struct mover *m, uint64_t off, size_t len)
{
	int64_t got = penstock_read(st, gpu, m->mem, len, off);

	if (got != (int64_t)len)
		WRONG(m, "read of %zu bytes: %lld (%s)", len, (long long)got, penstock_errmsg());
	else
		check(m, off, len, "read");
	moved[0]++;
}

static void read_by_queue(struct mover *m, uint64_t off, size_t len)
{
	struct penstock_seg segs[4] = {{0}};
	struct penstock_req reqs[4];
	struct penstock_done done[4];
	unsigned left = 0;
	int n;

	for (unsigned i = 0; i < 4; i++) {
		segs[i] = (struct penstock_seg){.buf = m->mem,
						.buf_off = i * (len / 4),
						.dev = gpu,
						.off = off + i * (len / 4),
						.row_len = len / 4};
		reqs[i] = request(&segs[i], NULL);
	}
	n = penstock_submit(m->q, reqs, 4, NULL);
	if (n != 4)
		WRONG(m, "submit: %d (%s)", n, penstock_errmsg());
	for (left = n > 0 ? (unsigned)n : 0; left; left -= (unsigned)n) {
		n = penstock_wait(m->q, done, 1, 4, -1);
		for (int i = 0; i < n; i++)
			if (done[i].result != (int64_t)(len / 4))
				WRONG(m, "queue: %lld (%s)", (long long)done[i].result,
				      done[i].report->text);
	}
	check(m, off, len / 4 * 4, "read by a queue");
	moved[1]++;
}

/* Submits one request in stream order, and waits for its stream. */
static void in_stream(struct mover *m, struct penstock_req *req, struct penstock_late *late,
		      size_t len, const char *what)
{
	struct penstock_done done;
	int64_t result = -1;
	int ret;

	late->size = sizeof(*late);
	late->result = &result;
	req->late = late;
	req->stream = m->stream;
	ret = penstock_submit(m->q, req, 1, NULL);
	if (ret != 1) {
		WRONG(m, "%s: submit: %d (%s)", what, ret, penstock_errmsg());
		return;
	}
	if (api->cuStreamSynchronize(m->stream))
		WRONG(m, "%s: the stream failed", what);
	if (result != (int64_t)len)
		WRONG(m, "%s of %zu bytes: result %lld", what, len, (long long)result);
	if (penstock_wait(m->q, &done, 1, 1, -1) != 1 || done.result != (int64_t)len)
		WRONG(m, "%s: completion", what);
}

static void read_in_stream(struct mover *m, uint64_t off, size_t len, bool late_values)
{
	struct penstock_seg seg = {.buf = m->mem, .dev = gpu, .off = off, .row_len = len};
	struct penstock_req req = request(&seg, NULL);
	uint64_t late_len = len, late_off = off, buf_off = 0;
	struct penstock_late late = {0};

	if (late_values) {
		seg.row_len = LEN;
		seg.off = 0;
		late.row_len = &late_len;
		late.off = &late_off;
		late.buf_off = &buf_off;
	} else if (len & 1) {
		req.flags = PENSTOCK_R_EARLY;
	}
	api->cuMemsetD8Async((uintptr_t)m->mem, 0x5a, LEN, m->stream);
	in_stream(m, &req, &late, len, late_values ? "late stream read" : "stream read");
	check(m, off, len, late_values ? "late stream read" : "stream read");
	moved[2]++;
}

static void write_in_stream(struct mover *m, uint64_t off, size_t len)
{
	struct penstock_seg seg = {.buf = m->mem, .dev = gpu, .off = off % 5000, .row_len = len};
	struct penstock_req req = request(&seg, NULL);
	struct penstock_late late = {0};

	if (penstock_read(st, gpu, m->mem, len, off) != (int64_t)len)
		WRONG(m, "read before a write: %s", penstock_errmsg());
	req.storage = m->own;
	req.op = PENSTOCK_WRITE;
	in_stream(m, &req, &late, len, "stream write");
	api->cuMemsetD8Async((uintptr_t)m->mem, 0x5a, LEN, m->stream);
	api->cuStreamSynchronize(m->stream);
	if (penstock_read(m->own, gpu, m->mem, len, off % 5000) != (int64_t)len)
		WRONG(m, "read after a write: %s", penstock_errmsg());
	check(m, off, len, "bytes after a stream write");
	moved[3]++;
}

static void *move(void *arg)
{
	struct mover *m = arg;

	api->cuCtxSetCurrent(ctx);
	for (unsigned turn = m->index; !stop && !m->wrong[0]; turn++) {
		size_t len = turn % 3 ? 4 + next(m) % 65536 : 4 + next(m) % (LEN - 4);
		uint64_t off = next(m) % (FILE_LEN - len);

		switch (turn % 5) {
		case 0:
			read_now(m, off, len);
			break;
		case 1:
			read_by_queue(m, off, len);
			break;
		case 2:
			write_in_stream(m, off, len);
			break;
		default:
			read_in_stream(m, off, len, turn % 5 == 3);
		}
	}
	return NULL;
}

static void mover_open(struct mover *m, unsigned index)
{
	char name[sizeof(path) + 16];
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	void *mem;
	int fd;

	*m = (struct mover){.index = index, .random = index * 77 + 1};
	snprintf(name, sizeof(name), "%s-%u", path, index);
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	assert_true(fd >= 0 && !ftruncate(fd, 2 * LEN) && !close(fd));
	opts.flags = PENSTOCK_O_WRITE;
	assert_int_equal(penstock_open(name, &opts, &m->own), 0);
	unlink(name);
	assert_int_equal(penstock_queue_open(NULL, &m->q), 0);
	assert_int_equal(penstock_alloc(gpu, LEN, &mem), 0);
	m->mem = mem;
	m->back = malloc(LEN);
	assert_int_equal(api->cuStreamCreateWithPriority(&m->stream, PST_CU_STREAM_NON_BLOCKING, 0),
			 PST_CU_OK);
}

static void mover_close(struct mover *m)
{
	penstock_queue_close(m->q);
	penstock_close(m->own);
	penstock_free(gpu, m->mem);
	api->cuStreamDestroy(m->stream);
	free(m->back);
}

/* Returns whether threads have made transfers and driver calls of every kind. A busy machine may
 * take longer for them than the duration of the test. */
static bool all_have_moved(void)
{
	bool all = true;

	for (unsigned i = 0; i < 4; i++)
		all &= moved[i] > MOVERS;
	return all && disturb_has_begun();
}

static void everything_ends_beside_waiting_driver_calls(void **state)
{
	unsigned seconds = storm_seconds(2);
	struct mover movers[MOVERS];
	pthread_t threads[MOVERS];

	(void)state;
	alarm(seconds + LIMIT_S);
	for (unsigned i = 0; i < MOVERS; i++)
		mover_open(&movers[i], i);
	for (unsigned i = 0; i < MOVERS; i++)
		pthread_create(&threads[i], NULL, move, &movers[i]);
	disturb_start(api, ctx, &stop);
	for (unsigned i = 0; i < seconds * 10 || !all_have_moved(); i++)
		usleep(100000);
	stop = true;
	for (unsigned i = 0; i < MOVERS; i++)
		pthread_join(threads[i], NULL);
	disturb_join();
	print_message("# one call %lu, queue %lu, stream reads %lu, stream writes %lu\n", moved[0],
		      moved[1], moved[2], moved[3]);
	for (unsigned i = 0; i < MOVERS; i++) {
		mover_close(&movers[i]);
		assert_string_equal(movers[i].wrong, "");
	}
	alarm(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(everything_ends_beside_waiting_driver_calls),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, setup, teardown);
}
