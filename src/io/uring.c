/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine "uring": one io_uring for each lane (a thread of the library), opened, used and closed
 * on this thread. The io_uring also reads the lane's wake eventfd, so that one wait covers
 * completions and wake-ups.
 *
 * If the kernel refuses io_uring, `open` returns the reason and the lane opens the next engine of
 * the list. If io_uring_enter keeps failing later, the fallback engine (the last of the list) makes
 * the calls that the kernel has not accepted, and all later calls. This file wraps liburing; no
 * other file may include it.
 */
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/backends.h"
#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/ops.h"
#include "io/uring.h"

/* A call of at least this number of bytes is submitted alone. The block layer merges calls that are
 * submitted together, and a drive that gets few very long commands is slower. Measured on virtio
 * with 16 calls of 1 MiB: submitted alone, they reach 5.4 GB/s. Submitted together, they are merged
 * into commands of up to 4 MiB and reach 4.3 GB/s. */
#define ALONE_BYTES (256u << 10)
/* Shorter calls are submitted in groups of this number, so that the drive works on the first calls
 * while this thread prepares the next calls. Measured on virtio with 32 reads of 4 KiB in flight:
 * groups of 4 reach 1.2 times as many reads a second as one group of 32, and cost 0.1 us more CPU
 * time for each read. */
#define TOGETHER_MAX 4
#define REAP_MAX 16
#define SLOTS_MAX 2 /* Maximum number of pieces of the lane's pinned staging memory. */
#define TAG_WAKE 1u /* user_data of the read of the eventfd that wakes this thread. */
/* io_uring_enter fails mostly because memory is short. The engine repeats it after RETRY_US, and
 * gives up after FAILURES_MAX failures in a row. */
#define RETRY_US 1000
#define FAILURES_MAX 50

struct uring_engine {
	struct io_uring ring;
	/* `inflight` is the number of calls in the io_uring, and `depth` is the maximum of this
	 * number. */
	unsigned depth, inflight;
	int wake_fd;
	uint64_t wake_value;
	bool wake_armed;
	/* The pieces of the lane's pinned staging memory that are registered with the io_uring. */
	struct iovec slots[SLOTS_MAX];
	unsigned slots_count, slots_max;
	unsigned failures;  /* Number of failures in a row of io_uring_enter. */
	uint64_t failed_ns; /* Time of the last failure of io_uring_enter. */
	/* True if the engine has given up, so that the fallback engine makes all later calls. */
	bool gave_up;
	const struct pst_engine_ops *fallback_ops;
	/* State of the fallback engine; only functions of fallback_ops may use it. */
	struct pst_engine *fallback;
};

static struct uring_engine *uring_engine_of(struct pst_engine *handle)
{
	return (struct uring_engine *)handle;
}

static int uring_setup(struct uring_engine *engine, unsigned entries)
{
	/* With DEFER_TASKRUN (since kernel 6.1) completions do not interrupt this thread, which
	 * processes them when it asks for them. Older kernels refuse these flags, and the loop
	 * below tries the next entry. */
	static const unsigned tries[] = {
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_CLAMP,
		IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_CLAMP,
		IORING_SETUP_CLAMP,
	};
	int ret = -EINVAL;

	for (unsigned i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
		ret = io_uring_queue_init(entries, &engine->ring, tries[i]);
		if (ret != -EINVAL)
			break;
	}
	return ret;
}

static int uring_refused(int code, struct pst_err *err)
{
	if (code == -ENOMEM)
		return pst_fail_errno(err, code, PENSTOCK_WHY_MEMLOCK,
				      "io_uring_setup: %m (RLIMIT_MEMLOCK is used up by this "
				      "user's processes, raise it: ulimit -l)");
	return pst_fail_errno(err, code, PENSTOCK_WHY_NO_URING,
			      "io_uring_setup: %m (a container's seccomp profile or sysctl "
			      "kernel.io_uring_disabled forbids it)");
}

