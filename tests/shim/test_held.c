/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers that the drive does not answer for a while: the time limit of a batch, its
 * partial completion, cancelling, destroying it, several threads that ask; closing a file
 * and the driver meanwhile. This program stands in front of pread(2) and preadv(2), by
 * which cached files are read, and holds back what begins in the file's second half.
 */
#include "shim_test.h"

#include <pthread.h>
#include <sys/uio.h>
#include <time.h>

enum { LEN = 8 << 20, HALF = LEN / 2, PIECE = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool holding;
static unsigned held; /* at this moment; under lock */

static void pass(off_t off)
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

#define OWN __attribute__((visibility("default")))
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
OWN ssize_t pread64(int fd, void *buf, size_t len, off_t off)
{
	static ssize_t (*own)(int, void *, size_t, off_t);
	void *sym = own ? NULL : dlsym(RTLD_NEXT, "pread64");

	if (sym)
		memcpy(&own, &sym, sizeof(sym));
	pass(off);
	return own(fd, buf, len, off);
}

OWN ssize_t preadv64(int fd, const struct iovec *iov, int count, off_t off)
{
	static ssize_t (*own)(int, const struct iovec *, int, off_t);
	void *sym = own ? NULL : dlsym(RTLD_NEXT, "preadv64");

	if (sym)
		memcpy(&own, &sym, sizeof(sym));
	pass(off);
	return own(fd, iov, count, off);
}
#pragma GCC diagnostic pop

static void hold(void)
{
	pthread_mutex_lock(&lock);
	holding = true;
	pthread_mutex_unlock(&lock);
}

static void let_go(void)
{
	pthread_mutex_lock(&lock);
	holding = false;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

/* Until so many are held back; far longer than that takes. */
static bool wait_held(unsigned count)
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
	/* What a first transfer sets up reads by itself. */
	assert_int_equal(cuFileRead(fh, memory, LEN, 0, 0), LEN);
	return 0;
}

static struct cuf_io_params piece(off_t off, size_t cookie)
{
	struct cuf_io_params p = {.mode = CUF_BATCH, .fh = fh, .opcode = CUF_READ};

	p.u.batch.base = memory;
	p.u.batch.base_offset = off;
	p.u.batch.file_offset = off;
	p.u.batch.size = PIECE;
	p.cookie = (void *)cookie;
	return p;
}

static void *batch_of(unsigned nr, struct cuf_io_params *params)
{
	void *batch;

	assert_ok(cuFileBatchIOSetUp(&batch, nr));
	assert_ok(cuFileBatchIOSubmit(batch, nr, params, 0));
	return batch;
}

static unsigned take(void *batch, unsigned min, struct cuf_io_event *events, unsigned room,
		     int64_t limit_ms)
{
	struct timespec limit = {limit_ms / 1000, limit_ms % 1000 * 1000000};

	assert_ok(cuFileBatchIOGetStatus(batch, min, &room, events, limit_ms < 0 ? NULL : &limit));
	return room;
}

/* What has come is handed out, and a limit ends the wait for what has not. */
static void part_of_it(void **state)
{
	struct cuf_io_params params[4] = {piece(0, 0), piece(PIECE, 1), piece(HALF, 2),
					  piece(HALF + PIECE, 3)};
	struct cuf_io_event events[4];
	size_t seen = 0;
	void *batch;

	(void)state;
	hold();
	batch = batch_of(4, params);
	if (!wait_held(1)) {
		let_go();
		cuFileBatchIODestroy(batch);
		test_skip("this library reads cached files by another call");
	}
	assert_int_equal(take(batch, 2, events, 4, -1), 2);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(events[i].status, CUF_COMPLETE);
		seen |= 1u << (size_t)events[i].cookie;
	}
	assert_int_equal(seen, 1 << 0 | 1 << 1);
	assert_int_equal(take(batch, 1, events, 4, 0), 0);
	assert_int_equal(take(batch, 1, events, 4, 20), 0);
	assert_int_equal(take(batch, 2, events, 4, 20), 0);
	let_go();
	assert_int_equal(take(batch, 2, events, 4, -1), 2);
	assert_int_equal(events[0].status, CUF_COMPLETE);
	assert_int_equal(events[1].ret, PIECE);
	cuFileBatchIODestroy(batch);
}

