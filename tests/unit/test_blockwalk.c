/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the walk from a device number down to the drives below that device, in directory trees
 * that the test creates. Covers each kind of layer and transport, and trees that are circular, too
 * deep, too large or incomplete. Also covers machine properties that make a stack not direct.
 * tests/run runs it.
 */
#include "../replay/judge.h"

#define LUN "/target1:0:0/1:0:0:0/block/sda"

/* ---- layers ---- */

static void nvme_partition(void **state)
{
	struct pst_blockstack stack;
	char text[256], small[8];
	struct tree t;

	(void)state;
	plant(&t);
	stack = walk(&t, 0, 0);
	assert_direct(&stack);
	pst_blockstack_text(&stack, text, sizeof(text));
	assert_string_equal(text, "ext4 on nvme0n1p1 on nvme0n1 (nvme pcie)");
	pst_blockstack_text(&stack, small, sizeof(small));
	assert_string_equal(small, "ext4 on");
	assert_int_equal(stack.drive_count, 1);
	assert_string_equal(stack.drives[0].name, "nvme0n1");
	assert_string_equal(stack.drives[0].bdf, "0000:01:00.0");
	assert_string_equal(stack.drives[0].model, "Model X");
	assert_int_equal(stack.drives[0].numa, 1);
	assert_int_equal(stack.drives[0].logical_block, 4096);
	assert_int_equal(stack.drives[0].dma_align, 4);
	assert_int_equal(stack.drives[0].rotational, 0);
	assert_int_equal(stack.dma_align_max, 4);
	assert_int_equal(stack.logical_block_max, 4096);
	/* Older kernels lack the files dma_alignment and rotational, so their values are
	 * unknown. */
	tree_remove(&t, "sys/devices/" PCI "/nvme/nvme0/nvme0n1/queue/dma_alignment");
	tree_remove(&t, "sys/devices/" PCI "/nvme/nvme0/nvme0n1/queue/rotational");
	stack = walk(&t, 0, 0);
	assert_int_equal(stack.drives[0].dma_align, 0);
	assert_int_equal(stack.drives[0].rotational, -1);
	tree_remove(&t, "sys/devices/" PCI "/nvme/nvme0/transport");
	stack = walk(&t, 0, 0);
	assert_not(&stack, "transport is not known");
	tree_close(&t);
}

static void md_levels(void **state)
{
	static const struct {
		const char *level;
		bool direct;
	} cases[] = {{"linear\n", true},  {"raid0\n", true},   {"raid1\n", true},
		     {"raid10\n", true},  {"raid4\n", false},  {"raid5\n", false},
		     {"raid6\n", false},  {"faulty\n", false}, {"container\n", false},
		     {"raid01\n", false}, {"", false}};
	struct pst_blockstack stack;
	struct tree t;
	size_t i;

	(void)state;
	plant(&t);
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		plant_md(&t, cases[i].level, "nvme0n1p1", "nvme0n1");
		stack = walk(&t, 9, 0);
		assert_true(stack.complete);
		if (cases[i].direct)
			assert_direct(&stack);
		else
			assert_not(&stack, "md0");
		assert_int_equal(stack.stripe_bytes,
				 /* the arrays of levels raid0 and raid10 have stripes of 64 KiB */
				 i == 1 || i == 3 ? 65536 : 0);
	}
	/* A RAID array without members must not count as direct. */
	plant_md(&t, "raid0\n", NULL, NULL);
	tree_remove(&t, "sys/devices/virtual/block/md0/slaves/nvme0n1");
	tree_remove(&t, "sys/devices/virtual/block/md0/slaves/nvme0n1p1");
	stack = walk(&t, 9, 0);
	assert_not(&stack, "md0 names no device below it");
	tree_close(&t);
}

