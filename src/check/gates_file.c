/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the gates that check one file: its file system and mount, the block stack below, the
 * stack's support for peer memory (memory of another PCI Express device), alignment, stripes, and
 * the result of the probe (the test transfer of `penstock check`). A network or parallel file
 * system gets a line that tells what it can do. The name of a file system alone must never open the
 * gate of the file system.
 */
#include "gates_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "line.h"
#include "storage/blockstack_verdict.h"

/* ---- file systems ---------------------------------------------------------------- */

/* The known file systems. The state NO means that the CPU copies the bytes. The state UNKNOWN means
 * that only a measurement can tell whether the CPU copies the bytes. */
static const struct {
	enum pst_check_state state;
	const char *can, *todo; /* `todo` is the action to take; "" if no action helps */
} systems[PST_FS_KINDS] = {
	[PST_FS_OTHER] = {PST_CHECK_UNKNOWN, "not on the list of direct file systems",
			  "put the files on ext4 or xfs"},
	[PST_FS_RAW_BLOCK] = {PST_CHECK_OK, "no file system on top", ""},
	[PST_FS_EXT4] = {PST_CHECK_OK, "O_DIRECT accesses the drives", ""},
	[PST_FS_XFS] = {PST_CHECK_OK, "O_DIRECT accesses the drives", ""},
	[PST_FS_BTRFS] = {PST_CHECK_NO,
			  "checksummed or compressed data goes through the page cache",
			  "put the files on ext4 or xfs"},
	[PST_FS_TMPFS] =
		{PST_CHECK_NO, "the bytes are in memory already, the CPU copies them",
		 "nothing if the files should be in memory; else use ext4 or xfs on a drive"},
	[PST_FS_RAMFS] =
		{PST_CHECK_NO, "the bytes are in memory already, the CPU copies them",
		 "nothing if the files should be in memory; else use ext4 or xfs on a drive"},
	[PST_FS_OVERLAY] = {PST_CHECK_UNKNOWN, "the file system below a container's root is hidden",
			    "mount a volume of the host into the container, and use that"},
	[PST_FS_FUSE] =
		{PST_CHECK_NO, "a user-space process delivers every byte",
		 "use a file system of the kernel, or the URL of the object store behind it"},
	[PST_FS_VIRTIOFS] = {PST_CHECK_NO, "the host's file server delivers every byte",
			     "give the guest a virtual or passed-through drive"},
	[PST_FS_9P] = {PST_CHECK_NO, "the host's file server delivers every byte",
		       "give the guest a virtual or passed-through drive"},
	[PST_FS_NFS] = {PST_CHECK_NO, "over TCP the CPU copies every byte from the socket",
			"mount with proto=rdma if client and server have RDMA"},
	[PST_FS_NFS_RDMA] = {PST_CHECK_UNKNOWN,
			     "the NIC can write host memory; it writes a GPU only with the "
			     "vendor's NFS client",
			     "run penstock check on the client, which measures it"},
	[PST_FS_LUSTRE] = {PST_CHECK_UNKNOWN,
			   "O_DIRECT uses RDMA into host memory (LNet o2ib), and into a GPU only "
			   "with a client built for GDS",
			   "run penstock check on the client; lfs getstripe and lnetctl net show "
			   "list stripes and NICs"},
	[PST_FS_WEKAFS] = {PST_CHECK_UNKNOWN,
			   "its client reads in user space (DPDK or UDP), and into a GPU with its "
			   "own RDMA, through GDS",
			   "run penstock check on the client; weka local ps and weka cluster "
			   "container show how it is mounted"},
	[PST_FS_GPFS] =
		{PST_CHECK_UNKNOWN,
		 "reads use its page pool; O_DIRECT and verbsGPUDirectStorage bypass it",
		 "run penstock check on the client; mmlsconfig shows verbsGPUDirectStorage"},
	[PST_FS_BEEGFS] = {PST_CHECK_UNKNOWN,
			   "reads use the client's buffers, with RDMA if connUseRDMA is on, and "
			   "into a GPU with GDS from 7.3 on",
			   "run penstock check on the client; beegfs-net lists the connections"},
	[PST_FS_ZFS] = {PST_CHECK_NO,
			"the CPU checksums every byte and copies it through ZFS's own cache",
			"put the files on ext4 or xfs"},
};

static const char *fs_name(const struct pst_mount *mount)
{
	return mount->fs == PST_FS_OTHER && mount->type[0] ? mount->type : pst_fs_name(mount->fs);
}

