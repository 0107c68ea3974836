/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads or writes the drive through io_uring, by system calls alone, to measure the drive's
 * limit. It uses one registered buffer and a fixed number of calls in flight. A consumer
 * (struct raw_sink) receives the blocks that were read, or they are ignored. drive.c and
 * gpu_cold.c call this file. It shares no code with the library's io_uring engine, so that a
 * mistake in that engine cannot lower the limit.
 *
 * Each call is submitted alone. If several adjacent calls were submitted together, the block
 * layer would merge them into a few large calls. Our measurements showed that virtio-blk serves
 * such large calls a quarter slower.
 */
#include <errno.h>
#include <linux/io_uring.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bench.h"

struct ring {
	int fd;
	unsigned entries;
	char *sq, *cq;
	size_t sq_len, cq_len, sqes_len;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
	unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
};

static void ring_close(struct ring *r)
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

static int ring_open(struct ring *r, unsigned entries)
{
	struct io_uring_params p = {0};

	memset(r, 0, sizeof(*r));
	r->fd = (int)syscall(SYS_io_uring_setup, entries, &p);
	if (r->fd < 0)
		return -errno;
	r->entries = p.sq_entries;
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
	r->sq_tail = (unsigned *)(r->sq + p.sq_off.tail);
	r->sq_mask = (unsigned *)(r->sq + p.sq_off.ring_mask);
	r->sq_array = (unsigned *)(r->sq + p.sq_off.array);
	r->cq_head = (unsigned *)(r->cq + p.cq_off.head);
	r->cq_tail = (unsigned *)(r->cq + p.cq_off.tail);
	r->cq_mask = (unsigned *)(r->cq + p.cq_off.ring_mask);
	r->cqes = (struct io_uring_cqe *)(r->cq + p.cq_off.cqes);
	return 0;
}

static void ring_queue(struct ring *r, int fd, bool write, char *mem, size_t len, uint64_t off,
		       unsigned slot)
{
	unsigned tail = *r->sq_tail, at = tail & *r->sq_mask;
	struct io_uring_sqe *sqe = &r->sqes[at];

	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED;
	sqe->fd = fd;
	sqe->addr = (uintptr_t)mem;
	sqe->len = (unsigned)len;
	sqe->off = off;
	sqe->user_data = slot;
	r->sq_array[at] = at;
	__atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_RELEASE);
}

static int ring_enter(const struct ring *r, unsigned submit, unsigned wait)
{
	long ret;

	do
		ret = syscall(SYS_io_uring_enter, r->fd, submit, wait, IORING_ENTER_GETEVENTS, NULL,
			      0);
	while (ret < 0 && errno == EINTR);
	return ret < 0 ? -errno : 0;
}

/* Takes one completion from the io_uring. Returns the slot of the call that completed, or
 * -errno. */
static int ring_completion(struct ring *r, size_t len)
{
	unsigned head = *r->cq_head;
	const struct io_uring_cqe *cqe = &r->cqes[head & *r->cq_mask];
	int res = cqe->res, slot = (int)cqe->user_data;

	__atomic_store_n(r->cq_head, head + 1, __ATOMIC_RELEASE);
	if (res < 0)
		return res;
	return (size_t)res == len ? slot : -EIO;
}

static bool ring_has_completion(const struct ring *r)
{
	return __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE) != *r->cq_head;
}

/* Submits one call that reads block `n` into `slot`, or writes it from there. */
static int block_submit(struct ring *r, const struct raw_move *m, uint64_t n, unsigned slot)
{
	const struct drive_way *way = m->way;

	ring_queue(r, m->fd, m->write, m->buf + (size_t)slot * way->block, way->block,
		   m->off + n * m->stride, slot);
	return ring_enter(r, 1, 0);
}

/* Moves all blocks. If there is a consumer, a slot is reused only after the consumer has freed
 * it. in_slot[i] is the number of the block in slot i. */
static int blocks_move(struct ring *r, const struct raw_move *m, uint64_t *in_slot)
{
	const struct drive_way *way = m->way;
	const struct raw_sink *sink = m->sink;
	uint64_t next = 0, done = 0, held = 0;
	int ret = 0;

	for (; next < way->depth && next < m->count && !ret; next++) {
		in_slot[next] = next;
		ret = block_submit(r, m, next, (unsigned)next);
	}
	while (done < m->count && !ret) {
		int slot = -1;

		if (ring_has_completion(r)) {
			slot = ring_completion(r, way->block);
			if (slot < 0)
				return slot;
			if (sink) {
				ret = sink->deliver(sink->arg, (unsigned)slot,
						    m->buf + (size_t)slot * way->block,
						    in_slot[slot] * m->stride, way->block);
				held++;
				slot = -1;
			}
		} else if (held && (slot = sink->poll_freed(sink->arg)) >= 0) {
			held--;
		} else if (!held || (sink->sleeps && next - done > held)) {
			ret = ring_enter(r, 0, 1);
		}
		if (slot < 0)
			continue;
		done++;
		if (next >= m->count || ret)
			continue;
		in_slot[slot] = next;
		ret = block_submit(r, m, next++, (unsigned)slot);
	}
	return ret; /* The caller closes the io_uring, which cancels the calls that are still in
		     * flight. */
}

int rawring_move(const struct raw_move *m)
{
	struct iovec iov = {m->buf, m->way->depth * m->way->block};
	uint64_t in_slot[RAW_DEPTH_MAX];
	struct ring r;
	int ret;

	if (m->way->depth > RAW_DEPTH_MAX)
		return -EINVAL;
	ret = ring_open(&r, m->way->depth);
	if (ret)
		return ret;
	if (syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_BUFFERS, &iov, 1) < 0)
		ret = -errno;
	else
		ret = blocks_move(&r, m, in_slot);
	ring_close(&r);
	return ret;
}