static void plant_nvme_path(const struct tree *t, const char *controller, const char *path,
			    const char *transport)
{
	char at[256], to[256];

	snprintf(at, sizeof(at), "virtual/nvme-fabrics/ctl/%s/%s", controller, path);
	tree_disk(t, at, NULL);
	snprintf(at, sizeof(at), "sys/devices/virtual/nvme-fabrics/ctl/%s/transport", controller);
	tree_text(t, at, transport);
	snprintf(to, sizeof(to), "../../devices/virtual/nvme-fabrics/ctl/%s", controller);
	snprintf(at, sizeof(at), "sys/class/nvme/%s", controller);
	tree_link(t, at, to);
	snprintf(at, sizeof(at), "sys/devices/virtual/nvme-subsystem/nvme-subsys3/%s", controller);
	tree_link(t, at, "nowhere");
}

static void nvme_multipath(void **state)
{
	struct pst_blockstack stack;
	char text[256];
	struct tree t;

	(void)state;
	plant(&t);
	tree_disk(&t, "virtual/nvme-subsystem/nvme-subsys3/nvme3n2", "259:9");
	tree_link(&t, "sys/class/nvme-subsystem/nvme-subsys3",
		  "../../devices/virtual/nvme-subsystem/nvme-subsys3");
	stack = walk(&t, 259, 9);
	assert_not(&stack, "no path of nvme3n2");
	plant_nvme_path(&t, "nvme5", "nvme3c5n2", "rdma\n");
	plant_nvme_path(&t, "nvme6", "nvme3c6n2", "rdma\n");
	plant_nvme_path(&t, "nvme7", "nvme3c7n1",
			/* this NVMe path leads to another namespace, so it does not count */
			"tcp\n");
	tree_text(&t, "sys/devices/virtual/nvme-subsystem/nvme-subsys3/nvme-x", "");
	tree_disk(&t, "virtual/nvme-fabrics/ctl/nvme-x/nvme3c-xn2", NULL);
	stack = walk(&t, 259, 9);
	assert_int_equal(stack.drive_count, 2);
	assert_string_equal(stack.drives[1].name, "nvme3c6n2");
	assert_string_equal(stack.drives[1].bdf, "");
	pst_blockstack_text(&stack, text, sizeof(text));
	assert_string_equal(text, "raw block on nvme3n2 (nvme multipath) on nvme3c5n2 nvme3c6n2 "
				  "(nvme rdma)");
	/* The machine has no RDMA device, so the transport counts as software. */
	assert_not(&stack, "software");
	tree_link(&t, "sys/class/infiniband/mlx5_0",
		  "../../devices/pci0000:00/0000:02:00.0/infiniband/mlx5_0");
	tree_folder(&t, "sys/devices/pci0000:00/0000:02:00.0/infiniband/mlx5_0");
	stack = walk(&t, 259, 9);
	assert_direct(&stack);
	/* On older kernels a Soft-RoCE device is located below a network card. Its file `parent`
	 * shows that it is Soft-RoCE. */
	tree_link(&t, "sys/class/infiniband/roce1",
		  "../../devices/pci0000:00/0000:02:00.1/infiniband/roce1");
	tree_text(&t, "sys/devices/pci0000:00/0000:02:00.1/infiniband/roce1/parent", "eth0\n");
	stack = walk(&t, 259, 9);
	assert_not(&stack, "software");
	tree_remove(&t, "sys/class/infiniband/roce1");
	/* The file node_desc shows that a device of any name is Soft-RoCE. */
	tree_link(&t, "sys/class/infiniband/mine",
		  "../../devices/pci0000:00/0000:02:00.1/infiniband/mine");
	tree_text(&t, "sys/devices/pci0000:00/0000:02:00.1/infiniband/mine/node_desc", "rxe\n");
	stack = walk(&t, 259, 9);
	assert_not(&stack, "software");
	tree_remove(&t, "sys/class/infiniband/mine");
	/* If one path uses TCP, the stack is not direct, whichever path is in use. */
	plant_nvme_path(&t, "nvme6", "nvme3c6n2", "tcp\n");
	stack = walk(&t, 259, 9);
	assert_not(&stack, "nvme tcp on nvme3c6n2");
	tree_close(&t);
}

