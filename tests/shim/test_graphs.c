/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests stream-ordered calls on a stream that is being captured: each launch of the graph transfers
 * the bytes again, with the values that the arguments have at the launch, except arguments that a
 * flag of the stream fixes. Also tests calls that cannot be captured, and what happens to the graph
 * when the handle is deregistered or the cuFile driver is closed.
 */
#include "../graphs.h"
#include "shim_test.h"

#include <errno.h>

#define LEN ((size_t)4 << 20)
#define REPLAYS 1000

static char *dev;
static int fd;
static void *fh;
static struct pst_cu_stream *stream;
static struct pst_cu_graph *graph;
static struct pst_cu_graph_exec *exec;

/* The arguments of all calls. cuFile reads them through pointers, so a test can change them
 * later. */
static struct {
	size_t len;
	off_t off, base_off;
	ssize_t bytes;
} arg;

static int setup(void **state)
{
	(void)state;
	if (st_setup("graphs", LEN, O_RDWR, &fd, &fh, &dev) || graphs_load())
		return -1;
	stream = cu_stream();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	cu.cuStreamDestroy(stream);
	st_drop(fh, fd);
	cu_free(dev);
	return 0;
}

static struct cuf_error read_async(void *of)
{
	return cuFileReadAsync(of, dev, &arg.len, &arg.off, &arg.base_off, &arg.bytes, stream);
}

static void capture_end(void)
{
	assert_cu(graphs.end(stream, &graph));
	assert_non_null(graph);
	assert_cu(graphs.instantiate(&exec, graph, 0));
}

/* Captures a read of handle `of` into a graph. The read has these arguments until a test changes
 * `arg`. */
static void capture(void *of, size_t len, off_t off, off_t base_off)
{
	arg.len = len;
	arg.off = off;
	arg.base_off = base_off;
	assert_cu(graphs.begin(stream, PST_CU_CAPTURE_GLOBAL));
	assert_ok(read_async(of));
	capture_end();
}

static void graph_free(void)
{
	assert_cu(graphs.exec_destroy(exec));
	assert_cu(graphs.destroy(graph));
}

static void replay(void)
{
	arg.bytes = -7;
	assert_cu(graphs.launch(exec, stream));
	assert_cu(cu.cuStreamSynchronize(stream));
}

/* The process makes its first cuFile call inside a capture. Each replay must read the range that
 * the arguments name at that time, and deliver what the file contains at that time. */
static void read_is_replayed(void **state)
{
	unsigned char change[64], *got = malloc(LEN);

	(void)state;
	capture(fh, 300000, 0, 0);
	for (unsigned i = 0; i < REPLAYS; i++) {
		arg.len = 1 + i * 7919 % 300000;
		arg.off = i * 104729 % (LEN - 300000);
		arg.base_off = i * 31;
		memset(change, (int)i, sizeof(change));
		assert_int_equal(pwrite(fd, change, sizeof(change), arg.off), sizeof(change));
		replay();
		assert_int_equal(arg.bytes, arg.len);
		cu_get(got, dev + arg.base_off, arg.len);
		assert_memory_equal(got, change,
				    arg.len < sizeof(change) ? arg.len : sizeof(change));
		st_fill(got, (uint64_t)arg.off, sizeof(change));
		assert_int_equal(pwrite(fd, got, sizeof(change), arg.off), sizeof(change));
		if (arg.len > sizeof(change))
			st_check(dev + arg.base_off + sizeof(change),
				 (uint64_t)arg.off + sizeof(change), arg.len - sizeof(change));
	}
	arg.off = LEN - 100; /* the file ends here */
	arg.len = 300;
	replay();
	assert_int_equal(arg.bytes, 100);
	arg.off = -4096;
	replay();
	assert_int_equal(arg.bytes, -EINVAL);
	arg.off = 0;
	replay();
	assert_int_equal(arg.bytes, 300);
	graph_free();
	free(got);
}

/* If a flag of the stream fixes an argument, replays use the value that the argument had in the
 * capture. */
static void fixed_arguments(void **state)
{
	(void)state;
	assert_ok(cuFileStreamRegister(stream, 7));
	capture(fh, 5000, 12345, 77);
	arg.len = 1;
	arg.off = 0;
	arg.base_off = 0;
	for (unsigned i = 0; i < 10; i++) {
		replay();
		assert_int_equal(arg.bytes, 5000);
		st_check(dev + 77, 12345, 5000);
	}
	graph_free();
	assert_ok(cuFileStreamDeregister(stream));
}

/* One graph has a read and a write. The write takes the bytes that the read has delivered, and
 * stores them at another offset of the file. */
