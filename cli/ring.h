/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uses io_uring by system calls alone, to measure limits. Called by bench_limits.c and by
 * bench/rawring.c. It shares no code with the library's io_uring engine, so that a mistake in that
 * engine cannot lower a limit.
 */
#ifndef PENSTOCK_CLI_RING_H
#define PENSTOCK_CLI_RING_H

#include <linux/io_uring.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ring {
	int fd;
	char *sq, *cq;
	size_t sq_len, cq_len, sqes_len;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
	unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
};

/* A read or a write that an io_uring makes. */
struct ring_io {
	int fd;
	bool write;
	bool fixed; /* whether `mem` is in the buffer that ring_register has registered */
	char *mem;
	size_t len;
	uint64_t off;
	uint64_t tag; /* number that identifies the completion */
};

/* Opens an io_uring for at least `entries` calls in flight. Returns 0 or -errno. */
int ring_open(struct ring *r, unsigned entries);
/* Closes the io_uring, which cancels the calls in flight. */
void ring_close(struct ring *r);
/* Registers the buffer for all calls whose `fixed` is true. Returns 0 or -errno. */
int ring_register(const struct ring *r, void *mem, size_t len);
/* Puts a call into the submission queue. ring_enter submits it. */
void ring_queue(struct ring *r, const struct ring_io *io);
/* Submits `submit` calls, and waits for `wait` completions. Returns 0 or -errno. */
int ring_enter(const struct ring *r, unsigned submit, unsigned wait);
/* Returns whether a completion is available. */
bool ring_has_completion(const struct ring *r);
/* Takes a completion, which must be available, and sets *tag. Returns the number of bytes that the
 * call has moved, or -errno. */
int ring_take(struct ring *r, uint64_t *tag);

#endif
