/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the topology of the machine: see topo_read.h. A device's place in the PCI tree follows from
 * the target of the device's link in /sys/bus/pci/devices. This file must never turn an unreadable
 * attribute into a valid value, and never follow bridges that form a circle.
 */
#include "core/machine/topo_read.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/machine/sysfs.h"
#include "core/machine/topo_disk.h"

/* Lists a folder as pst_sysfs_list does. Sets topo->no_memory if an allocation fails. */
static int topo_list(struct pst_topo *topo, const struct pst_sysfs *fs, struct pst_names *names,
		     const char *path)
{
	int ret = pst_sysfs_list(fs, names, "%s", path);

	topo->no_memory |= ret == -ENOMEM;
	return ret;
}

/* Copies a string. Sets topo->no_memory if the allocation fails. */
static char *topo_copy(struct pst_topo *topo, const char *text)
{
	char *copy = strdup(text);

	topo->no_memory |= !copy;
	return copy;
}

/* ---- nodes ------------------------------------------------------------------ */

/* Finds a key in lines such as "Node 0 MemTotal: 1056 kB", and returns the number after it in
 * bytes. Returns 0 if the key is missing. */
static uint64_t meminfo_bytes(const char *text, const char *key)
{
	const char *at = strstr(text, key);
	unsigned long long kib;

	if (!at)
		return 0;
	kib = strtoull(at + strlen(key), NULL, 10);
	return kib > UINT64_MAX / 1024 ? 0 : (uint64_t)kib * 1024;
}

static void node_read(struct pst_topo *topo, const struct pst_sysfs *fs, int id,
		      struct pst_node *node)
{
	char list[4096], *meminfo;
	ssize_t got;

	*node = (struct pst_node){.id = id};
	if (pst_sysfs_text(fs, list, sizeof(list), "sys/devices/system/node/node%d/cpulist", id) >=
		    0 &&
	    !pst_cpus_parse(list, &node->cpus))
		node->cpulist = topo_copy(topo, list);
	if (pst_sysfs_text(fs, list, sizeof(list), "sys/devices/system/node/node%d/distance", id) >
	    0)
		node->distance = topo_copy(topo, list);
	got = pst_sysfs_file(fs, &meminfo, 65536, "sys/devices/system/node/node%d/meminfo", id);
	topo->no_memory |= got == -ENOMEM;
	if (got >= 0) {
		node->mem_bytes = meminfo_bytes(meminfo, "MemTotal:");
		node->mem_free_bytes = meminfo_bytes(meminfo, "MemFree:");
		free(meminfo);
	}
}

static int node_number_parse(const char *name, int64_t *id)
{
	if (strncmp(name, "node", 4) || pst_number_parse(name + 4, id) < 0)
		return -EINVAL;
	return *id < 0 || *id > INT32_MAX ? -EINVAL : 0;
}

static int nodes_read(struct pst_topo *topo, const struct pst_sysfs *fs)
{
	struct pst_names names;
	int64_t id;
	size_t i;

	if (topo_list(topo, fs, &names, "sys/devices/system/node") < 0)
		return 0; /* no error: a kernel without NUMA or a sandbox has no such folder */
	topo->nodes = calloc(names.count + 1, sizeof(*topo->nodes));
	for (i = 0; topo->nodes && i < names.count; i++) {
		if (node_number_parse(names.name[i], &id) < 0)
			continue;
		if (topo->node_count == PST_NODES_MAX) {
			topo->complete = false;
			break;
		}
		node_read(topo, fs, (int)id, &topo->nodes[topo->node_count++]);
	}
	pst_names_free(&names);
	return topo->nodes ? 0 : -ENOMEM;
}

static void online_cpus_read(struct pst_topo *topo, const struct pst_sysfs *fs)
{
	char list[4096];

	if (pst_sysfs_text(fs, list, sizeof(list), "sys/devices/system/cpu/online") > 0 &&
	    !pst_cpus_parse(list, &topo->online))
		topo->online_list = topo_copy(topo, list);
}

/* ---- the PCI tree ----------------------------------------------------------- */

/* Where a device is in the PCI tree. */
struct pci_place {
	char host[PST_BDF_LEN];	  /* the outermost host bridge */
	char bridge[PST_BDF_LEN]; /* address of the bridge above; "" if there is none */
};

/*
 * Parses the target of a device's link, such as
 * "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0". If the path contains a second host
 * bridge, that one is an Intel VMD controller. For a device directly below this controller,
 * place->bridge is "", and place->host is the first, outermost host bridge.
 */
