/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests path "rdma" with a storage that this file defines. A window is memory into which a server
 * moves bytes. Here, threads of this process are the server, called the far side. They write to
 * windows in the memory of a simulated GPU, refuse them, or lose their access. Each case compares
 * all bytes, and checks in which memory the windows were. tests/s3/device_windows tests the same
 * with real servers.
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

#define LEN ((40u << 20) + 4097)
#define SECONDS 60

static unsigned char *bytes, *back;
static struct penstock_device *host, *gpu, *other;

/* The faults that a case sets for the simulated server (the far side), and the events that this
 * server counts. */
static struct {
	bool unreachable;	      /* the server cannot access memory of a device */
	bool no_memory;		      /* devices have no memory left for windows */
	_Atomic int refuse;	      /* how many transfers into device memory it refuses */
	_Atomic int spoil;	      /* how many transfers into device memory it loses */
	_Atomic int waits;	      /* number of transfers at whose end a stream begins to wait */
	_Atomic unsigned fills[2];    /* transfers into windows: [0] host, [1] device memory */
	_Atomic unsigned opened[2], closed[2];
	_Atomic unsigned busy;	      /* number of windows in device memory that are in use */
	_Atomic unsigned used_spoilt; /* transfers that used the window of a lost transfer */
} far;

struct far_window {
	struct pst_window window; /* the first member */
	_Atomic bool busy;
};

static void window_close(struct pst_window *window)
{
	struct far_window *own = (struct far_window *)window;

	assert_false(atomic_load(&own->busy));
	atomic_fetch_add(&far.closed[window->dev != NULL], 1);
	if (window->dev)
		assert_int_equal(window->dev->ops->free(window->dev, window->mem, NULL), 0);
	else
		free(window->mem);
	free(own);
}

static int window_open(struct penstock_storage *st, struct penstock_device *dev, size_t len,
		       struct pst_window **out, struct pst_err *err)
{
	struct far_window *own;
	void *mem = NULL;

	if (dev && far.no_memory)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "the device's memory is used up");
	own = calloc(1, sizeof(*own));
	if (dev)
		assert_int_equal(dev->ops->alloc(dev, len, &mem, err), 0);
	else
		assert_int_equal(posix_memalign(&mem, 4096, (len + 4095) & ~(size_t)4095), 0);
	own->window = (struct pst_window){.mem = mem,
					  .len = len,
					  .dev = dev,
					  .kind = st->facts.windows,
					  .close = window_close};
	atomic_fetch_add(&far.opened[dev != NULL], 1);
	*out = &own->window;
	return 0;
}

static int windows_reach(struct penstock_storage *st, struct penstock_device *dev,
			 enum penstock_op op, struct pst_err *err)
{
	(void)st;
	(void)dev;
	(void)op;
	return far.unreachable ? pst_fail(err, PENSTOCK_WHY_NO_WINDOW, "the far side has no GPU")
			       : 0;
}

/* Returns true if the fault must occur, and then decrements *left, the number of times that it
 * must still occur. */
static bool take(_Atomic int *left)
{
	int n = atomic_load(left);

	while (n > 0)
		if (atomic_compare_exchange_weak(left, &n, n - 1))
			return true;
	return false;
}

/* Moves the bytes of a transfer, or makes it fail, on a thread of the simulated server. */
static void *far_run(void *arg)
{
	struct pst_io *io = arg;
	struct far_window *own = (struct far_window *)io->window;
	struct penstock_device *dev = io->window->dev;
	uint64_t left = io->off < LEN ? LEN - io->off : 0, len = left < io->len ? left : io->len;
	int64_t result = (int64_t)len;

	if (dev && take(&far.refuse)) {
		result = pst_fail_errno(&io->err, EOPNOTSUPP, PENSTOCK_WHY_DECLINED, "refused");
	} else if (dev && take(&far.spoil)) {
		atomic_store(&io->window->spoiled, true);
		result = pst_fail_errno(&io->err, EIO, PENSTOCK_WHY_NO_WINDOW, "lost");
	} else if (dev) {
		test_copy(dev, io->window->mem, host, bytes + io->off, len);
	} else {
		memcpy(io->window->mem, bytes + io->off, len);
	}
	if (dev && take(&far.waits))
		pst_device_stream_enter(dev);
	io->by_window = result >= 0;
	io->engine = "far";
	atomic_store(&own->busy, false);
	pst_io_done(io, result);
	return NULL;
}

