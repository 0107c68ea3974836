/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests batches. Each operation must return exactly one event with the number of bytes. Events are
 * read all at once or a few at a time, with and without a timeout. Operations are also cancelled,
 * refused and resubmitted, and several threads use one batch.
 */
#include "shim_test.h"

#include <pthread.h>

#define LEN ((size_t)4 << 20)
#define MOST 128u

static char *dev;
static int fd;
static void *fh;

static int setup(void **state)
{
	(void)state;
	return st_setup("batch", LEN, O_RDWR, &fd, &fh, &dev);
}

static int teardown(void **state)
{
	(void)state;
	st_drop(fh, fd);
	return 0;
}

/* Fills `params` with reads of adjacent ranges of the file, the first at offset 5. */
static void fill_reads(struct cuf_io_params *params, unsigned nr, size_t len)
{
	for (unsigned i = 0; i < nr; i++)
		params[i] =
			st_op(fh, CUF_READ, dev, len, (off_t)(i * len + 5), (off_t)(i * len), i);
}

/* Reads `want` events, at most `portion` in one call. Each cookie must occur only once. */
static void read_events(void *batch, unsigned want, unsigned portion, bool *seen, size_t bytes)
{
	struct cuf_io_event events[MOST];
	unsigned got = 0;

	while (got < want) {
		unsigned nr = portion;

		assert_ok(cuFileBatchIOGetStatus(batch, 1, &nr, events, NULL));
		assert_true(nr > 0 && nr <= portion);
		for (unsigned i = 0; i < nr; i++) {
			size_t cookie = (size_t)events[i].cookie;

			assert_int_equal(events[i].status, CUF_COMPLETE);
			assert_int_equal(events[i].ret, bytes);
			assert_false(seen[cookie]);
			seen[cookie] = true;
		}
		got += nr;
	}
	assert_int_equal(got, want);
}

static void events_in_portions(void **state)
{
	static const unsigned portions[] = {1, 7, 128};
	struct cuf_io_params params[MOST];
	void *batch;

	(void)state;
	assert_ok(cuFileBatchIOSetUp(&batch, MOST));
	for (unsigned k = 0; k < 3; k++) {
		bool seen[MOST] = {false};

		fill_reads(params, MOST, 10007);
		cu.cuMemsetD8Async((uintptr_t)dev, 0, LEN, NULL);
		cu.cuStreamSynchronize(NULL);
		assert_ok(cuFileBatchIOSubmit(batch, MOST, params, 0));
		read_events(batch, MOST, portions[k], seen, 10007);
		st_check(dev, 5, MOST * 10007);
	}
	cuFileBatchIODestroy(batch);
}

static void writes_and_reads(void **state)
{
	struct cuf_io_params params[2];
	struct cuf_io_event events[2];
	unsigned char got[5000], want[5000];
	unsigned nr = 2;
	void *batch;

	(void)state;
	st_fill(want, 77, sizeof(want));
	cu_put(dev + 8192, want, sizeof(want));
	params[0] = st_op(fh, CUF_WRITE, dev, 5000, 1000001, 8192, 1);
	params[1] = st_op(fh, CUF_READ, dev, 4096, 0, 65536, 2);
	assert_ok(cuFileBatchIOSetUp(&batch, 2));
	assert_ok(cuFileBatchIOSubmit(batch, 2, params, 0));
	assert_ok(cuFileBatchIOGetStatus(batch, 2, &nr, events, NULL));
	assert_int_equal(nr, 2);
	assert_int_equal(pread(fd, got, 5000, 1000001), 5000);
	assert_memory_equal(got, want, 5000);
	st_check(dev + 65536, 0, 4096);
	cuFileBatchIODestroy(batch);
	st_fill(want, 1000001, 5000);
	assert_int_equal(pwrite(fd, want, 5000, 1000001), 5000);
}

/* An operation occupies its entry of the batch until the program has read its event. */
static void full_batch(void **state)
{
	struct cuf_io_params params[5];
	struct cuf_io_event events[4];
	bool seen[5] = {false};
	unsigned nr = 1;
	void *batch;

	(void)state;
	fill_reads(params, 5, 100);
	assert_ok(cuFileBatchIOSetUp(&batch, 4));
	assert_code(cuFileBatchIOSubmit(batch, 5, params, 0), CUF_INVALID_VALUE);
	assert_ok(cuFileBatchIOSubmit(batch, 3, params, 0));
	assert_code(cuFileBatchIOSubmit(batch, 2, params + 3, 0), CUF_BATCH_FULL);
	assert_ok(cuFileBatchIOGetStatus(batch, 1, &nr, events, NULL));
	assert_int_equal(nr, 1);
	seen[(size_t)events[0].cookie] = true;
	assert_ok(cuFileBatchIOSubmit(batch, 2, params + 3, 0));
	read_events(batch, 4, 4, seen, 100);
	cuFileBatchIODestroy(batch);
}

