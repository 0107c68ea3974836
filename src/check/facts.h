/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The facts that several gates (conditions of a direct path) use, each read only once: the
 * topology, the kernel, the driver, and the devices, drives and NICs to check. Included by the
 * files of this folder only.
 */
#ifndef PST_CHECK_FACTS_H
#define PST_CHECK_FACTS_H

#include <stdint.h>

#include "core/machine/sysfs.h"
#include "core/machine/topo.h"
#include "result.h"
#include "storage/blockstack.h"
#include "store.h"

#define PST_CHECK_SUBJECTS_MAX 256

/* A device, drive or NIC that is checked. */
struct pst_check_subject {
	const char *name;  /* for example "GPU0" or "nvme0" */
	const char *maker; /* vendor of a GPU; "" for a drive or NIC */
	const char *model;
	const char *transport;	   /* transport of a drive, or link type of a NIC */
	const struct pst_pci *pci; /* NULL if the device is not a PCI function */
};

struct pst_check_nvidia {
	/* `loaded`: whether the kernel module is loaded; `open`: whether it is the open-source
	 * kernel module */
	bool loaded, open;
	char version[32];
	unsigned major;
};

struct pst_check_facts {
	struct pst_sysfs fs;
	struct pst_topo *topo;
	const struct pst_check_opts *opts;
	bool captured;
	char release[64];
	unsigned kernel; /* version, for example 6002 for 6.2; 0 if unknown */
	char *cmdline;	 /* command line of the kernel; NULL if unknown */
	/* 1 if the processor is an AMD one of family 17h or later, 0 if not, -1 if unknown */
	int zen;
	struct pst_check_nvidia nvidia;

	bool host; /* whether the device is host memory */
	/* whether the device is memory that a PCI function publishes for peer-to-peer DMA */
	bool peermem;
	struct pst_check_subject devices[PST_CHECK_SUBJECTS_MAX], drives[PST_CHECK_SUBJECTS_MAX],
		nics[PST_CHECK_SUBJECTS_MAX];
	unsigned device_count, drive_count, nic_count;
	unsigned gpu_count, drive_total; /* number of GPUs and of drives in the whole machine */
	char device_name[32];		 /* name of the device that the library tried to open */
	/* error of the attempt to open the device; 0 if it succeeded or was not made */
	int device_error;
	char device_text[PENSTOCK_TEXT_MAX];

	/* Facts about the target, the path or URL to check. */
	bool is_url, has_file, is_block;
	struct pst_blockstack stack;
	char point[256]; /* mount point */
	/* alignment that O_DIRECT needs, of memory addresses and of file offsets; 0 if unknown */
	uint32_t dio_mem, dio_off;
	bool dio_none; /* whether the file system reports that O_DIRECT is not supported */
	bool dio_told; /* whether the kernel reports the alignment that O_DIRECT needs */

	struct pst_check_store store; /* of a URL */

	struct pst_check *check; /* the result, with measurements of the test transfer */
	char probe_error[PENSTOCK_TEXT_MAX];
};

/* Reads kernel, driver and topology. Returns 0, or -errno with a sentence in `why`. */
int pst_facts_read(struct pst_check_facts *f, char *why, size_t why_len);
void pst_facts_free(struct pst_check_facts *f);

/* Returns whether the kernel's command line contains `word`, for example "iommu=pt". If `word`
 * ends in '=', any value after it matches. */
bool pst_cmdline_has(const struct pst_check_facts *f, const char *word);
/* Returns 1 if the kernel module is loaded or built in, 0 if not, -1 if unknown. */
int pst_module_loaded(const struct pst_check_facts *f, const char *name);
/* Returns 'y', 'm' or 'n' for CONFIG_name, or 0 if unknown. */
int pst_kernel_config(const struct pst_check_facts *f, const char *name);
/* Returns 1 if the kernel supports PCI P2PDMA, 0 if not, -1 if unknown. */
int pst_kernel_p2pdma(const struct pst_check_facts *f);
/* Returns 1 if the kernel permits DMA between devices `a` and `b` across their host bridges, 0
 * if not, -1 if unknown. */
int pst_host_bridge_permits(const struct pst_check_facts *f, const struct pst_pci *a,
			    const struct pst_pci *b);

#endif
