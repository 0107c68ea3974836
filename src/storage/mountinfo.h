/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds a file's mount in the text of /proc/self/mountinfo, with the facts that matter to a
 * plan: the file system and a few of its options. Called by blockstack.c and by `penstock
 * check`. Pure: text in, facts out. The text may be garbled and its lines of any length. It
 * must never take a part of a line for a complete one.
 */
#ifndef PST_STORAGE_MOUNTINFO_H
#define PST_STORAGE_MOUNTINFO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pst_fs {
	PST_FS_OTHER,
	PST_FS_RAW_BLOCK, /* A block device itself, without a file system. */
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

/* The data mode of ext4. The mount table omits a mode that is the file system's own default
 * (tune2fs -o), even if that is a data journal; /proc/fs/ext4 always shows it. */
enum pst_fs_data {
	PST_DATA_NOT_SAID,
	PST_DATA_NO_JOURNAL, /* The file system has no journal. */
	PST_DATA_ORDERED,
	PST_DATA_WRITEBACK,
	PST_DATA_JOURNAL,
};

struct pst_mount {
	int64_t id;
	uint32_t major, minor; /* Of the super block; files of btrfs have a different number. */
	enum pst_fs fs;
	enum pst_fs_data data;
	bool dax;	  /* "dax" or "dax=always": the CPU moves the bytes. */
	bool no_recovery; /* noload or norecovery. */
	bool read_only;
	bool real_time;	  /* XFS: files may be stored on a second device. */
	char type[32];	  /* As the kernel names it, such as "fuse.sshfs"; "": too long. */
	char point[256];  /* "": too long. */
	char source[128]; /* For example "/dev/vda" or "server:/export"; "": too long. */
	char upper[256];  /* Overlay: its upper directory; "": none or too long. */
	/* Overlay: type of the file system of its upper directory; "": unknown. */
	char upper_fs[32];
};

/* Identifies the mount to find. The keys are tried in this order; the first match decides. */
struct pst_mount_key {
	int64_t id;	   /* stx_mnt_id of statx; -1: unknown. */
	const char *point; /* NULL: unknown. */
	bool has_dev;
	uint32_t major, minor; /* st_dev of the file. */
};

/* Finds a mount. Returns 0 and *out, or -ENOENT if no complete line matches. `text` need not
 * end in NUL. */
int pst_mount_find(const char *text, size_t len, const struct pst_mount_key *key,
		   struct pst_mount *out);

/* Adds the contents of /proc/fs/ext4/DEVICE/options to an ext4 mount. That file has all
 * options, one a line, defaults included. */
void pst_mount_ext4_options(const char *text, struct pst_mount *mount);

/* Returns the file system of a mount's type; PST_FS_OTHER for an unlisted type. NFS over RDMA
 * differs from NFS only in its options. */
enum pst_fs pst_fs_by_type(const char *type);
/* Returns the file system of an f_type of statfs(2), for a file whose mount was not found. */
enum pst_fs pst_fs_by_magic(uint64_t magic);
/* Returns the name, such as "ext4". Static storage. */
const char *pst_fs_name(enum pst_fs fs);
/* Returns false only if statfs(2) never reports this f_type for the file system. */
bool pst_fs_magic_fits(enum pst_fs fs, uint64_t magic);

#endif
