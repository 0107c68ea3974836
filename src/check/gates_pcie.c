/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the gates that check the PCI Express route between device and drives: IOMMU, ACS, the
 * route itself, the links, and the multipath layer of NVMe. The gates follow the kernel's rules
 * (drivers/pci/p2pdma.c) as far as /sys shows the facts that the kernel uses. A bridge that cannot
 * be read must never count as a bridge that passes peer traffic.
 */
#include "gates_pcie.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "line.h"
#include "pick.h"

/* ---- IOMMU --------------------------------------------------------------------- */

/* Returns 1 if an IOMMU translates the device's addresses. Returns 0 if there is no IOMMU or if
 * the IOMMU passes addresses unchanged, and -1 if unknown. */
static int iommu_translates(const struct pst_pci *pci)
{
	if (pci->iommu_group < 0 || !strcmp(pci->iommu_type, "identity"))
		return 0;
	return pci->iommu_type[0] ? 1 : -1;
}

static void inspect_iommu(const struct pst_check_facts *f, struct pst_check_line *line)
{
	unsigned i, on = 0, hidden = 0, all = 0;

	if (f->host)
		return;
	if (!pst_check_on_pci(f)) {
		pst_line_unknown(line, "this sandbox hides the card's PCI function");
		pst_line_todo(line, "run penstock check on the host");
		return;
	}
	for (i = 0; i < f->device_count + f->drive_count; i++) {
		const struct pst_check_subject *subject =
			i < f->device_count ? &f->devices[i] : &f->drives[i - f->device_count];

		if (!subject->pci)
			continue;
		all++;
		on += iommu_translates(subject->pci) > 0;
		hidden += iommu_translates(subject->pci) < 0;
		pst_line_detail(line, "%-8s %s, %s", subject->name, subject->pci->bdf,
				subject->pci->iommu_group < 0 ? "in no group"
				: subject->pci->iommu_type[0] ? subject->pci->iommu_type
							      : "type unknown");
	}
	if (on) {
		pst_line_no(line, "it translates addresses for %u of %u devices", on, all);
		pst_line_script(line, "kernel_parameter iommu=pt  # then reboot");
	} else if (hidden) {
		pst_line_no_permission(line, f->captured, "the IOMMU's mode for these devices");
	} else {
		pst_line_ok(line, "%s",
			    !strcmp(f->topo->iommu, "none") ? "none, or switched off"
							    : "passthrough");
	}
}

/* ---- the route ----------------------------------------------------------------- */

/* The PCI Express route between a device and a drive. */
struct pci_route {
	int near; /* distance between device and drive, an enum pst_nearness */
	/* 1 if a bridge between the two sends their traffic up to the root, 0 if none does, -errno
	 * if unknown (pst_topo_acs_redirects) */
	int acs;
	/* 1 if the kernel permits the route across the host bridge, 0 if not, -1 if unknown */
	int host;
	int open; /* 1 if peer-to-peer DMA is possible, 0 if not, -1 if unknown */
};

static struct pci_route route_between(const struct pst_check_facts *f,
				      const struct pst_check_subject *a,
				      const struct pst_check_subject *b)
{
	struct pci_route r = {
		.near = pst_topo_nearness(f->topo, a->pci->bdf, b->pci->bdf),
		.acs = pst_topo_acs_redirects(f->topo, a->pci->bdf, b->pci->bdf),
		.host = pst_host_bridge_permits(f, a->pci, b->pci),
	};

	if (r.near <= PST_NEAR_PXB && r.acs == 0)
		r.open = 1;
	else if (r.near <= PST_NEAR_PXB && r.acs < 0)
		r.open = r.host == 1 ? 1 : -1;
	else
		r.open = r.host;
	return r;
}

/* Returns whether route `a` is better than route `b`: its `open` is larger or, if that is equal,
 * its drive is nearer. */
static bool route_is_better(const struct pci_route *a, const struct pci_route *b)
{
	return a->open != b->open ? a->open > b->open : a->near < b->near;
}

