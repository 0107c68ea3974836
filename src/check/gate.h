/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the gates share: the facts that are read once, the form of a gate, and how
 * one says what it saw. Included by this folder alone. A gate looks and says; it
 * must never change the machine, print, or stop the others.
 */
#ifndef PST_CHECK_GATE_H
#define PST_CHECK_GATE_H

#include <stdint.h>
#include <stdio.h>

#include "check.h"
#include "core/machine/sysfs.h"
#include "core/machine/topo.h"
#include "http.h"
#include "storage/blockstack_verdict.h"

#define PST_CHECK_ENDS_MAX 256

/* A device or a drive that the check is about. */
struct spot {
	const char *name;  /* "GPU0", "nvme0" */
	const char *maker; /* GPUs; "" else */
	const char *model;
	const char *transport;	   /* drives */
	const struct pst_pci *pci; /* NULL: not on PCI */
};

struct nvidia {
	bool loaded, open;
	char version[32];
	unsigned major;
};

/* What trying an object store's endpoint showed. */
struct endpoint {
	bool given;	/* there is an address to try */
	int name_error; /* of getaddrinfo */
	int error;	/* an errno: what kept from connecting */
	double connect_ms;
	bool is_http;
	struct pst_http_url url;
	struct pst_http_answer answer;
};

/* What a NIC counted of priority flow control, of all priorities. */
struct pst_pfc {
	bool known;
	unsigned long long received, sent; /* pause frames */
	unsigned long long discarded;	   /* packets */
};

struct facts {
	struct pst_sysfs fs;
	struct pst_topo *topo;
	const struct pst_check_opts *opts;
	bool captured;
	char release[64];
	unsigned kernel; /* 6002 for 6.2; 0 not known */
	char *cmdline;	 /* NULL not known */
	int zen;	 /* an AMD processor of family 17h or later: 1, 0, -1 */
	struct nvidia nvidia;

	bool host; /* the device is host memory */
	bool peermem;
	struct spot devices[PST_CHECK_ENDS_MAX], drives[PST_CHECK_ENDS_MAX],
		nics[PST_CHECK_ENDS_MAX];
	unsigned device_count, drive_count, nic_count;
	unsigned gpu_count, drive_total; /* in the machine, whatever the check is about */
	char device_name[32];		 /* what the library opened, or tried to */
	int device_error;		 /* of opening it; 0: opened, or not tried */
	char device_text[PENSTOCK_TEXT_MAX];

	/* Of the target. */
	bool is_url, has_file, is_block;
	struct pst_blockstack stack;
	char point[256];	   /* mount point */
	uint32_t dio_mem, dio_off; /* alignment; 0 not known */
	bool dio_none;		   /* the file system says that there is none */
	bool dio_told;		   /* the kernel says it at all */

	struct endpoint endpoint;

	struct pst_check *check; /* what the probe measured */
	char probe_error[PENSTOCK_TEXT_MAX];
};

struct gate {
	const char *name;
	enum pst_check_layer layer;
	enum pst_check_need need;
	void (*look)(const struct facts *f, struct pst_check_line *line);
	const char *why;
	const char *todo;
};

/* Each sets the line's state and what was seen. */
void pst_ok(struct pst_check_line *line, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void pst_no(struct pst_check_line *line, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void pst_unknown(struct pst_check_line *line, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* In place of the gate's own. */
void pst_todo(struct pst_check_line *line, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* One line more for --verbose, and one more for --fix-script. What does not fit is
 * left out, whole lines at a time. */
void pst_more(struct pst_check_line *line, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void pst_script(struct pst_check_line *line, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* unknown, for a gate that this user may not read. */
void pst_not_allowed(const struct facts *f, struct pst_check_line *line, const char *what);

/* May it stand in a shell script as it is? Names of /sys may be anything. */
bool pst_plain_name(const char *name);
/* A word of the kernel's command line: "iommu=pt"; with '=' at its end any value. */
bool pst_cmdline_has(const struct facts *f, const char *word);
/* Is the module there, loaded or built in? 1, 0, -1 not known. */
int pst_module_there(const struct facts *f, const char *name);
/* CONFIG_name: 'y', 'm', 'n', or 0 not known. */
int pst_kernel_config(const struct facts *f, const char *name);
/* Has this kernel PCI P2PDMA? 1, 0, -1. */
int pst_kernel_p2pdma(const struct facts *f);
/* Does the kernel let the two talk through their host bridges? 1, 0, -1. */
int pst_host_bridge_permits(const struct facts *f, const struct pst_pci *a,
			    const struct pst_pci *b);
/* Are the devices to be seen on PCI? In a sandbox they need not be. */
bool pst_check_on_pci(const struct facts *f);
/* "3 x NVIDIA H100 80GB HBM3" for spots that are all alike, else a list. */
void pst_spots_text(const struct spot *spots, unsigned count, char *out, size_t len);

/* The gates, by file, in the order of their lines. */
extern const struct gate pst_check_device_gates[], pst_check_pcie_gates[], pst_check_fabric_gates[],
	pst_check_endpoint_gates[], pst_check_limit_gates[], pst_check_file_gates[];

/* facts.c */
int pst_check_facts(struct facts *f, char *why, size_t why_len);
/* pick.c */
int pst_check_pick(struct facts *f, char *why, size_t why_len);
void pst_check_facts_free(struct facts *f);
/* target.c: the path without file://; the mount and block stack of opts->target. */
const char *pst_check_path_of(const struct facts *f);
int pst_check_target(struct facts *f, char *why, size_t why_len);
/* probe.c: real machine only. Fills f->check and, if it could not, f->probe_error. */
void pst_check_probe(struct facts *f);
/* pfc.c: of a network interface. */
void pst_check_pfc(const struct facts *f, const char *interface, struct pst_pfc *out);
/* endpoint.c: real machine only. Fills f->endpoint. */
void pst_check_endpoint(struct facts *f);
/* verdict.c */
void pst_check_verdict(const struct facts *f, struct pst_check *check);

#endif
