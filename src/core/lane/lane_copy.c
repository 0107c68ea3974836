/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane's copies: between slots or mappings and device memory, through one copier a
 * device, and what goes on when they are done. Copiers of other devices than the pump's
 * are opened by who submits and given to the lane; a caller's own lane opens its own.
 */
#include <stdlib.h>

#include "core/lane/lane.h"
#include "core/base/log.h"

/* While older copies keep the engine busy, those of so many bytes share a ticket; fewer
 * when the lane has a moment. Half of a lane's ring: the other half is filled meanwhile. */
#define MARK_BYTES (8u << 20)
#define TICKETS 8		/* that a lane is likely to have in flight */
#define MARK_LEAST (256u << 10) /* shorter chunks wait for the end of the lane's turn */

struct pst_copyq *pst_copyq_open(struct penstock_device *dev, bool alone, struct pst_err *err)
{
	struct pst_copyq *copyq = calloc(1, sizeof(*copyq));

	if (!copyq) {
		pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a copy queue");
		return NULL;
	}
	copyq->dev = dev;
	if (dev->ops->copier_open(dev, alone ? 1 : TICKETS, &copyq->copier, err)) {
		pst_log(PST_LOG_ERROR, dev->ops->name, "%s", err->text);
		free(copyq);
		return NULL;
	}
	return copyq;
}

void pst_copyq_close(struct pst_copyq *copyq)
{
	copyq->dev->ops->copier_close(copyq->copier);
	free(copyq);
}

void pst_lane_take_copyqs(struct pst_lane *lane)
{
	struct pst_copyq *list;

	if (!atomic_load_explicit(&lane->given, memory_order_relaxed))
		return;
	list = atomic_exchange_explicit(&lane->given, NULL, memory_order_acquire);
	while (list) {
		struct pst_copyq *copyq = list;

		list = copyq->link;
		lane->copyqs[lane->copyq_count++] = copyq;
	}
}

struct pst_copyq *pst_lane_copyq(struct pst_lane *lane, struct penstock_device *dev)
{
	struct pst_copyq *copyq;

	for (int again = 0; again < 2; again++) {
		for (unsigned i = 0; i < lane->copyq_count; i++)
			if (lane->copyqs[i]->dev == dev)
				return lane->copyqs[i];
		pst_lane_take_copyqs(lane);
	}
	copyq = pst_copyq_open(dev, lane->borrowed, &lane->open_err);
	if (!copyq)
		return NULL;
	lane->copyqs[lane->copyq_count++] = copyq;
	atomic_fetch_or(&lane->copies_to, (uint64_t)1 << dev->index);
	return copyq;
}

struct copying {
	struct pst_chunk *chunk;
	char *base;
	uint64_t bytes;
	uint64_t touched; /* bit i: lane->copyqs[i] got a copy */
	enum penstock_op op;
};

static int copy_part(void *arg, const struct pst_part *part)
{
	struct copying *c = arg;
	struct pst_lane *lane = c->chunk->lane;
	struct pst_copyq *copyq = pst_lane_copyq(lane, part->dev);
	struct pst_rect rect = {
		.row_len = part->row_len,
		.rows = part->rows,
		.unsure = c->chunk->req->flags & PENSTOCK_R_UNSURE,
		.piece = pst_ring_piece(&lane->ring, c->base),
		.refused = &c->chunk->refused,
	};
	int ret;

	if (!copyq)
		return pst_fail(&c->chunk->err, PENSTOCK_WHY_DEVICE_ERROR, "%s: no copy queue: %s",
				part->dev->name, lane->open_err.text);
	if (c->op == PENSTOCK_READ) {
		rect.dst = part->mem;
		rect.dst_pitch = part->mem_pitch;
		rect.src = c->base + part->at;
		rect.src_pitch = part->pitch;
		ret = part->dev->ops->copy_in(copyq->copier, &rect);
	} else {
		rect.dst = c->base + part->at;
		rect.dst_pitch = part->pitch;
		rect.src = part->mem;
		rect.src_pitch = part->mem_pitch;
		ret = part->dev->ops->copy_out(copyq->copier, &rect);
	}
	if (ret)
		return pst_fail_errno(&c->chunk->err, ret,
				      part->dev->facts.is_host ? pst_why_of_errno(ret)
							       : PENSTOCK_WHY_DEVICE_ERROR,
				      "%s: copying %llu bytes: %m", part->dev->name,
				      (unsigned long long)(part->row_len * part->rows));
	c->bytes += part->row_len * part->rows;
	if (part->dev->facts.cpu_addressable)
		c->chunk->cpu_copied += part->row_len * part->rows;
	for (unsigned i = 0; i < lane->copyq_count; i++)
		if (lane->copyqs[i] == copyq)
			c->touched |= (uint64_t)1 << i;
	return 0;
}