static int far_fill(struct pst_io *io)
{
	struct far_window *own = (struct far_window *)io->window;
	pthread_t thread;

	if (!own)
		return pst_fail(&io->err, PENSTOCK_WHY_NO_WINDOW, "this storage needs windows");
	assert_false(atomic_exchange(&own->busy, true));
	assert_true(own->window.len >= io->len);
	atomic_fetch_add(&far.used_spoilt, atomic_load(&own->window.spoiled));
	atomic_fetch_add(&far.fills[own->window.dev != NULL], 1);
	assert_int_equal(pthread_create(&thread, NULL, far_run, io), 0);
	pthread_detach(thread);
	return 0;
}

static int far_open(struct penstock_storage *st, const char *url, int fd,
		    const struct penstock_storage_opts *opts, struct pst_err *err)
{
	(void)url;
	(void)fd;
	(void)opts;
	(void)err;
	st->facts.length = LEN;
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
					       .fill = far_fill,
					       .window_open = window_open,
					       .windows_reach = windows_reach};

/* ---- reads ---- */

/* The outcome of a read: the report, and the report's row for path "rdma". */
struct result {
	struct penstock_report report;
	const struct penstock_report_path *row;
	unsigned fills[2]; /* transfers into windows in host memory, and in a device */
};

/* Reads into segments. The caller compares the bytes. */
static void read_segs(struct penstock_storage *st, const struct penstock_seg *segs, unsigned count,
		      struct result *out)
{
	struct penstock_req req = test_request(st, segs, count, PENSTOCK_READ);
	int64_t n;

	atomic_store(&far.fills[0], 0);
	atomic_store(&far.fills[1], 0);
	out->report = (struct penstock_report)PENSTOCK_REPORT_INIT;
	n = penstock_transfer(&req, &out->report);
	if (n < 0)
		fail_msg("read: %s", penstock_errmsg());
	out->row = NULL;
	for (unsigned i = 0; i < out->report.path_count; i++)
		if (!strcmp(out->report.paths[i].name, "rdma"))
			out->row = &out->report.paths[i];
	assert_non_null(out->row);
	for (unsigned i = 0; i < 2; i++)
		out->fills[i] = atomic_load(&far.fills[i]);
	printf("# %lld bytes, rdma %llu (%s: %s), retries %llu, windows: %u host, %u device\n",
	       (long long)n, (unsigned long long)out->row->bytes, penstock_why_name(out->row->why),
	       out->row->text, (unsigned long long)out->report.retries, out->fills[0],
	       out->fills[1]);
}

static struct penstock_storage *open_far(void)
{
	struct penstock_storage *st;
	struct pst_err err;

	assert_int_equal(pst_storage_open_ops(&far_ops, "far:", -1, NULL, &st, &err), 0);
	return st;
}

/* Reads all bytes into memory of the GPU, and compares them. */
static void read_all(struct penstock_storage *st, void *mem, struct result *out)
{
	struct penstock_seg seg = {.buf = mem, .dev = gpu, .row_len = LEN, .rows = 1};

	memset(back, 0xee, LEN);
	test_copy(gpu, mem, host, back, LEN);
	read_segs(st, &seg, 1, out);
	test_copy(host, back, gpu, mem, LEN);
	assert_int_equal(out->row->bytes, LEN);
	assert_memory_equal(back, bytes, LEN);
	assert_int_equal(atomic_load(&far.used_spoilt), 0);
}

static int setup(void **state)
{
	uint64_t seed = test_seed(20);

	(void)state;
	memset(&far, 0, sizeof(far));
	bytes = malloc(LEN);
	back = malloc(LEN);
	for (unsigned i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)test_random(&seed);
	return !bytes || !back || penstock_device_open("host", NULL, &host) < 0 ||
	       penstock_device_open("cuda:0", NULL, &gpu) < 0 ||
	       penstock_device_open("cuda:1", NULL, &other) < 0;
}

/* Closes the devices. Then every window must be closed. */
static int teardown(void **state)
{
	(void)state;
	penstock_device_close(gpu);
	penstock_device_close(other);
	penstock_device_close(host);
	free(bytes);
	free(back);
	for (unsigned i = 0; i < 2; i++)
		if (atomic_load(&far.opened[i]) != atomic_load(&far.closed[i])) {
			printf("# %u windows opened, %u closed\n", atomic_load(&far.opened[i]),
			       atomic_load(&far.closed[i]));
			return -1;
		}
	return 0;
}

/* ---- cases ---- */

