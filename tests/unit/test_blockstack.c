/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the allow-list: the rules that decide whether a file's block devices and file system permit
 * direct transfers. Each rule has a case here that fails without it. Also compares the verdicts for
 * the block devices of recorded machines with the expected verdicts. tests/run runs it.
 */
#include "../replay/judge.h"

#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

/* ---- verdicts ---- */

/* Returns a stack with the verdict "direct": ext4 on a partition of an NVMe drive on PCIe. */
static struct pst_blockstack direct_stack(void)
{
	struct pst_blockstack stack = {
		.mount = {.fs = PST_FS_EXT4, .data = PST_DATA_ORDERED, .type = "ext4"},
		.mounted = true,
		.complete = true,
		.layers = {{.name = "nvme0n1p1", .kind = PST_LAYER_PARTITION, .above = -1},
			   {.name = "nvme0n1", .kind = PST_LAYER_NVME, .detail = "pcie"}},
		.layer_count = 2,
		.drives = {{.name = "nvme0n1", .transport = "pcie"}},
		.drive_count = 1,
	};

	return stack;
}

static void file_system_kinds(void **state)
{
	struct pst_blockstack stack = direct_stack();
	unsigned fs;

	(void)state;
	assert_direct(&stack);
	for (fs = 0; fs < PST_FS_KINDS; fs++) {
		stack.mount.fs = (enum pst_fs)fs;
		snprintf(stack.mount.type, sizeof(stack.mount.type), "%s",
			 pst_fs_name((enum pst_fs)fs));
		if (fs == PST_FS_EXT4 || fs == PST_FS_XFS || fs == PST_FS_RAW_BLOCK)
			assert_direct(&stack);
		else
			assert_not(&stack, pst_fs_name((enum pst_fs)fs));
	}
	stack.mount.fs = PST_FS_KINDS;
	assert_not(&stack, "not known");
	stack.mount.fs = PST_FS_OTHER;
	snprintf(stack.mount.type, sizeof(stack.mount.type), "f2fs");
	assert_not(&stack, "f2fs");
	stack.mount.fs = PST_FS_OVERLAY;
	snprintf(stack.mount.upper_fs, sizeof(stack.mount.upper_fs), "tmpfs");
	assert_not(&stack, "overlay on tmpfs");
}

static void mount_options(void **state)
{
	struct pst_blockstack stack = direct_stack();

	(void)state;
	stack.mount.data = PST_DATA_WRITEBACK;
	assert_direct(&stack);
	stack.mount.data = PST_DATA_NO_JOURNAL;
	assert_direct(&stack);
	stack.mount.data = PST_DATA_NOT_SAID;
	assert_not(&stack, "whether it journals data is not known");
	stack.mount.fs = PST_FS_XFS; /* XFS never journals data, so the data mode does not matter */
	assert_direct(&stack);
	stack.mount.fs = PST_FS_EXT4;
	stack.mount.data = PST_DATA_JOURNAL;
	assert_not(&stack, "data=journal");
	stack = direct_stack();
	stack.mount.dax = true;
	assert_not(&stack, "dax");
	stack = direct_stack();
	stack.mount.fs = PST_FS_XFS;
	stack.mount.real_time = true;
	assert_not(&stack, "rtdev");
	stack = direct_stack();
	stack.mounted = false;
	assert_not(&stack, "mount table");
	/* a raw block device has no mount, so mount options do not matter */
	stack.mount.fs = PST_FS_RAW_BLOCK;
	assert_direct(&stack);
	stack = direct_stack();
	stack.mount.no_recovery = stack.mount.read_only = true;
	assert_direct(&stack);
}

static void layer_kinds(void **state)
{
	struct pst_blockstack stack = direct_stack();
	unsigned kind;

	(void)state;
	for (kind = 0; kind < PST_LAYER_KINDS; kind++) {
		stack.layers[0] =
			(struct pst_layer){.kind = (enum pst_layer_kind)kind, .name = "thing7"};
		switch (kind) {
		case PST_LAYER_PARTITION:
		case PST_LAYER_LINEAR:
		case PST_LAYER_RAID0:
		case PST_LAYER_RAID1:
		case PST_LAYER_RAID10:
		case PST_LAYER_NVME_MULTIPATH:
		case PST_LAYER_VIRTIO_BLK:
			assert_direct(&stack);
			break;
		/* Layers of kind scsi and nvme are refused, too, because these layers have no
		 * transport here. */
		default:
			assert_not(&stack, "thing7");
			if (kind)
				assert_not(&stack, pst_layer_kind_name((enum pst_layer_kind)kind));
		}
	}
	stack.layers[0].kind = PST_LAYER_KINDS;
	assert_not(&stack, "thing7");
	stack.layers[0] = (struct pst_layer){.kind = PST_LAYER_DM_OTHER, .detail = "cache"};
	assert_not(&stack, "dm-cache");
	stack = direct_stack();
	stack.layers[0].kind = PST_LAYER_DM_CRYPT;
	assert_not(&stack, "the CPU encrypts and decrypts every byte");
}

