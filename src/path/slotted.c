/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves a chunk through a slot of the ring. A read covers whole blocks around the chunk; the
 * copy to the device takes only the chunk's part. A write copies into the slot and writes the
 * slot to storage, padded with zeros if the chunk has a pad. This file also counts the bytes
 * laid down in the slot, and in the page cache unless a read found them there.
 */
#include "path/slotted.h"

#include <string.h>

#include "core/lane/pump.h"
#include "core/route/route.h"

/* Adds to the chunk's counters what one system call of `n` bytes did between storage and slot. */
static void slotted_count(struct pst_chunk *chunk, uint64_t n)
{
	const struct pst_io *io = &chunk->io;
	bool direct = io->flags & PST_IO_DIRECT;
	bool cache_too = !direct && io->st->facts.fd >= 0 &&
			 (io->op == PST_IO_DRAIN || chunk->residency != PST_WARM);

	chunk->dram_laid += cache_too ? 2 * n : n;
	if (!direct || !io->st->facts.listed)
		chunk->cpu_copied += n;
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
	pst_chunk_copy(chunk, chunk->slot->mem + chunk->mem_head, chunk->moved, slotted_copied_in);
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
	memset(chunk->slot->mem + chunk->len, 0, chunk->pad);
	ret = pst_chunk_io_start(chunk);
	if (ret) {
		if (!chunk->err.code)
			pst_fail_errno(&chunk->err, ret, pst_why_of_errno(ret), "write: %m");
		pst_chunk_done(chunk, ret);
	}
}

int pst_slotted_start(struct pst_chunk *chunk, unsigned io_flags, uint32_t align)
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
	if (!chunk->slot)
		chunk->slot = pst_slot_get(&chunk->lane->slots, end - low);
	if (!chunk->slot || ((io_flags & PST_IO_DIRECT) && !chunk->direct_bytes &&
			     !pst_chunk_direct_begin(chunk, end - low)))
		return -EAGAIN;
	chunk->mem_head = chunk->off - low;
	pst_chunk_io(chunk, chunk->slot->mem, low, end - low, io_flags | PST_IO_RING,
		     read ? slotted_filled : slotted_drained);
	if (!read)
		return pst_chunk_copy(chunk, chunk->slot->mem, chunk->len, slotted_copied_out);
	ret = pst_chunk_io_start(chunk);
	if (ret)
		pst_chunk_direct_end(chunk);
	return ret;
}