static void pci_place_parse(const char *link, const char *bdf, struct pci_place *place)
{
	char above[PST_BDF_LEN] = "", this[PST_BDF_LEN];
	const char *part;
	size_t len;

	*place = (struct pci_place){0};
	while (pst_path_next(&link, &part, &len)) {
		if (pst_part_bdf(part, len, this)) {
			if (!strcmp(this, bdf))
				memcpy(place->bridge, above, sizeof(above));
			memcpy(above, this, sizeof(above));
		} else if (pst_part_is(part, len, "pci", false) && len < PST_BDF_LEN) {
			above[0] = '\0';
			if (!place->host[0])
				memcpy(place->host, part, len);
		}
	}
}

/* Parses a link speed such as "16.0 GT/s PCIe". Returns millions of transfers a second, or 0 for
 * "Unknown". */
static uint32_t link_speed_parse(const char *text)
{
	unsigned whole = 0, tenth = 0;

	if (sscanf(text, "%3u.%1u GT/s", &whole, &tenth) < 1 || !strstr(text, "GT/s"))
		return 0;
	return whole * 1000 + tenth * 100;
}

static uint32_t link_speed_read(const struct pst_sysfs *fs, const char *bdf, const char *name)
{
	char text[32];

	if (pst_sysfs_text(fs, text, sizeof(text), "sys/bus/pci/devices/%s/%s", bdf, name) < 0)
		return 0;
	return link_speed_parse(text);
}

/* Reads a number from a file of the device. Returns `none` if the number cannot be read or is out
 * of range. */
static int64_t pci_number_read(const struct pst_sysfs *fs, const char *bdf, const char *name,
			       int64_t min, int64_t max, int64_t none)
{
	int64_t value;

	if (pst_sysfs_number(fs, &value, "sys/bus/pci/devices/%s/%s", bdf, name) < 0 ||
	    value < min || value > max)
		return none;
	return value;
}

/* Returns the size of a device's largest memory BAR (address range of PCI). The first six lines of
 * the device's file `resource` are the BARs, in the form "start end flags"; flag 0x200 marks a
 * memory BAR. */
static uint64_t largest_bar_read(const struct pst_sysfs *fs, const char *bdf)
{
	uint64_t largest = 0;
	unsigned long long start, end, flags;
	char *text, *line;
	int i;

	if (pst_sysfs_file(fs, &text, 65536, "sys/bus/pci/devices/%s/resource", bdf) < 0)
		return 0;
	for (i = 0, line = text; i < 6 && line; i++) {
		if (sscanf(line, "%llx %llx %llx", &start, &end, &flags) == 3 && flags & 0x200 &&
		    end > start && end - start != UINT64_MAX && end - start + 1 > largest)
			largest = end - start + 1;
		line = strchr(line, '\n');
		line = line ? line + 1 : NULL;
	}
	free(text);
	return largest;
}

static uint32_t le32(const uint8_t *bytes)
{
	return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
	       (uint32_t)bytes[3] << 24;
}

/* Returns the ACS control word from a device's config space. Returns 0 if the device does not
 * have the ACS capability (id 13, PCIe 7.7.11), or -1 if that is not known. */
static int32_t acs_control_find(const uint8_t *config, size_t len)
{
	unsigned at = 0x100, count;

	/* Only root can read more than the first 64 bytes, which do not contain the capability. */
	if (len <= 64)
		return -1;
	for (count = 0; at >= 0x100 && at + 8 <= len && count < 960; count++) {
		uint32_t head = le32(config + at);

		if ((head & 0xffff) == 13)
			return (int32_t)(le32(config + at + 4) >> 16);
		at = head >> 20 & ~3u;
	}
	return 0;
}

/* Returns the port type from the PCI Express capability (id 16), or -1 if it is not known. */
static int pcie_port_type(const uint8_t *config, size_t len)
{
	unsigned at, count;

	if (len <= 64 || !(config[6] & 0x10))
		return -1;
	for (at = config[0x34] & ~3u, count = 0; at >= 64 && at + 4 <= len && count < 48; count++) {
		if (config[at] == 16)
			return config[at + 2] >> 4;
		at = config[at + 1] & ~3u;
	}
	return -1;
}