static void transports(void **state)
{
	static const struct {
		enum pst_layer_kind kind;
		const char *transport;
		/* 1: direct; 0: not direct; 2: direct unless the RDMA device is emulated in
		 * software. */
		int want;
	} cases[] = {
		{PST_LAYER_NVME, "pcie", 1},
		{PST_LAYER_NVME, "rdma", 2},
		{PST_LAYER_NVME, "tcp", 0},
		{PST_LAYER_NVME, "fc", 0},
		{PST_LAYER_NVME, "loop", 0},
		{PST_LAYER_NVME, "apple-nvme", 0},
		{PST_LAYER_NVME, "", 0},
		{PST_LAYER_NVME, "sata", 0},
		{PST_LAYER_SCSI, "sata", 1},
		{PST_LAYER_SCSI, "sas", 1},
		{PST_LAYER_SCSI, "fc", 1},
		{PST_LAYER_SCSI, "hba", 1},
		{PST_LAYER_SCSI, "virtio-scsi", 1},
		{PST_LAYER_SCSI, "iser", 2},
		{PST_LAYER_SCSI, "srp", 2},
		{PST_LAYER_SCSI, "iscsi", 0},
		{PST_LAYER_SCSI, "iscsi-hba", 0},
		{PST_LAYER_SCSI, "fcoe", 0},
		{PST_LAYER_SCSI, "usb", 0},
		{PST_LAYER_SCSI, "", 0},
	};
	struct pst_blockstack stack = direct_stack();
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		stack.layers[1].kind = cases[i].kind;
		snprintf(stack.layers[1].detail, sizeof(stack.layers[1].detail), "%s",
			 cases[i].transport);
		stack.rdma_software = false;
		if (cases[i].want)
			assert_direct(&stack);
		else
			assert_not(&stack, cases[i].transport);
		stack.rdma_software = true;
		if (cases[i].want == 2)
			assert_not(&stack, "software");
		else if (cases[i].want)
			assert_direct(&stack);
	}
}

static void incomplete_stack_is_not_direct(void **state)
{
	struct pst_blockstack stack = direct_stack();

	(void)state;
	stack.complete = false;
	snprintf(stack.lost, sizeof(stack.lost), "md0 is stacked on itself");
	assert_not(&stack, "md0 is stacked on itself");
	/* If a stack has a known obstacle and also an unknown property, the reason names the
	 * obstacle. */
	stack.layers[0].kind = PST_LAYER_DM_CRYPT;
	assert_not(&stack, "dm-crypt");
	stack = direct_stack();
	stack.drive_count = 0;
	assert_not(&stack, "no drive");
	stack = direct_stack();
	stack.swiotlb = "for a test";
	assert_not(&stack, "swiotlb: for a test");
	stack = (struct pst_blockstack){0};
	assert_false(pst_blockstack_direct_ok(&stack, NULL, 0));
}

static void inode_attributes(void **state)
{
	static const struct {
		uint64_t attribute;
		uint32_t flag;
		/* Word that the reason must contain, NULL if the inode is accepted. */
		const char *word;
	} cases[] = {
		{0, 0, NULL},
		{0x800, 0, "encrypted"},
		{0, 0x800, "encrypted"},
		{0x100000, 0, "verity"},
		{0, 0x100000, "verity"},
		{0x4, 0, "compressed"},
		{0, 0x4, "compressed"},
		{0x200000, 0, "DAX"},
		{0, 0x10000000, "inside its inode"},
		{0, 0x4000, "data journal"},
		/* The attributes immutable, append-only and no-dump and the flags extents and
		 * no-atime are accepted. */
		{0x70, 0x80080, NULL},
	};
	char why[256];
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		bool ok = pst_blockstack_inode_ok(cases[i].attribute, cases[i].flag, why,
						  sizeof(why));

		if (ok != !cases[i].word || (cases[i].word && !strstr(why, cases[i].word)))
			fail_msg("case %zu: accepted %d, reason '%s'", i, ok, why);
	}
}

/* ---- replayed machines ---- */

static struct tree machines;

/* Reads the stack of block devices below a file at mount point `point`, with the mount table of
 * `machine`. */
