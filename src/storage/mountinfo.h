/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds a file's mount in the text of /proc/self/mountinfo. The result has the properties that
 * decide how the library may move bytes: the file system and a few of its options. blockstack.c and
 * `penstock check` call it. The code reads only the text that the caller passes. That text may be
 * garbled and have lines of any length. The code must never take a part of a line for a complete
 * one.
 */
#ifndef PST_STORAGE_MOUNTINFO_H
#define PST_STORAGE_MOUNTINFO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pst_fs {
	PST_FS_OTHER,
	PST_FS_RAW_BLOCK, /* The file is a block device, without a file system. */
	PST_FS_EXT4,
	PST_FS_XFS,
	PST_FS_BTRFS,
	PST_FS_TMPFS,
	PST_FS_RAMFS,
	PST_FS_OVERLAY,
	PST_FS_FUSE,
	PST_FS_VIRTIOFS,
	PST_FS_9P,
	PST_FS_NFS,
	PST_FS_NFS_RDMA,
	PST_FS_LUSTRE,
	PST_FS_WEKAFS,
	PST_FS_GPFS,
	PST_FS_BEEGFS,
	PST_FS_ZFS,
	PST_FS_KINDS,
};

/* The journal mode of an ext4 mount (option data=). The mount table omits the mode if it is the
 * file system's own default (tune2fs -o), even if that default is data=journal. /proc/fs/ext4
 * always shows the mode. */
enum pst_fs_data {
	PST_DATA_NOT_SAID,
	PST_DATA_NO_JOURNAL, /* The file system has no journal. */
	PST_DATA_ORDERED,
	PST_DATA_WRITEBACK,
	PST_DATA_JOURNAL,
};

struct pst_mount {
	int64_t id;
	/* Device number of the file system. For btrfs, st_dev of a file is a different number. */
	uint32_t major, minor;
	enum pst_fs fs;
	enum pst_fs_data data;
	/* True if the mount has the option "dax" or "dax=always", with which the CPU moves the
	 * bytes. */
	bool dax;
	bool no_recovery; /* Whether the option noload or norecovery is set. */
	bool read_only;
	/* True if an XFS has a real-time device, a second device on which it may store files. */
	bool real_time;
	/* File system type in the kernel's spelling, such as "fuse.sshfs"; "" if it
	 * is too long. */
	char type[32];
	char point[256]; /* Mount point; "" if it is too long. */
	/* Source of the mount, such as "/dev/vda" or "server:/export"; "" if it is too long. */
	char source[128];
	/* Upper directory of an overlay; "" if there is none or its name is too long. */
	char upper[256];
	/* File system type of an overlay's upper directory; "" if it is unknown. */
	char upper_fs[32];
};

/* Properties of a mount by which pst_mount_find searches: its id, its mount point and its device
 * number. The caller sets those that it knows. pst_mount_find tries them in this order, and the
 * first one that matches a mount decides. */
struct pst_mount_key {
	int64_t id;	   /* stx_mnt_id of statx; -1 if it is unknown. */
	const char *point; /* NULL: unknown. */
	bool has_dev;
	uint32_t major, minor; /* st_dev of the file, if has_dev is set. */
};

/* Finds a mount in `text`, which need not end in NUL. Returns 0 and sets *out, or returns
 * -ENOENT if no complete line matches. */
int pst_mount_find(const char *text, size_t len, const struct pst_mount_key *key,
		   struct pst_mount *out);

/* Adds to an ext4 mount the options in `text`, the contents of /proc/fs/ext4/DEVICE/options.
 * That file has one option on each line, and also shows options that are defaults. */
void pst_mount_ext4_options(const char *text, struct pst_mount *mount);

/* Returns the file system of this type, or PST_FS_OTHER if the type is not listed. It cannot
 * tell NFS over RDMA from NFS: they differ only in their options. */
enum pst_fs pst_fs_by_type(const char *type);
/* Returns the file system of an f_type of statfs(2). Used for a file whose mount was not found. */
enum pst_fs pst_fs_by_magic(uint64_t magic);
/* Returns the name of a file system, such as "ext4", in static storage. */
const char *pst_fs_name(enum pst_fs fs);
/* Returns false if statfs(2) never reports this f_type for the file system. */
bool pst_fs_magic_fits(enum pst_fs fs, uint64_t magic);

#endif