static int uring_open(struct pst_engine **out, unsigned depth, int wake_fd, struct pst_err *err)
{
	struct uring_engine *engine = calloc(1, sizeof(*engine));
	int ret;

	if (!engine)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for an io_uring");
	engine->fallback_ops = pst_engine_plain;
	ret = engine->fallback_ops->open(&engine->fallback, depth, wake_fd, err);
	if (ret)
		goto err_free;
	ret = uring_setup(engine, depth + 2);
	if (ret < 0) {
		ret = uring_refused(ret, err);
		goto err_heir;
	}
	engine->depth = depth;
	engine->wake_fd = wake_fd;
	*out = (struct pst_engine *)engine;
	return 0;
err_heir:
	engine->fallback_ops->close(engine->fallback);
err_free:
	free(engine);
	return ret;
}

static void uring_close(struct pst_engine *handle)
{
	struct uring_engine *engine = uring_engine_of(handle);

	if (!engine)
		return;
	io_uring_queue_exit(&engine->ring);
	engine->fallback_ops->close(engine->fallback);
	free(engine);
}

/* Registers the first piece of the lane's pinned staging memory as a buffer with io_uring, and
 * reserves the next entry of the kernel's buffer table for a second piece. Kernels before 5.13
 * cannot reserve entries; there, the second piece is not registered. */
static int pieces_register_first(struct uring_engine *engine)
{
	int ret = io_uring_register_buffers(&engine->ring, engine->slots, SLOTS_MAX);

	engine->slots_max = ret == -EFAULT ? 1 : SLOTS_MAX;
	return ret == -EFAULT ? io_uring_register_buffers(&engine->ring, engine->slots, 1) : ret;
}

static int uring_register_slots(struct pst_engine *handle, void *base, size_t len,
				struct pst_err *err)
{
	struct uring_engine *engine = uring_engine_of(handle);
	const unsigned at = engine->slots_count;
	int ret = -EOPNOTSUPP;

	engine->slots[at] = (struct iovec){base, len};
	if (!at)
		ret = pieces_register_first(engine);
	else if (at < engine->slots_max)
		ret = io_uring_register_buffers_update_tag(&engine->ring, at, &engine->slots[at],
							   NULL, 1);
	if (ret == -ENOMEM)
		return pst_fail_errno(err, ret, PENSTOCK_WHY_MEMLOCK,
				      "registering %zu KiB with io_uring: RLIMIT_MEMLOCK is "
				      "smaller, raise it (ulimit -l)",
				      len >> 10);
	if (ret < 0)
		return pst_fail_errno(err, ret, PENSTOCK_WHY_NO_FIXED,
				      "registering buffers with io_uring: %m");
	engine->slots_count++;
	return 0;
}

/* Returns the index of the registered buffer that contains the call's memory, or -1 if none
 * does. */
static int fixed_index(const struct uring_engine *engine, const struct pst_call *call)
{
	for (unsigned i = 0; call->fixed && call->iov_count == 1 && i < engine->slots_count; i++) {
		const struct iovec *in = &engine->slots[i];
		size_t at = (size_t)((uintptr_t)call->iov->iov_base - (uintptr_t)in->iov_base);

		if (at < in->iov_len)
			return (int)i;
	}
	return -1;
}

static void sqe_prepare(const struct uring_engine *engine, struct io_uring_sqe *sqe,
			const struct pst_call *call)
{
	const struct iovec *iov = call->iov;
	const int fixed = fixed_index(engine, call);
	unsigned len = call->iov_count ? (unsigned)iov->iov_len : 0;

	if (call->op == PST_IO_SYNC)
		io_uring_prep_fsync(sqe, call->fd, IORING_FSYNC_DATASYNC);
	else if (call->op == PST_IO_FILL && fixed >= 0)
		io_uring_prep_read_fixed(sqe, call->fd, iov->iov_base, len, call->off, fixed);
	else if (call->op == PST_IO_FILL && call->iov_count == 1)
		io_uring_prep_read(sqe, call->fd, iov->iov_base, len, call->off);
	else if (call->op == PST_IO_FILL)
		io_uring_prep_readv(sqe, call->fd, iov, call->iov_count, call->off);
	else if (fixed >= 0)
		io_uring_prep_write_fixed(sqe, call->fd, iov->iov_base, len, call->off, fixed);
	else if (call->iov_count == 1)
		io_uring_prep_write(sqe, call->fd, iov->iov_base, len, call->off);
	else
		io_uring_prep_writev(sqe, call->fd, iov, call->iov_count, call->off);
}