static void bytes_pass_through_the_device(void **state)
{
	struct penstock_storage *st = open_far();
	struct result r;
	void *mem;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, LEN, &mem), 0);
	for (unsigned i = 0; i < 3; i++) {
		read_all(st, mem, &r);
		assert_int_equal(r.fills[0], 0);
		assert_int_equal(r.report.dram_laid, 0);
		assert_int_equal(r.report.retries, 0);
		assert_string_equal(r.row->text, "windows in the memory of cuda:0");
	}
	assert_int_equal(atomic_load(&far.opened[0]), 0);
	assert_in_range(atomic_load(&far.opened[1]), 1, 16);
	penstock_free(gpu, mem);
	penstock_close(st);
}

/* Reads rows with gaps in the storage and in memory, at odd addresses, and single bytes. */
static void rows_are_placed(void **state)
{
	struct penstock_storage *st = open_far();
	struct penstock_seg segs[3];
	struct result r;
	char *mem;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, LEN, (void **)&mem), 0);
	memset(back, 0xee, LEN);
	test_copy(gpu, mem, host, back, LEN);
	segs[0] = (struct penstock_seg){.buf = mem + 3,
					.dev = gpu,
					.off = 77,
					.row_len = 1001,
					.rows = 900,
					.buf_pitch = 1003,
					.pitch = 2000};
	segs[1] = (struct penstock_seg){.buf = mem + (2 << 20) + 1,
					.dev = gpu,
					.off = 4 << 20,
					.row_len = 9000001,
					.rows = 1};
	segs[2] = (struct penstock_seg){.buf = mem + (20 << 20) + 1,
					.dev = gpu,
					.off = 39 << 20,
					.row_len = 1,
					.rows = 1};
	read_segs(st, segs, 3, &r);
	test_copy(host, back, gpu, mem, LEN);
	for (unsigned i = 0; i < 900; i++) {
		assert_memory_equal(back + 3 + i * 1003, bytes + 77 + i * 2000, 1001);
		assert_int_equal(back[3 + i * 1003 + 1001], 0xee);
	}
	assert_memory_equal(back + (2 << 20) + 1, bytes + (4 << 20), 9000001);
	assert_int_equal(back[(2 << 20) + 9000002], 0xee);
	assert_int_equal(back[(20 << 20) + 1], bytes[39 << 20]);
	assert_int_equal(back[(20 << 20) + 2], 0xee);
	assert_int_equal(r.fills[0], 0);
	penstock_free(gpu, mem);
	penstock_close(st);
}

/* If the simulated server refuses a window in device memory, the chunk starts again with a window
 * in host memory. Later chunks use host memory at once. */
static void refused_windows_move_to_the_host(void **state)
{
	struct penstock_storage *st = open_far();
	struct result r;
	void *mem;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, LEN, &mem), 0);
	atomic_store(&far.refuse, 1000);
	read_all(st, mem, &r);
	assert_int_equal(r.report.dram_laid, LEN);
	assert_int_equal(r.row->why, PENSTOCK_WHY_DECLINED);
	assert_int_equal(r.report.retries, r.fills[1]);
	assert_true(r.fills[1] > 0);
	/* The lanes (threads that move chunks) remember the refusal for some seconds. */
	atomic_store(&far.refuse, 0);
	read_all(st, mem, &r);
	assert_true(r.fills[0] > 0);
	assert_int_equal(r.row->why, PENSTOCK_WHY_DECLINED);
	assert_int_equal(r.report.retries, 0);
	penstock_free(gpu, mem);
	penstock_close(st);
}

static void unreachable_devices_have_host_windows(void **state)
{
	struct penstock_storage *st = open_far();
	struct result r;
	void *mem;

	(void)state;
	far.unreachable = true;
	assert_int_equal(penstock_alloc(gpu, LEN, &mem), 0);
	read_all(st, mem, &r);
	assert_int_equal(r.fills[1], 0);
	assert_string_equal(r.row->text, "windows in host memory: the far side has no GPU");
	penstock_free(gpu, mem);
	penstock_close(st);
}

static void devices_without_memory_have_host_windows(void **state)
{
	struct penstock_storage *st = open_far();
	struct result r;
	void *mem;

	(void)state;
	far.no_memory = true;
	assert_int_equal(penstock_alloc(gpu, LEN, &mem), 0);
	read_all(st, mem, &r);
	assert_int_equal(r.fills[1], 0);
	assert_int_equal(r.row->why, PENSTOCK_WHY_NO_MEMORY);
	assert_true(r.report.retries > 0);
	penstock_free(gpu, mem);
	penstock_close(st);
}

