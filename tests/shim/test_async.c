/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests stream-ordered reads and writes: their order relative to other work on the stream, each
 * flag of cuFileStreamRegister, arguments that change after the call, and many blocked streams at
 * once. Also tests the NULL stream, host memory, captures, and more requests than the library
 * accepts. meson.build also runs this program with only one hardware queue.
 */
#include "shim_test.h"

#include <pthread.h>
#include <sched.h>
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
	return st_setup("async", LEN, O_RDWR, &fd, &fh, &dev);
}

static int teardown(void **state)
{
	(void)state;
	st_drop(fh, fd);
	cu_free(dev);
	return 0;
}

/* Each of 64 streams executes in order: a wait for the gate (a word in memory), a read, and a copy
 * to the host. Each copy must contain the bytes that the read delivered. */
static void many_streams(void **state)
{
	static size_t lens[STREAMS];
	static off_t offs[STREAMS], base_offs[STREAMS];
	static ssize_t bytes[STREAMS];
	struct pst_cu_stream *streams[STREAMS];
	const size_t len = 40000;
	unsigned char *back, want[40000];

	(void)state;
	st_gate_shut();
	assert_cu(cu.cuMemHostAlloc((void **)&back, STREAMS * len, 0));
	/* Makes a first transfer before the gate blocks a stream. The first transfer starts the
	 * device's lanes (threads that move the bytes), and waits until the context is idle. */
	assert_int_equal(cuFileRead(fh, dev, len, 0, 0), len);
	for (unsigned i = 0; i < STREAMS; i++) {
		streams[i] = cu_stream();
		if (i & 1)
			assert_ok(cuFileStreamRegister(streams[i], 15));
	}
	for (unsigned i = 0; i < STREAMS; i++) {
		lens[i] = len;
		offs[i] = (off_t)i * 777;
		base_offs[i] = (off_t)(i * len);
		bytes[i] = -7;
		assert_cu(cu.cuMemsetD8Async((uintptr_t)dev + i * len, 0xee, len, streams[i]));
		st_gate_wait(streams[i]);
		assert_ok(cuFileReadAsync(fh, dev, &lens[i], &offs[i], &base_offs[i], &bytes[i],
					  streams[i]));
		assert_cu(cu.cuMemcpyDtoHAsync(back + i * len, (uintptr_t)dev + i * len, len,
					       streams[i]));
	}
	for (unsigned i = 0; i < STREAMS; i++)
		assert_int_equal(bytes[i], -7);
	st_gate_open();
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

/* Arguments of a stream-ordered call. A host function on the stream changes them before the
 * stream reaches the transfer. */
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

/* A function that the stream runs on the host. It blocks the stream until the call under test waits
 * for the stream. Before it waits, the call reads every argument that a flag fixes. */
static void block_until_waited(void *arg)
{
	(void)arg;
	while (calls("cuStreamSynchronize") == calls_before)
		sched_yield();
}

/* A flag of cuFileStreamRegister says that an argument is fixed. Each fixed argument is read during
 * the call, and each other argument when the stream reaches the transfer. */
static void check_each_flag(char *base, bool host)
{
	struct values late = {3000, 20001, 70000};
	unsigned char want[5000];
	ssize_t bytes;

	for (unsigned f = 0; f < 16; f++) {
		struct pst_cu_stream *stream = cu_stream();
		struct values at_call = {5000, 999, 4096};
		size_t len = f & CUF_STREAM_FIXED_FILE_SIZE ? at_call.len : late.len;
		off_t off = f & CUF_STREAM_FIXED_FILE_OFFSET ? at_call.off : late.off;
		off_t base_off = f & CUF_STREAM_FIXED_BUF_OFFSET ? at_call.base_off : late.base_off;

		st_gate_shut();
		now = at_call;
		bytes = -7;
		assert_ok(cuFileStreamRegister(stream, f));
		calls_before = host ? calls("cuStreamSynchronize") : 0;
		if (host)
			assert_cu(cu.cuLaunchHostFunc(stream, block_until_waited, NULL));
		else
			st_gate_wait(stream);
		assert_cu(cu.cuLaunchHostFunc(stream, set_values, &late));
		assert_ok(cuFileReadAsync(fh, base, &now.len, &now.off, &now.base_off, &bytes,
					  stream));
		st_gate_open();
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

static void flags_fix_values(void **state)
{
	static char host[100000];

	(void)state;
	check_each_flag(dev, false);
	if (!cu_standin("pst_standin_calls", &calls))
		test_skip("the case of host memory needs the stand-in, which counts calls");
	check_each_flag(host, true);
}

/* If an argument is wrong when the stream reaches the transfer, the transfer stores a negative
 * result. The stream continues. */
static void wrong_late_values(void **state)
{
	static const struct values wrong[] = {
		{5001, 0, 0}, /* the program stores a larger length than the call allowed */
		{10, -1, 0},  /* the program stores a negative file offset */
		/* the program stores a file offset with which the range ends at the file's start */
		{4096, -4096, 0},
		/* the program stores a buffer offset outside of any allocation */
		{10, 0, (off_t)1 << 40},
		{10, 0, -4096}, /* the program stores a buffer offset before the allocation */
	};
	struct pst_cu_stream *stream = cu_stream();

	(void)state;
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct values set = wrong[i];
		ssize_t bytes = 7;

		now = (struct values){5000, 0, 0};
		st_gate_shut();
		st_gate_wait(stream);
		assert_cu(cu.cuLaunchHostFunc(stream, set_values, &set));
		assert_ok(cuFileReadAsync(fh, dev, &now.len, &now.off, &now.base_off, &bytes,
					  stream));
		st_gate_open();
		assert_cu(cu.cuStreamSynchronize(stream));
		assert_int_equal(bytes, -EINVAL);
	}
	assert_cu(cu.cuStreamDestroy(stream));
}

/* A write stores the bytes that earlier work on the stream has written to the buffer. Later work
 * on the stream sees the file's new content. */
static void order_on_the_stream(void **state)
{
	struct pst_cu_stream *stream = cu_stream();
	unsigned char *src, got[9000];
	size_t len = sizeof(got);
	off_t off = 100001, base_off = 1 << 20, zero = 0;
	ssize_t wrote = -7, read_back = -7;

	(void)state;
	st_gate_shut();
	assert_cu(cu.cuMemHostAlloc((void **)&src, len, 0));
	memset(src, 0x5a, len);
	st_gate_wait(stream);
	assert_cu(cu.cuMemcpyHtoDAsync((uintptr_t)dev + (uintptr_t)base_off, src, len, stream));
	assert_ok(cuFileWriteAsync(fh, dev, &len, &off, &base_off, &wrote, stream));
	assert_cu(cu.cuMemsetD8Async((uintptr_t)dev + (uintptr_t)base_off, 0, len, stream));
	assert_ok(cuFileReadAsync(fh, dev, &len, &off, &zero, &read_back, stream));
	st_gate_open();
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

/* A call on the NULL stream returns after its transfer has completed. The same is true of a
 * transfer to host memory on any stream. */
static void completes_before_return(void **state)
{
	struct pst_cu_stream *stream = cu_stream();
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
	/* The stream handles 1 and 2 name the two default streams. Transfers on them are queued
	 * like those on other streams. */
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
	struct pst_cu_stream *s = cu_stream();
	size_t len = 10, huge = SIZE_MAX;
	off_t zero = 0, minus = -1;
	ssize_t bytes = -7;

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
	assert_ok(cuFileStreamRegister(s, 7));
	assert_code(cuFileReadAsync(fh, dev, &len, &minus, &zero, &bytes, s), CUF_INVALID_VALUE);
	assert_ok(cuFileStreamDeregister(s));
	assert_code(cuFileStreamRegister(s, 16), CUF_INVALID_VALUE);
	assert_code(cuFileStreamDeregister(s), CUF_INVALID_VALUE);
	assert_int_equal(bytes, -7);
	assert_cu(cu.cuStreamDestroy(s));
}

/* The open flags of a descriptor can forbid a direction. A call in this direction fails at once
 * with the code of NVIDIA's library, into device memory and host memory, and on every stream. */
static void wrong_open_flags(void **state)
{
	static char host[10];
	struct pst_cu_stream *created = cu_stream(), *streams[] = {created, NULL};
	int ro = open(st_path, O_RDONLY), wo = open(st_path, O_WRONLY);
	void *readonly = st_register(ro, NULL), *writeonly = st_register(wo, NULL);
	void *bases[] = {dev, host};
	size_t len = 10;
	off_t zero = 0;
	ssize_t bytes = -7;

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		struct pst_cu_stream *s = streams[i & 1];
		void *base = bases[i >> 1];

		assert_code(cuFileReadAsync(writeonly, base, &len, &zero, &zero, &bytes, s),
			    CUF_INVALID_FILE_OPEN_FLAG);
		assert_code(cuFileWriteAsync(readonly, base, &len, &zero, &zero, &bytes, s),
			    CUF_INVALID_FILE_OPEN_FLAG);
		assert_int_equal(bytes, -7);
		assert_ok(cuFileReadAsync(readonly, base, &len, &zero, &zero, &bytes, s));
		assert_cu(cu.cuStreamSynchronize(s));
		assert_int_equal(bytes, 10);
		bytes = -7;
		assert_ok(cuFileWriteAsync(writeonly, base, &len, &zero, &zero, &bytes, s));
		assert_cu(cu.cuStreamSynchronize(s));
		assert_int_equal(bytes, 10);
		bytes = -7;
	}
	cuFileHandleDeregister(readonly);
	cuFileHandleDeregister(writeonly);
	close(ro);
	close(wo);
	assert_cu(cu.cuStreamDestroy(created));
}

/* A call on a stream that is being captured is refused. */
static void capture_refused(void **state)
{
	int (*capture)(struct pst_cu_stream *, int);
	struct pst_cu_stream *stream = cu_stream();
	size_t len = 10;
	off_t zero = 0;
	ssize_t bytes = -7;

	(void)state;
	if (!cu_standin("pst_standin_capture", &capture))
		test_skip("this test switches capture on by a function of the stand-in");
	assert_cu(capture(stream, 1));
	assert_code(cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes, stream),
		    CUF_ASYNC_NOT_SUPPORTED);
	assert_int_equal(bytes, -7);
	assert_cu(capture(stream, 0));
	assert_ok(cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes, stream));
	assert_cu(cu.cuStreamSynchronize(stream));
	assert_int_equal(bytes, 10);
	assert_cu(cu.cuStreamDestroy(stream));
}

