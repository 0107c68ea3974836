/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shape of the machine, read once from /sys: NUMA nodes, the PCI tree, and
 * the GPUs, drives and RDMA NICs in it, with how near any two of them are. Called
 * when a device or a pump is opened, by `penstock topo` and by `penstock check`;
 * never per request. The root can be set, so that captured machines are read the
 * same way. What cannot be read is unknown, never a guess and never an error of
 * the whole; nothing here is changed on the machine.
 *
 * A pst_topo is constant once it is open: any thread may read it, also several
 * at once. Strings and arrays are the topo's until pst_topo_close().
 */
#ifndef PST_CORE_TOPO_H
#define PST_CORE_TOPO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define PST_BDF_LEN 24	  /* "0000:04:00.0", domains of up to 8 digits */
#define PST_CPUS_MAX 8192 /* what Linux can be built for on x86 */
#define PST_NODES_MAX 1024
#define PST_TOPO_ENDS_MAX 1024
#define PST_TOPO_DEPTH_MAX 64 /* bridges above a device */

struct pst_cpus {
	uint64_t bits[PST_CPUS_MAX / 64];
};

/* How near two PCI devices are, by the names of `nvidia-smi topo -m`. */
enum pst_nearness {
	PST_NEAR_SELF, /* "X": the same device */
	PST_NEAR_PIX,  /* one switch */
	PST_NEAR_PXB,  /* several switches, no host bridge */
	PST_NEAR_PHB,  /* one host bridge */
	PST_NEAR_NODE, /* several host bridges of one NUMA node */
	PST_NEAR_SYS,  /* across nodes, or not known to be nearer */
};

enum pst_pci_role {
	PST_PCI_ENDPOINT,
	PST_PCI_ROOT_PORT,
	PST_PCI_SWITCH_UP,
	PST_PCI_SWITCH_DOWN,
	PST_PCI_BRIDGE, /* a bridge whose kind is not known */
};

struct pst_pci {
	char bdf[PST_BDF_LEN];
	char host[PST_BDF_LEN]; /* host bridge: "pci0000:00", "" unknown */
	char driver[32];	/* "" none */
	char iommu_type[16];	/* "DMA", "DMA-FQ", "identity"; "" no group */
	char *cpulist;		/* "0-15,32-47", NULL unknown */
	uint32_t domain;
	uint8_t bus, dev, fn;
	uint8_t role; /* enum pst_pci_role */
	uint16_t vendor, device;
	uint32_t class_;     /* 0x030200 */
	int32_t bridge;	     /* index of the bridge above, -1: the host bridge */
	int32_t numa;	     /* as the kernel says, -1 unknown */
	int32_t iommu_group; /* -1 none */
	int32_t acs;	     /* bridges: ACS control bits, 0 off or none; -1 not known */
	uint32_t link_mts, link_mts_max; /* millions of transfers a second; 0 unknown */
	uint16_t link_width, link_width_max;
	uint64_t bar_bytes;    /* largest memory BAR; 0 none or unknown */
	uint64_t p2pmem_bytes; /* memory that the kernel lends for peer-to-peer DMA */
};

/* ACS control bits that send a peer's traffic up to the root (PCIe 6.12.3). */
#define PST_ACS_REDIRECT (0x04 | 0x08 | 0x20) /* request, completion, egress control */

struct pst_node {
	int id;
	struct pst_cpus cpus;
	char *cpulist;
	uint64_t mem_bytes, mem_free_bytes; /* 0 unknown */
	char *distance;			    /* "10 21", in the order of nodes; NULL unknown */
};

enum pst_end_kind { PST_END_GPU, PST_END_DRIVE, PST_END_NIC };

/* What data starts from or goes to. */
struct pst_end {
	enum pst_end_kind kind;
	char name[32];	    /* "GPU0" (by PCI address, not CUDA's order), "nvme0", "mlx5_0" */
	char transport[16]; /* drives: "pcie", "rdma", "tcp", "virtio", "sata", ...; NICs:
			     * "infiniband", "ethernet", "software"; else "" */
	char maker[8];	    /* GPUs: "nvidia", "amd", "intel"; else "" */
	char model[48];	    /* "" unknown */
	char rate[32];	    /* NICs: "400 Gb/sec (4X NDR)" of port 1; else "" */
	char state[16];	    /* NICs: "ACTIVE"; NVMe: "live"; else "" */
	int pci;	    /* index of its PCI function, -1: none */
	int numa;	    /* -1 unknown */
};

struct pst_topo {
	struct pst_node *nodes;
	struct pst_pci *pci;  /* sorted by address */
	struct pst_end *ends; /* GPUs, then drives, then NICs */
	size_t node_count, pci_count, end_count;
	struct pst_cpus online;
	char *online_list; /* NULL unknown */
	const char *iommu; /* "none", "passthrough", "translated", "mixed"; static */
	bool complete;	   /* false: a limit of this reader was reached */
	bool no_memory;	   /* the reader's: something is missing for want of memory */
};

/* Reads the machine beneath `root` ("" or NULL: this one). 0 and *out, which the
 * caller closes; or -errno with a sentence in `why` (NULL: none is wanted). An
 * empty or garbled tree is a topo with little in it. Blocks for milliseconds. */
int pst_topo_open(const char *root, struct pst_topo **out, char *why, size_t why_len);
/* The same, but of all devices only the one at `bdf`, and none where all memory is equally
 * near: a tenth of the time and less. */
