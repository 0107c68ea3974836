/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes one system call for one struct pst_call. Engine threads and storage file call it. It
 * must never repeat a call that was short or interrupted: the storage knows what that means.
 */
#include "io/call_now.h"

#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

static ssize_t syscall_make(const struct pst_call *call)
{
	const struct iovec *iov = call->iov;
	off_t off = (off_t)call->off;

	switch (call->op) {
	case PST_IO_FILL:
		if (call->iov_count == 1)
			return pread(call->fd, iov->iov_base, iov->iov_len, off);
		return preadv(call->fd, iov, (int)call->iov_count, off);
	case PST_IO_DRAIN:
		if (call->iov_count == 1)
			return pwrite(call->fd, iov->iov_base, iov->iov_len, off);
		return pwritev(call->fd, iov, (int)call->iov_count, off);
	case PST_IO_SYNC:
		return fdatasync(call->fd);
	}
	errno = EINVAL;
	return -1;
}

int64_t pst_call_now(const struct pst_call *call)
{
	ssize_t n = syscall_make(call);

	return n < 0 ? -errno : n;
}
