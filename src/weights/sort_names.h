/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sorts names in the order of strcmp. It stays fast for millions of names, which one header may
 * hold, even if the names share long prefixes. Called by safetensors.c. It allocates no memory,
 * except that qsort may allocate some.
 */
#ifndef PST_WEIGHTS_SORT_NAMES_H
#define PST_WEIGHTS_SORT_NAMES_H

#include <stddef.h>
#include <stdint.h>

struct pst_named {
	uint64_t head; /* A number made of bytes of the name; pst_sort_names sets it. */
	const char *name;
	uint32_t at; /* Set by the caller: position of the name before the sort. */
};

/* Sorts `list` in place. */
void pst_sort_names(struct pst_named *list, size_t count);

#endif
