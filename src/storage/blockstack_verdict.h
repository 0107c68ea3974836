/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Judges a block stack by an allow-list: is it a drive's DMA engine that moves the bytes of an
 * O_DIRECT call? It must never answer yes by default: every layer has to be recognised.
 */
#ifndef PST_STORAGE_BLOCKSTACK_VERDICT_H
#define PST_STORAGE_BLOCKSTACK_VERDICT_H

#include "storage/blockstack.h"

/*
 * Returns true if the stack is on the allow-list. Else `why` (NULL: not wanted) gets one sentence
 * that names the reason. Pure.
 */
bool pst_blockstack_direct_ok(const struct pst_blockstack *stack, char *why, size_t why_len);

/*
 * Judges one file of the stack by its inode: stx_attributes of statx and the flags of
 * FS_IOC_GETFLAGS (0 where that is refused). Encryption, verity, compression, DAX, inline data
 * and a data journal of the file's own are not direct. Pure.
 */
bool pst_blockstack_inode_ok(uint64_t statx_attributes, uint32_t inode_flags, char *why,
			     size_t why_len);

/* Prints "ext4 on md0 (raid0) on nvme0n1 nvme1n1 (nvme pcie)", truncated to fit. */
void pst_blockstack_text(const struct pst_blockstack *stack, char *out, size_t out_len);
/* Returns the kind's name, such as "raid0". Static storage. */
const char *pst_layer_kind_name(enum pst_layer_kind kind);

#endif
