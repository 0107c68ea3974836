/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides by an allow-list whether a drive's DMA engine moves the bytes of an O_DIRECT call on a
 * block stack. The answer must never be yes by default: every layer has to be on the list.
 */
#ifndef PST_STORAGE_BLOCKSTACK_VERDICT_H
#define PST_STORAGE_BLOCKSTACK_VERDICT_H

#include "storage/blockstack.h"

/*
 * Returns true if the stack is on the allow-list. Otherwise it writes a sentence with the reason to
 * `why`, unless `why` is NULL. It has no side effects.
 */
bool pst_blockstack_direct_ok(const struct pst_blockstack *stack, char *why, size_t why_len);

/*
 * Returns true if the inode flags of a file permit direct transfers. The flags are stx_attributes
 * of statx, and the flags of FS_IOC_GETFLAGS (0 if that ioctl is refused). Returns false for a file
 * with encryption, verity, compression, DAX, inline data or a data journal, and writes the reason
 * to `why` unless that is NULL. Has no side effects.
 */
bool pst_blockstack_inode_ok(uint64_t statx_attributes, uint32_t inode_flags, char *why,
			     size_t why_len);

/* Writes a description of the stack, such as "ext4 on md0 (raid0) on nvme0n1 nvme1n1 (nvme pcie)".
 * Truncates it to `out_len` bytes. */
void pst_blockstack_text(const struct pst_blockstack *stack, char *out, size_t out_len);
/* Returns the name of a kind of layer, such as "raid0", in static storage. */
const char *pst_layer_kind_name(enum pst_layer_kind kind);

#endif
