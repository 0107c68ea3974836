/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads which block devices are below a device number: follows /sys from layer to layer down to the
 * drives, and records each layer. This happens when a file is opened as a storage, in `penstock
 * explain` and in `penstock check`. blockstack_verdict.c decides whether the result is on the
 * allow-list. The walk must never loop on a cycle, go deeper than PST_STACK_DEPTH_MAX, or omit a
 * layer without recording that.
 */
#include "storage/blockstack.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/machine/sysfs.h"
#include "core/machine/topo.h"
#include "core/machine/topo_disk.h"
#include "storage/dmtable.h"

_Static_assert(sizeof(((struct pst_stack_drive *)0)->transport) ==
		       sizeof(((struct pst_layer *)0)->detail),
	       "a drive's transport is its layer's detail");

#define MOUNTINFO_MAX (16u << 20)

struct stack_walk {
	struct pst_sysfs fs;
	struct pst_blockstack *stack;
	int64_t memory_bytes; /* Bytes of the machine's memory; 0 if that is unknown. */
	/* Target of the /sys link of the layer that is being visited. */
	char link[PST_SYSFS_PATH_MAX];
};

/* Marks the block stack as incomplete, with a reason. If there are several reasons, the first one
 * is kept. */
__attribute__((format(printf, 2, 3))) static void stack_lose(struct pst_blockstack *stack,
							     const char *fmt, ...)
{
	va_list args;

	if (!stack->complete)
		return;
	stack->complete = false;
	va_start(args, fmt);
	vsnprintf(stack->lost, sizeof(stack->lost), fmt, args);
	va_end(args);
}

/* Appends a layer to the list of layers to visit, unless the list contains it already. `above` is
 * the index of the layer whose /sys entries name the new layer. */
static void layer_add(struct stack_walk *w, const char *name, int above)
{
	struct pst_blockstack *stack = w->stack;
	unsigned depth = above < 0 ? 0 : stack->layers[above].depth + 1u;
	struct pst_layer *layer;
	unsigned i;
	int at;

	for (i = 0; i < stack->layer_count; i++)
		if (!strcmp(stack->layers[i].name, name)) {
			/* If a layer occurs twice, that is a cycle only if the layer is above
			 * itself. Two partitions of one disk below an array are no cycle. */
			for (at = above; at >= 0; at = stack->layers[at].above)
				if (at == (int)i)
					stack_lose(stack, "%s is stacked on itself", name);
			return;
		}
	if (strlen(name) >= sizeof(layer->name) || !name[0]) {
		stack_lose(stack, "a block device has an invalid name");
		return;
	}
	if (depth >= PST_STACK_DEPTH_MAX || stack->layer_count == PST_LAYERS_MAX) {
		stack_lose(stack, "more layers than the limit");
		return;
	}
	layer = &stack->layers[stack->layer_count++];
	*layer = (struct pst_layer){.depth = (uint8_t)depth, .above = (int8_t)above};
	memcpy(layer->name, name, strlen(name));
}

/* ---- facts of a drive ------------------------------------------------------- */

static uint32_t queue_attribute(struct stack_walk *w, const char *name, const char *what,
				int64_t max, int64_t add)
{
	int64_t value;

	if (pst_sysfs_number(&w->fs, &value, "sys/class/block/%s/queue/%s", name, what) < 0 ||
	    value < 0 || value > max)
		return 0;
	return (uint32_t)(value + add);
}

/*
 * Returns false if the drive's DMA addresses have too few bits for all memory of this machine. In
 * that case the kernel copies through memory at low addresses, unless an IOMMU translates
 * addresses. A stack with such a drive is not on the allow-list.
 */
