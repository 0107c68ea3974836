/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the tests of the block stack judge: a stack is direct, or it is not and the
 * sentence names why; and the stack that they begin with. Included by them alone.
 * It must never accept a verdict without its sentence.
 */
#ifndef PENSTOCK_JUDGE_H
#define PENSTOCK_JUDGE_H

#include "../test.h"

#include <string.h>

#include "storage/blockstack.h"
#include "tree.h"

#define PCI "pci0000:00/0000:01:00.0"

static inline void assert_direct(const struct pst_blockstack *stack)
{
	char why[256] = "";

	if (!pst_blockstack_direct_ok(stack, why, sizeof(why)))
		fail_msg("not direct: %s", why);
	assert_string_equal(why, "");
}

/* And the reason names what spoils it. */
static inline void assert_not(const struct pst_blockstack *stack, const char *word)
{
	char why[256] = "";

	if (pst_blockstack_direct_ok(stack, why, sizeof(why)))
		fail_msg("direct, though there is %s", word);
	if (!strstr(why, word))
		fail_msg("'%s' does not name %s", why, word);
	assert_false(pst_blockstack_direct_ok(stack, NULL, 0));
}

/* A tree with ext4 on nvme0n1p1 on nvme0n1, which stands alone. */
static inline void plant(struct tree *t)
{
	tree_open(t);
	tree_text(t, "proc/cmdline", "ro swiotlb=noforce\n");
	tree_text(t, "proc/meminfo", "MemTotal:   16777216 kB\n");
	tree_text(t, "proc/self/mountinfo",
		  "22 1 259:1 / / rw,relatime - ext4 /dev/nvme0n1p1 rw,data=ordered\n");
	tree_disk(t, PCI "/nvme/nvme0/nvme0n1", "259:0");
	tree_disk(t, PCI "/nvme/nvme0/nvme0n1/nvme0n1p1", "259:1");
	tree_text(t, "sys/devices/" PCI "/nvme/nvme0/nvme0n1/nvme0n1p1/partition", "1\n");
	tree_text(t, "sys/devices/" PCI "/nvme/nvme0/transport", "pcie\n");
	tree_text(t, "sys/devices/" PCI "/nvme/nvme0/model", "Model X\n");
	tree_link(t, "sys/class/nvme/nvme0", "../../devices/" PCI "/nvme/nvme0");
	tree_text(t, "sys/devices/" PCI "/nvme/nvme0/nvme0n1/queue/logical_block_size", "4096\n");
	tree_text(t, "sys/devices/" PCI "/nvme/nvme0/nvme0n1/queue/dma_alignment", "3\n");
	tree_text(t, "sys/devices/" PCI "/nvme/nvme0/nvme0n1/queue/rotational", "0\n");
	tree_text(t, "sys/devices/" PCI "/numa_node", "1\n");
	tree_text(t, "sys/devices/" PCI "/dma_mask_bits", "64\n");
	tree_link(t, "sys/bus/pci/devices/0000:01:00.0", "../../../devices/" PCI);
}

#endif
