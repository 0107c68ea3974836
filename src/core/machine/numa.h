/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the NUMA node and the CPUs near a device, and binds threads and memory to them. A copy
 * across the link between two sockets runs at a fraction of the PCIe link's speed. So the device's
 * worker threads run on the device's node, and their staging memory is located there. Called when
 * the worker threads (the pump) start. These functions never return an error, because transfers
 * also work on any other node, only slower.
 */
#ifndef PST_CORE_NUMA_H
#define PST_CORE_NUMA_H

#include <sched.h>

#include "core/ops.h"

struct pst_numa {
	bool cpus_known; /* `cpus` is valid and not empty */
	cpu_set_t cpus;	 /* CPUs near the device that this process may run on */
	int node;	 /* the device's NUMA node; -1 if memory may be on any node */
};

/* Reads which CPUs and which node are near a device. Called once, when the device's worker threads
 * start. On a machine with one node, or for a device without a PCI address, sets cpus_known to
 * false and node to -1. */
void pst_numa_find(const struct penstock_device *dev, struct pst_numa *out);

/* Binds the calling thread to the CPUs in `numa`. If this fails, it is only logged. */
void pst_numa_bind_thread(const struct pst_numa *numa);
/* Makes the kernel prefer the node in `numa` for memory that no thread has accessed yet. If this
 * fails, it is only logged. */
void pst_numa_bind_memory(const struct pst_numa *numa, void *base, size_t len);

#endif