static void inspect_filesystem(const struct pst_check_facts *f, struct pst_check_line *line)
{
	const struct pst_mount *mount = &f->stack.mount;
	bool upper = mount->fs == PST_FS_OVERLAY && mount->upper_fs[0];
	enum pst_check_state state;
	char text[PENSTOCK_TEXT_MAX];
	const char *can;

	if (!f->has_file)
		return;
	can = systems[mount->fs].can;
	state = systems[mount->fs].state;
	if (upper && !strcmp(mount->upper_fs, "tmpfs")) {
		state = PST_CHECK_NO;
		can = "the bytes are in memory already, the CPU copies them";
	}
	snprintf(text, sizeof(text), "%.32s%s%.32s%s%.64s: %s", fs_name(mount), upper ? " on " : "",
		 upper ? mount->upper_fs : "", f->point[0] ? ", " : "", f->point, can);
	if (state == PST_CHECK_OK)
		pst_line_ok(line, "%s", text);
	else if (state == PST_CHECK_NO)
		pst_line_no(line, "%s", text);
	else
		pst_line_unknown(line, "%.220s%s", text, f->check->probed ? "" : "; not probed");
	if (state == PST_CHECK_UNKNOWN && f->check->probed && mount->fs != PST_FS_OVERLAY)
		pst_line_todo(line, "nothing: Penstock counts these bytes as copied by the CPU, "
				    "because it cannot "
				    "know better");
	else
		pst_line_todo(line, "%s", systems[mount->fs].todo);
}

/* ---- mount options --------------------------------------------------------------- */

static void inspect_mount(const struct pst_check_facts *f, struct pst_check_line *line)
{
	const struct pst_mount *mount = &f->stack.mount;

	if (!f->has_file || (mount->fs != PST_FS_EXT4 && mount->fs != PST_FS_XFS))
		return;
	if (!f->stack.mounted) {
		pst_line_unknown(line, "the mount is not in this process's mount table");
		pst_line_todo(line, "run penstock check where the file system is mounted");
	} else if (mount->data == PST_DATA_JOURNAL) {
		pst_line_no(line, "data=journal");
		pst_line_todo(line, "mount with data=ordered (tune2fs -o ^journal_data %s)",
			      mount->source);
		if (mount->source[0] == '/' && pst_line_name_is_plain(mount->source))
			pst_line_script(line, "tune2fs -o ^journal_data %s  # then mount it again",
					mount->source);
	} else if (mount->dax) {
		pst_line_no(line, "dax");
		pst_line_todo(line, "mount with dax=never");
	} else if (mount->real_time) {
		pst_line_unknown(line, "rtdev: the file may be on the real-time device");
		pst_line_todo(line, "run xfs_io -c lsattr PATH: an r marks a real-time file");
	} else if (mount->fs == PST_FS_EXT4 && mount->data == PST_DATA_NOT_SAID) {
		pst_line_unknown(line,
				 "neither the mount table nor /proc/fs/ext4 shows whether data is "
				 "journaled");
		pst_line_todo(line, "dumpe2fs -h %s: look for journal_data",
			      mount->source[0] == '/' ? mount->source : "DEVICE");
	} else if (mount->fs == PST_FS_EXT4) {
		pst_line_ok(line, "%s%s",
			    mount->data == PST_DATA_ORDERED	? "data=ordered"
			    : mount->data == PST_DATA_WRITEBACK ? "data=writeback"
								: "no journal",
			    mount->read_only ? ", read-only" : "");
	} else {
		pst_line_ok(line, "no dax, no real-time device%s",
			    mount->read_only ? ", read-only" : "");
	}
}

/* ---- block stack ----------------------------------------------------------------- */

struct layer_text {
	char text[64];
};

/* Returns the kind and the detail of a block layer, for example "nvme pcie". The text is
 * returned by value, so that a call can be an argument of printf. */
static struct layer_text layer_describe(const struct pst_layer *layer)
{
	const char *kind = pst_layer_kind_name(layer->kind);
	bool more = layer->detail[0] && strcmp(layer->detail, kind);
	struct layer_text out;

	snprintf(out.text, sizeof(out.text), "%s%s%s", kind, more ? " " : "",
		 more ? layer->detail : "");
	return out;
}

static void list_layers(const struct pst_check_facts *f, struct pst_check_line *line)
{
	unsigned i;

	for (i = 0; i < f->stack.layer_count; i++) {
		const struct pst_layer *layer = &f->stack.layers[i];

		pst_line_detail(line, "%*s%s: %s", layer->depth * 2, "", layer->name,
				layer_describe(layer).text);
	}
}

