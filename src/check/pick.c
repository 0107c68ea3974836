/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which devices, drives and NICs the check is about: those of the topology, narrowed
 * by --device; on the real machine the device is opened for a moment, too. Called by
 * facts.c. It must never take host memory for a GPU that could not be opened.
 */
#include <errno.h>
#include <string.h>

#include "gate.h"

static void add_spot(struct spot *spots, unsigned *count, const struct facts *f,
		     const struct pst_end *end)
{
	if (*count == PST_CHECK_ENDS_MAX)
		return;
	spots[(*count)++] = (struct spot){
		.name = end->name,
		.maker = end->maker,
		.model = end->model,
		.transport = end->transport,
		.pci = end->pci < 0 ? NULL : &f->topo->pci[end->pci],
	};
}

/* Graphics of the processor or the board, which nobody would load a model into: no GPU
 * for "auto" to be missed. */
static bool is_display(const struct facts *f, const struct pst_end *end)
{
	return strcmp(end->maker, "nvidia") && end->pci >= 0 &&
	       f->topo->pci[end->pci].class_ >> 8 == 0x0300;
}

static void pick_ends(struct facts *f)
{
	size_t i;

	for (i = 0; i < f->topo->end_count; i++) {
		const struct pst_end *end = &f->topo->ends[i];

		if (end->kind == PST_END_DRIVE)
			add_spot(f->drives, &f->drive_count, f, end);
		else if (end->kind == PST_END_NIC)
			add_spot(f->nics, &f->nic_count, f, end);
		else if (!is_display(f, end))
			add_spot(f->devices, &f->device_count, f, end);
	}
}

static int no_device(char *why, size_t why_len, const char *name, const char *what)
{
	snprintf(why, why_len, "there is no device %.40s: %.180s", name, what);
	return -ENODEV;
}

/* ---- the real machine: what the library opens --------------------------------------- */

/* Sandboxes hide PCI and still hand GPUs in: the library knows them, /sys does not. */
static void add_unseen(struct facts *f)
{
	f->devices[0] = (struct spot){.name = f->device_name,
				      .maker = "nvidia",
				      .model = f->device_text,
				      .transport = ""};
	f->device_count = 1;
}

/* CUDA's order is its own: the card that was opened takes the place of the guess. */
static void place(struct facts *f, const char *bdf)
{
	const struct pst_pci *pci = pst_topo_pci(f->topo, bdf);
	size_t i;

	for (i = 0; pci && i < f->topo->end_count; i++)
		if (f->topo->ends[i].kind == PST_END_GPU &&
		    f->topo->ends[i].pci == (int)(pci - f->topo->pci)) {
			f->device_count = 0;
			add_spot(f->devices, &f->device_count, f, &f->topo->ends[i]);
		}
}

/* Opens the device for a moment: is its driver's library there, does it answer? */
static void try_device(struct facts *f, const char *name, bool one)
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
			place(f, info.bdf);
	}
	penstock_device_close(dev);
}

/* ---- by name ------------------------------------------------------------------------ */

/* "cuda:2": NVIDIA's GPUs by PCI address, until CUDA itself is asked. */
static int pick_cuda(struct facts *f, const char *name, char *why, size_t why_len)
{
	unsigned i, seen = 0;
	int64_t wanted;

	if (pst_number_parse(name + 5, &wanted) < 0 || wanted < 0)
		return no_device(why, why_len, name, "devices are called cuda:0, cuda:1, ...");
	for (i = 0; i < f->device_count; i++) {
		if (strcmp(f->devices[i].maker, "nvidia") || seen++ != (unsigned)wanted)
			continue;
		f->devices[0] = f->devices[i];
		f->device_count = 1;
		if (!f->captured)
			try_device(f, name, true);
		return 0;
	}
	if (f->captured)
		return no_device(why, why_len, name,
				 seen ? "there are fewer GPUs of NVIDIA"
				      : "there is no GPU of NVIDIA on the PCI bus");
	try_device(f, name, false);
	if (f->device_error)
		return no_device(why, why_len, name, f->device_text);
	add_unseen(f);
	return 0;
}

static int pick_peermem(struct facts *f, const char *name, char *why, size_t why_len)
{
	const struct pst_pci *pci = pst_topo_pci(f->topo, name + 8);

	if (!pci)
		return no_device(why, why_len, name, "no such PCI address");
	f->devices[0] = (struct spot){
		.name = pci->bdf, .maker = "", .model = "", .transport = "", .pci = pci};
	f->device_count = 1;
	f->peermem = true;
	if (!f->captured)
		try_device(f, name, false);
	return 0;
}

static int pick_auto(struct facts *f)
{
	bool one = f->device_count == 1;

	if (!f->captured && !f->device_count)
		try_device(f, "auto", false);
	else if (!f->captured && !strcmp(f->devices[0].maker, "nvidia"))
		try_device(f, "cuda:0", one);
	if (!f->device_count && !strncmp(f->device_name, "cuda:", 5))
		add_unseen(f);
	f->host = !f->device_count;
	return 0;
}

int pst_check_pick(struct facts *f, char *why, size_t why_len)
{
	const char *name = f->opts->device ? f->opts->device : "auto";

	pick_ends(f);
	f->gpu_count = f->device_count;
	f->drive_total = f->drive_count;
	if (!strncmp(name, "cuda:", 5))
		return pick_cuda(f, name, why, why_len);
	if (!strncmp(name, "peermem:", 8))
		return pick_peermem(f, name, why, why_len);
	if (!strcmp(name, "auto"))
		return pick_auto(f);
	if (strcmp(name, "host"))
		return no_device(why, why_len, name,
				 "devices are host, cuda:N, peermem:DDDD:BB:DD.F and auto");
	f->device_count = 0;
	f->host = true;
	snprintf(f->device_name, sizeof(f->device_name), "host");
	return 0;
}

bool pst_check_on_pci(const struct facts *f)
{
	unsigned i;

	for (i = 0; i < f->device_count; i++)
		if (!f->devices[i].pci)
			return false;
	return true;
}

void pst_spots_text(const struct spot *spots, unsigned count, char *out, size_t len)
{
	unsigned i, same = 1;
	size_t at = 0;

	while (same < count && !strcmp(spots[same].model, spots[0].model))
		same++;
	out[0] = '\0';
	if (same == count) {
		const char *model = spots[0].model[0]			? spots[0].model
				    : !strcmp(spots[0].maker, "nvidia") ? "NVIDIA GPU"
				    : !strcmp(spots[0].maker, "amd")	? "AMD GPU"
				    : spots[0].maker[0]			? "GPU"
									: spots[0].name;

		snprintf(out, len, count > 1 ? "%2$u x %1$s" : "%1$s", model, count);
		return;
	}
	for (i = 0; i < count && at < len; i++)
		at += (size_t)snprintf(out + at, len - at, "%s%s", i ? ", " : "",
				       spots[i].model[0] ? spots[i].model : spots[i].name);
}
