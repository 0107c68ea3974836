/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sorts names in the order of strcmp. Stays fast for the millions of names that a header may
 * hold, also if they share long prefixes. Called by safetensors.c. Allocates nothing besides
 * what qsort allocates.
 */
#ifndef PST_WEIGHTS_SORT_NAMES_H
#define PST_WEIGHTS_SORT_NAMES_H

#include <stddef.h>
#include <stdint.h>

struct pst_named {
	uint64_t head; /* Scratch of the sort. */
	const char *name;
	uint32_t at; /* The caller's: position of the name before the sort. */
};

/* Sorts `list` in place. */
void pst_sort_names(struct pst_named *list, size_t count);

#endif
