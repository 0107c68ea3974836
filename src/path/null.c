/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Path null: completes at once and moves nothing, to measure what a request costs by
 * itself. Taken only when named.
 */
#include "path/paths.h"

static int probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
		 char *fix)
{
	(void)route;
	(void)err;
	(void)fix;
	facts->class_ = PENSTOCK_ANY;
	facts->off_align = facts->mem_align = 1;
	return 0;
}

static int start(struct pst_chunk *chunk)
{
	chunk->moved = chunk->len;
	if (chunk->lane) /* that a stream's request came by */
		pst_chunk_done(chunk, 0);
	return 0;
}

const struct pst_path_ops pst_path_null = {
	.name = "null",
	.traits = {.reads = true, .writes = true, .by_name_only = true, .at_once = true},
	.probe = probe,
	.start = start,
};