/* Makes more requests than the library accepts at once, and deregisters the file while they are in
 * flight. Every read must still deliver its bytes. */
static void more_requests_than_entries(void **state)
{
	enum { COUNT = 3000 };
	static ssize_t bytes[COUNT];
	struct pst_cu_stream *stream = cu_stream();
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

/* The stream that fill_stream fills, and how many of its calls have returned; 300 if a call has
 * failed. */
static struct pst_cu_stream *filled;
static _Atomic unsigned fill_count;
static ssize_t fill_bytes[300];

/* Makes more calls on the stream `filled` than a hardware queue of the GPU has space for. Returns
 * NULL if a call fails. */
static void *fill_stream(void *arg)
{
	static size_t len = 600;
	static off_t zero;
	bool bad = cu.cuCtxSetCurrent(cu_ctx) != PST_CU_OK;

	for (unsigned i = 0; i < 300 && !bad; i++) {
		bad = cuFileReadAsync(fh, dev, &len, &zero, &zero, &fill_bytes[i], filled).err;
		fill_count++;
	}
	if (bad)
		fill_count = 300;
	return bad ? NULL : arg;
}

/* Makes reads on the stream `arg`, and waits for each of them. Returns NULL if a read fails. If the
 * GPU has only one hardware queue, the stream `arg` waits for the stream `filled`. Then the
 * function makes only one call, and does not wait for its read. */
static void *read_beside(void *arg)
{
	static size_t len = 700;
	static off_t zero, at = 100000;
	static ssize_t bytes;
	const char *queues = getenv("PENSTOCK_STANDIN_HW_QUEUES");
	bool one_queue = queues && !strcmp(queues, "1");

	if (cu.cuCtxSetCurrent(cu_ctx) != PST_CU_OK)
		return NULL;
	for (unsigned i = 0; i < (one_queue ? 1 : 500); i++) {
		bytes = -7;
		if (cuFileReadAsync(fh, dev, &len, &zero, &at, &bytes, arg).err)
			return NULL;
		if (!one_queue && (cu.cuStreamSynchronize(arg) != PST_CU_OK || bytes != 700))
			return NULL;
	}
	return arg;
}

/* While the gate (a word in memory) blocks a stream, a thread makes more calls on the stream than
 * it has space for. Calls of another thread on another stream must return, and their transfers
 * must complete. The number of these calls is so high that the first thread has filled its stream
 * before the last of them. */
static void beside_a_full_stream(void **state)
{
	struct pst_cu_stream *free_stream;
	struct timespec until;
	pthread_t filling, reading;
	void *good = NULL, *full = NULL;
	int ret;

	(void)state;
	filled = cu_stream();
	free_stream = cu_stream();
	assert_int_equal(cuFileRead(fh, dev, 10, 0, 0), 10);
	st_gate_shut();
	st_gate_wait(filled);
	assert_int_equal(pthread_create(&filling, NULL, fill_stream, filled), 0);
	while (fill_count < 64)
		sched_yield();
	assert_int_equal(pthread_create(&reading, NULL, read_beside, free_stream), 0);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 60;
	ret = pthread_timedjoin_np(reading, &good, &until);
	assert_true(fill_count < 300);
	st_gate_open();
	if (ret)
		pthread_join(reading, &good);
	pthread_join(filling, &full);
	if (ret)
		fail_msg("calls on another stream waited for the full stream");
	assert_ptr_equal(good, free_stream);
	assert_ptr_equal(full, filled);
	assert_cu(cu.cuStreamSynchronize(filled));
	assert_cu(cu.cuStreamSynchronize(free_stream));
	for (unsigned i = 0; i < 300; i++)
		assert_int_equal(fill_bytes[i], 600);
	assert_cu(cu.cuStreamDestroy(filled));
	assert_cu(cu.cuStreamDestroy(free_stream));
}

/*
 * Tests that there is no deadlock. A transfer that fails in flight leaves host memory registered
 * with the CUDA driver. The transfer's lane (the thread that moved its bytes) unregisters this
 * memory when the lane is idle, and the CUDA driver then waits for all streams. Meanwhile a stream
 * may start to wait for a transfer of the same lane.
 */
static void unregister_beside_a_stream(void **state)
{
	enum { TIMES = 500 };
	struct pst_cu_stream *first = cu_stream(), *second = cu_stream();
	size_t len = 9000;
	off_t zero = 0, far = (off_t)1 << 40;

	(void)state;
	for (unsigned i = 0; i < TIMES; i++) {
		ssize_t bytes = 7;

		st_gate_shut();
		assert_ok(cuFileReadAsync(fh, dev, &len, &zero, &far, &bytes, first));
		assert_cu(cu.cuStreamSynchronize(first));
		assert_true(bytes < 0);
		st_gate_wait(second);
		for (volatile unsigned k = 0; k < i * 37 % 4000; k++)
			;
		assert_ok(cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes, second));
		st_gate_open();
		assert_cu(cu.cuStreamSynchronize(second));
		assert_int_equal(bytes, len);
	}
	assert_cu(cu.cuStreamDestroy(first));
	assert_cu(cu.cuStreamDestroy(second));
}

