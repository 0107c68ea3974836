/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the gates that check the device, its driver and the kernel: the device exists, a
 * drive's DMA can reach the device's memory, and the kernel supports such DMA. The facts come from
 * /proc/driver, /sys and the kernel's configuration. The functions of the gates must never load a
 * module or access a card.
 */
#include "gates_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "line.h"
#include "pick.h"

#define STATIC_BAR1 "RMForceStaticBar1=1;RmForceDisableIomapWC=1;"
/* Number of free bytes that the test transfer of `penstock check` needs in the memory that a PCI
 * function publishes for peer-to-peer DMA. */
#define P2PMEM_LEAST (1 << 20)

static bool all_of_maker(const struct pst_check_facts *f, const char *maker)
{
	unsigned i;

	for (i = 0; i < f->device_count; i++)
		if (strcmp(f->devices[i].maker, maker))
			return false;
	return f->device_count > 0;
}

/* Returns the number of devices for which `bad` returns true. `bad` also writes a text about each
 * device. The function adds these texts to the details of the line. */
static unsigned count_bad(const struct pst_check_facts *f, struct pst_check_line *line,
			  bool (*bad)(const struct pst_check_facts *,
				      const struct pst_check_subject *, char *, size_t))
{
	unsigned i, count = 0;
	char text[128];

	for (i = 0; i < f->device_count; i++) {
		bool is_bad = bad(f, &f->devices[i], text, sizeof(text));

		pst_line_detail(line, "%-6s %s", f->devices[i].name, text);
		count += is_bad;
	}
	return count;
}

/* ---- the card ------------------------------------------------------------------ */

static bool device_lacks_driver(const struct pst_check_facts *f,
				const struct pst_check_subject *subject, char *text, size_t len)
{
	const char *driver = subject->pci->driver;

	(void)f;
	snprintf(text, len, "%s %s, driver %s", subject->pci->bdf, subject->model,
		 driver[0] ? driver : "none");
	return strcmp(driver, "nvidia") && strcmp(driver, "amdgpu") && strcmp(driver, "xe") &&
	       strcmp(driver, "i915");
}

static void inspect_gpu(const struct pst_check_facts *f, struct pst_check_line *line)
{
	char text[PENSTOCK_TEXT_MAX];
	unsigned bad;

	if (f->host) {
		if (!f->opts->device || strcmp(f->opts->device, "host"))
			pst_line_ok(line, "this machine has no GPU: bytes go to host memory");
		return;
	}
	if (f->peermem)
		return;
	pst_subjects_text(f->devices, f->device_count, text, sizeof(text));
	if (!pst_check_on_pci(f)) {
		pst_line_ok(line, "%s, passed into a sandbox that hides PCI", text);
		return;
	}
	bad = count_bad(f, line, device_lacks_driver);
	if (!bad) {
		pst_line_ok(line, "%s", text);
		return;
	}
	pst_line_no(line, "%s: %u of %u have no driver", text, bad, f->device_count);
	if (all_of_maker(f, "nvidia"))
		pst_line_script(line, "modprobe -a nvidia nvidia_uvm");
}

static void inspect_driver(const struct pst_check_facts *f, struct pst_check_line *line)
{
	const struct pst_check_nvidia *nv = &f->nvidia;

	if (f->host || f->peermem || !all_of_maker(f, "nvidia"))
		return;
	if (!nv->loaded) {
		if (pst_module_loaded(f, "nvidia") < 0 || !pst_check_on_pci(f)) {
			pst_line_unknown(line,
					 "neither the module nor /proc/driver/nvidia is visible");
		} else {
			pst_line_no(line, "the module nvidia is not loaded");
			line->need = PST_NEED_WORK;
		}
		pst_line_todo(line,
			      "install NVIDIA's open kernel modules, 570 or later, and load them");
		pst_line_script(line, "modprobe -a nvidia nvidia_uvm");
		return;
	}
	if (!nv->version[0]) {
		pst_line_unknown(line, "nvidia is loaded, its version cannot be read");
		return;
	}
	if (!nv->open) {
		pst_line_no(line, "closed module %s, Linux %s", nv->version, f->release);
		pst_line_todo(line,
			      "install the open kernel modules of the same driver, 570 or later");
	} else if (nv->major < 570) {
		pst_line_no(line, "open module %s, Linux %s: P2PDMA came with 570", nv->version,
			    f->release);
	} else {
		pst_line_ok(line, "open module %s, Linux %s", nv->version, f->release);
	}
}

