/* SPDX-License-Identifier: Apache-2.0 */
/* Prints a topology as text and as JSON: see topo_print.h. */
#include <string.h>

#include "core/machine/topo_print.h"

static const char *const kind_names[] = {"gpu", "drive", "nic"};
static const char *const role_names[] = {"endpoint", "root-port", "switch-up", "switch-down",
					 "bridge"};

static const struct pst_pci *end_pci(const struct pst_topo *topo, const struct pst_end *end)
{
	return end->pci < 0 ? NULL : &topo->pci[end->pci];
}

static int acs_redirects(const struct pst_topo *topo, const struct pst_pci *a,
			 const struct pst_pci *b)
{
	return pst_topo_acs_redirects(topo, a->bdf, b->bdf);
}

/* ---- text ------------------------------------------------------------------- */

static void nodes_print(const struct pst_topo *topo, FILE *f)
{
	size_t i;

	fprintf(f, "NUMA nodes\n");
	for (i = 0; i < topo->node_count; i++) {
		const struct pst_node *node = &topo->nodes[i];

		fprintf(f, "  node %-3d CPUs %s", node->id,
			node->cpulist && node->cpulist[0] ? node->cpulist : "-");
		if (node->mem_bytes)
			fprintf(f, ", %.1f GiB, %.1f free", (double)node->mem_bytes / (1 << 30),
				(double)node->mem_free_bytes / (1 << 30));
		if (node->distance)
			fprintf(f, ", distance %s", node->distance);
		fprintf(f, "\n");
	}
	if (!topo->node_count)
		fprintf(f, "  not known; CPUs %s\n", topo->online_list ? topo->online_list : "-");
}

static void link_print(const struct pst_pci *dev, FILE *f)
{
	if (!dev->link_mts || !dev->link_width)
		return;
	fprintf(f, ", %.1f GT/s x%u", dev->link_mts / 1000.0, dev->link_width);
	if (dev->link_mts < dev->link_mts_max || dev->link_width < dev->link_width_max)
		fprintf(f, " (below its %.1f GT/s x%u)", dev->link_mts_max / 1000.0,
			dev->link_width_max);
}

static void end_print(const struct pst_topo *topo, const struct pst_end *end, FILE *f)
{
	const struct pst_pci *dev = end_pci(topo, end);

	fprintf(f, "  %-8s %-12s node ", end->name, dev ? dev->bdf : "not on PCI");
	if (end->numa < 0)
		fprintf(f, "-");
	else
		fprintf(f, "%d", end->numa);
	if (end->maker[0])
		fprintf(f, ", %s", end->maker);
	if (end->transport[0])
		fprintf(f, ", %s", end->transport);
	if (end->model[0])
		fprintf(f, ", %s", end->model);
	if (end->rate[0])
		fprintf(f, ", %s", end->rate);
	if (end->state[0])
		fprintf(f, ", %s", end->state);
	if (dev) {
		link_print(dev, f);
		if (dev->iommu_group >= 0)
			fprintf(f, ", IOMMU group %d (%s)", dev->iommu_group,
				dev->iommu_type[0] ? dev->iommu_type : "-");
		if (dev->p2pmem_bytes)
			fprintf(f, ", %.1f MiB lent for peer-to-peer",
				(double)dev->p2pmem_bytes / (1 << 20));
	}
	fprintf(f, "\n");
}

static int column_width(const struct pst_end *end)
{
	return strlen(end->name) > 6 ? (int)strlen(end->name) : 6;
}

static void nearness_print(const struct pst_topo *topo, FILE *f)
{
	size_t i, j;

	fprintf(f, "\nNearness\n%-10s", "");
	for (j = 0; j < topo->end_count; j++)
		if (topo->ends[j].pci >= 0)
			fprintf(f, " %-*s", column_width(&topo->ends[j]), topo->ends[j].name);
	fprintf(f, " CPUs\n");
	for (i = 0; i < topo->end_count; i++) {
		const struct pst_pci *a = end_pci(topo, &topo->ends[i]);

		if (!a)
			continue;
		fprintf(f, "  %-8s", topo->ends[i].name);
		for (j = 0; j < topo->end_count; j++) {
			const struct pst_pci *b = end_pci(topo, &topo->ends[j]);
			char cell[8];

			if (!b)
				continue;
			snprintf(cell, sizeof(cell), "%s%s",
				 pst_nearness_name(pst_topo_nearness(topo, a->bdf, b->bdf)),
				 a != b && acs_redirects(topo, a, b) == 1 ? "!" : "");
			fprintf(f, " %-*s", column_width(&topo->ends[j]), cell);
		}
		fprintf(f, " %s\n", a->cpulist ? a->cpulist : "-");
	}
	fprintf(f, "\n  X the same, PIX one switch, PXB several switches, PHB one host bridge,\n"
		   "  NODE one NUMA node, SYS across nodes or not known;\n"
		   "  ! ACS sends the traffic between the two up to the root\n");
}