static bool drive_reaches_all(struct stack_walk *w, const char *bdf)
{
	char group[32], type[16] = "";
	int64_t bits;

	if (pst_sysfs_number(&w->fs, &bits, "sys/bus/pci/devices/%s/dma_mask_bits", bdf) < 0 ||
	    bits < 1 || bits > 62 || !w->memory_bytes)
		return true;
	if (pst_sysfs_link_name(&w->fs, group, sizeof(group), "sys/bus/pci/devices/%s/iommu_group",
				bdf) > 0)
		pst_sysfs_text(&w->fs, type, sizeof(type), "sys/kernel/iommu_groups/%s/type",
			       group);
	if (!strncmp(type, "DMA", 3))
		return true;
	/* Up to 1 GiB of the address space below 4 GiB is not memory. So the highest memory
	 * address may exceed the size of the memory by up to 1 GiB. */
	return w->memory_bytes + (1LL << 30) <= 1LL << bits;
}

/* Records the drive of layer `index`. layer->detail already contains the drive's transport, such as
 * "pcie". */
static void drive_add(struct stack_walk *w, int index, const char *controller)
{
	struct pst_blockstack *stack = w->stack;
	struct pst_layer *layer = &stack->layers[index];
	struct pst_stack_drive *drive;
	int64_t value;

	if (stack->drive_count == PST_STACK_DRIVES_MAX) {
		stack_lose(stack, "more than %d drives", PST_STACK_DRIVES_MAX);
		return;
	}
	drive = &stack->drives[stack->drive_count++];
	*drive = (struct pst_stack_drive){.numa = -1, .layer = index, .rotational = -1};
	memcpy(drive->name, layer->name, sizeof(drive->name));
	memcpy(drive->transport, layer->detail, sizeof(drive->transport));
	if (controller)
		pst_sysfs_text(&w->fs, drive->model, sizeof(drive->model),
			       "sys/class/nvme/%s/model", controller);
	else
		pst_sysfs_text(&w->fs, drive->model, sizeof(drive->model),
			       "sys/class/block/%s/device/model", layer->name);
	if (pst_path_bdf(w->link, drive->bdf) &&
	    pst_sysfs_number(&w->fs, &value, "sys/bus/pci/devices/%s/numa_node", drive->bdf) >= 0 &&
	    value >= 0 && value < PST_NODES_MAX)
		drive->numa = (int)value;
	if (drive->bdf[0] && !drive_reaches_all(w, drive->bdf))
		stack->swiotlb = "a drive cannot address all of the memory";
	drive->logical_block = queue_attribute(w, layer->name, "logical_block_size", 1 << 20, 0);
	drive->dma_align = queue_attribute(w, layer->name, "dma_alignment", 1 << 20, 1);
	if (pst_sysfs_number(&w->fs, &value, "sys/class/block/%s/queue/rotational", layer->name) >=
	    0)
		drive->rotational = !!value;
	if (drive->logical_block > stack->logical_block_max)
		stack->logical_block_max = drive->logical_block;
	if (drive->dma_align > stack->dma_align_max)
		stack->dma_align_max = drive->dma_align;
}

/* ---- layers with other layers below ------------------------------------------- */

static unsigned slaves_add(struct stack_walk *w, int index)
{
	char name[sizeof(w->stack->layers[0].name)];
	struct pst_names names;
	unsigned count;
	size_t i;

	memcpy(name, w->stack->layers[index].name, sizeof(name));
	if (pst_sysfs_list(&w->fs, &names, "sys/class/block/%s/slaves", name) < 0 ||
	    names.truncated) {
		stack_lose(w->stack, "the devices below %s cannot be read", name);
		return 0;
	}
	for (i = 0; i < names.count; i++)
		layer_add(w, names.name[i], index);
	count = (unsigned)names.count;
	pst_names_free(&names);
	if (!count)
		stack_lose(w->stack, "%s names no device below it", name);
	return count;
}

static void partition_visit(struct stack_walk *w, int index)
{
	const char *path = w->link, *part, *disk = NULL, *last = NULL;
	size_t len, disk_len = 0, last_len = 0;
	char name[PST_SYSFS_PATH_MAX];

	w->stack->layers[index].kind = PST_LAYER_PARTITION;
	while (pst_path_next(&path, &part, &len)) {
		disk = last;
		disk_len = last_len;
		last = part;
		last_len = len;
	}
	if (!disk) {
		stack_lose(w->stack, "the disk of %s is not in its path",
			   w->stack->layers[index].name);
		return;
	}
	snprintf(name, sizeof(name), "%.*s", (int)disk_len, disk);
	layer_add(w, name, index);
}

