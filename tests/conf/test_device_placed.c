/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests writes of path "rdma" with a storage that this file defines. The storage finds memory for
 * the bytes of a GPU in a window of this GPU (PST_IO_PLACE), refuses that, or lets it wait. Each
 * case compares all bytes, wherever they are, and counts what the storage was asked for.
 * tests/s3/device_windows tests the same with real servers.
 */
#include "test.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "copy.h"
#include "request.h"

#include "core/api/storage.h"
#include "core/base/device_sync.h"
#include "core/lane/inbox.h"
#include "core/ops.h"
#include "device/cuda_api.h"

#define LEN ((20u << 20) + 4097)

enum where { NOWHERE, IN_WINDOW, IN_HOST };

static unsigned char *bytes, *back;
static struct penstock_device *host, *gpu, *other;
static char *mem; /* the bytes that are written, on the GPU */

/* The state of the storage that this file defines. A case sets some members, and the storage counts
 * in others. A placement is a drain with PST_IO_PLACE: the storage finds memory for it in a
 * window. */
static struct {
	uint64_t split;		 /* placements end at multiples of this number; 0: anywhere */
	bool unreachable;	 /* no windows are in the memory of a device */
	_Atomic int refuse;	 /* number of placements to refuse within the call */
	_Atomic int refuse_late; /* number of placements to refuse after the call has returned */
	_Atomic int late;	 /* number of placements to serve after the call has returned */
	_Atomic int waits;	 /* number of placements during which a stream begins to wait */
	_Atomic unsigned placements, open, returned, drains;
	struct pst_window window; /* of LEN bytes */
	unsigned char *copy;	  /* the bytes that came from host memory */
	unsigned char *where;	  /* enum where, for each byte */
} far;

static bool take(_Atomic int *left)
{
	int n = atomic_load(left);

	while (n > 0)
		if (atomic_compare_exchange_weak(left, &n, n - 1))
			return true;
	return false;
}

/* Finds memory for a placement. */
static void place(struct pst_io *io)
{
	uint64_t end = far.split ? (io->off / far.split + 1) * far.split : UINT64_MAX;

	io->window = &far.window;
	io->one.iov_base = far.window.mem + io->off;
	io->result = (int64_t)(end - io->off < io->len ? end - io->off : io->len);
	atomic_fetch_add(&far.open, 1);
	if (take(&far.waits))
		pst_device_stream_enter(gpu);
}

static void *place_late(void *arg)
{
	struct pst_io *io = arg;

	if (take(&far.refuse_late)) {
		pst_fail_errno(&io->err, EOPNOTSUPP, PENSTOCK_WHY_DECLINED, "refused late");
		pst_io_done(io, -EOPNOTSUPP);
		return NULL;
	}
	place(io);
	pst_io_done(io, io->result);
	return NULL;
}

static int far_place(struct pst_io *io)
{
	pthread_t thread;

	assert_ptr_equal(io->dev, gpu);
	atomic_fetch_add(&far.placements, 1);
	io->engine = "far";
	if (take(&far.refuse))
		return pst_fail_errno(&io->err, EOPNOTSUPP, PENSTOCK_WHY_NO_WINDOW, "refused");
	if (atomic_load(&far.refuse_late) || take(&far.late)) {
		assert_int_equal(pthread_create(&thread, NULL, place_late, io), 0);
		pthread_detach(thread);
		return 0;
	}
	place(io);
	io->done(io);
	return 0;
}

static int far_drain(struct pst_io *io)
{
	if (io->flags & PST_IO_PLACE)
		return far_place(io);
	assert_true(io->flags & PST_IO_FAR);
	atomic_fetch_add(&far.drains, 1);
	memcpy(far.copy + io->off, io->one.iov_base, io->len);
	memset(far.where + io->off, IN_HOST, io->len);
	io->engine = "far";
	io->result = (int64_t)io->len;
	io->done(io);
	return 0;
}

static int far_placed(struct penstock_storage *st, uint64_t off, uint64_t len, bool copied,
		      struct pst_err *err)
{
	(void)st;
	(void)err;
	atomic_fetch_sub(&far.open, 1);
	atomic_fetch_add(&far.returned, !copied);
	if (copied)
		memset(far.where + off, IN_WINDOW, len);
	return 0;
}

static int far_window_open(struct penstock_storage *st, struct penstock_device *dev, size_t len,
			   struct pst_window **out, struct pst_err *err)
{
	(void)st, (void)dev, (void)len, (void)out;
	return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED, "writes need no windows of lanes");
}