/* ---- fallback after failures ---- */

static int fallback_submit(struct uring_engine *engine, struct pst_call *call)
{
	call->engine = engine->fallback_ops->name;
	call->engine_why = PENSTOCK_WHY_NO_URING;
	return engine->fallback_ops->submit(engine->fallback, call);
}

/* Passes all calls that the kernel has not accepted, and all later calls, to the fallback engine.
 * The kernel must never get a call that the fallback engine makes. The kernel uses the memory of
 * each accepted call until it completes, so this engine still waits for the accepted calls. */
static void uring_give_up(struct uring_engine *engine, int code)
{
	const struct io_uring_sq *sq = &engine->ring.sq;
	uint64_t one = 1;

	errno = -code;
	pst_log(PST_LOG_WARN, "uring",
		"io_uring_enter: %m, %u times in a row; engine %s carries all later calls",
		engine->failures, engine->fallback_ops->name);
	engine->gave_up = true;
	for (unsigned at = sq->sqe_tail - io_uring_sq_ready(&engine->ring); at != sq->sqe_tail;
	     at++) {
		uint64_t data = sq->sqes[at & sq->ring_mask].user_data;

		if (data == TAG_WAKE) {
			engine->wake_armed = false;
		} else {
			engine->inflight--;
			/* This cannot fail, because the fallback engine has the same depth. */
			fallback_submit(engine, (struct pst_call *)(uintptr_t)data);
		}
	}
	/* If the kernel has accepted a read of the eventfd, this write completes it. Otherwise the
	 * read would later take a wake-up from the fallback engine, which uses the same eventfd. */
	if (engine->wake_armed && write(engine->wake_fd, &one, sizeof(one)) < 0)
		/* The write fails if the counter is full; then the read completes as well. */
		return;
}

/* Counts consecutive failures of io_uring_enter. `ret` is its return value. */
static void uring_entered(struct uring_engine *engine, int ret)
{
	if (ret >= 0 || ret == -EINTR || ret == -ETIME) {
		engine->failures = 0;
		return;
	}
	engine->failed_ns = pst_now_ns();
	if (++engine->failures == FAILURES_MAX)
		uring_give_up(engine, ret);
}

static bool uring_may_enter(const struct uring_engine *engine)
{
	return !engine->gave_up &&
	       (!engine->failures || pst_now_ns() - engine->failed_ns >= RETRY_US * 1000u);
}

/* Submits the prepared calls to the kernel, unless io_uring_enter failed a moment ago. */
static void uring_flush(struct uring_engine *engine)
{
	if (io_uring_sq_ready(&engine->ring) && uring_may_enter(engine))
		uring_entered(engine, io_uring_submit(&engine->ring));
}

/* Sleeps for a moment in which io_uring_enter must not be called, so that the engine cannot wait in
 * the io_uring. The function cannot poll the io_uring's descriptor instead. That descriptor stays
 * readable as long as there are completions that only io_uring_enter can fetch. */
static void uring_sleep(int64_t timeout_us)
{
	struct timespec ts = {0, RETRY_US * 1000};

	if (timeout_us >= 0 && timeout_us < RETRY_US)
		ts.tv_nsec = timeout_us * 1000;
	nanosleep(&ts, NULL);
}

/* ---- the engine's table ---- */