void pst_topo_print(const struct pst_topo *topo, FILE *f)
{
	bool on_pci = false;
	size_t i;

	nodes_print(topo, f);
	fprintf(f, "\nDevices (IOMMU: %s)\n", topo->iommu);
	for (i = 0; i < topo->end_count; i++) {
		end_print(topo, &topo->ends[i], f);
		on_pci = on_pci || topo->ends[i].pci >= 0;
	}
	if (!topo->end_count)
		fprintf(f, "  no GPU, drive or RDMA NIC is in sight\n");
	if (on_pci)
		nearness_print(topo, f);
	if (!topo->complete)
		fprintf(f, "\nThis is not all: the machine is larger than what is read.\n");
}

/* ---- JSON ------------------------------------------------------------------- */

/* Prints a string, or null if it is empty. A byte that is not printable ASCII becomes
 * \u00xx. */
static void json_text(FILE *f, const char *text)
{
	if (!text || !text[0]) {
		fputs("null", f);
		return;
	}
	fputc('"', f);
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\')
			fprintf(f, "\\%c", c);
		else if (c < 0x20 || c > 0x7e)
			fprintf(f, "\\u%04x", c);
		else
			fputc(c, f);
	}
	fputc('"', f);
}

static void json_text_field(FILE *f, const char *name, const char *text)
{
	fprintf(f, ", \"%s\": ", name);
	json_text(f, text);
}

/* Prints a number, or null if the number equals `unknown`. */
static void json_number_field(FILE *f, const char *name, long long value, long long unknown)
{
	if (value == unknown)
		fprintf(f, ", \"%s\": null", name);
	else
		fprintf(f, ", \"%s\": %lld", name, value);
}

/* Prints a bool, or null if the value is negative (unknown). */
static void json_bool_field(FILE *f, const char *name, int value)
{
	fprintf(f, ", \"%s\": %s", name, value < 0 ? "null" : value ? "true" : "false");
}

static void nodes_print_json(const struct pst_topo *topo, FILE *f)
{
	size_t i;

	fprintf(f, ", \"nodes\": [");
	for (i = 0; i < topo->node_count; i++) {
		const struct pst_node *node = &topo->nodes[i];
		const char *at = node->distance ? node->distance : "";
		int step;
		unsigned d;

		fprintf(f, "%s{\"node\": %d", i ? ", " : "", node->id);
		fprintf(f, ", \"cpus\": \"%s\"", node->cpulist ? node->cpulist : "");
		json_number_field(f, "memory_bytes", (long long)node->mem_bytes, 0);
		json_number_field(f, "memory_free_bytes", (long long)node->mem_free_bytes, 0);
		fprintf(f, ", \"distance\": [");
		for (; sscanf(at, " %9u%n", &d, &step) == 1; at += step)
			fprintf(f, "%s%u", at == node->distance ? "" : ", ", d);
		fprintf(f, "]}");
	}
	fprintf(f, "]");
}

static void link_print_json(FILE *f, const struct pst_pci *dev)
{
	fprintf(f, ", \"link\": {\"known\": %s", dev->link_mts ? "true" : "false");
	json_number_field(f, "mts", dev->link_mts, 0);
	json_number_field(f, "width", dev->link_width, 0);
	json_number_field(f, "mts_max", dev->link_mts_max, 0);
	json_number_field(f, "width_max", dev->link_width_max, 0);
	fprintf(f, "}");
}