static int windows_reach(struct penstock_storage *st, struct penstock_device *dev,
			 enum penstock_op op, struct pst_err *err)
{
	(void)st, (void)dev;
	assert_int_equal(op, PENSTOCK_WRITE);
	return far.unreachable ? pst_fail(err, PENSTOCK_WHY_NO_WINDOW, "the far side has no GPU")
			       : 0;
}

static int far_open(struct penstock_storage *st, const char *url, int fd,
		    const struct penstock_storage_opts *opts, struct pst_err *err)
{
	(void)url, (void)fd, (void)opts, (void)err;
	st->facts.writable = true;
	st->facts.chunk_best = 4u << 20;
	st->facts.windows = &far;
	st->facts.windows_only = true;
	return 0;
}

static void far_close(struct penstock_storage *st)
{
	(void)st;
}

static const struct pst_storage_ops far_ops = {.name = "far",
					       .open = far_open,
					       .close = far_close,
					       .drain = far_drain,
					       .window_open = far_window_open,
					       .windows_reach = windows_reach,
					       .placed = far_placed};

static struct penstock_storage *open_far(void)
{
	struct penstock_storage *st;
	struct pst_err err;

	assert_int_equal(pst_storage_open_ops(&far_ops, "far:", -1, NULL, &st, &err), 0);
	return st;
}

/* ---- writes ---- */

static void far_clear(void)
{
	atomic_store(&far.placements, 0);
	atomic_store(&far.returned, 0);
	atomic_store(&far.drains, 0);
	memset(far.copy, 0xee, LEN);
	memset(far.where, NOWHERE, LEN);
	memset(back, 0xee, LEN);
	test_copy(gpu, far.window.mem, host, back, LEN);
}

/* Counts the bytes of the segments that came into the window, and compares all bytes. */
static uint64_t far_check(const struct penstock_seg *segs, unsigned count)
{
	uint64_t in_window = 0;

	assert_int_equal(atomic_load(&far.open), 0);
	test_copy(host, back, gpu, far.window.mem, LEN);
	for (unsigned s = 0; s < count; s++)
		for (uint64_t i = segs[s].off; i < segs[s].off + segs[s].row_len; i++) {
			const enum where where = (enum where)far.where[i];
			const unsigned char found = where == IN_WINDOW ? back[i] : far.copy[i];

			if (where == NOWHERE || found != bytes[i])
				fail_msg("byte %llu: %u in place %d, expected %u",
					 (unsigned long long)i, found, (int)where, bytes[i]);
			in_window += where == IN_WINDOW;
		}
	return in_window;
}

/* Writes the segments. Returns the number of bytes in the window. */
static uint64_t write_segs(struct penstock_storage *st, const struct penstock_seg *segs,
			   unsigned count, struct penstock_report *report)
{
	struct penstock_req req = test_request(st, segs, count, PENSTOCK_WRITE);
	uint64_t in_window;

	far_clear();
	*report = (struct penstock_report)PENSTOCK_REPORT_INIT;
	if (penstock_transfer(&req, report) < 0)
		fail_msg("write: %s", report->text);
	in_window = far_check(segs, count);
	printf("# %llu bytes in the window, %u placements (%u returned), %u drains, retries %llu\n",
	       (unsigned long long)in_window, atomic_load(&far.placements),
	       atomic_load(&far.returned), atomic_load(&far.drains),
	       (unsigned long long)report->retries);
	return in_window;
}

static const struct penstock_report_path *rdma_row(const struct penstock_report *report)
{
	for (unsigned i = 0; i < report->path_count; i++)
		if (!strcmp(report->paths[i].name, "rdma"))
			return &report->paths[i];
	fail_msg("the report has no path rdma");
	return NULL;
}

/* Writes all bytes of the GPU with one request. */
static uint64_t write_all(struct penstock_storage *st, struct penstock_report *report)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = LEN, .rows = 1};

	return write_segs(st, &seg, 1, report);
}

static int setup(void **state)
{
	uint64_t seed = test_seed(26);

	(void)state;
	memset(&far, 0, sizeof(far));
	bytes = malloc(LEN);
	back = malloc(LEN);
	far.copy = malloc(LEN);
	far.where = malloc(LEN);
	for (unsigned i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)test_random(&seed);
	if (penstock_device_open("host", NULL, &host) < 0 ||
	    penstock_device_open("cuda:0", NULL, &gpu) < 0 ||
	    penstock_device_open("cuda:1", NULL, &other) < 0 ||
	    penstock_alloc(gpu, LEN, (void **)&mem) ||
	    penstock_alloc(gpu, LEN, (void **)&far.window.mem))
		return -1;
	far.window.len = LEN;
	far.window.dev = gpu;
	far.window.kind = &far;
	test_copy(gpu, mem, host, bytes, LEN);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	penstock_free(gpu, far.window.mem);
	penstock_free(gpu, mem);
	penstock_device_close(gpu);
	penstock_device_close(other);
	penstock_device_close(host);
	free(bytes);
	free(back);
	free(far.copy);
	free(far.where);
	return 0;
}

