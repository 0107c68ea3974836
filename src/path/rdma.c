/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The path "rdma": the server of a storage (its far side) writes the bytes of a read into a window,
 * which is memory of the lane (a thread of the library). The device copies them from there. If the
 * bytes belong to host memory, the lane first asks for the server's file instead: the storage then
 * copies the bytes from the file to their destination, without a window of the lane. For a write,
 * the server reads the bytes from a window of the storage. The storage fills this window from a
 * slot of the lane, or the lane lets the device copy the bytes into it. The storage and its
 * transports decide how the server accesses the window, and report whether a CPU copies the bytes.
 * The lane starts the chunks.
 */
#include "path/rdma.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/clock.h"
#include "core/base/device_sync.h"
#include "core/base/log.h"
#include "core/lane/chunk.h"
#include "core/lane/lane.h"
#include "core/lane/pump.h"
#include "core/request/plan.h"
#include "core/request/spans.h"
#include "path/slotted.h"

/* Maximum number of windows of a thread (lane), and of its chunks for which the server shall pass a
 * file. A server serves few such requests at a time. */
#define WINDOWS 4
/* Maximum number of windows of a lane (a thread of the library) in its device's memory, and their
 * length in bytes. A server copies page cache to a GPU without a CPU copy if a transfer has 8 MiB
 * or more (path "mapped"). With 8 lanes, 128 MiB are in flight, which is 2.4 ms of a copy engine's
 * time. */
#define DEVICE_WINDOWS 2
#define DEVICE_CHUNK (8u << 20)
/* For this time after the server refused a window in the device's memory, a lane (a thread of the
 * library) offers only windows in host memory. */
#define REFUSED_NS 5000000000u
/* Length in bytes of a chunk whose bytes come out of a file of the server. Each chunk costs an HTTP
 * request. On two CPUs, client and server together use 0.11 CPU seconds for a GB with chunks of 8
 * MiB, 0.15 with 4 MiB, and 0.10 with 16 MiB. */
#define FILE_CHUNK (8u << 20)
/* Length in bytes of a chunk, and of the first chunks of a request, if the storage has no
 * preference. */
#define CHUNK_MAX (4u << 20)
#define CHUNK_FIRST (1u << 20)

/* An element of a lane's table of windows (memory that the server accesses). */
struct place {
	struct pst_window *window; /* NULL if the element has no window */
	bool pinned, busy;
};

struct rdma_lane {
	struct place places[WINDOWS];
	/* The last time at which the server `refused_by` refused a window in the device's memory,
	 * or at which no such window could be opened; 0: never. */
	uint64_t refused_ns;
	const void *refused_by;
	enum penstock_why refused_why;
	unsigned files; /* number of chunks in flight for which the server shall pass a file */
	/* The last time at which the server `no_file_by` passed no file; 0: never. */
	uint64_t no_file_ns;
	const void *no_file_by;
};

/* The window that a chunk needs: for which storage, in which memory, and how long. */
struct need {
	struct penstock_storage *st;
	struct penstock_device *dev; /* NULL: host memory */
	size_t len;
};

/* ---- the lane's windows ---- */

/* Closes an element's window. Returns false, and does nothing, if the window is registered with the
 * device's driver and a CUDA stream waits for a request, because the driver's call would wait for
 * this stream. If `wait` is true, first waits until no stream waits for a request. */
static bool place_clear(const struct pst_lane *lane, struct place *place, bool wait)
{
	struct penstock_device *dev = lane->pump->dev;
	bool syncs = place->pinned || place->window->dev;

	if (syncs && wait)
		pst_device_sync_await(dev);
	else if (syncs && !pst_device_sync_begin(dev))
		return false;
	if (place->pinned)
		dev->ops->host_unregister(dev, place->window->mem, NULL);
	place->pinned = false;
	place->window->close(place->window);
	place->window = NULL;
	if (syncs)
		pst_device_sync_end(dev);
	return true;
}

static int place_fill(const struct pst_lane *lane, struct place *place, const struct need *need,
		      struct pst_err *err)
{
	struct penstock_device *dev = lane->pump->dev;
	size_t len = need->st->facts.chunk_best ? need->st->facts.chunk_best : CHUNK_MAX;
	struct pst_err reason;
	int ret;

