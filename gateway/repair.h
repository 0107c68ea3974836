/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes files that crashed gateways have left in a root (the folder with the objects). Called by
 * `penstock serve --repair`, also while gateways work on the same root.
 *
 * The lease of a draft is the time of its last change: a gateway ends a transfer that moves no
 * bytes after --timeout, so a draft that has not changed for longer than the lease has no owner.
 * On the same host, a lock (flock) on the draft also shows its owner.
 */
#ifndef GW_REPAIR_H
#define GW_REPAIR_H

#include <stddef.h>
#include <stdint.h>

struct gw_repair_result {
	unsigned drafts, uploads, records; /* removed */
	unsigned moves;			   /* completed moves of objects to %self */
	/* drafts and uploads that were kept, because their lease has not run out */
	unsigned kept;
};

/* Repairs the root. Leases are in seconds. Returns 0, or a negative errno with a text in `why`. */
int gw_repair(const char *root, uint64_t lease_s, uint64_t upload_lease_s,
	      struct gw_repair_result *result, char *why, size_t why_len);

#endif
