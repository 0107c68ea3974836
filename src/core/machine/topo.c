/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the shape of the machine and answers questions about it: how near two
 * PCI devices are, which node and which CPUs are near one. Called when devices
 * and pumps are opened and by the command. topo_read.c reads the PCI tree,
 * topo_print.c prints it. It must never trust that a tree is well formed: a
 * capture may name bridges in a circle or nodes without end.
 */
#include "core/machine/topo.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/machine/sysfs.h"

/* ---- addresses and lists of CPUs -------------------------------------------- */

static int hex_field(const char **text, unsigned digits_max, uint32_t max, char end, uint32_t *out)
{
	static const char hex[] = "0123456789abcdef";
	uint32_t value = 0;
	unsigned digits = 0;

	for (; **text && **text != end; (*text)++) {
		char c = **text;
		const char *at = strchr(hex, c >= 'A' && c <= 'F' ? c + 32 : c);

		if (!at || ++digits > digits_max)
			return -EINVAL;
		value = value << 4 | (uint32_t)(at - hex);
	}
	if (!digits || **text != end || value > max)
		return -EINVAL;
	if (end)
		(*text)++;
	*out = value;
	return 0;
}

int pst_bdf_parse(const char *text, uint32_t *domain, uint8_t *bus, uint8_t *dev, uint8_t *fn)
{
	const char *colon = text ? strchr(text, ':') : NULL;
	uint32_t d = 0, b, s, f;

	if (!colon)
		return -EINVAL;
	if (strchr(colon + 1, ':') && hex_field(&text, 8, UINT32_MAX, ':', &d) < 0)
		return -EINVAL;
	if (hex_field(&text, 2, 0xff, ':', &b) < 0 || hex_field(&text, 2, 0x1f, '.', &s) < 0 ||
	    hex_field(&text, 1, 7, '\0', &f) < 0)
		return -EINVAL;
	*domain = d;
	*bus = (uint8_t)b;
	*dev = (uint8_t)s;
	*fn = (uint8_t)f;
	return 0;
}

int pst_bdf_normal(const char *text, char out[PST_BDF_LEN])
{
	uint32_t domain;
	uint8_t bus, dev, fn;

	if (pst_bdf_parse(text, &domain, &bus, &dev, &fn) < 0)
		return -EINVAL;
	snprintf(out, PST_BDF_LEN, "%04x:%02x:%02x.%x", domain, bus, dev, fn);
	return 0;
}

/* One decimal number; *text moves behind it. */
static int cpu_number(const char **text, unsigned *out)
{
	unsigned value = 0, digits = 0;

	for (; **text >= '0' && **text <= '9'; (*text)++) {
		if (++digits > 7)
			return -ERANGE;
		value = value * 10 + (unsigned)(**text - '0');
	}
	if (!digits)
		return -EINVAL;
	if (value >= PST_CPUS_MAX)
		return -ERANGE;
	*out = value;
	return 0;
}

int pst_cpus_parse(const char *text, struct pst_cpus *out)
{
	struct pst_cpus cpus = {{0}};
	unsigned first, last;
	int ret;

	while (*text) {
		ret = cpu_number(&text, &first);
		if (ret < 0)
			return ret;
		last = first;
		if (*text == '-') {
			text++;
			ret = cpu_number(&text, &last);
			if (ret < 0)
				return ret;
		}
		if (last < first)
			return -EINVAL;
		for (; first <= last; first++)
			cpus.bits[first / 64] |= 1ULL << (first % 64);
		if (*text == ',' && text[1])
			text++;
		else if (*text)
			return -EINVAL;
	}
	*out = cpus;
	return 0;
}

unsigned pst_cpus_count(const struct pst_cpus *cpus)
{
	unsigned i, count = 0;

	for (i = 0; i < PST_CPUS_MAX / 64; i++)
		count += (unsigned)__builtin_popcountll(cpus->bits[i]);
	return count;
}

/* ---- nodes ------------------------------------------------------------------ */

/* "Node 0 MemTotal:  1056 kB": the number behind a key, in bytes. */
static uint64_t meminfo_bytes(const char *text, const char *key)
{
	const char *at = strstr(text, key);
	unsigned long long kib;

	if (!at)
		return 0;
	kib = strtoull(at + strlen(key), NULL, 10);
	return kib > UINT64_MAX / 1024 ? 0 : (uint64_t)kib * 1024;
}

int pst_topo_list(struct pst_topo *topo, const struct pst_sysfs *fs, struct pst_names *names,
		  const char *path)
{
	int ret = pst_sysfs_list(fs, names, "%s", path);

	topo->no_memory |= ret == -ENOMEM;
	return ret;
}

char *pst_topo_copy(struct pst_topo *topo, const char *text)
{
	char *copy = strdup(text);

	topo->no_memory |= !copy;
	return copy;
}

