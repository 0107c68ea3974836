/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests all calls at once. Threads read, register and deregister files and buffers, run batches
 * and streams and query statistics, while the driver is opened and closed. Other threads make the
 * driver calls of disturb.h, many of which wait until every stream is idle. Each call must return a
 * result that is possible at that moment. Each read must return all bytes of the right file. The
 * test is most useful under the sanitizers.
 *
 * PENSTOCK_STORM_SECONDS sets the duration; without it, the driver is opened and closed ROUNDS
 * times.
 */
#include "shim_test.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "disturb.h"

enum { FILES = 4, LEN = 70000, ROUNDS = 40 };

static int fds[FILES];
static _Atomic(void *) handles[FILES];
static _Atomic bool stop;
/* Whether the threads pause between calls, so that the driver can be closed. */
static _Atomic bool calm;
static char *dev;		 /* device memory, LEN bytes for each thread */
static _Atomic int wrong;	 /* line number of the last check that failed, 0 if none has */
static _Atomic unsigned done[6]; /* number of successful calls of each kind */

#define WANT(what)                                      \
	do {                                            \
		if (!(what))                            \
			atomic_store(&wrong, __LINE__); \
	} while (0)

static bool running(void)
{
	if (atomic_load(&calm))
		usleep(10000);
	return !atomic_load(&stop);
}

/* Returns the byte at offset i of file f. */
static unsigned char file_byte(unsigned f, size_t i)
{
	return (unsigned char)(st_byte(i) + f);
}

static void check_bytes(unsigned f, const unsigned char *got, size_t off, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (got[i] != file_byte(f, off + i)) {
			WANT(false);
			return;
		}
}

static void check_device(unsigned f, const char *at, size_t off, size_t len)
{
	static _Thread_local unsigned char got[LEN];

	WANT(cu.cuMemcpyDtoHAsync(got, (uintptr_t)at, len, NULL) == PST_CU_OK &&
	     cu.cuStreamSynchronize(NULL) == PST_CU_OK);
	check_bytes(f, got, off, len);
}

static void *read_loop(void *arg)
{
	unsigned number = (unsigned)(uintptr_t)arg;
	uint64_t seed = test_seed(7) + number;
	char *to = dev + (size_t)number * LEN;
	unsigned char host[5000];

	WANT(cu.cuCtxSetCurrent(cu_ctx) == PST_CU_OK);
	while (running()) {
		unsigned f = (unsigned)(test_random(&seed) % FILES);
		size_t off = (size_t)(test_random(&seed) % (LEN - sizeof(host)));
		bool gpu = test_random(&seed) & 1;
		void *fh = atomic_load(&handles[f]);
		ssize_t n = cuFileRead(fh, gpu ? (void *)to : host, sizeof(host), (off_t)off, 0);

		WANT(n == sizeof(host) || n == -CUF_HANDLE_NOT_REGISTERED);
		if (n < 0)
			continue;
		atomic_fetch_add(&done[0], 1);
		if (gpu)
			check_device(f, to, off, sizeof(host));
		else
			check_bytes(f, host, off, sizeof(host));
	}
	return NULL;
}

static void *file_loop(void *arg)
{
	uint64_t seed = test_seed(11);

	while (running()) {
		unsigned f = (unsigned)(test_random(&seed) % FILES);
		int code;

		cuFileHandleDeregister(atomic_load(&handles[f]));
		atomic_store(&handles[f], st_register(fds[f], &code));
		WANT(!code);
		atomic_fetch_add(&done[1], 1);
		usleep(200);
	}
	return arg;
}

static void *buffer_loop(void *arg)
{
	char *at = dev + (size_t)(uintptr_t)arg * LEN;

	while (running()) {
		int code = cuFileBufRegister(at, LEN, 0).err;

		WANT(!code);
		atomic_fetch_add(&done[2], 1);
		code = cuFileBufDeregister(at).err;
		WANT(!code || code == CUF_MEMORY_NOT_REGISTERED);
	}
	return NULL;
}

static void one_batch(void *batch, unsigned f, char *to)
{
	struct cuf_io_params params[4];
	struct cuf_io_event events[4];
	unsigned nr = 4;
	int code;

	for (unsigned i = 0; i < 4; i++)
		params[i] = st_op(atomic_load(&handles[f]), CUF_READ, to, 4096, (off_t)i * 4096,
				  (off_t)i * 4096, i);
	code = cuFileBatchIOSubmit(batch, 4, params, 0).err;
	WANT(!code || code == CUF_HANDLE_NOT_REGISTERED);
	if (code)
		return;
	WANT(!cuFileBatchIOGetStatus(batch, 4, &nr, events, NULL).err && nr == 4);
	for (unsigned i = 0; i < nr; i++)
		WANT(events[i].status == CUF_COMPLETE && events[i].ret == 4096);
	check_device(f, to, 0, 4 * 4096);
	atomic_fetch_add(&done[3], 1);
}

static void *batch_loop(void *arg)
{
	char *to = dev + (size_t)(uintptr_t)arg * LEN;

	WANT(cu.cuCtxSetCurrent(cu_ctx) == PST_CU_OK);
	for (unsigned i = 0; running(); i++) {
		void *batch;
		int code = cuFileBatchIOSetUp(&batch, 4).err;

		WANT(!code);
		for (unsigned k = 0; k < 5 && !code; k++)
			one_batch(batch, (i + k) % FILES, to);
		if (!code)
			cuFileBatchIODestroy(batch);
	}
	return NULL;
}