static struct pst_blockstack replay(const char *machine, const char *point)
{
	struct pst_blockstack_in in = {.mount_id = -1, .mount_point = point};
	struct pst_mount_key key = {.id = -1, .point = point};
	struct pst_blockstack stack;
	char path[1024], *text;
	struct pst_mount mount;
	size_t len;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s/proc/self/mountinfo", machines.root, machine);
	f = fopen(path, "r");
	assert_non_null(f);
	text = malloc(65536);
	assert_non_null(text);
	len = fread(text, 1, 65536, f);
	fclose(f);
	assert_int_equal(pst_mount_find(text, len, &key, &mount), 0);
	free(text);
	in.major = mount.major;
	in.minor = mount.minor;
	snprintf(path, sizeof(path), "%s/%s", machines.root, machine);
	assert_int_equal(pst_blockstack_read(path, &in, &stack), 0);
	return stack;
}

/* Reads the stack of block devices that begins with the block device `name`. */
static struct pst_blockstack replay_block(const char *machine, const char *name)
{
	struct pst_blockstack_in in = {.is_block = true, .mount_id = -1};
	struct pst_blockstack stack;
	char path[1024];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s/sys/class/block/%s/dev", machines.root, machine, name);
	f = fopen(path, "r");
	assert_non_null(f);
	assert_int_equal(fscanf(f, "%u:%u", &in.major, &in.minor), 2);
	fclose(f);
	snprintf(path, sizeof(path), "%s/%s", machines.root, machine);
	assert_int_equal(pst_blockstack_read(path, &in, &stack), 0);
	return stack;
}

static const struct {
	/* `word`: word that the reason must contain, NULL if the verdict is "direct". */
	const char *machine, *point, *text, *word;
	unsigned drives;
} replays[] = {
	{"dgx", "/", "ext4 on nvme8n1p2 on nvme8n1 (nvme pcie)", NULL, 1},
	{"dgx", "/raid",
	 "xfs on md1 (raid0) on nvme0n1 nvme1n1 nvme2n1 nvme3n1 and 4 more (nvme "
	 "multipath) on nvme0c0n1 nvme1c1n1 nvme2c2n1 nvme3c3n1 and 4 more (nvme pcie)",
	 NULL, 8},
	{"dgx", "/dev/shm", "tmpfs", "tmpfs", 0},
	{"cloud-vm", "/", "ext4 on vda1 on vda (virtio-blk)", NULL, 1},
	{"cloud-vm", "/local", "ext4 on nvme0n1 (nvme pcie)", NULL, 1},
	{"cloud-vm", "/share", "virtiofs", "virtiofs", 0},
	{"cloud-vm", "/nfs", "nfs", "nfs: the CPU copies", 0},
	{"cloud-vm", "/nfsr", "nfs-rdma", "nfs-rdma", 0},
	{"amd", "/", "ext4 on sda2 on sda (scsi sata)", NULL, 1},
	{"amd", "/lv", "xfs on dm-0 (linear) on nvme0n1 (nvme pcie)", NULL, 1},
	{"amd", "/striped", "xfs on dm-1 (raid0) on nvme1n1 nvme2n1 (nvme pcie)", NULL, 2},
	{"amd", "/home", "ext4 on dm-2 (dm-crypt) on nvme3n1 (nvme pcie)", "dm-crypt", 1},
	{"acs", "/", "ext4 on nvme0n1 (nvme pcie)", NULL, 1},
	{"iommu", "/", "ext4 on nvme0n1 (nvme pcie)", NULL, 1},
	{"container", "/", "overlay", "overlay", 0},
	{"container", "/data", "ext4 on nvme0n1p1 on nvme0n1 (nvme pcie)", NULL, 1},
	{"nvmeof", "/rdma", "xfs on nvme0n1 (nvme multipath) on nvme0c0n1 nvme0c1n1 (nvme rdma)",
	 NULL, 2},
	{"nvmeof", "/tcp", "xfs on nvme1n1 (nvme multipath) on nvme1c2n1 (nvme tcp)",
	 "nvme tcp on nvme1c2n1", 1},
	{"nvmeof", "/both",
	 "xfs on nvme2n1 (nvme multipath) on nvme2c3n1 (nvme rdma) nvme2c4n1 (nvme tcp)",
	 "nvme tcp on nvme2c4n1", 2},
	{"nvmeof-soft", "/rdma",
	 "xfs on nvme0n1 (nvme multipath) on nvme0c0n1 nvme0c1n1 (nvme rdma)", "software", 2},
	{"md", "/", "ext4 on md127p1 on md127 (raid1) on sda1 sdb1 on sda sdb (scsi sata)", NULL,
	 2},
	{"md", "/fast", "ext4 on md0 (raid0) on nvme0n1 nvme1n1 nvme2n1 nvme3n1 (nvme pcie)", NULL,
	 4},
	{"md", "/safe", "xfs on md5 (raid456) on nvme4n1 nvme5n1 nvme6n1 (nvme pcie)",
	 "raid456 on md5", 3},
	{"md", "/journal", "ext4 on md0 (raid0) on nvme0n1 nvme1n1 nvme2n1 nvme3n1 (nvme pcie)",
	 "data=journal", 4},
	{"md", "/hidden",
	 "ext4 on md0p1 on md0 (raid0) on nvme0n1 nvme1n1 nvme2n1 nvme3n1 (nvme pcie)",
	 "data=journal", 4},
	{"firecracker", "/", "ext4 on vda (virtio-blk)", NULL, 1},
	{"firecracker", "loop0", "raw block on loop0 (loop)", "loop on", 1},
	{"firecracker", "zram0", "raw block on zram0 (zram)", "zram on", 1},
	{"lab-switch", "/mnt", "ext4 on nvme0n1 (nvme pcie)", NULL, 1},
	{"lab-switch", "dm-0", "raw block on dm-0 (linear) on nvme1n1 (nvme pcie)", NULL, 1},
	{"lab-switch", "dm-1", "raw block on dm-1 (raid0) on nvme1n1 (nvme pcie)", NULL, 1},
	{"lab-switch", "dm-2", "raw block on dm-2 (dm-crypt) on nvme1n1 (nvme pcie)",
	 "dm-crypt on dm-2", 1},
	{"lab-switch", "dm-4", "raw block on dm-4 (dm-thin) on dm-3 (dm-thin) on ram0 ram1 (brd)",
	 "dm-thin on dm-4", 2},
	{"lab-switch", "nullb0", "raw block on nullb0 (null_blk)", "null_blk on", 1},
	{"lab-switch", "nvme3n1", "raw block on nvme3n1 (nvme multipath) on nvme3c3n1 (nvme loop)",
	 "nvme loop on nvme3c3n1", 1},
	/* This file system journals data, although the mount table does not show that. */
	{"lab-acs", "/p1003", "ext4 on nvme2n1 (nvme pcie)", "data=journal", 1},
};