	/* Only the device's own threads (PST_LANE_PUMP) get such long windows. Other lanes carry
	 * short requests, and there can be many of them. */
	if (need->dev && lane->kind == PST_LANE_PUMP)
		len = DEVICE_CHUNK;
	ret = need->st->ops->window_open(need->st, need->dev, need->len > len ? need->len : len,
					 &place->window, err);
	if (ret)
		return ret;
	if (need->dev || !dev->ops->host_register)
		return 0;
	place->pinned = !dev->ops->host_register(dev, place->window->mem, place->window->len, false,
						 &reason);
	if (!place->pinned)
		pst_log(PST_LOG_WARN, dev->ops->name,
			"cannot pin a window, copies will be slower: %s", reason.text);
	return 0;
}

static bool place_suits(const struct place *place, const struct need *need)
{
	return place->window && place->window->kind == need->st->facts.windows &&
	       place->window->dev == need->dev && place->window->len >= need->len;
}

/* Returns an element of the lane's table of windows for a chunk: one with a window that the storage
 * can use, else an empty one, else one that is not in use. Stores in *busy how many elements are in
 * use. */
static struct place *place_find(const struct pst_lane *lane, struct rdma_lane *state,
				const struct need *need, unsigned *busy)
{
	struct place *found = NULL;

	*busy = 0;
	for (unsigned i = 0; i < (need->dev ? DEVICE_WINDOWS : WINDOWS); i++) {
		struct place *place = &state->places[i];

		*busy += place->busy;
		if (place->busy || (place->window && atomic_load(&place->window->spoiled) &&
				    !place_clear(lane, place, false)))
			continue;
		if (place_suits(place, need))
			return place;
		if (!found || (found->window && !place->window))
			found = place;
	}
	return found;
}

/* Takes an element of the table of windows for a chunk, and opens a window in it if needed. Returns
 * -EAGAIN if all windows are in use; the lane tries again when a chunk has completed. */
static int place_take(const struct pst_lane *lane, struct rdma_lane *state, const struct need *need,
		      struct place **out, struct pst_err *err)
{
	unsigned busy;
	struct place *place = place_find(lane, state, need, &busy);
	int ret = 0;

	if (place && place->window && !place_suits(place, need) && !place_clear(lane, place, false))
		place = NULL;
	if (!place)
		return busy ? -EAGAIN
			    : pst_fail_errno(err, ENOBUFS, PENSTOCK_WHY_NO_WINDOW,
					     "the lane's windows are pinned while a stream waits "
					     "for a request");
	if (!place->window)
		ret = place_fill(lane, place, need, err);
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

/* ---- the probe ---- */

/* Finds out whether windows, which the server accesses, can be in the device's memory. */
static void device_probe(const struct pst_route *route, struct pst_path_facts *facts)
{
	struct penstock_device *dev = route->dev;
	struct pst_err why;
	int ret;

	if (dev->facts.cpu_addressable)
		return;
	ret = dev->ops->export_memory
		      ? route->st->ops->windows_reach(route->st, dev, route->op, &why)
		      : pst_fail(&why, PENSTOCK_WHY_UNSUPPORTED, "%s shares no memory", dev->name);
	if (ret) {
		snprintf(facts->note, sizeof(facts->note), "windows in host memory: %.150s",
			 why.text);
		return;
	}
	snprintf(facts->note, sizeof(facts->note), "windows in the memory of %s", dev->name);
	if (route->op == PENSTOCK_READ && route->st->facts.device_unchecked)
		snprintf(facts->note, sizeof(facts->note),
			 "windows in the memory of %s, whose bytes are unchecked: %s", dev->name,
			 route->st->facts.device_unchecked);
	facts->device_windows = true;
	if (route->op == PENSTOCK_READ) {
		facts->chunk_max = DEVICE_CHUNK;
		facts->chunk_first = 0;
	}
}

/* Fills in the facts of a read into host memory, for which the server may pass its file. */
static void file_probe(const struct pst_route *route, struct pst_path_facts *facts)
{
	if (route->op != PENSTOCK_READ || !route->dev->facts.is_host ||
	    !route->st->facts.windows_files)
		return;
	snprintf(facts->note, sizeof(facts->note),
		 "one CPU copy if the server passes its file, else two");
	facts->chunk_max = FILE_CHUNK;
}

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
			 st->why_windows.code ? "see the options rdma, rdma-transports and "
						"rdma-addresses of s3:// URLs"
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
	file_probe(route, facts);
	facts->chunk_first = CHUNK_FIRST < facts->chunk_max ? CHUNK_FIRST : facts->chunk_max;
	device_probe(route, facts);
	/* For a write, the device copies the bytes to a slot (pinned staging memory), and the
	 * storage copies them from there into its own window, unless this window is in the device's
	 * memory. */
	facts->slotted = route->op == PENSTOCK_WRITE;
	if (facts->slotted && facts->chunk_max > pump->slot_bytes)
		facts->chunk_max = pump->slot_bytes;
	facts->lanes = pump->lane_count;
	facts->quick = true;
	facts->shut = st->windows_shut;
	return 0;
}