/* ---- cases ---- */

static void bytes_stay_on_the_device(void **state)
{
	struct penstock_storage *st = open_far();
	struct penstock_report report;

	(void)state;
	assert_int_equal(write_all(st, &report), LEN);
	assert_int_equal(report.dram_laid, 0);
	assert_int_equal(report.retries, 0);
	assert_int_equal(atomic_load(&far.drains), 0);
	assert_int_equal(rdma_row(&report)->bytes, LEN);
	assert_string_equal(rdma_row(&report)->text, "windows in the memory of cuda:0");
	penstock_close(st);
}

/* A window may end anywhere in a chunk. Then the rest of the chunk goes into other windows. */
static void chunks_are_split(void **state)
{
	static const uint64_t splits[] = {(1 << 20) + 1, 8 << 20, 12345, 4 << 20};
	struct penstock_storage *st = open_far();
	struct penstock_report report;

	(void)state;
	for (unsigned i = 0; i < sizeof(splits) / sizeof(splits[0]); i++) {
		far.split = splits[i];
		atomic_store(&far.late, i == 1 ? 1000 : 0);
		assert_int_equal(write_all(st, &report), LEN);
		assert_int_equal(report.retries, 0);
		assert_true(atomic_load(&far.placements) >= LEN / splits[i]);
	}
	penstock_close(st);
}

/* Rows with gaps in memory, at odd addresses, become one range of the window, without gaps. */
static void rows_are_gathered(void **state)
{
	enum { ROW = 1001, ROWS = 900, PITCH = 1003 };
	struct penstock_storage *st = open_far();
	struct penstock_report report;
	struct penstock_seg segs[2];
	char *rows;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, ROWS * PITCH + 16, (void **)&rows), 0);
	for (unsigned i = 0; i < ROWS; i++)
		test_copy(gpu, rows + 3 + i * PITCH, host, bytes + 77 + i * ROW, ROW);
	far_clear();
	segs[0] = (struct penstock_seg){.buf = rows + 3,
					.dev = gpu,
					.off = 77,
					.row_len = ROW,
					.rows = ROWS,
					.buf_pitch = PITCH,
					.pitch = ROW};
	segs[1] = (struct penstock_seg){.buf = mem + (3 << 20) + 1,
					.dev = gpu,
					.off = (3 << 20) + 1,
					.row_len = 1,
					.rows = 1};
	write_segs(st, segs, 2, &report);
	segs[0].row_len = ROW * ROWS;
	assert_int_equal(far_check(segs, 2), ROW * ROWS + 1);
	penstock_free(gpu, rows);
	penstock_close(st);
}

static void refused_placements_use_host_memory(void **state)
{
	struct penstock_storage *st = open_far();
	struct penstock_report report;

	(void)state;
	atomic_store(&far.refuse, 1);
	assert_in_range(write_all(st, &report), 1, LEN - 1);
	assert_int_equal(report.retries, 0);
	assert_int_equal(rdma_row(&report)->why, PENSTOCK_WHY_NO_WINDOW);
	assert_int_equal(atomic_load(&far.drains), 1);
	atomic_store(&far.refuse, 1000);
	assert_int_equal(write_all(st, &report), 0);
	assert_int_equal(report.dram_laid, LEN);
	atomic_store(&far.refuse, 0);
	/* A refusal after the call starts the chunk again. The lane remembers the refusal. */
	atomic_store(&far.refuse_late, 1);
	assert_in_range(write_all(st, &report), 0, LEN - 1);
	assert_int_equal(report.retries, 1);
	assert_int_equal(rdma_row(&report)->why, PENSTOCK_WHY_DECLINED);
	penstock_close(st);
}

static void unreachable_devices_use_host_memory(void **state)
{
	struct penstock_storage *st = open_far();
	struct penstock_report report;

	(void)state;
	far.unreachable = true;
	assert_int_equal(write_all(st, &report), 0);
	assert_int_equal(atomic_load(&far.placements), 0);
	assert_string_equal(rdma_row(&report)->text,
			    "windows in host memory: the far side has no GPU");
	penstock_close(st);
}

