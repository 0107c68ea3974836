/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves a chunk through a slot of the ring: storage to slot to device, or back. Paths staged
 * and bounce call it. They differ in how the storage is called and in what is counted.
 */
#ifndef PST_PATH_SLOTTED_H
#define PST_PATH_SLOTTED_H

#include "core/ops.h"

/*
 * Starts the chunk; same results as start() of struct pst_path_ops. `io_flags` are PST_IO_*,
 * `align` is the alignment of a read call's offset and length.
 */
int pst_slotted_start(struct pst_chunk *chunk, unsigned io_flags, uint32_t align);

#endif