static void inspect_blocks(const struct pst_check_facts *f, struct pst_check_line *line)
{
	struct pst_blockstack layers;
	char text[PENSTOCK_TEXT_MAX], why[PENSTOCK_TEXT_MAX];
	const char *below;

	if (!f->has_file ||
	    (!f->stack.layer_count && f->stack.mount.fs != PST_FS_EXT4 &&
	     f->stack.mount.fs != PST_FS_XFS && f->stack.mount.fs != PST_FS_RAW_BLOCK))
		return;
	/* This gate judges only the block layers, because separate lines report the file system. */
	layers = f->stack;
	layers.mount = (struct pst_mount){.fs = PST_FS_RAW_BLOCK};
	layers.swiotlb = NULL;
	list_layers(f, line);
	pst_blockstack_text(&f->stack, text, sizeof(text));
	below = strstr(text, " on ");
	if (pst_blockstack_direct_ok(&layers, why, sizeof(why)))
		pst_line_ok(line, "%s", below ? below + 4 : text);
	else if (strstr(why, "only root"))
		pst_line_no_permission(line, f->captured, "the tables of device-mapper devices");
	else if (!f->stack.complete || !f->stack.drive_count)
		pst_line_unknown(line, "%s", why);
	else
		pst_line_no(line, "%s", why);
}

/* Returns whether requests with peer memory (memory of another PCI Express device) can pass the
 * layer. In kernels up to 6.16 the queues of stacked devices do not declare support for peer memory
 * (block/blk-settings.c). For later kernels only a test transfer can show whether they support it.
 * Queues of virtio and SCSI never support it. */
static enum pst_check_state layer_passes_peer(const struct pst_check_facts *f,
					      const struct pst_layer *layer)
{
	switch (layer->kind) {
	case PST_LAYER_PARTITION:
		return PST_CHECK_OK;
	case PST_LAYER_NVME:
		return !strcmp(layer->detail, "pcie")	? PST_CHECK_OK
		       : !strcmp(layer->detail, "rdma") ? PST_CHECK_UNKNOWN
							: PST_CHECK_NO;
	case PST_LAYER_LINEAR:
	case PST_LAYER_RAID0:
	case PST_LAYER_RAID1:
	case PST_LAYER_RAID10:
	case PST_LAYER_NVME_MULTIPATH:
		return f->kernel >= 6017 ? PST_CHECK_UNKNOWN : PST_CHECK_NO;
	default:
		return PST_CHECK_NO;
	}
}

static void inspect_peer(const struct pst_check_facts *f, struct pst_check_line *line)
{
	enum pst_check_state worst = PST_CHECK_OK;
	const struct pst_layer *at = NULL;
	unsigned i;

	if (!f->has_file || f->host)
		return;
	if (!f->stack.layer_count && f->stack.mount.fs == PST_FS_OVERLAY) {
		pst_line_unknown(line, "the file system below overlay is not visible");
		return;
	}
	if (!f->stack.layer_count) {
		pst_line_no(line, "%s is not on a drive of this machine", fs_name(&f->stack.mount));
		return;
	}
	for (i = 0; i < f->stack.layer_count; i++) {
		enum pst_check_state state = layer_passes_peer(f, &f->stack.layers[i]);

		if (state == PST_CHECK_OK || worst == PST_CHECK_NO ||
		    (state == PST_CHECK_UNKNOWN && worst == PST_CHECK_UNKNOWN))
			continue;
		worst = state;
		at = &f->stack.layers[i];
	}
	if (!at)
		pst_line_ok(line, "plain NVMe on PCI Express");
	else if (worst == PST_CHECK_NO)
		pst_line_no(line, "%s (%s) does not pass peer memory to the drive", at->name,
			    layer_describe(at).text);
	else
		pst_line_unknown(
			line,
			"it depends on the kernel whether %s (%s) passes peer memory to the drive",
			at->name, layer_describe(at).text);
	if (worst == PST_CHECK_UNKNOWN)
		pst_line_todo(
			line,
			"run penstock check on the machine itself, as root: the probe tests it");
}

/* ---- alignment and stripes ------------------------------------------------------- */

