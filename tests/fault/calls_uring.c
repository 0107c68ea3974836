/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wrapped functions of liburing, see calls.h. The library calls them if it was built with
 * liburing. Before entries are submitted, the wrapper changes those that must not succeed. If a
 * call must be short, the wrapper shortens its entry, so that the kernel itself moves fewer
 * bytes. If a call must fail, the wrapper turns its entry into a no-op and gives its completion
 * the injected result. Entries of other kinds must never be changed.
 */
#include "calls.h"

#include <errno.h>
#include <liburing.h>
#include <pthread.h>

#define NOOPS_MAX 512 /* more entries than any test has in flight */

/* Entries that were turned into no-ops, and the results that their completions must return. */
static struct {
	pthread_mutex_t lock;
	_Atomic unsigned count;
	struct {
		const struct io_uring *ring;
		uint64_t data;
		int result;
	} list[NOOPS_MAX];
} noops = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int sqe_kind(const struct io_uring_sqe *sqe)
{
	switch (sqe->opcode) {
	case IORING_OP_READ:
	case IORING_OP_READ_FIXED:
		/* The library's internal reads have a user_data of at most 16. A greater value
		 * belongs to a transfer. */
		return sqe->user_data > 16 ? CALLS_FILL : -1;
	case IORING_OP_WRITE:
	case IORING_OP_WRITE_FIXED:
		return CALLS_DRAIN;
	case IORING_OP_FSYNC:
		return CALLS_SYNC;
	}
	return -1;
}

static void make_noop(const struct io_uring *ring, struct io_uring_sqe *sqe, int result)
{
	uint64_t data = sqe->user_data;
	unsigned i;

	pthread_mutex_lock(&noops.lock);
	i = noops.count++ % NOOPS_MAX;
	noops.list[i].ring = ring;
	noops.list[i].data = data;
	noops.list[i].result = result;
	pthread_mutex_unlock(&noops.lock);
	io_uring_prep_nop(sqe);
	sqe->user_data = data;
}

/* Asks calls_next_outcome for the fault of each entry that waits for submission, and applies it.
 * Must be called once before each submission, because it also counts the entries. */
static void apply_faults(struct io_uring *ring)
{
	for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; i++) {
		struct io_uring_sqe *sqe = &ring->sq.sqes[i & *ring->sq.kring_mask];
		int kind = sqe_kind(sqe), outcome;

		if (sqe->opcode == IORING_OP_READ_FIXED || sqe->opcode == IORING_OP_WRITE_FIXED)
			calls_count_fixed();
		if (kind < 0)
			continue;
		outcome = calls_next_outcome((enum calls_kind)kind, sqe->fd);
		if (outcome == CALLS_SHORT)
			sqe->len = (unsigned)calls_short_len(sqe->fd, sqe->len);
		else if (outcome && outcome != CALLS_LATE)
			make_noop(ring, sqe,
				  outcome == CALLS_EMPTY ? 0
				  : outcome == CALLS_LIE ? (int)sqe->len
							 : -outcome);
	}
}

int __real_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring)
{
	int outcome = calls_next_outcome(CALLS_ENTER, -1);

	if (outcome)
		return -outcome;
	apply_faults(ring);
	return __real_io_uring_submit(ring);
}

int __real_io_uring_submit_and_wait(struct io_uring *ring, unsigned count);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned count);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned count)
{
	int outcome = calls_next_outcome(CALLS_ENTER, -1);

	if (outcome)
		return -outcome;
	apply_faults(ring);
	return __real_io_uring_submit_and_wait(ring, count);
}

int __real_io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe,
					    unsigned count, struct __kernel_timespec *ts,
					    sigset_t *mask);
int __wrap_io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe,
					    unsigned count, struct __kernel_timespec *ts,
					    sigset_t *mask);
int __wrap_io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe,
					    unsigned count, struct __kernel_timespec *ts,
					    sigset_t *mask)
{
	int outcome = calls_next_outcome(CALLS_ENTER, -1);

	if (outcome)
		return -outcome;
	apply_faults(ring);
	return __real_io_uring_submit_and_wait_timeout(ring, cqe, count, ts, mask);
}

unsigned __real_io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **cqes,
					unsigned count);
unsigned __wrap_io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **cqes,
					unsigned count);
unsigned __wrap_io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **cqes,
					unsigned count)
{
	unsigned n = __real_io_uring_peek_batch_cqe(ring, cqes, count);

	if (!noops.count)
		return n;
	pthread_mutex_lock(&noops.lock);
	for (unsigned c = 0; c < n; c++)
		for (unsigned i = 0; i < NOOPS_MAX; i++) {
			if (noops.list[i].ring != ring || noops.list[i].data != cqes[c]->user_data)
				continue;
			cqes[c]->res = noops.list[i].result;
			noops.list[i].ring = NULL;
		}
	pthread_mutex_unlock(&noops.lock);
	return n;
}

int __real_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
	int outcome = calls_next_outcome(CALLS_SETUP, -1);

	return outcome ? -outcome : __real_io_uring_queue_init(entries, ring, flags);
}

int __real_io_uring_register_buffers(struct io_uring *ring, const struct iovec *iov,
				     unsigned count);
int __wrap_io_uring_register_buffers(struct io_uring *ring, const struct iovec *iov,
				     unsigned count);
int __wrap_io_uring_register_buffers(struct io_uring *ring, const struct iovec *iov, unsigned count)
{
	int outcome = calls_next_outcome(CALLS_REGISTER, -1);

	return outcome ? -outcome : __real_io_uring_register_buffers(ring, iov, count);
}

int __real_io_uring_register_buffers_update_tag(struct io_uring *ring, unsigned off,
						const struct iovec *iov, const __u64 *tags,
						unsigned count);
int __wrap_io_uring_register_buffers_update_tag(struct io_uring *ring, unsigned off,
						const struct iovec *iov, const __u64 *tags,
						unsigned count);
int __wrap_io_uring_register_buffers_update_tag(struct io_uring *ring, unsigned off,
						const struct iovec *iov, const __u64 *tags,
						unsigned count)
{
	int outcome = calls_next_outcome(CALLS_REGISTER, -1);

	return outcome ? -outcome
		       : __real_io_uring_register_buffers_update_tag(ring, off, iov, tags, count);
}
