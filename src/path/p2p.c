/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The path "p2p": the drive's DMA writes device memory itself, or reads from it. It uses Linux PCI
 * P2PDMA (since kernel 6.2): O_DIRECT with pages of a PCI device as the buffer. For each pair of
 * drive and device, the kernel decides whether it permits the PCIe route. A test transfer, the
 * canary, checks whether the bytes arrive.
 */
#include <stdio.h>

#include "core/request/plan.h"
#include "path/inplace.h"
#include "path/p2p.h"

static int p2p_probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
		     char *fix)
{
	const struct pst_device_facts *dev = &route->dev->facts;
	int ret;

	if (dev->is_host) {
		snprintf(fix, PENSTOCK_TEXT_MAX,
			 "name a device whose memory has PCI P2PDMA pages, such as peermem:BDF");
		return pst_fail(err, PENSTOCK_WHY_DEVICE_ONLY, "%s",
				penstock_why_text(PENSTOCK_WHY_DEVICE_ONLY));
	}
	if (!dev->peer_pages) {
		*err = dev->why_peer;
		snprintf(fix, PENSTOCK_TEXT_MAX,
			 "needs a device and driver that publish their memory as PCI P2PDMA "
			 "pages (kernel 6.2 or later with CONFIG_PCI_P2PDMA)");
		return err->code;
	}
	ret = pst_inplace_probe(route, facts, err, fix);
	if (ret)
		return ret;
	if (dev->mem_align > facts->mem_align)
		facts->mem_align = dev->mem_align;
	/* pst_inplace_probe asks for the canary (a test transfer) only if the block stack is on the
	 * allow-list. This path always needs the canary: the hardware may refuse the transfer, or
	 * report success although it delivered nothing. */
	facts->canary = true;
	return 0;
}

/* Explains the error codes with which the kernel refuses peer-to-peer DMA (block/bio.c,
 * drivers/pci/p2pdma.c). EREMOTEIO means that the drive's queue or the PCIe route does not
 * support peer-to-peer DMA. EINVAL means the same in older kernels, or that the pages cannot be
 * mapped for DMA. */
static void p2p_explain(struct pst_chunk *chunk)
{
	int code = -chunk->err.code;

	if (code != EREMOTEIO && code != EINVAL && code != EFAULT)
		return;
	pst_fail_errno(&chunk->err, code, PENSTOCK_WHY_NO_ROUTE,
		       "the kernel refuses peer-to-peer DMA between %s and %s (%s)",
		       chunk->route->st->facts.drive_count ? chunk->route->st->facts.drives[0].name
							   : "the drive",
		       chunk->route->dev->name,
		       code == EREMOTEIO ? "EREMOTEIO: driver or bridges cannot do it"
		       : code == EINVAL	 ? "EINVAL: no common PCIe switch or permitted host bridge"
					 : "EFAULT: the pages cannot be pinned");
}

static int p2p_start(struct pst_chunk *chunk)
{
	return pst_inplace_start(chunk, p2p_explain);
}

const struct pst_path_ops pst_path_p2p = {
	.name = "p2p",
	.traits = {.reads = true, .writes = true, .needs_file = true, .class_ = PENSTOCK_DIRECT},
	.probe = p2p_probe,
	.start = p2p_start,
};
