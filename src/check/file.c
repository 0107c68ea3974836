/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gates of one file: its file system and mount, the block stack beneath, whether
 * that stack takes peer memory, alignment, stripes, and what the probe showed. File
 * systems that need systems of their own are named with what they can do, and are
 * never called open because of their name.
 */
#include <errno.h>
#include <string.h>

#include "gate.h"

/* ---- file systems ---------------------------------------------------------------- */

/* NO: known to copy. UNKNOWN: only a trial tells. NULL todo: none. */
static const struct {
	enum pst_check_state state;
	const char *can, *todo;
} systems[PST_FS_KINDS] = {
	[PST_FS_OTHER] = {PST_CHECK_UNKNOWN, "not on the list of those known to be direct",
			  "put the files on ext4 or xfs"},
	[PST_FS_RAW_BLOCK] = {PST_CHECK_OK, "no file system in between", ""},
	[PST_FS_EXT4] = {PST_CHECK_OK, "O_DIRECT goes to the drives", ""},
	[PST_FS_XFS] = {PST_CHECK_OK, "O_DIRECT goes to the drives", ""},
	[PST_FS_BTRFS] = {PST_CHECK_NO,
			  "checksummed or compressed data quietly takes the page cache",
			  "put the files on ext4 or xfs"},
	[PST_FS_TMPFS] = {PST_CHECK_NO, "the bytes are in memory already, the CPU copies them",
			  "nothing, if they shall be in memory; else use ext4 or xfs on a drive"},
	[PST_FS_RAMFS] = {PST_CHECK_NO, "the bytes are in memory already, the CPU copies them",
			  "nothing, if they shall be in memory; else use ext4 or xfs on a drive"},
	[PST_FS_OVERLAY] = {PST_CHECK_UNKNOWN, "what lies beneath a container's root is hidden",
			    "mount a volume of the host into the container, and use that"},
	[PST_FS_FUSE] = {PST_CHECK_NO, "a user-space process hands over every byte",
			 "use a file system of the kernel, or the object store behind it by URL"},
	[PST_FS_VIRTIOFS] = {PST_CHECK_NO, "the host's file server hands over every byte",
			     "give the guest a virtual or passed-through drive"},
	[PST_FS_9P] = {PST_CHECK_NO, "the host's file server hands over every byte",
		       "give the guest a virtual or passed-through drive"},
	[PST_FS_NFS] = {PST_CHECK_NO, "over TCP the CPU copies every byte out of the socket",
			"mount with proto=rdma where client and server have RDMA"},
	[PST_FS_NFS_RDMA] = {PST_CHECK_UNKNOWN,
			     "the NIC can place reads in host memory; into a GPU only with "
			     "the vendor's NFS client",
			     "run check on the client to try it"},
	[PST_FS_LUSTRE] = {PST_CHECK_UNKNOWN,
			   "O_DIRECT goes by RDMA into host memory (LNet o2ib); into a GPU only "
			   "with a client built for GDS",
			   "run check on the client; lfs getstripe and lnetctl net show tell "
			   "stripes and NICs"},
	[PST_FS_WEKAFS] = {PST_CHECK_UNKNOWN,
			   "its client reads in user space (DPDK or UDP); into a GPU by RDMA of "
			   "its own, through GDS",
			   "run check on the client; weka local ps and weka cluster container "
			   "tell how it is mounted"},
	[PST_FS_GPFS] = {PST_CHECK_UNKNOWN,
			 "reads pass its page pool; O_DIRECT and verbsGPUDirectStorage go round it",
			 "run check on the client; mmlsconfig verbsGPUDirectStorage tells"},
	[PST_FS_BEEGFS] = {PST_CHECK_UNKNOWN,
			   "reads pass the client's buffers; RDMA if connUseRDMA is on, into a "
			   "GPU with GDS from 7.3 on",
			   "run check on the client; beegfs-net shows the connections in use"},
	[PST_FS_ZFS] = {PST_CHECK_NO,
			"the CPU checksums every byte and copies it through a cache of its own",
			"put the files on ext4 or xfs"},
};

static const char *fs_name(const struct pst_mount *mount)
{
	return mount->fs == PST_FS_OTHER && mount->type[0] ? mount->type : pst_fs_name(mount->fs);
}

static void look_filesystem(const struct facts *f, struct pst_check_line *line)
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
		pst_ok(line, "%s", text);
	else if (state == PST_CHECK_NO)
		pst_no(line, "%s", text);
	else
		pst_unknown(line, "%.220s%s", text, f->check->probed ? "" : "; not probed");
	if (state == PST_CHECK_UNKNOWN && f->check->probed && mount->fs != PST_FS_OVERLAY)
		pst_todo(line, "nothing: it counts as copied by the CPU, as long as nobody knows");
	else
		pst_todo(line, "%s", systems[mount->fs].todo);
}

/* ---- mount options --------------------------------------------------------------- */

