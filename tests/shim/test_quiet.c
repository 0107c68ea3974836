/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests that a successful transfer allocates nothing, takes no lock in the drop-in (Penstock's
 * libcufile) and logs nothing. Also measures the CPU time that the drop-in adds to a transfer of
 * the library. This program replaces malloc, pthread_mutex_lock, write and penstock_transfer, and
 * counts their calls on the thread that reads. It is not built with a sanitizer, which replaces
 * malloc too.
 */
#include "shim_test.h"

#include <pthread.h>

#include "penstock.h"

static _Thread_local bool counting;
static _Thread_local unsigned long allocated, locked, written;

void *__libc_malloc(size_t len);
void *__libc_calloc(size_t count, size_t len);
void *__libc_realloc(void *ptr, size_t len);

void *malloc(size_t len)
{
	allocated += counting;
	return __libc_malloc(len);
}

void *calloc(size_t count, size_t len)
{
	allocated += counting;
	return __libc_calloc(count, len);
}

void *realloc(void *ptr, size_t len)
{
	allocated += counting;
	return __libc_realloc(ptr, len);
}

/* Counts only calls from the drop-in (Penstock's libcufile). The library itself also takes a lock
 * if the kernel refuses io_uring, because its thread engine then replaces io_uring. */
int pthread_mutex_lock(pthread_mutex_t *mutex)
{
	static int (*real)(pthread_mutex_t *);

	st_real("pthread_mutex_lock", &real);
	locked += counting && st_in_shim(__builtin_return_address(0));
	return real(mutex);
}

ssize_t write(int to, const void *from, size_t len)
{
	static ssize_t (*real)(int, const void *, size_t);

	st_real("write", &real);
	/* Counts only writes to stderr, which the log uses. The other calls of write(2) wake the
	 * library's threads. */
	written += counting && to == STDERR_FILENO;
	return real(to, from, len);
}

static bool stubbed; /* whether penstock_transfer only returns the length, without a transfer */

int64_t penstock_transfer(const struct penstock_req *req, struct penstock_report *report)
{
	static int64_t (*real)(const struct penstock_req *, struct penstock_report *);

	if (stubbed)
		return (int64_t)req->segs[0].row_len;
	st_real("penstock_transfer", &real);
	return real(req, report);
}

enum { LEN = 65536, TIMES = 500 };

static unsigned char buf[LEN], want[LEN];
static int fd;
static void *fh;

static int setup(void **state)
{
	(void)state;
	fd = st_make("quiet", LEN, O_RDWR);
	fh = st_register(fd, NULL);
	return !st_find_text() || cuFileBufRegister(buf, LEN, 0).err;
}

static int teardown(void **state)
{
	(void)state;
	st_drop(fh, fd);
	return 0;
}

static void counters_clear(void)
{
	allocated = locked = written = 0;
}

static void reads_and_writes(void **state)
{
	(void)state;
	/* Makes the first transfers, which start the library's threads for the device and log the
	 * first use of the file. */
	for (int i = 0; i < 3; i++) {
		assert_int_equal(cuFileRead(fh, buf, LEN, 0, 0), LEN);
		assert_int_equal(cuFileWrite(fh, buf, 4096, 0, 0), 4096);
	}
	counters_clear();
	counting = true;
	for (int i = 0; i < TIMES; i++)
		if (cuFileRead(fh, buf, 4096, 4096, 0) != 4096 ||
		    cuFileRead(fh, buf, 777, i, 100) != 777 ||
		    cuFileRead(fh, want, LEN, 0, 0) != LEN ||
		    cuFileWrite(fh, want, 4096, 0, 0) != 4096)
			break;
	counting = false;
	assert_int_equal(allocated, 0);
	assert_int_equal(locked, 0);
	assert_int_equal(written, 0);
	/* Checks that the counters work: a failed call writes a line, and cuFileUseCount takes a
	 * lock. */
	counting = true;
	assert_int_equal(cuFileWrite(fh, buf, 10, INT64_MAX - 20, 0), -1);
	counting = false;
	assert_true(written > 0);
	counting = true;
	assert_int_equal(cuFileUseCount(), 1);
	counting = false;
	assert_true(locked > 0);
}

static void vectors(void **state)
{
	struct cuf_iovec iov[64];

	(void)state;
	for (size_t i = 0; i < 64; i++)
		iov[i] = (struct cuf_iovec){buf + i * 1000, 700};
	assert_int_equal(cuFileReadv(fh, iov, 64, 0, 0), 64 * 700);
	assert_int_equal(cuFileWritev(fh, iov, 64, 0, 0), 64 * 700);
	counters_clear();
	counting = true;
	for (int i = 0; i < TIMES; i++)
		if (cuFileReadv(fh, iov, 64, 0, 0) != 64 * 700 ||
		    cuFileWritev(fh, iov, 64, 0, 0) != 64 * 700)
			break;
	counting = false;
	assert_int_equal(allocated, 0);
	assert_int_equal(locked, 0);
	assert_int_equal(written, 0);
}

static int one_batch(void *batch)
{
	static struct cuf_io_params params[128];
	static struct cuf_io_event events[128];
	unsigned nr = 128;

	for (unsigned i = 0; i < nr; i++)
		params[i] = st_op(fh, CUF_READ, buf, 512, 0, (off_t)i * 512, i);
	return cuFileBatchIOSubmit(batch, nr, params, 0).err ||
	       cuFileBatchIOGetStatus(batch, nr, &nr, events, NULL).err || nr != 128;
}

/* Tests batches. Their calls take locks, because several threads may use one batch, but they
 * allocate and log nothing. */
static void batches(void **state)
{
	void *batch;

	(void)state;
	assert_ok(cuFileBatchIOSetUp(&batch, 128));
	assert_int_equal(one_batch(batch), 0);
	counters_clear();
	counting = true;
	for (int i = 0; i < 50; i++)
		if (one_batch(batch))
			break;
	counting = false;
	assert_int_equal(allocated, 0);
	assert_int_equal(written, 0);
	cuFileBatchIODestroy(batch);
}

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Measures the CPU time of cuFileRead while penstock_transfer does nothing. Uses the shortest of
 * many rounds. Only a lock, a system call or a long search would exceed the limit. */
static void overhead(void **state)
{
	enum { ROUNDS = 100, CALLS = 1000, MOST_NS = 1000 };
	uint64_t best[2] = {UINT64_MAX, UINT64_MAX};
	ssize_t sum = 0;

	(void)state;
	assert_int_equal(cuFileRead(fh, buf, 4096, 0, 0), 4096);
	stubbed = true;
	for (unsigned i = 0; i < 2 * ROUNDS; i++) {
		/* only `buf` is registered, so every second read uses unregistered memory */
		void *to = i & 1 ? want : buf;
		uint64_t start = cpu_ns(), ns;

		for (unsigned k = 0; k < CALLS; k++)
			sum += cuFileRead(fh, to, 4096, 0, 0);
		ns = (cpu_ns() - start) / CALLS;
		best[i & 1] = ns < best[i & 1] ? ns : best[i & 1];
	}
	stubbed = false;
	assert_int_equal(sum, 2 * ROUNDS * CALLS * (ssize_t)4096);
	printf("# overhead: %llu ns a call, %llu with a buffer that is not registered\n",
	       (unsigned long long)best[0], (unsigned long long)best[1]);
	assert_true(best[0] < MOST_NS && best[1] < 5 * MOST_NS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_and_writes),
		cmocka_unit_test(vectors),
		cmocka_unit_test(batches),
		cmocka_unit_test(overhead),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
