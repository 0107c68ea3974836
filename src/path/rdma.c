/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Path rdma: the server of a storage (its far side) writes the bytes of a read into a window, which
 * is host memory of the lane. The device copies them from there. For a write, the server reads the
 * bytes from a window that the storage has filled. The storage and its transports decide how the
 * server accesses the window, and report whether a CPU copies the bytes. The lane starts the
 * chunks.
 *
 * A lane has up to WINDOWS windows, which it opens when it first needs them and keeps until it
 * closes. They are pinned for its device like its ring. A storage completes a transfer only when
 * the server has lost its access to the window. So the window can be used again at once.
 */
#include "path/rdma.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/base/device_sync.h"
#include "core/base/log.h"
#include "core/lane/chunk.h"
#include "core/lane/lane.h"
#include "core/lane/pump.h"
#include "core/request/plan.h"
#include "path/slotted.h"

#define WINDOWS 4 /* maximum number of windows of a lane */
/* Length of a chunk, and of the first chunks, if the storage has no preference. */
#define CHUNK_MAX (4u << 20)
#define CHUNK_FIRST (1u << 20)

/* An element of the lane's table of windows. */
struct place {
	struct pst_window *window; /* NULL if the element has no window */
	bool pinned, busy;
};

struct rdma_lane {
	struct place places[WINDOWS];
};

/* ---- the lane's windows ---- */

/* Closes an element's window. Returns false, and does nothing, if the window must be unregistered
 * and a stream waits for a request: the call of the driver would wait for this stream. If `wait` is
 * true, waits until no stream does. */
static bool place_clear(const struct pst_lane *lane, struct place *place, bool wait)
{
	struct penstock_device *dev = lane->pump->dev;

	if (place->pinned && wait)
		pst_device_sync_await(dev);
	else if (place->pinned && !pst_device_sync_begin(dev))
		return false;
	if (place->pinned) {
		dev->ops->host_unregister(dev, place->window->mem, NULL);
		pst_device_sync_end(dev);
	}
	place->pinned = false;
	place->window->close(place->window);
	place->window = NULL;
	return true;
}

static int place_fill(const struct pst_lane *lane, struct place *place, struct penstock_storage *st,
		      struct pst_err *err)
{
	struct penstock_device *dev = lane->pump->dev;
	size_t len = st->facts.chunk_best ? st->facts.chunk_best : CHUNK_MAX;
	struct pst_err reason;
	int ret = st->ops->window_open(st, len, &place->window, err);

	if (ret)
		return ret;
	if (!dev->ops->host_register)
		return 0;
	place->pinned = !dev->ops->host_register(dev, place->window->mem, place->window->len, false,
						 &reason);
	if (!place->pinned)
		pst_log(PST_LOG_WARN, dev->ops->name,
			"cannot pin a window, copies will be slower: %s", reason.text);
	return 0;
}

/* Returns an element for a chunk: one with a window that the storage can use, else an empty one,
 * else one that is not in use. Stores in *busy how many elements are in use. */
static struct place *place_find(const struct pst_lane *lane, struct rdma_lane *state,
				const void *kind, unsigned *busy)
{
	struct place *found = NULL;

	*busy = 0;
	for (unsigned i = 0; i < WINDOWS; i++) {
		struct place *place = &state->places[i];

		*busy += place->busy;
		if (place->busy || (place->window && atomic_load(&place->window->spoiled) &&
				    !place_clear(lane, place, false)))
			continue;
		if (place->window && place->window->kind == kind)
			return place;
		if (!found || (found->window && !place->window))
			found = place;
	}
	return found;
}

/* Takes an element, and opens a window in it if needed. Returns -EAGAIN if all windows are in use;
 * the lane tries again when a chunk has completed. */
static int place_take(const struct pst_lane *lane, struct rdma_lane *state,
		      struct penstock_storage *st, struct place **out, struct pst_err *err)
{
	unsigned busy;
	struct place *place = place_find(lane, state, st->facts.windows, &busy);
	int ret = 0;

	if (place && place->window && place->window->kind != st->facts.windows &&
	    !place_clear(lane, place, false))
		place = NULL;
	if (!place)
		return busy ? -EAGAIN
			    : pst_fail_errno(err, ENOBUFS, PENSTOCK_WHY_NO_WINDOW,
					     "the lane's windows are pinned while a stream waits "
					     "for a request");
	if (!place->window)
		ret = place_fill(lane, place, st, err);
	if (ret)
		return ret;
	place->busy = true;
	*out = place;
	return 0;
}

static int rdma_lane_open(struct pst_lane *lane, unsigned index, struct pst_err *err)
{
	lane->path_state[index] = calloc(1, sizeof(struct rdma_lane));
	return lane->path_state[index]
		       ? 0
		       : pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a lane");
}