/* ---- a chunk ---- */

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

/* Makes the lane's next chunks use windows in host memory, for REFUSED_NS. */
static void refused(struct rdma_lane *state, const void *by, const struct pst_err *why)
{
	state->refused_ns = pst_now_ns();
	state->refused_by = by;
	state->refused_why = why->why;
}

/* Starts the chunk again with a window in host memory, because the server has refused one in the
 * device's memory. */
static void rdma_refused(struct pst_chunk *chunk, const struct pst_err *why)
{
	struct rdma_lane *state = chunk->lane->path_state[chunk->path];
	struct place *place = chunk->priv;

	place->busy = false;
	refused(state, place->window->kind, why);
	pst_chunk_again(chunk, why);
}

static void streams_busy(const struct penstock_device *dev, struct pst_err *err)
{
	pst_fail_errno(err, EAGAIN, PENSTOCK_WHY_STREAM_ORDER,
		       "a stream waits for a request, and may hold up copies within %s", dev->name);
}

/* Queues the copies of a chunk whose window is in the device's memory. */
static void rdma_copy_within(struct pst_chunk *chunk, const struct place *place)
{
	struct penstock_device *dev = chunk->lane->pump->dev;
	struct pst_err busy;

	/* The copy would wait behind a CUDA stream that waits for a request. */
	if (!pst_device_sync_begin(dev)) {
		streams_busy(dev, &busy);
		rdma_refused(chunk, &busy);
		return;
	}
	chunk->copy_within = true;
	pst_chunk_copy(chunk, place->window->mem, chunk->moved, rdma_copied);
	pst_device_sync_end(dev);
}

static void rdma_filled(struct pst_io *io)
{
	struct pst_chunk *chunk = pst_chunk_io_done(io);
	const struct place *place = chunk->priv;
	bool on_device = place->window->dev;

	chunk->engine = io->engine;
	if (io->result == -EOPNOTSUPP && on_device) {
		rdma_refused(chunk, &io->err);
		return;
	}
	if (io->result < 0) {
		rdma_fail(chunk, &io->err);
		return;
	}
	/* The server may have sent the bytes in its response instead. Then pst_chunk_demote changes
	 * the chunk's path to the one that receives such bytes. A transfer that moved no byte,
	 * because it begins after the storage's end, keeps its path. */
	if (io->result && !io->by_window && !pst_chunk_demote(chunk, &io->err)) {
		rdma_fail(chunk, &io->err);
		return;
	}
	chunk->moved = (uint64_t)io->result < chunk->len ? (uint64_t)io->result : chunk->len;
	if (!on_device)
		chunk->dram_laid += chunk->moved;
	if (!io->by_dma)
		chunk->cpu_copied += chunk->moved;
	if (!chunk->moved)
		rdma_copied(chunk, 0);
	else if (on_device)
		rdma_copy_within(chunk, place);
	else
		pst_chunk_copy(chunk, place->window->mem, chunk->moved, rdma_copied);
}

/* ---- a chunk of a read out of a file of the server ---- */

