/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds a file's mount in the text of /proc/self/mountinfo and what of it matters
 * to a plan: the file system and a few of its options. Called by blockstack.c and
 * by `penstock check`. Pure: text in, facts out. The text may be garbled and its
 * lines of any length; it must never take half a line for a whole one.
 */
#ifndef PST_STORAGE_MOUNTINFO_H
#define PST_STORAGE_MOUNTINFO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pst_fs {
	PST_FS_OTHER,
	PST_FS_RAW_BLOCK, /* no file system: a block device itself */
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

/* What ext4 does with data. A mount table is silent about a mode that is the file
 * system's own default (tune2fs -o), even where that is a data journal; what is in
 * /proc/fs/ext4 is not. */
enum pst_fs_data {
	PST_DATA_NOT_SAID,
	PST_DATA_NO_JOURNAL, /* there is no journal at all */
	PST_DATA_ORDERED,
	PST_DATA_WRITEBACK,
	PST_DATA_JOURNAL,
};

struct pst_mount {
	int64_t id;
	uint32_t major, minor; /* of the super block; btrfs files have another */
	enum pst_fs fs;
	enum pst_fs_data data;
	bool dax;	  /* "dax" or "dax=always": the CPU moves the bytes */
	bool no_recovery; /* noload, norecovery */
	bool read_only;
	bool real_time;	   /* xfs: files may lie on a second device */
	char type[32];	   /* as the kernel says, "fuse.sshfs"; "" too long */
	char point[256];   /* "" too long */
	char source[128];  /* "/dev/vda", "server:/export"; "" too long */
	char upper[256];   /* overlay: its upper folder; "" none or too long */
	char upper_fs[32]; /* overlay: the type of what that lies on; "" not known */
};

/* What is known of the mount; the first of them that finds one decides. */
struct pst_mount_key {
	int64_t id;	   /* statx's stx_mnt_id; -1 not known */
	const char *point; /* NULL not known */
	bool has_dev;
	uint32_t major, minor; /* of the file's st_dev */
};

/* 0 and *out, or -ENOENT when no whole line is it. `text` need not end in NUL. */
int pst_mount_find(const char *text, size_t len, const struct pst_mount_key *key,
		   struct pst_mount *out);

/* Adds what /proc/fs/ext4/DEVICE/options says to a mount of ext4: all its options,
 * one a line, also those that are defaults. */
void pst_mount_ext4_options(const char *text, struct pst_mount *mount);

/* By the type of a mount; PST_FS_OTHER for what is not in the list. NFS over RDMA
 * is told from NFS by its options only. */
enum pst_fs pst_fs_by_type(const char *type);
/* By statfs(2)'s number, where there is no mount to be found. */
enum pst_fs pst_fs_by_magic(uint64_t magic);
/* "ext4"; static. */
const char *pst_fs_name(enum pst_fs fs);
/* May statfs(2) call such a file system by this number? False only when not. */
bool pst_fs_magic_fits(enum pst_fs fs, uint64_t magic);

#endif
