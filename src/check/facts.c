/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the facts that several gates (conditions of a direct path) use: the topology, the kernel,
 * its command line and the driver. The root folder can be a capture, that is, a copy of the /sys
 * and /proc files of another machine. Called by check.c. A missing fact must never fail the whole
 * check. The check fails only if the root folder has no facts of a machine at all.
 */
#include "facts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/machine/topo_read.h"
#include "gate.h"

/* ---- the kernel -------------------------------------------------------------- */

/* Returns 1 on an AMD processor of family 17h (Zen) or later, 0 on any other processor, -1 if
 * unknown. The kernel permits peer-to-peer DMA across all host bridges of AMD processors from
 * Zen on. */
static int cpu_is_zen(const struct pst_check_facts *f)
{
	unsigned family = 0;
	char *text, *at;
	int ret = -1;

	if (pst_sysfs_file(&f->fs, &text, 4 << 20, "proc/cpuinfo") < 0)
		return -1;
	if (strstr(text, "vendor_id"))
		ret = 0;
	at = strstr(text, "cpu family");
	if (at && strstr(text, "AuthenticAMD") && (at = strchr(at, ':')) &&
	    sscanf(at + 1, "%9u", &family) == 1 && family >= 0x17)
		ret = 1;
	free(text);
	return ret;
}

static void kernel_read(struct pst_check_facts *f)
{
	char version[256];
	unsigned major = 0, minor = 0;

	if (pst_sysfs_text(&f->fs, f->release, sizeof(f->release), "proc/sys/kernel/osrelease") <=
	    0) {
		f->release[0] = '\0';
		if (pst_sysfs_text(&f->fs, version, sizeof(version), "proc/version") > 0 &&
		    sscanf(version, "Linux version %63s", f->release) != 1)
			f->release[0] = '\0';
	}
	if (sscanf(f->release, "%4u.%4u", &major, &minor) == 2 && minor < 1000)
		f->kernel = major * 1000 + minor;
	if (pst_sysfs_file(&f->fs, &f->cmdline, 65536, "proc/cmdline") < 0)
		f->cmdline = NULL;
	f->zen = cpu_is_zen(f);
}

bool pst_cmdline_has(const struct pst_check_facts *f, const char *word)
{
	size_t len = strlen(word);
	const char *at = f->cmdline;

	while (at && *at) {
		size_t skip = strspn(at, " \t\n"), n = strcspn(at + skip, " \t\n");

		at += skip;
		if (n >= len && !strncmp(at, word, len) && (word[len - 1] == '=' || n == len))
			return true;
		at += n;
	}
	return false;
}

int pst_module_loaded(const struct pst_check_facts *f, const char *name)
{
	size_t len = strlen(name);
	char *text, *line;
	bool found = false;

	if (pst_sysfs_exists(&f->fs, "sys/module/%s", name))
		return 1;
	if (pst_sysfs_file(&f->fs, &text, 1 << 20, "proc/modules") < 0)
		return -1;
	for (line = text; line && !found; line = strchr(line, '\n')) {
		line += *line == '\n';
		found = !strncmp(line, name, len) && line[len] == ' ';
	}
	free(text);
	return found;
}

/* Returns 1 if the kernel has the symbol, 0 if not, -1 if unknown. Any user may read the names
 * in /proc/kallsyms; the kernel hides only the addresses. */
static int symbol_exists(const struct pst_check_facts *f, const char *name)
{
	char *text, *at;
	size_t len = strlen(name);
	int found = 0;

	if (pst_sysfs_file(&f->fs, &text, 64 << 20, "proc/kallsyms") <= 0)
		return -1;
	for (at = text; !found && (at = strstr(at, name)); at += len)
		found = at > text && at[-1] == ' ' && strchr("\n\t", at[len]);
	free(text);
	return found;
}

int pst_kernel_config(const struct pst_check_facts *f, const char *name)
{
	static const char *const places[] = {"captured/kernel-config", "boot/config-%s",
					     "lib/modules/%s/config", "usr/lib/modules/%s/config"};
	char path[256], key[96], *text = NULL, *at;
	size_t i, len;
	int value = 'n';

	if (strpbrk(f->release, "/%"))
		return 0;
	for (i = 0; i < sizeof(places) / sizeof(places[0]) && !text; i++) {
		const char *hole = strstr(places[i], "%s");

		snprintf(path, sizeof(path), "%.*s%s%s",
			 hole ? (int)(hole - places[i]) : (int)strlen(places[i]), places[i],
			 hole ? f->release : "", hole ? hole + 2 : "");
		if (pst_sysfs_file(&f->fs, &text, 1 << 20, "%s", path) < 0)
			text = NULL;
	}
	if (!text)
		return 0;
	len = (size_t)snprintf(key, sizeof(key), "CONFIG_%s=", name);
	for (at = text; at; at = strchr(at, '\n')) {
		at += *at == '\n';
		if (!strncmp(at, key, len) && (at[len] == 'y' || at[len] == 'm'))
			value = at[len];
	}
	free(text);
	return value;
}

