/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the parts of an upload whose windows are in the memory of a device: bytes of host memory
 * that belong into such parts, the memory that they need, and that no call waits for a stream. The
 * device is the stand-in GPU. The linker replaces the functions of object_window.c, so that there
 * is no server. tests/s3/device_windows tests the same with real servers.
 */
#include "test.h"

#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <unistd.h>

#include "copy.h"

#include "core/base/clock.h"
#include "core/base/device_sync.h"
#include "storage/object_commit.h"
#include "storage/object_part_window.h"
#include "storage/object_send.h"
#include "storage/object_sum.h"
#include "storage/object_upload_state.h"

#define MIB (1u << 20)
#define LEN (20u * MIB + 77) /* of the object */
#define SECONDS 60	     /* after this time, a call that waits fails the test */
#define OVERLAP_NS 100000000u /* for which a copy waits for another copy */
#define LOCK_SECONDS 5	     /* for which a thread holds the upload's lock at most */

static struct penstock_device *host, *gpu;
static unsigned char *bytes; /* what the object must contain */
static struct pst_object_place place;
static unsigned opened, closed;
static int grants; /* result of pst_object_grant_open */
static unsigned grants_opened, grants_closed, sent;
static struct pst_object_upload *unlocked; /* its lock must be free when a grant is opened */
static bool no_malloc, unreachable, no_worker;

static void window_close(struct pst_window *window)
{
	closed++;
	gpu->ops->free(gpu, window->mem, NULL);
	free(window);
}

/* ---- replaced functions ---- */

int __wrap_pst_object_window_open(struct pst_object_windows *windows, struct penstock_device *dev,
				  size_t len, struct pst_window **out, struct pst_err *err);
int __wrap_pst_object_grant_open(struct pst_object_grant *grant, struct pst_object_windows *windows,
				 struct pst_window *window, enum penstock_op op, uint64_t len,
				 struct pst_err *err);
bool __wrap_pst_object_grant_close(struct pst_object_grant *grant);
void __wrap_pst_object_grant_wait(struct pst_object_grant *grant);
void __wrap_pst_object_grant_offer(struct pst_object_grant *grant, struct pst_object_call *call);
int __wrap_pst_http_start(struct pst_http_call *call, struct pst_err *err);
int __wrap_pst_object_windows_reach(struct pst_object_windows *windows,
				    const struct penstock_device *dev, struct pst_err *why);
void __wrap_pst_object_windows_tested(struct pst_object_windows *windows,
				      const struct penstock_device *dev, const struct pst_err *why);
int __wrap_pst_object_windows_check(struct pst_object_windows *windows, struct pst_err *err);
bool __real_pst_object_work(const struct penstock_device *dev, struct pst_object_job *job);
bool __wrap_pst_object_work(const struct penstock_device *dev, struct pst_object_job *job);
void *__real_malloc(size_t len);
void *__wrap_malloc(size_t len);

int __wrap_pst_object_window_open(struct pst_object_windows *windows, struct penstock_device *dev,
				  size_t len, struct pst_window **out, struct pst_err *err)
{
	struct pst_window *window = dev ? calloc(1, sizeof(*window)) : NULL;
	void *mem;

	if (!dev)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no windows in host memory");
	assert_non_null(window);
	assert_int_equal(dev->ops->alloc(dev, len, &mem, err), 0);
	opened++;
	window->mem = mem;
	window->len = len;
	window->dev = dev;
	window->kind = windows;
	window->close = window_close;
	*out = window;
	return 0;
}

int __wrap_pst_object_grant_open(struct pst_object_grant *grant, struct pst_object_windows *windows,
				 struct pst_window *window, enum penstock_op op, uint64_t len,
				 struct pst_err *err)
{
	struct timespec until;

	(void)grant, (void)windows, (void)window, (void)len;
	assert_int_equal(op, PENSTOCK_WRITE);
	if (unlocked) {
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += LOCK_SECONDS;
		if (pthread_mutex_timedlock(&unlocked->lock, &until))
			fail_msg("the lock is held while a window is registered");
		pthread_mutex_unlock(&unlocked->lock);
	}
	grants_opened += !grants;
	return grants ? pst_fail_errno(err, -grants, PENSTOCK_WHY_UNSUPPORTED, "no transport") : 0;
}

bool __wrap_pst_object_grant_close(struct pst_object_grant *grant)
{
	(void)grant;
	grants_closed++;
	return true;
}

void __wrap_pst_object_grant_wait(struct pst_object_grant *grant)
{
	(void)grant;
	grants_closed++;
}

void __wrap_pst_object_grant_offer(struct pst_object_grant *grant, struct pst_object_call *call)
{
	(void)grant;
	call->token = "token";
}