/* For a chunk with bytes for two devices, the server writes to a window in host memory. */
static void chunks_of_two_devices_use_host_windows(void **state)
{
	enum { ROW = 700001, COUNT = 40 };
	struct penstock_storage *st = open_far();
	struct penstock_seg segs[COUNT];
	char *mem[2];
	struct result r;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, LEN, (void **)&mem[0]), 0);
	assert_int_equal(penstock_alloc(other, LEN, (void **)&mem[1]), 0);
	for (unsigned i = 0; i < COUNT; i++)
		segs[i] = (struct penstock_seg){.buf = mem[i & 1] + i * ROW,
						.dev = i & 1 ? other : gpu,
						.off = i * ROW,
						.row_len = ROW,
						.rows = 1};
	read_segs(st, segs, COUNT, &r);
	for (unsigned i = 0; i < COUNT; i++) {
		test_copy(host, back, i & 1 ? other : gpu, mem[i & 1] + i * ROW, ROW);
		assert_memory_equal(back, bytes + i * ROW, ROW);
	}
	assert_true(r.fills[0] > 0);
	penstock_free(gpu, mem[0]);
	penstock_free(other, mem[1]);
	penstock_close(st);
}

/* After a lost transfer, a server may still write to the transfer's window, which is memory that
 * the library gave it. So the library closes this window and does not use it again. */
static void spoilt_windows_are_closed(void **state)
{
	struct penstock_storage *st = open_far();
	struct penstock_seg seg = {.row_len = LEN, .rows = 1, .dev = gpu};
	struct penstock_req req = test_request(st, &seg, 1, PENSTOCK_READ);
	struct result r;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, LEN, &seg.buf), 0);
	read_all(st, seg.buf, &r);
	/* The request fails: this storage allows no other path than rdma. */
	atomic_store(&far.spoil, 3);
	assert_int_equal(penstock_transfer(&req, NULL), -EIO);
	atomic_store(&far.spoil, 0);
	read_all(st, seg.buf, &r);
	assert_int_equal(r.fills[0], 0);
	assert_in_range(atomic_load(&far.closed[1]), 1, 3);
	penstock_free(gpu, seg.buf);
	penstock_close(st);
}

/* While a stream waits for a request, the library gives the server no windows in device memory.
 * The copies out of such windows could wait for that stream. */
static void waiting_streams_exclude_device_windows(void **state)
{
	struct penstock_storage *st = open_far();
	struct result r;
	void *mem;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, LEN, &mem), 0);
	assert_int_equal(penstock_prepare(st, gpu, PENSTOCK_READ), 0);
	pst_device_stream_enter(gpu);
	/* A stream that waits does not block read_all: its helper test_copy copies by the device's
	 * lanes, not by the queue of a stream. */
	read_all(st, mem, &r);
	assert_int_equal(r.fills[1], 0);
	pst_device_stream_leave(gpu);
	read_all(st, mem, &r);
	assert_int_equal(r.fills[0], 0);
	/* A stream begins to wait after the server has written the first bytes to a window. */
	atomic_store(&far.waits, 1);
	read_all(st, mem, &r);
	assert_int_equal(r.row->why, PENSTOCK_WHY_STREAM_ORDER);
	assert_true(r.fills[0] > 0 && r.fills[1] > 0 && r.report.retries > 0);
	pst_device_stream_leave(gpu);
	penstock_free(gpu, mem);
	penstock_close(st);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(bytes_pass_through_the_device, setup, teardown),
		cmocka_unit_test_setup_teardown(rows_are_placed, setup, teardown),
		cmocka_unit_test_setup_teardown(refused_windows_move_to_the_host, setup, teardown),
		cmocka_unit_test_setup_teardown(unreachable_devices_have_host_windows, setup,
						teardown),
		cmocka_unit_test_setup_teardown(devices_without_memory_have_host_windows, setup,
						teardown),
		cmocka_unit_test_setup_teardown(chunks_of_two_devices_use_host_windows, setup,
						teardown),
		cmocka_unit_test_setup_teardown(spoilt_windows_are_closed, setup, teardown),
		cmocka_unit_test_setup_teardown(waiting_streams_exclude_device_windows, setup,
						teardown),
	};

	test_use_standin();
	if (!getenv("PENSTOCK_STANDIN") || strcmp(getenv("PENSTOCK_STANDIN"), "0") != 0)
		setenv("PENSTOCK_STANDIN_DEVICES", "2", 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