/* The CUDA context fails while the gate (a word in memory) blocks a stream. Then
 * cuFileStreamDeregister completes the stream's request with an error. Runs in a separate
 * process. */
static int child_broken_stream(void)
{
	int (*context_break)(int, enum pst_cu_result);
	struct pst_cu_stream *stream = cu_stream();
	static size_t len = 10;
	static off_t zero;
	static ssize_t bytes = -7;

	if (!cu_standin("pst_standin_break", &context_break))
		return 1;
	st_gate_shut();
	if (cuFileStreamRegister(stream, 0).err)
		return 2;
	st_gate_wait(stream);
	if (cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes, stream).err)
		return 3;
	context_break(0, PST_CU_ILLEGAL_ADDRESS);
	if (cuFileStreamDeregister(stream).err)
		return 4;
	/* A close waits only a short time for requests that are completing, so the test tries
	 * several times. */
	cuFileHandleDeregister(fh);
	for (int i = 0; i < 20 && cuFileUseCount(); i++)
		if (cuFileDriverClose().err && i == 19)
			return 5;
	return bytes < 0 && bytes != -7 ? 0 : 6;
}

/* The CUDA driver reports that a wait for the NULL stream would also wait for a stream that is
 * being captured. Such a wait would make the capture fail, so a call on the NULL stream must be
 * refused without waiting. Runs in a separate process. */