static void look_mount(const struct facts *f, struct pst_check_line *line)
{
	const struct pst_mount *mount = &f->stack.mount;

	if (!f->has_file || (mount->fs != PST_FS_EXT4 && mount->fs != PST_FS_XFS))
		return;
	if (!f->stack.mounted) {
		pst_unknown(line, "the mount is not in this process's table");
		pst_todo(line, "run it where the file system is mounted");
	} else if (mount->data == PST_DATA_JOURNAL) {
		pst_no(line, "data=journal");
		pst_todo(line, "mount with data=ordered (tune2fs -o ^journal_data %s)",
			 mount->source);
		if (mount->source[0] == '/' && pst_plain_name(mount->source))
			pst_script(line, "tune2fs -o ^journal_data %s  # then mount it again",
				   mount->source);
	} else if (mount->dax) {
		pst_no(line, "dax");
		pst_todo(line, "mount with dax=never");
	} else if (mount->real_time) {
		pst_unknown(line, "rtdev: the file may lie on the real-time device");
		pst_todo(line, "xfs_io -c lsattr PATH tells (an r)");
	} else if (mount->fs == PST_FS_EXT4 && mount->data == PST_DATA_NOT_SAID) {
		pst_unknown(line,
			    "whether data is journaled is said neither by the mount table nor "
			    "by /proc/fs/ext4");
		pst_todo(line, "dumpe2fs -h %s: look for journal_data",
			 mount->source[0] == '/' ? mount->source : "DEVICE");
	} else if (mount->fs == PST_FS_EXT4) {
		pst_ok(line, "%s%s",
		       mount->data == PST_DATA_ORDERED	   ? "data=ordered"
		       : mount->data == PST_DATA_WRITEBACK ? "data=writeback"
							   : "no journal",
		       mount->read_only ? ", read-only" : "");
	} else {
		pst_ok(line, "no dax, no real-time device%s",
		       mount->read_only ? ", read-only" : "");
	}
}

/* ---- block stack ----------------------------------------------------------------- */

struct layer_text {
	char text[64];
};

/* "nvme pcie": the kind, and what more is known of it. By value, so that it can be an
 * argument. */
static struct layer_text describe(const struct pst_layer *layer)
{
	const char *kind = pst_layer_kind_name(layer->kind);
	bool more = layer->detail[0] && strcmp(layer->detail, kind);
	struct layer_text out;

	snprintf(out.text, sizeof(out.text), "%s%s%s", kind, more ? " " : "",
		 more ? layer->detail : "");
	return out;
}

static void list_layers(const struct facts *f, struct pst_check_line *line)
{
	unsigned i;

	for (i = 0; i < f->stack.layer_count; i++) {
		const struct pst_layer *layer = &f->stack.layers[i];

		pst_more(line, "%*s%s: %s", layer->depth * 2, "", layer->name,
			 describe(layer).text);
	}
}

static void look_blocks(const struct facts *f, struct pst_check_line *line)
{
	struct pst_blockstack layers;
	char text[PENSTOCK_TEXT_MAX], why[PENSTOCK_TEXT_MAX];
	const char *below;

	if (!f->has_file ||
	    (!f->stack.layer_count && f->stack.mount.fs != PST_FS_EXT4 &&
	     f->stack.mount.fs != PST_FS_XFS && f->stack.mount.fs != PST_FS_RAW_BLOCK))
		return;
	/* The layers alone: the file system has lines of its own. */
	layers = f->stack;
	layers.mount = (struct pst_mount){.fs = PST_FS_RAW_BLOCK};
	layers.swiotlb = NULL;
	list_layers(f, line);
	pst_blockstack_text(&f->stack, text, sizeof(text));
	below = strstr(text, " on ");
	if (pst_blockstack_direct_ok(&layers, why, sizeof(why)))
		pst_ok(line, "%s", below ? below + 4 : text);
	else if (strstr(why, "only root"))
		pst_not_allowed(f, line, "the tables of device-mapper devices");
	else if (!f->stack.complete || !f->stack.drive_count)
		pst_unknown(line, "%s", why);
	else
		pst_no(line, "%s", why);
}

/* Which layers carry peer memory on. Queues of stacked devices do not say that they
 * take it (block/blk-settings.c) in kernels up to 6.16; whether later ones do is for
 * the probe. virtio and SCSI queues never do. */
static enum pst_check_state takes_peer(const struct facts *f, const struct pst_layer *layer)
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

static void look_peer(const struct facts *f, struct pst_check_line *line)
{
	enum pst_check_state worst = PST_CHECK_OK;
	const struct pst_layer *at = NULL;
	unsigned i;

	if (!f->has_file || f->host)
		return;
	if (!f->stack.layer_count && f->stack.mount.fs == PST_FS_OVERLAY) {
		pst_unknown(line, "what lies beneath overlay cannot be seen");
		return;
	}
	if (!f->stack.layer_count) {
		pst_no(line, "%s has no drive of this machine beneath", fs_name(&f->stack.mount));
		return;
	}
	for (i = 0; i < f->stack.layer_count; i++) {
		enum pst_check_state state = takes_peer(f, &f->stack.layers[i]);

		if (state == PST_CHECK_OK || worst == PST_CHECK_NO ||
		    (state == PST_CHECK_UNKNOWN && worst == PST_CHECK_UNKNOWN))
			continue;
		worst = state;
		at = &f->stack.layers[i];
	}
	if (!at)
		pst_ok(line, "plain NVMe on PCI Express");
	else if (worst == PST_CHECK_NO)
		pst_no(line, "%s (%s) does not pass peer memory on", at->name, describe(at).text);
	else
		pst_unknown(line, "whether %s (%s) passes peer memory on depends on the kernel",
			    at->name, describe(at).text);
	if (worst == PST_CHECK_UNKNOWN)
		pst_todo(line, "run check on the machine itself, as root: the probe tries it");
}