static void write_is_replayed(void **state)
{
	static size_t len = 100000;
	static off_t to, zero;
	static ssize_t written;
	unsigned char *got = malloc(len), *want = malloc(len);

	(void)state;
	arg.len = len;
	arg.off = arg.base_off = 0;
	assert_cu(graphs.begin(stream, PST_CU_CAPTURE_RELAXED));
	assert_ok(read_async(fh));
	assert_ok(cuFileWriteAsync(fh, dev, &len, &to, &zero, &written, stream));
	capture_end();
	for (unsigned i = 0; i < 100; i++) {
		arg.off = i * 1001;
		to = (off_t)(LEN / 2 + i * 777);
		written = -7;
		replay();
		assert_int_equal(arg.bytes, len);
		assert_int_equal(written, len);
		assert_int_equal(pread(fd, got, len, to), len);
		st_fill(want, (uint64_t)arg.off, len);
		assert_memory_equal(got, want, len);
	}
	graph_free();
	for (uint64_t at = 0; at < LEN; at += len) {
		size_t n = LEN - at < len ? LEN - at : len;

		st_fill(want, at, n);
		assert_int_equal(pwrite(fd, want, n, (off_t)at), n);
	}
	free(got);
	free(want);
}

/* After cuFileHandleDeregister, replays report an error and change no byte. */
static void handle_deregistered(void **state)
{
	int again = open(st_path, O_RDONLY);
	void *other = st_register(again, NULL);

	(void)state;
	capture(other, 4096, 0, 0);
	replay();
	assert_int_equal(arg.bytes, 4096);
	cuFileHandleDeregister(other);
	close(again);
	assert_cu(cu.cuMemsetD8Async((uintptr_t)dev, 0xee, 4096, stream));
	for (unsigned i = 0; i < 10; i++) {
		unsigned char got[4096];

		replay();
		assert_int_equal(arg.bytes, -EBADF);
		cu_get(got, dev, sizeof(got));
		for (unsigned k = 0; k < sizeof(got); k++)
			assert_int_equal(got[k], 0xee);
	}
	graph_free();
}

/* The cuFile driver closes while a graph with a captured call exists. Replays report an error.
 * The driver can be opened again, both before and after the graph is destroyed. */
static void driver_closed(void **state)
{
	(void)state;
	capture(fh, 4096, 0, 0);
	for (unsigned i = 0; i < 3; i++) {
		while (cuFileUseCount())
			assert_ok(cuFileDriverClose());
		replay();
		assert_int_equal(arg.bytes, -EBADF);
		if (i == 1)
			graph_free();
		fh = st_register(fd, NULL);
		assert_int_equal(cuFileRead(fh, dev, 4096, 8192, 0), 4096);
		st_check(dev, 8192, 4096);
		if (i == 1)
			capture(fh, 4096, 0, 0);
		replay();
		assert_int_equal(arg.bytes, i == 1 ? 4096 : -EBADF);
	}
	graph_free();
}

/* Transfers to host memory and calls on the NULL stream cannot be captured. The capture stays
 * valid. */
static void refused_in_a_capture(void **state)
{
	char host[100];

	(void)state;
	arg.len = sizeof(host);
	arg.off = arg.base_off = 0;
	assert_cu(graphs.begin(stream, PST_CU_CAPTURE_GLOBAL));
	assert_code(
		cuFileReadAsync(fh, host, &arg.len, &arg.off, &arg.base_off, &arg.bytes, stream),
		CUF_ASYNC_NOT_SUPPORTED);
	assert_ok(read_async(fh));
	/* Registering the stream must not query it, because a query would invalidate the capture.
	 */
	assert_ok(cuFileStreamRegister(stream, 0));
	assert_ok(cuFileStreamDeregister(stream));
	capture_end();
	replay();
	assert_int_equal(arg.bytes, sizeof(host));
	graph_free();
}

/* A captured call occupies no entry for requests in flight, so there can be more captures than
 * entries. */
static void many_captures(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 1500; i++) {
		capture(fh, 4096, (off_t)i, 0);
		if (i % 100 == 0) {
			replay();
			assert_int_equal(arg.bytes, 4096);
			st_check(dev, i, 4096);
		}
		graph_free();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(read_is_replayed),  cmocka_unit_test(fixed_arguments),
		cmocka_unit_test(write_is_replayed), cmocka_unit_test(handle_deregistered),
		cmocka_unit_test(driver_closed),     cmocka_unit_test(refused_in_a_capture),
		cmocka_unit_test(many_captures),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
