/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paths "staged" and "bounce" move bytes through a slot, which is a piece of a lane's pinned
 * memory (its ring). The lane, a thread of the library, starts their chunks; the storage and the
 * device move the bytes. Both paths use the caller's memory only through copies of the device.
 *
 * staged: for a read, the drive's DMA fills the slot by O_DIRECT, and the device's copy engine
 * copies from the slot. A write goes the other way. The CPU touches no byte. With the device
 * "host", memcpy replaces the copy engine.
 *
 * bounce: the CPU copies bytes from the page cache or a socket into the slot, and the copy engine
 * copies them to the device. For host memory the CPU copies straight to the destination. The path
 * "bounce" works with every storage and device, so every plan ends with it, with one exception. If
 * a caller's descriptor is O_DIRECT and cannot be reopened, that descriptor moves whole blocks
 * only, so the path cannot use it.
 *
 * If bytes are known to be cached, the lane's thread itself copies them, chunk by chunk: while the
 * CPU copies a chunk, the copy engine copies the one before. A request that is the only one in
 * flight for its device uses the L2 bounce (bounce_l2.c). If it is unknown whether bytes are
 * cached, the lane's thread copies them too, and measures the time: this is the residency probe.
 */
#include "path/slotted.h"

#include <stdio.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/lane/chunk.h"
#include "core/lane/lane.h"
#include "core/lane/pump.h"
#include "core/lane/ring.h"
#include "core/request/spans.h"
#include "core/request/plan.h"
#include "path/bounce_l2.h"
#include "path/inplace.h"

/* Maximum length in bytes of a chunk (a part of a request), chosen so that its bytes stay in the
 * CPU's L2 cache on their way. Short chunks cost little, because copies go to the device in
 * batches. */
#define CHUNK_MAX PST_SLOT_PART
#define CHUNK_FIRST (256u << 10)

/* ---- a chunk through a slot ---- || A read call covers the whole blocks that contain the
 * chunk; the copy to the device takes only the chunk's bytes. A write copies the chunk into the
 * slot, adds zeros if the chunk has a pad, and writes the slot to the storage. Each step counts
 * the bytes that it writes to DRAM: the bytes in the slot, and the bytes that it adds to the
 * page cache. */

/* Adds to the chunk's counters the bytes that one system call has written to host memory, and those
 * that the CPU has copied in it. The call moved `n` bytes between storage and slot. */
static void slotted_count(struct pst_chunk *chunk, uint64_t n)
{
	const struct pst_io *io = &chunk->io;
	bool direct = io->flags & PST_IO_DIRECT;
	bool cache_too =
		!direct && io->st->facts.fd >= 0 &&
		(io->op == PST_IO_DRAIN || chunk->residency != PST_WARM || chunk->fills_cache);

	chunk->dram_laid += (cache_too ? 2 * n : n) + io->kept;
	if (!direct || !io->st->facts.listed)
		chunk->cpu_copied += n + io->kept;
	chunk->engine = io->engine;
}

static void slotted_copied_in(struct pst_chunk *chunk, int result)
{
	pst_chunk_done(chunk, result);
}

static void slotted_filled(struct pst_io *io)
{
	struct pst_chunk *chunk = pst_chunk_io_done(io);
	uint64_t got;

	pst_chunk_direct_end(chunk);
	if (io->result < 0) {
		chunk->err = io->err;
		pst_chunk_done(chunk, (int)io->result);
		return;
	}
	got = (uint64_t)io->result > chunk->mem_head ? (uint64_t)io->result - chunk->mem_head : 0;
	chunk->moved = got < chunk->len ? got : chunk->len;
	slotted_count(chunk, chunk->moved);
	if (!chunk->moved) {
		pst_chunk_done(chunk, 0);
		return;
	}
	pst_chunk_copy(chunk, chunk->mem + chunk->mem_head, chunk->moved, slotted_copied_in);
}