static void read_node(struct pst_topo *topo, const struct pst_sysfs *fs, int id,
		      struct pst_node *node)
{
	char list[4096], *meminfo;
	ssize_t got;

	*node = (struct pst_node){.id = id};
	if (pst_sysfs_text(fs, list, sizeof(list), "sys/devices/system/node/node%d/cpulist", id) >=
		    0 &&
	    !pst_cpus_parse(list, &node->cpus))
		node->cpulist = pst_topo_copy(topo, list);
	if (pst_sysfs_text(fs, list, sizeof(list), "sys/devices/system/node/node%d/distance", id) >
	    0)
		node->distance = pst_topo_copy(topo, list);
	got = pst_sysfs_file(fs, &meminfo, 65536, "sys/devices/system/node/node%d/meminfo", id);
	topo->no_memory |= got == -ENOMEM;
	if (got >= 0) {
		node->mem_bytes = meminfo_bytes(meminfo, "MemTotal:");
		node->mem_free_bytes = meminfo_bytes(meminfo, "MemFree:");
		free(meminfo);
	}
}

static int node_number(const char *name, int64_t *id)
{
	if (strncmp(name, "node", 4) || pst_number_parse(name + 4, id) < 0)
		return -EINVAL;
	return *id < 0 || *id > INT32_MAX ? -EINVAL : 0;
}

static int read_nodes(struct pst_topo *topo, const struct pst_sysfs *fs)
{
	struct pst_names names;
	int64_t id;
	size_t i;

	if (pst_topo_list(topo, fs, &names, "sys/devices/system/node") < 0)
		return 0; /* a kernel without NUMA, or a sandbox: no nodes are known */
	topo->nodes = calloc(names.count + 1, sizeof(*topo->nodes));
	for (i = 0; topo->nodes && i < names.count; i++) {
		if (node_number(names.name[i], &id) < 0)
			continue;
		if (topo->node_count == PST_NODES_MAX) {
			topo->complete = false;
			break;
		}
		read_node(topo, fs, (int)id, &topo->nodes[topo->node_count++]);
	}
	pst_names_free(&names);
	return topo->nodes ? 0 : -ENOMEM;
}

static void read_online(struct pst_topo *topo, const struct pst_sysfs *fs)
{
	char list[4096];

	if (pst_sysfs_text(fs, list, sizeof(list), "sys/devices/system/cpu/online") > 0 &&
	    !pst_cpus_parse(list, &topo->online))
		topo->online_list = pst_topo_copy(topo, list);
}

/* What the groups of all devices say together. */
static const char *iommu_mode(const struct pst_topo *topo)
{
	bool passthrough = false, translated = false;
	size_t i;

	for (i = 0; i < topo->pci_count; i++) {
		if (topo->pci[i].iommu_group < 0)
			continue;
		if (!strcmp(topo->pci[i].iommu_type, "identity"))
			passthrough = true;
		else
			translated = true;
	}
	if (passthrough && translated)
		return "mixed";
	return passthrough ? "passthrough" : translated ? "translated" : "none";
}

/* ---- questions -------------------------------------------------------------- */

static int compare(const struct pst_pci *a, uint32_t domain, uint8_t bus, uint8_t dev, uint8_t fn)
{
	if (a->domain != domain)
		return a->domain < domain ? -1 : 1;
	if (a->bus != bus)
		return a->bus < bus ? -1 : 1;
	if (a->dev != dev)
		return a->dev < dev ? -1 : 1;
	return a->fn == fn ? 0 : a->fn < fn ? -1 : 1;
}

static int find(const struct pst_topo *topo, const char *bdf)
{
	size_t low = 0, high = topo->pci_count;
	uint32_t domain;
	uint8_t bus, dev, fn;

	if (pst_bdf_parse(bdf, &domain, &bus, &dev, &fn) < 0)
		return -EINVAL;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = compare(&topo->pci[middle], domain, bus, dev, fn);

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
	int index = find(topo, bdf);

	return index < 0 ? NULL : &topo->pci[index];
}

/* How many steps up from `from` the bridge `to` is; -1: it is not above. */
static int steps_up(const struct pst_topo *topo, int from, int to)
{
	int steps;

	for (steps = 0; from >= 0 && steps <= PST_TOPO_DEPTH_MAX; steps++) {
		if (from == to)
			return steps;
		from = topo->pci[from].bridge;
	}
	return -1;
}

/* The lowest bridge above both, or -1; *far: steps from the farther of the two. */
static int meeting(const struct pst_topo *topo, int a, int b, int *far)
{
	int at, up_a, up_b;

	for (at = a, up_a = 0; at >= 0 && up_a <= PST_TOPO_DEPTH_MAX; up_a++) {
		up_b = steps_up(topo, b, at);
		if (up_b >= 0) {
			*far = up_a > up_b ? up_a : up_b;
			return at;
		}
		at = topo->pci[at].bridge;
	}
	return -1;
}

