/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the PCI tree and the GPUs, drives and RDMA NICs in it for topo.c.
 * A device's place in the tree is what its link in /sys/bus/pci/devices says. It
 * must never take an unreadable attribute for a zero, nor follow bridges in a
 * circle.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/machine/sysfs.h"
#include "core/machine/topo.h"

/* ---- the PCI tree ----------------------------------------------------------- */

struct place {
	char host[PST_BDF_LEN];	  /* the outermost host bridge */
	char bridge[PST_BDF_LEN]; /* the device above, "" none */
};

/*
 * "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0". A second host bridge
 * further on is Intel's VMD: its bus has no bridge above, but its outer host.
 */
static void read_place(const char *link, const char *bdf, struct place *place)
{
	char above[PST_BDF_LEN] = "", this[PST_BDF_LEN];
	const char *part;
	size_t len;

	*place = (struct place){0};
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

/* "16.0 GT/s PCIe" in millions of transfers; 0 for "Unknown". */
static uint32_t speed_mts(const char *text)
{
	unsigned whole = 0, tenth = 0;

	if (sscanf(text, "%3u.%1u GT/s", &whole, &tenth) < 1 || !strstr(text, "GT/s"))
		return 0;
	return whole * 1000 + tenth * 100;
}

static uint32_t read_speed(const struct pst_sysfs *fs, const char *bdf, const char *name)
{
	char text[32];

	if (pst_sysfs_text(fs, text, sizeof(text), "sys/bus/pci/devices/%s/%s", bdf, name) < 0)
		return 0;
	return speed_mts(text);
}

/* A number of the device within limits, else `none`. */
static int64_t read_number(const struct pst_sysfs *fs, const char *bdf, const char *name,
			   int64_t min, int64_t max, int64_t none)
{
	int64_t value;

	if (pst_sysfs_number(fs, &value, "sys/bus/pci/devices/%s/%s", bdf, name) < 0 ||
	    value < min || value > max)
		return none;
	return value;
}

/* The largest of the six memory BARs in "start end flags" lines. */
static uint64_t largest_bar(const struct pst_sysfs *fs, const char *bdf)
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

/* The ACS control word; 0 without that capability (id 13, PCIe 7.7.11). */
static int32_t acs_control(const uint8_t *config, size_t len)
{
	unsigned at = 0x100, count;

	/* As an ordinary user, the kernel gives 64 bytes. */
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

/* The port type of the PCI Express capability (id 16); -1: not known. */
static int port_type(const uint8_t *config, size_t len)
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

static void read_bridge(const struct pst_sysfs *fs, struct pst_pci *dev)
{
	uint8_t config[4096];
	ssize_t got = pst_sysfs_bytes(fs, config, sizeof(config), "sys/bus/pci/devices/%s/config",
				      dev->bdf);

	dev->role = PST_PCI_BRIDGE;
	if (got <= 0)
		return;
	dev->acs = acs_control(config, (size_t)got);
	switch (port_type(config, (size_t)got)) {
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

static void read_device(struct pst_topo *topo, const struct pst_sysfs *fs, struct pst_pci *dev)
{
	char list[4096];

	dev->class_ = (uint32_t)read_number(fs, dev->bdf, "class", 0, 0xffffff, 0);
	dev->vendor = (uint16_t)read_number(fs, dev->bdf, "vendor", 0, 0xffff, 0);
	dev->device = (uint16_t)read_number(fs, dev->bdf, "device", 0, 0xffff, 0);
	dev->numa = (int32_t)read_number(fs, dev->bdf, "numa_node", 0, INT32_MAX, -1);
	dev->link_mts = read_speed(fs, dev->bdf, "current_link_speed");
	dev->link_mts_max = read_speed(fs, dev->bdf, "max_link_speed");
	/* 255 is what a device that does not answer reads as. */
	dev->link_width = (uint16_t)read_number(fs, dev->bdf, "current_link_width", 0, 32, 0);
	dev->link_width_max = (uint16_t)read_number(fs, dev->bdf, "max_link_width", 0, 32, 0);
	dev->p2pmem_bytes = (uint64_t)read_number(fs, dev->bdf, "p2pmem/size", 0, INT64_MAX, 0);
	dev->bar_bytes = largest_bar(fs, dev->bdf);
	pst_sysfs_link_name(fs, dev->driver, sizeof(dev->driver), "sys/bus/pci/devices/%s/driver",
			    dev->bdf);
	if (pst_sysfs_text(fs, list, sizeof(list), "sys/bus/pci/devices/%s/local_cpulist",
			   dev->bdf) > 0) {
		struct pst_cpus cpus;

		if (!pst_cpus_parse(list, &cpus))
			dev->cpulist = pst_topo_copy(topo, list);
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
		read_bridge(fs, dev);
}

static int by_address(const void *a, const void *b)
{
	const struct pst_pci *x = a, *y = b;

	if (x->domain != y->domain)
		return x->domain < y->domain ? -1 : 1;
	return (x->bus << 16 | x->dev << 8 | x->fn) - (y->bus << 16 | y->dev << 8 | y->fn);
}

/* Which port it is where config space did not say: they alternate downwards. */
static void guess_role(struct pst_topo *topo, struct pst_pci *dev)
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

/* How deep below its host bridge; more than the limit: a circle, or as bad. */
static unsigned depth_of(const struct pst_topo *topo, size_t index)
{
	unsigned depth = 0;
	int at;

	for (at = topo->pci[index].bridge; at >= 0 && depth <= PST_TOPO_DEPTH_MAX; depth++)
		at = topo->pci[at].bridge;
	return depth;
}

/* Second pass, when all are known and sorted: who is above whom. */
static void link_up(struct pst_topo *topo, const struct pst_sysfs *fs)
{
	char link[PST_SYSFS_PATH_MAX];
	struct place place;
	unsigned depth;
	size_t i;

	for (i = 0; i < topo->pci_count; i++) {
		struct pst_pci *dev = &topo->pci[i];
		const struct pst_pci *above;

		dev->bridge = -1;
		if (pst_sysfs_link(fs, link, sizeof(link), "sys/bus/pci/devices/%s", dev->bdf) < 0)
			continue;
		read_place(link, dev->bdf, &place);
		memcpy(dev->host, place.host, sizeof(dev->host));
		above = pst_topo_pci(topo, place.bridge);
		if (above && above != dev)
			dev->bridge = (int32_t)(above - topo->pci);
	}
	for (i = 0; i < topo->pci_count; i++)
		if (depth_of(topo, i) > PST_TOPO_DEPTH_MAX) {
			topo->pci[i].bridge = -1;
			topo->complete = false;
		}
	for (depth = 0; depth < PST_TOPO_DEPTH_MAX; depth++)
		for (i = 0; i < topo->pci_count; i++)
			if (topo->pci[i].role == PST_PCI_BRIDGE && depth_of(topo, i) == depth)
				guess_role(topo, &topo->pci[i]);
}

/* What is no device's name is passed over. */
static void read_named(struct pst_topo *topo, const struct pst_sysfs *fs, const char *name)
{
	struct pst_pci *dev = &topo->pci[topo->pci_count];

	if (pst_bdf_parse(name, &dev->domain, &dev->bus, &dev->dev, &dev->fn) < 0 ||
	    pst_bdf_normal(name, dev->bdf) < 0 || strcmp(dev->bdf, name) != 0) {
		*dev = (struct pst_pci){0};
		return;
	}
	read_device(topo, fs, dev);
	topo->pci_count++;
}

int pst_topo_read_one(struct pst_topo *topo, const struct pst_sysfs *fs, const char *bdf)
{
	topo->pci = calloc(1, sizeof(*topo->pci));
	if (!topo->pci)
		return -ENOMEM;
	if (pst_sysfs_exists(fs, "sys/bus/pci/devices/%s", bdf))
		read_named(topo, fs, bdf);
	link_up(topo, fs);
	return 0;
}

int pst_topo_read_pci(struct pst_topo *topo, const struct pst_sysfs *fs)
{
	struct pst_names names;
	size_t i;

	if (pst_topo_list(topo, fs, &names, "sys/bus/pci/devices") < 0)
		return 0; /* a machine without PCI, or a sandbox that shows none */
	topo->complete = topo->complete && !names.cut;
	topo->pci = calloc(names.count + 1, sizeof(*topo->pci));
	for (i = 0; topo->pci && i < names.count; i++)
		read_named(topo, fs, names.name[i]);
	pst_names_free(&names);
	if (!topo->pci)
		return -ENOMEM;
	qsort(topo->pci, topo->pci_count, sizeof(*topo->pci), by_address);
	link_up(topo, fs);
	return 0;
}

/* ---- GPUs, drives, NICs ----------------------------------------------------- */

/* Up to `len` bytes of text, cut to fit, with '?' for what cannot be printed. */
static void copy_plain(char *out, size_t out_len, const char *text, size_t len)
{
	size_t i;

	for (i = 0; i < len && i < out_len - 1; i++)
		out[i] = text[i] > 0x1f && text[i] < 0x7f ? text[i] : '?';
	out[i] = '\0';
}

/* Room for one more, already zeroed, or NULL when the limit is reached. */
static struct pst_end *add_end(struct pst_topo *topo, enum pst_end_kind kind, const char *name)
{
	struct pst_end *end = &topo->ends[topo->end_count];

	if (topo->end_count == PST_TOPO_ENDS_MAX || strlen(name) >= sizeof(end->name)) {
		topo->complete = false;
		return NULL;
	}
	topo->end_count++;
	end->kind = kind;
	copy_plain(end->name, sizeof(end->name), name, strlen(name));
	end->pci = -1;
	end->numa = -1;
	return end;
}

static void place_end(const struct pst_topo *topo, struct pst_end *end, const char *bdf)
{
	const struct pst_pci *dev = pst_topo_pci(topo, bdf);
	int node;

	if (!dev)
		return;
	node = pst_topo_numa_of(topo, bdf);
	end->pci = (int)(dev - topo->pci);
	end->numa = node < 0 ? -1 : node;
}

static const char *gpu_maker(const struct pst_pci *dev)
{
	unsigned class_ = dev->class_ >> 8;

	/* Display and 3D controllers; AMD and Intel also sell GPUs that call
	 * themselves other displays (0380) and accelerators (1200). */
	if (dev->vendor == 0x10de && (class_ == 0x0300 || class_ == 0x0302))
		return "nvidia";
	if (class_ != 0x0300 && class_ != 0x0302 && class_ != 0x0380 && class_ != 0x1200)
		return NULL;
	return dev->vendor == 0x1002 ? "amd" : dev->vendor == 0x8086 ? "intel" : NULL;
}

/* "Model: \t\t NVIDIA H200" of the driver's own page. */
static void nvidia_model(const struct pst_sysfs *fs, const char *bdf, char *out, size_t out_len)
{
	char *text, *at;

	if (pst_sysfs_file(fs, &text, 65536, "proc/driver/nvidia/gpus/%s/information", bdf) < 0)
		return;
	at = strstr(text, "Model:");
	if (at) {
		at += 6;
		at += strspn(at, " \t");
		copy_plain(out, out_len, at, strcspn(at, "\n"));
	}
	free(text);
}

static void read_gpus(struct pst_topo *topo, const struct pst_sysfs *fs)
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
		end = add_end(topo, PST_END_GPU, name);
		if (!end)
			return;
		count++;
		snprintf(end->maker, sizeof(end->maker), "%s", maker);
		place_end(topo, end, dev->bdf);
		if (dev->vendor == 0x10de)
			nvidia_model(fs, dev->bdf, end->model, sizeof(end->model));
		else
			pst_sysfs_text(fs, end->model, sizeof(end->model),
				       "sys/bus/pci/devices/%s/product_name", dev->bdf);
	}
}

static void read_nvme(struct pst_topo *topo, const struct pst_sysfs *fs)
{
	char link[PST_SYSFS_PATH_MAX], bdf[PST_BDF_LEN];
	struct pst_names names;
	size_t i;

	if (pst_topo_list(topo, fs, &names, "sys/class/nvme") < 0)
		return;
	for (i = 0; i < names.count; i++) {
		const char *name = names.name[i];
		struct pst_end *end;

		if (!pst_part_is(name, strlen(name), "nvme", true))
			continue;
		end = add_end(topo, PST_END_DRIVE, name);
		if (!end)
			break;
		pst_sysfs_text(fs, end->transport, sizeof(end->transport),
			       "sys/class/nvme/%s/transport", name);
		pst_sysfs_text(fs, end->model, sizeof(end->model), "sys/class/nvme/%s/model", name);
		pst_sysfs_text(fs, end->state, sizeof(end->state), "sys/class/nvme/%s/state", name);
		/* Over fabrics the path has no PCI device of the drive's own. */
		if (pst_sysfs_link(fs, link, sizeof(link), "sys/class/nvme/%s", name) > 0 &&
		    pst_path_bdf(link, bdf))
			place_end(topo, end, bdf);
	}
	pst_names_free(&names);
}

/* Disks on PCI that are not NVMe: virtio, SATA, SCSI. */
static void read_disks(struct pst_topo *topo, const struct pst_sysfs *fs)
{
	char link[PST_SYSFS_PATH_MAX], bdf[PST_BDF_LEN];
	struct pst_names names;
	size_t i;

	if (pst_topo_list(topo, fs, &names, "sys/block") < 0)
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
		end = add_end(topo, PST_END_DRIVE, name);
		if (!end)
			break;
		snprintf(end->transport, sizeof(end->transport), "%s", transport);
		pst_sysfs_text(fs, end->model, sizeof(end->model), "sys/block/%s/device/model",
			       name);
		if (pst_path_bdf(link, bdf))
			place_end(topo, end, bdf);
	}
	pst_names_free(&names);
}

static void read_nics(struct pst_topo *topo, const struct pst_sysfs *fs)
{
	char text[PST_SYSFS_PATH_MAX], bdf[PST_BDF_LEN];
	struct pst_names names;
	size_t i;

	if (pst_topo_list(topo, fs, &names, "sys/class/infiniband") < 0)
		return;
	for (i = 0; i < names.count; i++) {
		const char *name = names.name[i], *state;
		struct pst_end *end = add_end(topo, PST_END_NIC, name);
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
			place_end(topo, end, bdf);
	}
	pst_names_free(&names);
}

int pst_topo_read_ends(struct pst_topo *topo, const struct pst_sysfs *fs)
{
	topo->ends = calloc(PST_TOPO_ENDS_MAX + 1, sizeof(*topo->ends));
	if (!topo->ends)
		return -ENOMEM;
	read_gpus(topo, fs);
	read_nvme(topo, fs);
	read_disks(topo, fs);
	read_nics(topo, fs);
	return 0;
}
