/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Path bounce: the CPU copies page cache or socket data into the ring and the copy
 * engine drains it; for host memory the CPU copies straight to the destination.
 * Works with every storage and device, so it ends every list; but not through a caller's
 * descriptor that is O_DIRECT and cannot be opened again, which takes whole blocks only.
 *
 * Bytes known to be cached are copied at once on the lane's thread, chunk by chunk,
 * so that each is on its way to the device while the next is copied, for a lone request
 * past the processor's cache (past.c). So are those of which nobody knows, and timed
 * (core/trial.c).
 */
#include <stdio.h>

#include "core/base/clock.h"
#include "core/lane/pump.h"
#include "core/route/route.h"
#include "path/past.h"
#include "path/paths.h"
#include "path/slotted.h"

/* Longer ones leave a processor's second-level cache on the way, and as copies go to
 * the device in batches they need not be long. */
#define CHUNK_MAX PST_SLOT_PART
#define CHUNK_FIRST (256u << 10)

static int probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
		 char *fix)
{
	const struct pst_pump *pump = atomic_load(&route->dev->pump);

	if (route->st->facts.fd_blocks) {
		*err = route->st->facts.why_fd;
		snprintf(fix, PENSTOCK_TEXT_MAX,
			 "hand in a descriptor without O_DIRECT, or one that /proc/self/fd opens");
		return err->code;
	}
	facts->class_ = PENSTOCK_ANY;
	facts->slotted = true;
	facts->off_align = facts->mem_align = 1;
	facts->chunk_max = pump->slot_bytes;
	if (!route->dev->facts.is_host && facts->chunk_max > CHUNK_MAX)
		facts->chunk_max = CHUNK_MAX;
	facts->chunk_first = CHUNK_FIRST < facts->chunk_max ? CHUNK_FIRST : facts->chunk_max;
	facts->lanes = pump->lane_count;
	facts->quick = true;
	return 0;
}

static void in_place_done(struct pst_io *io)
{
	struct pst_chunk *chunk = pst_chunk_io_done(io);
	bool cold =
		io->st->facts.fd >= 0 && (io->op == PST_IO_DRAIN || chunk->residency != PST_WARM);
	int ret;

	chunk->engine = io->engine;
	if (io->result < 0) {
		chunk->err = io->err;
		pst_chunk_done(chunk, (int)io->result);
		return;
	}
	ret = pst_chunk_moved(chunk, (uint64_t)io->result);
	chunk->cpu_copied += chunk->moved;
	chunk->dram_laid += cold ? chunk->moved : 0; /* the page cache */
	pst_chunk_done(chunk, ret);
}

/* Host memory of one piece: no ring between. */
static int start_in_place(struct pst_chunk *chunk, const struct pst_part *part, unsigned flags)
{
	pst_chunk_io(chunk, part->mem, chunk->off, chunk->len, flags, in_place_done);
	return pst_chunk_io_start(chunk);
}

static int start_any(struct pst_chunk *chunk, unsigned flags)
{
	struct pst_part part;

	if (chunk->route->dev->facts.is_host &&
	    !pst_span_part_at(chunk->req, &chunk->req->spans[chunk->span], chunk->off, &part) &&
	    part.row_len >= chunk->len && part.dev->facts.is_host)
		return start_in_place(chunk, &part, flags);
	return pst_slotted_start(chunk, flags, 1);
}

static int start(struct pst_chunk *chunk)
{
	if (chunk->route->op == PENSTOCK_WRITE || chunk->residency == PST_COLD)
		return start_any(chunk, chunk->lane->borrowed ? PST_IO_NOW : 0);
	if (pst_past_suits(chunk))
		return pst_past_start(chunk);
	if (chunk->timed)
		chunk->timed_ns = pst_now_ns();
	return start_any(chunk, PST_IO_NOW);
}

const struct pst_path_ops pst_path_bounce = {
	.name = "bounce",
	.traits = {.reads = true, .writes = true, .uses_cache = true, .times = true},
	.probe = probe,
	.start = start,
};
