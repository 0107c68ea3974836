/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storage file: regular files, block devices, descriptors of the caller. Here the
 * bytes move: each io becomes calls of the lane's engine until it is whole. Opening
 * is file_open.c, facts are file_facts.c. Never changes a caller's descriptor.
 */
#include "storage/file.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "core/lane/pump.h"
#include "io/now.h"
#include "storage/storages.h"

/* A call that is interrupted is made again at once, one that would have to wait after a
 * pause: so often while nothing moves at all, then it is an error. */
#define AGAIN_MAX 200
#define AGAIN_PAUSE_NS 1000000

static struct pst_io *io_of(struct pst_call *call)
{
	return (struct pst_io *)((char *)call - offsetof(struct pst_file_io, call) -
				 offsetof(struct pst_io, priv));
}

/* Leaves `done` bytes at the front of the iovecs behind. */
static void advance(struct pst_io *io, uint64_t done)
{
	while (done && io->iov_count) {
		if (done < io->iov->iov_len) {
			io->iov->iov_base = (char *)io->iov->iov_base + done;
			io->iov->iov_len -= done;
			return;
		}
		done -= io->iov->iov_len;
		io->iov++;
		io->iov_count--;
	}
}

static void end(struct pst_io *io, int64_t result)
{
	io->result = result;
	pst_gate_leave(io);
	io->done(io);
}

static void fail(struct pst_io *io, int code)
{
	const struct pst_file *file = io->st->priv;
	static const char *const verbs[] = {"reading", "writing", "syncing"};
	uint64_t off = pst_file_io(io)->call.off, rest = io->len - (off - io->off);

	pst_fail_errno(&io->err, code, pst_why_of_errno(code), "%s %llu bytes at %llu of %s: %m",
		       verbs[io->op], (unsigned long long)rest, (unsigned long long)off,
		       file->path ? pst_path_tail(file->path) : "descriptor");
	end(io, io->err.code);
}

/* So far the file has been written: no further than what a call has carried. */
static void reached(struct pst_file *file, uint64_t end_at)
{
	uint64_t old = atomic_load_explicit(&file->written_end, memory_order_relaxed);

	while (old < end_at && !atomic_compare_exchange_weak(&file->written_end, &old, end_at))
		;
}

/* A call moved nothing and may be made again. False: not any more, the io has ended. */
static bool again(struct pst_io *io, int code)
{
	const struct timespec pause = {0, AGAIN_PAUSE_NS};

	if (++pst_file_io(io)->tries > AGAIN_MAX) {
		fail(io, code);
		return false;
	}
	if (code != -EAGAIN)
		return true;
	/* io_uring answers so for a descriptor with O_NONBLOCK, where a plain call waits. */
	if (io->flags & PST_IO_NOW)
		nanosleep(&pause, NULL);
	io->flags |= PST_IO_NOW;
	return true;
}

/* A direct write is whole. True: it is to be made again, from its start. */
static bool once_more(struct pst_io *io)
{
	struct iovec *one = &io->one;
	int ret = pst_file_remake(io);

	if (!ret) {
		end(io, (int64_t)io->len);
		return false;
	}
	if (ret < 0 || io->iov != one || io->iov_count != 1) {
		fail(io, -EIO);
		return false;
	}
	one->iov_base = (char *)one->iov_base - (io->len - one->iov_len);
	one->iov_len = io->len;
	pst_file_io(io)->call.off = io->off;
	return true;
}

/* Takes in how a call ended: whole, at the end of the file, short, or failed. True: what
 * is left of the io is to be carried; false: it has ended. */
