/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Path bounce: the CPU copies page cache or socket data into the ring and the copy
 * engine drains it; for host memory the CPU copies straight to the destination.
 * Works with every storage and device, so it ends every list.
 *
 * Bytes known to be cached are copied at once on the lane's thread, chunk by chunk,
 * so that each is on its way to the device while the next is copied. The first
 * chunk of a request whose residency cannot be asked is timed.
 */
#include "core/clock.h"
#include "core/pump.h"
#include "core/route.h"
#include "path/paths.h"
#include "path/slotted.h"

/* A chunk that came slower than this (and 10 us) was not in memory: the page cache
 * gives 8 to 10 GB/s to one thread, a cold read through it under 3. */
#define WARM_BYTES_US 4500u
#define WARM_BASE_US 10u

/* Longer ones leave a processor's second-level cache on the way, and as copies go to
 * the device in batches they need not be long. */
#define CHUNK_MAX PST_SLOT_PART
#define CHUNK_FIRST (256u << 10)

static int probe(struct pst_route *route, enum penstock_op op, struct pst_path_facts *facts,
		 struct pst_err *err, char *fix)
{
	const struct pst_pump *pump = atomic_load(&route->dev->pump);

	(void)op;
	(void)err;
	(void)fix;
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
	struct pst_chunk *chunk = pst_chunk_io_ended(io);
	bool cold = io->st->facts.fd >= 0 &&
		    (io->op == PST_IO_DRAIN || chunk->residency != PST_WARM);
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
	    !pst_part_at(chunk->req, &chunk->req->spans[chunk->span], chunk->off, &part) &&
	    part.row_len >= chunk->len && part.dev->facts.is_host)
		return start_in_place(chunk, &part, flags);
	return pst_slotted_start(chunk, flags, 1);
}

static int start(struct pst_chunk *chunk)
{
	struct pst_request *req = chunk->req;
	uint64_t began, took; /* ns, us */
	uint64_t len = chunk->len;
	int ret;

	if (chunk->route->op == PENSTOCK_WRITE || chunk->residency == PST_COLD)
		return start_any(chunk, chunk->lane->borrowed ? PST_IO_NOW : 0);
	if (chunk->residency == PST_WARM)
		return start_any(chunk, PST_IO_NOW);

	/* Unknown: time this one. It may have ended when start_any returns, so hold on
	 * to its request. */
	atomic_fetch_add_explicit(&req->refs, 1, memory_order_relaxed);
	began = pst_now_ns();
	ret = start_any(chunk, PST_IO_NOW);
	took = (pst_now_ns() - began) / 1000;
	if (!ret)
		atomic_store_explicit(&req->trial,
				      took <= WARM_BASE_US + len / WARM_BYTES_US ? PST_TRIAL_WARM
										: PST_TRIAL_COLD,
				      memory_order_relaxed);
	pst_req_put(req);
	return ret;
}

const struct pst_path_ops pst_path_bounce = {
	.name = "bounce",
	.traits = { .reads = true, .writes = true, .uses_cache = true, .cpu_copies = 1 },
	.probe = probe,
	.start = start,
};
