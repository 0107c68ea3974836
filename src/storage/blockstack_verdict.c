/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Judges a block stack: the file system and the block devices below a file. The allow-list in this
 * file names the file systems and devices for which O_DIRECT means that a drive's DMA engine moves
 * the bytes. For every other stack, the code gives a sentence with the reason. file_facts.c,
 * `penstock explain` and `penstock check` call it. The functions have no side effects. A layer that
 * is unknown or not in the tables below must never pass.
 */
#include <linux/fs.h>
#include <linux/stat.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "storage/blockstack_verdict.h"

/* ---- the lists -------------------------------------------------------------- */

/* The allow-list of file systems for direct transfers. Each entry is the reason why the file system
 * is not allowed. NULL means that it is allowed if its mount options pass, too. */
static const char *const fs_why[PST_FS_KINDS] = {
	[PST_FS_OTHER] = "this file system is not on the list of those known to be direct",
	[PST_FS_RAW_BLOCK] = NULL,
	[PST_FS_EXT4] = NULL,
	[PST_FS_XFS] = NULL,
	[PST_FS_BTRFS] = "compressed or checksummed data quietly takes the page cache",
	[PST_FS_TMPFS] = "the bytes live in memory, the CPU copies them",
	[PST_FS_RAMFS] = "the bytes live in memory, the CPU copies them",
	[PST_FS_OVERLAY] = "the file beneath it and that file's drives are not visible",
	[PST_FS_FUSE] = "a user-space process hands over every byte",
	[PST_FS_VIRTIOFS] = "the host's file server hands over every byte",
	[PST_FS_9P] = "the server's messages are copied by the CPU",
	[PST_FS_NFS] = "the CPU copies every byte out of socket buffers",
	[PST_FS_NFS_RDMA] = "whether the NIC writes the destination itself is not known",
	[PST_FS_LUSTRE] = "whether its client copies is not known",
	[PST_FS_WEKAFS] = "whether its client copies is not known",
	[PST_FS_GPFS] = "whether its client copies is not known",
	[PST_FS_BEEGFS] = "whether its client copies is not known",
	[PST_FS_ZFS] = "the CPU checksums every byte and copies it through a cache of its own",
};

static const struct {
	const char *name;
	const char *why; /* reason why the layer is not on the allow-list; NULL if it is */
} layers[PST_LAYER_KINDS] = {
	[PST_LAYER_UNKNOWN] = {"unknown", "this kind of block device is not known"},
	[PST_LAYER_PARTITION] = {"partition", NULL},
	[PST_LAYER_LINEAR] = {"linear", NULL},
	[PST_LAYER_RAID0] = {"raid0", NULL},
	[PST_LAYER_RAID1] = {"raid1", NULL},
	[PST_LAYER_RAID10] = {"raid10", NULL},
	[PST_LAYER_RAID456] = {"raid456", "the CPU copies through a stripe cache for parity"},
	[PST_LAYER_NVME_MULTIPATH] = {"nvme multipath", NULL},
	[PST_LAYER_DM_CRYPT] = {"dm-crypt", "the CPU encrypts and decrypts every byte"},
	[PST_LAYER_DM_THIN] = {"dm-thin", "it zeroes and copies blocks as it allocates them"},
	[PST_LAYER_DM_MULTIPATH] = {"dm-multipath", "it is not on the list of plain layers"},
	[PST_LAYER_DM_OTHER] = {"dm", "it is not on the list of plain layers"},
	[PST_LAYER_MD_OTHER] = {"md", "it is not on the list of plain layers"},
	[PST_LAYER_BCACHE] = {"bcache", "which of its drives has a byte is not known"},
	[PST_LAYER_DRBD] = {"drbd", "the CPU sends every byte that is written"},
	[PST_LAYER_LOOP] = {"loop", "the kernel reads and writes another file for it"},
	[PST_LAYER_ZRAM] = {"zram", "the bytes live in memory, the CPU compresses them"},
	[PST_LAYER_BRD] = {"brd", "the bytes live in memory, the CPU copies them"},
	[PST_LAYER_NULL_BLK] = {"null_blk", "there is no drive, the CPU generates the bytes"},
	[PST_LAYER_NBD] = {"nbd", "the CPU copies every byte out of socket buffers"},
	[PST_LAYER_RBD] = {"rbd", "the CPU copies every byte out of socket buffers"},
	[PST_LAYER_UBLK] = {"ublk", "a user-space process hands over every byte"},
	[PST_LAYER_PMEM] = {"pmem", "the CPU copies every byte"},
	[PST_LAYER_ZVOL] = {"zvol", "the CPU copies every byte through a cache of its own"},
	[PST_LAYER_XEN] = {"xen", "whether grants are copied is not known"},
	[PST_LAYER_MMC] = {"mmc", "whether its host has a DMA engine is not known"},
	[PST_LAYER_VIRTIO_BLK] = {"virtio-blk", NULL},
	[PST_LAYER_SCSI] = {"scsi", NULL},
	[PST_LAYER_NVME] = {"nvme", NULL},
};