static void *stream_loop(void *arg)
{
	char *to = dev + (size_t)(uintptr_t)arg * LEN;
	struct pst_cu_stream *stream;
	size_t len = 9000;
	off_t off = 77, zero = 0;

	WANT(cu.cuCtxSetCurrent(cu_ctx) == PST_CU_OK &&
	     cu.cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0) == PST_CU_OK);
	for (unsigned i = 0; running(); i++) {
		unsigned f = i % FILES;
		ssize_t bytes = -7;
		int code;

		WANT(!cuFileStreamRegister(stream, i % 16).err);
		code = cuFileReadAsync(atomic_load(&handles[f]), to, &len, &off, &zero, &bytes,
				       stream)
			       .err;
		WANT(!code || code == CUF_HANDLE_NOT_REGISTERED);
		WANT(cu.cuStreamSynchronize(stream) == PST_CU_OK);
		if (!code) {
			WANT(bytes == (ssize_t)len);
			check_device(f, to, (size_t)off, len);
			atomic_fetch_add(&done[4], 1);
		}
		code = cuFileStreamDeregister(stream).err;
		/* If another thread has closed the driver meanwhile, the stream is no longer
		 * registered. */
		WANT(!code || code == CUF_INVALID_VALUE);
	}
	WANT(cu.cuStreamDestroy(stream) == PST_CU_OK);
	return NULL;
}

static void *stats_loop(void *arg)
{
	static struct {
		struct st_l3 l3;
		char after[64];
	} stats;

	for (int level = 0; running(); level = (level + 1) % 4) {
		size_t value;
		int code;

		WANT(!cuFileSetStatsLevel(level).err);
		code = cuFileStatsStart().err;
		WANT(!code || code == CUF_DRIVER_NOT_INITIALIZED);
		code = cuFileGetStatsL3(&stats).err;
		WANT(!code || code == CUF_DRIVER_NOT_INITIALIZED || code == CUF_INVALID_VALUE);
		WANT(!cuFileGetParameterSizeT(CUF_IO_BATCHSIZE, &value).err && value == 128);
		WANT(cuFileUseCount() >= 0);
		cuFileStatsReset();
		cuFileStatsStop();
		atomic_fetch_add(&done[5], 1);
		usleep(300);
	}
	WANT(!stats.after[0]);
	return arg;
}

/* Opens and closes the driver repeatedly. While another call uses a file, the last close returns
 * CUF_DRIVER_CLOSING; otherwise it succeeds, even if other threads start calls meanwhile. Returns
 * the number of times that the driver was closed completely. */
static unsigned open_and_close(void)
{
	uint64_t end = test_now_ns() + storm_seconds(0) * 1000000000ull;
	unsigned closed = 0;

	for (unsigned i = 0; (i < ROUNDS || test_now_ns() < end) && !atomic_load(&wrong); i++) {
		int code = cuFileDriverOpen().err;

		WANT(!code);
		usleep(2000);
		atomic_store(&calm, i & 1);
		do {
			code = cuFileDriverClose().err;
			closed += code == CUF_DRIVER_NOT_INITIALIZED;
			WANT(!code || code == CUF_DRIVER_CLOSING ||
			     code == CUF_DRIVER_NOT_INITIALIZED);
		} while (!code);
	}
	atomic_store(&calm, false);
	return closed;
}

/* The threads. Eight of them transfer bytes: in synchronous calls, in batches and in stream
 * order. */
static void *(*const loops[])(void *) = {
	read_loop,   read_loop,	  read_loop, batch_loop,  batch_loop, stream_loop,
	stream_loop, stream_loop, file_loop, buffer_loop, stats_loop,
};
enum { THREADS = sizeof(loops) / sizeof(loops[0]) };

static void storm(void **state)
{
	pthread_t threads[THREADS];
	unsigned closed;

	(void)state;
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, loops[i], (void *)(uintptr_t)i),
				 0);
	disturb_start(&cu, cu_ctx, &stop);
	closed = open_and_close();
	for (bool all = false; !all && !atomic_load(&wrong);) {
		usleep(1000);
		all = disturb_has_begun();
		for (unsigned i = 0; i < 6; i++)
			all &= atomic_load(&done[i]) > 5;
	}
	atomic_store(&stop, true);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	disturb_join();
	printf("# reads %u, files %u, buffers %u, batches %u, streams %u, counts %u, closes %u\n",
	       done[0], done[1], done[2], done[3], done[4], done[5], closed);
	assert_int_equal(atomic_load(&wrong), 0);
}

static int setup(void **state)
{
	static unsigned char bytes[LEN];

	(void)state;
	/* The drop-in libcufile logs each use of a closed handle, which would print thousands of
	 * lines. */
	setenv("CUFILE_LOGFILE_PATH", "/dev/null", 1);
	if (!cu_load())
		return -1;
	dev = cu_alloc(THREADS * LEN);
	for (unsigned f = 0; f < FILES; f++) {
		fds[f] = st_make("storm", LEN, O_RDWR);
		for (size_t i = 0; i < LEN; i++)
			bytes[i] = file_byte(f, i);
		if (pwrite(fds[f], bytes, LEN, 0) != LEN)
			return -1;
		atomic_store(&handles[f], st_register(fds[f], NULL));
		unlink(st_path);
	}
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(storm),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
