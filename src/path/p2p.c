/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Path p2p: the drive's DMA writes device memory itself (Linux PCI P2PDMA: O_DIRECT
 * into pages of a PCI device, kernel 6.2 and later). The kernel decides for each
 * pair whether the PCIe route is permitted; the canary decides whether the bytes
 * arrive.
 */
#include <stdio.h>

#include "core/request/request.h"
#include "core/route/route.h"
#include "path/inplace.h"
#include "path/paths.h"

static int probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
		 char *fix)
{
	const struct pst_device_facts *dev = &route->dev->facts;
	int ret;

	if (dev->is_host) {
		snprintf(fix, PENSTOCK_TEXT_MAX,
			 "name a device whose memory has PCI P2PDMA pages, peermem:BDF say");
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
	/* Whatever lies between: a route may be refused, or deliver nothing and call it
	 * success, through a block stack that is not on the list too. */
	facts->canary = true;
	return 0;
}

/* What the kernel answers when it does not let these two talk (block/bio.c,
 * drivers/pci/p2pdma.c): EREMOTEIO where the queue or the route cannot do
 * peer-to-peer, EINVAL on older kernels and for pages that cannot be mapped. */
static void explain(struct pst_chunk *chunk)
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

static int start(struct pst_chunk *chunk)
{
	struct penstock_device *dev = chunk->route->dev;
	struct pst_part part;
	void *address;
	int ret = pst_span_part_at(chunk->req, &chunk->req->spans[chunk->span], chunk->off, &part);

	if (ret)
		return pst_fail(&chunk->err, PENSTOCK_WHY_UNALIGNED,
				"the chunk belongs to several buffers");
	address = part.mem;
	if (dev->ops->peer_address) {
		ret = dev->ops->peer_address(dev, part.mem, chunk->len + chunk->pad, &address,
					     &chunk->err);
		if (ret)
			return ret;
	}
	return pst_inplace_start(chunk, address, explain);
}

const struct pst_path_ops pst_path_p2p = {
	.name = "p2p",
	.traits = {.reads = true, .writes = true, .class_ = PENSTOCK_DIRECT},
	.probe = probe,
	.start = start,
};
