/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements ring.h. The caller must never have more calls in flight than the entries that it gave
 * to ring_open, because ring_queue does not check that.
 */
#include "ring.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

void ring_close(struct ring *r)
{
	if (r->sqes)
		munmap(r->sqes, r->sqes_len);
	if (r->cq)
		munmap(r->cq, r->cq_len);
	if (r->sq)
		munmap(r->sq, r->sq_len);
	close(r->fd);
}

static void *ring_map(int fd, size_t len, off_t what)
{
	void *mem = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, what);

	return mem == MAP_FAILED ? NULL : mem;
}

int ring_open(struct ring *r, unsigned entries)
{
	struct io_uring_params p = {0};

	memset(r, 0, sizeof(*r));
	r->fd = (int)syscall(SYS_io_uring_setup, entries, &p);
	if (r->fd < 0)
		return -errno;
	r->sq_len = p.sq_off.array + p.sq_entries * sizeof(unsigned);
	r->cq_len = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	r->sqes_len = p.sq_entries * sizeof(struct io_uring_sqe);
	r->sq = ring_map(r->fd, r->sq_len, IORING_OFF_SQ_RING);
	r->cq = ring_map(r->fd, r->cq_len, IORING_OFF_CQ_RING);
	r->sqes = ring_map(r->fd, r->sqes_len, IORING_OFF_SQES);
	if (!r->sq || !r->cq || !r->sqes) {
		ring_close(r);
		return -ENOMEM;
	}
	r->sq_tail = (unsigned *)(void *)(r->sq + p.sq_off.tail);
	r->sq_mask = (unsigned *)(void *)(r->sq + p.sq_off.ring_mask);
	r->sq_array = (unsigned *)(void *)(r->sq + p.sq_off.array);
	r->cq_head = (unsigned *)(void *)(r->cq + p.cq_off.head);
	r->cq_tail = (unsigned *)(void *)(r->cq + p.cq_off.tail);
	r->cq_mask = (unsigned *)(void *)(r->cq + p.cq_off.ring_mask);
	r->cqes = (struct io_uring_cqe *)(void *)(r->cq + p.cq_off.cqes);
	return 0;
}

int ring_register(const struct ring *r, void *mem, size_t len)
{
	struct iovec iov = {mem, len};

	return syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_BUFFERS, &iov, 1) < 0 ? -errno
											   : 0;
}

void ring_queue(struct ring *r, const struct ring_io *io)
{
	unsigned tail = *r->sq_tail, at = tail & *r->sq_mask;
	struct io_uring_sqe *sqe = &r->sqes[at];

	memset(sqe, 0, sizeof(*sqe));
	if (io->write)
		sqe->opcode = io->fixed ? IORING_OP_WRITE_FIXED : IORING_OP_WRITE;
	else
		sqe->opcode = io->fixed ? IORING_OP_READ_FIXED : IORING_OP_READ;
	sqe->fd = io->fd;
	sqe->addr = (uintptr_t)io->mem;
	sqe->len = (unsigned)io->len;
	sqe->off = io->off;
	sqe->user_data = io->tag;
	r->sq_array[at] = at;
	__atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_RELEASE);
}

int ring_enter(const struct ring *r, unsigned submit, unsigned wait)
{
	long ret;

	do
		ret = syscall(SYS_io_uring_enter, r->fd, submit, wait, IORING_ENTER_GETEVENTS, NULL,
			      0);
	while (ret < 0 && errno == EINTR);
	return ret < 0 ? -errno : 0;
}

bool ring_has_completion(const struct ring *r)
{
	return __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE) != *r->cq_head;
}

int ring_take(struct ring *r, uint64_t *tag)
{
	unsigned head = *r->cq_head;
	const struct io_uring_cqe *cqe = &r->cqes[head & *r->cq_mask];
	int res = cqe->res;

	*tag = cqe->user_data;
	__atomic_store_n(r->cq_head, head + 1, __ATOMIC_RELEASE);
	return res;
}