int pst_topo_open_near(const char *root, const char *bdf, struct pst_topo **out, char *why,
		       size_t why_len);
void pst_topo_close(struct pst_topo *topo); /* NULL is fine */

/* "0000:04:00.0", "4:0.0" or "00000000:04:00.0", in any case; -EINVAL for anything
 * else. The second writes the kernel's spelling. */
int pst_bdf_parse(const char *text, uint32_t *domain, uint8_t *bus, uint8_t *dev, uint8_t *fn);
int pst_bdf_normal(const char *text, char out[PST_BDF_LEN]);

/* NULL: there is no such device (or `bdf` is no address). */
const struct pst_pci *pst_topo_pci(const struct pst_topo *topo, const char *bdf);

/* enum pst_nearness, or -EINVAL or -ENODEV. Symmetric. */
int pst_topo_nearness(const struct pst_topo *topo, const char *bdf_a, const char *bdf_b);
const char *pst_nearness_name(int nearness);

/* Does a bridge on the way from a to b send peer traffic up to the root? 1, 0, or
 * -ENODATA when a bridge's config space could not be read (only root may), -EXDEV
 * when no bridge is above both, -EINVAL, -ENODEV. */
int pst_topo_acs_redirects(const struct pst_topo *topo, const char *bdf_a, const char *bdf_b);

/* The device's node; of a machine with one node, that. -ENODATA: not known. */
int pst_topo_numa_of(const struct pst_topo *topo, const char *bdf);

/* CPUs near a device, else of its node, else all that are online; 0 or -errno. */
int pst_topo_cpus_near(const struct pst_topo *topo, const char *bdf, struct pst_cpus *out);

/* "0-3,8" and nothing else; "" is the empty set. -EINVAL, -ERANGE. */
int pst_cpus_parse(const char *text, struct pst_cpus *out);
unsigned pst_cpus_count(const struct pst_cpus *cpus);
static inline bool pst_cpus_has(const struct pst_cpus *cpus, unsigned cpu)
{
	return cpu < PST_CPUS_MAX && (cpus->bits[cpu / 64] >> (cpu % 64) & 1);
}

/* For people: the nodes, the devices, and a matrix as `nvidia-smi topo -m` has it. */
void pst_topo_print(const struct pst_topo *topo, FILE *f);

/*
 * For programs, one object:
 *
 *	schema		"penstock-topo-1"; fields are only added to it
 *	complete	bool: false when a limit was reached and something is left out
 *	cpus_online	"0-127" or null
 *	iommu		"none" | "passthrough" | "translated" | "mixed"
 *	nodes		array of { node, cpus, memory_bytes, memory_free_bytes,
 *			distance: array of numbers }; memory null when unknown
 *	devices		array of { name, kind: "gpu" | "drive" | "nic",
 *			maker, model, transport, rate, state (strings or null),
 *			bdf (or null: not on PCI), numa (or null),
 *			and with a bdf also: driver, cpus, host_bridge, iommu_group,
 *			iommu_type (or null), link { known: bool, mts, width, mts_max,
 *			width_max } (millions of transfers a second, lanes; or null),
 *			bar_bytes, p2pmem_bytes, bridges: array of bdf, nearest first }
 *	bridges		array of { bdf, role: "root-port" | "switch-up" | "switch-down" |
 *			"bridge", acs_redirect: bool or null, link }: those above devices
 *	nearness	array of { a, b: names, near: "X" | "PIX" | "PXB" | "PHB" |
 *			"NODE" | "SYS", acs_redirect: bool or null }: each pair of devices
 *			on PCI; "X" are two disks of one adapter
 */
void pst_topo_print_json(const struct pst_topo *topo, FILE *f);

/*
 * Two questions about a link of /sys that the block stack asks, too. The transport
 * of a disk, from what /sys/class/block/NAME says: "virtio", "virtio-scsi", "sata",
 * "sas", "fc", "fcoe", "iscsi", "iscsi-hba", "iser", "srp", "usb", "hba" (some other
 * SCSI adapter on PCI), or "" when it is none of these; static.
 * And whether an RDMA device is this kernel's own software (Soft-RoCE, siw).
 */
struct pst_sysfs;
struct pst_names;
const char *pst_disk_transport(const struct pst_sysfs *fs, const char *link);
bool pst_rdma_is_software(const struct pst_sysfs *fs, const char *name);
/* Is this component of a path a PCI address with its domain? */
bool pst_part_bdf(const char *part, size_t len, char out[PST_BDF_LEN]);
/* The last PCI address in a path of /sys; false and "" when there is none. */
bool pst_path_bdf(const char *path, char out[PST_BDF_LEN]);

/* Between topo.c and topo_read.c only: fill topo->pci, and from it topo->ends. */
/* As pst_sysfs_list and strdup; notes when memory is missing. */
int pst_topo_list(struct pst_topo *topo, const struct pst_sysfs *fs, struct pst_names *names,
		  const char *path);
char *pst_topo_copy(struct pst_topo *topo, const char *text);
int pst_topo_read_pci(struct pst_topo *topo, const struct pst_sysfs *fs);
int pst_topo_read_one(struct pst_topo *topo, const struct pst_sysfs *fs, const char *bdf);
int pst_topo_read_ends(struct pst_topo *topo, const struct pst_sysfs *fs);

#endif
