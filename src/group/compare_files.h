/* SPDX-License-Identifier: Apache-2.0 */
/* Comparison of the ranks' files by their content. */
#ifndef PST_GROUP_COMPARE_FILES_H
#define PST_GROUP_COMPARE_FILES_H

#include "group/barrier.h"

/* Files whose hashes ranks compare one by one; those of further files are combined. */
#define PST_FILES_COMPARED 3072u

/* Returns a hash of the stat fields that identify a file and its state: device, inode, size and
 * time of change. */
uint64_t pst_group_hash_stat(const struct stat *st);

/* Fails with -ESTALE unless every rank's files have the content of rank 0's (collective).
 * `messages` has an element for each rank, for pst_group_exchange. */
int pst_group_compare_files(struct penstock_group *g, struct penstock_weights *w,
			    struct pst_message *messages);

#endif
