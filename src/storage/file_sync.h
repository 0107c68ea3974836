/* SPDX-License-Identifier: Apache-2.0 */
/* Interprets the kernel's write-back errors of a file: see file_sync.c. */
#ifndef PST_STORAGE_FILE_SYNC_H
#define PST_STORAGE_FILE_SYNC_H

#include "storage/file_state.h"

/* Records the file's error count before a direct transfer starts. */
static inline void pst_file_direct_begin(struct pst_io *io)
{
	const struct pst_file *file = io->st->priv;
	struct pst_file_io *own = pst_file_io(io);

	own->errors = atomic_load_explicit(&file->errors_seen, memory_order_relaxed);
	own->remade = 0;
}
/*
 * Checks for a new error after a direct write. Returns 0: none; 1: the write must be repeated;
 * -EIO: it was repeated too often.
 */
int pst_file_direct_recheck(struct pst_io *io);
/*
 * Decides on a sync that failed with errno `code`. Returns true if no data is lost, so that the
 * caller can repeat the sync. May block.
 */
bool pst_file_forgive(struct pst_file *file, int code);
/* Records that a sync has lost data, of any writer, with errno `code`. */
void pst_file_mark_lost(struct pst_file *file, int code);
/* Makes every byte durable that was ever written. Returns 0 or -errno. May block. */
int pst_file_sync_all(struct pst_file *file, struct pst_err *err);

#endif