static void file_copied(struct pst_io *io)
{
	struct pst_chunk *chunk = pst_chunk_io_done(io);
	struct rdma_lane *state = chunk->lane->path_state[chunk->path];

	state->files--;
	chunk->engine = io->engine;
	if (io->result == -EOPNOTSUPP) {
		state->no_file_ns = pst_now_ns();
		state->no_file_by = chunk->route->st->facts.windows;
		pst_chunk_again(chunk, &io->err);
		return;
	}
	/* As in rdma_filled, the server may have sent the bytes in its response instead. */
	if (io->result < 0 ||
	    (io->result && !io->by_window && !pst_chunk_demote(chunk, &io->err))) {
		chunk->err = io->err;
		pst_chunk_done(chunk, io->err.code);
		return;
	}
	chunk->moved = (uint64_t)io->result < chunk->len ? (uint64_t)io->result : chunk->len;
	chunk->cpu_copied += chunk->moved;
	pst_chunk_done(chunk, 0);
}

/* Starts a chunk of a read for which the server shall pass its file. Returns -EOPNOTSUPP if the
 * chunk needs a window of the lane: its memory is not one piece of host memory, or the server has
 * passed no file recently. Returns -EAGAIN if the lane has WINDOWS such chunks in flight. */
static int file_start(struct pst_chunk *chunk, struct rdma_lane *state)
{
	const struct penstock_storage *st = chunk->route->st;
	struct pst_part part;
	int ret;

	if (!st->facts.windows_files || !chunk->route->dev->facts.is_host || chunk->req->stage ||
	    (state->no_file_ns && state->no_file_by == st->facts.windows &&
	     pst_now_ns() - state->no_file_ns < REFUSED_NS) ||
	    pst_span_part_at(chunk->req, &chunk->req->spans[chunk->span], chunk->off, &part) ||
	    part.row_len < chunk->len || !part.dev->facts.is_host)
		return -EOPNOTSUPP;
	if (state->files == WINDOWS)
		return -EAGAIN;
	state->files++; /* before the call, because the call may complete the chunk */
	pst_chunk_io(chunk, part.mem, chunk->off, chunk->len, PST_IO_FAR, file_copied);
	ret = pst_chunk_io_start(chunk);
	if (ret)
		state->files--;
	if (ret == -EOPNOTSUPP)
		chunk->err.code = 0;
	return ret;
}

/* Shortens a chunk whose bytes shall go through a window after all, so that the lane's windows have
 * their usual length. The rest of the chunk follows when the chunk is done. */
static void chunk_shorten(struct pst_chunk *chunk)
{
	const struct pst_storage_facts *st = &chunk->route->st->facts;
	const uint64_t most = st->chunk_best ? st->chunk_best : CHUNK_MAX;

	if (!st->windows_files || !chunk->route->dev->facts.is_host || chunk->len <= most)
		return;
	chunk->rest += chunk->len - most;
	chunk->len = most;
}

/* ---- the memory of a chunk's window ---- */

static int part_is_elsewhere(void *arg, const struct pst_part *part)
{
	return part->dev != arg;
}

/* Returns the device in whose memory the chunk's window (the memory that the server accesses) must
 * be. Returns NULL for host memory. */
static struct penstock_device *window_device(const struct pst_chunk *chunk,
					     const struct rdma_lane *state)
{
	struct pst_request *req = chunk->req;
	struct penstock_device *dev = chunk->lane->pump->dev;

	if (!chunk->route->paths[chunk->path].facts.device_windows || chunk->route->dev != dev ||
	    req->stage)
		return NULL;
	if (state->refused_ns && state->refused_by == chunk->route->st->facts.windows &&
	    pst_now_ns() - state->refused_ns < REFUSED_NS) {
		pst_req_note(req, chunk->path, state->refused_why);
		return NULL;
	}
	if (atomic_load_explicit(&dev->streams_waiting, memory_order_relaxed)) {
		pst_req_note(req, chunk->path, PENSTOCK_WHY_STREAM_ORDER);
		return NULL;
	}
	/* The segments of a request may be in the memory of several devices. Then the window is in
	 * host memory. */
	return pst_span_parts(req, &req->spans[chunk->span], chunk->off, chunk->len,
			      part_is_elsewhere, dev)
		       ? NULL
		       : dev;
}