static int node_of(const struct pst_topo *topo, int index)
{
	size_t i;

	for (i = 0; i < topo->node_count; i++)
		if (topo->nodes[i].id == topo->pci[index].numa)
			return topo->nodes[i].id;
	/* Firmware often says nothing where there is but one. */
	return topo->node_count == 1 ? topo->nodes[0].id : -1;
}

int pst_topo_nearness(const struct pst_topo *topo, const char *bdf_a, const char *bdf_b)
{
	int a = find(topo, bdf_a), b = find(topo, bdf_b), far = 0;

	if (a < 0 || b < 0)
		return a < 0 ? a : b;
	if (a == b)
		return PST_NEAR_SELF;
	/* Through one switch the way is device, downstream port, upstream port: both
	 * are at most two steps below the bridge where they meet. */
	if (meeting(topo, a, b, &far) >= 0)
		return far <= 2 ? PST_NEAR_PIX : PST_NEAR_PXB;
	if (topo->pci[a].host[0] && !strcmp(topo->pci[a].host, topo->pci[b].host))
		return PST_NEAR_PHB;
	if (node_of(topo, a) >= 0 && node_of(topo, a) == node_of(topo, b))
		return PST_NEAR_NODE;
	return PST_NEAR_SYS;
}

const char *pst_nearness_name(int nearness)
{
	static const char *const names[] = {"X", "PIX", "PXB", "PHB", "NODE", "SYS"};

	return nearness < 0 || nearness > PST_NEAR_SYS ? "?" : names[nearness];
}

/* Bridges from `from` up to `top`, which counts only if `with_top`. */
static int redirects_below(const struct pst_topo *topo, int from, int top, bool with_top)
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
	int a = find(topo, bdf_a), b = find(topo, bdf_b), far, top, on_a, on_b;

	if (a < 0 || b < 0)
		return a < 0 ? a : b;
	top = meeting(topo, a, b, &far);
	if (top < 0)
		return -EXDEV;
	/* The kernel's check (drivers/pci/p2pdma.c) counts the bridge on top, too. */
	on_a = redirects_below(topo, a, top, true);
	on_b = redirects_below(topo, b, top, false);
	if (on_a == 1 || on_b == 1)
		return 1;
	return on_a < 0 ? on_a : on_b;
}

int pst_topo_numa_of(const struct pst_topo *topo, const char *bdf)
{
	int index = find(topo, bdf), node;

	if (index < 0)
		return index;
	node = node_of(topo, index);
	return node < 0 ? -ENODATA : node;
}

int pst_topo_cpus_near(const struct pst_topo *topo, const char *bdf, struct pst_cpus *out)
{
	int index = find(topo, bdf), node;
	size_t i;

	if (index < 0)
		return index;
	if (topo->pci[index].cpulist && topo->pci[index].cpulist[0])
		return pst_cpus_parse(topo->pci[index].cpulist, out);
	node = node_of(topo, index);
	for (i = 0; node >= 0 && i < topo->node_count; i++) {
		/* A node of memory alone has no CPUs. */
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

/* ---- open and close --------------------------------------------------------- */

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

/* `near`: of the devices only this one, where there is a choice; NULL: all of them. */
static int open_topo(const char *root, const char *near, struct pst_topo **out, char *why,
		     size_t why_len)
{
	struct pst_topo *topo;
	struct pst_sysfs fs;
	int ret = pst_sysfs_open(&fs, root);

	if (ret < 0) {
		if (why && why_len)
			snprintf(why, why_len, "the machine cannot be read: %s: %s",
				 root && root[0] ? pst_path_tail(root) : "/", strerror(-ret));
		return ret;
	}
	topo = calloc(1, sizeof(*topo));
	if (topo) {
		topo->complete = true;
		read_online(topo, &fs);
	}
	ret = topo ? read_nodes(topo, &fs) : -ENOMEM;
	if (!ret && !near)
		ret = pst_topo_read_pci(topo, &fs);
	else if (!ret && topo->node_count > 1)
		ret = pst_topo_read_one(topo, &fs, near);
	if (!ret && !near)
		ret = pst_topo_read_ends(topo, &fs);
	if (!ret && topo->no_memory)
		ret = -ENOMEM; /* half a machine would look like a whole one */
	pst_sysfs_close(&fs);
	if (ret < 0) {
		if (why && why_len)
			snprintf(why, why_len, "the machine cannot be read: %s", strerror(-ret));
		pst_topo_close(topo);
		return ret;
	}
	topo->iommu = iommu_mode(topo);
	*out = topo;
	return 0;
}

int pst_topo_open(const char *root, struct pst_topo **out, char *why, size_t why_len)
{
	return open_topo(root, NULL, out, why, why_len);
}

int pst_topo_open_near(const char *root, const char *bdf, struct pst_topo **out, char *why,
		       size_t why_len)
{
	return open_topo(root, bdf, out, why, why_len);
}
