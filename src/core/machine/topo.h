/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The topology of the machine: its NUMA nodes, its PCI tree, and the GPUs, drives and RDMA
 * NICs in it. Answers how near two devices are, and which node and CPUs are near a device.
 * Used when a pump starts, by `penstock topo` and by `penstock check`, never per request.
 * topo_read.h reads a topology from /sys, topo_print.h prints it.
 *
 * A value that could not be read is marked unknown; it must never be a guess. A pst_topo does
 * not change after it was opened, so several threads may read it at once. Its strings and
 * arrays live until pst_topo_close().
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
#define PST_TOPO_DEPTH_MAX 64 /* bridges above a device */

/* The distance between two PCI devices, named as in `nvidia-smi topo -m`. */
enum pst_nearness {
	PST_NEAR_SELF, /* "X": the same device */
	PST_NEAR_PIX,  /* through one switch */
	PST_NEAR_PXB,  /* through several switches, but no host bridge */
	PST_NEAR_PHB,  /* through one host bridge */
	PST_NEAR_NODE, /* through several host bridges of one NUMA node */
	PST_NEAR_SYS,  /* across NUMA nodes, or not known to be nearer */
};

enum pst_pci_role {
	PST_PCI_ENDPOINT,
	PST_PCI_ROOT_PORT,
	PST_PCI_SWITCH_UP,
	PST_PCI_SWITCH_DOWN,
	PST_PCI_BRIDGE, /* a bridge of unknown kind */
};

/* A PCI function: an endpoint or a bridge. */
struct pst_pci {
	char bdf[PST_BDF_LEN];
	char host[PST_BDF_LEN]; /* host bridge: "pci0000:00"; "": unknown */
	char driver[32];	/* "": none */
	char iommu_type[16];	/* "DMA", "DMA-FQ", "identity"; "": no IOMMU group */
	char *cpulist;		/* the CPUs near it: "0-15,32-47"; NULL: unknown */
	uint32_t domain;
	uint8_t bus, dev, fn;
	uint8_t role; /* enum pst_pci_role */
	uint16_t vendor, device;
	uint32_t class_;     /* 24 bits: 0x030200 is a 3D controller */
	int32_t bridge;	     /* index of the bridge above; -1: directly below the host bridge */
	int32_t numa;	     /* NUMA node that the kernel reports; -1: unknown */
	int32_t iommu_group; /* -1: none */
	int32_t acs;	     /* of a bridge: ACS control bits; 0: off or none; -1: unknown */
	uint32_t link_mts, link_mts_max; /* millions of transfers a second; 0: unknown */
	uint16_t link_width, link_width_max;
	uint64_t bar_bytes;    /* size of the largest memory BAR; 0: none or unknown */
	uint64_t p2pmem_bytes; /* size of the memory it offers for peer-to-peer DMA */
};

/* ACS control bits that send traffic between peers up to the root (PCIe 6.12.3). */
#define PST_ACS_REDIRECT (0x04 | 0x08 | 0x20) /* request, completion, egress control */

/* A NUMA node. */
struct pst_node {
	int id;
	struct pst_cpus cpus;
	char *cpulist;			    /* the same CPUs as a list; NULL: unknown */
	uint64_t mem_bytes, mem_free_bytes; /* 0: unknown */
	char *distance; /* distances to all nodes in their order: "10 21"; NULL: unknown */
};

enum pst_end_kind { PST_END_GPU, PST_END_DRIVE, PST_END_NIC };

/* An end of a transfer: a device that data comes from or goes to. */
struct pst_end {
	enum pst_end_kind kind;
	char name[32];	    /* "GPU0" (by PCI address, not in CUDA's order), "nvme0", "mlx5_0" */
	char transport[16]; /* drives: "pcie", "rdma", "tcp", "virtio", "sata", ...; NICs:
			     * "infiniband", "ethernet", "software"; otherwise "" */
	char maker[8];	    /* GPUs: "nvidia", "amd", "intel"; otherwise "" */
	char model[48];	    /* "": unknown */
	char rate[32];	    /* NICs: rate of port 1, "400 Gb/sec (4X NDR)"; otherwise "" */
	char state[16];	    /* NICs: "ACTIVE"; NVMe: "live"; otherwise "" */
	int pci;	    /* index of its PCI function; -1: none */
	int numa;	    /* -1: unknown */
};

struct pst_topo {
	struct pst_node *nodes;
	struct pst_pci *pci;  /* sorted by address */
	struct pst_end *ends; /* GPUs, then drives, then NICs */
	size_t node_count, pci_count, end_count;
	struct pst_cpus online;
	char *online_list; /* the same CPUs as a list; NULL: unknown */
	const char *iommu; /* "none", "passthrough", "translated", "mixed"; static */
	bool complete;	   /* false: a limit was reached and something is left out */
	bool no_memory;	   /* set while reading: an allocation failed */
};

/* Frees a topology and all that it points to; `topo` may be NULL. */
void pst_topo_close(struct pst_topo *topo);

/* Returns the PCI function at an address. NULL: none, or `bdf` is not an address. */
const struct pst_pci *pst_topo_pci(const struct pst_topo *topo, const char *bdf);

/* Returns how near two PCI devices are (enum pst_nearness, the same in either order), -EINVAL
 * if an argument is not an address, or -ENODEV if there is no such device. */
int pst_topo_nearness(const struct pst_topo *topo, const char *bdf_a, const char *bdf_b);
/* Returns the name of a nearness: "PIX". "?" if the number is out of range. */
const char *pst_nearness_name(int nearness);

/* Returns 1 if a bridge between a and b sends their traffic up to the root, otherwise 0.
 * -ENODATA: the config space of a bridge could not be read (only root may). -EXDEV: no bridge
 * is above both. -EINVAL and -ENODEV as for pst_topo_nearness. */
int pst_topo_acs_redirects(const struct pst_topo *topo, const char *bdf_a, const char *bdf_b);

/* Returns a device's NUMA node; on a machine with one node, always that node. -ENODATA: not
 * known. */
int pst_topo_numa_of(const struct pst_topo *topo, const char *bdf);

/* Writes the CPUs near a device to `out`: the kernel's list for the device, otherwise the CPUs
 * of its node, otherwise all CPUs that are online. Returns 0 or -errno. */
int pst_topo_cpus_near(const struct pst_topo *topo, const char *bdf, struct pst_cpus *out);

#endif