static int uring_submit(struct pst_engine *handle, struct pst_call *call)
{
	struct uring_engine *engine = uring_engine_of(handle);
	struct io_uring_sqe *sqe;

	if (engine->gave_up)
		return fallback_submit(engine, call);
	if (engine->inflight >= engine->depth)
		return -EAGAIN;
	sqe = io_uring_get_sqe(&engine->ring);
	if (!sqe) {
		uring_flush(engine);
		sqe = engine->gave_up ? NULL : io_uring_get_sqe(&engine->ring);
		if (!sqe)
			return -EAGAIN;
	}
	sqe_prepare(engine, sqe, call);
	io_uring_sqe_set_data(sqe, call);
	engine->inflight++;
	if ((call->iov_count && call->iov->iov_len >= ALONE_BYTES) ||
	    io_uring_sq_ready(&engine->ring) >= TOGETHER_MAX)
		/* If the submission fails, the next poll submits the calls again. */
		uring_flush(engine);
	return 0;
}

static void wake_arm(struct uring_engine *engine)
{
	struct io_uring_sqe *sqe;

	if (engine->wake_armed || engine->wake_fd < 0 || engine->gave_up)
		return;
	sqe = io_uring_get_sqe(&engine->ring);
	if (!sqe)
		/* The submission queue is full of calls, and the completion of any of them ends
		 * the wait as well. */
		return;
	io_uring_prep_read(sqe, engine->wake_fd, &engine->wake_value, sizeof(engine->wake_value),
			   0);
	io_uring_sqe_set_data64(sqe, TAG_WAKE);
	engine->wake_armed = true;
}

/* Processes up to REAP_MAX completions and returns how many of them were calls. The limit lets this
 * thread queue copies to the device in between. Without the limit, all calls soon complete
 * together, and the drive and the copy engine take turns instead of working at the same time. */
static int uring_reap(struct uring_engine *engine)
{
	struct io_uring_cqe *cqes[REAP_MAX];
	struct pst_call *calls[REAP_MAX];
	unsigned n = io_uring_peek_batch_cqe(&engine->ring, cqes, REAP_MAX), count = 0;

	for (unsigned i = 0; i < n; i++) {
		if (cqes[i]->user_data == TAG_WAKE) {
			engine->wake_armed = false;
		} else {
			calls[count] = io_uring_cqe_get_data(cqes[i]);
			calls[count++]->result = cqes[i]->res;
		}
	}
	io_uring_cq_advance(&engine->ring, n);
	engine->inflight -= count;
	for (unsigned i = 0; i < count; i++)
		calls[i]->done(calls[i]);
	return (int)count;
}

static int uring_poll(struct pst_engine *handle)
{
	struct uring_engine *engine = uring_engine_of(handle);

	uring_flush(engine);
	if (engine->gave_up)
		return uring_reap(engine) + engine->fallback_ops->poll(engine->fallback);
	return engine->inflight || engine->wake_armed ? uring_reap(engine) : 0;
}

static void uring_wait(struct pst_engine *handle, int64_t timeout_us)
{
	struct uring_engine *engine = uring_engine_of(handle);
	struct __kernel_timespec ts = {timeout_us / 1000000, timeout_us % 1000000 * 1000};
	struct io_uring_cqe *cqe;

	if (engine->gave_up && !engine->inflight && !engine->wake_armed) {
		engine->fallback_ops->wait(engine->fallback, timeout_us);
		return;
	}
	wake_arm(engine);
	if (!uring_may_enter(engine))
		uring_sleep(timeout_us);
	else if (timeout_us < 0)
		uring_entered(engine, io_uring_submit_and_wait(&engine->ring, 1));
	else
		uring_entered(engine,
			      io_uring_submit_and_wait_timeout(&engine->ring, &cqe, 1, &ts, NULL));
}

const struct pst_engine_ops pst_engine_uring = {
	.name = "uring",
	.open = uring_open,
	.close = uring_close,
	.register_slots = uring_register_slots,
	.submit = uring_submit,
	.poll = uring_poll,
	.wait = uring_wait,
};
