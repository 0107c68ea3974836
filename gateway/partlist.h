/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lengths of an object's parts as a text, the item "parts" of its metadata. The lengths are
 * separated by commas, and "xN" after a length stands for N equal parts in a row, as in
 * "8388608x3,1000". Called by op_object.c and assemble.c.
 */
#ifndef GW_PARTLIST_H
#define GW_PARTLIST_H

#include <stdbool.h>
#include <stdint.h>

#include "common/text.h"

/* A position in a list of part lengths. At first, `at` is the start of the text, and the other
 * members are 0. */
struct gw_partlist {
	const char *at;
	uint64_t len;
	unsigned long repeat;
};

/* Finds the next part's length. Returns false after the last part. */
bool gw_partlist_next(struct gw_partlist *list, uint64_t *len);

/* The state while a list of part lengths is being written. All members are 0 at first. */
struct gw_partlist_writer {
	struct pst_text text;
	uint64_t len;
	unsigned long repeat;
};

void gw_partlist_add(struct gw_partlist_writer *writer, uint64_t len);
/* Writes the last part's length. The caller then frees writer->text.at. */
void gw_partlist_end(struct gw_partlist_writer *writer);

#endif
