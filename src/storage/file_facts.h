/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out what a file is stored on, and which of its bytes are written: see file_facts.c. */
#ifndef PST_STORAGE_FILE_FACTS_H
#define PST_STORAGE_FILE_FACTS_H

#include "core/ops.h"

/*
 * Fills st->facts (the properties of an open file) and opens the file's O_DIRECT descriptor. `root`
 * is a directory with a copy of another machine's /sys and /proc, or "" for this machine. Returns 0
 * or -errno.
 */
int pst_file_facts(struct penstock_storage *st, const char *root, struct pst_err *err);
/* Returns in *off and *len the first written extent at or after *off, which the ioctl FIEMAP
 * reports. Returns 0, or -ENODATA if there is no such extent. */
int pst_file_written(struct penstock_storage *st, uint64_t *off, uint64_t *len);
/* Returns a number that identifies the state of the file: if extents may have been written
 * between two calls, the numbers differ. */
uint64_t pst_file_stamp(struct penstock_storage *st);
#endif
