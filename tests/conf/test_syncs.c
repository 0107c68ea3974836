/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests what a failed sync means: every durable request in flight on the storage fails, and no
 * later commit of that storage is durable. If the sync failed only because the page cache kept
 * old bytes, nothing is lost: the library repeats the direct write, and the request succeeds.
 * The linker wraps the system calls, so the test decides their results. The files are real.
 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/vfs.h>

#include "device/cuda_api.h"
#include "penstock.h"
#include "request.h"

#define LEN (64u << 10)

static struct penstock_device *dev;
static struct penstock_storage *st;
static unsigned char *mem;
static char name[256];
/* True if every error of syncfs on the file system of TMPDIR means that written bytes are lost
 * (ext4, XFS). */
static bool losses_reported;

/* ---- the wrappers ---- */

/* For each wrapped function: how many of its next calls fail, and the errno of these failures. */
static struct {
	_Atomic int left;
	int code;
} fail_fdatasync, fail_fsync, fail_syncfs, fail_range;
static _Atomic unsigned synced, fs_calls, direct_writes;

static bool take_failure(_Atomic int *left, int code)
{
	if (atomic_load(left) <= 0)
		return false;
	atomic_fetch_sub(left, 1);
	errno = code;
	return true;
}

/* State of fail_first_of_two, which makes two concurrent syncs end in a fixed order. The first
 * sync fails after the second has started, and then the second succeeds. `pairing` is the number
 * of syncs that have yet to start. */
static _Atomic int pairing;
static sem_t both, second;

static int fail_first_of_two(int turn)
{
	sem_t *sem = turn == 2 ? &both : &second;

	if (turn == 1)
		sem_post(&both);
	while (sem_wait(sem) && errno == EINTR)
		;
	errno = EIO;
	return turn == 2 ? -1 : 0;
}

int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);
int __wrap_fdatasync(int fd)
{
	int turn = atomic_load(&pairing);

	synced++;
	while (turn > 0 && !atomic_compare_exchange_weak(&pairing, &turn, turn - 1))
		;
	if (turn > 0)
		return fail_first_of_two(turn);
	return take_failure(&fail_fdatasync.left, fail_fdatasync.code) ? -1 : __real_fdatasync(fd);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
	return take_failure(&fail_fsync.left, fail_fsync.code) ? -1 : __real_fsync(fd);
}

/* The wrapper does not call the real syncfs, because the real one writes all dirty files of the
 * file system. */
int __wrap_syncfs(int fd);
int __wrap_syncfs(int fd)
{
	(void)fd;
	fs_calls++;
	return take_failure(&fail_syncfs.left, fail_syncfs.code) ? -1 : 0;
}

int __real_sync_file_range(int fd, off_t off, off_t len, unsigned flags);
int __wrap_sync_file_range(int fd, off_t off, off_t len, unsigned flags);
int __wrap_sync_file_range(int fd, off_t off, off_t len, unsigned flags)
{
	return take_failure(&fail_range.left, fail_range.code)
		       ? -1
		       : __real_sync_file_range(fd, off, len, flags);
}

ssize_t __real_pwrite64(int fd, const void *buf, size_t len, off_t off);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t len, off_t off);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t len, off_t off)
{
	direct_writes += (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
	return __real_pwrite64(fd, buf, len, off);
}

/* ---- a file ---- */

static int open_storage(void **state)
{
	struct penstock_storage_opts how = PENSTOCK_STORAGE_OPTS_INIT;

	(void)state;
	fail_fdatasync.left = fail_fsync.left = fail_syncfs.left = fail_range.left = 0;
	fs_calls = direct_writes = 0;
	how.flags = PENSTOCK_O_WRITE | PENSTOCK_O_CREATE;
	unlink(name);
	if (penstock_open(name, &how, &st))
		fail_msg("%s", penstock_errmsg());
	for (unsigned i = 0; i < LEN; i++)
		mem[i] = (unsigned char)(i * 7 + i / 256);
	return 0;
}

static int close_storage(void **state)
{
	(void)state;
	penstock_close(st);
	unlink(name);
	return 0;
}

static int64_t write_bytes(uint64_t len, unsigned flags)
{
	struct penstock_seg seg = {.buf = mem, .dev = dev, .row_len = len};
	struct penstock_req req;

	req = test_request(st, &seg, 1, PENSTOCK_WRITE);
	req.flags = flags;
	return penstock_transfer(&req, NULL);
}

static int64_t write_all(unsigned flags)
{
	return write_bytes(LEN, flags);
}

static void expect_bytes(void)
{
	static unsigned char back[LEN];
	int fd = open(name, O_RDONLY);

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, back, LEN, 0), LEN);
	assert_memory_equal(back, mem, LEN);
	close(fd);
}

static void expect_commit_refused(void)
{
	/* This write succeeds although an earlier sync has failed, because its own sync succeeds.
	 */
	assert_int_equal(write_all(PENSTOCK_R_DURABLE), LEN);
	/* But the commit fails, because bytes of earlier writes may be lost. */
	assert_int_equal(penstock_commit(st, 1), -EIO);
	assert_non_null(strstr(penstock_errmsg(), "open it anew"));
	assert_int_equal(penstock_commit(st, 0), 0);
}