static void md_visit(struct stack_walk *w, int index)
{
	struct pst_layer *layer = &w->stack->layers[index];
	int64_t chunk;

	pst_sysfs_text(&w->fs, layer->detail, sizeof(layer->detail), "sys/class/block/%s/md/level",
		       layer->name);
	layer->kind = !strcmp(layer->detail, "linear")	 ? PST_LAYER_LINEAR
		      : !strcmp(layer->detail, "raid0")	 ? PST_LAYER_RAID0
		      : !strcmp(layer->detail, "raid1")	 ? PST_LAYER_RAID1
		      : !strcmp(layer->detail, "raid10") ? PST_LAYER_RAID10
		      : !strcmp(layer->detail, "raid4")	 ? PST_LAYER_RAID456
		      : !strcmp(layer->detail, "raid5")	 ? PST_LAYER_RAID456
		      : !strcmp(layer->detail, "raid6")	 ? PST_LAYER_RAID456
							 : PST_LAYER_MD_OTHER;
	if ((layer->kind == PST_LAYER_RAID0 || layer->kind == PST_LAYER_RAID10) &&
	    !w->stack->stripe_bytes &&
	    pst_sysfs_number(&w->fs, &chunk, "sys/class/block/%s/md/chunk_size", layer->name) >=
		    0 &&
	    chunk > 0)
		w->stack->stripe_bytes = (uint64_t)chunk;
	slaves_add(w, index);
}

/*
 * Guesses the kind of an LVM volume in a process that may not read the device-mapper table. Every
 * kind except linear and striped has hidden LVM volumes below it, whose uuid also begins with
 * "LVM-". So a volume without a hidden volume below it is linear or striped, and counts as linear.
 */
static void lvm_guess(struct stack_walk *w, const char *name, const char *own, struct pst_dm *dm)
{
	struct pst_names names;
	char uuid[160];
	size_t i;

	dm->kind = PST_LAYER_DM_OTHER;
	snprintf(dm->detail, sizeof(dm->detail), "lvm");
	/* A second '-' in the uuid marks a hidden volume, and the suffix after it names the
	 * volume's kind. This code recognises only "-tpool", a thin pool. */
	if (strchr(own + 4, '-')) {
		if (!strcmp(strrchr(own, '-'), "-tpool"))
			dm->kind = PST_LAYER_DM_THIN;
		return;
	}
	if (pst_sysfs_list(&w->fs, &names, "sys/class/block/%s/slaves", name) < 0)
		return;
	if (names.count && !names.truncated)
		dm->kind = PST_LAYER_LINEAR;
	for (i = 0; i < names.count; i++) {
		const char *end;

		uuid[0] = '\0';
		pst_sysfs_text(&w->fs, uuid, sizeof(uuid), "sys/class/block/%s/dm/uuid",
			       names.name[i]);
		if (strncmp(uuid, "LVM-", 4) &&
		    (uuid[0] || !pst_sysfs_exists(&w->fs, "sys/class/block/%s/dm", names.name[i])))
			continue;
		end = strrchr(uuid, '-');
		if (dm->kind != PST_LAYER_DM_THIN)
			dm->kind = end && !strcmp(end, "-tpool") ? PST_LAYER_DM_THIN
								 : PST_LAYER_DM_OTHER;
	}
	pst_names_free(&names);
}

static void dm_visit(struct stack_walk *w, int index)
{
	struct pst_layer *layer = &w->stack->layers[index];
	char text[160] = "";
	unsigned major, minor;
	struct pst_dm dm;

	if (pst_sysfs_text(&w->fs, text, sizeof(text), "sys/class/block/%s/dev", layer->name) < 0 ||
	    sscanf(text, "%9u:%9u", &major, &minor) != 2 ||
	    pst_dm_read(&w->fs, layer->name, major, minor, &dm) < 0) {
		text[0] = '\0';
		pst_sysfs_text(&w->fs, text, sizeof(text), "sys/class/block/%s/dm/uuid",
			       layer->name);
		pst_dm_by_uuid(text, &dm);
		if (dm.kind == PST_LAYER_UNKNOWN)
			lvm_guess(w, layer->name, text, &dm);
	}
	layer->kind = dm.kind;
	memcpy(layer->detail, dm.detail, sizeof(dm.detail));
	if (!w->stack->stripe_bytes)
		w->stack->stripe_bytes = dm.stripe_bytes;
	slaves_add(w, index);
}

