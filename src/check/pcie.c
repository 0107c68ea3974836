/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gates on the way between the cards: IOMMU, ACS, the route itself, the links,
 * and NVMe's own multipath. It judges as the kernel does (drivers/pci/p2pdma.c), as
 * far as /sys shows the same facts. It must never take a bridge that could not be
 * read for one that lets peers through.
 */
#include <errno.h>
#include <string.h>

#include "gate.h"

/* ---- IOMMU --------------------------------------------------------------------- */

/* 0 none or passthrough, 1 translates, -1 not known. */
static int translates(const struct pst_pci *pci)
{
	if (pci->iommu_group < 0 || !strcmp(pci->iommu_type, "identity"))
		return 0;
	return pci->iommu_type[0] ? 1 : -1;
}

static void look_iommu(const struct facts *f, struct pst_check_line *line)
{
	unsigned i, on = 0, hidden = 0, all = 0;

	if (f->host)
		return;
	if (!pst_check_on_pci(f)) {
		pst_unknown(line, "this sandbox hides the card's PCI function");
		pst_todo(line, "run check on the host");
		return;
	}
	for (i = 0; i < f->device_count + f->drive_count; i++) {
		const struct spot *spot =
			i < f->device_count ? &f->devices[i] : &f->drives[i - f->device_count];

		if (!spot->pci)
			continue;
		all++;
		on += translates(spot->pci) > 0;
		hidden += translates(spot->pci) < 0;
		pst_more(line, "%-8s %s, %s", spot->name, spot->pci->bdf,
			 spot->pci->iommu_group < 0 ? "in no group"
			 : spot->pci->iommu_type[0] ? spot->pci->iommu_type
						    : "type not known");
	}
	if (on) {
		pst_no(line, "it translates for %u of %u devices", on, all);
		pst_script(line, "kernel_parameter iommu=pt  # then reboot");
	} else if (hidden) {
		pst_not_allowed(f, line, "what the IOMMU does for these devices");
	} else {
		pst_ok(line, "%s",
		       !strcmp(f->topo->iommu, "none") ? "none, or switched off" : "passthrough");
	}
}

/* ---- the route ----------------------------------------------------------------- */

struct route {
	int near; /* enum pst_nearness */
	int acs;  /* as pst_topo_acs_redirects */
	int host; /* does the kernel permit the way over the host bridge? 1, 0, -1 */
	int open; /* 1, 0, -1 not known */
};