/* ---- a chunk of a write into a window in the device's memory ---- */

/* Lets the lane's next chunks use host memory, and starts this chunk again. */
static void write_refused(struct pst_chunk *chunk, const struct pst_err *why)
{
	refused(chunk->lane->path_state[chunk->path], chunk->route->st->facts.windows, why);
	pst_chunk_again(chunk, why);
}

static void write_copied(struct pst_chunk *chunk, int result)
{
	struct penstock_storage *st = chunk->route->st;
	int ret = st->ops->placed(st, chunk->off, chunk->len, !result, &chunk->err);

	chunk->engine = chunk->io.engine;
	if (result || ret) {
		pst_chunk_done(chunk, result ? result : ret);
		return;
	}
	chunk->moved = chunk->len;
	/* Counts the bytes as copied by a CPU: the server's CPU may copy them later. */
	chunk->cpu_copied += chunk->moved;
	pst_chunk_done(chunk, 0);
}

/* Copies the bytes of the chunk into the window in which the storage has found memory. */
static void write_placed(struct pst_io *io)
{
	struct pst_chunk *chunk = pst_chunk_io_done(io);
	struct penstock_device *dev = chunk->lane->pump->dev;
	struct penstock_storage *st = chunk->route->st;
	struct pst_err busy;

	if (io->result == -EOPNOTSUPP) {
		write_refused(chunk, &io->err);
		return;
	}
	if (io->result < 0) {
		chunk->err = io->err;
		pst_chunk_done(chunk, (int)io->result);
		return;
	}
	/* The rest of the chunk belongs into other windows. */
	chunk->rest += chunk->len - (uint64_t)io->result;
	chunk->len = (uint64_t)io->result;
	if (!pst_device_sync_begin(dev)) {
		st->ops->placed(st, chunk->off, chunk->len, false, &busy);
		streams_busy(dev, &busy);
		write_refused(chunk, &busy);
		return;
	}
	chunk->copy_within = true;
	/* The number tells windows apart, because each begins at another multiple of 2 MiB. */
	chunk->own_piece = 2 + (unsigned)((uintptr_t)io->window->mem >> 21);
	pst_chunk_copy(chunk, io->one.iov_base, chunk->len, write_copied);
	pst_device_sync_end(dev);
}

/* Starts a chunk of a write. */
static int rdma_start_write(struct pst_chunk *chunk, const struct rdma_lane *state)
{
	struct penstock_device *dev = window_device(chunk, state);
	int ret;

	if (!dev)
		return pst_bounce_start_plain(chunk, PST_IO_FAR);
	pst_chunk_io(chunk, NULL, chunk->off, chunk->len, PST_IO_FAR | PST_IO_PLACE, write_placed);
	chunk->io.dev = dev;
	ret = pst_chunk_io_start(chunk);
	if (ret != -EOPNOTSUPP)
		return ret;
	pst_req_note(chunk->req, chunk->path, chunk->err.why);
	chunk->err.code = 0;
	return pst_bounce_start_plain(chunk, PST_IO_FAR);
}

static int rdma_start(struct pst_chunk *chunk)
{
	struct rdma_lane *state = chunk->lane->path_state[chunk->path];
	struct need need = {chunk->route->st, NULL, 0};
	struct place *place;
	int ret;

	if (chunk->route->op == PENSTOCK_WRITE)
		return rdma_start_write(chunk, state);
	ret = file_start(chunk, state);
	if (ret != -EOPNOTSUPP)
		return ret;
	chunk_shorten(chunk);
	need.len = chunk->len;
	need.dev = window_device(chunk, state);
	ret = place_take(chunk->lane, state, &need, &place, &chunk->err);
	if (ret && ret != -EAGAIN && need.dev) {
		/* No window could be opened in the device's memory, for example because it is used
		 * up. */
		refused(state, need.st->facts.windows, &chunk->err);
		pst_chunk_note(chunk, &chunk->err);
		chunk->err.code = 0;
		need.dev = NULL;
		ret = place_take(chunk->lane, state, &need, &place, &chunk->err);
	}
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