#define require_losses_reported()                                                          \
	do {                                                                               \
		if (!losses_reported)                                                      \
			test_skip("the file system of TMPDIR does not report lost writes " \
				  "separately");                                           \
	} while (0)

/* ---- cases ---- */

static void old_cached_bytes_are_rewritten(void **state)
{
	(void)state;
	require_losses_reported();
	assert_int_equal(write_all(0), LEN);
	assert_int_equal(direct_writes, 1);
	fail_range.left = fail_fdatasync.left = 1;
	fail_range.code = fail_fdatasync.code = EIO;
	memset(mem, 0x77, LEN);
	assert_int_equal(write_all(PENSTOCK_R_DURABLE), LEN);
	assert_int_equal(direct_writes, 3); /* the library has written the bytes again */
	assert_int_equal(fs_calls, 1);
	expect_bytes();
	assert_int_equal(write_all(PENSTOCK_R_DURABLE), LEN);
	assert_int_equal(direct_writes, 4);
	assert_int_equal(fs_calls, 1);
	/* Both sync calls of the commit fail. The library then calls syncfs, which succeeds. */
	fail_range.left = fail_fsync.left = 1;
	fail_fsync.code = EIO;
	assert_int_equal(penstock_commit(st, 1), 0);
	assert_int_equal(fs_calls, 2);
}

static void lost_bytes_fail_all_commits(void **state)
{
	(void)state;
	require_losses_reported();
	fail_range.left = fail_fdatasync.left = fail_syncfs.left = 1;
	fail_range.code = fail_fdatasync.code = fail_syncfs.code = EIO;
	assert_int_equal(write_all(PENSTOCK_R_DURABLE), -EIO);
	assert_int_equal(fs_calls, 1);
	expect_commit_refused();
	assert_int_equal(fs_calls, 1);
}

/* The drive fails to flush its cache. The kernel has not marked a page as stale, so the library
 * must treat the error as a loss of data. */
static void failed_flush_fails_the_request(void **state)
{
	(void)state;
	fail_fdatasync.left = 1;
	fail_fdatasync.code = EIO;
	assert_int_equal(write_all(PENSTOCK_R_DURABLE), -EIO);
	assert_int_equal(fs_calls, 0);
	expect_commit_refused();
}

static void failed_commit_stays_failed(void **state)
{
	(void)state;
	assert_int_equal(write_all(0), LEN);
	fail_fsync.left = 1;
	fail_fsync.code = EINTR;
	assert_int_equal(penstock_commit(st, 1), 0);
	fail_fsync.left = 1;
	fail_fsync.code = ENOSPC;
	assert_int_equal(penstock_commit(st, 1), -ENOSPC);
	assert_int_equal(penstock_commit(st, 1), -ENOSPC);
	assert_int_equal(penstock_commit(st, 0), 0);
}

/* The kernel reports a failed write only to the first of two syncs. The library must fail the
 * durable request of the second sync, too. */
static void failed_sync_fails_all_requests_in_flight(void **state)
{
	struct penstock_seg segs[2];
	struct penstock_req reqs[2] = {PENSTOCK_REQ_INIT, PENSTOCK_REQ_INIT};
	struct penstock_queue *q;
	struct penstock_done done;

	(void)state;
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	for (unsigned i = 0; i < 2; i++) {
		segs[i] = (struct penstock_seg){
			.buf = mem, .dev = dev, .off = i * LEN, .row_len = LEN};
		reqs[i].storage = st;
		reqs[i].segs = &segs[i];
		reqs[i].seg_count = 1;
		reqs[i].op = PENSTOCK_WRITE;
		reqs[i].flags = PENSTOCK_R_DURABLE;
	}
	pairing = 2;
	assert_int_equal(penstock_submit(q, reqs, 2, NULL), 2);
	assert_int_equal(penstock_wait(q, &done, 1, 1, 30000000000), 1);
	assert_int_equal(done.result, -EIO);
	sem_post(&second); /* lets the sync of the other request succeed */
	assert_int_equal(penstock_wait(q, &done, 1, 1, 30000000000), 1);
	assert_int_equal(done.result, -EIO);
	assert_non_null(strstr(done.report->text, "another request's sync"));
	assert_int_equal(penstock_submit(q, reqs, 2, NULL), 2);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(penstock_wait(q, &done, 1, 1, 30000000000), 1);
		assert_int_equal(done.result, LEN);
	}
	penstock_queue_close(q);
}

/* Small writes are synced too, although the caller's thread makes them itself. */
static void small_durable_writes_are_synced(void **state)
{
	(void)state;
	for (uint64_t len = 0; len < 9000; len += 1 + len * 3) {
		synced = 0;
		assert_int_equal(write_bytes(len, PENSTOCK_R_DURABLE), len);
		assert_int_equal(synced, 1);
	}
}

