/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The path "odirect": the drive's DMA writes the caller's host memory, or reads from it. It works
 * with the device "host" only.
 */
#include "core/request/plan.h"
#include "path/inplace.h"
#include "path/odirect.h"

static int odirect_probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
			 char *fix)
{
	if (!route->dev->facts.is_host)
		return pst_fail(err, PENSTOCK_WHY_HOST_ONLY, "%s is not host memory",
				route->dev->name);
	return pst_inplace_probe(route, facts, err, fix);
}

static int odirect_start(struct pst_chunk *chunk)
{
	return pst_inplace_start(chunk, NULL);
}

const struct pst_path_ops pst_path_odirect = {
	.name = "odirect",
	.traits = {.reads = true, .writes = true, .needs_file = true, .class_ = PENSTOCK_DIRECT},
	.probe = odirect_probe,
	.start = odirect_start,
};