static void disk_kinds(void **state)
{
	static const struct {
		const char *path, *driver, *kind;
		bool direct;
	} cases[] = {
		{"pci0000:00/0000:00:05.0/virtio2/block/vda", NULL, "virtio-blk", true},
		{"platform/a003e00.virtio_mmio/virtio2/block/vda", NULL, "virtio-blk", true},
		{"pci0000:00/0000:00:05.0/virtio2/other/vda", NULL, "unknown", false},
		{PCI "/virtio2/host1" LUN, "virtio_scsi", "scsi virtio-scsi", true},
		{PCI "/ata1/host1" LUN, "ahci", "scsi sata", true},
		{PCI "/host1/port-1:0/end_device-1:0" LUN, "mpt3sas", "scsi sas", true},
		{PCI "/host1/rport-1:0-0" LUN, "qla2xxx", "scsi fc", true},
		{PCI "/host1" LUN, "megaraid_sas", "scsi hba", true},
		{PCI "/host1" LUN, "ib_srp", "scsi srp", false},
		{"platform/host1/session1" LUN, "iscsi_tcp", "scsi iscsi", false},
		{PCI "/host1/session1" LUN, "iscsi_tcp", "scsi iscsi", false},
		{PCI "/host1/session1" LUN, "qla4xxx", "scsi iscsi-hba", false},
		{"platform/host1/session1" LUN, "iscsi_iser", "scsi iser", false},
		{PCI "/usb1/1-1/1-1:1.0/host1" LUN, "usb-storage", "scsi usb", false},
		{PCI "/net/eth0/ctlr_0/host1/rport-1:0-0" LUN, NULL, "scsi fcoe", false},
		{"pseudo_0/adapter0/host1" LUN, "scsi_debug", "scsi", false},
		{"platform/ata1/host1" LUN, NULL, "scsi", false},
		{PCI "/host1/block/sda", NULL, "scsi", false},
		{"virtual/block/loop0", NULL, "loop", false},
		{"virtual/block/zram0", NULL, "zram", false},
		{"virtual/block/ram0", NULL, "brd", false},
		{"virtual/block/nullb0", NULL, "null_blk", false},
		{"virtual/block/nbd0", NULL, "nbd", false},
		{"virtual/block/ublkb0", NULL, "ublk", false},
		{"virtual/block/zd0", NULL, "zvol", false},
		{"rbd/0/block/rbd0", NULL, "rbd", false},
		{"LNXSYSTM:00/ndbus0/region0/namespace0.0/block/pmem0", NULL, "pmem", false},
		{"vbd-51712/block/xvda", NULL, "xen", false},
		{PCI "/mmc_host/mmc0/mmc0:0001/block/mmcblk0", NULL, "mmc", false},
		{"virtual/block/drbd0", NULL, "drbd", false},
		{"virtual/block/whatever0", NULL, "unknown", false},
	};
	char text[256], want[64];
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct pst_blockstack stack;
		struct tree t;

		plant(&t);
		tree_disk(&t, cases[i].path, "8:0");
		if (cases[i].driver)
			tree_text(&t, "sys/class/scsi_host/host1/proc_name", cases[i].driver);
		stack = walk(&t, 8, 0);
		pst_blockstack_text(&stack, text, sizeof(text));
		snprintf(want, sizeof(want), "raw block on %s (%s)",
			 strrchr(cases[i].path, '/') + 1, cases[i].kind);
		assert_string_equal(text, want);
		snprintf(want, sizeof(want), "%s on", cases[i].kind);
		if (cases[i].direct)
			assert_direct(&stack);
		else
			assert_not(&stack, want);
		assert_int_equal(stack.drive_count, 1);
		tree_close(&t);
	}
}

/* ---- hostile trees ---- */