static void pci_print_json(const struct pst_topo *topo, const struct pst_pci *dev, FILE *f)
{
	int at, depth = 0;

	json_text_field(f, "driver", dev->driver);
	json_text_field(f, "cpus", dev->cpulist);
	json_text_field(f, "host_bridge", dev->host);
	json_number_field(f, "iommu_group", dev->iommu_group, -1);
	json_text_field(f, "iommu_type", dev->iommu_type);
	link_print_json(f, dev);
	fprintf(f, ", \"bar_bytes\": %llu", (unsigned long long)dev->bar_bytes);
	fprintf(f, ", \"p2pmem_bytes\": %llu", (unsigned long long)dev->p2pmem_bytes);
	fprintf(f, ", \"bridges\": [");
	for (at = dev->bridge; at >= 0 && depth < PST_TOPO_DEPTH_MAX; at = topo->pci[at].bridge)
		fprintf(f, "%s\"%s\"", depth++ ? ", " : "", topo->pci[at].bdf);
	fprintf(f, "]");
}

static void devices_print_json(const struct pst_topo *topo, FILE *f)
{
	size_t i;

	fprintf(f, ", \"devices\": [");
	for (i = 0; i < topo->end_count; i++) {
		const struct pst_end *end = &topo->ends[i];
		const struct pst_pci *dev = end_pci(topo, end);

		fprintf(f, "%s{\"name\": ", i ? ", " : "");
		json_text(f, end->name);
		json_text_field(f, "kind", kind_names[end->kind]);
		json_text_field(f, "maker", end->maker);
		json_text_field(f, "model", end->model);
		json_text_field(f, "transport", end->transport);
		json_text_field(f, "rate", end->rate);
		json_text_field(f, "state", end->state);
		json_text_field(f, "bdf", dev ? dev->bdf : NULL);
		json_number_field(f, "numa", end->numa, -1);
		if (dev)
			pci_print_json(topo, dev, f);
		fprintf(f, "}");
	}
	fprintf(f, "]");
}

/* Returns whether a GPU, drive or NIC of the topology is below the bridge in the PCI tree. */
static bool bridge_above_end(const struct pst_topo *topo, int bridge)
{
	int at, depth;
	size_t i;

	for (i = 0; i < topo->end_count; i++)
		for (at = topo->ends[i].pci, depth = 0; at >= 0 && depth <= PST_TOPO_DEPTH_MAX;
		     at = topo->pci[at].bridge, depth++)
			if (at == bridge)
				return true;
	return false;
}

static void bridges_print_json(const struct pst_topo *topo, FILE *f)
{
	bool first = true;
	size_t i;

	fprintf(f, ", \"bridges\": [");
	for (i = 0; i < topo->pci_count; i++) {
		const struct pst_pci *dev = &topo->pci[i];

		if (dev->role == PST_PCI_ENDPOINT || !bridge_above_end(topo, (int)i))
			continue;
		fprintf(f, "%s{\"bdf\": \"%s\"", first ? "" : ", ", dev->bdf);
		json_text_field(f, "role", role_names[dev->role]);
		json_bool_field(f, "acs_redirect",
				dev->acs < 0 ? -1 : !!(dev->acs & PST_ACS_REDIRECT));
		link_print_json(f, dev);
		fprintf(f, "}");
		first = false;
	}
	fprintf(f, "]");
}

static void nearness_print_json(const struct pst_topo *topo, FILE *f)
{
	bool first = true;
	size_t i, j;

	fprintf(f, ", \"nearness\": [");
	for (i = 0; i < topo->end_count; i++)
		for (j = i + 1; j < topo->end_count; j++) {
			const struct pst_pci *a = end_pci(topo, &topo->ends[i]);
			const struct pst_pci *b = end_pci(topo, &topo->ends[j]);

			if (!a || !b)
				continue;
			fprintf(f, "%s{\"a\": ", first ? "" : ", ");
			json_text(f, topo->ends[i].name);
			json_text_field(f, "b", topo->ends[j].name);
			json_text_field(f, "near",
					pst_nearness_name(pst_topo_nearness(topo, a->bdf, b->bdf)));
			json_bool_field(f, "acs_redirect", acs_redirects(topo, a, b));
			fprintf(f, "}");
			first = false;
		}
	fprintf(f, "]");
}

void pst_topo_print_json(const struct pst_topo *topo, FILE *f)
{
	fprintf(f, "{\"schema\": \"penstock-topo-1\"");
	json_bool_field(f, "complete", topo->complete);
	json_text_field(f, "cpus_online", topo->online_list);
	json_text_field(f, "iommu", topo->iommu);
	nodes_print_json(topo, f);
	devices_print_json(topo, f);
	bridges_print_json(topo, f);
	nearness_print_json(topo, f);
	fprintf(f, "}\n");
}
