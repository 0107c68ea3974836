/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes one system call at once on the calling thread. The worker threads of the engine "threads"
 * use it, and so do storages for transfers that are known to be quick. It must never repeat a call
 * that was short or interrupted, because only the storage knows whether a repeat is right.
 */
#ifndef PST_IO_CALL_NOW_H
#define PST_IO_CALL_NOW_H

#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/ops.h"

static inline ssize_t pst_call_make(const struct pst_call *call)
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

/*
 * Makes the system call once and returns its byte count or -errno. If the call was short or
 * interrupted, the caller decides whether to repeat it.
 */
static inline int64_t pst_call_now(const struct pst_call *call)
{
	ssize_t n = pst_call_make(call);

	return n < 0 ? -errno : n;
}

#endif