/* ---- NVMe ------------------------------------------------------------------- */

/* Visits an NVMe namespace whose /sys path contains its only controller, such as
 * ".../nvme/nvme3/nvme3n1", where nvme3 is the controller. */
static void nvme_visit(struct stack_walk *w, int index)
{
	struct pst_layer *layer = &w->stack->layers[index];
	const char *path = w->link, *part, *last = NULL, *above = NULL;
	size_t len, above_len = 0, last_len = 0;
	char controller[32] = "";

	layer->kind = PST_LAYER_NVME;
	while (pst_path_next(&path, &part, &len)) {
		above = last;
		above_len = last_len;
		last = part;
		last_len = len;
	}
	if (above && above_len < sizeof(controller) && pst_part_is(above, above_len, "nvme", true))
		snprintf(controller, sizeof(controller), "%.*s", (int)above_len, above);
	else
		stack_lose(w->stack, "the controller of %s is not in its path", layer->name);
	pst_sysfs_text(&w->fs, layer->detail, 16, "sys/class/nvme/%s/transport", controller);
	drive_add(w, index, controller);
}

/*
 * Visits a namespace of native NVMe multipath, such as "nvme1n2". Several controllers may lead to
 * it, so its /sys path contains no controller. For each controller C, /sys has a hidden disk
 * "nvme1cCn2", which becomes a layer below.
 */
static void nvme_head_visit(struct stack_walk *w, int index)
{
	struct pst_layer *layer = &w->stack->layers[index];
	const char *subsystem = pst_path_find(w->link, "nvme-subsys", true);
	unsigned instance, space, count = 0;
	struct pst_names names;
	char path[64];
	int behind = 0;
	size_t i;

	layer->kind = PST_LAYER_NVME_MULTIPATH;
	if (!subsystem || sscanf(layer->name, "nvme%9un%9u%n", &instance, &space, &behind) != 2 ||
	    layer->name[behind] ||
	    pst_sysfs_list(&w->fs, &names, "sys/class/nvme-subsystem/%.*s",
			   (int)strcspn(subsystem, "/"), subsystem) < 0) {
		stack_lose(w->stack, "the subsystem of %s cannot be read", layer->name);
		return;
	}
	for (i = 0; i < names.count; i++) {
		const char *name = names.name[i];

		if (!pst_part_is(name, strlen(name), "nvme", true) || strlen(name) > 16)
			continue;
		snprintf(path, sizeof(path), "nvme%uc%sn%u", instance, name + 4, space);
		if (!pst_sysfs_exists(&w->fs, "sys/class/block/%s", path))
			continue;
		layer_add(w, path, index);
		count++;
	}
	if (names.truncated || !count)
		stack_lose(w->stack, "no path of %s is visible", layer->name);
	pst_names_free(&names);
}

/* ---- one layer -------------------------------------------------------------- */

/* Returns the kind of a device if its name alone tells the kind, else PST_LAYER_UNKNOWN. */
static enum pst_layer_kind layer_kind_by_name(const char *name)
{
	static const struct {
		const char *prefix;
		enum pst_layer_kind kind;
	} names[] = {
		{"loop", PST_LAYER_LOOP},  {"zram", PST_LAYER_ZRAM},
		{"ram", PST_LAYER_BRD},	   {"nullb", PST_LAYER_NULL_BLK},
		{"nbd", PST_LAYER_NBD},	   {"rbd", PST_LAYER_RBD},
		{"ublkb", PST_LAYER_UBLK}, {"pmem", PST_LAYER_PMEM},
		{"zd", PST_LAYER_ZVOL},	   {"xvd", PST_LAYER_XEN},
		{"mmcblk", PST_LAYER_MMC}, {"bcache", PST_LAYER_BCACHE},
		{"drbd", PST_LAYER_DRBD},
	};
	size_t i;

	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (pst_part_is(name, strlen(name), names[i].prefix, false))
			return names[i].kind;
	return PST_LAYER_UNKNOWN;
}

