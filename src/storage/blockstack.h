/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies between a file and the drives that hold it, as this kernel shows it
 * in /sys and /proc/self/mountinfo, and whether that stack is on the allow-list
 * of those where O_DIRECT means that a drive's DMA engine moves the bytes. Called
 * when a storage is opened, by `penstock explain` and `penstock check`. Read
 * beneath a root that can be set, so that captured machines are judged likewise.
 *
 * Everything has a limit; what is beyond it, garbled or unreadable is unknown,
 * and what is unknown is never direct. It must never say direct_ok by default: a
 * layer has to be recognised for it. Nothing is kept open, nothing is allocated
 * that the caller would have to free.
 */
#ifndef PST_STORAGE_BLOCKSTACK_H
#define PST_STORAGE_BLOCKSTACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/machine/topo.h"
#include "storage/mountinfo.h"

#define PST_LAYERS_MAX 64
#define PST_STACK_DRIVES_MAX 32
#define PST_STACK_DEPTH_MAX 16

enum pst_layer_kind {
	PST_LAYER_UNKNOWN,
	PST_LAYER_PARTITION,
	PST_LAYER_LINEAR, /* md linear, dm linear, LVM over one */
	PST_LAYER_RAID0,  /* md raid0, dm striped, dm raid0 */
	PST_LAYER_RAID1,
	PST_LAYER_RAID10,
	PST_LAYER_RAID456,
	PST_LAYER_NVME_MULTIPATH, /* a name space over its paths, which are below */
	PST_LAYER_DM_CRYPT,
	PST_LAYER_DM_THIN,
	PST_LAYER_DM_MULTIPATH,
	PST_LAYER_DM_OTHER, /* detail: the target or the prefix of its uuid */
	PST_LAYER_MD_OTHER, /* detail: its level */
	PST_LAYER_BCACHE,
	PST_LAYER_DRBD,
	PST_LAYER_LOOP, /* from here on, what nothing lies below */
	PST_LAYER_ZRAM,
	PST_LAYER_BRD,
	PST_LAYER_NULL_BLK,
	PST_LAYER_NBD,
	PST_LAYER_RBD,
	PST_LAYER_UBLK,
	PST_LAYER_PMEM,
	PST_LAYER_ZVOL,
	PST_LAYER_XEN,
	PST_LAYER_MMC,
	PST_LAYER_VIRTIO_BLK,
	PST_LAYER_SCSI, /* detail: its transport, "" unknown */
	PST_LAYER_NVME, /* likewise */
	PST_LAYER_KINDS,
};

struct pst_layer {
	char name[32];	 /* "md0" */
	char detail[24]; /* "sas", "cache": see the kinds */
	enum pst_layer_kind kind;
	uint8_t depth; /* 0: what the file system lies on */
	int8_t above;  /* index of the layer it was found below, -1: the file system */
};

struct pst_stack_drive {
	char name[32];	       /* "nvme0n1"; a path of several: "nvme0c1n1" */
	char transport[24];    /* "pcie", "rdma", "virtio", "sata", ...; "" unknown */
	char bdf[PST_BDF_LEN]; /* "" none or unknown */
	char model[48];
	int numa;		/* -1 unknown */
	int layer;		/* index of its layer */
	int rotational;		/* 1, 0, -1 unknown */
	uint32_t logical_block; /* bytes, 0 unknown */
	uint32_t dma_align;	/* of memory addresses, bytes; 0: the kernel does not say */
};

struct pst_blockstack {
	struct pst_mount mount; /* fs is RAW_BLOCK for a block device itself */
	bool mounted;		/* the mount was found: its options are known */
	bool complete;		/* false: garbled, too deep or too large; `lost` says what */
	/* static: why this kernel copies what drives move; NULL: it does not */
	const char *swiotlb;
	bool rdma_software; /* there is an RDMA device of software, or none of hardware */
	char lost[96];
	struct pst_layer layers[PST_LAYERS_MAX];
	unsigned layer_count;
	struct pst_stack_drive drives[PST_STACK_DRIVES_MAX];
	unsigned drive_count;
	uint64_t stripe_bytes;	    /* one drive's turn in the topmost stripe, 0 none */
	uint32_t logical_block_max; /* over all drives; 0 unknown */
	uint32_t dma_align_max;
};

struct pst_blockstack_in {
	uint32_t major, minor; /* st_dev of the file; st_rdev of a block device */
	bool is_block;
	uint64_t fs_magic;	 /* statfs's f_type; 0 not known */
	int64_t mount_id;	 /* statx's stx_mnt_id; -1 not known */
	const char *mount_point; /* NULL not known */
};

/* Walks the stack; *out is filled in any case. 0, or -errno when `root` cannot be
 * opened or the mount table cannot be read. May block shortly. Any thread. */
int pst_blockstack_read(const char *root, const struct pst_blockstack_in *in,
			struct pst_blockstack *out);

/* The allow-list. False: `why` (NULL: not wanted) gets one sentence that names what
 * spoils it. Pure. */
bool pst_blockstack_direct_ok(const struct pst_blockstack *stack, char *why, size_t why_len);

/*
 * The same for one file of the stack, by what its inode says: statx's stx_attributes
 * and the flags of FS_IOC_GETFLAGS (0 where that is refused). Encryption, verity,
 * compression, DAX, inline data and a data journal of its own are not direct. Pure.
 */
bool pst_blockstack_inode_ok(uint64_t statx_attributes, uint32_t inode_flags, char *why,
			     size_t why_len);

/* "ext4 on md0 (raid0) on nvme0n1 nvme1n1 (nvme pcie)"; cut to fit. */
void pst_blockstack_text(const struct pst_blockstack *stack, char *out, size_t out_len);
const char *pst_layer_kind_name(enum pst_layer_kind kind);

#endif
