/* SPDX-License-Identifier: Apache-2.0 */
/* The gate: keeps direct writes and cached writes to one place of a file apart. See file_gate.c. */
#ifndef PST_STORAGE_FILE_GATE_H
#define PST_STORAGE_FILE_GATE_H

#include "storage/file_state.h"

/* Sets the members of an open file by which the gate recognises the file. */
void pst_gate_open(struct pst_file *file, const struct stat *stat);
/*
 * Asks the gate whether a write may start. Returns true if it may start at once, or false if it
 * must wait. In that case the gate later calls go_on on the write's lane, as soon as the write may
 * start. For this, the gate replaces io->done, and stores the former io->done in the write's struct
 * pst_file_io, from which it is restored.
 */
bool pst_gate_enter(struct pst_io *io, void (*go_on)(struct pst_io *io));
/* Tells the gate that a write has completed or could not start. Ignores a write that the gate has
 * not counted. */
void pst_gate_leave(struct pst_io *io);

#endif
