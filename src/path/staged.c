/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Path staged: the drive's DMA fills the ring by O_DIRECT, and the device's copy engine copies
 * from there; writes go the other way. The CPU touches no byte. On device host a memcpy takes
 * the place of the copy engine.
 */
#include "core/lane/pump.h"
#include "core/route/route.h"
#include "path/inplace.h"
#include "path/staged.h"
#include "path/slotted.h"

static int staged_probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
			char *fix)
{
	const struct pst_storage_facts *st = &route->st->facts;
	int ret = pst_direct_probe(route, err, fix);

	if (ret)
		return ret;
	facts->class_ = st->listed && !route->dev->facts.cpu_addressable ? PENSTOCK_NO_CPU_COPY
									 : PENSTOCK_ANY;
	if (!st->listed)
		*err = st->why_direct;
	facts->slotted = true;
	facts->off_align = st->off_align; /* A read covers whole blocks around the chunk. */
	facts->mem_align = 1;
	facts->chunk_max = atomic_load(&route->dev->pump)->slot_bytes;
	if (st->chunk_best && st->chunk_best < facts->chunk_max)
		facts->chunk_max = st->chunk_best;
	facts->io_size = route->op == PENSTOCK_READ && st->chunk_best;
	/* One reading lane keeps 16 calls in flight, some of them already being copied on. A
	 * second reading lane wakes twice as often and was up to a fifth slower (virtio). A
	 * write waits for its copy first, so two lanes are better. */
	facts->lanes = route->op == PENSTOCK_READ ? 1 : 2;
	facts->quick = true;
	return 0;
}

static int staged_start(struct pst_chunk *chunk)
{
	return pst_slotted_start(chunk, PST_IO_DIRECT, chunk->route->st->facts.off_align);
}

const struct pst_path_ops pst_path_staged = {
	.name = "staged",
	.traits = {.reads = true, .writes = true, .class_ = PENSTOCK_NO_CPU_COPY},
	.probe = staged_probe,
	.start = staged_start,
};