static void inspect_cuda(const struct pst_check_facts *f, struct pst_check_line *line)
{
	if (f->captured || f->host || f->peermem || !all_of_maker(f, "nvidia"))
		return;
	if (f->device_error)
		pst_line_no(line, "%s", f->device_text);
	else
		pst_line_ok(line, "%s", f->device_text);
}

/* The library's support for the cards of each maker. When a backend becomes able to pass GPU
 * memory to a drive, its `direct` must be set here. */
static const struct {
	/* `backend` is NULL if the maker's cards are not supported */
	const char *maker, *backend;
	/* whether the backend can pass the card's memory to a drive */
	bool direct;
} backends[] = {{"nvidia", "cuda", false}, {"amd", NULL, false}, {"intel", NULL, false}};

static void inspect_backend(const struct pst_check_facts *f, struct pst_check_line *line)
{
	size_t i;

	for (i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
		if (!all_of_maker(f, backends[i].maker) || backends[i].direct)
			continue;
		if (backends[i].backend) {
			pst_line_no(line,
				    "device %s of this version cannot pass GPU memory to drives",
				    backends[i].backend);
			pst_line_todo(line,
				      "nothing on this machine: bytes go through host memory");
			return;
		}
		line->need = PST_NEED_WORK;
		pst_line_no(line, "this version does not support GPUs of this maker");
		pst_line_todo(line, "check transfers into host memory with --device host");
	}
}

/* ---- the kernel ---------------------------------------------------------------- */

static void inspect_kernel(const struct pst_check_facts *f, struct pst_check_line *line)
{
	int has;

	if (f->host)
		return;
	if (!f->kernel) {
		pst_line_unknown(line, "the kernel's version cannot be read");
		return;
	}
	has = pst_kernel_p2pdma(f);
	if (f->kernel < 6002)
		pst_line_no(line, "Linux %s: O_DIRECT into peer memory came with 6.2", f->release);
	else if (has > 0)
		pst_line_ok(line, "Linux %s with PCI_P2PDMA", f->release);
	else if (!has)
		pst_line_no(line, "Linux %s was built without CONFIG_PCI_P2PDMA", f->release);
	else
		pst_line_unknown(line, "Linux %s; its configuration cannot be read", f->release);
	if (has < 0 && f->kernel >= 6002)
		pst_line_todo(line, "grep PCI_P2PDMA in the kernel's configuration");
}

/* ---- memory that other devices reach -------------------------------------------- */

/* Returns the size of the card's memory in GiB, derived from its name, or 0 if unknown. Returns
 * 0 for a card with a CPU on board (GH200, GB200, GB300), because its name contains the sizes
 * of two memories. */
static unsigned memory_gib(const struct pst_check_subject *subject)
{
	static const struct {
		const char *model;
		unsigned gib;
	} models[] = {{"H200", 141},   {"H20", 96},	{"B200", 180}, {"B300", 270},
		      {"MI300X", 192}, {"MI325X", 256}, {"L40", 48},   {"A40", 48},
		      {"A10", 24},     {"L4", 24},	{"T4", 16}};
	const char *at;
	unsigned gib, i;

	if (strstr(subject->model, "GH200") || strstr(subject->model, "GB200") ||
	    strstr(subject->model, "GB300"))
		return 0;
	for (at = subject->model; (at = strpbrk(at, "0123456789")); at += strspn(at, "0123456789"))
		if (sscanf(at, "%4uGB", &gib) == 1 &&
		    !strncmp(at + strspn(at, "0123456789"), "GB", 2))
			return gib;
	for (i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
		size_t len = strlen(models[i].model);

		at = strstr(subject->model, models[i].model);
		if (at && (at[len] < '0' || at[len] > '9'))
			return models[i].gib;
	}
	return 0;
}

/* Returns whether the card's PCI function is hidden from this process. If it is, sets the state
 * of the line to unknown. */