/* The allow-list of pairs of layer and transport. A pair that is not in this table is not allowed.
 */
static const struct {
	enum pst_layer_kind kind;
	const char *transport;
	const char *why; /* reason why the pair is not allowed; NULL if it is allowed */
	/* true if the pair is allowed only if no RDMA device is implemented in software */
	bool rdma;
} transports[] = {
	{PST_LAYER_NVME, "pcie", NULL, false},
	{PST_LAYER_NVME, "rdma", NULL, true},
	{PST_LAYER_NVME, "tcp", "the CPU copies every byte out of socket buffers", false},
	{PST_LAYER_NVME, "loop", "the target is this kernel itself", false},
	{PST_LAYER_NVME, "fc", "it is not on the list of transports", false},
	{PST_LAYER_SCSI, "sata", NULL, false},
	{PST_LAYER_SCSI, "sas", NULL, false},
	{PST_LAYER_SCSI, "fc", NULL, false},
	{PST_LAYER_SCSI, "hba", NULL, false},
	{PST_LAYER_SCSI, "virtio-scsi", NULL, false},
	{PST_LAYER_SCSI, "iser", NULL, true},
	{PST_LAYER_SCSI, "srp", NULL, true},
	{PST_LAYER_SCSI, "iscsi", "the CPU copies every byte out of socket buffers", false},
	{PST_LAYER_SCSI, "iscsi-hba", "what its adapter leaves to the CPU is not known", false},
	{PST_LAYER_SCSI, "fcoe", "the CPU takes every byte out of Ethernet frames", false},
	{PST_LAYER_SCSI, "usb", "what its bridge leaves to the CPU is not known", false},
};

const char *pst_layer_kind_name(enum pst_layer_kind kind)
{
	return (unsigned)kind < PST_LAYER_KINDS ? layers[kind].name : "?";
}

/* ---- the verdict ------------------------------------------------------------ */

__attribute__((format(printf, 3, 4))) static bool verdict_no(char *why, size_t why_len,
							     const char *fmt, ...)
{
	va_list args;

	if (why && why_len) {
		va_start(args, fmt);
		vsnprintf(why, why_len, fmt, args);
		va_end(args);
	}
	return false;
}

static bool mount_ok(const struct pst_blockstack *stack, char *why, size_t why_len)
{
	const struct pst_mount *mount = &stack->mount;
	const char *name = pst_fs_name(mount->fs);

	if ((unsigned)mount->fs >= PST_FS_KINDS)
		return verdict_no(why, why_len, "a file system that is not known");
	if (mount->fs == PST_FS_OTHER && mount->type[0])
		name = mount->type;
	if (mount->fs == PST_FS_OVERLAY && mount->upper_fs[0])
		return verdict_no(why, why_len, "overlay on %s: %s", mount->upper_fs,
				  fs_why[mount->fs]);
	if (fs_why[mount->fs])
		return verdict_no(why, why_len, "%s: %s", name, fs_why[mount->fs]);
	if (mount->fs == PST_FS_RAW_BLOCK)
		return true;
	if (!stack->mounted)
		return verdict_no(why, why_len,
				  "%s: its mount is not in the mount table of this process, "
				  "so its options are not known",
				  name);
	if (mount->fs == PST_FS_EXT4 && mount->data == PST_DATA_NOT_SAID)
		return verdict_no(why, why_len,
				  "%s: whether it journals data is not known, neither the "
				  "mount table nor /proc/fs/ext4 says so",
				  name);
	if (mount->data == PST_DATA_JOURNAL)
		return verdict_no(why, why_len,
				  "%s with data=journal: data passes through the journal, "
				  "copied by the CPU",
				  name);
	if (mount->dax)
		return verdict_no(why, why_len, "%s with dax: the CPU copies every byte", name);
	if (mount->real_time)
		return verdict_no(why, why_len,
				  "%s with rtdev: the file may be on the real-time device, "
				  "which is not inspected",
				  name);
	return true;
}

