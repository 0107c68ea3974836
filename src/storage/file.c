/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the storage named "file": regular files, block devices and descriptors of the caller.
 * This file moves the bytes: it makes system calls for each transfer (struct pst_io) until the
 * transfer is complete. Usually an engine such as io_uring makes them, on the transfer's worker
 * thread (its "lane"). file_open.c opens files, and file_facts.c finds their properties. This file
 * must never change the flags of a caller's descriptor.
 */
#include "storage/file.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "common/cachestat.h"
#include "core/lane/lane.h"
#include "io/call_now.h"
#include "storage/file_facts.h"
#include "storage/file_gate.h"
#include "storage/file_open.h"
#include "storage/file_state.h"
#include "storage/file_sync.h"

/* A system call that a signal interrupted is repeated at once. A call that failed with EAGAIN is
 * repeated after RETRY_PAUSE_NS nanoseconds. After RETRIES_MAX repeats without progress the
 * transfer fails. */
#define RETRIES_MAX 200
#define RETRY_PAUSE_NS 1000000

static struct pst_io *call_io(struct pst_call *call)
{
	return (struct pst_io *)((char *)call - offsetof(struct pst_file_io, call) -
				 offsetof(struct pst_io, priv));
}

/* Advances the start of the transfer's memory by `done` bytes. */
static void iov_advance(struct pst_io *io, uint64_t done)
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

static void io_end(struct pst_io *io, int64_t result)
{
	io->result = result;
	/* `held`: the gate (file_gate.c) counts this transfer as a write in flight. It never counts
	 * a read. */
	if (pst_file_io(io)->held)
		pst_gate_leave(io);
	io->done(io);
}

static void io_fail(struct pst_io *io, int code)
{
	const struct pst_file *file = io->st->priv;
	static const char *const verbs[] = {"reading", "writing", "syncing"};
	uint64_t off = pst_file_io(io)->call.off, rest = io->len - (off - io->off);

	pst_fail_errno(&io->err, code, pst_why_from_errno(code), "%s %llu bytes at %llu of %s: %m",
		       verbs[io->op], (unsigned long long)rest, (unsigned long long)off,
		       file->path ? pst_path_tail(file->path) : "descriptor");
	io_end(io, io->err.code);
}

/* Raises file->written_end to `end_at` if it is lower. The caller guarantees that its write has
 * written all its bytes up to the offset `end_at`. */
static void written_end_raise(struct pst_file *file, uint64_t end_at)
{
	uint64_t old = atomic_load_explicit(&file->written_end, memory_order_relaxed);

	while (old < end_at && !atomic_compare_exchange_weak(&file->written_end, &old, end_at))
		;
}

/* Prepares the repeat of a system call that failed with `code` and moved nothing. If the call was
 * already repeated RETRIES_MAX times, fails the transfer and returns false. */
static bool io_retry(struct pst_io *io, int code)
{
	const struct timespec pause = {0, RETRY_PAUSE_NS};

	if (++pst_file_io(io)->tries > RETRIES_MAX) {
		io_fail(io, code);
		return false;
	}
	if (code != -EAGAIN)
		return true;
	/* On a descriptor with O_NONBLOCK, io_uring returns EAGAIN where a plain system call would
	 * wait. So this thread makes a plain call (PST_IO_NOW) for the repeat. */
	if (io->flags & PST_IO_NOW)
		nanosleep(&pause, NULL);
	io->flags |= PST_IO_NOW;
	return true;
}

/* Handles an O_DIRECT write after all its system calls. If the kernel has reported a write-back
 * error meanwhile, returns true, and the caller repeats the write from its start. */
static bool write_recheck(struct pst_io *io)
{
	struct iovec *one = &io->one;
	int ret = pst_file_direct_recheck(io);

	if (!ret) {
		io_end(io, (int64_t)io->len);
		return false;
	}
	if (ret < 0 || io->iov != one || io->iov_count != 1) {
		io_fail(io, -EIO);
		return false;
	}
	one->iov_base = (char *)one->iov_base - (io->len - one->iov_len);
	one->iov_len = io->len;
	pst_file_io(io)->call.off = io->off;
	return true;
}

/* Evaluates the result of a system call. If the transfer is complete, has failed or has reached the
 * end of the file, ends the transfer and returns false. If another call is needed, because this one
 * was short or must be repeated, returns true. */
static bool call_take_result(struct pst_io *io)
{
	struct pst_call *call = &pst_file_io(io)->call;
	const struct pst_storage_facts *facts = &io->st->facts;
	struct pst_file *file = io->st->priv;
	uint64_t so_far = call->off - io->off;
	int64_t n = call->result;

	io->engine = call->engine;
	io->engine_why = call->engine_why;
	if (n == -EINTR || n == -EAGAIN)
		return io_retry(io, (int)n);
	if (n < 0) {
		if (io->op == PST_IO_SYNC && pst_file_forgive(file, -(int)n))
			return io_retry(io, (int)n);
		if (io->op == PST_IO_SYNC)
			pst_file_mark_lost(file, -(int)n);
		io_fail(io, (int)n);
		return false;
	}
	pst_file_io(io)->tries = 0;
	if (n == 0 || io->op == PST_IO_SYNC) {
		if (io->op == PST_IO_DRAIN)
			/* A write of 0 bytes is an error. Only for a read, 0 bytes mean the end of
			 * the file. */
			io_fail(io, -EIO);
		else if (io->op == PST_IO_FILL && file->is_block && call->off < file->block_length)
			/* A read of a block device returns 0 bytes before the device's end only if
			 * the drive was unplugged. */
			io_fail(io, -ENODEV);
		else
			io_end(io, (int64_t)so_far);
		return false;
	}
	so_far += (uint64_t)n;
	if (io->op == PST_IO_DRAIN)
		written_end_raise(file, io->off + so_far);
	/* The end of the file is reached if an O_DIRECT read returns a number of bytes that is not
	 * a multiple of the alignment. */
	if (so_far >= io->len || (io->op == PST_IO_FILL && (io->flags & PST_IO_DIRECT) &&
				  (uint64_t)n % facts->off_align)) {
		if (io->op == PST_IO_DRAIN && (io->flags & PST_IO_DIRECT))
			return write_recheck(io);
		io_end(io, (int64_t)so_far);
		return false;
	}
	iov_advance(io, (uint64_t)n);
	call->off += (uint64_t)n;
	return true;
}