static bool pci_is_hidden(const struct pst_check_facts *f, struct pst_check_line *line)
{
	if (pst_check_on_pci(f))
		return false;
	pst_line_unknown(line, "this sandbox hides the card's PCI function");
	pst_line_todo(line, "run penstock check on the host");
	return true;
}

static bool device_bar_is_small(const struct pst_check_facts *f,
				const struct pst_check_subject *subject, char *text, size_t len)
{
	unsigned long long mib = subject->pci->bar_bytes >> 20;
	unsigned gib = memory_gib(subject);

	(void)f;
	snprintf(text, len, "BAR %llu MiB, memory %u GiB%s", mib, gib, gib ? "" : " (unknown)");
	return mib < (gib ? gib * 1000ULL : 1024ULL);
}

static void inspect_bar1(const struct pst_check_facts *f, struct pst_check_line *line)
{
	const struct pst_check_subject *gpu = &f->devices[0];
	unsigned gib, bad;
	char bar[48];

	if (f->host || f->peermem || !f->device_count)
		return;
	if (pci_is_hidden(f, line))
		return;
	gib = memory_gib(gpu);
	if (!gpu->pci->bar_bytes) {
		pst_line_unknown(line, "the card's memory windows cannot be read");
		return;
	}
	bad = count_bad(f, line, device_bar_is_small);
	if (gpu->pci->bar_bytes >> 30)
		snprintf(bar, sizeof(bar), "%llu GiB",
			 (unsigned long long)gpu->pci->bar_bytes >> 30);
	else
		snprintf(bar, sizeof(bar), "%llu MiB",
			 (unsigned long long)gpu->pci->bar_bytes >> 20);
	if (bad && gib)
		pst_line_no(line, "%s for %u GiB of memory", bar, gib);
	else if (bad)
		pst_line_no(line, "%s, the size of a BAR that is not resizable", bar);
	else if (!gib)
		pst_line_unknown(line, "%s; the size of the card's memory is unknown", bar);
	else
		pst_line_ok(line, "%s for %u GiB of memory", bar, gib);
	if (!bad && !gib)
		pst_line_todo(line, "compare it with the memory in nvidia-smi -q -d MEMORY");
}

static bool device_lacks_p2pmem(const struct pst_check_facts *f,
				const struct pst_check_subject *subject, char *text, size_t len)
{
	(void)f;
	snprintf(text, len, "%llu MiB published",
		 (unsigned long long)subject->pci->p2pmem_bytes >> 20);
	return !subject->pci->p2pmem_bytes;
}

/* Inspects the device "peermem", which consists only of the memory that a PCI function publishes
 * for peer-to-peer DMA. Without published memory the device can receive no bytes. */
static void inspect_published(const struct pst_check_facts *f, struct pst_check_line *line)
{
	const struct pst_pci *pci = f->devices[0].pci;
	unsigned long long mib = pci->p2pmem_bytes >> 20;
	int64_t left;

	line->need = PST_NEED_WORK;
	if (!mib) {
		pst_line_no(line, "%s publishes no memory for peer-to-peer DMA", pci->bdf);
		pst_line_todo(line, "choose a device that has p2pmem/size in /sys/bus/pci/devices");
	} else if (f->device_error) {
		pst_line_no(line, "%s", f->device_text);
		pst_line_todo(
			line,
			"run as root, or give this user's group access to that file: chgrp, chmod "
			"g+rw");
	} else if (!pst_sysfs_number(&f->fs, &left, "sys/bus/pci/devices/%s/p2pmem/available",
				     pci->bdf) &&
		   left < P2PMEM_LEAST) {
		pst_line_no(line, "%llu MiB published for peer-to-peer DMA, %lld KiB of it free",
			    mib, (long long)left >> 10);
		pst_line_todo(line,
			      "end the processes that hold it; in /sys/bus/pci/devices, fuser "
			      "%s/p2pmem/allocate lists them",
			      pci->bdf);
	} else {
		line->need = PST_NEED_DIRECT;
		pst_line_ok(line, "%llu MiB published for peer-to-peer DMA", mib);
	}
}