static struct route route_of(const struct facts *f, const struct spot *a, const struct spot *b)
{
	struct route r = {
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

/* The better of two, for one device. */
static bool better(const struct route *a, const struct route *b)
{
	return a->open != b->open ? a->open > b->open : a->near < b->near;
}

/* The route that counts: with a file its drives must all be reached, so the worst;
 * else the nearest drive. False: no drive is on PCI. */
static bool route_to(const struct facts *f, const struct spot *device, struct route *out,
		     const struct spot **drive)
{
	bool found = false;
	unsigned i;

	for (i = 0; i < f->drive_count; i++) {
		struct route r;

		/* A drive's own memory is no way to that drive. */
		if (!f->drives[i].pci || f->drives[i].pci == device->pci)
			continue;
		r = route_of(f, device, &f->drives[i]);
		if (found && (f->has_file ? !better(out, &r) : !better(&r, out)))
			continue;
		*out = r;
		*drive = &f->drives[i];
		found = true;
	}
	return found;
}

static const char *how(const struct route *r)
{
	switch (r->near) {
	case PST_NEAR_PIX:
		return "behind one switch";
	case PST_NEAR_PXB:
		return "behind a chain of switches";
	case PST_NEAR_PHB:
		return "across the host bridge";
	case PST_NEAR_NODE:
		return "across host bridges of one node";
	default:
		return "across the sockets";
	}
}

/* The names of those that are so near to the device, behind what is in `out`. */
static void list_near(const struct facts *f, const struct spot *device, int near,
		      const struct spot *spots, unsigned count, char *out, size_t len)
{
	size_t at = strlen(out);
	unsigned i;

	for (i = 0; i < count && at < len; i++)
		if (spots[i].pci && spots[i].pci != device->pci &&
		    pst_topo_nearness(f->topo, device->pci->bdf, spots[i].pci->bdf) == near)
			at += (size_t)snprintf(out + at, len - at, " %s", spots[i].name);
}

/* The way from a device to each drive and NIC: a line for each distance. */
static void list_routes(const struct facts *f, const struct spot *device,
			struct pst_check_line *line)
{
	for (int near = PST_NEAR_PIX; near <= PST_NEAR_SYS; near++) {
		char names[PENSTOCK_TEXT_MAX - 32] = "";

		list_near(f, device, near, f->drives, f->drive_count, names, sizeof(names));
		list_near(f, device, near, f->nics, f->nic_count, names, sizeof(names));
		if (names[0])
			pst_more(line, "%-6s %-4s%s", device->name, pst_nearness_name(near), names);
	}
}

static void look_route(const struct facts *f, struct pst_check_line *line)
{
	const struct spot *drive, *to = NULL, *from = NULL, *reached = NULL;
	struct route worst = {0}, r;
	unsigned i;
	bool far;

	/* Without a drive beneath the file, its own layer says so. */
	if (f->host || !pst_check_on_pci(f) || (f->has_file && !f->stack.drive_count))
		return;
	for (i = 0; i < f->device_count; i++) {
		if (!route_to(f, &f->devices[i], &r, &drive))
			continue;
		list_routes(f, &f->devices[i], line);
		if (r.open == 1)
			reached = &f->devices[i];
		if (!to || better(&worst, &r)) {
			worst = r;
			to = drive;
			from = &f->devices[i];
		}
	}
	if (!to) {
		pst_no(line, "no drive %son PCI Express", f->has_file ? "of this file " : "");
		pst_todo(line, "peer-to-peer DMA needs an NVMe drive on PCI Express");
		return;
	}
	/* What bridges below the root do with it is the ACS line's to say. */
	far = worst.near > PST_NEAR_PXB;
	if (far && worst.open < 0) {
		pst_unknown(line, "%s %s: %s, %s; this processor's bridges are not known",
			    from->name, to->name, pst_nearness_name(worst.near), how(&worst));
	} else if (far && !worst.open) {
		pst_no(line, "%s %s: %s, %s", from->name, to->name, pst_nearness_name(worst.near),
		       how(&worst));
		if (reached)
			pst_todo(line, "choose a device that is nearer: %s is (see penstock topo)",
				 reached->name);
	} else if (f->device_count > 1) {
		pst_ok(line, "every GPU has %s %s: %s%s",
		       f->has_file ? "the file's drives" : "a drive", how(&worst),
		       pst_nearness_name(worst.near), far ? ", which the kernel permits" : "");
	} else {
		pst_ok(line, "%s %s: %s, %s%s", from->name, to->name, pst_nearness_name(worst.near),
		       how(&worst), far ? ", which the kernel permits" : "");
	}
}

/* ---- ACS ----------------------------------------------------------------------- */

/* Are devices passed to guests, whom these very bits keep apart? */
static bool has_guests(const struct facts *f)
{
	size_t i;

	for (i = 0; i < f->topo->pci_count; i++)
		if (!strcmp(f->topo->pci[i].driver, "vfio-pci"))
			return true;
	return false;
}

static void list_redirects(const struct facts *f, const struct pst_pci *from,
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

			pst_more(line, "%s redirects, control 0x%02x", bridge->bdf, bridge->acs);
			if (len + sizeof(bridge->bdf) + 1 < done_len)
				snprintf(done + len, done_len - len, "%s ", bridge->bdf);
			if (!line->script[0] && guests)
				pst_script(line, "# left to you: devices are passed to guests here "
						 "(vfio-pci), whom this keeps apart");
			if (!line->script[0]) {
				pst_script(line, "# until the next boot, and for devices that the "
						 "kernel has not refused each other yet;");
				pst_script(
					line,
					"# for good: the kernel's pci=disable_acs_redir=BDF;BDF");
			}
			pst_script(line, "%ssetpci -s %s ECAP_ACS+6.w=0:2c", guests ? "# " : "",
				   bridge->bdf);
		}
		at = bridge->bridge;
	}
}

