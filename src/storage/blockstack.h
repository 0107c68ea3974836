/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block stack: all layers between a file and the drives that hold it, as the kernel shows them
 * in /sys and /proc/self/mountinfo. It is read when a file is opened as a storage, by `penstock
 * explain` and by `penstock check`. The functions of blockstack_verdict.h decide whether all its
 * layers are on the allow-list for direct transfers. The caller chooses the root directory, so that
 * a capture (a copy of another machine's /sys and /proc) can be read in the same way.
 *
 * Every list has a maximum length. An item that does not fit, cannot be parsed or cannot be read is
 * recorded as unknown. After a read no descriptor stays open, and the caller has nothing to free.
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
	PST_LAYER_LINEAR, /* md linear, dm linear, or an LVM volume on one of these. */
	PST_LAYER_RAID0,  /* md raid0, dm striped, or dm raid0. */
	PST_LAYER_RAID1,
	PST_LAYER_RAID10,
	PST_LAYER_RAID456,
	/* An NVMe namespace that is reached by several paths, which are the layers below it. */
	PST_LAYER_NVME_MULTIPATH,
	PST_LAYER_DM_CRYPT,
	PST_LAYER_DM_THIN,
	PST_LAYER_DM_MULTIPATH,
	/* `detail` is the device-mapper target, or the prefix of the device's uuid. */
	PST_LAYER_DM_OTHER,
	PST_LAYER_MD_OTHER, /* `detail` is the RAID level. */
	PST_LAYER_BCACHE,
	PST_LAYER_DRBD,
	/* PST_LAYER_LOOP and all kinds after it are lowest layers: they have no layer below
	 * them. */
	PST_LAYER_LOOP,
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
	PST_LAYER_SCSI, /* `detail` is the transport, such as "sas"; "" if it is unknown. */
	PST_LAYER_NVME, /* `detail` is the transport, such as "pcie"; "" if it is unknown. */
	PST_LAYER_KINDS,
};

struct pst_layer {
	char name[32]; /* Name of the block device, for example "md0". */
	/* Target, RAID level or transport, depending on `kind`; for example "sas". */
	char detail[24];
	enum pst_layer_kind kind;
	/* Number of layers above this one; 0 if the file system is directly on this layer. */
	uint8_t depth;
	int8_t above; /* Index of the layer above; -1 if the file system is directly above. */
};

struct pst_stack_drive {
	/* Name, for example "nvme0n1", or "nvme0c1n1" for one of several paths. */
	char name[32];
	/* Transport, such as "pcie", "rdma", "virtio" or "sata"; "" if it is unknown. */
	char transport[24];
	char bdf[PST_BDF_LEN]; /* PCI address; "" if there is none or it is unknown. */
	char model[48];
	int numa;  /* NUMA node; -1 if it is unknown. */
	int layer; /* Index in `layers` of the drive's own layer. */
	/* 1 if the drive is rotational, 0 if it is not, -1 if that is unknown. */
	int rotational;
	uint32_t logical_block; /* Bytes of a logical block; 0 if that is unknown. */
	/* Alignment that the drive's DMA needs for memory addresses, in bytes; 0 if the kernel does
	 * not report it. */
	uint32_t dma_align;
};

struct pst_blockstack {
	/* The file's mount; for a block device, its fs is PST_FS_RAW_BLOCK. */
	struct pst_mount mount;
	bool mounted; /* False if the mount was not found; its options are then unknown. */
	/* False if the stack could not be read completely, or is too deep or too large; `lost`
	 * has the reason. */
	bool complete;
	/* Reason (a static text) why this kernel copies all bytes of the drives through other
	 * memory; NULL if it does not. */
	const char *swiotlb;
	/* True if an RDMA device is implemented in software, or if no RDMA device is
	 * implemented in hardware. */
	bool rdma_software;
	char lost[96];
	struct pst_layer layers[PST_LAYERS_MAX];
	unsigned layer_count;
	struct pst_stack_drive drives[PST_STACK_DRIVES_MAX];
	unsigned drive_count;
	/* Number of bytes after which the topmost striped layer continues on the next drive; 0
	 * if there is no striped layer. */
	uint64_t stripe_bytes;
	uint32_t logical_block_max; /* Largest logical block of all drives; 0 if it is unknown. */
	uint32_t dma_align_max;
};

struct pst_blockstack_in {
	/* Device number, which is st_dev for a file and st_rdev for a block device. */
	uint32_t major, minor;
	bool is_block;
	uint64_t fs_magic;	 /* f_type of statfs; 0 if it is unknown. */
	int64_t mount_id;	 /* stx_mnt_id of statx; -1 if it is unknown. */
	const char *mount_point; /* Mount point; NULL if it is unknown. */
};

/* Reads the block stack of `in` below the directory `root` and always fills *out. Returns 0, or
 * -errno if `root` cannot be opened or the mount table cannot be read. May block briefly. Any
 * thread may call it. */
int pst_blockstack_read(const char *root, const struct pst_blockstack_in *in,
			struct pst_blockstack *out);

#endif