/* Submits the rest of the transfer to the engine of the transfer's lane (its worker thread). If the
 * flag PST_IO_NOW is set, makes the system calls on this thread instead. */
static int io_carry(struct pst_io *io)
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
		/* Statistics count a call that this thread made as a call of engine "threads". */
		call->engine = "threads";
		call->result = pst_call_now(call);
	} while (call_take_result(io));
	return 0;
}

/* Moves the rest of a transfer that has started. If the engine is full, makes the system calls on
 * this thread, because no other code submits the transfer again. */
static void io_continue(struct pst_io *io)
{
	int ret = io_carry(io);

	if (ret == -EAGAIN) { /* The engine has its maximum number of calls in flight. */
		io->flags |= PST_IO_NOW;
		ret = io_carry(io);
	}
	if (ret)
		io_fail(io, ret);
}

/* The engine calls this when it has completed a system call of the transfer. */
static void call_done(struct pst_call *call)
{
	struct pst_io *io = call_io(call);

	if (call_take_result(io))
		io_continue(io);
}

/* Continues a write that had to wait, because a write of the other kind (direct or cached) to the
 * same range was in flight. file_gate.c calls this function as soon as the write may start. */
static void write_admitted(struct pst_io *io)
{
	io->done = pst_file_io(io)->then;
	io_continue(io);
}

static int file_start(struct pst_io *io, enum pst_io_op op)
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
	call->done = call_done;
	own->tries = 0;
	own->held = false;
	if (direct)
		pst_file_direct_begin(io);
	if (op == PST_IO_DRAIN && file->fd_direct >= 0 && !pst_gate_enter(io, write_admitted))
		return 0;
	ret = io_carry(io);
	if (ret)
		pst_gate_leave(io);
	return ret;
}

static int file_fill(struct pst_io *io)
{
	return file_start(io, PST_IO_FILL);
}

static int file_drain(struct pst_io *io)
{
	return file_start(io, PST_IO_DRAIN);
}

static int file_sync(struct pst_io *io)
{
	int ret;

	io->len = 0;
	io->iov = &io->one;
	io->iov_count = 0;
	ret = file_start(io, PST_IO_SYNC);
	/* The engine has its maximum number of calls in flight, and the caller will not submit the
	 * sync again. So make the call on this thread. */
	if (ret == -EAGAIN) {
		io->flags |= PST_IO_NOW;
		ret = io_carry(io);
	}
	return ret;
}

/* Returns whether the URL belongs to storage "file": a plain path, or a URL with "file://". */
static bool file_match(const char *url)
{
	return !strncmp(url, "file://", 7) || !strstr(url, ":") || url[0] == '/' || url[0] == '.';
}

/* ---- residency ---- */

/* Returns the number of pages of the range that exist in the file. A program may request more bytes
 * than the file has, and pages behind the file's end must not count as "not in the page cache". */
static uint64_t pages_in_file(const struct penstock_storage *st, uint64_t off, uint64_t end)
{
	const struct pst_file *file = st->priv;
	uint64_t length = file->block_length;
	struct stat stat;

	if (end <= st->facts.length)
		return pst_pages_of(off, end);
	if (!file->is_block)
		/* A regular file may have grown since it was opened, so its length is read
		 * again. */
		length = fstat(file->fd, &stat) ? end : (uint64_t)stat.st_size;
	return pst_pages_of(off, end < length ? end : length);
}

/* Returns how much of the range is in the page cache, as cachestat(2) reports it. If cachestat does
 * not work, stores the reason in *why. */
static enum pst_residency file_residency(struct penstock_storage *st, uint64_t off, uint64_t len,
					 enum penstock_why *why)
{
	struct pst_file *file = st->priv;
	uint64_t pages;
	int refused = atomic_load_explicit(&file->cachestat_error, memory_order_relaxed);

	if (file->overlay || refused) {
		*why = file->overlay	  ? PENSTOCK_WHY_RESIDENCY_BLIND
		       : refused == EPERM ? PENSTOCK_WHY_RESIDENCY_EPERM
					  : PENSTOCK_WHY_RESIDENCY_NONE;
		return PST_UNKNOWN;
	}
	refused = pst_cachestat(file->fd, off, len, &pages);
	if (refused) {
		atomic_store_explicit(&file->cachestat_error, refused, memory_order_relaxed);
		return file_residency(st, off, len, why);
	}
	if (pages >= pst_pages_of(off, off + len) || pages >= pages_in_file(st, off, off + len))
		return PST_WARM;
	return pages ? PST_MIXED : PST_COLD;
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
	.residency = file_residency,
	.written = pst_file_written,
	.stamp = pst_file_stamp,
};
