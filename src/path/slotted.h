/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way through a slot of the ring, which staged and bounce share: storage to
 * slot, slot to device, or back. They differ in how the storage is called and in
 * what is counted.
 */
#ifndef PST_PATH_SLOTTED_H
#define PST_PATH_SLOTTED_H

#include "core/ops.h"

/* io_flags: PST_IO_*; align: of the system call's offset and length. */
int pst_slotted_start(struct pst_chunk *chunk, unsigned io_flags, uint32_t align);

#endif
