/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the mount table parser: which line belongs to a file, and what the options in a line mean.
 * Also tests tables that are garbled, are truncated or have lines of a megabyte. tests/run runs it.
 */
#include "../test.h"

#include <errno.h>
#include <string.h>

#include "storage/mountinfo.h"

#define TABLE                                                                                    \
	"20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro,data=ordered\n" \
	"21 20 8:2 / /data\\040of\\011mine rw - ext4 /dev/sda2 rw,data=journal\n"                \
	"22 20 8:3 /sub /bind ro,noatime master:3 propagate_from:2 - ext4 /dev/sda3 "            \
	"rw,data=writeback,noload\n"                                                             \
	"23 20 8:4 / /pmem rw - xfs /dev/pmem0 rw,attr2,dax=always,inode64\n"                    \
	"24 20 8:5 / /rt rw - xfs /dev/sdb rw,rtdev=/dev/sdc\n"                                  \
	"25 20 0:40 / /tmp rw - tmpfs tmpfs rw,size=1g\n"                                        \
	"26 20 0:41 / /tmp rw - overlay overlay "                                                \
	"rw,lowerdir=/a:/b,upperdir=/data\\040of\\011mine/up,workdir=/w\n"                       \
	"27 20 0:42 / /net rw - nfs4 server:/x rw,vers=4.2,proto=tcp\n"                          \
	"28 20 0:43 / /netr rw - nfs server:/y rw,vers=3,proto=rdma,port=20049\n"                \
	"29 20 0:44 / /inode rw - xfs /dev/sdd rw,dax=inode\n"                                   \
	"30 20 0:45 / /sshfs rw - fuse.sshfs user:/ rw,user_id=0\n"

static struct pst_mount mount_find(const char *text, int64_t id, const char *point, unsigned major,
				   unsigned minor)
{
	struct pst_mount_key key = {.id = id,
				    .point = point,
				    .has_dev = major || minor,
				    .major = major,
				    .minor = minor};
	struct pst_mount mount = {0};
	int ret = pst_mount_find(text, strlen(text), &key, &mount);

	if (ret < 0)
		fail_msg("the mount was not found: %d", ret);
	return mount;
}

static void find_by_id_point_and_device(void **state)
{
	struct pst_mount_key key = {.id = -1, .point = "/nowhere"};
	struct pst_mount mount;

	(void)state;
	assert_int_equal(mount_find(TABLE, 22, "/tmp", 8, 1).minor, 3);
	assert_int_equal(mount_find(TABLE, -1, "/bind", 8, 1).id, 22);
	assert_int_equal(mount_find(TABLE, -1, NULL, 8, 4).id, 23);
	/* No mount has ID 999 or the point "/none", so the device number decides. */
	assert_int_equal(mount_find(TABLE, 999, "/none", 8, 2).id, 21);
	/* Of two mounts on "/tmp" the later one hides the earlier one. */
	assert_int_equal(mount_find(TABLE, -1, "/tmp", 0, 0).id, 26);
	assert_int_equal(pst_mount_find(TABLE, strlen(TABLE), &key, &mount), -ENOENT);
	key.id = 999;
	key.has_dev = true;
	assert_int_equal(pst_mount_find(TABLE, strlen(TABLE), &key, &mount), -ENOENT);
}

static void mount_options(void **state)
{
	struct pst_mount mount = mount_find(TABLE, 20, NULL, 0, 0);

	(void)state;
	assert_int_equal(mount.fs, PST_FS_EXT4);
	assert_int_equal(mount.data, PST_DATA_ORDERED);
	assert_false(mount.dax || mount.no_recovery || mount.read_only || mount.real_time);
	assert_string_equal(mount.source, "/dev/sda1");
	mount = mount_find(TABLE, 21, NULL, 0, 0);
	assert_int_equal(mount.data, PST_DATA_JOURNAL);
	assert_string_equal(mount.point, "/data of\tmine");
	mount = mount_find(TABLE, 22, NULL, 0, 0);
	assert_int_equal(mount.data, PST_DATA_WRITEBACK);
	assert_true(mount.no_recovery && mount.read_only);
	assert_true(mount_find(TABLE, 23, NULL, 0, 0).dax);
	/* With the option dax=inode, each file has its own DAX setting, so the mount does not have
	 * DAX. */
	assert_false(mount_find(TABLE, 29, NULL, 0, 0).dax);
	assert_true(mount_find(TABLE, 24, NULL, 0, 0).real_time);
	assert_int_equal(mount_find(TABLE, 27, NULL, 0, 0).fs, PST_FS_NFS);
	assert_int_equal(mount_find(TABLE, 28, NULL, 0, 0).fs, PST_FS_NFS_RDMA);
	assert_int_equal(mount_find(TABLE, 30, NULL, 0, 0).fs, PST_FS_FUSE);
	assert_string_equal(mount_find(TABLE, 30, NULL, 0, 0).type, "fuse.sshfs");
}