static void leaf_visit(struct stack_walk *w, int index)
{
	struct pst_layer *layer = &w->stack->layers[index];
	const char *transport = "";

	layer->kind = layer_kind_by_name(layer->name);
	if (layer->kind == PST_LAYER_UNKNOWN) {
		transport = pst_disk_transport(&w->fs, w->link);
		if (!strcmp(transport, "virtio"))
			layer->kind = PST_LAYER_VIRTIO_BLK;
		else if (transport[0] || pst_part_is(layer->name, strlen(layer->name), "sd", false))
			layer->kind = PST_LAYER_SCSI;
		snprintf(layer->detail, sizeof(layer->detail), "%s", transport);
	}
	drive_add(w, index, NULL);
}

static void layer_visit(struct stack_walk *w, int index)
{
	const char *name = w->stack->layers[index].name;

	if (pst_sysfs_link(&w->fs, w->link, sizeof(w->link), "sys/class/block/%s", name) < 0) {
		stack_lose(w->stack, "%s is not in /sys/class/block", name);
		return;
	}
	if (pst_sysfs_exists(&w->fs, "sys/class/block/%s/partition", name))
		partition_visit(w, index);
	else if (pst_sysfs_exists(&w->fs, "sys/class/block/%s/md", name))
		md_visit(w, index);
	else if (pst_sysfs_exists(&w->fs, "sys/class/block/%s/dm", name))
		dm_visit(w, index);
	else if (strstr(w->link, "/nvme-subsystem/"))
		nvme_head_visit(w, index);
	else if (pst_part_is(name, strlen(name), "nvme", false))
		nvme_visit(w, index);
	else if (layer_kind_by_name(name) == PST_LAYER_BCACHE) {
		w->stack->layers[index].kind = PST_LAYER_BCACHE;
		slaves_add(w, index);
	} else
		leaf_visit(w, index);
}

/* ---- the machine --------------------------------------------------------------- */

/* Returns whether the kernel's command line makes all DMA go through copies (swiotlb). Accepts
 * "swiotlb=force" and "swiotlb=65536,force", but not the value "noforce". */
static bool cmdline_forces_swiotlb(const char *cmdline)
{
	const char *at = cmdline;

	while ((at = strstr(at, "swiotlb="))) {
		size_t len = strcspn(at, " \n");
		bool word = at == cmdline || at[-1] == ' ';

		if (word && len >= 13 && !strncmp(at + len - 5, "force", 5) &&
		    (at[len - 6] == '=' || at[len - 6] == ','))
			return true;
		at += len;
	}
	return false;
}

static void machine_read(struct stack_walk *w)
{
	struct pst_names names;
	bool hardware = false, software = false;
	char *text, *at;
	size_t i;

	if (pst_sysfs_file(&w->fs, &text, 65536, "proc/cmdline") >= 0) {
		if (cmdline_forces_swiotlb(text))
			w->stack->swiotlb = "swiotlb=force is on the kernel's command line";
		free(text);
	}
	/* In a confidential guest, devices can access only memory that is shared with the host. So
	 * the kernel copies all bytes through such memory. */
	if (pst_sysfs_exists(&w->fs, "sys/class/misc/tdx_guest") ||
	    pst_sysfs_exists(&w->fs, "sys/class/misc/sev-guest"))
		w->stack->swiotlb = "the memory of this guest is encrypted";
	if (pst_sysfs_file(&w->fs, &text, 65536, "proc/meminfo") >= 0) {
		at = strstr(text, "MemTotal:");
		w->memory_bytes = at ? strtoll(at + 9, NULL, 10) : 0;
		w->memory_bytes = w->memory_bytes < 1LL << 50 ? w->memory_bytes * 1024 : 0;
		free(text);
	}
	if (pst_sysfs_list(&w->fs, &names, "sys/class/infiniband") >= 0) {
		for (i = 0; i < names.count; i++)
			if (pst_rdma_is_software(&w->fs, names.name[i]))
				software = true;
			else
				hardware = true;
		pst_names_free(&names);
	}
	w->stack->rdma_software = software || !hardware;
}

