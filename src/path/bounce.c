/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Path bounce: the CPU copies page cache or socket data into the ring, and the copy engine
 * copies it to the device. For host memory the CPU copies straight to the destination. It works
 * with every storage and device, so every plan ends with it. One exception: a caller's
 * descriptor that is O_DIRECT and cannot be reopened moves whole blocks only, which bounce does
 * not.
 *
 * The lane's thread itself copies bytes that are known to be cached, chunk by chunk: each chunk
 * is on its way to the device while the CPU copies the next one. A request that is alone on its
 * pump uses the L2 bounce (bounce_l2.c). The lane's thread also copies bytes of unknown
 * residency, and times that: this is the residency probe.
 */
#include <stdio.h>

#include "core/base/clock.h"
#include "core/lane/pump.h"
#include "core/route/route.h"
#include "path/bounce_l2.h"
#include "path/bounce.h"
#include "path/slotted.h"

/* Longer chunks do not stay in the CPU's L2 cache on their way. They need not be longer,
 * because copies go to the device in batches. */
#define CHUNK_MAX PST_SLOT_PART
#define CHUNK_FIRST (256u << 10)

static int bounce_probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
			char *fix)
{
	const struct pst_pump *pump = atomic_load(&route->dev->pump);

	if (route->st->facts.fd_blocks) {
		*err = route->st->facts.why_fd;
		snprintf(
			fix, PENSTOCK_TEXT_MAX,
			"pass a descriptor without O_DIRECT, or one that /proc/self/fd can reopen");
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

static void bounce_host_done(struct pst_io *io)
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
	chunk->dram_laid += cold ? chunk->moved : 0; /* The call also filled the page cache. */
	pst_chunk_done(chunk, ret);
}

/* Starts a chunk of one piece of host memory, which needs no slot of the ring. */
static int bounce_host_start(struct pst_chunk *chunk, const struct pst_part *part, unsigned flags)
{
	pst_chunk_io(chunk, part->mem, chunk->off, chunk->len, flags, bounce_host_done);
	return pst_chunk_io_start(chunk);
}

/* Starts the chunk without the L2 bounce: in place for host memory, else through a slot. */
static int bounce_start_plain(struct pst_chunk *chunk, unsigned flags)
{
	struct pst_part part;

	if (chunk->route->dev->facts.is_host &&
	    !pst_span_part_at(chunk->req, &chunk->req->spans[chunk->span], chunk->off, &part) &&
	    part.row_len >= chunk->len && part.dev->facts.is_host)
		return bounce_host_start(chunk, &part, flags);
	return pst_slotted_start(chunk, flags, 1);
}

static int bounce_start(struct pst_chunk *chunk)
{
	if (chunk->route->op == PENSTOCK_WRITE || chunk->residency == PST_COLD)
		return bounce_start_plain(chunk, chunk->lane->borrowed ? PST_IO_NOW : 0);
	if (pst_bounce_l2_suits(chunk))
		return pst_bounce_l2_start(chunk);
	if (chunk->timed)
		chunk->timed_ns = pst_now_ns();
	return bounce_start_plain(chunk, PST_IO_NOW);
}

const struct pst_path_ops pst_path_bounce = {
	.name = "bounce",
	.traits = {.reads = true, .writes = true, .uses_cache = true, .times = true},
	.probe = bounce_probe,
	.start = bounce_start,
};