/* On entry, *nr is the number of events that fit into the array. On return, *nr is the number
 * of events that the call has stored. The call must return each event once, and no more
 * events than operations in flight, whatever minimum the caller requests. The batch can be
 * reused afterwards. */
static void event_counts(void **state)
{
	struct cuf_io_params params[6];
	struct cuf_io_event events[64];
	void *batch;

	(void)state;
	assert_ok(cuFileBatchIOSetUp(&batch, 6));
	for (unsigned round = 0; round < 50; round++) {
		unsigned in_flight = 1 + round % 6, got = 0, nr;
		bool seen[6] = {false};

		fill_reads(params, in_flight, 4096);
		assert_ok(cuFileBatchIOSubmit(batch, in_flight, params, 0));
		nr = 0; /* no event fits, so the call returns none */
		assert_ok(cuFileBatchIOGetStatus(batch, 0, &nr, NULL, NULL));
		assert_int_equal(nr, 0);
		while (got < in_flight) {
			memset(events, 0xee, sizeof(events));
			nr = round % 2 ? 64 : 1 + round % 3;
			/* A minimum larger than the number of operations in flight does not
			 * block the call. */
			assert_ok(cuFileBatchIOGetStatus(batch, nr, &nr, events, NULL));
			assert_true(nr > 0 && nr <= in_flight - got);
			for (unsigned i = 0; i < nr; i++) {
				size_t cookie = (size_t)events[i].cookie;

				assert_true(cookie < in_flight && !seen[cookie]);
				assert_int_equal(events[i].status, CUF_COMPLETE);
				seen[cookie] = true;
			}
			/* The call does not write past the last event. */
			assert_int_equal((size_t)events[nr].cookie, 0xeeeeeeeeeeeeeeee);
			got += nr;
		}
		nr = 64;
		assert_ok(cuFileBatchIOGetStatus(batch, 0, &nr, events, NULL));
		assert_int_equal(nr, 0);
	}
	cuFileBatchIODestroy(batch);
}

static void timeouts(void **state)
{
	struct timespec none = {0, 0}, half_minute = {30, 0}, invalid = {10000, -5};
	struct cuf_io_params params[3];
	struct cuf_io_event events[3];
	unsigned nr = 3, got = 0;
	void *batch;

	(void)state;
	assert_ok(cuFileBatchIOSetUp(&batch, 3));
	/* While no operation is in flight, the call does not wait, with or without a timeout. */
	assert_ok(cuFileBatchIOGetStatus(batch, 3, &nr, events, NULL));
	assert_int_equal(nr, 0);
	nr = 3;
	assert_ok(cuFileBatchIOGetStatus(batch, 0, &nr, events, &none));
	assert_int_equal(nr, 0);
	fill_reads(params, 3, 1 << 20);
	assert_ok(cuFileBatchIOSubmit(batch, 3, params, 0));
	nr = 3;
	assert_ok(cuFileBatchIOGetStatus(batch, 3, &nr, events, &none));
	got += nr;
	nr = 3;
	assert_ok(cuFileBatchIOGetStatus(batch, 3 - got, &nr, events, &half_minute));
	got += nr;
	assert_int_equal(got, 3);
	assert_ok(cuFileBatchIOSubmit(batch, 3, params, 0));
	nr = 3;
	assert_ok(cuFileBatchIOGetStatus(batch, 3, &nr, events, &invalid));
	assert_int_equal(nr, 3);
	cuFileBatchIODestroy(batch);
}

/* Each cancelled operation returns one event, even if it has already moved its bytes. */
static void cancelled(void **state)
{
	struct cuf_io_params params[32];
	struct cuf_io_event events[32];
	unsigned nr = 32;
	void *batch;

	(void)state;
	fill_reads(params, 32, 100000);
	assert_ok(cuFileBatchIOSetUp(&batch, 32));
	assert_ok(cuFileBatchIOSubmit(batch, 32, params, 0));
	assert_ok(cuFileBatchIOCancel(batch));
	assert_ok(cuFileBatchIOGetStatus(batch, 32, &nr, events, NULL));
	assert_int_equal(nr, 32);
	for (unsigned i = 0; i < nr; i++)
		assert_true((events[i].status == CUF_COMPLETE && events[i].ret == 100000) ||
			    (events[i].status == CUF_CANCELED && (ssize_t)events[i].ret < 0));
	/* A batch may be destroyed while all of its operations are in flight. */
	assert_ok(cuFileBatchIOSubmit(batch, 32, params, 0));
	cuFileBatchIODestroy(batch);
}