static void bridge_read(const struct pst_sysfs *fs, struct pst_pci *dev)
{
	uint8_t config[4096];
	ssize_t got = pst_sysfs_bytes(fs, config, sizeof(config), "sys/bus/pci/devices/%s/config",
				      dev->bdf);

	dev->role = PST_PCI_BRIDGE;
	if (got <= 0)
		return;
	dev->acs = acs_control_find(config, (size_t)got);
	switch (pcie_port_type(config, (size_t)got)) {
	case 4:
		dev->role = PST_PCI_ROOT_PORT;
		break;
	case 5:
		dev->role = PST_PCI_SWITCH_UP;
		break;
	case 6:
		dev->role = PST_PCI_SWITCH_DOWN;
		break;
	}
}

static void pci_device_read(struct pst_topo *topo, const struct pst_sysfs *fs, struct pst_pci *dev)
{
	char list[4096];

	dev->class_ = (uint32_t)pci_number_read(fs, dev->bdf, "class", 0, 0xffffff, 0);
	dev->vendor = (uint16_t)pci_number_read(fs, dev->bdf, "vendor", 0, 0xffff, 0);
	dev->device = (uint16_t)pci_number_read(fs, dev->bdf, "device", 0, 0xffff, 0);
	dev->numa = (int32_t)pci_number_read(fs, dev->bdf, "numa_node", 0, INT32_MAX, -1);
	dev->link_mts = link_speed_read(fs, dev->bdf, "current_link_speed");
	dev->link_mts_max = link_speed_read(fs, dev->bdf, "max_link_speed");
	/* The link width of a device that does not answer reads as 255, which the maximum of 32
	 * rejects. */
	dev->link_width = (uint16_t)pci_number_read(fs, dev->bdf, "current_link_width", 0, 32, 0);
	dev->link_width_max = (uint16_t)pci_number_read(fs, dev->bdf, "max_link_width", 0, 32, 0);
	dev->p2pmem_bytes = (uint64_t)pci_number_read(fs, dev->bdf, "p2pmem/size", 0, INT64_MAX, 0);
	dev->bar_bytes = largest_bar_read(fs, dev->bdf);
	pst_sysfs_link_name(fs, dev->driver, sizeof(dev->driver), "sys/bus/pci/devices/%s/driver",
			    dev->bdf);
	if (pst_sysfs_text(fs, list, sizeof(list), "sys/bus/pci/devices/%s/local_cpulist",
			   dev->bdf) > 0) {
		struct pst_cpus cpus;

		if (!pst_cpus_parse(list, &cpus))
			dev->cpulist = topo_copy(topo, list);
	}
	dev->iommu_group = -1;
	if (pst_sysfs_link_name(fs, list, sizeof(list), "sys/bus/pci/devices/%s/iommu_group",
				dev->bdf) > 0) {
		int64_t group;

		if (!pst_number_parse(list, &group) && group >= 0 && group <= INT32_MAX) {
			dev->iommu_group = (int32_t)group;
			pst_sysfs_text(fs, dev->iommu_type, sizeof(dev->iommu_type),
				       "sys/kernel/iommu_groups/%d/type", dev->iommu_group);
		}
	}
	dev->acs = -1;
	if (dev->class_ >> 8 == 0x0604)
		bridge_read(fs, dev);
}

static int pci_by_address(const void *a, const void *b)
{
	const struct pst_pci *x = a, *y = b;

	if (x->domain != y->domain)
		return x->domain < y->domain ? -1 : 1;
	return (x->bus << 16 | x->dev << 8 | x->fn) - (y->bus << 16 | y->dev << 8 | y->fn);
}

/* Guesses the role of a bridge whose config space could not be read. Below a root port, upstream
 * and downstream ports of switches alternate. */
static void bridge_role_guess(struct pst_topo *topo, struct pst_pci *dev)
{
	const struct pst_pci *above = dev->bridge < 0 ? NULL : &topo->pci[dev->bridge];

	if (dev->role != PST_PCI_BRIDGE)
		return;
	if (!above)
		dev->role = PST_PCI_ROOT_PORT;
	else if (above->role == PST_PCI_SWITCH_UP)
		dev->role = PST_PCI_SWITCH_DOWN;
	else if (above->role == PST_PCI_ROOT_PORT || above->role == PST_PCI_SWITCH_DOWN)
		dev->role = PST_PCI_SWITCH_UP;
}

/* Returns the number of bridges above a device. More than PST_TOPO_DEPTH_MAX means that the
 * bridges form a circle, or a tree too deep to read. */
