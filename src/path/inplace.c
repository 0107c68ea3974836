/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves chunks by O_DIRECT between the drive and the caller's memory. No byte passes through the
 * library's memory. The allow-list names the file systems and block layers that are known not to
 * copy. If a layer below the file is not on the list, this code counts one CPU copy, because the
 * kernel may copy there without reporting it.
 */
#include "path/inplace.h"

#include <stdio.h>

#include "core/lane/chunk.h"
#include "core/request/request.h"
#include "core/request/spans.h"
#include "core/request/plan.h"

/* Maximum number of bytes of one system call, if the storage has no preferred number. */
#define CHUNK_MAX (4u << 20)

int pst_direct_probe(const struct pst_route *route, struct pst_err *err, char *fix)
{
	const struct pst_storage_facts *st = &route->st->facts;

	if (st->fd < 0)
		return pst_fail(err, PENSTOCK_WHY_NO_FD, "%s storage has no file descriptor",
				route->st->ops->name);
	if (st->fd_direct >= 0)
		return 0;
	*err = st->why_direct;
	snprintf(fix, PENSTOCK_TEXT_MAX, "put the file on ext4 or xfs on a local drive");
	return err->code;
}

int pst_inplace_probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
		      char *fix)
{
	const struct pst_storage_facts *st = &route->st->facts;
	int ret = pst_direct_probe(route, err, fix);

	if (ret)
		return ret;
	facts->class_ = st->listed ? PENSTOCK_DIRECT : PENSTOCK_ANY;
	if (!st->listed)
		*err = st->why_direct;
	facts->off_align = st->off_align;
	facts->mem_align = st->mem_align;
	facts->exact = true;
	facts->chunk_max = st->chunk_best ? st->chunk_best : CHUNK_MAX;
	facts->io_size = route->op == PENSTOCK_READ && st->chunk_best;
	facts->lanes = 1;
	facts->quick = true;
	facts->canary = st->listed;
	return 0;
}

static void inplace_moved(struct pst_io *io)
{
	struct pst_chunk *chunk = pst_chunk_io_done(io);
	struct penstock_device *dev = chunk->route->dev;
	void (*explain)(struct pst_chunk *) = (void (*)(struct pst_chunk *))chunk->priv;
	int ret;

	chunk->engine = io->engine;
	pst_chunk_direct_end(chunk);
	if (io->result < 0) {
		chunk->err = io->err;
		if (explain)
			explain(chunk);
		pst_chunk_done(chunk, chunk->err.code);
		return;
	}
	ret = pst_chunk_moved(chunk, (uint64_t)io->result);
	if (!io->st->facts.listed)
		chunk->cpu_copied += chunk->moved;
	/* The drive has finished writing to device memory. Without the call of order_writes, a
	 * later read by the device might not see all bytes yet. */
	if (!ret && io->op == PST_IO_FILL && dev->ops->order_writes)
		ret = dev->ops->order_writes(dev, &chunk->err);
	pst_chunk_done(chunk, ret);
}

int pst_inplace_start(struct pst_chunk *chunk, void (*explain)(struct pst_chunk *chunk))
{
	struct pst_part part;
	int ret = pst_span_part_at(chunk->req, &chunk->req->spans[chunk->span], chunk->off, &part);

	if (ret)
		return pst_fail(&chunk->err, PENSTOCK_WHY_UNALIGNED,
				"the chunk belongs to several buffers");
	if (!pst_chunk_direct_begin(chunk, chunk->len + chunk->pad))
		return -EAGAIN;
	pst_chunk_io(chunk, part.mem, chunk->off, chunk->len + chunk->pad, PST_IO_DIRECT,
		     inplace_moved);
	chunk->priv = (void *)explain;
	ret = pst_chunk_io_start(chunk);
	if (ret)
		pst_chunk_direct_end(chunk);
	return ret;
}
