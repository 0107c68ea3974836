/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints a topology, as text or as JSON. Called by `penstock topo`. It must never print an
 * unknown value as if the value were known: JSON has null for it, and the text has a dash.
 */
#ifndef PST_CORE_TOPO_PRINT_H
#define PST_CORE_TOPO_PRINT_H

#include <stdio.h>

#include "core/machine/topo.h"

/* Prints the NUMA nodes, the devices, and a matrix of how near each two devices are, like the one
 * of `nvidia-smi topo -m`. */
void pst_topo_print(const struct pst_topo *topo, FILE *f);

/*
 * Prints one JSON object:
 *
 *	schema		"penstock-topo-1"; later versions only add fields
 *	complete	bool: false if a limit was reached and something is left out
 *	cpus_online	"0-127" or null
 *	iommu		"none" | "passthrough" | "translated" | "mixed"
 *	nodes		array of { node, cpus, memory_bytes, memory_free_bytes,
 *			distance: array of numbers }; memory null if unknown
 *	devices		array of { name, kind: "gpu" | "drive" | "nic",
 *			maker, model, transport, rate, state (strings or null),
 *			bdf (or null: not on PCI), numa (or null),
 *			and with a bdf also: driver, cpus, host_bridge, iommu_group,
 *			iommu_type (or null), link { known: bool, mts, width, mts_max,
 *			width_max } (millions of transfers a second, lanes; or null),
 *			bar_bytes, p2pmem_bytes, bridges: array of bdf, nearest first }
 *	bridges		array of { bdf, role: "root-port" | "switch-up" | "switch-down" |
 *			"bridge", acs_redirect: bool or null, link }: the bridges above
 *			the devices
 *	nearness	array of { a, b: names, near: "X" | "PIX" | "PXB" | "PHB" |
 *			"NODE" | "SYS", acs_redirect: bool or null }: each pair of devices
 *			on PCI; two disks of one adapter are "X"
 */
void pst_topo_print_json(const struct pst_topo *topo, FILE *f);

#endif