/* Finds the route that decides the gate for the device. If a file is checked, this is the worst
 * route, because the device must reach all drives of the file. Otherwise this is the best route
 * to any drive. Returns false if no drive is on PCI. */
static bool device_route(const struct pst_check_facts *f, const struct pst_check_subject *device,
			 struct pci_route *out, const struct pst_check_subject **drive)
{
	bool found = false;
	unsigned i;

	for (i = 0; i < f->drive_count; i++) {
		struct pci_route r;

		/* The device can be a drive itself; skip this drive. */
		if (!f->drives[i].pci || f->drives[i].pci == device->pci)
			continue;
		r = route_between(f, device, &f->drives[i]);
		if (found && (f->has_file ? !route_is_better(out, &r) : !route_is_better(&r, out)))
			continue;
		*out = r;
		*drive = &f->drives[i];
		found = true;
	}
	return found;
}

static const char *route_text(const struct pci_route *r)
{
	switch (r->near) {
	case PST_NEAR_PIX:
		return "behind one switch";
	case PST_NEAR_PXB:
		return "behind a chain of switches";
	case PST_NEAR_PHB:
		return "across the host bridge";
	case PST_NEAR_NODE:
		return "across host bridges of one NUMA node";
	default:
		return "across the sockets";
	}
}

/* Appends to `out` the names of those `subjects` (GPUs, drives or NICs) whose distance from the
 * device is `near`. */
static void list_near(const struct pst_check_facts *f, const struct pst_check_subject *device,
		      int near, const struct pst_check_subject *subjects, unsigned count, char *out,
		      size_t len)
{
	size_t at = strlen(out);
	unsigned i;

	for (i = 0; i < count && at < len; i++)
		if (subjects[i].pci && subjects[i].pci != device->pci &&
		    pst_topo_nearness(f->topo, device->pci->bdf, subjects[i].pci->bdf) == near)
			at += (size_t)snprintf(out + at, len - at, " %s", subjects[i].name);
}

/* Adds details about the device's routes to all drives and NICs, with one line for each
 * distance. */
static void list_routes(const struct pst_check_facts *f, const struct pst_check_subject *device,
			struct pst_check_line *line)
{
	for (int near = PST_NEAR_PIX; near <= PST_NEAR_SYS; near++) {
		char names[PENSTOCK_TEXT_MAX - 32] = "";

		list_near(f, device, near, f->drives, f->drive_count, names, sizeof(names));
		list_near(f, device, near, f->nics, f->nic_count, names, sizeof(names));
		if (names[0])
			pst_line_detail(line, "%-6s %-4s%s", device->name, pst_nearness_name(near),
					names);
	}
}

static void inspect_route(const struct pst_check_facts *f, struct pst_check_line *line)
{
	const struct pst_check_subject *drive, *to = NULL, *from = NULL, *reached = NULL;
	struct pci_route worst = {0}, r;
	unsigned i;
	bool far;

	/* If the file is on no drive, this gate prints no line. The lines of the file layer then
	 * report that there is no drive. */
	if (f->host || !pst_check_on_pci(f) || (f->has_file && !f->stack.drive_count))
		return;
	for (i = 0; i < f->device_count; i++) {
		if (!device_route(f, &f->devices[i], &r, &drive))
			continue;
		list_routes(f, &f->devices[i], line);
		if (r.open == 1)
			reached = &f->devices[i];
		if (!to || route_is_better(&worst, &r)) {
			worst = r;
			to = drive;
			from = &f->devices[i];
		}
	}
	if (!to) {
		pst_line_no(line, "no drive %sis on PCI Express",
			    f->has_file ? "of this file " : "");
		pst_line_todo(line, "peer-to-peer DMA needs an NVMe drive on PCI Express");
		return;
	}
	/* The gate "acs" judges the bridges below the root; this gate judges only routes across
	 * the root. */
	far = worst.near > PST_NEAR_PXB;
	if (far && worst.open < 0) {
		pst_line_unknown(
			line, "%s to %s: %s, %s; this processor's host bridges are unknown",
			from->name, to->name, pst_nearness_name(worst.near), route_text(&worst));
	} else if (far && !worst.open) {
		pst_line_no(line, "%s to %s: %s, %s", from->name, to->name,
			    pst_nearness_name(worst.near), route_text(&worst));
		if (reached)
			pst_line_todo(line,
				      "choose a nearer device, such as %s (see penstock topo)",
				      reached->name);
	} else if (f->device_count > 1) {
		pst_line_ok(line, "every GPU has %s %s: %s%s",
			    f->has_file ? "the file's drives" : "a drive", route_text(&worst),
			    pst_nearness_name(worst.near), far ? ", which the kernel permits" : "");
	} else {
		pst_line_ok(line, "%s to %s: %s, %s%s", from->name, to->name,
			    pst_nearness_name(worst.near), route_text(&worst),
			    far ? ", which the kernel permits" : "");
	}
}

