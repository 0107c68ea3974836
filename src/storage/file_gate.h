/* SPDX-License-Identifier: Apache-2.0 */
/* The gate: keeps direct writes and cached writes to one range of a file from being in flight at
 * the same time. See file_gate.c. */
#ifndef PST_STORAGE_FILE_GATE_H
#define PST_STORAGE_FILE_GATE_H

#include "storage/file_state.h"

/* Sets the members of `file` by which the gate identifies it: place_key and place_bytes. */
void pst_gate_open(struct pst_file *file, const struct stat *stat);
/*
 * Asks the gate whether a write may start. Returns true if it may start at once, or false if it
 * must wait. In that case the gate calls go_on as soon as the write may start, on the write's own
 * lane (worker thread). The gate stores go_on in io->done until then. The former io->done is in the
 * write's struct pst_file_io, and go_on must restore it.
 */
bool pst_gate_enter(struct pst_io *io, void (*go_on)(struct pst_io *io));
/* Reports to the gate that a write has completed or could not start. Does nothing if the gate has
 * not counted the write. */
void pst_gate_leave(struct pst_io *io);

#endif
