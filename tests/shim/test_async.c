/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream order through the drop-in: in front, behind, each flag, values that are
 * set late, many streams held back at once, the NULL stream, host memory, capture,
 * more requests than the core takes. Runs with few hardware queues too.
 */
#include "shim_test.h"

#include <pthread.h>
#include <sys/wait.h>
#include <time.h>

#include "pst_standin.h"

#define LEN ((size_t)4 << 20)
#define STREAMS 64

static char *dev;
static int fd;
static void *fh;

static int setup(void **state)
{
	(void)state;
	if (!cu_load())
		return -1;
	dev = cu_alloc(LEN);
	fd = st_make("async", LEN, O_RDWR);
	fh = st_register(fd, NULL);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	cuFileHandleDeregister(fh);
	close(fd);
	unlink(st_path);
	cu_free(dev);
	return 0;
}

static struct pst_cu_stream *new_stream(void)
{
	struct pst_cu_stream *stream;

	assert_cu(cu.cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0));
	return stream;
}

/* A word that holds streams back until it is 1. */
static uint64_t *gate;
static pst_cu_ptr gate_dev;

static void make_gate(void)
{
	if (!gate) {
		assert_cu(cu.cuMemHostAlloc((void **)&gate, 4096, PST_CU_HOST_MAPPED));
		assert_cu(cu.cuMemHostGetDevicePointer(&gate_dev, gate, 0));
	}
	__atomic_store_n(gate, 0, __ATOMIC_RELEASE);
}

static void hold(struct pst_cu_stream *stream)
{
	assert_cu(cu.cuStreamWaitValue64(stream, gate_dev, 1, PST_CU_WAIT_GEQ));
}

/* 64 at once: held back, our read, a copy out behind it. */
static void many_streams(void **state)
{
	static size_t lens[STREAMS];
	static off_t offs[STREAMS], base_offs[STREAMS];
	static ssize_t bytes[STREAMS];
	struct pst_cu_stream *streams[STREAMS];
	const size_t len = 40000;
	unsigned char *back, want[40000];

	(void)state;
	make_gate();
	assert_cu(cu.cuMemHostAlloc((void **)&back, STREAMS * len, 0));
	/* What the first transfer sets up waits for an idle context. */
	assert_int_equal(cuFileRead(fh, dev, len, 0, 0), len);
	for (unsigned i = 0; i < STREAMS; i++) {
		streams[i] = new_stream();
		if (i & 1)
			assert_ok(cuFileStreamRegister(streams[i], 15));
	}
	for (unsigned i = 0; i < STREAMS; i++) {
		lens[i] = len;
		offs[i] = (off_t)i * 777;
		base_offs[i] = (off_t)(i * len);
		bytes[i] = -7;
		assert_cu(cu.cuMemsetD8Async((uintptr_t)dev + i * len, 0xee, len, streams[i]));
		hold(streams[i]);
		assert_ok(cuFileReadAsync(fh, dev, &lens[i], &offs[i], &base_offs[i], &bytes[i],
					  streams[i]));
		assert_cu(cu.cuMemcpyDtoHAsync(back + i * len, (uintptr_t)dev + i * len, len,
					       streams[i]));
	}
	for (unsigned i = 0; i < STREAMS; i++)
		assert_int_equal(bytes[i], -7);
	__atomic_store_n(gate, 1, __ATOMIC_RELEASE);
	for (unsigned i = 0; i < STREAMS; i++) {
		assert_cu(cu.cuStreamSynchronize(streams[i]));
		assert_int_equal(bytes[i], len);
		st_fill(want, (uint64_t)i * 777, len);
		assert_memory_equal(back + i * len, want, len);
		assert_code(cuFileStreamDeregister(streams[i]),
			    i & 1 ? CUF_SUCCESS : CUF_INVALID_VALUE);
		assert_cu(cu.cuStreamDestroy(streams[i]));
	}
	assert_cu(cu.cuMemFreeHost(back));
}

/* What a host function sets in front of the request. */
struct values {
	size_t len;
	off_t off, base_off;
};
static struct values now;

static void set_values(void *arg)
{
	now = *(struct values *)arg;
}

static unsigned long (*calls)(const char *name);
static unsigned long calls_before;

/* Until the call waits for the stream: what it takes as it is, it has by then. */
static void until_waited_for(void *arg)
{
	(void)arg;
	while (calls("cuStreamSynchronize") == calls_before)
		sched_yield();
}

