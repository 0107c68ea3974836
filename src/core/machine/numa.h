/* SPDX-License-Identifier: Apache-2.0 */
/* Where a pump's threads and memory belong on a machine with several nodes. */
#ifndef PST_CORE_NEAR_H
#define PST_CORE_NEAR_H

#include <sched.h>

#include "core/ops.h"

struct pst_numa {
	bool cpus_known; /* the set below is worth setting */
	cpu_set_t cpus;	 /* near the device, and allowed to this process */
	int node;	 /* -1: anywhere */
};

/* Facts read once, when a pump starts. On one node, or without a PCI address,
 * everything is equally near and nothing is known. */
void pst_numa_find(const struct penstock_device *dev, struct pst_numa *out);

/* For the calling thread, and for memory not touched yet. Failures are not errors:
 * the pump works anywhere, only slower. */
void pst_numa_bind_thread(const struct pst_numa *numa);
void pst_numa_bind_memory(const struct pst_numa *numa, void *base, size_t len);

#endif