/* Durable requests in stream order have no bytes, because their submitted length or their late
 * length (which the stream supplies) is 0. The library still syncs earlier writes. */
static void empty_durable_request_in_stream_order(void **state)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	const uint64_t none = 0;
	struct penstock_late late = {.size = sizeof(late), .row_len = &none};
	struct penstock_seg seg = {.buf = NULL};
	struct penstock_req req;
	const struct pst_cuda *api = pst_cuda_get(NULL);
	struct pst_cu_stream *stream;
	struct pst_cu_ctx *ctx;
	struct penstock_queue *q;
	struct penstock_done done;

	(void)state;
	opts.engine = "threads";
	if (!api || penstock_device_open("cuda:0", &opts, &seg.dev) < 0)
		test_skip("no GPU: %s", penstock_errmsg());
	assert_int_equal(api->cuDevicePrimaryCtxRetain(&ctx, 0), PST_CU_OK);
	assert_int_equal(api->cuCtxSetCurrent(ctx), PST_CU_OK);
	assert_int_equal(penstock_alloc(seg.dev, 4096, &seg.buf), 0);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	assert_int_equal(api->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0),
			 PST_CU_OK);
	req = test_request(st, &seg, 1, PENSTOCK_WRITE);
	req.flags = PENSTOCK_R_DURABLE;
	req.stream = stream;
	for (unsigned i = 0; i < 2; i++) {
		req.late = i ? &late : NULL;
		seg.row_len = i ? 4096 : 0;
		synced = 0;
		assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
		assert_int_equal(penstock_wait(q, &done, 1, 1, 30000000000), 1);
		assert_int_equal(done.result, 0);
		assert_int_equal(synced, 1);
	}
	penstock_queue_close(q);
	penstock_free(seg.dev, seg.buf);
	api->cuStreamDestroy(stream);
	penstock_device_close(seg.dev);
	api->cuDevicePrimaryCtxRelease(0);
}

/* A durable request without a segment is refused, because the sync runs on a thread of the
 * segment's device. */
static void durable_request_without_segments(void **state)
{
	struct penstock_req req = PENSTOCK_REQ_INIT;

	(void)state;
	req.storage = st;
	req.op = PENSTOCK_WRITE;
	assert_int_equal(penstock_transfer(&req, NULL), 0);
	req.flags = PENSTOCK_R_DURABLE;
	synced = 0;
	assert_int_equal(penstock_transfer(&req, NULL), -EINVAL);
	assert_int_equal(synced, 0);
}

/* The library writes bytes again when the kernel reports the file's cached bytes as stale. If
 * every repeated write leads to the same report, the library stops after a limited number of
 * writes, and the request fails. */
static void rewriting_is_bounded(void **state)
{
	(void)state;
	require_losses_reported();
	fail_range.left = 1000000;
	fail_range.code = EIO;
	assert_int_equal(write_all(0), -EIO);
	assert_in_range(direct_writes, 2, 200);
	fail_range.left = 0;
	assert_int_equal(write_all(0), LEN);
	expect_bytes();
}

static int open_device(void **state)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	const char *tmp = getenv("TMPDIR");
	struct statfs fs;

	(void)state;
	tmp = tmp ? tmp : "/tmp";
	snprintf(name, sizeof(name), "%s/penstock-syncs-%d", tmp, (int)getpid());
	test_use_standin();
	opts.engine = "threads"; /* engine threads makes system calls that the linker can wrap */
	mem = aligned_alloc(4096, LEN);
	sem_init(&both, 0, 0);
	sem_init(&second, 0, 0);
	losses_reported = !statfs(tmp, &fs) &&
			  (fs.f_type == EXT4_SUPER_MAGIC || (unsigned long)fs.f_type == 0x58465342);
	return mem && penstock_device_open("host", &opts, &dev) >= 0 ? 0 : -1;
}

static int close_device(void **state)
{
	(void)state;
	penstock_device_close(dev);
	free(mem);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(old_cached_bytes_are_rewritten, open_storage,
						close_storage),
		cmocka_unit_test_setup_teardown(lost_bytes_fail_all_commits, open_storage,
						close_storage),
		cmocka_unit_test_setup_teardown(failed_flush_fails_the_request, open_storage,
						close_storage),
		cmocka_unit_test_setup_teardown(failed_commit_stays_failed, open_storage,
						close_storage),
		cmocka_unit_test_setup_teardown(empty_durable_request_in_stream_order, open_storage,
						close_storage),
		cmocka_unit_test_setup_teardown(durable_request_without_segments, open_storage,
						close_storage),
		cmocka_unit_test_setup_teardown(failed_sync_fails_all_requests_in_flight,
						open_storage, close_storage),
		cmocka_unit_test_setup_teardown(rewriting_is_bounded, open_storage, close_storage),
		cmocka_unit_test_setup_teardown(small_durable_writes_are_synced, open_storage,
						close_storage),
	};

	return cmocka_run_group_tests(tests, open_device, close_device);
}