static bool transport_ok(const struct pst_blockstack *stack, const struct pst_layer *layer,
			 char *why, size_t why_len)
{
	const char *name = layers[layer->kind].name;
	size_t i;

	for (i = 0; i < sizeof(transports) / sizeof(transports[0]); i++) {
		if (transports[i].kind != layer->kind ||
		    strcmp(transports[i].transport, layer->detail))
			continue;
		if (transports[i].why)
			return verdict_no(why, why_len, "%s %s on %s: %s", name, layer->detail,
					  layer->name, transports[i].why);
		if (transports[i].rdma && stack->rdma_software)
			return verdict_no(why, why_len,
					  "%s %s on %s: an RDMA device of this machine is "
					  "software, where the CPU copies every byte",
					  name, layer->detail, layer->name);
		return true;
	}
	return verdict_no(why, why_len, "%s on %s: its transport is %s%s, which is not on the list",
			  name, layer->name, layer->detail[0] ? "" : "not known", layer->detail);
}

static bool layer_ok(const struct pst_blockstack *stack, const struct pst_layer *layer, char *why,
		     size_t why_len)
{
	if ((unsigned)layer->kind >= PST_LAYER_KINDS)
		return verdict_no(why, why_len, "%s: not known", layer->name);
	if (layer->kind == PST_LAYER_DM_OTHER && !layer->detail[0])
		return verdict_no(why, why_len,
				  "dm on %s: its table is not known, only root may read it",
				  layer->name);
	if (layers[layer->kind].why) {
		bool more = layer->kind == PST_LAYER_DM_OTHER || layer->kind == PST_LAYER_MD_OTHER;

		return verdict_no(why, why_len, "%s%s%s on %s: %s", layers[layer->kind].name,
				  more && layer->detail[0] ? "-" : "", more ? layer->detail : "",
				  layer->name, layers[layer->kind].why);
	}
	if (layer->kind == PST_LAYER_NVME || layer->kind == PST_LAYER_SCSI)
		return transport_ok(stack, layer, why, why_len);
	return true;
}

bool pst_blockstack_direct_ok(const struct pst_blockstack *stack, char *why, size_t why_len)
{
	unsigned i;

	if (why && why_len)
		why[0] = '\0';
	/* A known layer that fails is a better reason than an unknown layer or an incomplete stack,
	 * so the known layers are checked first. */
	if (!mount_ok(stack, why, why_len))
		return false;
	for (i = 0; i < stack->layer_count; i++)
		if (stack->layers[i].kind != PST_LAYER_UNKNOWN &&
		    !layer_ok(stack, &stack->layers[i], why, why_len))
			return false;
	if (!stack->complete)
		return verdict_no(why, why_len, "the layers beneath are not known: %s",
				  stack->lost);
	for (i = 0; i < stack->layer_count; i++)
		if (!layer_ok(stack, &stack->layers[i], why, why_len))
			return false;
	if (!stack->drive_count)
		return verdict_no(why, why_len, "no drive is visible beneath");
	if (stack->swiotlb)
		return verdict_no(why, why_len, "swiotlb: %s, so the CPU copies every byte",
				  stack->swiotlb);
	return true;
}