/* The batch is destroyed while this thread waits for all of its events. The wait must end, and
 * no byte of the buffer may change after the destruction. */
static void *wait_for_all(void *arg)
{
	struct cuf_io_event events[16];
	unsigned nr = 16;

	(void)cuFileBatchIOGetStatus(arg, 16, &nr, events, NULL);
	return NULL;
}

static void destroyed_under_a_waiter(void **state)
{
	enum { ROUNDS = 20, OPS = 16, SIZE = 256 << 10 };
	unsigned char *got = malloc(LEN);
	struct cuf_io_params params[OPS];

	(void)state;
	fill_reads(params, OPS, SIZE - 1);
	for (useconds_t round = 0; round < ROUNDS; round++) {
		pthread_t waiter;
		void *batch;

		assert_ok(cuFileBatchIOSetUp(&batch, OPS));
		assert_ok(cuFileBatchIOSubmit(batch, OPS, params, 0));
		assert_int_equal(pthread_create(&waiter, NULL, wait_for_all, batch), 0);
		/* The thread usually starts to wait during this pause. If it has not started,
		 * the test still passes. */
		usleep(round * 50);
		cuFileBatchIODestroy(batch);
		assert_cu(cu.cuMemsetD8Async((uintptr_t)dev, 0xaa, LEN, NULL));
		assert_cu(cu.cuStreamSynchronize(NULL));
		pthread_join(waiter, NULL);
		cu_get(got, dev, LEN);
		for (size_t i = 0; i < LEN; i++)
			if (got[i] != 0xaa)
				fail_msg("round %u: byte %zu changed after the destruction", round,
					 i);
	}
	free(got);
}

static void wrong_arguments(void **state)
{
	struct cuf_io_params params[2], bad;
	struct cuf_io_event events[2];
	size_t most = 0;
	unsigned nr = 2;
	void *batch, *none;

	(void)state;
	assert_ok(cuFileGetParameterSizeT(CUF_IO_BATCHSIZE, &most));
	assert_int_equal(most, MOST);
	assert_code(cuFileBatchIOSetUp(NULL, 2), CUF_INVALID_VALUE);
	assert_code(cuFileBatchIOSetUp(&none, 0), CUF_INVALID_VALUE);
	assert_code(cuFileBatchIOSetUp(&none, MOST + 1), CUF_INVALID_VALUE);
	assert_ok(cuFileBatchIOSetUp(&batch, 2));
	fill_reads(params, 2, 100);
	assert_code(cuFileBatchIOSubmit(NULL, 2, params, 0), CUF_INVALID_VALUE);
	assert_code(cuFileBatchIOSubmit(params, 2, params, 0), CUF_INVALID_VALUE);
	assert_code(cuFileBatchIOSubmit(batch, 0, params, 0), CUF_INVALID_VALUE);
	assert_code(cuFileBatchIOSubmit(batch, 2, NULL, 0), CUF_INVALID_VALUE);
	bad = params[1];
	params[1].mode = 7;
	assert_code(cuFileBatchIOSubmit(batch, 2, params, 0), CUF_INVALID_VALUE);
	params[1] = bad;
	params[1].opcode = 2;
	assert_code(cuFileBatchIOSubmit(batch, 2, params, 0), CUF_INVALID_VALUE);
	params[1] = bad;
	params[1].fh = &bad;
	assert_code(cuFileBatchIOSubmit(batch, 2, params, 0), CUF_HANDLE_NOT_REGISTERED);
	params[1] = bad;
	params[1].u.batch.base = NULL;
	assert_code(cuFileBatchIOSubmit(batch, 2, params, 0), CUF_INVALID_VALUE);
	params[1] = bad;
	params[1].u.batch.base_offset = (off_t)1 << 40;
	assert_code(cuFileBatchIOSubmit(batch, 2, params, 0), CUF_CUDA_POINTER_RANGE_ERROR);
	/* No refused submission has started an operation, so there is no event. */
	assert_ok(cuFileBatchIOGetStatus(batch, 0, &nr, events, NULL));
	assert_int_equal(nr, 0);
	assert_code(cuFileBatchIOGetStatus(batch, 0, NULL, events, NULL), CUF_INVALID_VALUE);
	nr = 1;
	assert_code(cuFileBatchIOGetStatus(batch, 2, &nr, events, NULL), CUF_INVALID_VALUE);
	assert_code(cuFileBatchIOGetStatus(batch, 1, &nr, NULL, NULL), CUF_INVALID_VALUE);
	assert_code(cuFileBatchIOGetStatus(&bad, 0, &nr, events, NULL), CUF_INVALID_VALUE);
	assert_code(cuFileBatchIOCancel(NULL), CUF_INVALID_VALUE);
	cuFileBatchIODestroy(NULL);
	cuFileBatchIODestroy(&bad);
	cuFileBatchIODestroy(batch);
	cuFileBatchIODestroy(batch);
	assert_code(cuFileBatchIOCancel(batch), CUF_INVALID_VALUE);
}

