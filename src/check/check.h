/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declares the check behind `penstock check`. Only the command includes this header. result.h
 * has the types of the result. The library itself does not use the folder src/check.
 * ARCHITECTURE.md, section Words, explains the project's words.
 */
#ifndef PST_CHECK_CHECK_H
#define PST_CHECK_CHECK_H

#include "result.h"

/*
 * Checks every gate (a condition of a direct path) and stores the result in *out; the caller frees
 * it with pst_check_free(). If the target is a path on the running machine, also creates a scratch
 * file next to the path, and removes it (see scratch_create in probe.c). Blocks for seconds.
 * Returns 0, or -errno with a sentence in `why`:
 * -ENOENT  the path does not exist
 * -ENODEV  the device does not exist
 * -EINVAL  the folder `root` has no copies of another machine's /sys and /proc files
 */
int pst_check_run(const struct pst_check_opts *opts, struct pst_check **out, char *why,
		  size_t why_len);
void pst_check_free(struct pst_check *check);

#endif
