/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers of the tests of the block stack. They create a simple machine and check the verdict about
 * its stack of block devices: either the stack is direct, or it is not direct and the verdict has a
 * sentence with the reason. Only the tests of the block stack include this file. A verdict "not
 * direct" without a sentence must always fail the test.
 */
#ifndef PENSTOCK_JUDGE_H
#define PENSTOCK_JUDGE_H

#include "../test.h"

#include <string.h>

#include "storage/blockstack_verdict.h"
#include "tree.h"

#define EXT4_MAGIC 0xef53
#define PCI "pci0000:00/0000:01:00.0"

static inline void assert_direct(const struct pst_blockstack *stack)
{
	char why[256] = "";

	if (!pst_blockstack_direct_ok(stack, why, sizeof(why)))
		fail_msg("not direct: %s", why);
	assert_string_equal(why, "");
}

/* Asserts that the stack is not direct and that the reason contains `word`. */
static inline void assert_not(const struct pst_blockstack *stack, const char *word)
{
	char why[256] = "";

	if (pst_blockstack_direct_ok(stack, why, sizeof(why)))
		fail_msg("the stack is direct in spite of %s", word);
	if (!strstr(why, word))
		fail_msg("'%s' does not name %s", why, word);
	assert_false(pst_blockstack_direct_ok(stack, NULL, 0));
}

/* Creates a machine with one drive, nvme0n1, and the file system ext4 on the drive's partition
 * nvme0n1p1. */
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

/* Adds a virtual block device with the number `dev` on top of one or two other block devices. */
static inline void stack_up(const struct tree *t, const char *name, const char *dev,
			    const char *slave1, const char *slave2)
{
	char path[256];

	snprintf(path, sizeof(path), "virtual/block/%s", name);
	tree_disk(t, path, dev);
	snprintf(path, sizeof(path), "sys/devices/virtual/block/%s/slaves", name);
	tree_folder(t, path);
	if (slave1) {
		snprintf(path, sizeof(path), "sys/devices/virtual/block/%s/slaves/%s", name,
			 slave1);
		tree_link(t, path, "nowhere");
	}
	if (slave2) {
		snprintf(path, sizeof(path), "sys/devices/virtual/block/%s/slaves/%s", name,
			 slave2);
		tree_link(t, path, "nowhere");
	}
}

static inline void plant_md(const struct tree *t, const char *level, const char *slave1,
			    const char *slave2)
{
	stack_up(t, "md0", "9:0", slave1, slave2);
	tree_text(t, "sys/devices/virtual/block/md0/md/level", level);
	tree_text(t, "sys/devices/virtual/block/md0/md/chunk_size", "65536\n");
}

static inline void plant_dm(const struct tree *t, const char *name, const char *dev,
			    const char *uuid, const char *slave)
{
	char path[256];

	stack_up(t, name, dev, slave, NULL);
	snprintf(path, sizeof(path), "sys/devices/virtual/block/%s/dm/uuid", name);
	tree_text(t, path, uuid);
}

/* Reads the stack below a block device. If `major` is 0, reads the stack below the file system that
 * plant() created. */
static inline struct pst_blockstack walk(const struct tree *t, unsigned major, unsigned minor)
{
	struct pst_blockstack_in in = {.major = major,
				       .minor = minor,
				       .is_block = major != 0,
				       .fs_magic = major ? 0 : EXT4_MAGIC,
				       .mount_id = -1};
	struct pst_blockstack stack;

	if (!major) {
		in.major = 259;
		in.minor = 1;
	}
	assert_int_equal(pst_blockstack_read(t->root, &in, &stack), 0);
	return stack;
}

#endif
