/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered streams: that deregistering one waits for what is on it, and that the last
 * close of the driver forgets them. What their flags mean is test_async.c's.
 */
#include "shim_test.h"

#include <pthread.h>

#include "pst_standin.h"

enum { LEN = 1 << 20, SIZE = 5000 };

static char *dev;
static int fd;
static struct pst_cu_stream *stream;

static unsigned long (*calls)(const char *symbol);

static int setup(void **state)
{
	void *sym;

	(void)state;
	if (!cu_load())
		return -1;
	dev = cu_alloc(LEN);
	fd = st_make("streams", LEN, O_RDONLY);
	unlink(st_path);
	assert_cu(cu.cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0));
	sym = cu_standin("pst_standin_calls");
	memcpy(&calls, &sym, sizeof(sym));
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

/* A word that holds the stream back until it is 1. */
static uint64_t *gate;

static void hold(void)
{
	pst_cu_ptr at;

	if (!gate)
		assert_cu(cu.cuMemHostAlloc((void **)&gate, 4096, 2));
	__atomic_store_n(gate, 0, __ATOMIC_RELEASE);
	assert_cu(cu.cuMemHostGetDevicePointer(&at, gate, 0));
	assert_cu(cu.cuStreamWaitValue64(stream, at, 1, PST_CU_WAIT_GEQ));
}

static _Atomic bool gone; /* the call that is waited for has come back */

static void *open_when_waited_for(void *before)
{
	while (calls && !atomic_load(&gone) &&
	       calls("cuStreamSynchronize") == *(unsigned long *)before)
		sched_yield();
	if (!calls)
		usleep(50000);
	__atomic_store_n(gate, 1, __ATOMIC_RELEASE);
	return NULL;
}

static void deregistering_waits(void **state)
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
	assert_int_equal(pthread_create(&opener, NULL, open_when_waited_for, &before), 0);
	assert_ok(cuFileStreamDeregister(stream));
	seen = __atomic_load_n(&bytes, __ATOMIC_ACQUIRE);
	atomic_store(&gone, true);
	pthread_join(opener, NULL);
	assert_cu(cu.cuStreamSynchronize(stream));
	assert_int_equal(seen, SIZE);
	st_check(dev, 9, SIZE);
	cuFileHandleDeregister(fh);
}

/* A capture is not waited for: that would end it. */
static void captured(void **state)
{
	int (*capture)(struct pst_cu_stream *, int);
	void *sym = cu_standin("pst_standin_capture");
	unsigned long before;

	(void)state;
	if (!sym)
		test_skip("the driver itself captures only what a graph is made of");
	memcpy(&capture, &sym, sizeof(sym));
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

/* After the last close nothing is fixed at the call any more. */
static void closing_forgets(void **state)
{
	static size_t late = 300;
	off_t zero = 0;
	ssize_t bytes = -7;
	void *fh;

	(void)state;
	assert_ok(cuFileStreamRegister(stream, 7));
	while (cuFileUseCount())
		assert_ok(cuFileDriverClose());
	fh = st_register(fd, NULL);
	assert_code(cuFileStreamDeregister(stream), CUF_INVALID_VALUE);
	now = SIZE;
	hold();
	assert_cu(cu.cuLaunchHostFunc(stream, set_now, &late));
	assert_ok(cuFileReadAsync(fh, dev, &now, &zero, &zero, &bytes, stream));
	__atomic_store_n(gate, 1, __ATOMIC_RELEASE);
	assert_cu(cu.cuStreamSynchronize(stream));
	assert_int_equal(bytes, late);
	cuFileHandleDeregister(fh);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(deregistering_waits),
		cmocka_unit_test(captured),
		cmocka_unit_test(closing_forgets),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
