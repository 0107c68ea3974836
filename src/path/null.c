/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Path null: completes each chunk (part of a request) at once and moves nothing. With it, tests and
 * benchmarks measure the cost of a request without a transfer. Requests use it only if they name
 * it.
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
	/* Only a stream-ordered request runs on a lane (a thread of the library) here, and the lane
	 * waits for the chunk's completion. */
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