static unsigned pci_depth(const struct pst_topo *topo, size_t index)
{
	unsigned depth = 0;
	int at;

	for (at = topo->pci[index].bridge; at >= 0 && depth <= PST_TOPO_DEPTH_MAX; depth++)
		at = topo->pci[at].bridge;
	return depth;
}

/* Finds the bridge above each device. Must be called when all devices are read and sorted. */
static void bridges_link(struct pst_topo *topo, const struct pst_sysfs *fs)
{
	char link[PST_SYSFS_PATH_MAX];
	struct pci_place place;
	unsigned depth;
	size_t i;

	for (i = 0; i < topo->pci_count; i++) {
		struct pst_pci *dev = &topo->pci[i];
		const struct pst_pci *above;

		dev->bridge = -1;
		if (pst_sysfs_link(fs, link, sizeof(link), "sys/bus/pci/devices/%s", dev->bdf) < 0)
			continue;
		pci_place_parse(link, dev->bdf, &place);
		memcpy(dev->host, place.host, sizeof(dev->host));
		above = pst_topo_pci(topo, place.bridge);
		if (above && above != dev)
			dev->bridge = (int32_t)(above - topo->pci);
	}
	for (i = 0; i < topo->pci_count; i++)
		if (pci_depth(topo, i) > PST_TOPO_DEPTH_MAX) {
			topo->pci[i].bridge = -1;
			topo->complete = false;
		}
	for (depth = 0; depth < PST_TOPO_DEPTH_MAX; depth++)
		for (i = 0; i < topo->pci_count; i++)
			if (topo->pci[i].role == PST_PCI_BRIDGE && pci_depth(topo, i) == depth)
				bridge_role_guess(topo, &topo->pci[i]);
}

/* Reads the device with this name in /sys/bus/pci/devices. Skips a name that is not the
 * kernel's spelling of an address. */
static void pci_named_read(struct pst_topo *topo, const struct pst_sysfs *fs, const char *name)
{
	struct pst_pci *dev = &topo->pci[topo->pci_count];

	if (pst_bdf_parse(name, &dev->domain, &dev->bus, &dev->dev, &dev->fn) < 0 ||
	    pst_bdf_normal(name, dev->bdf) < 0 || strcmp(dev->bdf, name) != 0) {
		*dev = (struct pst_pci){0};
		return;
	}
	pci_device_read(topo, fs, dev);
	topo->pci_count++;
}

static int pci_read_one(struct pst_topo *topo, const struct pst_sysfs *fs, const char *bdf)
{
	topo->pci = calloc(1, sizeof(*topo->pci));
	if (!topo->pci)
		return -ENOMEM;
	if (pst_sysfs_exists(fs, "sys/bus/pci/devices/%s", bdf))
		pci_named_read(topo, fs, bdf);
	bridges_link(topo, fs);
	return 0;
}

static int pci_read_all(struct pst_topo *topo, const struct pst_sysfs *fs)
{
	struct pst_names names;
	size_t i;

	if (topo_list(topo, fs, &names, "sys/bus/pci/devices") < 0)
		return 0; /* no error: the machine has no PCI, or a sandbox hides it */
	topo->complete = topo->complete && !names.truncated;
	topo->pci = calloc(names.count + 1, sizeof(*topo->pci));
	for (i = 0; topo->pci && i < names.count; i++)
		pci_named_read(topo, fs, names.name[i]);
	pst_names_free(&names);
	if (!topo->pci)
		return -ENOMEM;
	qsort(topo->pci, topo->pci_count, sizeof(*topo->pci), pci_by_address);
	bridges_link(topo, fs);
	return 0;
}

/* ---- GPUs, drives, NICs ----------------------------------------------------- */

/* Copies up to `len` bytes of `text` to `out`. Truncates the copy to fit in `out`, and replaces
 * unprintable bytes by '?'. */
static void printable_copy(char *out, size_t out_len, const char *text, size_t len)
{
	size_t i;

	for (i = 0; i < len && i < out_len - 1; i++)
		out[i] = text[i] > 0x1f && text[i] < 0x7f ? text[i] : '?';
	out[i] = '\0';
}

/* Adds an entry for a GPU, drive or NIC to the topology's array `ends`. If the array is full or the
 * name is too long, returns NULL and marks the topology incomplete. In the new entry, pci and numa
 * are -1, and the other members are zero. */
static struct pst_end *end_add(struct pst_topo *topo, enum pst_end_kind kind, const char *name)
{
	struct pst_end *end = &topo->ends[topo->end_count];