/* ---- ACS ----------------------------------------------------------------------- */

/* Returns whether the machine passes devices through to virtual machines, which the ACS bits
 * isolate from each other. */
static bool has_guests(const struct pst_check_facts *f)
{
	size_t i;

	for (i = 0; i < f->topo->pci_count; i++)
		if (!strcmp(f->topo->pci[i].driver, "vfio-pci"))
			return true;
	return false;
}

/* Adds the details and the shell commands for each bridge above the device that redirects peer
 * traffic. `done` lists the bridges whose details were already added. */
static void list_redirects(const struct pst_check_facts *f, const struct pst_pci *from,
			   struct pst_check_line *line, char *done, size_t done_len)
{
	bool guests = has_guests(f);
	int at = from->bridge;
	unsigned steps;

	for (steps = 0; at >= 0 && steps < PST_TOPO_DEPTH_MAX; steps++) {
		const struct pst_pci *bridge = &f->topo->pci[at];

		if (bridge->acs > 0 && bridge->acs & PST_ACS_REDIRECT &&
		    !strstr(done, bridge->bdf)) {
			size_t len = strlen(done);

			pst_line_detail(line, "%s redirects, control 0x%02x", bridge->bdf,
					bridge->acs);
			if (len + sizeof(bridge->bdf) + 1 < done_len)
				snprintf(done + len, done_len - len, "%s ", bridge->bdf);
			if (!line->script[0] && guests)
				pst_line_script(
					line, "# your decision: devices are passed to guests here "
					      "(vfio-pci), and these bits isolate them");
			if (!line->script[0]) {
				pst_line_script(
					line,
					"# lasts until the next boot, and works only for pairs "
					"of devices not tried yet;");
				pst_line_script(line, "# permanent: kernel option "
						      "pci=disable_acs_redir=BDF;BDF");
			}
			pst_line_script(line, "%ssetpci -s %s ECAP_ACS+6.w=0:2c",
					guests ? "# " : "", bridge->bdf);
		}
		at = bridge->bridge;
	}
}

