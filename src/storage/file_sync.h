/* SPDX-License-Identifier: Apache-2.0 */
/* Determines what the kernel's write-back errors mean for a file. See file_sync.c. */
#ifndef PST_STORAGE_FILE_SYNC_H
#define PST_STORAGE_FILE_SYNC_H

#include "storage/file_state.h"

/* Stores in the transfer's struct how many write-back errors the kernel has reported for the file
 * so far. Called before a direct write starts. */
static inline void pst_file_direct_begin(struct pst_io *io)
{
	const struct pst_file *file = io->st->priv;
	struct pst_file_io *own = pst_file_io(io);

	own->errors = atomic_load_explicit(&file->errors_seen, memory_order_relaxed);
	own->remade = 0;
}
/*
 * Called after a direct write: checks whether the kernel has reported another error since the write
 * started. Returns 0 if it has not, 1 if the write must be repeated, or -EIO if it was repeated too
 * often.
 */
int pst_file_direct_recheck(struct pst_io *io);
/*
 * Called after a sync that failed with errno `code`. Returns true if no data is lost, so that the
 * caller can repeat the sync. May block.
 */
bool pst_file_forgive(struct pst_file *file, int code);
/* Records that a sync failed with errno `code` and that data of the file is lost, whichever
 * process wrote it. */
void pst_file_mark_lost(struct pst_file *file, int code);
/* Makes durable all bytes that have been written to the file. Returns 0 or -errno. May block. */
int pst_file_sync_all(struct pst_file *file, struct pst_err *err);

#endif
