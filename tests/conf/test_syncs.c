/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a sync that fails means: every request that was under way is told, and no commit of
 * that handle is durable any more. Old bytes that the page cache kept are no loss: the
 * direct write is made again and the request succeeds. The kernel's answers come from the
 * wrappers below, which the linker puts in front of libc's; the files are real.
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

#define LEN (64u << 10)

static struct penstock_device *dev;
static struct penstock_storage *st;
static unsigned char *mem;
static char name[256];
static bool told; /* what lies beneath TMPDIR tells losses apart */

/* ---- the wrappers ---- */

/* How many calls fail from now on, and how. */
static struct {
	_Atomic int left;
	int code;
} fail_data, fail_whole, fail_fs, fail_look;
static _Atomic unsigned synced, fs_calls, direct_writes;

static bool fails(_Atomic int *left, int code)
{
	if (atomic_load(left) <= 0)
		return false;
	atomic_fetch_sub(left, 1);
	errno = code;
	return true;
}

/* Of two calls the first fails when the second has come, and that one waits. */
static _Atomic int pairing;
static sem_t both, second;

static int in_pairs(int turn)
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
		return in_pairs(turn);
	return fails(&fail_data.left, fail_data.code) ? -1 : __real_fdatasync(fd);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
	return fails(&fail_whole.left, fail_whole.code) ? -1 : __real_fsync(fd);
}

/* Not the real one: it writes all files of the machine. */
int __wrap_syncfs(int fd);
int __wrap_syncfs(int fd)
{
	(void)fd;
	fs_calls++;
	return fails(&fail_fs.left, fail_fs.code) ? -1 : 0;
}

