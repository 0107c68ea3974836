/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers queries about a topology, for example how near two devices are: see topo.h. Called when
 * devices are opened and their worker threads start, and by the `penstock` command. The PCI tree
 * may be malformed: files that were copied from another machine may describe bridges that form a
 * circle.
 */
#include "core/machine/topo.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void pst_topo_close(struct pst_topo *topo)
{
	size_t i;

	if (!topo)
		return;
	for (i = 0; i < topo->node_count; i++) {
		free(topo->nodes[i].cpulist);
		free(topo->nodes[i].distance);
	}
	for (i = 0; i < topo->pci_count; i++)
		free(topo->pci[i].cpulist);
	free(topo->nodes);
	free(topo->pci);
	free(topo->ends);
	free(topo->online_list);
	free(topo);
}

static int pci_compare(const struct pst_pci *a, uint32_t domain, uint8_t bus, uint8_t dev,
		       uint8_t fn)
{
	if (a->domain != domain)
		return a->domain < domain ? -1 : 1;
	if (a->bus != bus)
		return a->bus < bus ? -1 : 1;
	if (a->dev != dev)
		return a->dev < dev ? -1 : 1;
	return a->fn == fn ? 0 : a->fn < fn ? -1 : 1;
}

static int pci_find(const struct pst_topo *topo, const char *bdf)
{
	size_t low = 0, high = topo->pci_count;
	uint32_t domain;
	uint8_t bus, dev, fn;

	if (pst_bdf_parse(bdf, &domain, &bus, &dev, &fn) < 0)
		return -EINVAL;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = pci_compare(&topo->pci[middle], domain, bus, dev, fn);

		if (!order)
			return (int)middle;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return -ENODEV;
}

const struct pst_pci *pst_topo_pci(const struct pst_topo *topo, const char *bdf)
{
	int index = pci_find(topo, bdf);

	return index < 0 ? NULL : &topo->pci[index];
}

/* Returns the number of steps up the PCI tree from the device `from` to the bridge `to`. Returns -1
 * if `to` is not above `from`. */
static int bridge_steps_up(const struct pst_topo *topo, int from, int to)
{
	int steps;

	for (steps = 0; from >= 0 && steps <= PST_TOPO_DEPTH_MAX; steps++) {
		if (from == to)
			return steps;
		from = topo->pci[from].bridge;
	}
	return -1;
}

/* Returns the index of the lowest bridge that is above both devices, or -1 if there is none. Counts
 * the steps from each device up the tree to this bridge, and sets *far to the larger count. */
static int common_bridge_find(const struct pst_topo *topo, int a, int b, int *far)
{
	int at, up_a, up_b;

	for (at = a, up_a = 0; at >= 0 && up_a <= PST_TOPO_DEPTH_MAX; up_a++) {
		up_b = bridge_steps_up(topo, b, at);
		if (up_b >= 0) {
			*far = up_a > up_b ? up_a : up_b;
			return at;
		}
		at = topo->pci[at].bridge;
	}
	return -1;
}

static int pci_node(const struct pst_topo *topo, int index)
{
	size_t i;

	for (i = 0; i < topo->node_count; i++)
		if (topo->nodes[i].id == topo->pci[index].numa)
			return topo->nodes[i].id;
	/* On a machine with one NUMA node, the firmware often does not report the node of a
	 * device. */
	return topo->node_count == 1 ? topo->nodes[0].id : -1;
}

int pst_topo_nearness(const struct pst_topo *topo, const char *bdf_a, const char *bdf_b)
{
	int a = pci_find(topo, bdf_a), b = pci_find(topo, bdf_b), far = 0;

	if (a < 0 || b < 0)
		return a < 0 ? a : b;
	if (a == b)
		return PST_NEAR_SELF;
	/* A switch is two levels of bridges: its upstream port, and below it a downstream port for
	 * each device. So two devices of one switch are at most two steps below their common
	 * bridge. */
	if (common_bridge_find(topo, a, b, &far) >= 0)
		return far <= 2 ? PST_NEAR_PIX : PST_NEAR_PXB;
	if (topo->pci[a].host[0] && !strcmp(topo->pci[a].host, topo->pci[b].host))
		return PST_NEAR_PHB;
	if (pci_node(topo, a) >= 0 && pci_node(topo, a) == pci_node(topo, b))
		return PST_NEAR_NODE;
	return PST_NEAR_SYS;
}

const char *pst_nearness_name(int nearness)
{
	static const char *const names[] = {"X", "PIX", "PXB", "PHB", "NODE", "SYS"};

	return nearness < 0 || nearness > PST_NEAR_SYS ? "?" : names[nearness];
}

/* Checks the bridges above the device `from`, up to the bridge `top`, which itself is checked
 * only if `with_top` is true. Returns 1 if one of them sends traffic between devices below it up
 * to the root (PCIe ACS). Otherwise returns -ENODATA if this is not known for one of the
 * bridges, else 0. */
static int bridges_redirect(const struct pst_topo *topo, int from, int top, bool with_top)
{
	bool unknown = false;
	int at, steps;

	for (at = from, steps = 0; at >= 0 && steps <= PST_TOPO_DEPTH_MAX; steps++) {
		if (at == top && !with_top)
			break;
		if (at != from && topo->pci[at].acs < 0)
			unknown = true;
		else if (at != from && topo->pci[at].acs & PST_ACS_REDIRECT)
			return 1;
		if (at == top)
			break;
		at = topo->pci[at].bridge;
	}
	return unknown ? -ENODATA : 0;
}

int pst_topo_acs_redirects(const struct pst_topo *topo, const char *bdf_a, const char *bdf_b)
{
	int a = pci_find(topo, bdf_a), b = pci_find(topo, bdf_b), far, top, on_a, on_b;

	if (a < 0 || b < 0)
		return a < 0 ? a : b;
	top = common_bridge_find(topo, a, b, &far);
	if (top < 0)
		return -EXDEV;
	/* Check the common bridge, too, as the kernel does (drivers/pci/p2pdma.c). */
	on_a = bridges_redirect(topo, a, top, true);
	on_b = bridges_redirect(topo, b, top, false);
	if (on_a == 1 || on_b == 1)
		return 1;
	return on_a < 0 ? on_a : on_b;
}

int pst_topo_numa_of(const struct pst_topo *topo, const char *bdf)
{
	int index = pci_find(topo, bdf), node;

	if (index < 0)
		return index;
	node = pci_node(topo, index);
	return node < 0 ? -ENODATA : node;
}

int pst_topo_cpus_near(const struct pst_topo *topo, const char *bdf, struct pst_cpus *out)
{
	int index = pci_find(topo, bdf), node;
	size_t i;

	if (index < 0)
		return index;
	if (topo->pci[index].cpulist && topo->pci[index].cpulist[0])
		return pst_cpus_parse(topo->pci[index].cpulist, out);
	node = pci_node(topo, index);
	for (i = 0; node >= 0 && i < topo->node_count; i++) {
		/* Skip a node that has memory but no CPUs. */
		if (topo->nodes[i].id != node || !pst_cpus_count(&topo->nodes[i].cpus))
			continue;
		*out = topo->nodes[i].cpus;
		return 0;
	}
	if (!topo->online_list)
		return -ENODATA;
	*out = topo->online;
	return 0;
}