/* Each comes once; what had not begun when it was cancelled never does. */
static void cancelled(void **state)
{
	enum { COUNT = 128 };
	struct cuf_io_params params[COUNT];
	struct cuf_io_event events[COUNT];
	unsigned got = 0, gone = 0;
	void *batch;

	(void)state;
	for (unsigned i = 0; i < COUNT; i++)
		params[i] = piece(HALF + (off_t)i * PIECE, i);
	hold();
	batch = batch_of(COUNT, params);
	if (!wait_held(1)) {
		let_go();
		cuFileBatchIODestroy(batch);
		test_skip("this library reads cached files by another call");
	}
	assert_ok(cuFileBatchIOCancel(batch));
	let_go();
	while (got < COUNT) {
		unsigned n = take(batch, 1, events, COUNT, -1);

		assert_true(n > 0);
		for (unsigned i = 0; i < n; i++) {
			gone += events[i].status == CUF_CANCELED;
			assert_true(events[i].status == CUF_CANCELED ||
				    events[i].status == CUF_COMPLETE);
		}
		got += n;
	}
	assert_int_equal(got, COUNT);
	assert_true(gone > 0 && gone < COUNT);
	cuFileBatchIODestroy(batch);
}

/* ---- from other threads ---- */

static void *wait_for_one(void *batch)
{
	struct cuf_io_event event;

	return take(batch, 1, &event, 1, -1) == 1 ? NULL : batch;
}

/* One thread waits as long as it takes; another asks what there is. */
static void asked_by_two(void **state)
{
	struct cuf_io_params param = piece(HALF, 0);
	struct cuf_io_event event;
	pthread_t waiter;
	void *batch, *wrong;

	(void)state;
	hold();
	batch = batch_of(1, &param);
	if (!wait_held(1)) {
		let_go();
		cuFileBatchIODestroy(batch);
		test_skip("this library reads cached files by another call");
	}
	assert_int_equal(pthread_create(&waiter, NULL, wait_for_one, batch), 0);
	for (int i = 0; i < 50; i++) {
		assert_int_equal(take(batch, 0, &event, 1, 0), 0);
		assert_int_equal(take(batch, 1, &event, 1, 1), 0);
	}
	let_go();
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

/* It does not return while something of it is under way. */
static void destroyed_meanwhile(void **state)
{
	struct cuf_io_params param = piece(HALF, 0);
	pthread_t destroyer;
	void *batch;

	(void)state;
	hold();
	batch = batch_of(1, &param);
	if (!wait_held(1)) {
		let_go();
		cuFileBatchIODestroy(batch);
		test_skip("this library reads cached files by another call");
	}
	assert_int_equal(pthread_create(&destroyer, NULL, destroy, batch), 0);
	usleep(20000); /* time to go wrong in */
	assert_false(atomic_load(&destroyed));
	let_go();
	pthread_join(destroyer, NULL);
	assert_true(atomic_load(&destroyed));
}

static void *read_held(void *handle)
{
	return cuFileRead(handle, memory + HALF, PIECE, HALF, 0) == PIECE ? NULL : handle;
}

/* A file may be closed while it is read: the read ends well. The driver may not. */
static void closed_meanwhile(void **state)
{
	pthread_t reader;
	void *wrong;
	bool there;

	(void)state;
	memset(memory + HALF, 0, PIECE);
	hold();
	assert_int_equal(pthread_create(&reader, NULL, read_held, fh), 0);
	there = wait_held(1);
	if (there) {
		while (cuFileUseCount() > 1)
			assert_ok(cuFileDriverClose());
		assert_code(cuFileDriverClose(), CUF_DRIVER_CLOSING);
		cuFileHandleDeregister(fh);
		assert_code(cuFileDriverClose(), CUF_DRIVER_CLOSING);
		assert_int_equal(cuFileRead(fh, memory, 1, 0, 0), -CUF_HANDLE_NOT_REGISTERED);
		close(fd);
	}
	let_go();
	pthread_join(reader, &wrong);
	assert_null(wrong);
	for (size_t i = 0; i < PIECE; i++)
		assert_int_equal((unsigned char)memory[HALF + i], st_byte(HALF + i));
	if (!there)
		test_skip("this library reads cached files by another call");
	assert_ok(cuFileDriverClose());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(part_of_it),	    cmocka_unit_test(cancelled),
		cmocka_unit_test(asked_by_two),	    cmocka_unit_test(destroyed_meanwhile),
		cmocka_unit_test(closed_meanwhile),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