int __real_sync_file_range(int fd, off_t off, off_t len, unsigned flags);
int __wrap_sync_file_range(int fd, off_t off, off_t len, unsigned flags);
int __wrap_sync_file_range(int fd, off_t off, off_t len, unsigned flags)
{
	return fails(&fail_look.left, fail_look.code) ? -1
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

static int setup(void **state)
{
	struct penstock_storage_opts how = PENSTOCK_STORAGE_OPTS_INIT;

	(void)state;
	fail_data.left = fail_whole.left = fail_fs.left = fail_look.left = 0;
	fs_calls = direct_writes = 0;
	how.flags = PENSTOCK_O_WRITE | PENSTOCK_O_CREATE;
	unlink(name);
	if (penstock_open(name, &how, &st))
		fail_msg("%s", penstock_errmsg());
	for (unsigned i = 0; i < LEN; i++)
		mem[i] = (unsigned char)(i * 7 + i / 256);
	return 0;
}

static int close_it(void **state)
{
	(void)state;
	penstock_close(st);
	unlink(name);
	return 0;
}

static int64_t write_some(uint64_t len, unsigned flags)
{
	struct penstock_seg seg = {.buf = mem, .dev = dev, .row_len = len};
	struct penstock_req req = PENSTOCK_REQ_INIT;

	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.op = PENSTOCK_WRITE;
	req.flags = flags;
	return penstock_transfer(&req, NULL);
}

static int64_t write_it(unsigned flags)
{
	return write_some(LEN, flags);
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

static void expect_lost(void)
{
	assert_int_equal(write_it(PENSTOCK_R_DURABLE), LEN); /* these bytes are there now */
	assert_int_equal(penstock_commit(st, 1), -EIO);	     /* but others may not be */
	assert_non_null(strstr(penstock_errmsg(), "open it anew"));
	assert_int_equal(penstock_commit(st, 0), 0);
}

#define need_told()                                                                  \
	do {                                                                         \
		if (!told)                                                           \
			test_skip("what TMPDIR lies on does not tell losses apart"); \
	} while (0)

/* ---- cases ---- */

static void old_bytes_in_the_cache_are_no_loss(void **state)
{
	(void)state;
	need_told();
	assert_int_equal(write_it(0), LEN);
	assert_int_equal(direct_writes, 1);
	fail_look.left = fail_data.left = 1;
	fail_look.code = fail_data.code = EIO;
	memset(mem, 0x77, LEN);
	assert_int_equal(write_it(PENSTOCK_R_DURABLE), LEN);
	assert_int_equal(direct_writes, 3); /* made again */
	assert_int_equal(fs_calls, 1);
	expect_bytes();
	assert_int_equal(write_it(PENSTOCK_R_DURABLE), LEN);
	assert_int_equal(direct_writes, 4);
	assert_int_equal(fs_calls, 1);
	fail_look.left = fail_whole.left = 1; /* and at the end */
	fail_whole.code = EIO;
	assert_int_equal(penstock_commit(st, 1), 0);
	assert_int_equal(fs_calls, 2);
}

static void what_is_lost_stays_lost(void **state)
{
	(void)state;
	need_told();
	fail_look.left = fail_data.left = fail_fs.left = 1;
	fail_look.code = fail_data.code = fail_fs.code = EIO;
	assert_int_equal(write_it(PENSTOCK_R_DURABLE), -EIO);
	assert_int_equal(fs_calls, 1);
	expect_lost();
	assert_int_equal(fs_calls, 1);
}

/* The drive refuses to empty its cache: nothing is marked, and nothing is forgiven. */
static void a_flush_that_fails(void **state)
{
	(void)state;
	fail_data.left = 1;
	fail_data.code = EIO;
	assert_int_equal(write_it(PENSTOCK_R_DURABLE), -EIO);
	assert_int_equal(fs_calls, 0);
	expect_lost();
}

static void a_commit_that_fails(void **state)
{
	(void)state;
	assert_int_equal(write_it(0), LEN);
	fail_whole.left = 1;
	fail_whole.code = EINTR;
	assert_int_equal(penstock_commit(st, 1), 0);
	fail_whole.left = 1;
	fail_whole.code = ENOSPC;
	assert_int_equal(penstock_commit(st, 1), -ENOSPC);
	assert_int_equal(penstock_commit(st, 1), -ENOSPC);
	assert_int_equal(penstock_commit(st, 0), 0);
}

/* The kernel says it once, to whoever asks first. */
static void all_that_were_under_way_are_told(void **state)
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
	sem_post(&second); /* which the kernel tells nothing */
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

/* A few bytes are written at once by the caller's thread, and synced all the same. */
static void a_few_bytes(void **state)
{
	(void)state;
	for (uint64_t len = 0; len < 9000; len += 1 + len * 3) {
		synced = 0;
		assert_int_equal(write_some(len, PENSTOCK_R_DURABLE), len);
		assert_int_equal(synced, 1);
	}
}

/* Nothing to write in stream order, or not when the stream comes there: what was written
 * before is synced all the same. */
static void nothing_in_stream_order(void **state)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	const uint64_t none = 0;
	struct penstock_late late = {.size = sizeof(late), .row_len = &none};
	struct penstock_seg seg = {.buf = NULL};
	struct penstock_req req = PENSTOCK_REQ_INIT;
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
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.op = PENSTOCK_WRITE;
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

/* Without a segment there is no device whose lanes could do it. */
static void nothing_at_all(void **state)
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

/* Whatever the kernel says: it has an end, and is no success. */
static void old_bytes_for_ever(void **state)
{
	(void)state;
	need_told();
	fail_look.left = 1000000;
	fail_look.code = EIO;
	assert_int_equal(write_it(0), -EIO);
	assert_in_range(direct_writes, 2, 200);
	fail_look.left = 0;
	assert_int_equal(write_it(0), LEN);
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
	opts.engine = "threads"; /* calls that the linker can see */
	mem = aligned_alloc(4096, LEN);
	sem_init(&both, 0, 0);
	sem_init(&second, 0, 0);
	told = !statfs(tmp, &fs) &&
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
		cmocka_unit_test_setup_teardown(old_bytes_in_the_cache_are_no_loss, setup,
						close_it),
		cmocka_unit_test_setup_teardown(what_is_lost_stays_lost, setup, close_it),
		cmocka_unit_test_setup_teardown(a_flush_that_fails, setup, close_it),
		cmocka_unit_test_setup_teardown(a_commit_that_fails, setup, close_it),
		cmocka_unit_test_setup_teardown(nothing_in_stream_order, setup, close_it),
		cmocka_unit_test_setup_teardown(nothing_at_all, setup, close_it),
		cmocka_unit_test_setup_teardown(all_that_were_under_way_are_told, setup, close_it),
		cmocka_unit_test_setup_teardown(old_bytes_for_ever, setup, close_it),
		cmocka_unit_test_setup_teardown(a_few_bytes, setup, close_it),
	};

	return cmocka_run_group_tests(tests, open_device, close_device);
}
