/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block stack: all layers between a file and the drives that hold it, as this kernel shows
 * them in /sys and /proc/self/mountinfo. Read when a storage is opened, by `penstock explain`
 * and by `penstock check`; blockstack_verdict.h judges it. The root directory can be set, so
 * that captured machines are read in the same way.
 *
 * Every list has a limit. Whatever exceeds it, is garbled or cannot be read is recorded as
 * unknown. Nothing stays open, and the caller has nothing to free.
 */
#ifndef PST_STORAGE_BLOCKSTACK_H
#define PST_STORAGE_BLOCKSTACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/machine/pci_address.h"
#include "storage/mountinfo.h"

#define PST_LAYERS_MAX 64
#define PST_STACK_DRIVES_MAX 32
#define PST_STACK_DEPTH_MAX 16

enum pst_layer_kind {
	PST_LAYER_UNKNOWN,
	PST_LAYER_PARTITION,
	PST_LAYER_LINEAR, /* md linear, dm linear, LVM over one of these. */
	PST_LAYER_RAID0,  /* md raid0, dm striped, dm raid0. */
	PST_LAYER_RAID1,
	PST_LAYER_RAID10,
	PST_LAYER_RAID456,
	PST_LAYER_NVME_MULTIPATH, /* A namespace over its paths, which are the layers below it. */
	PST_LAYER_DM_CRYPT,
	PST_LAYER_DM_THIN,
	PST_LAYER_DM_MULTIPATH,
	PST_LAYER_DM_OTHER, /* `detail` is the target, or the prefix of its uuid. */
	PST_LAYER_MD_OTHER, /* `detail` is its level. */
	PST_LAYER_BCACHE,
	PST_LAYER_DRBD,
	PST_LAYER_LOOP, /* From here on: kinds without a layer below. */
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
	PST_LAYER_SCSI, /* `detail` is its transport; "": unknown. */
	PST_LAYER_NVME, /* `detail` is its transport; "": unknown. */
	PST_LAYER_KINDS,
};

struct pst_layer {
	char name[32];	 /* For example "md0". */
	char detail[24]; /* For example "sas": see the kinds. */
	enum pst_layer_kind kind;
	uint8_t depth; /* 0: the file system is directly on this layer. */
	int8_t above;  /* Index of the layer above; -1: the file system. */
};

struct pst_stack_drive {
	char name[32];	       /* For example "nvme0n1"; one path of several: "nvme0c1n1". */
	char transport[24];    /* "pcie", "rdma", "virtio", "sata" or another; "": unknown. */
	char bdf[PST_BDF_LEN]; /* PCI address; "": none or unknown. */
	char model[48];
	int numa;		/* NUMA node; -1: unknown. */
	int layer;		/* Index of its layer. */
	int rotational;		/* 1, 0, or -1: unknown. */
	uint32_t logical_block; /* Bytes; 0: unknown. */
	/* Alignment of memory addresses in bytes; 0: the kernel does not report it. */
	uint32_t dma_align;
};

struct pst_blockstack {
	struct pst_mount mount; /* fs is RAW_BLOCK for a block device itself. */
	bool mounted;		/* The mount was found, so its options are known. */
	/* False: the stack is garbled, too deep or too large; `lost` has the reason. */
	bool complete;
	/* Why this kernel copies the bytes that drives move; static. NULL: it does not. */
	const char *swiotlb;
	bool rdma_software; /* An RDMA device is implemented in software, or none in hardware. */
	char lost[96];
	struct pst_layer layers[PST_LAYERS_MAX];
	unsigned layer_count;
	struct pst_stack_drive drives[PST_STACK_DRIVES_MAX];
	unsigned drive_count;
	/* Bytes on one drive before the topmost stripe continues on the next; 0: no stripe. */
	uint64_t stripe_bytes;
	uint32_t logical_block_max; /* Maximum over all drives; 0: unknown. */
	uint32_t dma_align_max;
};

struct pst_blockstack_in {
	uint32_t major, minor; /* st_dev of the file; st_rdev of a block device. */
	bool is_block;
	uint64_t fs_magic;	 /* f_type of statfs; 0: unknown. */
	int64_t mount_id;	 /* stx_mnt_id of statx; -1: unknown. */
	const char *mount_point; /* NULL: unknown. */
};

/* Reads the stack. Always fills *out. Returns 0, or -errno if `root` cannot be opened or the
 * mount table cannot be read. May block briefly. Any thread. */
int pst_blockstack_read(const char *root, const struct pst_blockstack_in *in,
			struct pst_blockstack *out);

#endif
