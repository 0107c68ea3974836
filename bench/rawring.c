/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads or writes the drive through io_uring, by the system calls of cli/ring.c, to measure the
 * drive's limit. It uses one registered buffer and a fixed number of calls in flight. A consumer
 * (struct raw_sink) receives the blocks that were read, or they are ignored. drive.c and
 * gpu_cold.c call this file.
 *
 * Each call is submitted alone. If several adjacent calls were submitted together, the block
 * layer would merge them into a few large calls. Our measurements showed that virtio-blk serves
 * such large calls a quarter slower.
 */
#include <errno.h>

#include "../cli/ring.h"
#include "bench.h"

/* Takes one completion from the io_uring. Returns the slot of the call that completed, or
 * -errno. */
static int ring_completion(struct ring *r, size_t len)
{
	uint64_t slot;
	int res = ring_take(r, &slot);

	if (res < 0)
		return res;
	return (size_t)res == len ? (int)slot : -EIO;
}

/* Submits one call that reads block `n` into slot `slot` of the buffer, or writes it from there. */
static int block_submit(struct ring *r, const struct raw_move *m, uint64_t n, unsigned slot)
{
	const struct drive_way *way = m->way;

	ring_queue(r, &(struct ring_io){.fd = m->fd,
					.write = m->write,
					.fixed = true,
					.mem = m->buf + (size_t)slot * way->block,
					.len = way->block,
					.off = m->off + n * m->stride,
					.tag = slot});
	return ring_enter(r, 1, 0);
}

/* Moves all blocks. If there is a consumer, a slot is reused only after the consumer has freed it.
 * in_slot[i] is the index of the block in slot i. */
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
	uint64_t in_slot[RAW_DEPTH_MAX];
	struct ring r;
	int ret;

	if (m->way->depth > RAW_DEPTH_MAX)
		return -EINVAL;
	ret = ring_open(&r, m->way->depth);
	if (ret)
		return ret;
	ret = ring_register(&r, m->buf, m->way->depth * m->way->block);
	if (!ret)
		ret = blocks_move(&r, m, in_slot);
	ring_close(&r);
	return ret;
}