static void inspect_align(const struct pst_check_facts *f, struct pst_check_line *line)
{
	uint32_t off = f->dio_told ? f->dio_off : f->stack.logical_block_max;
	uint32_t mem = f->dio_told ? f->dio_mem : f->stack.dma_align_max;

	if (!f->has_file || !f->stack.layer_count)
		return;
	if (f->dio_none)
		pst_line_no(line, "the file system offers no O_DIRECT for this file");
	else if (!off)
		pst_line_unknown(line, "neither file system nor drives report it; 4096 is assumed");
	else
		pst_line_ok(line, "offsets %u, addresses %u bytes%s", off, mem ? mem : 512,
			    f->dio_told ? "" : ", by the drives");
	pst_line_todo(line, "use offsets and lengths that are multiples of 4096");
}

static void inspect_stripe(const struct pst_check_facts *f, struct pst_check_line *line)
{
	unsigned long long kib = f->stack.stripe_bytes >> 10;

	if (!f->has_file || f->stack.drive_count < 2 || !kib)
		return;
	pst_line_ok(line, "%u drives, stripes of %llu KiB", f->stack.drive_count, kib);
	pst_line_detail(line, "requests of %llu KiB keep all drives busy",
			kib * f->stack.drive_count);
}

/* ---- probe ----------------------------------------------------------------------- */

static void inspect_probe(const struct pst_check_facts *f, struct pst_check_line *line)
{
	const struct pst_check *check = f->check;
	unsigned i, tried = 0, failed = 0;

	if (!f->has_file)
		return;
	if (f->captured) {
		pst_line_unknown(line,
				 "not probed: the files of a captured machine cannot be read");
		line->need = PST_NEED_NOTHING;
		return;
	}
	if (!check->probed) {
		pst_line_unknown(line, "not probed: %s", f->probe_error);
		if (strstr(f->probe_error, strerror(EMFILE)))
			pst_line_todo(line, "allow more open files: ulimit -n");
		else if (strstr(f->probe_error, strerror(ENOMEM)))
			pst_line_todo(line, "allow more memory: ulimit -v, or the control group");
		else
			pst_line_todo(line,
				      "name a path that this user may read, or in a folder where "
				      "this user may create a scratch file");
		line->need = PST_NEED_DIRECT;
		return;
	}
	for (i = 0; i < check->path_count; i++) {
		tried += check->paths[i].measured;
		failed += check->paths[i].error[0] != '\0';
		if (check->paths[i].error[0])
			pst_line_detail(line, "%s: %s", check->paths[i].explained.name,
					check->paths[i].error);
	}
	if (failed)
		pst_line_no(line, "%u path%s carried bytes, %u failed", tried,
			    tried == 1 ? "" : "s", failed);
	else if (!tried)
		pst_line_no(line, "no path is open");
	else
		pst_line_ok(line, "%u path%s carried the bytes unharmed to %s (%s)%s%s", tried,
			    tried == 1 ? "" : "s", f->device_name, check->engine,
			    f->probe_error[0] ? "; read from the file itself, because " : "",
			    f->probe_error);
}

const struct pst_check_gate pst_check_file_gates[] = {
	{"filesystem", PST_CHECK_FILE, PST_NEED_NO_COPY, inspect_filesystem,
	 "the file system decides whether O_DIRECT uses the drive's DMA engine or a CPU copy", ""},
	{"mount", PST_CHECK_FILE, PST_NEED_NO_COPY, inspect_mount,
	 "with a data journal, dax or a real-time device the CPU can copy the bytes", ""},
	{"blocks", PST_CHECK_FILE, PST_NEED_NO_COPY, inspect_blocks,
	 "each layer between file system and drive can make the CPU copy or transform the bytes",
	 "put the files on partitions, LVM or md raid0/1/10 of NVMe, SCSI or virtio drives"},
	{"peer", PST_CHECK_FILE, PST_NEED_DIRECT, inspect_peer,
	 "a block queue without support for peer memory refuses transfers from drive to device",
	 "put the files on a file system directly on one NVMe drive"},
	{"align", PST_CHECK_FILE, PST_NEED_NO_COPY, inspect_align,
	 "unaligned parts of a transfer go through the page cache", ""},
	{"stripe", PST_CHECK_FILE, PST_NEED_SPEED, inspect_stripe,
	 "requests shorter than a whole stripe leave drives idle", ""},
	{"probe", PST_CHECK_FILE, PST_NEED_SPEED, inspect_probe,
	 "only bytes that arrived prove a path",
	 "run penstock check on the machine itself, with space for a scratch file next to the "
	 "path"},
	{.name = NULL},
};
