/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Path odirect: the drive's DMA writes the caller's host memory, and reads from it.
 * Host device only.
 */
#include "core/request/request.h"
#include "core/route/route.h"
#include "path/inplace.h"
#include "path/paths.h"

static int probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
		 char *fix)
{
	if (!route->dev->facts.is_host)
		return pst_fail(err, PENSTOCK_WHY_HOST_ONLY, "%s is not host memory",
				route->dev->name);
	return pst_inplace_probe(route, facts, err, fix);
}

static void keep_error(struct pst_chunk *chunk)
{
	(void)chunk; /* what the storage said is right */
}

static int start(struct pst_chunk *chunk)
{
	struct pst_part part;
	int ret = pst_span_part_at(chunk->req, &chunk->req->spans[chunk->span], chunk->off, &part);

	if (ret)
		return pst_fail(&chunk->err, PENSTOCK_WHY_UNALIGNED,
				"the chunk belongs to several buffers");
	return pst_inplace_start(chunk, part.mem, keep_error);
}

const struct pst_path_ops pst_path_odirect = {
	.name = "odirect",
	.traits = {.reads = true, .writes = true, .class_ = PENSTOCK_DIRECT},
	.probe = probe,
	.start = start,
};
