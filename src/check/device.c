/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gates of the device and its driver: is there one, may a drive's DMA reach its
 * memory, can this kernel do it. Facts are those of /proc/driver, /sys and the
 * kernel's configuration. It must never load a module or touch a card.
 */
#include <stdlib.h>
#include <string.h>

#include "gate.h"

#define STATIC_BAR1 "RMForceStaticBar1=1;RmForceDisableIomapWC=1;"
/* With less of a device's lent memory there is nothing to try. */
#define LENT_LEAST (1 << 20)

static bool all_of(const struct facts *f, const char *maker)
{
	unsigned i;

	for (i = 0; i < f->device_count; i++)
		if (strcmp(f->devices[i].maker, maker))
			return false;
	return f->device_count > 0;
}

/* Of the devices, which do not pass; their names for `more`. */
static unsigned count_bad(const struct facts *f, struct pst_check_line *line,
			  bool (*bad)(const struct facts *, const struct spot *, char *, size_t))
{
	unsigned i, count = 0;
	char text[128];

	for (i = 0; i < f->device_count; i++) {
		bool is_bad = bad(f, &f->devices[i], text, sizeof(text));

		pst_more(line, "%-6s %s", f->devices[i].name, text);
		count += is_bad;
	}
	return count;
}

/* ---- the card ------------------------------------------------------------------ */

static bool no_driver(const struct facts *f, const struct spot *spot, char *text, size_t len)
{
	const char *driver = spot->pci->driver;

	(void)f;
	snprintf(text, len, "%s %s, driver %s", spot->pci->bdf, spot->model,
		 driver[0] ? driver : "none");
	return strcmp(driver, "nvidia") && strcmp(driver, "amdgpu") && strcmp(driver, "xe") &&
	       strcmp(driver, "i915");
}

static void look_gpu(const struct facts *f, struct pst_check_line *line)
{
	char text[PENSTOCK_TEXT_MAX];
	unsigned bad;

	if (f->host) {
		if (!f->opts->device || strcmp(f->opts->device, "host"))
			pst_ok(line, "none in this machine: bytes land in host memory");
		return;
	}
	if (f->peermem)
		return;
	pst_spots_text(f->devices, f->device_count, text, sizeof(text));
	if (!pst_check_on_pci(f)) {
		pst_ok(line, "%s, handed into a sandbox that hides PCI", text);
		return;
	}
	bad = count_bad(f, line, no_driver);
	if (!bad) {
		pst_ok(line, "%s", text);
		return;
	}
	pst_no(line, "%s: %u of %u without a driver for it", text, bad, f->device_count);
	if (all_of(f, "nvidia"))
		pst_script(line, "modprobe -a nvidia nvidia_uvm");
}

static void look_driver(const struct facts *f, struct pst_check_line *line)
{
	const struct nvidia *nv = &f->nvidia;

	if (f->host || f->peermem || !all_of(f, "nvidia"))
		return;
	if (!nv->loaded) {
		if (pst_module_there(f, "nvidia") < 0 || !pst_check_on_pci(f)) {
			pst_unknown(line, "neither module nor /proc/driver/nvidia is to be seen");
		} else {
			pst_no(line, "the module nvidia is not loaded");
			line->need = PST_NEED_WORK;
		}
		pst_todo(line, "install NVIDIA's open kernel modules, 570 or later, and load them");
		pst_script(line, "modprobe -a nvidia nvidia_uvm");
		return;
	}
	if (!nv->version[0]) {
		pst_unknown(line, "nvidia is loaded, its version cannot be seen");
		return;
	}
	if (!nv->open) {
		pst_no(line, "closed module %s, Linux %s", nv->version, f->release);
		pst_todo(line, "install the open kernel modules of the same driver, 570 or later");
	} else if (nv->major < 570) {
		pst_no(line, "open module %s, Linux %s: P2PDMA came with 570", nv->version,
		       f->release);
	} else {
		pst_ok(line, "open module %s, Linux %s", nv->version, f->release);
	}
}

static void look_cuda(const struct facts *f, struct pst_check_line *line)
{
	if (f->captured || f->host || f->peermem || !all_of(f, "nvidia"))
		return;
	if (f->device_error)
		pst_no(line, "%s", f->device_text);
	else
		pst_ok(line, "%s", f->device_text);
}

/*
 * Which cards the library can drive, and whether it can hand their memory to a drive.
 * One entry to change when a backend learns it.
 */
static const struct {
	const char *maker, *backend;
	bool direct;
} backends[] = {{"nvidia", "cuda", false}, {"amd", NULL, false}, {"intel", NULL, false}};

