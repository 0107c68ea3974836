/* SPDX-License-Identifier: Apache-2.0 */
/* The gate: keeps direct and cached writes to one place of a file apart. See file_gate.c. */
#ifndef PST_STORAGE_FILE_GATE_H
#define PST_STORAGE_FILE_GATE_H

#include "storage/file_state.h"

/* Gives the open file its identity for the gate. */
void pst_gate_open(struct pst_file *file, const struct stat *stat);
/*
 * Asks to start a write. Returns true if it may start at once. Returns false if it must wait:
 * then the gate calls go_on on the write's lane when its turn has come, and the io's own done is
 * kept in pst_file_io until then.
 */
bool pst_gate_enter(struct pst_io *io, void (*go_on)(struct pst_io *io));
/* Releases a write that has completed or could not start. Ignores an io that never entered. */
void pst_gate_leave(struct pst_io *io);

#endif