static int child_implicit_capture(void)
{
	unsigned (*ended)(void);
	struct pst_cu_stream *stream = cu_stream();
	char host[10];
	size_t len = 10;
	off_t zero = 0;
	ssize_t bytes = -7;

	if (!cu_standin("capturing_ended", &ended) || !cu_standin("pst_standin_calls", &calls))
		return 1;
	/* A registration must not query the NULL stream. */
	calls_before = calls("cuStreamQuery");
	if (cuFileBufRegister(dev, LEN, 0).err || cuFileBufDeregister(dev).err ||
	    calls("cuStreamQuery") != calls_before)
		return 6;
	if (cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes, NULL).err !=
	    CUF_ASYNC_NOT_SUPPORTED)
		return 2;
	if (bytes != -7 || ended())
		return 3;
	/* A call on a stream that is not being captured may wait for its stream. The wait does not
	 * end the capture. */
	if (cuFileReadAsync(fh, host, &len, &zero, &zero, &bytes, stream).err || bytes != 10)
		return 4;
	return ended() ? 5 : 0;
}

static void *open_gate_later(void *arg)
{
	usleep(50000);
	st_gate_open();
	return arg;
}

static void *submit_one_more(void *arg)
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

/* While all request entries are in use, one more call needs an entry and another thread closes the
 * driver. In most runs the call already waits when the close begins. This call must either get an
 * entry or fail because its file was closed. Runs in a separate process. */