static void look_backend(const struct facts *f, struct pst_check_line *line)
{
	size_t i;

	for (i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
		if (!all_of(f, backends[i].maker) || backends[i].direct)
			continue;
		if (backends[i].backend) {
			pst_no(line, "device %s of this version hands no GPU memory to drives",
			       backends[i].backend);
			pst_todo(line, "nothing on this machine: bytes are staged");
			return;
		}
		line->need = PST_NEED_WORK;
		pst_no(line, "this version has no device for GPUs of this maker");
		pst_todo(line, "check the way into host memory with --device host");
	}
}

/* ---- the kernel ---------------------------------------------------------------- */

static void look_kernel(const struct facts *f, struct pst_check_line *line)
{
	int has;

	if (f->host)
		return;
	if (!f->kernel) {
		pst_unknown(line, "the kernel's version cannot be read");
		return;
	}
	has = pst_kernel_p2pdma(f);
	if (f->kernel < 6002)
		pst_no(line, "Linux %s: O_DIRECT into peer memory came with 6.2", f->release);
	else if (has > 0)
		pst_ok(line, "Linux %s with PCI_P2PDMA", f->release);
	else if (!has)
		pst_no(line, "Linux %s was built without CONFIG_PCI_P2PDMA", f->release);
	else
		pst_unknown(line, "Linux %s; its configuration cannot be read", f->release);
	if (has < 0 && f->kernel >= 6002)
		pst_todo(line, "grep PCI_P2PDMA in the kernel's configuration");
}

/* ---- memory that others reach -------------------------------------------------- */

/* GiB of memory, by the card's name; 0 not known. A name with two sizes in it is that
 * of a card with a processor, whose memory is the first of them. */
static unsigned memory_gib(const struct spot *spot)
{
	static const struct {
		const char *model;
		unsigned gib;
	} models[] = {{"H200", 141},   {"H20", 96},	{"B200", 180}, {"B300", 270},
		      {"MI300X", 192}, {"MI325X", 256}, {"L40", 48},   {"A40", 48},
		      {"A10", 24},     {"L4", 24},	{"T4", 16}};
	const char *at;
	unsigned gib, i;

	if (strstr(spot->model, "GH200") || strstr(spot->model, "GB200") ||
	    strstr(spot->model, "GB300"))
		return 0;
	for (at = spot->model; (at = strpbrk(at, "0123456789")); at += strspn(at, "0123456789"))
		if (sscanf(at, "%4uGB", &gib) == 1 &&
		    !strncmp(at + strspn(at, "0123456789"), "GB", 2))
			return gib;
	for (i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
		size_t len = strlen(models[i].model);

		at = strstr(spot->model, models[i].model);
		if (at && (at[len] < '0' || at[len] > '9'))
			return models[i].gib;
	}
	return 0;
}

/* Says so where the card is not to be seen on PCI. */
static bool hidden(const struct facts *f, struct pst_check_line *line)
{
	if (pst_check_on_pci(f))
		return false;
	pst_unknown(line, "this sandbox hides the card's PCI function");
	pst_todo(line, "run check on the host");
	return true;
}

static bool small_bar(const struct facts *f, const struct spot *spot, char *text, size_t len)
{
	unsigned long long mib = spot->pci->bar_bytes >> 20;
	unsigned gib = memory_gib(spot);

	(void)f;
	snprintf(text, len, "BAR %llu MiB, memory %u GiB%s", mib, gib, gib ? "" : " (not known)");
	return mib < (gib ? gib * 1000ULL : 1024ULL);
}

static void look_bar1(const struct facts *f, struct pst_check_line *line)
{
	const struct spot *gpu = &f->devices[0];
	unsigned gib, bad;
	char bar[48];

	if (f->host || f->peermem || !f->device_count)
		return;
	if (hidden(f, line))
		return;
	gib = memory_gib(gpu);
	if (!gpu->pci->bar_bytes) {
		pst_unknown(line, "the card's memory windows cannot be read");
		return;
	}
	bad = count_bad(f, line, small_bar);
	if (gpu->pci->bar_bytes >> 30)
		snprintf(bar, sizeof(bar), "%llu GiB",
			 (unsigned long long)gpu->pci->bar_bytes >> 30);
	else
		snprintf(bar, sizeof(bar), "%llu MiB",
			 (unsigned long long)gpu->pci->bar_bytes >> 20);
	if (bad && gib)
		pst_no(line, "%s for %u GiB of memory", bar, gib);
	else if (bad)
		pst_no(line, "%s, which is the size without resizable BARs", bar);
	else if (!gib)
		pst_unknown(line, "%s; how much memory the card has is not known here", bar);
	else
		pst_ok(line, "%s for %u GiB of memory", bar, gib);
	if (!bad && !gib)
		pst_todo(line, "compare it with nvidia-smi -q -d MEMORY");
}

