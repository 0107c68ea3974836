/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engine uring: one io_uring for each lane, opened, used and closed on the lane's
 * thread. The lane's wake eventfd is read through the ring, so that one wait
 * covers completions and wake-ups. Where io_uring is refused, open says why and
 * the pump takes the next engine. Where io_uring_enter fails and goes on failing, what
 * the kernel has not taken goes by the last engine, and all that follows. Wraps
 * liburing; nothing else includes it.
 */
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/ops.h"
#include "io/engines.h"

/* Calls this long are handed over one by one: those of one batch are merged by the
 * block layer, and a drive that is given few very long commands is slower (virtio:
 * 16 of 1 MiB each 5.4 GB/s, batched into some of 4 MiB 4.3). */
#define ALONE_BYTES (256u << 10)
#define REAP_MAX 16
#define SLOTS_MAX 2 /* pieces of a lane's ring */
#define TAG_WAKE 1u /* user_data of the eventfd's read */
/* io_uring_enter that fails, for want of memory mostly, is made again after so long, and
 * given up when it has failed so often in a row. */
#define RETRY_US 1000
#define FAILURES_MAX 50

struct pst_engine {
	struct io_uring ring;
	unsigned depth, inflight; /* in the ring */
	int wake_fd;
	uint64_t wake_value;
	bool wake_armed;
	struct iovec slots[SLOTS_MAX]; /* that are registered */
	unsigned slots_count, slots_room;
	unsigned failures;  /* of io_uring_enter, in a row */
	uint64_t failed_ns; /* when it failed last */
	bool gave_up;	    /* the heir carries what comes */
	const struct pst_engine_ops *heir_ops;
	struct pst_engine *heir; /* another engine's: only for its table */
};

static int setup(struct pst_engine *engine, unsigned entries)
{
	/* Completions are worked off when this thread asks, not by interrupting it
	 * (kernel 6.1); older kernels take the plain ring. */
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

static int refused(int code, struct pst_err *err)
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
	struct pst_engine *engine = calloc(1, sizeof(*engine));
	int ret;

	if (!engine)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for an io_uring");
	engine->heir_ops = pst_engine_plain;
	ret = engine->heir_ops->open(&engine->heir, depth, wake_fd, err);
	if (ret)
		goto err_free;
	ret = setup(engine, depth + 2);
	if (ret < 0) {
		ret = refused(ret, err);
		goto err_heir;
	}
	engine->depth = depth;
	engine->wake_fd = wake_fd;
	*out = engine;
	return 0;
err_heir:
	engine->heir_ops->close(engine->heir);
err_free:
	free(engine);
	return ret;
}

static void uring_close(struct pst_engine *engine)
{
	if (!engine)
		return;
	io_uring_queue_exit(&engine->ring);
	engine->heir_ops->close(engine->heir);
	free(engine);
}

/* Room for a later piece is there from Linux 5.13 on; before, that one is not registered. */
static int register_first(struct pst_engine *engine)
{
	int ret = io_uring_register_buffers(&engine->ring, engine->slots, SLOTS_MAX);

	engine->slots_room = ret == -EFAULT ? 1 : SLOTS_MAX;
	return ret == -EFAULT ? io_uring_register_buffers(&engine->ring, engine->slots, 1) : ret;
}

static int uring_register_slots(struct pst_engine *engine, void *base, size_t len,
				struct pst_err *err)
{
	const unsigned at = engine->slots_count;
	int ret = -EOPNOTSUPP;