static int child_close_when_full(void)
{
	enum { ENTRIES = 1024, EACH = 64 }; /* EACH: requests of one stream */
	static size_t len = 10;
	static off_t zero;
	static ssize_t bytes[ENTRIES];
	static off_t at[ENTRIES / EACH]; /* each stream writes to memory of its own */
	struct pst_cu_stream *streams[ENTRIES / EACH];
	pthread_t waiting, opening;
	struct timespec until;
	void *good = NULL;

	st_gate_shut();
	for (unsigned i = 0; i < ENTRIES / EACH; i++) {
		streams[i] = cu_stream();
		at[i] = i * 4096;
	}
	for (unsigned i = 0; i < ENTRIES; i++) {
		unsigned to = i / EACH;

		if (i % EACH == 0)
			st_gate_wait(streams[to]);
		if (cuFileReadAsync(fh, dev, &len, &zero, &at[to], &bytes[i], streams[to]).err)
			return 2;
	}
	if (pthread_create(&waiting, NULL, submit_one_more, streams[0]))
		return 3;
	usleep(20000);
	if (pthread_create(&opening, NULL, open_gate_later, NULL))
		return 4;
	cuFileDriverClose();
	pthread_join(opening, NULL);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 30;
	if (pthread_timedjoin_np(waiting, &good, &until))
		return 5;
	return good ? 0 : 6;
}

static void broken_stream(void **state)
{
	void *fn;

	(void)state;
	if (!cu_standin("pst_standin_break", &fn))
		test_skip("only the stand-in's context can be made to fail");
	assert_int_equal(st_run_self("broken", NULL), 0);
}

static void close_when_full(void **state)
{
	void *fn;

	(void)state;
	if (!cu_standin("pst_standin_break", &fn))
		test_skip("a real driver's queues hold fewer requests back");
	setenv("PENSTOCK_STANDIN_QUEUE_DEPTH", "0", 1);
	assert_int_equal(st_run_self("full", NULL), 0);
	unsetenv("PENSTOCK_STANDIN_QUEUE_DEPTH");
}

static void implicit_capture(void **state)
{
	void *fn;

	(void)state;
	if (!cu_standin("pst_standin_break", &fn))
		test_skip("this test replaces functions of the stand-in");
	assert_non_null(getenv("PENSTOCK_CAPTURING"));
	assert_int_equal(st_run_self("implicit", getenv("PENSTOCK_CAPTURING")), 0);
}

/* While the gate (a word in memory) blocks a stream with a transfer, the last close of the driver
 * fails. This close must not wait for the stream. */
static void close_refused(void **state)
{
	struct pst_cu_stream *stream = cu_stream();
	size_t len = 10;
	off_t zero = 0;
	ssize_t bytes = -7;

	(void)state;
	st_gate_shut();
	while (cuFileUseCount() > 1)
		assert_ok(cuFileDriverClose());
	st_gate_wait(stream);
	assert_ok(cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes, stream));
	assert_code(cuFileDriverClose(), CUF_DRIVER_CLOSING);
	assert_int_equal(cuFileUseCount(), 1);
	st_gate_open();
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
		cmocka_unit_test(flags_fix_values),
		cmocka_unit_test(wrong_late_values),
		cmocka_unit_test(order_on_the_stream),
		cmocka_unit_test(completes_before_return),
		cmocka_unit_test(wrong_arguments),
		cmocka_unit_test(wrong_open_flags),
		cmocka_unit_test(capture_refused),
		cmocka_unit_test(more_requests_than_entries),
		cmocka_unit_test(beside_a_full_stream),
		cmocka_unit_test(broken_stream),
		cmocka_unit_test(implicit_capture),
		cmocka_unit_test(close_when_full),
		cmocka_unit_test(close_refused),
		cmocka_unit_test(unregister_beside_a_stream),
	};

	if (argc > 1) {
		int code = setup(NULL)			  ? 1
			   : !strcmp(argv[1], "implicit") ? child_implicit_capture()
			   : !strcmp(argv[1], "full")	  ? child_close_when_full()
							  : child_broken_stream();

		unlink(st_path);
		return code;
	}
	return cmocka_run_group_tests(tests, setup, teardown);
}