int __wrap_pst_http_start(struct pst_http_call *call, struct pst_err *err)
{
	(void)call;
	sent++;
	return pst_fail(err, PENSTOCK_WHY_IO_ERROR, "there is no server");
}

int __wrap_pst_object_windows_reach(struct pst_object_windows *windows,
				    const struct penstock_device *dev, struct pst_err *why)
{
	(void)windows, (void)dev;
	if (unreachable)
		pst_fail(why, PENSTOCK_WHY_DECLINED, "the server declined");
	return !unreachable;
}

void __wrap_pst_object_windows_tested(struct pst_object_windows *windows,
				      const struct penstock_device *dev, const struct pst_err *why)
{
	(void)windows, (void)dev, (void)why;
}

int __wrap_pst_object_windows_check(struct pst_object_windows *windows, struct pst_err *err)
{
	(void)windows, (void)err;
	return 0;
}

bool __wrap_pst_object_work(const struct penstock_device *dev, struct pst_object_job *job)
{
	return !no_worker && __real_pst_object_work(dev, job);
}

void *__wrap_malloc(size_t len)
{
	return no_malloc ? NULL : __real_malloc(len);
}

/* ---- writes ---- */

static struct pst_object_upload *upload_open(void)
{
	struct pst_object_upload *up;
	struct pst_err err;

	opened = closed = 0;
	assert_int_equal(pst_object_upload_open(&place, LEN, false, &up, &err), 0);
	up->windows = (struct pst_object_windows *)&place; /* only replaced functions use it */
	return up;
}

static void io_done(struct pst_io *io)
{
	(void)io;
}

/* Writes bytes out of host memory. Returns the result. */
static int write_host(struct pst_object_upload *up, const void *mem, uint64_t off, uint64_t len)
{
	struct pst_io io = {.op = PST_IO_DRAIN, .off = off, .len = len, .done = io_done};
	int ret;

	io.one = (struct iovec){(void *)(uintptr_t)mem, len};
	io.iov = &io.one;
	io.iov_count = 1;
	ret = pst_object_upload_write(up, &io);
	return ret ? ret : (int)(io.result != (int64_t)len);
}

/* Writes bytes of the object out of the device, which must find memory for all of them. */
static void write_device(struct pst_object_upload *up, uint64_t off, uint64_t len)
{
	struct pst_io io = {.op = PST_IO_DRAIN, .off = off, .len = len, .dev = gpu,
			    .done = io_done};

	if (pst_object_upload_place(up, &io))
		fail_msg("placing %llu bytes at %llu: %s", (unsigned long long)len,
			 (unsigned long long)off, io.err.text);
	assert_int_equal(io.result, len);
	test_copy(gpu, io.one.iov_base, host, bytes + off, len);
	assert_int_equal(pst_object_upload_placed(up, off, len, true, &io.err), 0);
}

/* Prepares the first part as its commit does. Compares its checksum, and then its bytes. */
static void part_compare(struct pst_object_upload *up)
{
	struct part *part = up->parts[0];
	const struct iovec iov = {bytes, (size_t)part->len};
	struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};

	assert_int_equal(pst_object_send_prepare(part, &err), 0);
	assert_non_null(part->window);
	assert_int_equal(part->crc,
			 pst_object_sum_of(PST_HASH_CRC64NVME, &iov, 1, 0, part->len));
	assert_int_equal(pst_object_send_fetch(part, &err, &err), 0);
	assert_null(part->window);
	assert_memory_equal(part->mem, bytes, part->len);
}

static int setup(void **state)
{
	uint64_t seed = test_seed(31);

	(void)state;
	bytes = malloc(LEN);
	for (unsigned i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)test_random(&seed);
	return penstock_device_open("host", NULL, &host) < 0 ||
			       penstock_device_open("cuda:0", NULL, &gpu) < 0
		       ? -1
		       : 0;
}

static int teardown(void **state)
{
	(void)state;
	penstock_device_close(gpu);
	penstock_device_close(host);
	free(bytes);
	return 0;
}

/* ---- cases ---- */

/* The submitter of a request finds out whether windows can be used. So that must not wait for a
 * stream, which may wait for something that this thread does later. */
static void waits_for_no_stream(void **state)
{
	struct pst_object_upload *up = upload_open();
	struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};

	(void)state;
	alarm(SECONDS);
	for (unsigned loaded = 0; loaded < 2; loaded++) {
		pst_device_stream_enter(gpu);
		print_message("# kernel %s\n", loaded ? "loaded" : "not loaded");
		assert_int_equal(pst_object_upload_reach(up, gpu, &err), -EAGAIN);
		assert_int_equal(err.why, PENSTOCK_WHY_STREAM_ORDER);
		pst_device_stream_leave(gpu);
		if (!loaded)
			assert_int_equal(gpu->ops->sum(gpu, PST_SUM_CRC64NVME, NULL, 0, false,
						       &err), 0);
	}
	grants = -EOPNOTSUPP;
	assert_int_equal(pst_object_upload_reach(up, gpu, &err), -EOPNOTSUPP);
	assert_int_equal(opened, closed);
	grants = 0;
	assert_int_equal(pst_object_upload_reach(up, gpu, &err), 0);
	assert_int_equal(opened, closed + 1);
	assert_int_equal(atomic_load(&gpu->syncs), 0);
	pst_object_upload_free(up);
	assert_int_equal(opened, closed);
	alarm(0);
}