/* An operation that is refused because of its file returns an event. The other operations of the
 * batch succeed. */
static void partly_refused(void **state)
{
	struct cuf_io_params params[3];
	struct cuf_io_event events[3];
	int ro = open(st_path, O_RDONLY);
	void *readonly = st_register(ro, NULL), *batch;
	unsigned nr = 3;

	(void)state;
	fill_reads(params, 3, 1000);
	params[1].fh = readonly;
	params[1].opcode = CUF_WRITE;
	params[2].u.batch.file_offset = (off_t)LEN - 10;
	assert_ok(cuFileBatchIOSetUp(&batch, 3));
	assert_ok(cuFileBatchIOSubmit(batch, 3, params, 0));
	assert_ok(cuFileBatchIOGetStatus(batch, 3, &nr, events, NULL));
	assert_int_equal(nr, 3);
	for (unsigned i = 0; i < 3; i++) {
		size_t cookie = (size_t)events[i].cookie;

		assert_int_equal(events[i].status, cookie == 1 ? CUF_FAILED : CUF_COMPLETE);
		assert_int_equal((ssize_t)events[i].ret, cookie == 1   ? -EBADF
							 : cookie == 2 ? 10
								       : 1000);
	}
	cuFileBatchIODestroy(batch);
	cuFileHandleDeregister(readonly);
	close(ro);
}

/* One thread submits operations of this batch, another reads events, a third cancels. */
static void *shared_batch;
static _Atomic bool stop;
/* Bitmap of the buffer's areas that no operation is reading into. */
static _Atomic unsigned free_areas = 0xff;

static void *cancel_loop(void *arg)
{
	(void)arg;
	while (!atomic_load(&stop)) {
		cuFileBatchIOCancel(shared_batch);
		usleep(300);
	}
	return NULL;
}

static void *read_events_loop(void *arg)
{
	unsigned *got = arg;
	struct timespec limit = {0, 20000000};
	struct cuf_io_event events[8];

	while (!atomic_load(&stop)) {
		unsigned nr = 8;

		if (cuFileBatchIOGetStatus(shared_batch, 1, &nr, events, &limit).err)
			break;
		for (unsigned i = 0; i < nr; i++)
			atomic_fetch_or(&free_areas, 1u << (size_t)events[i].cookie);
		__atomic_fetch_add(got, nr, __ATOMIC_SEQ_CST);
	}
	return NULL;
}

static void several_threads(void **state)
{
	enum { OPS = 2000 };
	struct cuf_io_params param = st_op(fh, CUF_READ, dev, 9000, 17, 0, 0);
	pthread_t reader, canceller;
	unsigned got = 0;

	(void)state;
	assert_ok(cuFileBatchIOSetUp(&shared_batch, 8));
	assert_int_equal(pthread_create(&reader, NULL, read_events_loop, &got), 0);
	assert_int_equal(pthread_create(&canceller, NULL, cancel_loop, NULL), 0);
	for (unsigned i = 0; i < OPS;) {
		unsigned area = (unsigned)__builtin_ffs((int)atomic_load(&free_areas));
		int code;

		if (!area) {
			sched_yield();
			continue;
		}
		area--;
		param.u.batch.base_offset = (off_t)area * 9000;
		param.cookie = (void *)(size_t)area;
		atomic_fetch_and(&free_areas, ~(1u << area));
		code = cuFileBatchIOSubmit(shared_batch, 1, &param, 0).err;
		assert_true(!code || code == CUF_BATCH_FULL);
		if (!code)
			i++;
		else
			atomic_fetch_or(&free_areas, 1u << area);
	}
	while (__atomic_load_n(&got, __ATOMIC_SEQ_CST) < OPS)
		usleep(1000);
	atomic_store(&stop, true);
	pthread_join(reader, NULL);
	pthread_join(canceller, NULL);
	assert_int_equal(got, OPS);
	cuFileBatchIODestroy(shared_batch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(events_in_portions),
		cmocka_unit_test(writes_and_reads),
		cmocka_unit_test(full_batch),
		cmocka_unit_test(event_counts),
		cmocka_unit_test(timeouts),
		cmocka_unit_test(cancelled),
		cmocka_unit_test(destroyed_under_a_waiter),
		cmocka_unit_test(wrong_arguments),
		cmocka_unit_test(partly_refused),
		cmocka_unit_test(several_threads),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