	if (topo->end_count == PST_TOPO_ENDS_MAX || strlen(name) >= sizeof(end->name)) {
		topo->complete = false;
		return NULL;
	}
	topo->end_count++;
	end->kind = kind;
	printable_copy(end->name, sizeof(end->name), name, strlen(name));
	end->pci = -1;
	end->numa = -1;
	return end;
}

/* Stores in `end` (a GPU, drive or NIC) the index of the PCI function at address `bdf`, and its
 * NUMA node. */
static void end_place(const struct pst_topo *topo, struct pst_end *end, const char *bdf)
{
	const struct pst_pci *dev = pst_topo_pci(topo, bdf);
	int node;

	if (!dev)
		return;
	node = pst_topo_numa_of(topo, bdf);
	end->pci = (int)(dev - topo->pci);
	end->numa = node < 0 ? -1 : node;
}

/* Returns the maker of a GPU; NULL if the device is not a GPU of a known maker. */
static const char *gpu_maker(const struct pst_pci *dev)
{
	unsigned class_ = dev->class_ >> 8;

	/* Classes 0300 and 0302 are display and 3D controllers. Some GPUs of AMD and Intel have
	 * class 0380 (other display controllers) or 1200 (accelerators). */
	if (dev->vendor == 0x10de && (class_ == 0x0300 || class_ == 0x0302))
		return "nvidia";
	if (class_ != 0x0300 && class_ != 0x0302 && class_ != 0x0380 && class_ != 0x1200)
		return NULL;
	return dev->vendor == 0x1002 ? "amd" : dev->vendor == 0x8086 ? "intel" : NULL;
}

/* Reads a GPU's model from a file of NVIDIA's driver in /proc, from the line "Model: \t\t NVIDIA
 * H200". */
static void nvidia_model_read(const struct pst_sysfs *fs, const char *bdf, char *out,
			      size_t out_len)
{
	char *text, *at;

	if (pst_sysfs_file(fs, &text, 65536, "proc/driver/nvidia/gpus/%s/information", bdf) < 0)
		return;
	at = strstr(text, "Model:");
	if (at) {
		at += 6;
		at += strspn(at, " \t");
		printable_copy(out, out_len, at, strcspn(at, "\n"));
	}
	free(text);
}

static void gpus_read(struct pst_topo *topo, const struct pst_sysfs *fs)
{
	char name[32];
	size_t i, count = 0;

	for (i = 0; i < topo->pci_count; i++) {
		const struct pst_pci *dev = &topo->pci[i];
		const char *maker = gpu_maker(dev);
		struct pst_end *end;

		if (!maker)
			continue;
		snprintf(name, sizeof(name), "GPU%zu", count);
		end = end_add(topo, PST_END_GPU, name);
		if (!end)
			return;
		count++;
		snprintf(end->maker, sizeof(end->maker), "%s", maker);
		end_place(topo, end, dev->bdf);
		if (dev->vendor == 0x10de)
			nvidia_model_read(fs, dev->bdf, end->model, sizeof(end->model));
		else
			pst_sysfs_text(fs, end->model, sizeof(end->model),
				       "sys/bus/pci/devices/%s/product_name", dev->bdf);
	}
}

static void nvme_drives_read(struct pst_topo *topo, const struct pst_sysfs *fs)
{
	char link[PST_SYSFS_PATH_MAX], bdf[PST_BDF_LEN];
	struct pst_names names;
	size_t i;

	if (topo_list(topo, fs, &names, "sys/class/nvme") < 0)
		return;
	for (i = 0; i < names.count; i++) {
		const char *name = names.name[i];
		struct pst_end *end;

		if (!pst_part_is(name, strlen(name), "nvme", true))
			continue;
		end = end_add(topo, PST_END_DRIVE, name);
		if (!end)
			break;
		pst_sysfs_text(fs, end->transport, sizeof(end->transport),
			       "sys/class/nvme/%s/transport", name);
		pst_sysfs_text(fs, end->model, sizeof(end->model), "sys/class/nvme/%s/model", name);
		pst_sysfs_text(fs, end->state, sizeof(end->state), "sys/class/nvme/%s/state", name);
		/* An NVMe drive over fabrics (a network) has no PCI device in its path, so its PCI
		 * index stays -1. */
		if (pst_sysfs_link(fs, link, sizeof(link), "sys/class/nvme/%s", name) > 0 &&
		    pst_path_bdf(link, bdf))
			end_place(topo, end, bdf);
	}
	pst_names_free(&names);
}

