/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies bytes of a file into a draft (a file that is being written). The kernel copies them, or
 * lets both files share blocks. If a hash of the bytes is wanted, they are copied through memory.
 * Called by op_copy.c and assemble.c.
 */
#ifndef GW_COPY_H
#define GW_COPY_H

#include <stdatomic.h>
#include <stdint.h>

#include "s3/hash.h"
#include "store.h"

/* Copies `len` bytes at `from` to the draft's offset `to`, and hashes them; `md5` and `sum` may be
 * NULL. Returns 0, -EIO if the file is shorter, -ECANCELED soon after `*stop` has become true, or
 * another negative errno. */
int gw_copy(const atomic_bool *stop, int fd, uint64_t from, uint64_t len,
	    const struct gw_draft *draft, uint64_t to, struct pst_hash *md5, struct pst_hash *sum);

#endif