static void inspect_acs(const struct pst_check_facts *f, struct pst_check_line *line)
{
	unsigned i, j, shut = 0, hidden = 0, all = 0;
	bool permitted = true;
	char done[8192] = "";

	if (f->host || !pst_check_on_pci(f))
		return;
	for (i = 0; i < f->device_count; i++)
		for (j = 0; j < f->drive_count; j++) {
			struct pci_route r;

			if (!f->drives[j].pci || f->drives[j].pci == f->devices[i].pci)
				continue;
			r = route_between(f, &f->devices[i], &f->drives[j]);
			if (r.near > PST_NEAR_PXB)
				continue;
			all++;
			hidden += r.acs == -ENODATA;
			if (r.acs != 1)
				continue;
			shut++;
			permitted = permitted && r.host == 1;
			list_redirects(f, f->devices[i].pci, line, done, sizeof(done));
			list_redirects(f, f->drives[j].pci, line, done, sizeof(done));
		}
	if (!all)
		/* no device shares a bridge with a drive; the gate "route" reports that */
		return;
	if (shut) {
		unsigned bridges = 0;

		for (const char *c = done; *c; c++)
			bridges += *c == ' ';
		pst_line_no(line, "%u bridge%s send%s peer traffic up to the root%s", bridges,
			    bridges == 1 ? "" : "s", bridges == 1 ? "s" : "",
			    permitted ? ", a detour that the kernel permits here" : "");
		if (permitted)
			line->need = PST_NEED_SPEED;
	} else if (hidden) {
		pst_line_no_permission(line, f->captured, "the ACS settings of the bridges");
	} else {
		pst_line_ok(line, "no bridge on the route redirects");
	}
}

/* ---- links --------------------------------------------------------------------- */

/* Returns whether the link of a device, drive or NIC is slower or narrower than both of its ends
 * permit. Sets *narrow if the link has fewer lanes than both ends permit. Adds details for a slow
 * link. */
static bool link_is_slow(const struct pst_check_subject *subject, struct pst_check_line *line,
			 bool *narrow)
{
	const struct pst_pci *pci = subject->pci;
	bool is_slow;

	if (!pci || !pci->link_mts || !pci->link_mts_max || !pci->link_width ||
	    !pci->link_width_max)
		return false;
	*narrow = pci->link_width < pci->link_width_max;
	is_slow = *narrow || pci->link_mts < pci->link_mts_max;
	if (is_slow)
		pst_line_detail(line, "%-8s %.1f GT/s x%u of %.1f GT/s x%u", subject->name,
				pci->link_mts / 1000.0, pci->link_width, pci->link_mts_max / 1000.0,
				pci->link_width_max);
	return is_slow;
}

static void inspect_link(const struct pst_check_facts *f, struct pst_check_line *line)
{
	unsigned i, bad = 0, resting = 0, known = 0;
	unsigned all = f->device_count + f->drive_count + f->nic_count;
	const struct pst_check_subject *first = NULL;

	for (i = 0; i < all; i++) {
		bool gpu = i < f->device_count, narrow = false;
		const struct pst_check_subject *subject =
			gpu ? &f->devices[i]
			: i < f->device_count + f->drive_count
				? &f->drives[i - f->device_count]
				: &f->nics[i - f->device_count - f->drive_count];

		known += subject->pci && subject->pci->link_mts && subject->pci->link_mts_max;
		if (!link_is_slow(subject, line, &narrow))
			continue;
		if (gpu && !narrow) {
			resting++;
			continue;
		}
		bad++;
		first = first ? first : subject;
	}
	if (bad) {
		pst_line_no(line, "%s runs at %.1f GT/s x%u of %.1f GT/s x%u", first->name,
			    first->pci->link_mts / 1000.0, first->pci->link_width,
			    first->pci->link_mts_max / 1000.0, first->pci->link_width_max);
		if (bad > 1)
			snprintf(line->seen, sizeof(line->seen),
				 "%u links are slower than both their ends permit", bad);
	} else if (resting) {
		pst_line_unknown(line, "%u GPU link%s below full speed, probably idle", resting,
				 resting == 1 ? " is" : "s are");
		pst_line_todo(line, "check again while the GPUs work: idle links run slower");
	} else if (known) {
		pst_line_ok(line, "all links run at full speed and width");
	}
}

/* ---- multipath ------------------------------------------------------------------ */

/* Returns whether the multipath layer of NVMe owns a namespace of the drive. In that case the
 * folder of the drive's controller has a hidden nvme0c0n1 instead of nvme0n1. */