static void slotted_drained(struct pst_io *io)
{
	struct pst_chunk *chunk = pst_chunk_io_done(io);

	pst_chunk_direct_end(chunk);
	if (io->result < 0) {
		chunk->err = io->err;
		pst_chunk_done(chunk, (int)io->result);
		return;
	}
	if ((uint64_t)io->result < io->len) {
		pst_chunk_done(chunk, pst_fail(&chunk->err, PENSTOCK_WHY_SHORT_IO,
					       "wrote %lld of %llu bytes", (long long)io->result,
					       (unsigned long long)io->len));
		return;
	}
	chunk->moved = chunk->len;
	slotted_count(chunk, chunk->len);
	pst_chunk_done(chunk, 0);
}

static void slotted_copied_out(struct pst_chunk *chunk, int result)
{
	int ret;

	if (result) {
		pst_chunk_done(chunk, result);
		return;
	}
	memset(chunk->mem + chunk->len, 0, chunk->pad);
	ret = pst_chunk_io_start(chunk);
	if (ret) {
		if (!chunk->err.code)
			pst_fail_errno(&chunk->err, ret, pst_why_from_errno(ret), "write: %m");
		pst_chunk_done(chunk, ret);
	}
}

/* Starts the transfer of a chunk through a slot, which is pinned staging memory. The offset and
 * length of a read call must be multiples of `align`. */
static int slotted_start(struct pst_chunk *chunk, unsigned io_flags, uint32_t align)
{
	bool read = chunk->route->op == PENSTOCK_READ;
	uint64_t low = read ? chunk->off - chunk->off % align : chunk->off;
	uint64_t end = chunk->off + chunk->len + chunk->pad;
	int ret;

	if (read)
		end = (end + align - 1) / align * align;
	if (end - low > chunk->lane->slot_bytes)
		return pst_fail(&chunk->err, PENSTOCK_WHY_UNALIGNED,
				"a chunk of %llu bytes does not fit a slot",
				(unsigned long long)(end - low));
	if (!pst_chunk_memory(chunk, low, end - low) ||
	    ((io_flags & PST_IO_DIRECT) && !chunk->direct_bytes &&
	     !pst_chunk_direct_begin(chunk, end - low)))
		return -EAGAIN;
	chunk->mem_head = chunk->off - low;
	pst_chunk_io(chunk, chunk->mem, low, end - low, io_flags | (chunk->slot ? PST_IO_RING : 0),
		     read ? slotted_filled : slotted_drained);
	if (!read)
		return pst_chunk_copy(chunk, chunk->mem, chunk->len, slotted_copied_out);
	ret = pst_chunk_io_start(chunk);
	if (ret)
		pst_chunk_direct_end(chunk);
	return ret;
}

/* ---- staged ---- */

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
	/* Chunks themselves need no alignment: a read call covers the whole blocks that contain
	 * the chunk. */
	facts->off_align = st->off_align;
	facts->mem_align = 1;
	facts->chunk_max = atomic_load(&route->dev->pump)->slot_bytes;
	if (st->chunk_best && st->chunk_best < facts->chunk_max)
		facts->chunk_max = st->chunk_best;
	facts->io_size = route->op == PENSTOCK_READ && st->chunk_best;
	/* One lane (thread) is enough for reads: it keeps 16 calls in flight, and copies bytes to
	 * the device meanwhile. Reads with two lanes were up to a fifth slower (virtio), because
	 * threads wake up twice as often. A write first waits for its copy from the device, so two
	 * lanes are faster. */
	facts->lanes = route->op == PENSTOCK_READ ? 1 : 2;
	facts->quick = true;
	return 0;
}

static int staged_start(struct pst_chunk *chunk)
{
	return slotted_start(chunk, PST_IO_DIRECT, chunk->route->st->facts.off_align);
}

/* ---- bounce ---- */

