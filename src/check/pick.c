/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the devices, drives and NICs to check: all devices in the topology or only the device
 * that --device names, and the drives and NICs in the topology. On the running machine it also
 * opens the device for a moment. Called by check.c. If a GPU cannot be opened, it must never
 * check host memory instead.
 */
#include "pick.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void subject_add(struct pst_check_subject *subjects, unsigned *count,
			const struct pst_check_facts *f, const struct pst_end *end)
{
	if (*count == PST_CHECK_SUBJECTS_MAX)
		return;
	subjects[(*count)++] = (struct pst_check_subject){
		.name = end->name,
		.maker = end->maker,
		.model = end->model,
		.transport = end->transport,
		.pci = end->pci < 0 ? NULL : &f->topo->pci[end->pci],
	};
}

/* Returns whether the GPU only drives a display, as the graphics of a processor or a server
 * board does. The device "auto" ignores such a GPU, because nobody loads a model into it. */
static bool end_is_display(const struct pst_check_facts *f, const struct pst_end *end)
{
	return strcmp(end->maker, "nvidia") && end->pci >= 0 &&
	       f->topo->pci[end->pci].class_ >> 8 == 0x0300;
}

static void pick_all(struct pst_check_facts *f)
{
	size_t i;

	for (i = 0; i < f->topo->end_count; i++) {
		const struct pst_end *end = &f->topo->ends[i];

		if (end->kind == PST_END_DRIVE)
			subject_add(f->drives, &f->drive_count, f, end);
		else if (end->kind == PST_END_NIC)
			subject_add(f->nics, &f->nic_count, f, end);
		else if (!end_is_display(f, end))
			subject_add(f->devices, &f->device_count, f, end);
	}
}

static int device_not_found(char *why, size_t why_len, const char *name, const char *what)
{
	snprintf(why, why_len, "there is no device %.40s: %.180s", name, what);
	return -ENODEV;
}

/* ---- the device on the real machine -------------------------------------------------- */

/* Replaces the list of devices to check by the one device that the library opened. Used for a GPU
 * that /sys does not show: a sandbox can give access to a GPU but hide PCI. */
static void device_set_hidden(struct pst_check_facts *f)
{
	f->devices[0] = (struct pst_check_subject){.name = f->device_name,
						   .maker = "nvidia",
						   .model = f->device_text,
						   .transport = ""};
	f->device_count = 1;
}

/* Replaces the list of devices to check by the card that the library opened. CUDA does not number
 * GPUs in PCI order, so the card of the same number in the topology can be a different card. */
static void device_set_opened(struct pst_check_facts *f, const char *bdf)
{
	const struct pst_pci *pci = pst_topo_pci(f->topo, bdf);
	size_t i;

	for (i = 0; pci && i < f->topo->end_count; i++)
		if (f->topo->ends[i].kind == PST_END_GPU &&
		    f->topo->ends[i].pci == (int)(pci - f->topo->pci)) {
			f->device_count = 0;
			subject_add(f->devices, &f->device_count, f, &f->topo->ends[i]);
		}
}

/* Opens the device for a moment, to learn whether the driver's library exists and works. If `one`
 * is true, no other device than the opened one is checked. */
static void device_try(struct pst_check_facts *f, const char *name, bool one)
{
	struct penstock_device_info info = {.size = sizeof(info)};
	struct penstock_device *dev;
	int ret = penstock_device_open(name, NULL, &dev);

	snprintf(f->device_name, sizeof(f->device_name), "%s", name);
	f->device_error = ret < 0 ? ret : 0;
	if (ret < 0) {
		snprintf(f->device_text, sizeof(f->device_text), "%s", penstock_errmsg());
		return;
	}
	snprintf(f->device_name, sizeof(f->device_name), "%s", penstock_device_name(dev));
	if (!penstock_device_get_info(dev, &info)) {
		snprintf(f->device_text, sizeof(f->device_text), "%s", info.text);
		if (one)
			device_set_opened(f, info.bdf);
	}
	penstock_device_close(dev);
}

/* ---- by name ------------------------------------------------------------------------ */

/* Picks a device such as "cuda:2". If the facts come from a capture (copied files of another
 * machine), CUDA cannot report the number of a GPU, so the number counts the NVIDIA GPUs in the
 * order of their PCI addresses. */
