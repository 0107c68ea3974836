/* SPDX-License-Identifier: Apache-2.0 */
/* Looks up the mount of the checked path, and the block layers and drives below it. */
#ifndef PST_CHECK_TARGET_H
#define PST_CHECK_TARGET_H

#include "facts.h"

/* Returns the target, or the path of a target that is a file URL. Returns NULL for a file URL of
 * another host, for which pst_check_target fails. */
const char *pst_check_target_path(const struct pst_check_facts *f);
/* Reads mount, block stack and drives of opts->target. Returns 0, or -errno with a sentence
 * in `why`. */
int pst_check_target(struct pst_check_facts *f, char *why, size_t why_len);

#endif