/* The full list of options in /proc/fs/ext4 overrides the options in the mount table. */
static void ext4_options(void **state)
{
	static const struct {
		const char *text;
		enum pst_fs_data data;
	} cases[] = {
		{"rw\ndelalloc\ndata=ordered\nstripe=0\n", PST_DATA_ORDERED},
		{"rw\ndata=journal", PST_DATA_JOURNAL},
		{"rw\ndata=writeback\n", PST_DATA_WRITEBACK},
		{"rw\ndelalloc\n", PST_DATA_NO_JOURNAL},
		{"rw\nxdata=journal\ndata=journalling\n", PST_DATA_NO_JOURNAL},
		{"\n\n", PST_DATA_NO_JOURNAL},
	};
	struct pst_mount mount;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		mount = mount_find("1 0 8:1 / / rw - ext4 /dev/sda1 rw,data=ordered\n", 1, NULL, 0,
				   0);
		pst_mount_ext4_options(cases[i].text, &mount);
		if (mount.data != cases[i].data)
			fail_msg("case %zu: journal mode %d", i, mount.data);
		assert_false(mount.dax);
	}
	pst_mount_ext4_options("rw\ndax=always\n", &mount);
	assert_true(mount.dax);
}

static void overlay_upper(void **state)
{
	struct pst_mount mount = mount_find(TABLE, 26, NULL, 0, 0);

	(void)state;
	assert_int_equal(mount.fs, PST_FS_OVERLAY);
	assert_string_equal(mount.upper, "/data of\tmine/up");
	assert_string_equal(mount.upper_fs, "ext4");
	/* In a container the overlay is mounted on /, and the path of its upper directory has no
	 * meaning there. So the parser must not look up the file system of that directory. */
	mount = mount_find("1 0 0:9 / / rw - overlay overlay rw,upperdir=/var/up\n", 1, NULL, 0, 0);
	assert_string_equal(mount.upper_fs, "");
	/* The upper directory "/varied/up" is not below the mount point "/var", so it is on the
	 * file system of "/". */
	mount = mount_find("1 0 0:9 / /m rw - overlay overlay rw,upperdir=/varied/up\n"
			   "2 0 8:1 / /var rw - ext4 /dev/sda rw\n"
			   "3 0 8:2 / / rw - xfs /dev/sdb rw\n",
			   1, NULL, 0, 0);
	assert_string_equal(mount.upper_fs, "xfs");
	/* Of two mounts on /var the later one is visible. */
	mount = mount_find("1 0 0:9 / /m rw - overlay overlay rw,upperdir=/var/up\n"
			   "2 0 8:1 / /var rw - ext4 /dev/sda rw\n"
			   "3 0 8:2 / /var rw - xfs /dev/sdb rw\n",
			   1, NULL, 0, 0);
	assert_string_equal(mount.upper_fs, "xfs");
	mount = mount_find("1 0 0:9 / /m rw - overlay overlay rw,lowerdir=/a\n", 1, NULL, 0, 0);
	assert_string_equal(mount.upper, "");
}

static void garbled_lines(void **state)
{
	static const char *const lines[] = {
		"",
		"\n\n\n",
		" \n",
		"20\n",
		"20 1 8:1 / / rw\n",
		"20 1 8:1 / / rw shared:1\n",
		"20 1 8:1 / / rw -\n",
		"20 1 8:1 / / rw - ext4\n",
		"20 1 8:1 / / rw - ext4 /dev/sda1\n",
		"20 1 8:1 / / rw - ext4 /dev/sda1 \n",
		"20 1 8:1 / / rw - ext4 /dev/sda1 rw", /* Without a newline. */
		"20 1 8 / / rw - ext4 /dev/sda1 rw\n",
		"20 1 :1 / / rw - ext4 /dev/sda1 rw\n",
		"20 1 8: / / rw - ext4 /dev/sda1 rw\n",
		"20 1 99999999999:1 / / rw - ext4 /dev/sda1 rw\n",
		"20 1 -8:1 / / rw - ext4 /dev/sda1 rw\n",
		"x20 1 8:1 / / rw - ext4 /dev/sda1 rw\n",
		"99999999999999999999 1 8:1 / / rw - ext4 /dev/sda1 rw\n",
	};
	struct pst_mount_key key = {
		.id = 20, .point = "/", .has_dev = true, .major = 8, .minor = 1};
	struct pst_mount mount;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		if (pst_mount_find(lines[i], strlen(lines[i]), &key, &mount) != -ENOENT)
			fail_msg("'%s' was accepted as a mount", lines[i]);
	/* Garbled lines do not hide a valid line. */
	mount = mount_find("what\n20 1 8:1 / / rw - ext4 /dev/sda1 rw\n20 1 8:1", 20, NULL, 0, 0);
	assert_int_equal(mount.fs, PST_FS_EXT4);
	assert_int_equal(mount.data, PST_DATA_NOT_SAID);
}