static void replayed_machines(void **state)
{
	char text[512];
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(replays) / sizeof(replays[0]); i++) {
		const char *point = replays[i].point;
		struct pst_blockstack stack = point[0] == '/'
						      ? replay(replays[i].machine, point)
						      : replay_block(replays[i].machine, point);

		pst_blockstack_text(&stack, text, sizeof(text));
		assert_string_equal(text, replays[i].text);
		assert_int_equal(stack.drive_count, replays[i].drives);
		if (replays[i].word)
			assert_not(&stack, replays[i].word);
		else
			assert_direct(&stack);
	}
}

/* On the machine that runs the test any verdict is right, but the verdict must have a text. */
static void this_machine(void **state)
{
	struct pst_blockstack stack;
	struct stat st;
	struct statfs fs;
	char text[256], why[256];

	(void)state;
	assert_int_equal(stat(".", &st), 0);
	assert_int_equal(statfs(".", &fs), 0);
	struct pst_blockstack_in in = {.major = major(st.st_dev),
				       .minor = minor(st.st_dev),
				       .fs_magic = (uint64_t)fs.f_type & UINT32_MAX,
				       .mount_id = -1};

	assert_int_equal(pst_blockstack_read("", &in, &stack), 0);
	pst_blockstack_text(&stack, text, sizeof(text));
	assert_true(strlen(text) > 2);
	if (!pst_blockstack_direct_ok(&stack, why, sizeof(why)))
		assert_true(strlen(why) > 10);
	printf("# stack of this machine: %s\n", text);
}

static int machines_open(void **state)
{
	(void)state;
	tree_open(&machines);
	tree_synth(&machines, "all");
	tree_capture(&machines, "firecracker");
	tree_capture(&machines, "lab-switch");
	tree_capture(&machines, "lab-acs");
	return 0;
}

static int machines_close(void **state)
{
	(void)state;
	tree_close(&machines);
	return 0;
}

int main(void)
{
	/* clang-format off */
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(file_system_kinds),
		cmocka_unit_test(mount_options),
		cmocka_unit_test(layer_kinds),
		cmocka_unit_test(transports),
		cmocka_unit_test(incomplete_stack_is_not_direct),
		cmocka_unit_test(inode_attributes),
		cmocka_unit_test(replayed_machines),
		cmocka_unit_test(this_machine),
	};
	/* clang-format on */

	return cmocka_run_group_tests(tests, machines_open, machines_close);
}