static void circular_layers(void **state)
{
	struct pst_blockstack stack;
	struct tree t;

	(void)state;
	plant(&t);
	plant_md(&t, "raid0\n", "md0", "nvme0n1");
	stack = walk(&t, 9, 0);
	assert_not(&stack, "md0 is stacked on itself");
	plant_md(&t, "raid0\n", "dm-0", "nvme0n1");
	tree_remove(&t, "sys/devices/virtual/block/md0/slaves/md0");
	plant_dm(&t, "dm-0", "254:0", "LVM-a\n", "md0");
	stack = walk(&t, 9, 0);
	assert_not(&stack, "md0 is stacked on itself");
	/* A stack may reach one disk by two ways without being circular. */
	plant_md(&t, "raid1\n", "nvme0n1p1", "nvme0n1");
	tree_remove(&t, "sys/devices/virtual/block/md0/slaves/dm-0");
	stack = walk(&t, 9, 0);
	assert_direct(&stack);
	assert_int_equal(stack.drive_count, 1);
	tree_close(&t);
}

static void too_many_layers(void **state)
{
	struct pst_blockstack stack;
	char name[16], below[16], dev[16];
	struct tree t;
	int i;

	(void)state;
	plant(&t);
	for (i = 0; i < 40; i++) {
		snprintf(name, sizeof(name), "dm-%d", i);
		snprintf(below, sizeof(below), "dm-%d", i + 1);
		snprintf(dev, sizeof(dev), "254:%d", i);
		plant_dm(&t, name, dev, "part1-mpath-a\n", i < 39 ? below : "nvme0n1");
	}
	stack = walk(&t, 254, 0);
	assert_int_equal(stack.layer_count, PST_STACK_DEPTH_MAX);
	assert_not(&stack, "more layers");
	/* The stack that begins at dm-30 is short enough for the limit of the depth. */
	stack = walk(&t, 254, 30);
	assert_direct(&stack);
	tree_close(&t);
}

static void too_many_drives(void **state)
{
	struct pst_blockstack stack;
	char path[128], name[48];
	struct tree t;
	int i, count;

	(void)state;
	for (count = PST_STACK_DRIVES_MAX; count < 200; count += 66) {
		plant(&t);
		plant_md(&t, "raid0\n", NULL, NULL);
		for (i = 0; i < count; i++) {
			snprintf(path, sizeof(path), "pci0000:00/0000:00:05.0/virtio2/block/vd%d",
				 i);
			tree_disk(&t, path, NULL);
			snprintf(path, sizeof(path), "sys/devices/virtual/block/md0/slaves/vd%d",
				 i);
			tree_link(&t, path, "nowhere");
		}
		stack = walk(&t, 9, 0);
		assert_int_equal(stack.drive_count, PST_STACK_DRIVES_MAX);
		if (count == PST_STACK_DRIVES_MAX)
			assert_direct(&stack);
		else
			assert_not(&stack, "more");
		tree_close(&t);
	}
	/* The name of a disk has at most 31 bytes, so the walk must refuse a longer name as
	 * invalid. */
	for (i = 31; i < 48; i += i == 32 ? 15 : 1) {
		plant(&t);
		memset(name, 'v', sizeof(name));
		name[i] = '\0';
		plant_md(&t, "raid0\n", "nvme0n1", name);
		stack = walk(&t, 9, 0);
		assert_not(&stack, i == 31 ? "is not in /sys/class/block" : "an invalid name");
		tree_close(&t);
	}
}

static void missing_layers(void **state)
{
	struct pst_blockstack_in in = {.major = 259, .minor = 1, .mount_id = -1};
	struct pst_blockstack stack;
	struct tree t;

	(void)state;
	plant(&t);
	stack = walk(&t, 77, 0);
	assert_not(&stack, "device 77:0 is not in /sys/dev/block");
	tree_remove(&t, "sys/class/block/nvme0n1");
	plant_md(&t, "raid0\n", "nvme0n1", "vdz");
	stack = walk(&t, 9, 0);
	/* Both members of md0 are missing in /sys/class/block; the reason names the first. */
	assert_not(&stack, "nvme0n1 is not in");
	stack = walk(&t, 0, 0);
	assert_not(&stack, "nvme0n1 is not in /sys/class/block");
	tree_remove(&t, "proc/self/mountinfo");
	assert_int_equal(pst_blockstack_read(t.root, &in, &stack), -ENOENT);
	assert_false(pst_blockstack_direct_ok(&stack, NULL, 0));
	assert_int_equal(pst_blockstack_read("/no/such/root", &in, &stack), -ENOENT);
	assert_false(pst_blockstack_direct_ok(&stack, NULL, 0));
	tree_close(&t);
}

