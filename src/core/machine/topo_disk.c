/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Classifies disks and RDMA devices by their entries in /sys: see topo_disk.h.
 */
#include "core/machine/topo_disk.h"

#include <string.h>

#include "core/machine/pci_address.h"
#include "core/machine/sysfs.h"

/* Reads the name of the driver of a SCSI host; `out` is "" if the host does not report it.
 * `host` points to the name of the SCSI host in the disk's path, for example
 * "host3/target3:0:0/...". Only the part before the first slash is used. */
static void scsi_host_driver(const struct pst_sysfs *fs, const char *host, char *out,
			     size_t out_len)
{
	pst_sysfs_text(fs, out, out_len, "sys/class/scsi_host/%.*s/proc_name",
		       (int)strcspn(host, "/"), host);
}

static const char *scsi_transport(const struct pst_sysfs *fs, const char *link, const char *host)
{
	char bdf[PST_BDF_LEN], driver[32];
	bool on_pci = pst_path_bdf(link, bdf);

	scsi_host_driver(fs, host, driver, sizeof(driver));
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

	/* Every Soft-RoCE device has a file `parent`, which names the network interface that it
	 * uses. Before kernel 5.11 the path of such a device was below the Ethernet card, as if it
	 * were hardware. */
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