/* Each value is taken at the call where a flag fixes it, else when the stream comes. */
static void each_flag(char *base, bool host)
{
	struct values late = {3000, 20001, 70000};
	unsigned char want[5000];
	ssize_t bytes;

	for (unsigned f = 0; f < 16; f++) {
		struct pst_cu_stream *stream = new_stream();
		struct values at_call = {5000, 999, 4096};
		size_t len = f & CUF_STREAM_FIXED_FILE_SIZE ? at_call.len : late.len;
		off_t off = f & CUF_STREAM_FIXED_FILE_OFFSET ? at_call.off : late.off;
		off_t base_off = f & CUF_STREAM_FIXED_BUF_OFFSET ? at_call.base_off : late.base_off;

		make_gate();
		now = at_call;
		bytes = -7;
		assert_ok(cuFileStreamRegister(stream, f));
		calls_before = host ? calls("cuStreamSynchronize") : 0;
		if (host)
			assert_cu(cu.cuLaunchHostFunc(stream, until_waited_for, NULL));
		else
			hold(stream);
		assert_cu(cu.cuLaunchHostFunc(stream, set_values, &late));
		assert_ok(cuFileReadAsync(fh, base, &now.len, &now.off, &now.base_off, &bytes,
					  stream));
		__atomic_store_n(gate, 1, __ATOMIC_RELEASE);
		assert_cu(cu.cuStreamSynchronize(stream));
		assert_int_equal(bytes, len);
		st_fill(want, (uint64_t)off, len);
		if (host)
			assert_memory_equal(base + base_off, want, len);
		else
			st_check(base + base_off, (uint64_t)off, len);
		assert_ok(cuFileStreamDeregister(stream));
		assert_cu(cu.cuStreamDestroy(stream));
	}
}

static void flags(void **state)
{
	static char host[100000];
	void *sym = cu_standin("pst_standin_calls");

	(void)state;
	each_flag(dev, false);
	if (!sym)
		test_skip("of host memory: only the stand-in counts what it is asked");
	memcpy(&calls, &sym, sizeof(sym));
	each_flag(host, true);
}

/* Wrong when the stream comes: a negative result, and the stream goes on. */
static void late_and_wrong(void **state)
{
	static const struct values wrong[] = {
		{5001, 0, 0},		 /* more than was said */
		{10, -1, 0},		 /* before the file */
		{10, 0, (off_t)1 << 40}, /* outside of all memory */
	};
	struct pst_cu_stream *stream = new_stream();

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		struct values set = wrong[i];
		ssize_t bytes = 7;

		now = (struct values){5000, 0, 0};
		make_gate();
		hold(stream);
		assert_cu(cu.cuLaunchHostFunc(stream, set_values, &set));
		assert_ok(cuFileReadAsync(fh, dev, &now.len, &now.off, &now.base_off, &bytes,
					  stream));
		__atomic_store_n(gate, 1, __ATOMIC_RELEASE);
		assert_cu(cu.cuStreamSynchronize(stream));
		assert_true(bytes < 0);
	}
	assert_cu(cu.cuStreamDestroy(stream));
}

static void behind_and_in_front(void **state)
{
	struct pst_cu_stream *stream = new_stream();
	unsigned char *src, got[9000];
	size_t len = sizeof(got);
	off_t off = 100001, base_off = 1 << 20, zero = 0;
	ssize_t wrote = -7, read_back = -7;

	(void)state;
	make_gate();
	assert_cu(cu.cuMemHostAlloc((void **)&src, len, 0));
	memset(src, 0x5a, len);
	hold(stream);
	assert_cu(cu.cuMemcpyHtoDAsync((uintptr_t)dev + (uintptr_t)base_off, src, len, stream));
	assert_ok(cuFileWriteAsync(fh, dev, &len, &off, &base_off, &wrote, stream));
	assert_cu(cu.cuMemsetD8Async((uintptr_t)dev + (uintptr_t)base_off, 0, len, stream));
	assert_ok(cuFileReadAsync(fh, dev, &len, &off, &zero, &read_back, stream));
	__atomic_store_n(gate, 1, __ATOMIC_RELEASE);
	assert_cu(cu.cuStreamSynchronize(stream));
	assert_int_equal(wrote, len);
	assert_int_equal(read_back, len);
	cu_get(got, dev, len);
	assert_memory_equal(got, src, len);
	assert_int_equal(pread(fd, got, len, off), len);
	assert_memory_equal(got, src, len);
	st_fill(got, (uint64_t)off, len);
	assert_int_equal(pwrite(fd, got, len, off), len);
	assert_cu(cu.cuMemFreeHost(src));
	assert_cu(cu.cuStreamDestroy(stream));
}