static void look_acs(const struct facts *f, struct pst_check_line *line)
{
	unsigned i, j, shut = 0, hidden = 0, all = 0;
	bool permitted = true;
	char done[8192] = "";

	if (f->host || !pst_check_on_pci(f))
		return;
	for (i = 0; i < f->device_count; i++)
		for (j = 0; j < f->drive_count; j++) {
			struct route r;

			if (!f->drives[j].pci || f->drives[j].pci == f->devices[i].pci)
				continue;
			r = route_of(f, &f->devices[i], &f->drives[j]);
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
		return; /* no two of them share a bridge: the route says it */
	if (shut) {
		unsigned bridges = 0;

		for (const char *c = done; *c; c++)
			bridges += *c == ' ';
		pst_no(line, "%u bridge%s send%s peer traffic up to the root%s", bridges,
		       bridges == 1 ? "" : "s", bridges == 1 ? "s" : "",
		       permitted ? ", a detour that the kernel permits here" : "");
		if (permitted)
			line->need = PST_NEED_SPEED;
	} else if (hidden) {
		pst_not_allowed(f, line, "what the bridges redirect");
	} else {
		pst_ok(line, "no bridge between them redirects");
	}
}

/* ---- links --------------------------------------------------------------------- */

static bool slow(const struct spot *spot, struct pst_check_line *line, bool *narrow)
{
	const struct pst_pci *pci = spot->pci;
	bool is_slow;

	if (!pci || !pci->link_mts || !pci->link_mts_max || !pci->link_width ||
	    !pci->link_width_max)
		return false;
	*narrow = pci->link_width < pci->link_width_max;
	is_slow = *narrow || pci->link_mts < pci->link_mts_max;
	if (is_slow)
		pst_more(line, "%-8s %.1f GT/s x%u of %.1f GT/s x%u", spot->name,
			 pci->link_mts / 1000.0, pci->link_width, pci->link_mts_max / 1000.0,
			 pci->link_width_max);
	return is_slow;
}

static void look_link(const struct facts *f, struct pst_check_line *line)
{
	unsigned i, bad = 0, resting = 0, known = 0;
	unsigned all = f->device_count + f->drive_count + f->nic_count;
	const struct spot *first = NULL;

	for (i = 0; i < all; i++) {
		bool gpu = i < f->device_count, narrow = false;
		const struct spot *spot = gpu ? &f->devices[i]
					  : i < f->device_count + f->drive_count
						  ? &f->drives[i - f->device_count]
						  : &f->nics[i - f->device_count - f->drive_count];

		known += spot->pci && spot->pci->link_mts && spot->pci->link_mts_max;
		if (!slow(spot, line, &narrow))
			continue;
		if (gpu && !narrow) {
			resting++;
			continue;
		}
		bad++;
		first = first ? first : spot;
	}
	if (bad) {
		pst_no(line, "%s runs at %.1f GT/s x%u of %.1f GT/s x%u", first->name,
		       first->pci->link_mts / 1000.0, first->pci->link_width,
		       first->pci->link_mts_max / 1000.0, first->pci->link_width_max);
		if (bad > 1)
			snprintf(line->seen, sizeof(line->seen),
				 "%u links are below what both their ends can do", bad);
	} else if (resting) {
		pst_unknown(line, "%u GPU link%s below full speed, as at rest", resting,
			    resting == 1 ? " is" : "s are");
		pst_todo(line, "look again while the GPUs work: links at rest are slower");
	} else if (known) {
		pst_ok(line, "all at their full speed and width");
	}
}

/* ---- multipath ------------------------------------------------------------------ */

/* Is a name space of the drive handed out by NVMe's multipath layer? The folder of its
 * controller then holds nvme0c0n1, hidden, in place of nvme0n1. */
static bool behind_multipath(const struct facts *f, const struct spot *drive)
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

/* The layer is switched for all of NVMe, and over fabrics it is what survives a cut. */
static bool has_fabrics(const struct facts *f)
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

static void look_multipath(const struct facts *f, struct pst_check_line *line)
{
	unsigned i, count = 0, all = 0;

	if (f->host)
		return;
	for (i = 0; i < f->drive_count; i++) {
		if (strcmp(f->drives[i].transport, "pcie"))
			continue;
		all++;
		if (!behind_multipath(f, &f->drives[i]))
			continue;
		count++;
		pst_more(line, "%s is handed out by the multipath layer", f->drives[i].name);
	}
	if (!all)
		return;
	if (!count) {
		pst_ok(line, "off for these drives");
		return;
	}
	/* The queue of the multipath device does not say that it takes peer memory; later
	 * kernels were changed, which of them is for the probe to find out. */
	if (f->kernel >= 6017)
		pst_unknown(line,
			    "%u of %u drives lie behind it; recent kernels may let peers "
			    "through",
			    count, all);
	else
		pst_no(line, "%u of %u drives lie behind it", count, all);
	if (has_fabrics(f)) {
		pst_script(line,
			   "# left to you: it would take drives over fabrics their second path");
		pst_script(line, "# echo options nvme_core multipath=N "
				 ">/etc/modprobe.d/penstock-nvme.conf");
		return;
	}
	pst_script(line, "echo options nvme_core multipath=N "
			 ">/etc/modprobe.d/penstock-nvme.conf");
	pst_script(line, "# undo: rm /etc/modprobe.d/penstock-nvme.conf");
	pst_script(line, "update_initramfs  # then reboot; device names may change: mount by UUID");
}

const struct gate pst_check_pcie_gates[] = {
	{"iommu", PST_CHECK_DEVICE, PST_NEED_DIRECT, look_iommu,
	 "where it translates, peer traffic climbs to the root complex, or is lost",
	 "boot with iommu=pt"},
	{"acs", PST_CHECK_DEVICE, PST_NEED_DIRECT, look_acs,
	 "a redirecting bridge sends what goes from drive to device up to the root, not across",
	 "clear the redirect bits of these bridges, unless devices are passed to guests here"},
	{"route", PST_CHECK_DEVICE, PST_NEED_DIRECT, look_route,
	 "the kernel lets two devices talk below a common switch or over bridges that it knows",
	 "move drive and GPU below one PCIe switch, or choose nearer ones (penstock topo)"},
	{"link", PST_CHECK_DEVICE, PST_NEED_SPEED, look_link,
	 "a link below its best bounds every path over it",
	 "reseat the card or drive, and look at the slot's settings in the firmware"},
	{"multipath", PST_CHECK_DEVICE, PST_NEED_DIRECT, look_multipath,
	 "the multipath device in front of a drive refuses peer memory",
	 "boot with nvme_core.multipath=N if each drive has one path only"},
	{.name = NULL},
};