static bool take(struct pst_io *io)
{
	struct pst_call *call = &pst_file_io(io)->call;
	const struct pst_storage_facts *facts = &io->st->facts;
	struct pst_file *file = io->st->priv;
	uint64_t so_far = call->off - io->off;
	int64_t n = call->result;

	io->engine = call->engine;
	io->engine_why = call->engine_why;
	if (n == -EINTR || n == -EAGAIN)
		return again(io, (int)n);
	if (n < 0) {
		if (io->op == PST_IO_SYNC && pst_file_forgive(file, -(int)n))
			return again(io, (int)n);
		if (io->op == PST_IO_SYNC)
			pst_file_lose(file, -(int)n);
		fail(io, (int)n);
		return false;
	}
	pst_file_io(io)->tries = 0;
	if (n == 0 || io->op == PST_IO_SYNC) {
		if (io->op == PST_IO_DRAIN)
			fail(io, -EIO); /* a write of nothing is no end of file */
		else if (io->op == PST_IO_FILL && file->is_block && call->off < file->block_length)
			fail(io, -ENODEV); /* a drive that was pulled out ends at once */
		else
			end(io, (int64_t)so_far);
		return false;
	}
	so_far += (uint64_t)n;
	if (io->op == PST_IO_DRAIN)
		reached(file, io->off + so_far);
	/* O_DIRECT ends off the grid only at the end of the file. */
	if (so_far >= io->len || (io->op == PST_IO_FILL && (io->flags & PST_IO_DIRECT) &&
				  (uint64_t)n % facts->off_align)) {
		if (io->op == PST_IO_DRAIN && (io->flags & PST_IO_DIRECT))
			return once_more(io);
		end(io, (int64_t)so_far);
		return false;
	}
	advance(io, (uint64_t)n);
	call->off += (uint64_t)n;
	return true;
}

/* Hands the rest of the io to the engine, or makes its calls here until it has ended. */
static int carry(struct pst_io *io)
{
	struct pst_lane *lane = io->lane;
	struct pst_call *call = &pst_file_io(io)->call;

	do {
		call->iov = io->iov;
		call->iov_count = io->iov_count;
		if (!(io->flags & PST_IO_NOW)) {
			pst_lane_want_engine(lane);
			call->engine_why = lane->call_why;
			call->engine = lane->engine_ops->name;
			return lane->engine_ops->submit(lane->engine, call);
		}
		call->engine_why = PENSTOCK_WHY_NONE;
		call->engine = "threads"; /* plain calls, on this one */
		call->result = pst_call_now(call);
	} while (take(io));
	return 0;
}

/* An io that has begun: nobody will hand it in again. */
static void carry_on(struct pst_io *io)
{
	int ret = carry(io);

	if (ret == -EAGAIN) { /* the engine has no room */
		io->flags |= PST_IO_NOW;
		ret = carry(io);
	}
	if (ret)
		fail(io, ret);
}

/* The engine has made the call. */
static void called(struct pst_call *call)
{
	struct pst_io *io = io_of(call);

	if (take(io))
		carry_on(io);
}

/* A write whose turn it is. */
static void let_in(struct pst_io *io)
{
	io->done = pst_file_io(io)->then;
	carry_on(io);
}

static int start(struct pst_io *io, enum pst_io_op op)
{
	struct pst_file *file = io->st->priv;
	struct pst_file_io *own = pst_file_io(io);
	struct pst_call *call = &own->call;
	bool direct = io->flags & PST_IO_DIRECT;
	int ret;

	call->fd = direct ? file->fd_direct : file->fd;
	call->op = op;
	call->fixed = (io->flags & PST_IO_RING) && io->lane->fixed;
	call->off = io->off;
	call->done = called;
	own->tries = 0;
	own->held = false;
	if (direct)
		pst_file_begin(io);
	if (op == PST_IO_DRAIN && file->fd_direct >= 0 && !pst_gate_enter(io, let_in))
		return 0;
	ret = carry(io);
	if (ret)
		pst_gate_leave(io);
	return ret;
}

static int file_fill(struct pst_io *io)
{
	return start(io, PST_IO_FILL);
}

static int file_drain(struct pst_io *io)
{
	return start(io, PST_IO_DRAIN);
}

static int file_sync(struct pst_io *io)
{
	int ret;

	io->len = 0;
	io->iov = &io->one;
	io->iov_count = 0;
	ret = start(io, PST_IO_SYNC);
	if (ret == -EAGAIN) { /* the engine has no room, and nobody asks again */
		io->flags |= PST_IO_NOW;
		ret = carry(io);
	}
	return ret;
}

/* Everything with a path in it that no other storage claims. */
static bool file_match(const char *url)
{
	return !strncmp(url, "file://", 7) || !strstr(url, ":") || url[0] == '/' || url[0] == '.';
}

const struct pst_storage_ops pst_storage_file = {
	.name = "file",
	.match = file_match,
	.open = pst_file_open,
	.close = pst_file_close,
	.fill = file_fill,
	.drain = file_drain,
	.sync = file_sync,
	.commit = pst_file_commit,
	.abort = pst_file_abort,
	.length = pst_file_length,
	.residency = pst_file_residency,
	.written = pst_file_written,
	.stamp = pst_file_stamp,
};