/* A value that is too long for its field becomes empty, because the truncated value could be
 * another valid name. */
static void too_long_values(void **state)
{
	size_t len = 1 << 20;
	char *text = malloc(len + 512), *at;
	struct pst_mount_key key = {.id = 5};
	struct pst_mount mount;

	(void)state;
	assert_non_null(text);
	at = stpcpy(text, "5 0 0:9 / /");
	memset(at, 'p', len / 2);
	at += len / 2;
	at = stpcpy(at, " rw - overlay overlay rw,upperdir=/");
	memset(at, 'u', len / 4);
	at += len / 4;
	at = stpcpy(at, ",data=journal\n");
	assert_int_equal(pst_mount_find(text, (size_t)(at - text), &key, &mount), 0);
	assert_string_equal(mount.point, "");
	assert_string_equal(mount.upper, "");
	assert_int_equal(mount.fs, PST_FS_OVERLAY);
	assert_int_equal(mount.data, PST_DATA_JOURNAL);
	/* A file system type that is too long for its field becomes empty. */
	mount = mount_find("5 0 0:9 / / rw - "
			   "ext4ext4ext4ext4ext4ext4ext4ext4 x rw\n",
			   5, NULL, 0, 0);
	assert_string_equal(mount.type, "");
	assert_int_equal(mount.fs, PST_FS_OTHER);
	mount = mount_find("5 0 0:9 / /a\\000b rw - ext4 /d\\0403 rw\n", 5, NULL, 0, 0);
	assert_string_equal(mount.point, "");
	assert_string_equal(mount.source, "/d 3");
	free(text);
}

static void file_system_kinds(void **state)
{
	static const struct {
		const char *type;
		enum pst_fs fs;
		uint64_t magic; /* Magic number of the file system, 0 if unknown. */
	} cases[] = {
		{"ext4", PST_FS_EXT4, 0xef53},
		{"ext3", PST_FS_OTHER, 0},
		{"ext2", PST_FS_OTHER, 0},
		{"xfs", PST_FS_XFS, 0x58465342},
		{"btrfs", PST_FS_BTRFS, 0x9123683e},
		{"tmpfs", PST_FS_TMPFS, 0x01021994},
		{"devtmpfs", PST_FS_TMPFS, 0},
		{"ramfs", PST_FS_RAMFS, 0x858458f6},
		{"overlay", PST_FS_OVERLAY, 0x794c7630},
		{"fuse", PST_FS_FUSE, 0x65735546},
		{"fuseblk", PST_FS_FUSE, 0},
		{"fuse.gcsfuse", PST_FS_FUSE, 0},
		{"virtiofs", PST_FS_VIRTIOFS, 0},
		{"9p", PST_FS_9P, 0x01021997},
		{"nfs", PST_FS_NFS, 0x6969},
		{"nfs4", PST_FS_NFS, 0},
		{"lustre", PST_FS_LUSTRE, 0x0bd00bd0},
		{"wekafs", PST_FS_WEKAFS, 0},
		{"gpfs", PST_FS_GPFS, 0x47504653},
		{"beegfs", PST_FS_BEEGFS, 0x19830326},
		{"zfs", PST_FS_ZFS, 0x2fc12fc1},
		{"raw block", PST_FS_OTHER, 0},
		{"", PST_FS_OTHER, 0},
		{"ext4 ", PST_FS_OTHER, 0},
	};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		enum pst_fs fs = pst_fs_by_type(cases[i].type);

		if (fs != cases[i].fs)
			fail_msg("file system '%s' was recognised as %s", cases[i].type,
				 pst_fs_name(fs));
		assert_true(pst_fs_magic_fits(fs, 0));
		if (!cases[i].magic)
			continue;
		assert_int_equal(pst_fs_by_magic(cases[i].magic), fs);
		assert_true(pst_fs_magic_fits(fs, cases[i].magic));
		assert_false(pst_fs_magic_fits(fs, cases[i].magic + 1));
	}
	assert_int_equal(pst_fs_by_magic(0), PST_FS_OTHER);
	assert_int_equal(pst_fs_by_magic(0x1234), PST_FS_OTHER);
	/* On a kernel without tmpfs, devtmpfs has the magic number of ramfs. */
	assert_true(pst_fs_magic_fits(PST_FS_TMPFS, 0x858458f6));
}

int main(void)
{
	/* clang-format off */
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(find_by_id_point_and_device),
		cmocka_unit_test(mount_options),
		cmocka_unit_test(ext4_options),
		cmocka_unit_test(overlay_upper),
		cmocka_unit_test(garbled_lines),
		cmocka_unit_test(too_long_values),
		cmocka_unit_test(file_system_kinds),
	};
	/* clang-format on */

	return cmocka_run_group_tests(tests, NULL, NULL);
}
