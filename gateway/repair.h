/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes files that crashed gateways have left in a root (the folder with the objects). Called by
 * `penstock serve --repair`, also while gateways work on the same root.
 *
 * A draft is a file that a gateway writes before it becomes an object. If a transfer moves no bytes
 * for --timeout, the gateway ends it. So a draft that has not changed for longer than the lease (a
 * time in seconds) has no owner, and is removed. On the same host, a lock (flock) on the draft also
 * shows that it has an owner.
 */
#ifndef GW_REPAIR_H
#define GW_REPAIR_H

#include <stddef.h>
#include <stdint.h>

struct gw_repair_result {
	unsigned drafts, uploads, records; /* removed */
	/* interrupted moves of objects to %self that were completed */
	unsigned moves;
	/* drafts and uploads that the repair kept: they are not older than their lease, a gateway
	 * has them open, or their age could not be determined */
	unsigned kept;
};

/* Repairs the root. Leases are in seconds. Returns 0; on an error, returns a negative errno and
 * writes a message to `why`. */
int gw_repair(const char *root, uint64_t lease_s, uint64_t upload_lease_s,
	      struct gw_repair_result *result, char *why, size_t why_len);

#endif