static bool no_p2pmem(const struct facts *f, const struct spot *spot, char *text, size_t len)
{
	(void)f;
	snprintf(text, len, "%llu MiB lent", (unsigned long long)spot->pci->p2pmem_bytes >> 20);
	return !spot->pci->p2pmem_bytes;
}

/* A device that is wanted for its lent memory alone: without that no byte arrives. */
static void look_lent(const struct facts *f, struct pst_check_line *line)
{
	const struct pst_pci *pci = f->devices[0].pci;
	unsigned long long mib = pci->p2pmem_bytes >> 20;
	int64_t left;

	line->need = PST_NEED_WORK;
	if (!mib) {
		pst_no(line, "%s lends no memory to others", pci->bdf);
		pst_todo(line, "choose a device that has p2pmem/size in /sys/bus/pci/devices");
	} else if (f->device_error) {
		pst_no(line, "%s", f->device_text);
		pst_todo(line,
			 "run as root, or give this user's group that file: chgrp, chmod g+rw");
	} else if (!pst_sysfs_number(&f->fs, &left, "sys/bus/pci/devices/%s/p2pmem/available",
				     pci->bdf) &&
		   left < LENT_LEAST) {
		pst_no(line, "%llu MiB lent for peer-to-peer DMA, %lld KiB of it left", mib,
		       (long long)left >> 10);
		pst_todo(line,
			 "end what holds it: fuser %s/p2pmem/allocate, below "
			 "/sys/bus/pci/devices, names the processes",
			 pci->bdf);
	} else {
		line->need = PST_NEED_DIRECT;
		pst_ok(line, "%llu MiB lent for peer-to-peer DMA", mib);
	}
}

static void look_p2pmem(const struct facts *f, struct pst_check_line *line)
{
	unsigned bad;

	if (f->host || !f->device_count || hidden(f, line))
		return;
	bad = count_bad(f, line, no_p2pmem);
	if (f->peermem) {
		look_lent(f, line);
		return;
	}
	if (!bad) {
		pst_ok(line, "%llu MiB lent for peer-to-peer DMA%s",
		       (unsigned long long)f->devices[0].pci->p2pmem_bytes >> 20,
		       f->device_count > 1 ? ", by each" : "");
		return;
	}
	pst_no(line, bad == f->device_count ? "no GPU lends its memory to other devices"
					    : "not every GPU lends its memory to other devices");
	if (!all_of(f, "nvidia")) {
		pst_todo(line, "see whether the card's driver can publish its memory as P2PDMA");
		return;
	}
	pst_script(line, "echo 'options nvidia NVreg_RegistryDwords=\"" STATIC_BAR1 "\"' "
			 ">/etc/modprobe.d/penstock-static-bar1.conf");
	pst_script(line, "# undo: rm /etc/modprobe.d/penstock-static-bar1.conf");
	pst_script(line,
		   "update_initramfs  # then reboot, or reload the module with no GPU in use");
}

static void look_dmabuf(const struct facts *f, struct pst_check_line *line)
{
	int config;

	if (f->host || f->peermem || !all_of(f, "nvidia") || !f->nvidia.loaded)
		return;
	config = pst_kernel_config(f, "DMA_SHARED_BUFFER");
	if (config == 'n')
		pst_no(line, "Linux %s was built without CONFIG_DMA_SHARED_BUFFER", f->release);
	else if (!f->nvidia.version[0])
		pst_unknown(line, "the driver's version cannot be seen");
	else if (!f->nvidia.open)
		pst_no(line, "the closed module exports none");
	else if (f->nvidia.major < 515 || (f->kernel && f->kernel < 5012))
		pst_no(line, "%s on Linux %s is too old", f->nvidia.version, f->release);
	else
		pst_ok(line, "the open module exports GPU memory to NICs");
}

static void look_nvidia_fs(const struct facts *f, struct pst_check_line *line)
{
	char version[64];
	int there;

	if (f->host || f->peermem || !all_of(f, "nvidia"))
		return;
	there = pst_module_there(f, "nvidia_fs");
	if (there < 0) {
		pst_unknown(line, "the list of modules cannot be read");
	} else if (!there) {
		pst_no(line, "not loaded");
		pst_script(line, "modprobe nvidia_fs  # only for programs that use cuFile");
	} else if (pst_sysfs_text(&f->fs, version, sizeof(version),
				  "proc/driver/nvidia-fs/version") > 0) {
		pst_ok(line, "loaded, %s", version);
	} else {
		pst_ok(line, "loaded");
	}
}