/* The result is there on return; host memory goes the same way on any stream. */
static void at_once(void **state)
{
	struct pst_cu_stream *stream = new_stream();
	unsigned char host[3000], want[3000];
	size_t len = sizeof(host);
	off_t off = 50, zero = 0;
	ssize_t bytes = -7;

	(void)state;
	assert_ok(cuFileReadAsync(fh, dev, &len, &off, &zero, &bytes, NULL));
	assert_int_equal(bytes, len);
	st_check(dev, 50, len);
	bytes = -7;
	assert_ok(cuFileReadAsync(fh, host, &len, &off, &zero, &bytes, stream));
	assert_int_equal(bytes, len);
	st_fill(want, 50, len);
	assert_memory_equal(host, want, len);
	/* The default streams by their own names are ordered like any other. */
	for (uintptr_t name = 1; name <= 2; name++) {
		bytes = -7;
		assert_ok(cuFileReadAsync(fh, dev, &len, &zero, &off, &bytes, (void *)name));
		assert_cu(cu.cuStreamSynchronize((void *)name));
		assert_int_equal(bytes, len);
		st_check(dev + 50, 0, len);
	}
	assert_cu(cu.cuStreamDestroy(stream));
}

static void wrong_arguments(void **state)
{
	struct pst_cu_stream *s = new_stream();
	size_t len = 10, huge = SIZE_MAX;
	off_t zero = 0, minus = -1;
	ssize_t bytes = -7;
	int ro = open(st_path, O_RDONLY);
	void *readonly = st_register(ro, NULL);

	(void)state;
	assert_code(cuFileReadAsync(fh, NULL, &len, &zero, &zero, &bytes, s), CUF_INVALID_VALUE);
	assert_code(cuFileReadAsync(fh, dev, NULL, &zero, &zero, &bytes, s), CUF_INVALID_VALUE);
	assert_code(cuFileReadAsync(fh, dev, &len, NULL, &zero, &bytes, s), CUF_INVALID_VALUE);
	assert_code(cuFileReadAsync(fh, dev, &len, &zero, NULL, &bytes, s), CUF_INVALID_VALUE);
	assert_code(cuFileReadAsync(fh, dev, &len, &zero, &zero, NULL, s), CUF_INVALID_VALUE);
	assert_code(cuFileReadAsync(fh, dev, &huge, &zero, &zero, &bytes, s), CUF_INVALID_VALUE);
	assert_code(cuFileReadAsync(NULL, dev, &len, &zero, &zero, &bytes, s),
		    CUF_HANDLE_NOT_REGISTERED);
	assert_code(cuFileReadAsync(NULL, dev, &len, &zero, &zero, &bytes, NULL),
		    CUF_HANDLE_NOT_REGISTERED);
	assert_code(cuFileReadAsync(fh, dev, &len, &minus, &zero, &bytes, NULL), CUF_INVALID_VALUE);
	assert_code(cuFileWriteAsync(readonly, dev, &len, &zero, &zero, &bytes, s),
		    CUF_PERMISSION_DENIED);
	assert_ok(cuFileStreamRegister(s, 7));
	assert_code(cuFileReadAsync(fh, dev, &len, &minus, &zero, &bytes, s), CUF_INVALID_VALUE);
	assert_ok(cuFileStreamDeregister(s));
	assert_code(cuFileStreamRegister(s, 16), CUF_INVALID_VALUE);
	assert_code(cuFileStreamDeregister(s), CUF_INVALID_VALUE);
	assert_int_equal(bytes, -7);
	cuFileHandleDeregister(readonly);
	close(ro);
	assert_cu(cu.cuStreamDestroy(s));
}

static void capture(void **state)
{
	int (*capture_it)(struct pst_cu_stream *, int);
	void *sym = cu_standin("pst_standin_capture");
	struct pst_cu_stream *stream = new_stream();
	size_t len = 10;
	off_t zero = 0;
	ssize_t bytes = -7;

	(void)state;
	if (!sym)
		test_skip("the driver itself captures only what a graph is made of");
	memcpy(&capture_it, &sym, sizeof(sym));
	assert_cu(capture_it(stream, 1));
	assert_code(cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes, stream),
		    CUF_ASYNC_NOT_SUPPORTED);
	assert_int_equal(bytes, -7);
	assert_cu(capture_it(stream, 0));
	assert_ok(cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes, stream));
	assert_cu(cu.cuStreamSynchronize(stream));
	assert_int_equal(bytes, 10);
	assert_cu(cu.cuStreamDestroy(stream));
}

