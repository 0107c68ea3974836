/* SPDX-License-Identifier: Apache-2.0 */
/* Binds the worker threads and the memory of a device to the CPUs and the NUMA node near it: see
 * numa.h. */
#include "core/machine/numa.h"

#include <linux/mempolicy.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/log.h"
#include "core/machine/topo_read.h"

void pst_numa_find(const struct penstock_device *dev, struct pst_numa *out)
{
	const char *root = dev->opts.sys_root ? dev->opts.sys_root : "";
	struct pst_cpus local;
	struct pst_topo *topo;
	cpu_set_t allowed;
	char why[PENSTOCK_TEXT_MAX];

	out->cpus_known = false;
	out->node = -1;
	if (!dev->facts.bdf[0] || sched_getaffinity(0, sizeof(allowed), &allowed))
		return;
	if (pst_topo_open_near(root, dev->facts.bdf, &topo, why, sizeof(why)) < 0) {
		pst_log(PST_LOG_INFO, "core", "device %s: its NUMA node is unknown: %s",
			dev->facts.bdf, why);
		return;
	}
	if (topo->node_count > 1 && !pst_topo_cpus_near(topo, dev->facts.bdf, &local)) {
		CPU_ZERO(&out->cpus);
		for (unsigned i = 0; i < CPU_SETSIZE; i++)
			if (pst_cpus_has(&local, i) && CPU_ISSET(i, &allowed))
				CPU_SET(i, &out->cpus);
		out->cpus_known = CPU_COUNT(&out->cpus) > 0;
		out->node = pst_topo_numa_of(topo, dev->facts.bdf);
	}
	pst_topo_close(topo);
}

void pst_numa_bind_thread(const struct pst_numa *numa)
{
	if (numa->cpus_known && sched_setaffinity(0, sizeof(numa->cpus), &numa->cpus))
		pst_log(PST_LOG_INFO, "core", "cannot bind a lane to the CPUs near its device: %m");
}

void pst_numa_bind_memory(const struct pst_numa *numa, void *base, size_t len)
{
	unsigned long mask[16] = {0};
	const unsigned bits = 8 * sizeof(mask[0]);

	if (numa->node < 0 || numa->node >= (int)(bits * 16))
		return;
	mask[(unsigned)numa->node / bits] = 1ul << (unsigned)numa->node % bits;
	if (syscall(SYS_mbind, base, len, MPOL_PREFERRED, mask, sizeof(mask) * 8, 0))
		pst_log(PST_LOG_INFO, "core", "cannot place the ring on NUMA node %d: %m",
			numa->node);
}