/* ---- the machine ---- */

static void swiotlb_is_not_direct(void **state)
{
	static const struct {
		const char *cmdline;
		bool forced;
	} cases[] = {
		{"swiotlb=force\n", true},	     {"ro swiotlb=65536,force quiet\n", true},
		{"swiotlb=65536,4,force\n", true},   {"swiotlb=noforce\n", false},
		{"swiotlb=65536\n", false},	     {"xswiotlb=force\n", false},
		{"swiotlb=65536,noforce\n", false},  {"swiotlb= force\n", false},
		{"swiotlb=1 swiotlb=force\n", true},
	};
	struct pst_blockstack stack;
	struct tree t;
	size_t i;

	(void)state;
	plant(&t);
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		tree_text(&t, "proc/cmdline", cases[i].cmdline);
		stack = walk(&t, 0, 0);
		if (cases[i].forced != !!stack.swiotlb)
			fail_msg("command line '%s': forced swiotlb: %s", cases[i].cmdline,
				 stack.swiotlb ? stack.swiotlb : "no");
	}
	tree_text(&t, "proc/cmdline", "ro\n");
	tree_folder(&t, "sys/class/misc/tdx_guest");
	stack = walk(&t, 0, 0);
	assert_not(&stack, "encrypted");
	tree_close(&t);
}

static void short_dma_mask(void **state)
{
	struct pst_blockstack stack;
	struct tree t;

	(void)state;
	plant(&t);
	tree_text(&t, "sys/devices/" PCI "/dma_mask_bits", "32\n");
	stack = walk(&t, 0, 0);
	assert_not(&stack, "cannot address all");
	tree_text(&t, "proc/meminfo", "MemTotal: 2097152 kB\n");
	stack = walk(&t, 0, 0);
	assert_direct(&stack);
	tree_text(&t, "proc/meminfo", "MemTotal: 16777216 kB\n");
	tree_link(&t, "sys/devices/" PCI "/iommu_group", "../../../kernel/iommu_groups/4");
	tree_text(&t, "sys/kernel/iommu_groups/4/type", "DMA-FQ\n");
	stack = walk(&t, 0, 0);
	assert_direct(&stack);
	tree_text(&t, "sys/kernel/iommu_groups/4/type", "identity\n");
	stack = walk(&t, 0, 0);
	assert_not(&stack, "cannot address all");
	tree_close(&t);
}

/* A stack is not direct if the mount table contradicts statfs or the device number. */
static void contradicting_mount(void **state)
{
	struct pst_blockstack_in in = {
		.major = 259, .minor = 1, .fs_magic = EXT4_MAGIC, .mount_id = 22};
	struct pst_blockstack stack;
	struct tree t;

	(void)state;
	plant(&t);
	assert_int_equal(pst_blockstack_read(t.root, &in, &stack), 0);
	assert_direct(&stack);
	in.fs_magic = 0x58465342;
	assert_int_equal(pst_blockstack_read(t.root, &in, &stack), 0);
	assert_not(&stack, "the mount table says ext4");
	in.fs_magic = EXT4_MAGIC;
	in.minor = 0;
	assert_int_equal(pst_blockstack_read(t.root, &in, &stack), 0);
	assert_not(&stack, "not on the device of its mount");
	in.mount_id = -1;
	assert_int_equal(pst_blockstack_read(t.root, &in, &stack), 0);
	assert_not(&stack, "ext4: its mount is not in the mount table");
	tree_text(&t, "proc/self/mountinfo", "22 1 259:1 / / rw - xfs /dev/nvme0n1p1 rw\n");
	in.mount_id = 22;
	in.fs_magic = 0x58465342;
	assert_int_equal(pst_blockstack_read(t.root, &in, &stack), 0);
	assert_not(&stack, "not on the device of its mount");
	in.minor = 1;
	assert_int_equal(pst_blockstack_read(t.root, &in, &stack), 0);
	assert_direct(&stack);
	tree_close(&t);
}