static void look_peermem(const struct facts *f, struct pst_check_line *line)
{
	int there;

	if (f->host || f->peermem || !all_of(f, "nvidia") || !f->nic_count)
		return;
	there = pst_module_there(f, "nvidia_peermem");
	if (there > 0)
		pst_ok(line, "loaded");
	else if (there < 0)
		pst_unknown(line, "the list of modules cannot be read");
	else if (f->nvidia.open && f->nvidia.major >= 515)
		pst_ok(line, "not loaded, dma-buf takes its place");
	else
		pst_no(line, "not loaded, and the driver exports no dma-buf");
	if (!there)
		pst_script(line, "modprobe nvidia_peermem");
}

/* ---- options of the kernel ------------------------------------------------------ */

static void look_options(const struct facts *f, struct pst_check_line *line)
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
		pst_unknown(line, "the kernel's command line cannot be read");
		pst_todo(line, "cat /proc/cmdline shows it, on the machine itself");
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
		pst_no(line, "%s", f->stack.swiotlb ? f->stack.swiotlb : text);
		line->need = PST_NEED_NO_COPY;
	} else if (pst_cmdline_has(f, "pcie_aspm=force")) {
		pst_no(line, "%s", text);
		line->need = PST_NEED_SPEED;
		pst_todo(line, "remove pcie_aspm=force: links that sleep add latency");
	} else {
		pst_ok(line, "%s", at ? text : "none that matters here");
	}
}

const struct gate pst_check_device_gates[] = {
	{"gpu", PST_CHECK_DEVICE, PST_NEED_WORK, look_gpu,
	 "this is where the bytes shall land; a card without its driver cannot be reached",
	 "load the card's driver"},
	{"driver", PST_CHECK_DEVICE, PST_NEED_DIRECT, look_driver,
	 "only NVIDIA's open modules, from 570 on, give GPU memory the pages that a drive's DMA "
	 "needs",
	 "install the open kernel modules, 570 or later"},
	{"cuda", PST_CHECK_DEVICE, PST_NEED_WORK, look_cuda,
	 "without the driver's library no byte reaches the device",
	 "install the package with libcuda.so.1 that fits the module (in a container: run it with "
	 "the GPUs)"},
	{"backend", PST_CHECK_DEVICE, PST_NEED_DIRECT, look_backend,
	 "the card and the kernel may be able to, but Penstock has to know how to ask", ""},
	{"kernel", PST_CHECK_DEVICE, PST_NEED_DIRECT, look_kernel,
	 "a drive writes into a card's memory only through the kernel's peer-to-peer DMA",
	 "boot a kernel of 6.2 or later with CONFIG_PCI_P2PDMA=y"},
	{"bar1", PST_CHECK_DEVICE, PST_NEED_DIRECT, look_bar1,
	 "only the memory behind this window can be reached from other devices",
	 "enable 'above 4G decoding' and 'resizable BAR' in the firmware"},
	{"p2pmem", PST_CHECK_DEVICE, PST_NEED_DIRECT, look_p2pmem,
	 "the kernel lets drives write only to memory that a driver has lent it",
	 "set NVreg_RegistryDwords=\"" STATIC_BAR1 "\" for the module nvidia"},
	{"dma-buf", PST_CHECK_DEVICE, PST_NEED_NOTHING, look_dmabuf,
	 "NICs take GPU memory as dma-buf; drives do not need it",
	 "install the open kernel modules, 515 or later"},
	{"nvidia-fs", PST_CHECK_DEVICE, PST_NEED_NOTHING, look_nvidia_fs,
	 "NVIDIA's cuFile goes direct through it; Penstock's own paths do not need it",
	 "load nvidia_fs only if programs with NVIDIA's cuFile run here"},
	{"nvidia-peermem", PST_CHECK_DEVICE, PST_NEED_NOTHING, look_peermem,
	 "NICs reach GPU memory through it where there is no dma-buf", "load nvidia_peermem"},
	{"options", PST_CHECK_DEVICE, PST_NEED_SPEED, look_options,
	 "the kernel's command line opens and shuts paths for the whole machine",
	 "remove swiotlb=force: the CPU copies every byte because of it"},
	{.name = NULL},
};