bool pst_blockstack_inode_ok(uint64_t statx_attributes, uint32_t inode_flags, char *why,
			     size_t why_len)
{
	static const struct {
		uint64_t attribute;
		uint32_t flag;
		const char *why;
	} bad[] = {
		{STATX_ATTR_ENCRYPTED, 0x00000800 /* FS_ENCRYPT_FL */,
		 "the file is encrypted: the CPU, or a key in the drive, stands in between"},
		{STATX_ATTR_VERITY, 0x00100000 /* FS_VERITY_FL */,
		 "the file has fs-verity: the CPU checks every byte in the page cache"},
		{STATX_ATTR_COMPRESSED, 0x00000004 /* FS_COMPR_FL */,
		 "the file is compressed: the CPU unpacks every byte"},
		{STATX_ATTR_DAX, 0, "the file is in DAX state: the CPU copies every byte"},
		{0, 0x10000000 /* FS_INLINE_DATA_FL */,
		 "the file's data is inside its inode: the CPU copies it"},
		{0, 0x00004000 /* FS_JOURNAL_DATA_FL */,
		 "the file has a data journal of its own (chattr +j), copied by the CPU"},
	};
	size_t i;

	if (why && why_len)
		why[0] = '\0';
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (statx_attributes & bad[i].attribute || inode_flags & bad[i].flag)
			return verdict_no(why, why_len, "%s", bad[i].why);
	return true;
}

/* ---- the stack in one line ------------------------------------------------------- */

#define NAMES_SHOWN 4

struct stack_text {
	char *out;
	size_t len, room;
};

__attribute__((format(printf, 2, 3))) static void text_add(struct stack_text *t, const char *fmt,
							   ...)
{
	va_list args;
	int n;

	if (t->len + 1 >= t->room)
		return;
	va_start(args, fmt);
	n = vsnprintf(t->out + t->len, t->room - t->len, fmt, args);
	va_end(args);
	t->len += n > 0 ? (size_t)n : 0;
}

static void text_add_kind(struct stack_text *t, const struct pst_layer *layer)
{
	if (layer->kind == PST_LAYER_PARTITION || (unsigned)layer->kind >= PST_LAYER_KINDS)
		return;
	text_add(t, " (%s", layers[layer->kind].name);
	if (layer->kind == PST_LAYER_NVME || layer->kind == PST_LAYER_SCSI)
		text_add(t, "%s%s", layer->detail[0] ? " " : "", layer->detail);
	else if (layer->kind == PST_LAYER_DM_OTHER || layer->kind == PST_LAYER_MD_OTHER)
		text_add(t, "%s%s", layer->detail[0] ? "-" : "", layer->detail);
	text_add(t, ")");
}

/* Adds all layers of one depth to the text. If they are all of one kind, names the kind once.
 * Returns the number of layers. */
static unsigned text_add_depth(struct stack_text *t, const struct pst_blockstack *stack,
			       unsigned depth)
{
	const struct pst_layer *first = NULL;
	unsigned i, count = 0;
	bool alike = true;

	for (i = 0; i < stack->layer_count; i++) {
		const struct pst_layer *layer = &stack->layers[i];

		if (layer->depth != depth)
			continue;
		first = first ? first : layer;
		alike = alike && layer->kind == first->kind &&
			!strcmp(layer->detail, first->detail);
	}
	for (i = 0; first && i < stack->layer_count; i++) {
		const struct pst_layer *layer = &stack->layers[i];

		if (layer->depth != depth || count++ >= NAMES_SHOWN)
			continue;
		text_add(t, "%s%s", count == 1 ? " on " : " ", layer->name);
		if (!alike)
			text_add_kind(t, layer);
	}
	if (count > NAMES_SHOWN)
		text_add(t, " and %u more", count - NAMES_SHOWN);
	if (first && alike)
		text_add_kind(t, first);
	return count;
}

void pst_blockstack_text(const struct pst_blockstack *stack, char *out, size_t out_len)
{
	struct stack_text t = {out, 0, out_len};
	unsigned depth;

	if (!out_len)
		return;
	out[0] = '\0';
	text_add(&t, "%s",
		 stack->mount.fs == PST_FS_OTHER && stack->mount.type[0]
			 ? stack->mount.type
			 : pst_fs_name(stack->mount.fs));
	if (stack->mount.upper_fs[0])
		text_add(&t, " on %s", stack->mount.upper_fs);
	for (depth = 0; depth < PST_STACK_DEPTH_MAX; depth++)
		if (!text_add_depth(&t, stack, depth))
			break;
	if (!stack->complete)
		text_add(&t, ", partly unknown");
}
