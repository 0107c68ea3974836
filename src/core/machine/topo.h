/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The topology of the machine: its NUMA nodes, its PCI tree, and the GPUs, drives and RDMA NICs in
 * it. These functions return how near two devices are, and which node and CPUs are near a device.
 * Used when a device's worker threads start, by `penstock topo` and by `penstock check`, never per
 * request. topo_read.h reads a topology from /sys, topo_print.h prints it.
 *
 * A value that could not be read is marked as unknown; it must never be a guess. A pst_topo does
 * not change after it was opened, so several threads may read it at once. Its strings and arrays
 * live until pst_topo_close().
 */
#ifndef PST_CORE_TOPO_H
#define PST_CORE_TOPO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/machine/cpus.h"
#include "core/machine/pci_address.h"

#define PST_NODES_MAX 1024
#define PST_TOPO_ENDS_MAX 1024
#define PST_TOPO_DEPTH_MAX 64 /* maximum number of bridges above a device */

/* The distance between two PCI devices, named as in `nvidia-smi topo -m`. */
enum pst_nearness {
	PST_NEAR_SELF, /* "X": the same device */
	PST_NEAR_PIX,  /* through one switch */
	PST_NEAR_PXB,  /* through several switches, but no host bridge */
	PST_NEAR_PHB,  /* through one host bridge */
	PST_NEAR_NODE, /* through several host bridges of one NUMA node */
	PST_NEAR_SYS,  /* across NUMA nodes, or at an unknown distance */
};

enum pst_pci_role {
	PST_PCI_ENDPOINT,
	PST_PCI_ROOT_PORT,
	PST_PCI_SWITCH_UP,
	PST_PCI_SWITCH_DOWN,
	PST_PCI_BRIDGE, /* a bridge of unknown kind */
};

/* A PCI function, which is an endpoint or a bridge. */
struct pst_pci {
	char bdf[PST_BDF_LEN];
	/* Name of the host bridge above this function, such as "pci0000:00"; "" if unknown. */
	char host[PST_BDF_LEN];
	char driver[32];     /* name of the driver; "" if the function has none */
	char iommu_type[16]; /* "DMA", "DMA-FQ" or "identity"; "" if the function is in no IOMMU
				group */
	char *cpulist;	     /* list of the nearest CPUs, such as "0-15,32-47"; NULL if unknown */
	uint32_t domain;
	uint8_t bus, dev, fn;
	uint8_t role; /* enum pst_pci_role */
	uint16_t vendor, device;
	uint32_t class_; /* class code of 24 bits; 0x030200 is a 3D controller */
	/* Index of the bridge above this function; -1 if the host bridge is directly above it. */
	int32_t bridge;
	int32_t numa;	     /* NUMA node that the kernel reports; -1 if unknown */
	int32_t iommu_group; /* number of the IOMMU group; -1 if the function is in none */
	/* For a bridge: its ACS control bits; 0 if ACS is off or missing; -1 if unknown. */
	int32_t acs;
	/* Present and highest speed of the PCIe link, in millions of transfers a second; 0 if
	 * unknown. */
	uint32_t link_mts, link_mts_max;
	uint16_t link_width, link_width_max;
	/* Size of the largest memory BAR; 0 if the function has no such BAR or the size is unknown.
	 */
	uint64_t bar_bytes;
	uint64_t
		p2pmem_bytes; /* size of the memory that the function offers for peer-to-peer DMA */
};

/* ACS control bits that make a bridge send traffic between devices below it up to the root (PCIe
 * specification, section 6.12.3): request redirect, completion redirect, egress control. */
#define PST_ACS_REDIRECT (0x04 | 0x08 | 0x20)

/* A NUMA node. */
struct pst_node {
	int id;
	struct pst_cpus cpus;
	char *cpulist;			    /* `cpus` as a text such as "0-3,8"; NULL if unknown */
	uint64_t mem_bytes, mem_free_bytes; /* 0 if unknown */
	/* Distances to all nodes, in the order of the nodes: "10 21"; NULL if unknown. */
	char *distance;
};

enum pst_end_kind { PST_END_GPU, PST_END_DRIVE, PST_END_NIC };

/* A device that is the source or the destination of transfers: a GPU, a drive or a NIC. */
struct pst_end {
	enum pst_end_kind kind;
	/* "GPU0", "nvme0", "mlx5_0". GPUs are numbered by PCI address, not in CUDA's order. */
	char name[32];
	/* Connection of a drive: "pcie", "rdma", "tcp", "virtio", "sata", ... For a NIC:
	 * "infiniband", "ethernet" or "software". For a GPU: "". */
	char transport[16];
	char maker[8];	/* for a GPU: "nvidia", "amd" or "intel"; otherwise "" */
	char model[48]; /* "" if unknown */
	char rate[32];	/* for a NIC: rate of port 1, "400 Gb/sec (4X NDR)"; otherwise "" */
	char state[16]; /* "ACTIVE" for a NIC, "live" for an NVMe drive; otherwise "" */
	int pci;	/* index of the device's PCI function; -1 if the device is not on PCI */
	int numa;	/* NUMA node; -1 if unknown */
};

struct pst_topo {
	struct pst_node *nodes;
	struct pst_pci *pci;  /* sorted by address */
	struct pst_end *ends; /* the GPUs first, then the drives, then the NICs */
	size_t node_count, pci_count, end_count;
	struct pst_cpus online;
	char *online_list; /* `online` as a text such as "0-3,8"; NULL if unknown */
	/* Mode of the IOMMU: "none", "passthrough", "translated" or "mixed"; static. */
	const char *iommu;
	bool complete;	/* false if a limit was reached and entries are left out */
	bool no_memory; /* an allocation failed while the topology was read */
};

/* Frees a topology and all that it points to; `topo` may be NULL. */
void pst_topo_close(struct pst_topo *topo);

/* Returns the PCI function at an address, or NULL if there is none or `bdf` is not an address. */
const struct pst_pci *pst_topo_pci(const struct pst_topo *topo, const char *bdf);

/* Returns the distance between two PCI devices as an enum pst_nearness. The order of the devices
 * does not matter. Returns -EINVAL if an argument is not an address, or -ENODEV if there is no such
 * device. */
int pst_topo_nearness(const struct pst_topo *topo, const char *bdf_a, const char *bdf_b);
/* Returns the name of a nearness, such as "PIX", or "?" if the number is out of range. */
const char *pst_nearness_name(int nearness);

/* Returns 1 if a bridge between the two devices sends the traffic between them up to the root,
 * otherwise 0. Errors: -ENODATA if the config space of a bridge could not be read, for example
 * because the process does not run as root; -EXDEV if no bridge is above both devices; -EINVAL and
 * -ENODEV as for pst_topo_nearness. */
int pst_topo_acs_redirects(const struct pst_topo *topo, const char *bdf_a, const char *bdf_b);

/* Returns a device's NUMA node. On a machine with one node, every device is on that node. Returns
 * -ENODATA if the node is not known. */
int pst_topo_numa_of(const struct pst_topo *topo, const char *bdf);

/* Writes the CPUs near a device to `out`. These are the kernel's list for the device, if there is
 * one; otherwise the CPUs of the device's node; otherwise all CPUs that are online. Returns 0 or
 * -errno. */
int pst_topo_cpus_near(const struct pst_topo *topo, const char *bdf, struct pst_cpus *out);

#endif