static int bounce_probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
			char *fix)
{
	const struct pst_pump *pump = atomic_load(&route->dev->pump);
	uint64_t most, least;

	if (route->st->facts.fd_blocks) {
		*err = route->st->facts.why_fd;
		snprintf(
			fix, PENSTOCK_TEXT_MAX,
			"pass a descriptor without O_DIRECT, or one that /proc/self/fd can reopen");
		return err->code;
	}
	if (route->st->facts.windows_only)
		return pst_fail(err, PENSTOCK_WHY_REQUIRE,
				"the storage was opened for transfers through windows only");
	facts->class_ = PENSTOCK_ANY;
	facts->slotted = true;
	facts->off_align = facts->mem_align = 1;
	facts->chunk_max = pump->slot_bytes;
	/* A storage without a page cache may set the best length of its transfers. */
	most = route->st->facts.chunk_best && route->st->facts.fd < 0 ? route->st->facts.chunk_best
								      : CHUNK_MAX;
	if (!route->dev->facts.is_host && facts->chunk_max > most)
		facts->chunk_max = most;
	least = most > CHUNK_MAX ? CHUNK_MAX : CHUNK_FIRST;
	facts->chunk_first = least < facts->chunk_max ? least : facts->chunk_max;
	facts->lanes = pump->lane_count;
	facts->quick = true;
	return 0;
}

static void bounce_host_done(struct pst_io *io)
{
	struct pst_chunk *chunk = pst_chunk_io_done(io);
	bool cold = io->st->facts.fd >= 0 &&
		    (io->op == PST_IO_DRAIN || chunk->residency != PST_WARM || chunk->fills_cache);
	int ret;

	chunk->engine = io->engine;
	if (io->result < 0) {
		chunk->err = io->err;
		pst_chunk_done(chunk, (int)io->result);
		return;
	}
	ret = pst_chunk_moved(chunk, (uint64_t)io->result);
	chunk->cpu_copied += chunk->moved + io->kept;
	/* If the bytes were not cached, the kernel has also written them to the page cache during
	 * this call. */
	chunk->dram_laid += (cold ? chunk->moved : 0) + io->kept;
	pst_chunk_done(chunk, ret);
}

/* Starts a chunk whose memory is one piece of host memory, so that it needs no slot (pinned staging
 * memory). */
static int bounce_host_start(struct pst_chunk *chunk, const struct pst_part *part, unsigned flags)
{
	pst_chunk_io(chunk, part->mem, chunk->off, chunk->len, flags, bounce_host_done);
	return pst_chunk_io_start(chunk);
}

int pst_bounce_start_plain(struct pst_chunk *chunk, unsigned flags)
{
	struct pst_part part;

	if (chunk->route->dev->facts.is_host &&
	    !pst_span_part_at(chunk->req, &chunk->req->spans[chunk->span], chunk->off, &part) &&
	    part.row_len >= chunk->len && part.dev->facts.is_host)
		return bounce_host_start(chunk, &part, flags);
	return slotted_start(chunk, flags, 1);
}

static int bounce_start(struct pst_chunk *chunk)
{
	if (chunk->route->op == PENSTOCK_WRITE || chunk->residency == PST_COLD)
		return pst_bounce_start_plain(
			chunk, chunk->lane->kind == PST_LANE_BORROWED ? PST_IO_NOW : 0);
	if (pst_bounce_l2_suits(chunk))
		return pst_bounce_l2_start(chunk);
	if (chunk->timed)
		chunk->timed_ns = pst_now_ns();
	return pst_bounce_start_plain(chunk, PST_IO_NOW);
}

/* ---- the tables ---- */

const struct pst_path_ops pst_path_staged = {
	.name = "staged",
	.traits = {.reads = true,
		   .writes = true,
		   .needs_file = true,
		   .class_ = PENSTOCK_NO_CPU_COPY},
	.probe = staged_probe,
	.start = staged_start,
};

const struct pst_path_ops pst_path_bounce = {
	.name = "bounce",
	.traits = {.reads = true, .writes = true, .uses_cache = true, .probes_residency = true},
	.probe = bounce_probe,
	.start = bounce_start,
};