static void rdma_lane_close(struct pst_lane *lane, unsigned index)
{
	struct rdma_lane *state = lane->path_state[index];

	for (unsigned i = 0; i < WINDOWS; i++)
		if (state->places[i].window)
			place_clear(lane, &state->places[i], true);
	free(state);
	lane->path_state[index] = NULL;
}

/* ---- a chunk ---- */

static int rdma_probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
		      char *fix)
{
	const struct pst_storage_facts *st = &route->st->facts;
	const struct pst_pump *pump = atomic_load(&route->dev->pump);

	if (!st->windows) {
		if (st->why_windows.code)
			*err = st->why_windows;
		else
			pst_fail(err, PENSTOCK_WHY_NO_WINDOW,
				 "%s storage has no server that moves bytes itself",
				 route->st->ops->name);
		snprintf(fix, PENSTOCK_TEXT_MAX,
			 st->why_windows.code ? "see the option rdma of s3:// URLs"
					      : "read an object (s3://) of a server that speaks "
						"S3 over RDMA");
		return err->code;
	}
	facts->class_ = route->dev->facts.cpu_addressable ? PENSTOCK_ANY : st->windows_class;
	if (st->windows_class < PENSTOCK_NO_CPU_COPY)
		pst_fail(err, PENSTOCK_WHY_NO_WINDOW,
			 "a CPU copies the bytes of the transports that are open (no NIC does)");
	facts->off_align = facts->mem_align = 1;
	facts->chunk_max = st->chunk_best ? st->chunk_best : CHUNK_MAX;
	facts->chunk_first = CHUNK_FIRST < facts->chunk_max ? CHUNK_FIRST : facts->chunk_max;
	/* For a write, the device copies the bytes to a slot, and the storage copies them from
	 * there into its own window. */
	facts->slotted = route->op == PENSTOCK_WRITE;
	if (facts->slotted && facts->chunk_max > pump->slot_bytes)
		facts->chunk_max = pump->slot_bytes;
	facts->lanes = pump->lane_count;
	facts->quick = true;
	facts->shut = st->windows_shut;
	return 0;
}

static void rdma_copied(struct pst_chunk *chunk, int result)
{
	struct place *place = chunk->priv;

	place->busy = false;
	pst_chunk_done(chunk, result);
}

static void rdma_fail(struct pst_chunk *chunk, const struct pst_err *err)
{
	struct place *place = chunk->priv;

	place->busy = false;
	chunk->err = *err;
	pst_chunk_done(chunk, err->code);
}

static void rdma_filled(struct pst_io *io)
{
	struct pst_chunk *chunk = pst_chunk_io_done(io);
	const struct place *place = chunk->priv;

	chunk->engine = io->engine;
	if (io->result < 0) {
		rdma_fail(chunk, &io->err);
		return;
	}
	/* The server may have sent the bytes in its response instead. They then count as moved by
	 * the path that receives such bytes. If the transfer moved no byte, because it begins after
	 * the storage's end, no path changes. */
	if (io->result && !io->by_window && !pst_chunk_demote(chunk, &io->err)) {
		rdma_fail(chunk, &io->err);
		return;
	}
	chunk->moved = (uint64_t)io->result < chunk->len ? (uint64_t)io->result : chunk->len;
	chunk->dram_laid += chunk->moved;
	if (!io->by_dma)
		chunk->cpu_copied += chunk->moved;
	if (!chunk->moved) {
		rdma_copied(chunk, 0);
		return;
	}
	pst_chunk_copy(chunk, place->window->mem, chunk->moved, rdma_copied);
}

static int rdma_start(struct pst_chunk *chunk)
{
	struct rdma_lane *state = chunk->lane->path_state[chunk->path];
	struct place *place;
	int ret;

	if (chunk->route->op == PENSTOCK_WRITE)
		return pst_bounce_start_plain(chunk, PST_IO_FAR);
	ret = place_take(chunk->lane, state, chunk->route->st, &place, &chunk->err);
	if (ret)
		return ret;
	chunk->priv = place;
	chunk->own_piece = 2 + (unsigned)(place - state->places);
	pst_chunk_io(chunk, place->window->mem, chunk->off, chunk->len, 0, rdma_filled);
	chunk->io.window = place->window;
	ret = pst_chunk_io_start(chunk);
	if (ret)
		place->busy = false;
	return ret;
}

const struct pst_path_ops pst_path_rdma = {
	.name = "rdma",
	.traits = {.reads = true, .writes = true, .class_ = PENSTOCK_NO_CPU_COPY},
	.probe = rdma_probe,
	.start = rdma_start,
	.lane_open = rdma_lane_open,
	.lane_close = rdma_lane_close,
};