/* More than there are places for, and the file deregistered with all of them out. */
static void very_many(void **state)
{
	enum { COUNT = 3000 };
	static ssize_t bytes[COUNT];
	struct pst_cu_stream *stream = new_stream();
	int again = open(st_path, O_RDONLY);
	void *other = st_register(again, NULL);
	size_t len = 600;
	off_t off = 33, zero = 0;

	(void)state;
	assert_ok(cuFileStreamRegister(stream, 7));
	for (unsigned i = 0; i < COUNT; i++) {
		bytes[i] = -7;
		assert_ok(cuFileReadAsync(other, dev, &len, &off, &zero, &bytes[i], stream));
	}
	cuFileHandleDeregister(other);
	close(again);
	assert_cu(cu.cuStreamSynchronize(stream));
	for (unsigned i = 0; i < COUNT; i++)
		assert_int_equal(bytes[i], len);
	st_check(dev, 33, len);
	assert_ok(cuFileStreamDeregister(stream));
	assert_cu(cu.cuStreamDestroy(stream));
}

/* A transfer that fails on its way leaves a registration behind, which a lane drops when
 * nothing else is to do, by a call that waits for all streams: also for one that comes to
 * wait for that lane. Nothing here may hang. */
static void unregistered_beside(void **state)
{
	enum { TIMES = 500 };
	struct pst_cu_stream *first = new_stream(), *second = new_stream();
	size_t len = 9000;
	off_t zero = 0, far = (off_t)1 << 40;

	(void)state;
	for (unsigned i = 0; i < TIMES; i++) {
		ssize_t bytes = 7;

		make_gate();
		assert_ok(cuFileReadAsync(fh, dev, &len, &zero, &far, &bytes, first));
		assert_cu(cu.cuStreamSynchronize(first));
		assert_true(bytes < 0);
		hold(second);
		for (volatile unsigned k = 0; k < i * 37 % 4000; k++)
			;
		assert_ok(cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes, second));
		__atomic_store_n(gate, 1, __ATOMIC_RELEASE);
		assert_cu(cu.cuStreamSynchronize(second));
		assert_int_equal(bytes, len);
	}
	assert_cu(cu.cuStreamDestroy(first));
	assert_cu(cu.cuStreamDestroy(second));
}

/* A context that breaks under a stream that is held back: what waits for it ends, with
 * an error, when the stream is deregistered. In a process of its own. */
static int broken_stream(void)
{
	int (*break_it)(int, enum pst_cu_result);
	void *sym = cu_standin("pst_standin_break");
	struct pst_cu_stream *stream = new_stream();
	static size_t len = 10;
	static off_t zero;
	static ssize_t bytes = -7;

	memcpy(&break_it, &sym, sizeof(sym));
	make_gate();
	if (cuFileStreamRegister(stream, 0).err)
		return 2;
	hold(stream);
	if (cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes, stream).err)
		return 3;
	break_it(0, PST_CU_ILLEGAL_ADDRESS);
	if (cuFileStreamDeregister(stream).err)
		return 4;
	/* Each try waits a while for what is ending. */
	cuFileHandleDeregister(fh);
	for (int i = 0; i < 20 && cuFileUseCount(); i++)
		if (cuFileDriverClose().err && i == 19)
			return 5;
	return bytes < 0 && bytes != -7 ? 0 : 6;
}

/* A blocking stream captures, says the driver of the NULL stream, which must not be
 * waited for then: that ends the capture. In a process of its own. */
static int implicit(void)
{
	unsigned (*ended)(void);
	void *sym = cu_standin("capturing_ended");
	struct pst_cu_stream *stream = new_stream();
	char host[10];
	size_t len = 10;
	off_t zero = 0;
	ssize_t bytes = -7;

	memcpy(&ended, &sym, sizeof(sym));
	if (cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes, NULL).err !=
	    CUF_ASYNC_NOT_SUPPORTED)
		return 2;
	if (bytes != -7 || ended())
		return 3;
	/* Another stream may be waited for. */
	if (cuFileReadAsync(fh, host, &len, &zero, &zero, &bytes, stream).err || bytes != 10)
		return 4;
	return ended() ? 5 : 0;
}

static void *release_gate(void *arg)
{
	usleep(50000);
	__atomic_store_n(gate, 1, __ATOMIC_RELEASE);
	return arg;
}