static int pick_cuda(struct pst_check_facts *f, const char *name, char *why, size_t why_len)
{
	unsigned i, seen = 0;
	int64_t wanted;

	if (pst_number_parse(name + 5, &wanted) < 0 || wanted < 0)
		return device_not_found(why, why_len, name,
					"devices are called cuda:0, cuda:1, ...");
	for (i = 0; i < f->device_count; i++) {
		if (strcmp(f->devices[i].maker, "nvidia") || seen++ != (unsigned)wanted)
			continue;
		f->devices[0] = f->devices[i];
		f->device_count = 1;
		if (!f->captured)
			device_try(f, name, true);
		return 0;
	}
	if (f->captured)
		return device_not_found(why, why_len, name,
					seen ? "the machine has fewer NVIDIA GPUs"
					     : "the PCI bus has no NVIDIA GPU");
	device_try(f, name, false);
	if (f->device_error)
		return device_not_found(why, why_len, name, f->device_text);
	device_set_hidden(f);
	return 0;
}

static int pick_peermem(struct pst_check_facts *f, const char *name, char *why, size_t why_len)
{
	const struct pst_pci *pci = pst_topo_pci(f->topo, name + 8);

	if (!pci)
		return device_not_found(why, why_len, name,
					"no PCI function has this address; see lspci -D");
	f->devices[0] = (struct pst_check_subject){
		.name = pci->bdf, .maker = "", .model = "", .transport = "", .pci = pci};
	f->device_count = 1;
	f->peermem = true;
	if (!f->captured)
		device_try(f, name, false);
	return 0;
}

static int pick_auto(struct pst_check_facts *f)
{
	bool one = f->device_count == 1;

	if (!f->captured && !f->device_count)
		device_try(f, "auto", false);
	else if (!f->captured && !strcmp(f->devices[0].maker, "nvidia"))
		device_try(f, "cuda:0", one);
	if (!f->device_count && !strncmp(f->device_name, "cuda:", 5))
		device_set_hidden(f);
	f->host = !f->device_count;
	return 0;
}

int pst_check_pick(struct pst_check_facts *f, char *why, size_t why_len)
{
	const char *name = f->opts->device ? f->opts->device : "auto";

	pick_all(f);
	f->gpu_count = f->device_count;
	f->drive_total = f->drive_count;
	if (!strncmp(name, "cuda:", 5))
		return pick_cuda(f, name, why, why_len);
	if (!strncmp(name, "peermem:", 8))
		return pick_peermem(f, name, why, why_len);
	if (!strcmp(name, "auto"))
		return pick_auto(f);
	if (strcmp(name, "host"))
		return device_not_found(why, why_len, name,
					"devices are host, cuda:N, peermem:DDDD:BB:DD.F and auto");
	f->device_count = 0;
	f->host = true;
	snprintf(f->device_name, sizeof(f->device_name), "host");
	return 0;
}

bool pst_check_on_pci(const struct pst_check_facts *f)
{
	unsigned i;

	for (i = 0; i < f->device_count; i++)
		if (!f->devices[i].pci)
			return false;
	return true;
}

void pst_subjects_text(const struct pst_check_subject *subjects, unsigned count, char *out,
		       size_t len)
{
	unsigned i, same = 1;
	size_t at = 0;

	while (same < count && !strcmp(subjects[same].model, subjects[0].model))
		same++;
	out[0] = '\0';
	if (same == count) {
		const char *model = subjects[0].model[0]		   ? subjects[0].model
				    : !strcmp(subjects[0].maker, "nvidia") ? "NVIDIA GPU"
				    : !strcmp(subjects[0].maker, "amd")	   ? "AMD GPU"
				    : subjects[0].maker[0]		   ? "GPU"
									   : subjects[0].name;

		snprintf(out, len, count > 1 ? "%2$u x %1$s" : "%1$s", model, count);
		return;
	}
	for (i = 0; i < count && at < len; i++)
		at += (size_t)snprintf(out + at, len - at, "%s%s", i ? ", " : "",
				       subjects[i].model[0] ? subjects[i].model : subjects[i].name);
}
