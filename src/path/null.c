/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The path "null" completes each chunk (part of a request) at once and moves nothing. With it,
 * tests and benchmarks measure the cost of a request without a transfer. A request uses this path
 * only if the request names it.
 */
#include "path/null.h"
#include "core/lane/chunk.h"
#include "core/request/plan.h"

static int null_probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
		      char *fix)
{
	(void)route;
	(void)err;
	(void)fix;
	facts->class_ = PENSTOCK_ANY;
	facts->off_align = facts->mem_align = 1;
	return 0;
}

static int null_start(struct pst_chunk *chunk)
{
	chunk->moved = chunk->len;
	/* Of this path's requests, only a stream-ordered one has a lane (a thread of the library),
	 * and the lane waits for the chunk's completion. */
	if (chunk->lane)
		pst_chunk_done(chunk, 0);
	return 0;
}

const struct pst_path_ops pst_path_null = {
	.name = "null",
	.traits = {.reads = true, .writes = true, .by_name_only = true, .synchronous = true},
	.probe = null_probe,
	.start = null_start,
};
