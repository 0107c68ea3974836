/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wrapped functions of liburing: see calls.h. What a queue entry asks for is
 * looked at before it is handed over: a short call becomes a shorter entry, so that
 * the kernel itself moves less; a failing one becomes an entry that does nothing,
 * and its completion says what was asked. Part of the tests of this folder where the
 * library has io_uring; must never touch an entry that is not armed.
 */
#include "calls.h"

#include <errno.h>
#include <liburing.h>
#include <pthread.h>

#define MADE_MAX 512 /* more than a test has in flight */

/* Entries that were made to do nothing, and what their completions are to say. */
static struct {
	pthread_mutex_t lock;
	_Atomic unsigned count;
	struct {
		const struct io_uring *ring;
		uint64_t data;
		int result;
	} list[MADE_MAX];
} made = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int kind_of(const struct io_uring_sqe *sqe)
{
	switch (sqe->opcode) {
	case IORING_OP_READ:
	case IORING_OP_READ_FIXED:
		return sqe->user_data > 16 ? CALLS_FILL : -1; /* small ones are marks */
	case IORING_OP_WRITE:
	case IORING_OP_WRITE_FIXED:
		return CALLS_DRAIN;
	case IORING_OP_FSYNC:
		return CALLS_SYNC;
	}
	return -1;
}

static void make_nothing(const struct io_uring *ring, struct io_uring_sqe *sqe, int result)
{
	uint64_t data = sqe->user_data;
	unsigned i;

	pthread_mutex_lock(&made.lock);
	i = made.count++ % MADE_MAX;
	made.list[i].ring = ring;
	made.list[i].data = data;
	made.list[i].result = result;
	pthread_mutex_unlock(&made.lock);
	io_uring_prep_nop(sqe);
	sqe->user_data = data;
}

/* Entries that wait to be handed over: each is seen here once. */
static void look(struct io_uring *ring)
{
	for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; i++) {
		struct io_uring_sqe *sqe = &ring->sq.sqes[i & *ring->sq.kring_mask];
		int kind = kind_of(sqe), as;

		if (sqe->opcode == IORING_OP_READ_FIXED || sqe->opcode == IORING_OP_WRITE_FIXED)
			calls_count_fixed();
		if (kind < 0)
			continue;
		as = calls_turn((enum calls_kind)kind, sqe->fd);
		if (as == CALLS_SHORT)
			sqe->len = (unsigned)calls_short_of(sqe->fd, sqe->len);
		else if (as && as != CALLS_LATE)
			make_nothing(ring, sqe,
				     as == CALLS_EMPTY ? 0
				     : as == CALLS_LIE ? (int)sqe->len
						       : -as);
	}
}

int __real_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring)
{
	int as = calls_turn(CALLS_ENTER, -1);

	if (as)
		return -as;
	look(ring);
	return __real_io_uring_submit(ring);
}

int __real_io_uring_submit_and_wait(struct io_uring *ring, unsigned count);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned count);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned count)
{
	int as = calls_turn(CALLS_ENTER, -1);

	if (as)
		return -as;
	look(ring);
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
	int as = calls_turn(CALLS_ENTER, -1);

	if (as)
		return -as;
	look(ring);
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

	if (!made.count)
		return n;
	pthread_mutex_lock(&made.lock);
	for (unsigned c = 0; c < n; c++)
		for (unsigned i = 0; i < MADE_MAX; i++) {
			if (made.list[i].ring != ring || made.list[i].data != cqes[c]->user_data)
				continue;
			cqes[c]->res = made.list[i].result;
			made.list[i].ring = NULL;
		}
	pthread_mutex_unlock(&made.lock);
	return n;
}

int __real_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
	int as = calls_turn(CALLS_SETUP, -1);

	return as ? -as : __real_io_uring_queue_init(entries, ring, flags);
}

int __real_io_uring_register_buffers(struct io_uring *ring, const struct iovec *iov,
				     unsigned count);
int __wrap_io_uring_register_buffers(struct io_uring *ring, const struct iovec *iov,
				     unsigned count);
int __wrap_io_uring_register_buffers(struct io_uring *ring, const struct iovec *iov, unsigned count)
{
	int as = calls_turn(CALLS_REGISTER, -1);

	return as ? -as : __real_io_uring_register_buffers(ring, iov, count);
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
	int as = calls_turn(CALLS_REGISTER, -1);

	return as ? -as : __real_io_uring_register_buffers_update_tag(ring, off, iov, tags, count);
}