/* An ext4 file system can journal data by default, which the mount table does not show. So the
 * library must read the file system's options in /proc/fs/ext4. If these are missing or contain
 * data=journal, the block stack must not count as direct. */
static void data_journal_by_default(void **state)
{
	struct pst_blockstack stack;
	struct tree t;

	(void)state;
	plant(&t);
	tree_text(&t, "proc/self/mountinfo", "22 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw\n");
	stack = walk(&t, 0, 0);
	assert_not(&stack, "whether it journals data is not known");
	tree_text(&t, "proc/fs/ext4/nvme0n1p1/options", "rw\ndata=journal\n");
	stack = walk(&t, 0, 0);
	assert_not(&stack, "data=journal");
	tree_text(&t, "proc/fs/ext4/nvme0n1p1/options", "rw\ndata=ordered\n");
	stack = walk(&t, 0, 0);
	assert_direct(&stack);
	tree_text(&t, "proc/fs/ext4/nvme0n1p1/options", "rw\n");
	stack = walk(&t, 0, 0);
	assert_direct(&stack);
	assert_int_equal(stack.mount.data, PST_DATA_NO_JOURNAL);
	/* This file has the options of another device, so the library ignores it. */
	tree_remove(&t, "proc/fs/ext4/nvme0n1p1");
	tree_text(&t, "proc/fs/ext4/nvme0n1/options", "rw\ndata=ordered\n");
	stack = walk(&t, 0, 0);
	assert_not(&stack, "whether it journals data is not known");
	tree_close(&t);
}

/* Files of btrfs have an anonymous device number. The mount's source names the device. */
static void btrfs_source_device(void **state)
{
	struct pst_blockstack_in in = {.minor = 77, .fs_magic = 0x9123683e, .mount_id = 22};
	struct pst_blockstack stack;
	struct tree t;
	char text[128];

	(void)state;
	plant(&t);
	tree_text(&t, "proc/self/mountinfo", "22 1 0:40 / / rw - btrfs /dev/nvme0n1p1 rw\n");
	assert_int_equal(pst_blockstack_read(t.root, &in, &stack), 0);
	pst_blockstack_text(&stack, text, sizeof(text));
	assert_string_equal(text, "btrfs on nvme0n1p1 on nvme0n1 (nvme pcie)");
	assert_not(&stack, "btrfs");
	/* The mount's source names a device-mapper device by its name, which the library does not
	 * resolve to a device number. */
	tree_text(&t, "proc/self/mountinfo", "22 1 0:40 / / rw - btrfs /dev/mapper/a rw\n");
	assert_int_equal(pst_blockstack_read(t.root, &in, &stack), 0);
	assert_int_equal(stack.layer_count, 0);
	/* For file systems other than btrfs, the library does not use the source in the mount
	 * table. */
	tree_text(&t, "proc/self/mountinfo", "22 1 0:40 / / rw - zfs /dev/nvme0n1p1 rw\n");
	in.fs_magic = 0;
	assert_int_equal(pst_blockstack_read(t.root, &in, &stack), 0);
	assert_int_equal(stack.layer_count, 0);
	tree_close(&t);
}

int main(void)
{
	/* clang-format off */
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nvme_partition),
		cmocka_unit_test(md_levels),
		cmocka_unit_test(nvme_multipath),
		cmocka_unit_test(disk_kinds),
		cmocka_unit_test(circular_layers),
		cmocka_unit_test(too_many_layers),
		cmocka_unit_test(too_many_drives),
		cmocka_unit_test(missing_layers),
		cmocka_unit_test(swiotlb_is_not_direct),
		cmocka_unit_test(short_dma_mask),
		cmocka_unit_test(contradicting_mount),
		cmocka_unit_test(data_journal_by_default),
		cmocka_unit_test(btrfs_source_device),
	};
	/* clang-format on */

	return cmocka_run_group_tests(tests, NULL, NULL);
}