	engine->slots[at] = (struct iovec){base, len};
	if (!at)
		ret = register_first(engine);
	else if (at < engine->slots_room)
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

/* Which of the registered pieces a call is in, or -1. */
static int fixed_in(const struct pst_engine *engine, const struct pst_call *call)
{
	for (unsigned i = 0; call->fixed && call->iov_count == 1 && i < engine->slots_count; i++) {
		const struct iovec *in = &engine->slots[i];
		size_t at = (size_t)((uintptr_t)call->iov->iov_base - (uintptr_t)in->iov_base);

		if (at < in->iov_len)
			return (int)i;
	}
	return -1;
}

static void prepare(const struct pst_engine *engine, struct io_uring_sqe *sqe,
		    const struct pst_call *call)
{
	const struct iovec *iov = call->iov;
	const int fixed = fixed_in(engine, call);
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

/* ---- giving up ---- */

static int pass_on(struct pst_engine *engine, struct pst_call *call)
{
	call->engine = engine->heir_ops->name;
	call->engine_why = PENSTOCK_WHY_NO_URING;
	return engine->heir_ops->submit(engine->heir, call);
}

/* What the kernel has taken it will still complete, and until then the memory is its
 * own: that is waited for, however long. The rest it must not be given any more. */
static void give_up(struct pst_engine *engine, int code)
{
	const struct io_uring_sq *sq = &engine->ring.sq;
	uint64_t one = 1;

	errno = -code;
	pst_log(PST_LOG_WARN, "uring", "io_uring_enter: %m, %u times; going on by %s",
		engine->failures, engine->heir_ops->name);
	engine->gave_up = true;
	for (unsigned at = sq->sqe_tail - io_uring_sq_ready(&engine->ring); at != sq->sqe_tail;
	     at++) {
		uint64_t data = sq->sqes[at & sq->ring_mask].user_data;

		if (data == TAG_WAKE) {
			engine->wake_armed = false;
		} else {
			engine->inflight--;
			pass_on(engine, (struct pst_call *)(uintptr_t)data); /* it has room */
		}
	}
	/* A read of the eventfd that the kernel has would take wake-ups from the heir. */
	if (engine->wake_armed && write(engine->wake_fd, &one, sizeof(one)) < 0)
		return; /* its counter is full: that ends the read too */
}

/* What io_uring_enter has answered. */
static void entered(struct pst_engine *engine, int ret)
{
	if (ret >= 0 || ret == -EINTR || ret == -ETIME) {
		engine->failures = 0;
		return;
	}
	engine->failed_ns = pst_now_ns();
	if (++engine->failures == FAILURES_MAX)
		give_up(engine, ret);
}

static bool may_enter(const struct pst_engine *engine)
{
	return !engine->gave_up &&
	       (!engine->failures || pst_now_ns() - engine->failed_ns >= RETRY_US * 1000u);
}

/* Hands the kernel what there is for it. */
static void flush(struct pst_engine *engine)
{
	if (io_uring_sq_ready(&engine->ring) && may_enter(engine))
		entered(engine, io_uring_submit(&engine->ring));
}

/* While io_uring_enter is put off, or will not be called again. Not by the ring's own
 * descriptor: that may be ready with what only io_uring_enter can fetch. */
static void doze(int64_t timeout_us)
{
	struct timespec ts = {0, RETRY_US * 1000};

	if (timeout_us >= 0 && timeout_us < RETRY_US)
		ts.tv_nsec = timeout_us * 1000;
	nanosleep(&ts, NULL);
}

/* ---- the table ---- */

static int uring_submit(struct pst_engine *engine, struct pst_call *call)
{
	struct io_uring_sqe *sqe;

	if (engine->gave_up)
		return pass_on(engine, call);
	if (engine->inflight >= engine->depth)
		return -EAGAIN;
	sqe = io_uring_get_sqe(&engine->ring);
	if (!sqe) {
		flush(engine);
		sqe = engine->gave_up ? NULL : io_uring_get_sqe(&engine->ring);
		if (!sqe)
			return -EAGAIN;
	}
	prepare(engine, sqe, call);
	io_uring_sqe_set_data(sqe, call);
	engine->inflight++;
	if (call->iov_count && call->iov->iov_len >= ALONE_BYTES)
		flush(engine); /* if that fails, poll does it again */
	return 0;
}

static void arm_wake(struct pst_engine *engine)
{
	struct io_uring_sqe *sqe;

	if (engine->wake_armed || engine->wake_fd < 0 || engine->gave_up)
		return;
	sqe = io_uring_get_sqe(&engine->ring);
	if (!sqe)
		return; /* full of calls: their completions end the wait as well */
	io_uring_prep_read(sqe, engine->wake_fd, &engine->wake_value, sizeof(engine->wake_value),
			   0);
	io_uring_sqe_set_data64(sqe, TAG_WAKE);
	engine->wake_armed = true;
}

/* Takes up what has ended, REAP_MAX at most; how many calls. Copies are queued meanwhile:
 * who also took up what ends meanwhile would soon have all calls in step, and the drive
 * and the copy engine take turns instead of working side by side. */
static int reap(struct pst_engine *engine)
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

static int uring_poll(struct pst_engine *engine)
{
	flush(engine);
	if (engine->gave_up)
		return reap(engine) + engine->heir_ops->poll(engine->heir);
	return engine->inflight ? reap(engine) : 0;
}

static int uring_wait(struct pst_engine *engine, int64_t timeout_us)
{
	struct __kernel_timespec ts = {timeout_us / 1000000, timeout_us % 1000000 * 1000};
	struct io_uring_cqe *cqe;

	if (engine->gave_up && !engine->inflight && !engine->wake_armed)
		return engine->heir_ops->wait(engine->heir, timeout_us);
	arm_wake(engine);
	if (!may_enter(engine))
		doze(timeout_us);
	else if (timeout_us < 0)
		entered(engine, io_uring_submit_and_wait(&engine->ring, 1));
	else
		entered(engine,
			io_uring_submit_and_wait_timeout(&engine->ring, &cqe, 1, &ts, NULL));
	return reap(engine) + (engine->gave_up ? engine->heir_ops->poll(engine->heir) : 0);
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
