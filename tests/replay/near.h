/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers of the tests of the topology code. topo_at opens the topology of a machine from a folder
 * (`root`) with copies of the machine's /sys and /proc files. assert_near checks how close two
 * devices of the topology are. Only the tests of topo include this file. If the folder cannot be
 * read, topo_at must fail the test; it must never skip the test.
 */
#ifndef PENSTOCK_NEAR_H
#define PENSTOCK_NEAR_H

#include "../test.h"

#include <string.h>

#include "core/machine/topo_read.h"

static inline struct pst_topo *topo_at(const char *root)
{
	struct pst_topo *topo = NULL;
	char why[256] = "";

	if (pst_topo_open(root, &topo, why, sizeof(why)) < 0)
		fail_msg("%s: %s", root, why);
	return topo;
}

static inline void assert_near(const struct pst_topo *topo, const char *a, const char *b,
			       const char *want)
{
	const char *got = pst_nearness_name(pst_topo_nearness(topo, a, b));

	if (strcmp(got, want))
		fail_msg("%s and %s: %s, not %s", a, b, got, want);
}

#endif