/* ---- alignment and stripes ------------------------------------------------------- */

static void look_align(const struct facts *f, struct pst_check_line *line)
{
	uint32_t off = f->dio_told ? f->dio_off : f->stack.logical_block_max;
	uint32_t mem = f->dio_told ? f->dio_mem : f->stack.dma_align_max;

	if (!f->has_file || !f->stack.layer_count)
		return;
	if (f->dio_none)
		pst_no(line, "the file system offers no O_DIRECT for this file");
	else if (!off)
		pst_unknown(line, "neither file system nor drives say it; 4096 is taken");
	else
		pst_ok(line, "offsets %u, addresses %u bytes%s", off, mem ? mem : 512,
		       f->dio_told ? "" : ", by the drives");
	pst_todo(line, "read whole multiples of 4096 at such offsets");
}

static void look_stripe(const struct facts *f, struct pst_check_line *line)
{
	unsigned long long kib = f->stack.stripe_bytes >> 10;

	if (!f->has_file || f->stack.drive_count < 2 || !kib)
		return;
	pst_ok(line, "%u drives, %llu KiB each in turn", f->stack.drive_count, kib);
	pst_more(line, "requests of %llu KiB keep all of them busy", kib * f->stack.drive_count);
}

/* ---- probe ----------------------------------------------------------------------- */

static void look_probe(const struct facts *f, struct pst_check_line *line)
{
	const struct pst_check *check = f->check;
	unsigned i, tried = 0, failed = 0;

	if (!f->has_file)
		return;
	if (f->captured) {
		pst_unknown(line, "not probed: a captured machine cannot be tried");
		line->need = PST_NEED_NOTHING;
		return;
	}
	if (!check->probed) {
		pst_unknown(line, "not probed: %s", f->probe_error);
		if (strstr(f->probe_error, strerror(EMFILE)))
			pst_todo(line, "let more files be open: ulimit -n");
		else if (strstr(f->probe_error, strerror(ENOMEM)))
			pst_todo(line, "give it more memory: ulimit -v, or that of its cgroup");
		else
			pst_todo(line, "give a path that may be read, or beside which a scratch "
				       "file may be made");
		line->need = PST_NEED_DIRECT;
		return;
	}
	for (i = 0; i < check->path_count; i++) {
		tried += check->paths[i].measured;
		failed += check->paths[i].error[0] != '\0';
		if (check->paths[i].error[0])
			pst_more(line, "%s: %s", check->paths[i].explained.name,
				 check->paths[i].error);
	}
	if (failed)
		pst_no(line, "%u path%s carried bytes, %u failed", tried, tried == 1 ? "" : "s",
		       failed);
	else if (!tried)
		pst_no(line, "no path is open");
	else
		pst_ok(line, "%u path%s carried the bytes unharmed to %s (%s)%s%s", tried,
		       tried == 1 ? "" : "s", f->device_name, check->engine,
		       f->probe_error[0] ? "; of the file itself, for " : "", f->probe_error);
}

const struct gate pst_check_file_gates[] = {
	{"filesystem", PST_CHECK_FILE, PST_NEED_NO_COPY, look_filesystem,
	 "it decides whether O_DIRECT means the drive's DMA engine or a copy by the CPU", ""},
	{"mount", PST_CHECK_FILE, PST_NEED_NO_COPY, look_mount,
	 "a data journal, dax or a second device puts the CPU in between", ""},
	{"blocks", PST_CHECK_FILE, PST_NEED_NO_COPY, look_blocks,
	 "each layer between file system and drive can bring the CPU in",
	 "put the files on partitions, LVM or md raid0/1/10 of NVMe, SCSI or virtio drives"},
	{"peer", PST_CHECK_FILE, PST_NEED_DIRECT, look_peer,
	 "a queue that does not take peer memory refuses the transfer from drive to device",
	 "put the files on a file system that lies on one NVMe drive itself"},
	{"align", PST_CHECK_FILE, PST_NEED_NO_COPY, look_align,
	 "what is not aligned goes through the page cache", ""},
	{"stripe", PST_CHECK_FILE, PST_NEED_SPEED, look_stripe,
	 "requests shorter than a whole stripe leave drives idle", ""},
	{"probe", PST_CHECK_FILE, PST_NEED_SPEED, look_probe,
	 "only bytes that arrived prove a path",
	 "run check on the machine itself, with room for a scratch file beside the path"},
	{.name = NULL},
};
