/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests registered streams. cuFileStreamDeregister waits for the work on the stream. The last
 * close of the driver removes all registrations. test_async.c tests the flags of streams.
 */
#include "shim_test.h"

#include <pthread.h>

#include "pst_standin.h"

enum { LEN = 1 << 20, SIZE = 5000 };

static char *dev;
static int fd;
static struct pst_cu_stream *stream;

/* Returns how often the program has called a function of the stand-in (simulated) CUDA driver.
 * NULL if the driver is real. */
static unsigned long (*calls)(const char *symbol);

/* Makes the first transfer in stream order, which loads a kernel. The load waits until the GPU is
 * idle. So no test may make the device's first transfer while a stream waits for the closed gate.
 * The gate is a word in memory that a test sets to let the stream continue. */
static void prepare(void)
{
	void *fh = st_register(fd, NULL);
	off_t zero = 0;
	size_t len = 1;
	ssize_t bytes = -7;

	assert_ok(cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes, stream));
	assert_cu(cu.cuStreamSynchronize(stream));
	assert_int_equal(bytes, 1);
	cuFileHandleDeregister(fh);
}

static int setup(void **state)
{
	(void)state;
	if (!cu_load())
		return -1;
	dev = cu_alloc(LEN);
	fd = st_make("streams", LEN, O_RDONLY);
	unlink(st_path);
	stream = cu_stream();
	cu_standin("pst_standin_calls", &calls);
	prepare();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	assert_cu(cu.cuStreamDestroy(stream));
	cu_free(dev);
	close(fd);
	return 0;
}

static void hold(void)
{
	st_gate_shut();
	st_gate_wait(stream);
}

static _Atomic bool returned; /* whether the call under test has returned */

/* Waits until the call under test waits for the stream. Then opens the gate (a word in memory), so
 * that the stream continues. */
static void *open_when_waited(void *before)
{
	while (calls && !atomic_load(&returned) &&
	       calls("cuStreamSynchronize") == *(unsigned long *)before)
		sched_yield();
	if (!calls)
		usleep(50000);
	st_gate_open();
	return NULL;
}

static void deregister_waits(void **state)
{
	void *fh = st_register(fd, NULL);
	unsigned long before = 0;
	size_t len = SIZE;
	off_t off = 9, zero = 0;
	ssize_t bytes = -7, seen;
	pthread_t opener;

	(void)state;
	assert_ok(cuFileStreamRegister(stream, 0));
	hold();
	assert_ok(cuFileReadAsync(fh, dev, &len, &off, &zero, &bytes, stream));
	before = calls ? calls("cuStreamSynchronize") : 0;
	assert_int_equal(pthread_create(&opener, NULL, open_when_waited, &before), 0);
	assert_ok(cuFileStreamDeregister(stream));
	seen = __atomic_load_n(&bytes, __ATOMIC_ACQUIRE);
	atomic_store(&returned, true);
	pthread_join(opener, NULL);
	assert_cu(cu.cuStreamSynchronize(stream));
	assert_int_equal(seen, SIZE);
	st_check(dev, 9, SIZE);
	cuFileHandleDeregister(fh);
}

/* cuFileStreamDeregister does not wait for a stream that is being captured, because a wait would
 * make the capture fail. */
static void deregister_captured(void **state)
{
	int (*capture)(struct pst_cu_stream *, int);
	unsigned long before;

	(void)state;
	if (!cu_standin("pst_standin_capture", &capture))
		test_skip("this test switches capture on by a function of the stand-in");
	assert_ok(cuFileStreamRegister(stream, 0));
	assert_cu(capture(stream, 1));
	before = calls("cuStreamSynchronize");
	assert_ok(cuFileStreamDeregister(stream));
	assert_int_equal(calls("cuStreamSynchronize"), before);
	assert_cu(capture(stream, 0));
}

static size_t now;

static void set_now(void *arg)
{
	now = *(size_t *)arg;
}

/* The flags of a registered stream say that the length of a read is final at the call. After the
 * last close of the driver these flags no longer apply. So the length is read only when the stream
 * reaches the read. */
static void close_removes_streams(void **state)
{
	static size_t late = 300;
	off_t zero = 0;
	ssize_t bytes = -7;
	void *fh;

	(void)state;
	assert_ok(cuFileStreamRegister(stream, 7));
	while (cuFileUseCount())
		assert_ok(cuFileDriverClose());
	prepare(); /* the device is opened again, and loads its kernel again */
	fh = st_register(fd, NULL);
	assert_code(cuFileStreamDeregister(stream), CUF_INVALID_VALUE);
	now = SIZE;
	hold();
	assert_cu(cu.cuLaunchHostFunc(stream, set_now, &late));
	assert_ok(cuFileReadAsync(fh, dev, &now, &zero, &zero, &bytes, stream));
	st_gate_open();
	assert_cu(cu.cuStreamSynchronize(stream));
	assert_int_equal(bytes, late);
	cuFileHandleDeregister(fh);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(deregister_waits),
		cmocka_unit_test(deregister_captured),
		cmocka_unit_test(close_removes_streams),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