/* Bytes of host memory of any length and order, of which some are written several times. */
static void patches_of_any_order(void **state)
{
	struct pst_object_upload *up = upload_open();
	uint64_t seed = test_seed(32);
	struct pst_err err;

	(void)state;
	assert_int_equal(pst_object_upload_reach(up, gpu, &err), 0);
	/* One byte is missing at first, so that the upload does not send the part. */
	write_device(up, 1, 8 * MIB - 1);
	for (unsigned i = 0; i < 3000; i++) {
		const uint64_t len = 1 + test_random(&seed) % (i % 50 ? 2000 : 200000);
		const uint64_t off = 1 + test_random(&seed) % (8 * MIB - 1 - len);

		for (uint64_t k = off; k < off + len; k++)
			bytes[k] = (unsigned char)(i + k * 7);
		assert_int_equal(write_host(up, bytes + off, off, len), 0);
	}
	print_message("# %zu ranges\n", up->parts[0]->patches.count);
	for (size_t i = 1; i < up->parts[0]->patches.count; i++)
		assert_true(up->parts[0]->patches.ranges[i - 1].end <
			    up->parts[0]->patches.ranges[i].first);
	bytes[0] = 99;
	up->parts[0]->writers++; /* keeps the part from being sent */
	assert_int_equal(write_host(up, bytes, 0, 1), 0);
	up->parts[0]->writers--;
	part_compare(up);
	pst_object_upload_free(up);
}

/* Host memory for a part is limited, however often and in however small pieces its bytes are
 * written. */
static void patches_need_bounded_memory(void **state)
{
	static char piece[64 << 10];
	struct pst_object_upload *up = upload_open();
	const struct mallinfo2 before = mallinfo2();
	struct mallinfo2 after;
	uint64_t used;
	struct pst_err err;

	(void)state;
	alarm(SECONDS);
	assert_int_equal(pst_object_upload_reach(up, gpu, &err), 0);
	write_device(up, MIB, MIB);
	for (unsigned i = 0; i < 4000; i++)
		assert_int_equal(write_host(up, piece, 4096, sizeof(piece)), 0);
	for (uint64_t off = 2 * MIB; off < 8 * MIB; off += 16)
		assert_int_equal(write_host(up, piece, off, 16), 0);
	after = mallinfo2();
	used = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
	print_message("# %llu KiB, %zu ranges\n", (unsigned long long)used >> 10,
		      up->parts[0]->patches.count);
	if (after.uordblks) /* the malloc of sanitizers counts nothing */
		assert_in_range(used, 8 * MIB, 12 * MIB);
	assert_int_equal(up->parts[0]->patches.count, 2);
	assert_true(pst_part_window_is_patched(up->parts[0], 0, 4097));
	assert_false(pst_part_window_is_patched(up->parts[0], 0, 4096));
	assert_false(pst_part_window_is_patched(up->parts[0], 4096 + sizeof(piece), 2 * MIB));
	assert_true(pst_part_window_is_patched(up->parts[0], 8 * MIB - 1, 8 * MIB));
	pst_object_upload_free(up);
	alarm(0);
}

/* A write that fails leaves a gap. Otherwise a commit would send what the window contained. */
static void failed_write_leaves_a_gap(void **state)
{
	struct pst_object_upload *up = upload_open();
	struct pst_err err;
	int ret;

	(void)state;
	assert_int_equal(pst_object_upload_reach(up, gpu, &err), 0);
	write_device(up, 0, MIB);
	no_malloc = true;
	ret = write_host(up, bytes, MIB, MIB);
	no_malloc = false;
	assert_int_equal(ret, -ENOMEM);
	print_message("# %u range, up to %llu\n", up->parts[0]->span_count,
		      (unsigned long long)up->parts[0]->spans[0].end);
	assert_int_equal(up->parts[0]->span_count, 1);
	assert_int_equal(up->parts[0]->spans[0].end, MIB);
	assert_int_equal(write_host(up, bytes + MIB, MIB, MIB), 0);
	assert_int_equal(up->parts[0]->spans[0].end, 2 * MIB);
	pst_object_upload_free(up);
}