/* A chunk with bytes of two devices goes through host memory. */
static void chunks_of_two_devices_use_host_memory(void **state)
{
	enum { ROW = 700001, COUNT = 20 };
	struct penstock_storage *st = open_far();
	struct penstock_seg segs[COUNT];
	struct penstock_report report;
	char *copy;

	(void)state;
	assert_int_equal(penstock_alloc(other, LEN, (void **)&copy), 0);
	test_copy(other, copy, host, bytes, LEN);
	for (unsigned i = 0; i < COUNT; i++)
		segs[i] = (struct penstock_seg){.buf = (i & 1 ? copy : mem) + i * ROW,
						.dev = i & 1 ? other : gpu,
						.off = i * ROW,
						.row_len = ROW,
						.rows = 1};
	assert_in_range(write_segs(st, segs, COUNT, &report), 0, ROW * COUNT - 1);
	assert_true(atomic_load(&far.drains) > 0);
	penstock_free(other, copy);
	penstock_close(st);
}

/* While a stream waits for a request, no copy within the device is queued: it could wait for the
 * stream. */
static void waiting_streams_use_host_memory(void **state)
{
	struct penstock_storage *st = open_far();
	struct penstock_report report;

	(void)state;
	assert_int_equal(penstock_prepare(st, gpu, PENSTOCK_WRITE), 0);
	pst_device_stream_enter(gpu);
	assert_int_equal(write_all(st, &report), 0);
	assert_int_equal(atomic_load(&far.placements), 0);
	assert_int_equal(rdma_row(&report)->why, PENSTOCK_WHY_STREAM_ORDER);
	pst_device_stream_leave(gpu);
	assert_int_equal(write_all(st, &report), LEN);
	/* The stream begins to wait when the first memory has been found. */
	atomic_store(&far.waits, 1);
	assert_in_range(write_all(st, &report), 0, LEN - 1);
	assert_true(atomic_load(&far.returned) > 0);
	assert_int_equal(report.retries, atomic_load(&far.returned));
	pst_device_stream_leave(gpu);
	penstock_close(st);
}

/* A request in stream order never asks for a window: nothing that it needs may call the driver. */
static void stream_order_uses_host_memory(void **state)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = 8 << 20, .rows = 1};
	const struct pst_cuda *api = pst_cuda_get(NULL);
	struct penstock_storage *st = open_far();
	struct penstock_req req = test_request(st, &seg, 1, PENSTOCK_WRITE);
	struct penstock_queue *q;
	struct pst_cu_stream *stream;
	struct pst_cu_ctx *ctx;

	(void)state;
	assert_int_equal(api->cuDevicePrimaryCtxRetain(&ctx, 0), PST_CU_OK);
	assert_int_equal(api->cuCtxSetCurrent(ctx), PST_CU_OK);
	assert_int_equal(api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0),
			 PST_CU_OK);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	far_clear();
	req.stream = stream;
	if (penstock_submit(q, &req, 1, NULL) != 1)
		fail_msg("submit: %s", penstock_errmsg());
	assert_int_equal(api->cuStreamSynchronize(stream), PST_CU_OK);
	penstock_queue_close(q);
	assert_int_equal(atomic_load(&far.placements), 0);
	assert_int_equal(far_check(&seg, 1), 0);
	api->cuStreamDestroy(stream);
	penstock_close(st);
	api->cuDevicePrimaryCtxRelease(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(bytes_stay_on_the_device, setup, teardown),
		cmocka_unit_test_setup_teardown(chunks_are_split, setup, teardown),
		cmocka_unit_test_setup_teardown(rows_are_gathered, setup, teardown),
		cmocka_unit_test_setup_teardown(refused_placements_use_host_memory, setup,
						teardown),
		cmocka_unit_test_setup_teardown(unreachable_devices_use_host_memory, setup,
						teardown),
		cmocka_unit_test_setup_teardown(chunks_of_two_devices_use_host_memory, setup,
						teardown),
		cmocka_unit_test_setup_teardown(waiting_streams_use_host_memory, setup, teardown),
		cmocka_unit_test_setup_teardown(stream_order_uses_host_memory, setup, teardown),
	};

	test_use_standin();
	if (!getenv("PENSTOCK_STANDIN") || strcmp(getenv("PENSTOCK_STANDIN"), "0") != 0)
		setenv("PENSTOCK_STANDIN_DEVICES", "2", 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
