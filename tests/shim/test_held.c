/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests what a program can do while a slow drive delays its transfers. A batch has a timeout,
 * returns events of completed operations, and can be cancelled and destroyed. Several threads can
 * query it. A file can be closed, and closing the driver is refused. This program replaces pread(2)
 * and preadv(2), by which the library reads cached files. The replacements block reads that start
 * in the second half of the file.
 */
#include "shim_test.h"

#include <pthread.h>
#include <sys/uio.h>
#include <time.h>

enum { LEN = 8 << 20, HALF = LEN / 2, PIECE = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool holding;
static unsigned held; /* number of blocked reads; guarded by `lock` */

/* Blocks a read that starts in the second half of the file, until reads_release is called. */
static void block_read(off_t off)
{
	if (off < HALF || off >= LEN)
		return;
	pthread_mutex_lock(&lock);
	held++;
	pthread_cond_broadcast(&changed);
	while (holding)
		pthread_cond_wait(&changed, &lock);
	held--;
	pthread_mutex_unlock(&lock);
}

#define EXPORT __attribute__((visibility("default")))
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
EXPORT ssize_t pread64(int fd, void *buf, size_t len, off_t off)
{
	static ssize_t (*real)(int, void *, size_t, off_t);

	st_real("pread64", &real);
	block_read(off);
	return real(fd, buf, len, off);
}

EXPORT ssize_t preadv64(int fd, const struct iovec *iov, int count, off_t off)
{
	static ssize_t (*real)(int, const struct iovec *, int, off_t);

	st_real("preadv64", &real);
	block_read(off);
	return real(fd, iov, count, off);
}
#pragma GCC diagnostic pop

static void reads_block(void)
{
	pthread_mutex_lock(&lock);
	holding = true;
	pthread_mutex_unlock(&lock);
}

static void reads_release(void)
{
	pthread_mutex_lock(&lock);
	holding = false;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

/* Waits until `count` reads are blocked. Returns false after a timeout. This timeout is far longer
 * than a correct library needs. */
static bool wait_blocked(unsigned count)
{
	struct timespec until;
	int rc = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 20;
	pthread_mutex_lock(&lock);
	while (held < count && !rc)
		rc = pthread_cond_timedwait(&changed, &lock, &until);
	pthread_mutex_unlock(&lock);
	return !rc;
}

static char *memory;
static int fd;
static void *fh;

static int setup(void **state)
{
	(void)state;
	memory = malloc(LEN);
	fd = st_make("held", LEN, O_RDONLY);
	unlink(st_path);
	fh = st_register(fd, NULL);
	/* Makes a first transfer before any read is blocked, because it also reads parts of the
	 * file to choose a path. */
	assert_int_equal(cuFileRead(fh, memory, LEN, 0, 0), LEN);
	return 0;
}

static struct cuf_io_params piece(off_t off, size_t cookie)
{
	return st_op(fh, CUF_READ, memory, PIECE, off, off, cookie);
}

/* Sets up a batch, submits operations, and waits until one of the reads is blocked. */
static void *batch_start_blocked(unsigned nr, struct cuf_io_params *params)
{
	void *batch;

	reads_block();
	assert_ok(cuFileBatchIOSetUp(&batch, nr));
	assert_ok(cuFileBatchIOSubmit(batch, nr, params, 0));
	if (!wait_blocked(1)) {
		reads_release();
		cuFileBatchIODestroy(batch);
		test_skip("the library reads cached files by another call");
	}
	return batch;
}

/* Reads events and returns their count. Waits without a timeout if limit_ms is negative. */
static unsigned read_events(void *batch, unsigned min, struct cuf_io_event *events, unsigned max,
			    int64_t limit_ms)
{
	struct timespec limit = {limit_ms / 1000, limit_ms % 1000 * 1000000};

	assert_ok(cuFileBatchIOGetStatus(batch, min, &max, events, limit_ms < 0 ? NULL : &limit));
	return max;
}

/* The call returns the events of completed reads. If too few have completed, the call returns
 * after the timeout, although other reads are still blocked. */
static void partial_completion(void **state)
{
	struct cuf_io_params params[4] = {piece(0, 0), piece(PIECE, 1), piece(HALF, 2),
					  piece(HALF + PIECE, 3)};
	struct cuf_io_event events[4];
	size_t seen = 0;
	void *batch;

	(void)state;
	batch = batch_start_blocked(4, params);
	assert_int_equal(read_events(batch, 2, events, 4, -1), 2);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(events[i].status, CUF_COMPLETE);
		seen |= 1u << (size_t)events[i].cookie;
	}
	assert_int_equal(seen, 1 << 0 | 1 << 1);
	assert_int_equal(read_events(batch, 1, events, 4, 0), 0);
	assert_int_equal(read_events(batch, 1, events, 4, 20), 0);
	assert_int_equal(read_events(batch, 2, events, 4, 20), 0);
	reads_release();
	assert_int_equal(read_events(batch, 2, events, 4, -1), 2);
	assert_int_equal(events[0].status, CUF_COMPLETE);
	assert_int_equal(events[1].ret, PIECE);
	cuFileBatchIODestroy(batch);
}

/* Each operation returns one event. An operation that is cancelled before it has started must
 * never start. */
static void cancelled(void **state)
{
	enum { COUNT = 128 };
	struct cuf_io_params params[COUNT];
	struct cuf_io_event events[COUNT];
	unsigned got = 0, cancelled_count = 0;
	void *batch;

	(void)state;
	for (unsigned i = 0; i < COUNT; i++)
		params[i] = piece(HALF + (off_t)i * PIECE, i);
	batch = batch_start_blocked(COUNT, params);
	assert_ok(cuFileBatchIOCancel(batch));
	reads_release();
	while (got < COUNT) {
		unsigned n = read_events(batch, 1, events, COUNT, -1);

		assert_true(n > 0);
		for (unsigned i = 0; i < n; i++) {
			cancelled_count += events[i].status == CUF_CANCELED;
			assert_true(events[i].status == CUF_CANCELED ||
				    events[i].status == CUF_COMPLETE);
		}
		got += n;
	}
	assert_int_equal(got, COUNT);
	assert_true(cancelled_count > 0 && cancelled_count < COUNT);
	cuFileBatchIODestroy(batch);
}

/* ---- several threads ---- */

static void *wait_for_one(void *batch)
{
	struct cuf_io_event event;

	return read_events(batch, 1, &event, 1, -1) == 1 ? NULL : batch;
}

/* While one thread waits for an event without a timeout, another thread can query the same
 * batch. */
static void two_threads_query(void **state)
{
	struct cuf_io_params param = piece(HALF, 0);
	struct cuf_io_event event;
	pthread_t waiter;
	void *batch, *wrong;

	(void)state;
	batch = batch_start_blocked(1, &param);
	assert_int_equal(pthread_create(&waiter, NULL, wait_for_one, batch), 0);
	for (int i = 0; i < 50; i++) {
		assert_int_equal(read_events(batch, 0, &event, 1, 0), 0);
		assert_int_equal(read_events(batch, 1, &event, 1, 1), 0);
	}
	reads_release();
	pthread_join(waiter, &wrong);
	assert_null(wrong);
	cuFileBatchIODestroy(batch);
}

static _Atomic bool destroyed;

static void *destroy(void *batch)
{
	cuFileBatchIODestroy(batch);
	atomic_store(&destroyed, true);
	return NULL;
}

/* cuFileBatchIODestroy does not return while an operation of the batch is in flight. */
static void destroy_waits(void **state)
{
	struct cuf_io_params param = piece(HALF, 0);
	pthread_t destroyer;
	void *batch;

	(void)state;
	batch = batch_start_blocked(1, &param);
	assert_int_equal(pthread_create(&destroyer, NULL, destroy, batch), 0);
	/* a cuFileBatchIODestroy that wrongly does not wait returns within this pause */
	usleep(20000);
	assert_false(atomic_load(&destroyed));
	reads_release();
	pthread_join(destroyer, NULL);
	assert_true(atomic_load(&destroyed));
}

static void *read_held(void *handle)
{
	return cuFileRead(handle, memory + HALF, PIECE, HALF, 0) == PIECE ? NULL : handle;
}

/* A file may be closed during a read, and the read still succeeds. The last cuFileDriverClose is
 * refused during a read. */
static void close_during_a_read(void **state)
{
	pthread_t reader;
	void *wrong;
	bool blocked;

	(void)state;
	memset(memory + HALF, 0, PIECE);
	reads_block();
	assert_int_equal(pthread_create(&reader, NULL, read_held, fh), 0);
	blocked = wait_blocked(1);
	if (blocked) {
		while (cuFileUseCount() > 1)
			assert_ok(cuFileDriverClose());
		assert_code(cuFileDriverClose(), CUF_DRIVER_CLOSING);
		cuFileHandleDeregister(fh);
		assert_code(cuFileDriverClose(), CUF_DRIVER_CLOSING);
		assert_int_equal(cuFileRead(fh, memory, 1, 0, 0), -CUF_HANDLE_NOT_REGISTERED);
		close(fd);
	}
	reads_release();
	pthread_join(reader, &wrong);
	assert_null(wrong);
	for (size_t i = 0; i < PIECE; i++)
		assert_int_equal((unsigned char)memory[HALF + i], st_byte(HALF + i));
	if (!blocked)
		test_skip("the library reads cached files by another call");
	assert_ok(cuFileDriverClose());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(partial_completion),  cmocka_unit_test(cancelled),
		cmocka_unit_test(two_threads_query),   cmocka_unit_test(destroy_waits),
		cmocka_unit_test(close_during_a_read),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