int pst_kernel_p2pdma(const struct pst_check_facts *f)
{
	int config = pst_kernel_config(f, "PCI_P2PDMA");
	size_t i;

	/* If a device has published memory for peer-to-peer DMA, the kernel supports P2PDMA. */
	for (i = 0; i < f->topo->pci_count; i++)
		if (f->topo->pci[i].p2pmem_bytes)
			return 1;
	if (config)
		return config != 'n';
	return f->captured ? -1 : symbol_exists(f, "pci_p2pdma_add_resource");
}

/* Reads the driver's version and kind from a line such as
 * "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  ...". */
static void nvidia_read(struct pst_check_facts *f)
{
	char text[256];
	const char *at;
	size_t len, i;

	f->nvidia.loaded = pst_module_loaded(f, "nvidia") > 0;
	/* A container can hide /proc/modules. A card that is bound to the driver still proves
	 * that the driver is loaded. */
	for (i = 0; i < f->topo->pci_count; i++)
		if (!strcmp(f->topo->pci[i].driver, "nvidia"))
			f->nvidia.loaded = true;
	if (pst_sysfs_text(&f->fs, text, sizeof(text), "proc/driver/nvidia/version") <= 0)
		return;
	f->nvidia.loaded = true;
	f->nvidia.open = strstr(text, "Open Kernel Module") != NULL;
	for (at = text; *at; at += len + strspn(at + len, " ")) {
		unsigned minor;

		len = strcspn(at, " ");
		if (sscanf(at, "%5u.%5u", &f->nvidia.major, &minor) == 2) {
			snprintf(f->nvidia.version, sizeof(f->nvidia.version), "%.*s", (int)len,
				 at);
			return;
		}
	}
	f->nvidia.major = 0;
}

/* ---- host bridges -------------------------------------------------------------- */

/* The host bridges listed in the kernel's drivers/pci/p2pdma.c as of 6.16. Later kernels list
 * more. */
static const struct {
	uint16_t vendor, device;
	/* whether the kernel permits DMA only between two devices below the same host bridge */
	bool same;
} permitted[] = {
	{0x8086, 0x3c00, true},	 {0x8086, 0x3c01, true},  {0x8086, 0x2f00, true},
	{0x8086, 0x2f01, true},	 {0x8086, 0x2030, false}, {0x8086, 0x2031, false},
	{0x8086, 0x2032, false}, {0x8086, 0x2033, false}, {0x8086, 0x2020, false},
	{0x8086, 0x09a2, false},
};

/* Returns the first PCI function of the root bus if it is the host bridge or a root port, else
 * NULL. The kernel looks up this function in its list of permitted host bridges. */
static const struct pst_pci *host_first_function(const struct pst_check_facts *f, const char *host)
{
	unsigned domain, bus;
	size_t i;

	if (sscanf(host, "pci%8x:%2x", &domain, &bus) != 2)
		return NULL;
	for (i = 0; i < f->topo->pci_count; i++) {
		const struct pst_pci *pci = &f->topo->pci[i];

		if (pci->domain != domain || pci->bus != bus)
			continue;
		return (!pci->dev && !pci->fn) || pci->role == PST_PCI_ROOT_PORT ? pci : NULL;
	}
	return NULL;
}

static bool bridge_is_permitted(const struct pst_pci *bridge, bool same)
{
	size_t i;

	for (i = 0; bridge && i < sizeof(permitted) / sizeof(permitted[0]); i++)
		if (permitted[i].vendor == bridge->vendor &&
		    permitted[i].device == bridge->device && (same || !permitted[i].same))
			return true;
	return false;
}

int pst_host_bridge_permits(const struct pst_check_facts *f, const struct pst_pci *a,
			    const struct pst_pci *b)
{
	bool same = a->host[0] && !strcmp(a->host, b->host);

	if (f->zen > 0)
		return 1;
	if (bridge_is_permitted(host_first_function(f, a->host), same) &&
	    (same || bridge_is_permitted(host_first_function(f, b->host), same)))
		return 1;
	return f->zen;
}

int pst_facts_read(struct pst_check_facts *f, char *why, size_t why_len)
{
	const char *root = f->opts->root;
	int ret = pst_topo_open(root, &f->topo, why, why_len);

	if (ret == -ENOTDIR)
		snprintf(why, why_len, "%s is not a folder: unpack the capture first (tar xzf)",
			 pst_path_tail(root));
	if (ret < 0)
		return ret;
	ret = pst_sysfs_open(&f->fs, root);
	if (ret < 0) {
		snprintf(why, why_len, "%s: %s", pst_path_tail(root), strerror(-ret));
		return ret;
	}
	f->captured = f->fs.confined;
	if (!pst_sysfs_exists(&f->fs, "sys") && !pst_sysfs_exists(&f->fs, "proc")) {
		snprintf(why, why_len,
			 "%s holds no machine: it has neither sys nor proc; name the folder of an "
			 "unpacked capture",
			 root);
		return -EINVAL;
	}
	kernel_read(f);
	nvidia_read(f);
	return 0;
}

void pst_facts_free(struct pst_check_facts *f)
{
	free(f->cmdline);
	pst_sysfs_close(&f->fs);
	pst_topo_close(f->topo);
}
