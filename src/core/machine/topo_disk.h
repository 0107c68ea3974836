/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Classifies disks and RDMA devices by their entries in /sys. topo_read.c calls these functions
 * when a topology is opened, and storage/blockstack.c when a file is opened. The transport of a
 * disk (how it is connected) follows from the disk's folder below /sys/devices. If this folder has
 * an unknown form, the transport must be "", so that no caller assumes that DMA can reach the disk.
 */
#ifndef PST_CORE_TOPO_DISK_H
#define PST_CORE_TOPO_DISK_H

#include <stdbool.h>

struct pst_sysfs;

/*
 * Returns the transport of a disk: how it is connected. `link` is the target of the disk's link in
 * /sys/class/block. The transport is one of "virtio", "virtio-scsi", "sata", "sas", "fc", "fcoe",
 * "iscsi", "iscsi-hba", "iser", "srp", "usb", "hba" (any other SCSI adapter on PCI), or "" if it is
 * none of these. The string is static.
 */
const char *pst_disk_transport(const struct pst_sysfs *fs, const char *link);

/* Returns whether an RDMA device is implemented by this kernel in software (Soft-RoCE, siw). */
bool pst_rdma_is_software(const struct pst_sysfs *fs, const char *name);

#endif