static void *one_more(void *arg)
{
	static size_t len = 10;
	static off_t zero;
	static ssize_t bytes = -7;
	int code;

	if (cu.cuCtxSetCurrent(cu_ctx) != PST_CU_OK)
		return NULL;
	code = cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes, arg).err;
	if (cu.cuStreamSynchronize(arg) != PST_CU_OK)
		return NULL;
	return code == CUF_HANDLE_NOT_REGISTERED || (!code && bytes == 10) ? &bytes : NULL;
}

/* All places are taken and a call waits for one, most likely, when the driver is to be
 * closed: the call gets its place, or comes too late. In a process of its own. */
static int crowded(void)
{
	enum { PLACES = 1024 };
	static size_t len = 10;
	static off_t zero;
	static ssize_t bytes[PLACES];
	struct pst_cu_stream *stream = new_stream();
	pthread_t waiting, opening;
	struct timespec until;
	void *good = NULL;

	make_gate();
	hold(stream);
	for (unsigned i = 0; i < PLACES; i++)
		if (cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes[i], stream).err)
			return 2;
	if (pthread_create(&waiting, NULL, one_more, stream))
		return 3;
	usleep(20000);
	if (pthread_create(&opening, NULL, release_gate, NULL))
		return 4;
	cuFileDriverClose();
	pthread_join(opening, NULL);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 30;
	if (pthread_timedjoin_np(waiting, &good, &until))
		return 5;
	return good ? 0 : 6;
}

static void alone(const char *what, const char *cuda)
{
	char self[PATH_MAX] = "";
	int status;
	pid_t pid;

	assert_true(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
	pid = fork();
	if (!pid) {
		if (cuda)
			setenv("PENSTOCK_LIBCUDA", cuda, 1);
		execl(self, self, what, (char *)NULL);
		_exit(99);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void broken(void **state)
{
	(void)state;
	if (!cu_standin("pst_standin_break"))
		test_skip("only the stand-in's context can be broken on purpose");
	alone("broken", NULL);
}

static void closed_with_all_places_taken(void **state)
{
	(void)state;
	if (!cu_standin("pst_standin_break"))
		test_skip("the driver's own queues hold fewer requests back");
	setenv("PENSTOCK_STANDIN_QUEUE_DEPTH", "0", 1);
	alone("crowded", NULL);
	unsetenv("PENSTOCK_STANDIN_QUEUE_DEPTH");
}

static void captured_implicitly(void **state)
{
	(void)state;
	if (!cu_standin("pst_standin_break"))
		test_skip("the driver itself captures only what a graph is made of");
	assert_non_null(getenv("PENSTOCK_CAPTURING"));
	alone("implicit", getenv("PENSTOCK_CAPTURING"));
}

/* The last close waits for nobody: it says so while a stream is held back. */
static void close_meanwhile(void **state)
{
	struct pst_cu_stream *stream = new_stream();
	size_t len = 10;
	off_t zero = 0;
	ssize_t bytes = -7;

	(void)state;
	make_gate();
	while (cuFileUseCount() > 1)
		assert_ok(cuFileDriverClose());
	hold(stream);
	assert_ok(cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes, stream));
	assert_code(cuFileDriverClose(), CUF_DRIVER_CLOSING);
	assert_int_equal(cuFileUseCount(), 1);
	__atomic_store_n(gate, 1, __ATOMIC_RELEASE);
	assert_cu(cu.cuStreamSynchronize(stream));
	assert_int_equal(bytes, 10);
	assert_ok(cuFileDriverClose());
	fh = st_register(fd, NULL);
	assert_ok(cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes, stream));
	assert_cu(cu.cuStreamSynchronize(stream));
	assert_cu(cu.cuStreamDestroy(stream));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(many_streams),
		cmocka_unit_test(flags),
		cmocka_unit_test(late_and_wrong),
		cmocka_unit_test(behind_and_in_front),
		cmocka_unit_test(at_once),
		cmocka_unit_test(wrong_arguments),
		cmocka_unit_test(capture),
		cmocka_unit_test(very_many),
		cmocka_unit_test(broken),
		cmocka_unit_test(captured_implicitly),
		cmocka_unit_test(closed_with_all_places_taken),
		cmocka_unit_test(close_meanwhile),
		cmocka_unit_test(unregistered_beside),
	};

	if (argc > 1) {
		int code = setup(NULL)			  ? 1
			   : !strcmp(argv[1], "implicit") ? implicit()
			   : !strcmp(argv[1], "crowded")  ? crowded()
							  : broken_stream();

		unlink(st_path);
		return code;
	}
	return cmocka_run_group_tests(tests, setup, teardown);
}
