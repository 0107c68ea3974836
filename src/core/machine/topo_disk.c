/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a link of /sys tells about one device: its PCI address, the transport by
 * which a disk is reached, whether an RDMA device is software. Called by
 * topo_read.c and by the block stack. It must never call a disk reachable by DMA
 * because its path looks unlike what is known: that is "".
 */
#include <string.h>

#include "core/machine/sysfs.h"
#include "core/machine/topo.h"

bool pst_part_bdf(const char *part, size_t len, char out[PST_BDF_LEN])
{
	char text[PST_BDF_LEN];

	/* "04:00.0" without a domain is no device in /sys. */
	if (len < 12 || len >= sizeof(text))
		return false;
	memcpy(text, part, len);
	text[len] = '\0';
	return pst_bdf_normal(text, out) == 0;
}

bool pst_path_bdf(const char *path, char out[PST_BDF_LEN])
{
	const char *part;
	size_t len;

	out[0] = '\0';
	while (pst_path_next(&path, &part, &len))
		pst_part_bdf(part, len, out);
	return out[0] != '\0';
}

/* What the driver of the disk's SCSI host calls itself, "" when it does not say. */
static void host_driver(const struct pst_sysfs *fs, const char *host, char *out, size_t out_len)
{
	pst_sysfs_text(fs, out, out_len, "sys/class/scsi_host/%.*s/proc_name",
		       (int)strcspn(host, "/"), host);
}

static const char *scsi_transport(const struct pst_sysfs *fs, const char *link, const char *host)
{
	char bdf[PST_BDF_LEN], driver[32];
	bool on_pci = pst_path_bdf(link, bdf);

	host_driver(fs, host, driver, sizeof(driver));
	if (!strcmp(driver, "iscsi_iser"))
		return "iser";
	if (!strcmp(driver, "ib_srp"))
		return "srp";
	if (pst_path_find(link, "session", true))
		return on_pci && strcmp(driver, "iscsi_tcp") ? "iscsi-hba" : "iscsi";
	if (pst_path_find(link, "ctlr_", true))
		return "fcoe";
	if (!on_pci)
		return "";
	if (pst_path_find(link, "ata", true))
		return "sata";
	if (pst_path_find(link, "end_device-", false))
		return "sas";
	if (pst_path_find(link, "rport-", false))
		return "fc";
	return "hba";
}

const char *pst_disk_transport(const struct pst_sysfs *fs, const char *link)
{
	const char *virtio = pst_path_find(link, "virtio", true);
	const char *host = pst_path_find(link, "host", true);

	if (pst_path_find(link, "usb", true))
		return "usb";
	if (virtio && host && host > virtio)
		return "virtio-scsi";
	if (virtio)
		return !strncmp(virtio + strcspn(virtio, "/"), "/block/", 7) ? "virtio" : "";
	if (!host || !pst_path_find(link, "target", false))
		return "";
	return scsi_transport(fs, link, host);
}

bool pst_rdma_is_software(const struct pst_sysfs *fs, const char *name)
{
	char text[PST_SYSFS_PATH_MAX];

	/* Soft-RoCE has said what it stands on in `parent` since it exists; before
	 * 5.11 it hung below the Ethernet card, where its path tells nothing. */
	if (pst_part_is(name, strlen(name), "rxe", false) ||
	    pst_part_is(name, strlen(name), "siw", false) ||
	    pst_sysfs_exists(fs, "sys/class/infiniband/%s/parent", name))
		return true;
	if (pst_sysfs_text(fs, text, sizeof(text), "sys/class/infiniband/%s/node_desc", name) > 0 &&
	    (!strcmp(text, "rxe") || !strncmp(text, "Software iWARP", 14)))
		return true;
	return pst_sysfs_link(fs, text, sizeof(text), "sys/class/infiniband/%s", name) < 0 ||
	       strstr(text, "/virtual/");
}