static void inspect_p2pmem(const struct pst_check_facts *f, struct pst_check_line *line)
{
	unsigned bad;

	if (f->host || !f->device_count || pci_is_hidden(f, line))
		return;
	bad = count_bad(f, line, device_lacks_p2pmem);
	if (f->peermem) {
		inspect_published(f, line);
		return;
	}
	if (!bad) {
		pst_line_ok(line, "%llu MiB published for peer-to-peer DMA%s",
			    (unsigned long long)f->devices[0].pci->p2pmem_bytes >> 20,
			    f->device_count > 1 ? ", by each" : "");
		return;
	}
	pst_line_no(line, bad == f->device_count
				  ? "no GPU publishes its memory for peer-to-peer DMA"
				  : "not every GPU publishes its memory for peer-to-peer DMA");
	if (!all_of_maker(f, "nvidia")) {
		pst_line_todo(
			line,
			"find out whether the card's driver can publish its memory for P2PDMA");
		return;
	}
	pst_line_script(line, "echo 'options nvidia NVreg_RegistryDwords=\"" STATIC_BAR1 "\"' "
			      ">/etc/modprobe.d/penstock-static-bar1.conf");
	pst_line_script(line, "# undo: rm /etc/modprobe.d/penstock-static-bar1.conf");
	pst_line_script(line,
			"update_initramfs  # then reboot, or reload the module with no GPU in use");
}

static void inspect_dmabuf(const struct pst_check_facts *f, struct pst_check_line *line)
{
	int config;

	if (f->host || f->peermem || !all_of_maker(f, "nvidia") || !f->nvidia.loaded)
		return;
	config = pst_kernel_config(f, "DMA_SHARED_BUFFER");
	if (config == 'n')
		pst_line_no(line, "Linux %s was built without CONFIG_DMA_SHARED_BUFFER",
			    f->release);
	else if (!f->nvidia.version[0])
		pst_line_unknown(line, "the driver's version cannot be read");
	else if (!f->nvidia.open)
		pst_line_no(line, "the closed module exports no dma-buf");
	else if (f->nvidia.major < 515 || (f->kernel && f->kernel < 5012))
		pst_line_no(line, "%s on Linux %s is too old", f->nvidia.version, f->release);
	else
		pst_line_ok(line, "the open module exports GPU memory to NICs");
}

static void inspect_nvidia_fs(const struct pst_check_facts *f, struct pst_check_line *line)
{
	char version[64];
	int there;

	if (f->host || f->peermem || !all_of_maker(f, "nvidia"))
		return;
	there = pst_module_loaded(f, "nvidia_fs");
	if (there < 0) {
		pst_line_unknown(line, "the list of modules cannot be read");
	} else if (!there) {
		pst_line_no(line, "not loaded");
		pst_line_script(line, "modprobe nvidia_fs  # only for programs that use cuFile");
	} else if (pst_sysfs_text(&f->fs, version, sizeof(version),
				  "proc/driver/nvidia-fs/version") > 0) {
		pst_line_ok(line, "loaded, %s", version);
	} else {
		pst_line_ok(line, "loaded");
	}
}

static void inspect_peermem(const struct pst_check_facts *f, struct pst_check_line *line)
{
	int there;

	if (f->host || f->peermem || !all_of_maker(f, "nvidia") || !f->nic_count)
		return;
	there = pst_module_loaded(f, "nvidia_peermem");
	if (there > 0)
		pst_line_ok(line, "loaded");
	else if (there < 0)
		pst_line_unknown(line, "the list of modules cannot be read");
	else if (f->nvidia.open && f->nvidia.major >= 515)
		pst_line_ok(line, "not loaded, dma-buf replaces it");
	else
		pst_line_no(line, "not loaded, and the driver exports no dma-buf");
	if (!there)
		pst_line_script(line, "modprobe nvidia_peermem");
}

/* ---- options of the kernel ------------------------------------------------------ */