/* Reads the disks that are not NVMe: virtio, SATA, SCSI. */
static void disks_read(struct pst_topo *topo, const struct pst_sysfs *fs)
{
	char link[PST_SYSFS_PATH_MAX], bdf[PST_BDF_LEN];
	struct pst_names names;
	size_t i;

	if (topo_list(topo, fs, &names, "sys/block") < 0)
		return;
	for (i = 0; i < names.count; i++) {
		const char *name = names.name[i], *transport;
		struct pst_end *end;

		if (pst_part_is(name, strlen(name), "nvme", false) ||
		    pst_sysfs_link(fs, link, sizeof(link), "sys/block/%s", name) < 0 ||
		    strstr(link, "/virtual/"))
			continue;
		transport = pst_disk_transport(fs, link);
		if (!transport[0])
			continue;
		end = end_add(topo, PST_END_DRIVE, name);
		if (!end)
			break;
		snprintf(end->transport, sizeof(end->transport), "%s", transport);
		pst_sysfs_text(fs, end->model, sizeof(end->model), "sys/block/%s/device/model",
			       name);
		if (pst_path_bdf(link, bdf))
			end_place(topo, end, bdf);
	}
	pst_names_free(&names);
}

static void nics_read(struct pst_topo *topo, const struct pst_sysfs *fs)
{
	char text[PST_SYSFS_PATH_MAX], bdf[PST_BDF_LEN];
	struct pst_names names;
	size_t i;

	if (topo_list(topo, fs, &names, "sys/class/infiniband") < 0)
		return;
	for (i = 0; i < names.count; i++) {
		const char *name = names.name[i], *state;
		struct pst_end *end = end_add(topo, PST_END_NIC, name);
		bool software = pst_rdma_is_software(fs, name);

		if (!end)
			break;
		pst_sysfs_text(fs, end->model, sizeof(end->model),
			       "sys/class/infiniband/%s/hca_type", name);
		pst_sysfs_text(fs, end->rate, sizeof(end->rate),
			       "sys/class/infiniband/%s/ports/1/rate", name);
		if (pst_sysfs_text(fs, text, sizeof(text), "sys/class/infiniband/%s/ports/1/state",
				   name) > 0) {
			state = strchr(text, ':'); /* "4: ACTIVE" */
			snprintf(end->state, sizeof(end->state), "%.15s", state ? state + 2 : text);
		}
		text[0] = '\0';
		pst_sysfs_text(fs, text, sizeof(text), "sys/class/infiniband/%s/ports/1/link_layer",
			       name);
		snprintf(end->transport, sizeof(end->transport), "%s",
			 software		       ? "software"
			 : !strcmp(text, "InfiniBand") ? "infiniband"
			 : !strcmp(text, "Ethernet")   ? "ethernet"
						       : "");
		if (!software &&
		    pst_sysfs_link(fs, text, sizeof(text), "sys/class/infiniband/%s", name) > 0 &&
		    pst_path_bdf(text, bdf))
			end_place(topo, end, bdf);
	}
	pst_names_free(&names);
}

static int ends_read(struct pst_topo *topo, const struct pst_sysfs *fs)
{
	topo->ends = calloc(PST_TOPO_ENDS_MAX + 1, sizeof(*topo->ends));
	if (!topo->ends)
		return -ENOMEM;
	gpus_read(topo, fs);
	nvme_drives_read(topo, fs);
	disks_read(topo, fs);
	nics_read(topo, fs);
	return 0;
}

/* ---- open -------------------------------------------------------------------- */

/* Returns the IOMMU mode of the machine, from the IOMMU groups of all devices. */
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

/* Reads the topology. If `near` is not NULL, reads only the device at this address, as
 * pst_topo_open_near does. */
static int topo_read(const char *root, const char *near, struct pst_topo **out, char *why,
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
		online_cpus_read(topo, &fs);
	}
	ret = topo ? nodes_read(topo, &fs) : -ENOMEM;
	if (!ret && !near)
		ret = pci_read_all(topo, &fs);
	else if (!ret && topo->node_count > 1)
		ret = pci_read_one(topo, &fs, near);
	if (!ret && !near)
		ret = ends_read(topo, &fs);
	if (!ret && topo->no_memory)
		ret = -ENOMEM; /* fail, because an incomplete topology would look complete */
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
	return topo_read(root, NULL, out, why, why_len);
}

int pst_topo_open_near(const char *root, const char *bdf, struct pst_topo **out, char *why,
		       size_t why_len)
{
	return topo_read(root, bdf, out, why, why_len);
}