/* Gives the copies queued since the last time a ticket. One for several chunks: each
 * costs the copy engine a pause of some 4 us (H200). */
static void mark_copies(struct pst_copyq *copyq)
{
	uint64_t ticket = 0;
	int ret;

	if (!copyq->unmarked)
		return;
	ret = copyq->dev->ops->record(copyq->copier, &ticket);
	for (unsigned i = copyq->tail - copyq->unmarked; i != copyq->tail; i++) {
		copyq->waits[i % PST_LANE_CHUNKS].ticket = ticket;
		copyq->waits[i % PST_LANE_CHUNKS].error = ret;
	}
	copyq->unmarked = 0;
	copyq->unmarked_bytes = 0;
}

/* With nothing under way on this queue the engine may stand still: no more waiting. */
static bool due(const struct pst_copyq *copyq)
{
	return copyq->unmarked_bytes >= MARK_BYTES || copyq->tail - copyq->head == copyq->unmarked;
}

static void copies_ended(struct pst_chunk *chunk, int result)
{
	if (!result)
		result = chunk->refused;
	if (result && !chunk->err.code)
		pst_fail_errno(&chunk->err, result, PENSTOCK_WHY_DEVICE_ERROR,
			       "the device reported an error for a copy: %m");
	if (--chunk->waits)
		return;
	chunk->lane->copies--;
	chunk->after_copies(chunk, chunk->err.code);
}

int pst_chunk_copy(struct pst_chunk *chunk, char *base, uint64_t len,
		   void (*after)(struct pst_chunk *chunk, int result))
{
	struct pst_request *req = chunk->req;
	struct pst_lane *lane = chunk->lane;
	struct copying c = {.chunk = chunk, .base = base, .op = req->op};
	int ret;

	chunk->refused = 0;
	ret = pst_span_parts(req, &req->spans[chunk->span], chunk->off, len, copy_part, &c);
	chunk->after_copies = after;
	chunk->waits = 1; /* keeps copies_ended from ending it early */
	lane->copies++;
	for (unsigned i = 0; i < lane->copyq_count; i++) {
		struct pst_copyq *copyq = lane->copyqs[i];
		unsigned at = copyq->tail % PST_LANE_CHUNKS;

		if (!(c.touched >> i & 1))
			continue;
		copyq->waits[at].bytes = c.bytes;
		copyq->waits[at].chunk = chunk;
		copyq->tail++;
		copyq->unmarked++;
		copyq->unmarked_bytes += c.bytes;
		lane->copy_bytes += c.bytes;
		chunk->waits++;
		if (c.bytes >= MARK_LEAST && due(copyq))
			mark_copies(copyq);
	}
	copies_ended(chunk, ret);
	return 0;
}

int pst_lane_reap_copies(struct pst_lane *lane, enum pst_reap how)
{
	int ended = 0;

	for (unsigned i = 0; i < lane->copyq_count; i++) {
		struct pst_copyq *copyq = lane->copyqs[i];

		if (how != PST_REAP_LOOK)
			mark_copies(copyq);
		/* What went on may have queued copies that have no ticket yet. */
		while (copyq->tail - copyq->head > copyq->unmarked) {
			const unsigned at = copyq->head % PST_LANE_CHUNKS;
			uint64_t ticket = copyq->waits[at].ticket;
			int ret = copyq->waits[at].error;

			if (!ret)
				ret = copyq->dev->ops->query(copyq->copier, ticket);
			if (!ret)
				break;
			copyq->head++;
			lane->copy_bytes -= copyq->waits[at].bytes;
			copies_ended(copyq->waits[at].chunk, ret < 0 ? ret : 0);
			ended++;
		}
	}
	return ended;
}

int pst_lane_copy_now(struct pst_lane *lane, struct penstock_device *dev,
		      const struct pst_rect *rect, bool in)
{
	struct pst_copyq *copyq = pst_lane_copyq(lane, dev);
	uint64_t ticket;
	int ret;

	if (!copyq)
		return lane->open_err.code;
	ret = in ? dev->ops->copy_in(copyq->copier, rect) : dev->ops->copy_out(copyq->copier, rect);
	if (!ret)
		ret = dev->ops->record(copyq->copier, &ticket);
	if (!ret)
		ret = dev->ops->wait(copyq->copier, ticket);
	return ret;
}