static void inspect_options(const struct pst_check_facts *f, struct pst_check_line *line)
{
	static const char *const words[] = {"iommu=",
					    "intel_iommu=",
					    "amd_iommu=",
					    "iommu.passthrough=",
					    "pci=",
					    "pcie_aspm=",
					    "swiotlb=",
					    "nvme_core.multipath=",
					    "nvme.poll_queues=",
					    "mem_encrypt=",
					    "lockdown="};
	char text[160] = "";
	size_t i, at = 0;

	if (!f->cmdline) {
		pst_line_unknown(line, "the kernel's command line cannot be read");
		pst_line_todo(line, "run cat /proc/cmdline on the machine itself");
		return;
	}
	for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		const char *word = f->cmdline;

		for (; (word = strstr(word, words[i])); word++) {
			int len = (int)strcspn(word, " \t\n");

			if ((word == f->cmdline || strchr(" \t", word[-1])) &&
			    at + (size_t)len + 2 < sizeof(text))
				at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%.*s",
						       at ? " " : "", len, word);
		}
	}
	if (pst_cmdline_has(f, "swiotlb=force") || f->stack.swiotlb) {
		pst_line_no(line, "%s", f->stack.swiotlb ? f->stack.swiotlb : text);
		line->need = PST_NEED_NO_COPY;
	} else if (pst_cmdline_has(f, "pcie_aspm=force")) {
		pst_line_no(line, "%s", text);
		line->need = PST_NEED_SPEED;
		pst_line_todo(line, "remove pcie_aspm=force: links in a sleep state add latency");
	} else {
		pst_line_ok(line, "%s", at ? text : "no option that affects a path");
	}
}

const struct pst_check_gate pst_check_device_gates[] = {
	{"gpu", PST_CHECK_DEVICE, PST_NEED_WORK, inspect_gpu,
	 "the GPU is the destination of the bytes; without its driver it cannot be reached",
	 "load the card's driver"},
	{"driver", PST_CHECK_DEVICE, PST_NEED_DIRECT, inspect_driver,
	 "a drive's DMA needs pages for GPU memory; only NVIDIA's open modules, from 570 on, "
	 "create them",
	 "install the open kernel modules, 570 or later"},
	{"cuda", PST_CHECK_DEVICE, PST_NEED_WORK, inspect_cuda,
	 "without the driver's library no byte reaches the device",
	 "install the package with the libcuda.so.1 of the module's version (a container: start "
	 "it with access to the GPUs)"},
	{"backend", PST_CHECK_DEVICE, PST_NEED_DIRECT, inspect_backend,
	 "card and kernel may support direct transfers, but Penstock must support them too", ""},
	{"kernel", PST_CHECK_DEVICE, PST_NEED_DIRECT, inspect_kernel,
	 "a drive writes into a card's memory only through the kernel's peer-to-peer DMA",
	 "boot a kernel of 6.2 or later with CONFIG_PCI_P2PDMA=y"},
	{"bar1", PST_CHECK_DEVICE, PST_NEED_DIRECT, inspect_bar1,
	 "other devices reach only the card's memory that this PCI window (BAR) exposes",
	 "enable 'above 4G decoding' and 'resizable BAR' in the firmware"},
	{"p2pmem", PST_CHECK_DEVICE, PST_NEED_DIRECT, inspect_p2pmem,
	 "the kernel lets drives write only to memory that a driver published for this",
	 "set NVreg_RegistryDwords=\"" STATIC_BAR1 "\" for the module nvidia"},
	{"dma-buf", PST_CHECK_DEVICE, PST_NEED_NOTHING, inspect_dmabuf,
	 "NICs access GPU memory as dma-buf; drives do not need it",
	 "install the open kernel modules, 515 or later"},
	{"nvidia-fs", PST_CHECK_DEVICE, PST_NEED_NOTHING, inspect_nvidia_fs,
	 "NVIDIA's cuFile needs it for direct transfers; Penstock's own paths do not",
	 "load nvidia_fs only if programs use NVIDIA's cuFile here"},
	{"nvidia-peermem", PST_CHECK_DEVICE, PST_NEED_NOTHING, inspect_peermem,
	 "NICs access GPU memory through it if the driver has no dma-buf", "load nvidia_peermem"},
	{"options", PST_CHECK_DEVICE, PST_NEED_SPEED, inspect_options,
	 "options on the kernel's command line open and shut paths for the whole machine",
	 "remove swiotlb=force: it makes the CPU copy every byte"},
	{.name = NULL},
};