static bool drive_has_multipath(const struct pst_check_facts *f,
				const struct pst_check_subject *drive)
{
	size_t len = strlen(drive->name), i;
	struct pst_names names;
	bool found = false;

	if (pst_sysfs_list(&f->fs, &names, "sys/class/nvme/%s", drive->name) < 0)
		return false;
	for (i = 0; i < names.count && !found; i++)
		found = !strncmp(names.name[i], "nvme", 4) && strlen(names.name[i]) > len &&
			strchr(names.name[i] + 4, 'c') != NULL;
	pst_names_free(&names);
	return found;
}

/* Returns whether the machine has NVMe drives over fabrics. Such drives need the multipath
 * layer to survive the loss of a path. The layer can only be on or off for all NVMe drives
 * together. */
static bool has_fabrics(const struct pst_check_facts *f)
{
	size_t i;

	for (i = 0; i < f->topo->end_count; i++) {
		const struct pst_end *end = &f->topo->ends[i];

		if (end->kind == PST_END_DRIVE && !strncmp(end->name, "nvme", 4) &&
		    strcmp(end->transport, "pcie"))
			return true;
	}
	return false;
}

static void inspect_multipath(const struct pst_check_facts *f, struct pst_check_line *line)
{
	unsigned i, count = 0, all = 0;

	if (f->host)
		return;
	for (i = 0; i < f->drive_count; i++) {
		if (strcmp(f->drives[i].transport, "pcie"))
			continue;
		all++;
		if (!drive_has_multipath(f, &f->drives[i]))
			continue;
		count++;
		pst_line_detail(line, "%s is owned by the multipath layer", f->drives[i].name);
	}
	if (!all)
		return;
	if (!count) {
		pst_line_ok(line, "off for these drives");
		return;
	}
	/* The queue of the multipath device does not declare support for peer memory. Some kernels
	 * after 6.16 do declare it; for these kernels only a test transfer can show whether peer
	 * memory works. */
	if (f->kernel >= 6017)
		pst_line_unknown(line,
				 "%u of %u drives use it; recent kernels may pass peer memory "
				 "through it",
				 count, all);
	else
		pst_line_no(line, "%u of %u drives use it", count, all);
	if (has_fabrics(f)) {
		pst_line_script(
			line, "# your decision: drives over fabrics would lose their second path");
		pst_line_script(line, "# echo options nvme_core multipath=N "
				      ">/etc/modprobe.d/penstock-nvme.conf");
		return;
	}
	pst_line_script(line, "echo options nvme_core multipath=N "
			      ">/etc/modprobe.d/penstock-nvme.conf");
	pst_line_script(line, "# undo: rm /etc/modprobe.d/penstock-nvme.conf");
	pst_line_script(line,
			"update_initramfs  # then reboot; device names may change: mount by UUID");
}

const struct pst_check_gate pst_check_pcie_gates[] = {
	{"iommu", PST_CHECK_DEVICE, PST_NEED_DIRECT, inspect_iommu,
	 "if the IOMMU translates, peer traffic goes up to the root complex, or is lost",
	 "boot with iommu=pt"},
	{"acs", PST_CHECK_DEVICE, PST_NEED_DIRECT, inspect_acs,
	 "a redirecting bridge sends traffic from drive to device up to the root, not directly",
	 "clear the redirect bits of these bridges, unless devices are passed to guests here"},
	{"route", PST_CHECK_DEVICE, PST_NEED_DIRECT, inspect_route,
	 "the kernel permits peer-to-peer DMA below a common switch or across known host bridges",
	 "move drive and GPU below one PCIe switch, or choose nearer ones (see penstock topo)"},
	{"link", PST_CHECK_DEVICE, PST_NEED_SPEED, inspect_link,
	 "a slow link limits every path that uses it",
	 "reseat the card or drive, and check the slot's settings in the firmware"},
	{"multipath", PST_CHECK_DEVICE, PST_NEED_DIRECT, inspect_multipath,
	 "the multipath device in front of a drive refuses peer memory",
	 "boot with nvme_core.multipath=N if each drive has one path only"},
	{.name = NULL},
};