/* The reason for host memory is that of the last test. */
static void refused_placements_name_the_reason(void **state)
{
	struct pst_object_upload *up = upload_open();
	struct pst_io io = {.op = PST_IO_DRAIN, .len = MIB, .dev = gpu, .done = io_done};
	struct pst_err err;

	(void)state;
	assert_int_equal(pst_object_upload_reach(up, gpu, &err), 0);
	unreachable = true;
	assert_int_equal(pst_object_upload_place(up, &io), -EOPNOTSUPP);
	unreachable = false;
	assert_string_equal(io.err.text, "windows in host memory: the server declined");
	assert_int_equal(io.err.why, PENSTOCK_WHY_DECLINED);
	pst_object_upload_free(up);
}

/* Registering a window with a network card calls the driver. The call may not return while a
 * request in stream order waits for the upload's lock. */
static void windows_are_registered_without_the_lock(void **state)
{
	struct pst_err err;

	(void)state;
	for (int known = 1; known >= 0; known--) {
		struct pst_object_upload *up = upload_open();

		grants_opened = grants_closed = sent = 0;
		assert_int_equal(pst_object_upload_reach(up, gpu, &err), 0);
		up->id_state = known ? ID_KNOWN : ID_ASKED;
		unlocked = up;
		write_device(up, 0, 8 * MIB);
		pthread_mutex_lock(&up->lock);
		while (known ? !up->err.code : !up->ready_count)
			pthread_cond_wait(&up->changed, &up->lock);
		pthread_mutex_unlock(&up->lock);
		unlocked = NULL;
		print_message("# %u requests, %u grants, %u closed\n", sent, grants_opened,
			      grants_closed);
		assert_int_equal(sent, known);
		assert_int_equal(grants_opened, 2);
		pst_object_upload_free(up);
		assert_int_equal(grants_closed, 2);
		assert_int_equal(opened, closed);
	}
}

/* ---- a device without a thread ---- */

static const struct pst_device_ops *real_ops;
static _Atomic unsigned copying, copies, overlaps;

/* Begins a copy. Gives another thread the time to begin a copy with the same copier. */
static int mock_copy_in(struct pst_copier *copier, const struct pst_rect *rect)
{
	const uint64_t until_ns = pst_now_ns() + OVERLAP_NS;

	copies++;
	if (atomic_fetch_add(&copying, 1))
		overlaps++;
	while (atomic_load(&copying) < 2 && pst_now_ns() < until_ns)
		sched_yield();
	return real_ops->copy_in(copier, rect);
}

static int mock_wait(struct pst_copier *copier, uint64_t ticket)
{
	int ret = real_ops->wait(copier, ticket);

	atomic_fetch_sub(&copying, 1);
	return ret;
}

/* Writes the last byte of a part, so that the calling thread prepares the part. */
static void *part_complete(void *arg)
{
	const uint64_t last = *(const uint64_t *)arg;

	return (void *)(intptr_t)write_host(unlocked, bytes + last, last, 1);
}

/* If the device has no thread, the threads that complete parts prepare them. Two such threads must
 * not use the device's copier at the same time. */
static void copiers_have_one_user(void **state)
{
	static uint64_t last[] = {8 * MIB - 1, 16 * MIB - 1};
	struct pst_object_upload *up = upload_open();
	struct pst_device_ops ops = *gpu->ops;
	pthread_t threads[2];
	struct pst_err err;
	void *ret;

	(void)state;
	assert_int_equal(pst_object_upload_reach(up, gpu, &err), 0);
	up->id_state = ID_ASKED; /* nothing is sent */
	for (unsigned i = 0; i < 2; i++)
		write_device(up, i * 8 * MIB, 8 * MIB - 1);
	real_ops = gpu->ops;
	ops.copy_in = mock_copy_in;
	ops.wait = mock_wait;
	gpu->ops = &ops;
	no_worker = true;
	unlocked = up;
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, part_complete, &last[i]), 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(pthread_join(threads[i], &ret), 0);
		assert_null(ret);
	}
	unlocked = NULL;
	no_worker = false;
	gpu->ops = real_ops;
	print_message("# %u copies, %u at the same time as another\n", copies, overlaps);
	assert_int_equal(up->ready_count, 2);
	assert_int_equal(copies, 2);
	assert_int_equal(overlaps, 0);
	pst_object_upload_free(up);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(waits_for_no_stream, setup, teardown),
		cmocka_unit_test_setup_teardown(patches_of_any_order, setup, teardown),
		cmocka_unit_test_setup_teardown(patches_need_bounded_memory, setup, teardown),
		cmocka_unit_test_setup_teardown(failed_write_leaves_a_gap, setup, teardown),
		cmocka_unit_test_setup_teardown(refused_placements_name_the_reason, setup,
						teardown),
		cmocka_unit_test_setup_teardown(windows_are_registered_without_the_lock, setup,
						teardown),
		cmocka_unit_test_setup_teardown(copiers_have_one_user, setup, teardown),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
