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

#include "core/pump.h"
#include "io/now.h"
#include "storage/storages.h"

static struct pst_io *io_of(struct pst_call *call)
{
	return (struct pst_io *)((char *)call - offsetof(struct pst_io, call));
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
	io->done(io);
}

static void fail(struct pst_io *io, int code)
{
	const struct pst_file *file = io->st->priv;
	static const char *const verbs[] = { "reading", "writing", "syncing" };

	uint64_t rest = io->len - (io->call.off - io->off);

	pst_fail_errno(&io->err, code, pst_why_of_errno(code), "%s %llu bytes at %llu of %s: %m",
		       verbs[io->op], (unsigned long long)rest, (unsigned long long)io->call.off,
		       file->path ? file->path : "descriptor");
	end(io, io->err.code);
}

/* So far the file has been written: no further than what a call has carried. */
static void reached(struct pst_file *file, uint64_t end_at)
{
	uint64_t old = atomic_load_explicit(&file->written_end, memory_order_relaxed);

	while (old < end_at && !atomic_compare_exchange_weak(&file->written_end, &old, end_at))
		;
}

static int carry(struct pst_io *io);

/* One call has ended: whole, at the end of the file, short, or failed. */
static void step(struct pst_call *call)
{
	struct pst_io *io = io_of(call);
	const struct pst_storage_facts *facts = &io->st->facts;
	const struct pst_file *file = io->st->priv;
	uint64_t so_far = call->off - io->off;
	int64_t n = call->result;
	int ret;

	if (n == -EINTR || n == -EAGAIN)
		n = 0; /* again from where it is */
	else if (n < 0) {
		fail(io, (int)n);
		return;
	} else if (n == 0 || io->op == PST_IO_SYNC) {
		if (io->op == PST_IO_DRAIN)
			fail(io, -EIO); /* a write of nothing is no end of file */
		else if (io->op == PST_IO_FILL && file->is_block && call->off < file->block_length)
			fail(io, -ENODEV); /* a drive that was pulled out ends at once */
		else
			end(io, (int64_t)so_far);
		return;
	}
	so_far += (uint64_t)n;
	if (io->op == PST_IO_DRAIN)
		reached(io->st->priv, io->off + so_far);
	/* O_DIRECT ends off the grid only at the end of the file. */
	if (io->op != PST_IO_SYNC &&
	    (so_far >= io->len || (io->op == PST_IO_FILL && (io->flags & PST_IO_DIRECT) &&
				   (uint64_t)n % facts->off_align))) {
		end(io, (int64_t)so_far);
		return;
	}
	advance(io, (uint64_t)n);
	call->off += (uint64_t)n;
	ret = carry(io);
	if (ret)
		fail(io, ret);
}

/* Hands the rest of the io to the engine, or makes the call here. */
static int carry(struct pst_io *io)
{
	struct pst_lane *lane = io->lane;
	struct pst_call *call = &io->call;

	call->iov = io->iov;
	call->iov_count = io->iov_count;
	if (!(io->flags & PST_IO_NOW)) {
		io->engine = lane->engine_ops->name;
		return lane->engine_ops->submit(lane->engine, call);
	}
	io->engine = "threads"; /* plain calls, on this one */
	call->result = pst_call_now(call);
	step(call);
	return 0;
}

static int start(struct pst_io *io, enum pst_io_op op)
{
	struct pst_file *file = io->st->priv;
	struct pst_call *call = &io->call;
	bool direct = io->flags & PST_IO_DIRECT;

	call->fd = direct ? file->fd_direct : file->fd;
	call->op = op;
	call->fixed = (io->flags & PST_IO_RING) && io->lane->fixed;
	call->off = io->off;
	call->done = step;
	return carry(io);
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
	io->len = 0;
	io->iov = &io->one;
	io->iov_count = 0;
	return start(io, PST_IO_SYNC);
}

static int file_cancel(struct pst_io *io)
{
	return io->lane->engine_ops->cancel(io->lane->engine, &io->call);
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
	.cancel = file_cancel,
	.commit = pst_file_commit,
	.abort = pst_file_abort,
	.length = pst_file_length,
	.residency = pst_file_residency,
	.written = pst_file_written,
};