static int mount_read(struct stack_walk *w, const struct pst_blockstack_in *in)
{
	struct pst_blockstack *stack = w->stack;
	struct pst_mount_key key = {.id = in->mount_id,
				    .point = in->mount_point,
				    .has_dev = true,
				    .major = in->major,
				    .minor = in->minor};
	char *text;
	ssize_t len = pst_sysfs_file(&w->fs, &text, MOUNTINFO_MAX, "proc/self/mountinfo");

	if (len < 0) {
		stack_lose(stack, "the mount table cannot be read");
		stack->mount.fs = pst_fs_by_magic(in->fs_magic);
		return (int)len;
	}
	stack->mounted = !pst_mount_find(text, (size_t)len, &key, &stack->mount);
	free(text);
	if (!stack->mounted)
		stack->mount.fs = pst_fs_by_magic(in->fs_magic);
	else if (!pst_fs_magic_fits(stack->mount.fs, in->fs_magic))
		stack_lose(stack, "the mount table says %s, statfs says 0x%llx", stack->mount.type,
			   (unsigned long long)in->fs_magic);
	else if ((stack->mount.fs == PST_FS_EXT4 || stack->mount.fs == PST_FS_XFS) &&
		 (stack->mount.major != in->major || stack->mount.minor != in->minor))
		stack_lose(stack, "the file is not on the device of its mount");
	return 0;
}

/* Finds the name of the block device that the file system is on. Returns false if the file
 * system has none. */
static bool top_device_name(struct stack_walk *w, const struct pst_blockstack_in *in, char *name,
			    size_t len)
{
	const char *source = w->stack->mount.source;

	if (in->major) {
		if (pst_sysfs_link_name(&w->fs, name, len, "sys/dev/block/%u:%u", in->major,
					in->minor) > 0)
			return true;
		stack_lose(w->stack, "device %u:%u is not in /sys/dev/block", in->major, in->minor);
		return false;
	}
	/* The device number of a btrfs file is not that of a block device, so the name is taken
	 * from the mount table's source, such as "/dev/nvme0n1". */
	if (w->stack->mount.fs != PST_FS_BTRFS || strncmp(source, "/dev/", 5) ||
	    strchr(source + 5, '/') || strlen(source + 5) >= len)
		return false;
	memcpy(name, source + 5, strlen(source + 5) + 1);
	return true;
}

/* Reads all options of ext4 from /proc/fs, because the mount table omits options that are
 * defaults. */
static void ext4_options_read(struct stack_walk *w, const char *device)
{
	char *text;

	if (pst_sysfs_file(&w->fs, &text, 65536, "proc/fs/ext4/%s/options", device) < 0)
		return;
	pst_mount_ext4_options(text, &w->stack->mount);
	free(text);
}

int pst_blockstack_read(const char *root, const struct pst_blockstack_in *in,
			struct pst_blockstack *out)
{
	char name[PST_SYSFS_PATH_MAX];
	struct stack_walk w = {.stack = out};
	unsigned i;
	int ret;

	*out = (struct pst_blockstack){.complete = true, .rdma_software = true};
	ret = pst_sysfs_open(&w.fs, root);
	if (ret < 0) {
		stack_lose(out, "%s cannot be opened", root && root[0] ? root : "/");
		return ret;
	}
	machine_read(&w);
	if (in->is_block)
		out->mount.fs = PST_FS_RAW_BLOCK;
	else
		ret = mount_read(&w, in);
	if (top_device_name(&w, in, name, sizeof(name))) {
		if (out->mounted && out->mount.fs == PST_FS_EXT4)
			ext4_options_read(&w, name);
		layer_add(&w, name, -1);
	}
	/* A visit may append layers to the list, so the loop also visits these, and walks the
	 * tree breadth first. */
	for (i = 0; i < out->layer_count; i++)
		layer_visit(&w, (int)i);
	pst_sysfs_close(&w.fs);
	return ret;
}
