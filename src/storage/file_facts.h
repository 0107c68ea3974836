/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out what a file is stored on, what is written and what is cached: see file_facts.c. */
#ifndef PST_STORAGE_FILE_FACTS_H
#define PST_STORAGE_FILE_FACTS_H

#include "core/ops.h"

/*
 * Fills st->facts of an open file and opens its O_DIRECT descriptor. `root` is the directory of
 * a captured machine, "" for this one. Returns 0 or -errno.
 */
int pst_file_facts(struct penstock_storage *st, const char *root, struct pst_err *err);
/* Finds a written extent at or after *off by FIEMAP. Returns 0, or -ENODATA if there is none. */
int pst_file_written(struct penstock_storage *st, uint64_t *off, uint64_t *len);
/* Returns a number that differs from the last one if extents may have been written since. */
uint64_t pst_file_stamp(struct penstock_storage *st);
#endif
