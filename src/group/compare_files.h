/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the content of the files that the ranks opened. */
#ifndef PST_GROUP_COMPARE_FILES_H
#define PST_GROUP_COMPARE_FILES_H

#include "group/barrier.h"

/* Number of entries for the hashes of a model's files. Each file has an entry of its own, but the
 * last entry combines the hashes of all further files. */
#define PST_FILES_COMPARED 3072u

/* Returns a hash of the stat fields that identify a file and its state: the device, the inode,
 * the size and the time of modification. */
uint64_t pst_group_hash_stat(const struct stat *st);

/* Fails with -ESTALE if a rank's files differ in content from rank 0's (collective). `messages`
 * is an array with one element for each rank, which pst_group_exchange fills. */
int pst_group_compare_files(struct penstock_group *g, struct penstock_weights *w,
			    struct pst_message *messages);

#endif
